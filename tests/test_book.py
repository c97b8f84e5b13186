"""The runner against notebooks that fail in every way: a step counts as done only by its own record."""
from __future__ import annotations

import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest
from book_samples import (
    GOOD,
    MARK,
    gone_after,
    make_book,
    publish,
    run_cli,
    start_cli,
    still_there,
    tell_process,
    wait_for,
    with_library,
)
from hypothesis import given, strategies as st
from nccl_runbook.book import Book, duration_s
from nccl_runbook.book.folder import Options, point_latest
from nccl_runbook.book.kernels import Kernels
from nccl_runbook.book.plan import make_plan
from nccl_runbook.book.visit import BANNER_ID, NOT_RUN, Visit, save
from nccl_runbook.core import records
from nccl_runbook.core.facts import Unusable
from nccl_runbook.core.records import read
from nccl_runbook.core.redact import Redactor
from nccl_runbook.launch.stop import Stop
from nccl_runbook.report.verdict_document import VerdictDocument
from processes import quickest_s
from warm_cli import read_cli


@pytest.fixture(autouse=True)
def _library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", with_library()["PYTHONPATH"])


def run(book: Path, **options: object) -> tuple[VerdictDocument, Book, list[str]]:
    lines: list[str] = []
    told = Options(**{"outputs": book.parent / "outputs", "command": "nccl-runbook run", **options})
    made = Book(make_plan(book, [], []), told, lines.append)
    return made.run(), made, lines


def reasons(document: VerdictDocument) -> dict[str, str]:
    return {s.notebook: f"{s.status}: {s.reason}" for s in document.steps}


SEEN = """from nccl_runbook.step import open_step
step = open_step("{name}", globals())
step.collect("seen", lambda: 7)
"""
FAULTS = {
    "exception": (SEEN + "raise ValueError('the card said no')", "ValueError: the card said no"),
    "sys_exit_0": ("import sys; sys.exit(0)", "SystemExit: 0"),
    "input": ("input('?')", "StdinNotImplementedError"),
    "kill_9": (SEEN + "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    "segfault": ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    "os_exit_0": ("import os; os._exit(0)", "kernel"),
    "no_finish": ("1 + 1", "finish"),
    "syntax": ("def (", "SyntaxError"),
}


def test_a_choice_orders_the_steps_and_leaves_out_what_the_verdict_does_not_need(tmp_path: Path) -> None:
    book = make_book(tmp_path / "notebooks", n01_good=GOOD, n02_good=GOOD, n03_good=GOOD, n99_verdict=GOOD)
    asked: list[list[str]] = []

    def choose(done: Sequence[records.Record], waiting: Sequence[str]) -> tuple[str, str]:
        asked.append([r.step for r in done])
        return ("02-good", "") if "02-good" in waiting else ("99-verdict", "not needed: said the test")

    lines: list[str] = []
    made = Book(make_plan(book, [], []), Options(outputs=tmp_path / "outputs", command="x"), lines.append, choose)
    document = made.run()
    assert [line[:5] for line in lines] == ["[1/3]", "[2/3]", "[3/3]", "     "] and len(document.steps) == 3, "as many as the page counts"
    assert asked[:2] == [[], ["02-good"]]
    left_out = [s for s in document.steps if s.status == "skipped"]
    assert [(s.notebook, s.reason) for s in left_out] == [(n, "not needed: said the test") for n in ("01-good", "03-good")]
    assert [records.load(made.run_dir / s.record).status for s in left_out] == ["skipped", "skipped"]
    assert [s.status for s in document.steps if s.notebook == "02-good"] == ["ok"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_step_that_failed_is_unknown_and_the_next_goes_on(fault: str, tmp_path: Path) -> None:
    source, why = FAULTS[fault]
    document, book, lines = run(make_book(tmp_path / "notebooks", n01_bad=source, n02_good=GOOD))
    seen = reasons(document)
    assert seen["01-bad"].startswith("unknown: ") and why in seen["01-bad"]
    assert seen["02-good"] == "ok: all well"
    assert (document.verdict, document.exit_code) == ("unknown", 4)
    assert lines[0].startswith("[1/2] 01-bad ") and " unknown " in lines[0] and why in lines[0]
    record = records.load(book.run_dir / "01-bad.json")
    assert record.status == "unknown" and record.ended
    assert record.facts == ({"seen": 7} if SEEN in source else {}), "nothing is lost"
    page = (book.run_dir / "index.html").read_text()
    assert "01-bad" in page and why.split(":")[0] in page


def test_two_runs_of_one_second_have_a_folder_each(tmp_path: Path) -> None:
    plan = make_plan(make_book(tmp_path / "notebooks", n01_good=GOOD), [], [])
    made = [Book(plan, Options(outputs=tmp_path / "outputs", command="x"), print) for _ in range(3)]
    for one in made:
        one._open_folder()
    assert len({one.run_dir for one in made}) == 3 and all((one.run_dir / "index.html").exists() for one in made)


def test_the_folder_of_a_run_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        _, book, _ = run(make_book(tmp_path / "notebooks", n01_good=GOOD))
    finally:
        os.umask(before)
    assert book.run_dir.stat().st_mode & 0o777 == 0o700


def test_a_page_that_is_there_already_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/index.html").write_text("mine")
    with pytest.raises(Unusable, match=f"{tmp_path}/site .*--out"):
        run(make_book(tmp_path / "notebooks", n01_good=GOOD), out=tmp_path / "site")
    assert (tmp_path / "site/index.html").read_text() == "mine"


def test_neither_start_up_files_nor_kernel_specs_of_others_get_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tmp_path / "jupyter/kernels/python3/kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": ["/bin/false"], "display_name": "stale", "language": "python"}))
    (tmp_path / "start.py").write_text("raise SystemExit('the start-up file ran')\n")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "0")
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "start.py"))
    before = dict(os.environ)
    document, _, _ = run(make_book(tmp_path / "notebooks", n01_good=GOOD))
    assert reasons(document) == {"01-good": "ok: all well"} and dict(os.environ) == before


