"""Which changes of a judge no test of its subject notices.

    make mutants                                             the functions of JUDGES
    make mutants ARGS=gpus/judge_health.py                   a judge file
    make mutants ARGS=gpus/judge_health.py:bus_ids_collide   a function of it

A mutant flips one comparison, loses one `not`, one operand of `and` or `or` or one condition of a comprehension, or has an `if` that is
never true. Survivors are printed, and the exit code is 3. No file is changed: the tests are loaded once, and each mutant is the changed
code in a fork, where those tests run that reach its function.

No library: mutmut 3.8.1 finds no test of a package below lib/, and leaves tables of lambdas alone; cosmic-ray 8.7.0 needs yattag, which
has no wheel for our lock, drops no operand, and starts pytest anew for each mutant.
"""

import ast
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

import pytest

ROOT = Path(__file__).resolve().parent.parent
# the tests of a room, or of one file of it
TESTS = {
    "against": ["test_triage_against"],
    "case": ["test_start", "test_diagnose"],
    "causes": ["test_rules_worlds"],
    "compare": ["test_ab"],
    "edges": ["test_edges"],
    "environment": ["test_rules_environment"],
    "gpus": ["test_gpu_visibility", "test_gpu_health"],
    "hang": ["test_hang"],
    "hang/live": ["test_rules_live", "test_live_hosts"],
    "hang/ras": ["test_hang_ras"],
    "hosts": ["test_hosts"],
    "machine": ["test_busy"],
    "messages": ["test_messages"],
    "messages/printed": ["test_rules_worlds"],
    "plan": ["test_plan", "test_plan_files"],
    "sync": ["test_rules_sync"],
    "sync/pays": ["test_pays"],
    "triage": ["test_triage", "test_triage_clues", "test_triage_messages", "test_triage_told"],
    "worlds": ["test_rules_worlds", "test_search"],
    "worlds/judge_arms.py": ["test_transport_decision"],
    "worlds/judge_control.py": ["test_rules_transports_environment", "test_transport_decision"],
    "worlds/judge_culprits.py": ["test_narrowest"],
}
# judging functions of hang, worlds, gpus, search and sync
JUDGES = [
    "gpus/judge_cuda.py:cuda_misses_gpus",
    "messages/printed/failed_world.py:explain",
    "machine/guard.py:in_the_way",
    "hang/live/faults/judge_missing.py:rank_elsewhere",
    "hang/judge_accused.py:silent",
    "gpus/judge_health.py:bus_ids_collide",
    "worlds/judge.py:_search",
    "gpus/judge.py:gpus_hidden",
    "gpus/judge_health.py:_HAS",
    "environment/judge_settings.py:contradictions",
    "worlds/judge_arms.py:_by_arms",
    "hang/live/faults/judge_slow.py:slow_by_gpus",
    "worlds/judge_culprits.py:with_pairs",
    "against/judge.py:_communicators",
    "hang/live/faults/judge_slow.py:gpu_stuck",
    "machine/judge_busy.py:gpus_busy",
    "worlds/judge_control.py:outcome",
    "triage/ranks/judge_gpus.py:first_gpu_is_held",
    "environment/libraries/judge_libraries.py:two_libraries",
    "sync/judge_failures.py:of_one",
    "hang/live/judge_hosts.py:missing_ranks",
]
LONGEST_S = 120  # a mutant may run forever
SLOW_S = 3  # of the CPU, children too: tests that take longer are not asked, as they start ranks or try whole input spaces
NOTICED, BROKEN, SURVIVED = 1, 2, 3
FLIPPED = {ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
           ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}


def changes(node: ast.AST) -> Iterator[tuple[str, object]]:
    """(field, its other value)"""
    match node:
        case ast.Compare(ops=ops):
            yield from (("ops", [*ops[:n], FLIPPED[type(op)](), *ops[n + 1:]]) for n, op in enumerate(ops))
        case ast.BoolOp(op=op, values=values):
            neutral = ast.Constant(isinstance(op, ast.And))
            yield from (("values", [*values[:n], neutral, *values[n + 1:]]) for n in range(len(values)))
        case ast.comprehension(ifs=ifs):
            yield from (("ifs", [*ifs[:n], *ifs[n + 1:]]) for n in range(len(ifs)))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "operand", ast.UnaryOp(ast.Not(), operand)
        case ast.If() | ast.IfExp():
            yield "test", ast.Constant(False)


