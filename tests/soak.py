"""Kills and stops at random moments of a real run: `python tests/soak.py kill 100`, `python tests/soak.py stop 20 --budget 30`.
`python tests/soak.py resume 50`: runs with a log that end too early, and what `diagnose RUN` still knows of them.

Each time, for the same seed at the same moments: no process is left, no torn record is believed, whoever was stopped is named, all within
1.2 times the budget, and the next start removes what the run left in the temporary folder. Figures count on a quiet machine only.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import os
import pty
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from book_samples import CLI, GOOD, make_book, with_library
from nccl_runbook.core.records import read
from nccl_runbook.launch.interpreters import is_stopped
from nccl_runbook.launch.stop import MARK
from nccl_runbook.report.verdict_document import VerdictDocument
from processes import children, start_time

ROOT = Path(__file__).resolve().parents[1]
STEP = "03-fewer-gpus"
FOLDERS = [Path("/tmp"), Path("/dev/shm")]


def command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def find(runner: int, who: str) -> int:
    """The process of that role below the runner, 0 if there is none now."""
    below = sorted((start, pid) for pid in children(runner) if (start := start_time(pid)))
    forks = [pid for _, pid in below if "warm.py" in command(pid)]
    roles = {"runner": [runner], "terminal": [runner], "kernel": [p for _, p in below if "ipykernel" in command(p)],
             "warm": forks[:1], "rank": forks[1:], "youngest": [p for _, p in below[-1:]]}
    return next(iter(roles[who]), 0)


def left_behind(run_dir: Path) -> list[str]:
    """Temporary folders of this run, and its files that are not whole."""
    marks = [mark for folder in FOLDERS for mark in folder.glob(f"*/{MARK}")]
    return [str(m.parent) for m in marks if m.read_text(errors="replace") == str(run_dir)] + [p.name for p in run_dir.glob(".*")]


def start(run_dir: Path, budget_s: int) -> tuple[subprocess.Popen, int]:
    """The run, and the other end of its terminal."""
    ours, theirs = pty.openpty()
    asked = ["run", "--step", STEP, "--budget", f"{budget_s}s", "--out", str(run_dir), "--python", sys.executable]
    runner = subprocess.Popen([*CLI, *asked], cwd=ROOT, stdin=theirs, stdout=theirs, stderr=subprocess.STDOUT, env=with_library(),
                              start_new_session=True, preexec_fn=lambda: __import__("fcntl").ioctl(0, 0x540E, 0))  # TIOCSCTTY
    os.close(theirs)
    return runner, ours


def drain(terminal: int) -> None:
    os.set_blocking(terminal, False)
    with contextlib.suppress(OSError):
        while os.read(terminal, 1 << 16):
            pass


def hit(runner: subprocess.Popen, victim: int, who: str, number: int) -> bool:
    """Whether it met a living process of that role: ranks come and go."""
    while runner.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, number)
            time.sleep(0.05)
            if number == signal.SIGKILL or is_stopped(victim):
                return True
        victim = find(runner.pid, who) or victim
    return False


def once(what: str, who: str, after_s: float, budget_s: int, folder: Path) -> dict:
    """One run that is hit ``after_s`` after the role was first seen; what is wrong with its end."""
    run_dir, began = folder / f"run-{time.monotonic_ns()}", time.monotonic()
    runner, terminal = start(run_dir, budget_s)
    victim, seen = 0, {}
    while runner.poll() is None and not (victim := find(runner.pid, who)):
        time.sleep(0.02)
    time.sleep(after_s)
    victim = find(runner.pid, who) or victim
    seen = {pid: start_time(pid) for pid in [runner.pid, *children(runner.pid)]}
    is_hit = True
    if who == "terminal":
        os.close(terminal)
    else:
        is_hit = hit(runner, victim, who, signal.SIGKILL if what == "kill" else signal.SIGSTOP)
    wall_limit = 3 * budget_s + 60
    while runner.poll() is None and time.monotonic() - began < wall_limit:
        if who != "terminal":
            drain(terminal)
        seen |= {pid: start_time(pid) for pid in children(runner.pid)}
        time.sleep(0.05)
    wall_s = time.monotonic() - began
    time.sleep(2.0)
    alive = [command(pid) for pid, started in seen.items() if started and start_time(pid) == started and pid != runner.pid]
    if runner.poll() is None:
        alive.append("the runner")
        runner.kill()
    if who != "terminal":
        os.close(terminal)
    return {"what": what, "who": who, "after_s": round(after_s, 2), "hit": is_hit, "wall_s": round(wall_s, 1), "exit_code": runner.wait(),
            **judged(run_dir, alive, wall_s / budget_s, is_hit and what == "stop", folder)}


def judged(run_dir: Path, alive: list[str], ratio: float, stopped: bool, folder: Path) -> dict:
    """What the run said, and every promise that it broke."""
    wrong = [f"still there: {alive}"] if alive else []
    said = (run_dir / "verdict.json").read_text() if (run_dir / "verdict.json").exists() else ""
    verdict = read(VerdictDocument, said.encode()).verdict if said else "none"
    record = (run_dir / f"{STEP}.json").read_text() if (run_dir / f"{STEP}.json").exists() else "{}"
    status, reason = json.loads(record).get("status", "none"), json.loads(record).get("reason", "")
    named = re.search(r"state T|peer-stopped|\"T ", record + said)
    wrong += ["called healthy"] if verdict == "healthy" else []
    wrong += [f"{ratio:.2f} times the budget"] if ratio > 1.2 else []
    wrong += ["who was stopped is not named"] if stopped and not named else []
    before = left_behind(run_dir)
    subprocess.run(
        [
            *CLI,
            "run",
            "--notebooks",
            str(make_book(folder / "book", n01_good=GOOD)),
            "--out",
            str(folder / f"next-{time.monotonic_ns()}"),
            "--python",
            sys.executable,
        ],
        cwd=ROOT,
        env=with_library(),
        capture_output=True,
        check=False,
    )
    wrong += [f"left after the next start: {left_behind(run_dir)}"] if left_behind(run_dir) else []
    return {"verdict": verdict, "status": status, "reason": reason[:120], "left": len(before), "wrong": wrong}


def resumed(number: int, after_s: float, budget_s: int, folder: Path) -> dict:
    """A run that ends ``after_s`` after its start; what is wrong with what `diagnose` makes of its folder."""
    log, run_dir = folder / "job.log", folder / f"case-{time.monotonic_ns()}"
    log.write_text("node0:2360:2360 [0] bootstrap.cc:114 NCCL WARN Bootstrap : no socket interface found\n")
    runner = subprocess.Popen(
        [*CLI, "run", "--log", str(log), "--budget", f"{budget_s}s", "--out", str(run_dir), "--python", sys.executable],
        cwd=ROOT,
        env=with_library(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with contextlib.suppress(subprocess.TimeoutExpired):
        runner.wait(after_s)
    runner.send_signal(number)
    code, whole = runner.wait(), sorted(run_dir.glob("[0-9][0-9]-*.json"))
    finished = {one["step"] for path in whole if (one := json.loads(path.read_text()))["status"] not in ("running", "unknown")}
    told = subprocess.run(
        [*CLI, "diagnose", str(log), *map(str, whole[:1] and [run_dir]), "--json"],
        cwd=ROOT,
        env=with_library(),
        capture_output=True,
        text=True,
    )
    answer = json.loads(told.stdout or "{}")
    wrong = [] if told.returncode in (0, 3, 4) else [f"diagnose ended with {told.returncode}: {told.stderr.strip()[-200:]}"]
    wrong += [f"forgotten: {lost}"] if (lost := finished - {s["step"] for s in answer.get("steps", [])} - {"99-verdict"}) else []
    wrong += ["asks again for what was done"] if any(step in (answer.get("next") or {}).get("line", "") for step in finished) else []
    wrong += ["no cause"] if (answer.get("lead") or {}).get("cause") != "socket-interface-wrong" else []
    return {"what": signal.Signals(number).name, "after_s": round(after_s, 2), "exit_code": code, "finished": sorted(finished),
            "next": (answer.get("next") or {}).get("line", ""), "wrong": wrong}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["kill", "stop", "resume"])
    parser.add_argument("count", type=int)
    parser.add_argument("--budget", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    dice, failed = random.Random(options.seed), 0
    roles = ["runner", "kernel", "warm", "terminal"] if options.what == "kill" else ["rank", "warm", "youngest", "kernel"]
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        for number in range(options.count):
            if options.what == "resume":
                ends = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP]
                found = resumed(ends[number % len(ends)], dice.uniform(0, 14.0), options.budget, Path(folder))
                failed += bool(found["wrong"])
                print(json.dumps(found), flush=True)
                continue
            who = roles[number % len(roles)]
            found = once(
                options.what,
                who,
                dice.uniform(0, {"runner": 6.0, "terminal": 6.0, "rank": 0.1}.get(who, 1.0)),
                options.budget,
                Path(folder),
            )
            failed += bool(found["wrong"])
            print(json.dumps(found), flush=True)
    print(f"{options.count - failed} of {options.count} held")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