SLOW_IMPORTS = """
import atexit, sys, threading, time
threads = []
class Slow:
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] in ("jupyter_client", "IPython", "nbclient", "papermill"):
            threads.append(threading.current_thread().name)
            time.sleep(0.01)
def tell():
    changes = sum(one != two for one, two in zip(threads, threads[1:]))
    if changes > 1:
        print("imported in turns:", changes, file=sys.stderr)
atexit.register(tell)
sys.meta_path.insert(0, Slow)
from nccl_runbook.__main__ import main
main()
"""


def test_the_first_run_of_a_fresh_checkout_imports_in_order(tmp_path: Path) -> None:
    """Nothing is compiled yet, so imports are slow, and threads that import at the same time meet in circles."""
    book = make_book(tmp_path / "notebooks", n01_good=GOOD)
    line = [sys.executable, "-c", SLOW_IMPORTS, "run", "--notebooks", str(book), "--python", sys.executable]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout + ended.stderr


@pytest.mark.parametrize("fault", ["exception", "kill_9"])
def test_the_notebook_tells_what_never_ran(fault: str, tmp_path: Path) -> None:
    _, book, _ = run(make_book(tmp_path / "notebooks", n01_bad=FAULTS[fault][0]))
    notebook = nbformat.read(book.run_dir / "01-bad.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert notebook.cells[0].id == BANNER_ID and FAULTS[fault][1] in notebook.cells[0].source
    last = notebook.cells[-1]
    assert MARK in last.source and last.outputs[0].text.strip() == NOT_RUN and last.metadata.papermill.status == NOT_RUN
    assert [c.metadata.papermill.status for c in notebook.cells[1:]].count("failed") == 1
    assert NOT_RUN in (book.run_dir / "01-bad.html").read_text()


def test_a_page_links_to_those_of_the_steps_that_ran(tmp_path: Path) -> None:
    book = make_book(tmp_path / "notebooks", n01_good=GOOD, n02_good=GOOD, n03_good=GOOD)
    notebook = nbformat.read(book / "01-good.ipynb", 4)
    notebook.cells.append(nbformat.v4.new_markdown_cell("[two](02-good.ipynb) and [three](03-good.ipynb)"))
    nbformat.write(notebook, book / "01-good.ipynb")
    made = Book(make_plan(book, ["01-good", "02-good"], []), Options(outputs=tmp_path / "outputs", command="nccl-runbook run"), [].append)
    made.run()
    assert '<a href="02-good.html">two</a> and three' in (made.run_dir / "01-good.html").read_text()


def test_a_good_notebook_has_no_banner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    document, book, lines = run(make_book(tmp_path / "bo{ok}s", n01_good=GOOD))
    notebook = nbformat.read(book.run_dir / "01-good.ipynb", as_version=4)
    assert [c for c in notebook.cells if c.id == BANNER_ID] == []
    assert (document.verdict, document.exit_code) == ("healthy", 0)
    assert str(tmp_path) not in json.dumps(notebook.metadata)
    assert lines == [lines[0]] and lines[0].endswith("  all well")


def test_a_cell_that_ignores_the_interrupt_is_killed_at_the_limit(tmp_path: Path) -> None:
    hang = "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\ntime.sleep(600)"
    document, _, _ = run(make_book(tmp_path / "notebooks", n01_hang=hang, n99_verdict=GOOD), budget_s=3, allowance_s=1)
    assert re.fullmatch(r"unknown: .* \d+(\.\d+)? s\b.*", reasons(document)["01-hang"])
    assert records.load(tmp_path / "outputs" / "latest" / "99-verdict.json").status == "ok"


def test_a_cell_that_takes_too_long_is_interrupted_and_the_rest_is_out_of_budget(tmp_path: Path) -> None:
    book = make_book(tmp_path / "notebooks", n01_slow="import time\ntime.sleep(600)", n02_good=GOOD)
    document, _, _ = run(book, budget_s=3, allowance_s=0)
    assert re.fullmatch(r"unknown: .* \d+(\.\d+)? s\b.*", reasons(document)["01-slow"])
    assert re.fullmatch(r"unknown: not run: .* 3 s .*--budget.*", reasons(document)["02-good"])


def test_a_finished_record_stands_whatever_comes_after_it(tmp_path: Path) -> None:
    document, _, _ = run(make_book(tmp_path / "notebooks", n01_late=[GOOD, "raise ValueError('afterwards')"]))
    assert reasons(document)["01-late"] == "ok: all well"


def test_a_record_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    spoil = "from pathlib import Path\n_ = Path(run_dir, '01-bad.json').write_text('{')"
    document, book, _ = run(make_book(tmp_path / "notebooks", n01_bad=spoil))
    assert "01-bad.json" in reasons(document)["01-bad"]
    assert records.load(book.run_dir / "01-bad.json").status == "unknown"


def test_secrets_are_taken_out_of_the_executed_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "swordfish-9000")
    leak = "import os\n'a \"quoted\" ' + os.environ['MY_API_KEY']"
    _, book, _ = run(make_book(tmp_path / "notebooks", n01_leak=[leak, "raise ValueError(os.environ['MY_API_KEY'])"]))
    written = {p.name: p.read_text() for p in book.run_dir.iterdir()}
    assert {"01-leak.ipynb", "01-leak.html", "01-leak.json", "index.html", "verdict.json"} <= set(written)
    assert [name for name, text in written.items() if "swordfish" in text] == []
    nbformat.validate(nbformat.reads(written["01-leak.ipynb"], as_version=4))