def mutants(part: ast.stmt) -> Iterator[tuple[int, str, str]]:
    """(line, before, after), while ``part`` is changed."""
    for node in list(ast.walk(part)):
        for field, other in changes(node):
            was = getattr(node, field)
            shown = (lambda: f"if {ast.unparse(node.test)}") if field == "test" else (lambda: ast.unparse(node))  # noqa: B023
            before = shown()
            setattr(node, field, other)
            ast.fix_missing_locations(part)
            yield getattr(node, "lineno", part.lineno), before, shown()
            setattr(node, field, was)


def name_of(part: ast.stmt) -> str:
    """Of a function or class, or of the table that a statement fills."""
    filled = part.targets[0] if isinstance(part, ast.Assign) else getattr(part, "target", part)
    return getattr(filled, "name", getattr(filled, "id", ""))


def functions(code: CodeType) -> Iterator[CodeType]:
    """The functions and lambdas of a module, and of its classes."""
    for inner in (c for c in code.co_consts if isinstance(c, CodeType)):
        yield inner
        if not inner.co_flags & 2:  # CO_NEWLOCALS: all but the body of a class
            yield from functions(inner)


class Run:
    """A pytest plugin: each test once, to see which functions it reaches; then each mutant."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name, self.total, self.survivors = str(path), name, 0, 0

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        tests = sorted((self._reaches(item) for item in session.items), key=lambda test: test[0])
        tree = ast.parse(Path(self.path).read_text(encoding="utf-8"))
        codes = list(functions(compile(tree, self.path, "exec")))
        live = [f for f in gc.get_objects() if isinstance(f, FunctionType) and f.__code__.co_filename == self.path]
        for part in (p for p in tree.body if not session.testsfailed and self.name in ("", name_of(p))):
            lines = range(min(x.lineno for x in (part, *getattr(part, "decorator_list", []))), part.end_lineno + 1)
            near = [item for took, item, reached in tests if took < SLOW_S and any(line in lines for line in reached)]
            for line, before, after in mutants(part):
                changed = functions(compile(tree, self.path, "exec"))
                swaps = [(f, new) for old, new in zip(codes, changed, strict=True) if old != new for f in live if f.__code__ == old]
                self.total += bool(swaps)
                if swaps and not is_noticed(near, swaps):
                    self.survivors += 1
                    print(f"\n{self.path}:{line} ({len(near)} tests)\n  - {before}\n  + {after}", flush=True)
        return True

    def _reaches(self, item: pytest.Item) -> tuple[float, pytest.Item, set[int]]:
        """(seconds of the CPU, test, first lines of the functions that it calls)"""
        lines, start = set(), sum(os.times()[:4])
        sys.setprofile(lambda frame, *_: lines.add(frame.f_code.co_firstlineno) if frame.f_code.co_filename == self.path else None)
        fails(item)
        sys.setprofile(None)
        return sum(os.times()[:4]) - start, item, lines


def fails(item: pytest.Item) -> bool:
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    return item.session.testsfailed > 0


def is_noticed(items: list[pytest.Item], swaps: list[tuple[FunctionType, CodeType]]) -> bool:
    """A test fails, or does not end."""
    if not (pid := os.fork()):
        code = BROKEN
        try:
            for function, changed in swaps:
                function.__code__ = changed
            if items:
                items[0].config.pluginmanager.unregister(name="terminalreporter")
            code = NOTICED if any(map(fails, items)) else 0
        finally:
            os._exit(code)
    end = time.monotonic() + LONGEST_S
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    if (code := os.waitstatus_to_exitcode(ended[1])) == BROKEN:
        raise RuntimeError("a mutant could not be tried")
    return code != 0


def main(named: list[str]) -> int:
    if len(named) != 1:  # each loads the tests of its own subject
        return max(subprocess.run([sys.executable, __file__, one], check=False).returncode for one in named or JUDGES)
    judge, _, name = named[0].partition(":")
    path = ROOT / "lib" / "nccl_runbook" / judge
    tests = next((TESTS[place] for place in (judge, *map(str, Path(judge).parents)) if place in TESTS), [])
    if not tests or not path.is_file():
        sys.exit(f"make mutants: {judge} is no file below lib/nccl_runbook with tests in TESTS of tests/mutants.py")
    run = Run(path, name)
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:timeout", "-W", "ignore", "--rootdir", str(ROOT)]
    code = pytest.main([*options, *(str(ROOT / "tests" / f"{test}.py") for test in tests)], plugins=[run])
    if not code and not run.total:
        sys.exit(f"make mutants: no condition to change in {named[0]}: was the function renamed or moved?")
    print(f"{named[0]}: {run.total} mutants, {run.survivors} survive", flush=True)
    return int(code) or (SURVIVED if run.survivors else 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