def children_source(path: Path) -> str:
    """A cell that starts a child in the kernel's process group and one in a session of its own that lives as long as its pipe (as the
    warm process does), tells all three pids, and hangs."""
    start = ("import subprocess, sys, time, psutil\n"
             "plain = subprocess.Popen(['sleep', '600'])\n"
             "waits = [sys.executable, '-c', 'import sys; sys.stdin.read()']\n"
             "piped = subprocess.Popen(waits, stdin=subprocess.PIPE, start_new_session=True)\n")
    tell = "".join(f"p = psutil.Process({pid})\n{tell_process(path)}" for pid in ("", "plain.pid", "piped.pid"))
    return start + tell + publish(path) + "time.sleep(600)"


def test_a_signal_to_the_runner_ends_everything_and_the_report_is_written(tmp_path: Path) -> None:
    """SIGINT; SIGTERM, over ranks at work, is in test_book_kills."""
    told, out = tmp_path / "pids", tmp_path / "out"
    book = make_book(tmp_path / "notebooks", n01_good=GOOD, n02_hang=children_source(told), n03_good=GOOD, n99_verdict=GOOD)
    runner = start_cli("run", "--notebooks", book, "--out", out, "--python", sys.executable)
    pids = wait_for(told)
    assert len(still_there(pids)) == 3
    runner.send_signal(signal.SIGINT)
    assert gone_after(pids, 5) < 1.0
    printed, errors = runner.communicate(timeout=60)
    assert (runner.returncode, errors) == (130, "")
    document = read(VerdictDocument, (out / "verdict.json").read_bytes())
    assert document.run.interrupted and (document.verdict, document.exit_code) == ("unknown", 130)
    assert "exit code 130" in (out / "index.html").read_text()
    assert reasons(document) == {"01-good": "ok: all well",
                                 "02-hang": "unknown: interrupted (SIGINT)",
                                 "03-good": "unknown: not run: interrupted"}
    assert {"unknown", "130", f"{out}/index.html"} <= set(re.findall(r"[\w/.-]+", printed.splitlines()[-1]))


def test_a_file_that_cannot_be_written_leaves_the_last_page_whole(tmp_path: Path) -> None:
    """A size limit stands in for the full disk: both end a write halfway with an OSError."""
    flood = "print('x' * 400_000)"
    book = make_book(tmp_path / "notebooks", n01_good=GOOD, n02_flood=[GOOD, flood], n03_good=GOOD)
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))  # noqa: E731
    ended = run_cli("run", "--notebooks", book, "--out", tmp_path / "out", "--python", sys.executable, preexec_fn=limit)
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1 and os.strerror(errno.EFBIG) in ended.stderr and "pages" in ended.stderr
    page = (tmp_path / "out" / "index.html").read_text()
    assert page.rstrip().endswith("</html>") and "01-good" in page
    json.loads((tmp_path / "out" / "verdict.json").read_text())
    assert not list((tmp_path / "out").glob(".*")), "a half-written file was left"


def test_a_full_disk_leaves_the_last_page_whole(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.system(f"mount -t tmpfs -o size=200k tmpfs {disk} 2>/dev/null"):
        pytest.skip("no file system of a given size can be mounted here (root is needed)")
    try:
        book = make_book(tmp_path / "notebooks", n01_good=GOOD, n02_flood=[GOOD, "print('x' * 400_000)"], n03_good=GOOD)
        ended = read_cli("run", "--notebooks", book, "--out", disk / "out", "--python", sys.executable)
        assert ended.returncode == 1 and os.strerror(errno.ENOSPC) in ended.stderr
        assert (disk / "out" / "index.html").read_text().rstrip().endswith("</html>")
    finally:
        os.system(f"umount {disk}")


def test_the_page_is_on_disk_before_the_first_step(tmp_path: Path) -> None:
    look = "from pathlib import Path\nseen = sorted(p.name for p in Path(run_dir).iterdir())\nraise ValueError('+'.join(seen))"
    document, _, _ = run(make_book(tmp_path / "notebooks", n01_look=look, n02_good=GOOD))
    assert "01-look.json+index.html+verdict.json" in reasons(document)["01-look"]


def test_latest_points_to_the_newest_run(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        assert point_latest(tmp_path / name) == tmp_path / "latest"
        assert os.readlink(tmp_path / "latest") == name
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "one", "two"]


def test_latest_is_a_text_file_where_no_link_can_be_put(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "latest" / "kept").mkdir(parents=True)
    assert point_latest(tmp_path / "one") is None
    assert (tmp_path / "latest.txt").read_text() == "one\n" and (tmp_path / "latest" / "kept").is_dir()


def test_a_folder_that_holds_a_run_is_not_written_to(tmp_path: Path) -> None:
    book = make_book(tmp_path / "notebooks", n01_good=GOOD)
    run(book, out=tmp_path / "out")
    before = (tmp_path / "out" / "verdict.json").read_text()
    with pytest.raises(Unusable, match=f"{tmp_path}/out .*--out"):
        run(book, out=tmp_path / "out")
    assert (tmp_path / "out" / "verdict.json").read_text() == before


@pytest.mark.parametrize("exists", [False, True])
def test_of_runs_that_come_to_one_folder_at_once_one_takes_it(tmp_path: Path, exists: bool) -> None:
    out, together = tmp_path / "out", threading.Barrier(8)
    plan = make_plan(make_book(tmp_path / "notebooks", n01_good=GOOD), [], [])
    if exists:
        out.mkdir()

    def refused(_: int) -> str:
        book = Book(plan, Options(outputs=tmp_path / "outputs", command="nccl-runbook run", out=out), [].append)
        together.wait()
        try:
            book._open_folder()
        except Unusable as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(8) as pool:
        said = sorted(pool.map(refused, range(8)))
    assert said[0] == "" and all("with --out" in sentence for sentence in said[1:])
    assert "01-good" in (out / "index.html").read_text(), "the page is the first one's"


def test_kernels_have_private_sockets_that_go_away() -> None:
    with Kernels() as kernels:
        assert kernels.path.stat().st_mode & 0o777 == 0o700
        assert kernels.note or kernels.config().KernelManager.ip != kernels.config().KernelManager.ip
    assert not kernels.path.exists()


def test_kernels_talk_over_tcp_where_no_unix_socket_can_be_made(tmp_path: Path) -> None:
    deep = tmp_path / ("a" * 100)
    deep.mkdir()
    source = make_book(tmp_path / "notebooks", n01_good=GOOD) / "01-good.ipynb"
    with Kernels(str(deep)) as kernels, Stop() as stop:
        assert "TCP" in kernels.note and str(deep) in kernels.note
        ended = Visit(source, {"run_dir": str(tmp_path / "out")}, kernels).watch(60, stop)
    assert ended == "" and records.load(tmp_path / "out" / "01-good.json").status == "ok"


@given(st.text())
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    try:
        assert duration_s("--budget", text) > 0
    except Unusable as refusal:
        assert repr(text) in str(refusal)


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("5m", 300), ("1h30m", 5400), ("2m5s", 125)])
def test_durations(text: str, seconds: float) -> None:
    assert duration_s("--budget", text) == seconds


@pytest.mark.parametrize("text", ["", "0", "soon", "5 m", "-5m", "5d", "1.5m", "m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(Unusable, match=re.escape(repr(text))):
        duration_s("--budget", text)


@pytest.mark.parametrize("text", ["x" * 2_000_000, "TOKEN" * 400_000, "https://" + "a" * 2_000_000, "eyJ" + "a" * 2_000_000 + "."])
def test_redaction_of_one_long_line_is_quick(text: str) -> None:
    """An image in a notebook is one line of a megabyte; the square of that was 50 s for 400 kB."""
    assert quickest_s(lambda: Redactor({}).text(text), 5, tries=3) < 5


@pytest.mark.parametrize("text", ["a1https://me:swordfish@host/x", "MY_TOKEN=swordfish", "x_API_KEY_2 : 'swordfish", "a.secret=swordfish,"])
def test_secrets_of_a_known_shape_are_found(text: str) -> None:
    assert "swordfish" not in Redactor({}).text(text)


def test_a_notebook_escapes_what_a_terminal_or_an_editor_obeys(tmp_path: Path) -> None:
    """Its text is as before: a folder may have such a name."""
    odd = "record: \u202eabc\u2066\u200f\x1b[2J"
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(odd)])
    save(book, "", tmp_path / "x.ipynb", Redactor({}))
    written = (tmp_path / "x.ipynb").read_text()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200f\u202e\u2066]", written) and "\\u202eabc" in written
    assert "\u202eabc\u2066\u200f" in "".join(nbformat.read(tmp_path / "x.ipynb", 4).cells[0].source)
