"""00-start in a real JupyterLab, driven by a real browser: paste, answer, run, watch, try a fix, cancel while ranks hang.

One server and one page for all tests of this file. Each test has a form of its own: its cell runs again, in the same kernel."""

import glob
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest
from book_samples import run_cli
from fake_gpus import planted
from nccl_runbook.triage.symptoms import symptoms
from processes import ROOT, children, gone, start_time

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("jupyterlab") is None, reason="JupyterLab is not installed"),
    pytest.mark.skipif(find_spec("ipywidgets") is None, reason="ipywidgets is not installed"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are told apart by /proc"),
]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync"]
SHOTS = os.environ.get("NCCL_RUNBOOK_SHOTS")  # a folder: pictures of what the tests saw
THEME = os.environ.get("NCCL_RUNBOOK_LAB_THEME", "JupyterLab Light")
SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True},
    "apputils-extension/themes": {"theme": THEME},
    "notebook-extension/tracker": {"windowingMode": "none"},
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """`.ci/lab` as `make lab` calls it, with nothing of the user's own configuration: (process, address of 00-start, folder of the
    session)."""
    folder = tmp_path_factory.mktemp("lab")
    for name, values in SETTINGS.items():
        path = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    homes = {f"JUPYTER_{n}_DIR": folder / n.lower() for n in ("CONFIG", "DATA", "RUNTIME")}
    homes |= {f"JUPYTERLAB_{n}_DIR": folder / n.lower() for n in ("SETTINGS", "WORKSPACES")}
    env = {**os.environ, **{k: str(v) for k, v in homes.items()}, "PYTHONPATH": str(ROOT / "lib"), "IPYTHONDIR": str(folder / "ipython"),
           "JUPYTER_PREFER_ENV_PATH": "1", "NCCL_RUNBOOK_RUN_DIR": str(folder / "session")}
    env.pop("NCCL_RUNBOOK_HEADLESS", None)
    command = [sys.executable, ROOT / ".ci" / "lab", "--no-browser", f"--ServerApp.port={free_port()}", "--ServerApp.port_retries=0",
               f"--IdentityProvider.token={secrets.token_hex(16)}", "--LabApp.extension_manager=readonly",
               "--LabApp.expose_app_in_browser=True"]
    before = book()
    with (folder / "lab.log").open("wb") as log:
        process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=folder)
    try:
        yield process, _address(process, folder / "lab.log"), folder / "session"
    finally:
        left = {pid: start_time(pid) for pid in [process.pid, *children(process.pid)]}
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
        assert gone(left, 10), "JupyterLab left processes behind"
    assert book() == before, "a session changed the checkout"


def book() -> dict[str, bytes]:
    """The notebooks of the checkout."""
    return {path.name: path.read_bytes() for path in (ROOT / "notebooks").iterdir() if path.is_file()}


def _address(process: subprocess.Popen, log: Path) -> str:
    """What `.ci/lab` prints once the form is filled."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        said = log.read_text(errors="replace")
        assert process.poll() is None, said[-2000:]
        if found := re.search(r"^lab: (http\S+)\n", said, re.M):
            assert "form could not be opened" not in said, said[-2000:]
            return found[1]
        time.sleep(0.1)
    raise AssertionError("JupyterLab did not answer within 60 s")


@pytest.fixture(scope="module")
def opened(lab):
    """00-start in the browser; nobody has run a cell."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        shown = browser.new_page(viewport={"width": 1440, "height": 900})
        shown.set_default_timeout(30_000)
        shown.goto(lab[1])
        field(shown).wait_for()
        yield shown
        browser.close()


# what the last test started has ended and is forgotten, and the form is as a new kernel shows it; saved, so that a reload shows this one
CLEAN = """
import time
from nccl_runbook.cockpit import form
if form._latest is not None and form._latest.at_work:
    form._latest.cancel()
    while form._latest.at_work:
        time.sleep(0.05)
form._latest = None
"""
AGAIN = """async code => {
    const notebook = window.jupyterapp.shell.currentWidget;
    await notebook.sessionContext.session.kernel.requestExecute({code, store_history: false}).done;
    await window.jupyterapp.commands.execute('notebook:run-all-cells');
    await notebook.context.save();
    notebook.content.activeCellIndex = 0;
    await notebook.content.scrollToItem(0);
}"""
# what the form shows of a run at one moment: the bar, the words beside it, and the number of each line that the run printed
COUNTS = """() => {
    const bar = document.querySelector('progress[value]');
    const lines = [...document.querySelectorAll('details pre')].flatMap(pre => pre.textContent.match(/^\\[.*?\\]/gm) || []);
    return bar && {bar: bar.value, full: bar.max, words: bar.parentElement.textContent, lines};
}"""
_used: list[str] = []


@pytest.fixture
def page(opened, request):
    """A clean form; the first test has the one that `make lab` opened."""
    if _used:
        opened.evaluate(AGAIN, CLEAN)
        opened.wait_for_function(
            "() => [...document.querySelectorAll('textarea')].filter(t => t.placeholder.startsWith('Paste a path')).length == 1"
        )
        assert field(opened).input_value() == ""
    _used.append(request.node.name)
    return opened


def shot(page, name: str) -> None:
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/{name}-{THEME.split()[-1].lower()}.png")



def field(page):
    return page.get_by_label("What do you have?", exact=True)


def open_options(page) -> None:
    page.get_by_text("Options: interpreter").click()
    page.get_by_label("GPUs", exact=True).wait_for()


def give(page, text: str, answer: str) -> float:
    """Paste it, and wait for words of the answer; how many seconds that took."""
    field(page).fill("")
    page.locator("p", has_text=answer).first.wait_for(state="detached")
    began = time.monotonic()
    field(page).fill(text)
    shows = "words => [...document.querySelectorAll('.jp-OutputArea-output p')].some(p => p.textContent.includes(words))"
    page.wait_for_function(shows, arg=answer, polling="raf")  # a locator looks twice a second only
    return time.monotonic() - began


def runner_of(lab_pid: int) -> int:
    """The pid of `nccl-runbook run` below JupyterLab's kernel."""
    until = time.monotonic() + 15
    while time.monotonic() < until:
        for pid in children(lab_pid):
            if b"nccl_runbook\0run" in _command(pid):
                return pid
        time.sleep(0.05)
    raise AssertionError("no run was started")


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def only_step(page, wanted: str) -> None:
    for name in ("01-gpu-visibility", "02-environment", "03-fewer-gpus", "04-transports", "05-weight-sync"):
        page.get_by_role("checkbox", name=name).set_checked(name == wanted)


def run_button(page):
    return page.get_by_role("button", name="Run tests", exact=True)


def test_the_form_is_open_and_the_code_is_folded(page):
    box = run_button(page).bounding_box()
    assert 0 < box["y"] and box["y"] + box["height"] < 900, "everything up to Run is on the first screen"
    assert not page.locator(".jp-CodeCell .cm-content").locator("visible=true").count()
    shot(page, "form")


@pytest.mark.parametrize("given", ["tests/data/hang/skip", "[rank0]: NCCL WARN nvmlDeviceGetHandleByIndex(0) failed: Unknown Error",
                                   "tests/data/hang/skip tests/data/hang/gloo-kill"])
def test_what_is_pasted_is_answered_at_once_as_the_terminal_answers(page, given):
    words = [ROOT / word for word in given.split()] if given.startswith("tests/") else [given]
    sentence = json.loads(run_cli("diagnose", *words, "--json").stdout)["sentence"].partition(": ")[2]
    took = min(give(page, given, sentence) for _ in range(3))
    print(f"answered after {took:.2f} s")  # 0.2 s on a quiet machine, browser and messages included
    assert took < 1
    shot(page, "pasted")


def test_a_pasted_log_is_read_as_a_log(lab, page):
    give(
        page,
        "step 1\n[rank0]: node0:1:1 [0] misc/nvmlwrap.cc:183 NCCL WARN nvmlDeviceGetHandleByIndex(0) failed: Unknown Error",
        "pasted text line 2",
    )
    assert (lab[2] / "pasted.log").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "label, wrong, why",
    [
        ("What do you have?", "/nowhere/a.log", "there is no file"),
        ("GPUs", "zero", "'zero' is not a GPU index"),
        ("GPUs", "999", "there is no GPU 999"),
        ("Interpreter", "/nowhere/python", "program /nowhere/python"),
    ],
)
def test_wrong_input_is_refused_in_the_field(page, label, wrong, why):
    open_options(page)
    page.get_by_label(label, exact=True).fill(wrong)
    page.get_by_label(label, exact=True).press("Tab")
    page.get_by_role("alert").filter(has_text=why).wait_for()
    assert run_button(page).is_disabled()
    page.get_by_label(label, exact=True).fill("")
    page.get_by_label(label, exact=True).press("Tab")
    page.get_by_role("alert").wait_for(state="detached")
    assert run_button(page).is_enabled()


def test_run_writes_plain_variables_and_ends_with_the_verdict(lab, page):
    before = {*(lab[2] / "outputs").glob("*")}
    open_options(page)
    page.get_by_label("Symptom", exact=True).select_option(label=symptoms()["hangs-later"].words)
    page.get_by_role("checkbox", name="03-fewer-gpus", checked=False).wait_for()  # the answer asks for a look: it has ticked nothing
    only_step(page, "03-fewer-gpus")
    page.get_by_label("Budget, seconds", exact=True).fill("240")
    page.get_by_label("Budget, seconds", exact=True).press("Tab")
    page.get_by_text("--budget 240s").wait_for()
    page.get_by_text("--step 03-fewer-gpus").wait_for()
    run_button(page).click()
    page.locator("progress").first.wait_for()
    assert run_button(page).is_disabled()
    page.get_by_text("now 03-fewer-gpus").wait_for(timeout=60_000)
    count = page.wait_for_function(COUNTS, timeout=60_000).json_value()
    assert count["bar"] < count["full"] and f"{count['bar']} of {count['full'] - 1} steps done" in count["words"]
    assert count["lines"][-1:] == [f"[{count['bar']}/{count['full'] - 1}]"]
    shot(page, "running")
    page.get_by_text("open the report (index.html)").wait_for(timeout=60_000)
    shot(page, "after-run")
    assert page.locator("p", has_text="rehearsal on Gloo").or_(page.get_by_text("healthy torch")).count()
    assert page.get_by_role("button", name="Cancel").is_disabled() and page.get_by_role("button", name="Run tests", exact=True).is_enabled()
    run, = (p for p in {*(lab[2] / "outputs").iterdir()} - before if (p / "verdict.json").exists() and p.name != "latest")
    verdict = json.loads((run / "verdict.json").read_text())
    assert {s["notebook"] for s in verdict["steps"]} == {"00-start", "03-fewer-gpus"}
    assert json.loads((run / "00-start.json").read_text())["parameters"]["symptom"] == "hangs-later"


def test_pairs_fill_a_grid_and_a_click_runs_one_again(page, tmp_path):
    python = planted(tmp_path / "plant")
    open_options(page)
    give(page, "tests/data/hang/skip", "rank 2 called broadcast")
    page.get_by_label("Interpreter", exact=True).fill(python)
    page.get_by_label("Interpreter", exact=True).press("Tab")
    only_step(page, "03-fewer-gpus")
    run_button(page).click()
    cell = page.get_by_role("button", name=re.compile("^1, 2: "))
    page.get_by_role("button", name=re.compile("^0, 1: passed [0-9]")).wait_for(timeout=60_000)
    shot(page, "grid-running")
    page.get_by_text("open the report (index.html)").wait_for(timeout=60_000)
    assert cell.inner_text() == "1, 2: failed"
    assert page.get_by_role("button", name=re.compile(r"^\d, \d: passed \d")).count() == 5
    shot(page, "grid")
    answer = page.locator("summary", has_text="the link between GPUs 1 and 2")
    assert answer.count() == 1
    (tmp_path / "plant" / "broken").unlink()
    cell.click()
    page.get_by_text("--gpus 1,2").wait_for()
    page.get_by_role("button", name=re.compile("^1, 2: failed → passed [0-9]")).wait_for(timeout=60_000)
    page.get_by_text("open its report").wait_for(timeout=60_000)
    shot(page, "grid-again")
    assert answer.count() == 1, "a part does not replace the answer of the whole"


def test_the_setting_of_a_fix_is_tried_beside_a_control(page):
    give(
        page,
        "node0:7:7 [0] transport/nvls.cc:9 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error"
        " 401\nstep 2 of 3",
        "multicast",
    )
    playwright = pytest.importorskip("playwright.sync_api")
    playwright.expect(page.get_by_label("Setting to try")).to_have_value(
        "NCCL_NVLS_ENABLE=0"
    )  # a widget of its own: its message comes later
    interpret(page, f"env {sys.executable}")  # behind a prefix, the GPUs of a machine are unknown: then a setting can be tried
    page.get_by_role("button", name="Try the setting beside a control").click()
    page.locator("p", has_text="Tested:").filter(has_text="2 ranks, gloo").wait_for(timeout=60_000)
    shot(page, "tried")
    give(page, "tests/data/hang/skip", "rank 2 called broadcast")
    page.locator("p", has_text="Tested:").wait_for(state="detached")  # that was tested with something else
    interpret(page, "")


def test_after_a_reload_the_form_shows_the_same(page):
    give(page, "tests/data/hang/skip", "rank 2 called broadcast")
    assert any(_shown_again(page, "rank 2 called broadcast") for _ in range(3))
    assert field(page).input_value() == "tests/data/hang/skip"


def _shown_again(page, words: str) -> bool:
    """Reload, and tell whether JupyterLab shows these words; if not, print what it shows. On a machine that stood still it once showed
    none of them within 30 s (2026-12-01); kernels that were stopped for 3 to 13 s while it loaded did not repeat that."""
    page.reload()
    found = page.locator("p", has_text=words).first
    timeout = pytest.importorskip("playwright.sync_api").TimeoutError
    try:
        found.wait_for()
    except timeout:
        print(f"not shown after a reload; {page.url} shows: {page.locator('body').inner_text()[-2000:]}")
        return False
    return True


def test_cancel_ends_runner_kernel_and_hanging_ranks(lab, page):
    only_step(page, "03-fewer-gpus")
    run_button(page).click()
    runner = runner_of(lab[0].pid)
    ranks = _hang_a_rank(runner)
    ours = {pid: start_time(pid) for pid in [runner, *children(runner)]}
    assert set(ranks) <= set(ours) and len(ours) >= 4, "runner, kernel, warm process and ranks"
    clicked = time.monotonic()
    page.get_by_role("button", name="Cancel").click()
    done = gone(ours)  # 0.3 s from before the click on a quiet machine, browser and messages included
    assert done, [(_command(p), start_time(p)) for p in ours]
    print(f"gone {time.monotonic() - clicked:.2f} s after the click: {len(ours)} processes")
    page.get_by_text("Cancelled after").wait_for()
    print(f"told {time.monotonic() - clicked:.2f} s after the click")
    page.get_by_text("no step had ended").wait_for()
    assert not page.get_by_text("open the report (index.html)").count()
    shot(page, "after-cancel")
    page.get_by_role("button", name="Run tests", exact=True).and_(page.locator(":enabled")).wait_for()


def _hang_a_rank(runner: int) -> list[int]:
    """Stop one of two ranks, so that the other waits for it in a collective; their pids."""
    until = time.monotonic() + 40
    while time.monotonic() < until:
        below = {pid: [p for p in children(pid)] for pid in children(runner)}
        for parent, found in below.items():  # the warm process's: interpreters that are asked for their torch may have two children as well
            if b"warm.py" in _command(parent) and len(found) == 2:
                os.kill(found[0], signal.SIGSTOP)
                time.sleep(0.5)
                return found
        time.sleep(0.02)
    raise AssertionError("no world of two ranks was seen")


# --- what is asked, offered and marked; these change nothing that the tests above need

def interpret(page, python: str) -> None:
    if not page.get_by_label("Interpreter", exact=True).is_visible():
        page.get_by_text("Options: interpreter, GPUs, time").click()
        page.get_by_label("Interpreter", exact=True).wait_for()
    page.get_by_label("Interpreter", exact=True).fill(python)
    page.get_by_label("Interpreter", exact=True).press("Tab")


def test_jupyterlab_asks_for_no_news_and_the_setting_is_of_this_session(lab):
    base, _, token = lab[1].partition("lab/tree/")[0], *lab[1].partition("?token=")[1:]
    address = f"{base}lab/api/settings/@jupyterlab/apputils-extension:notification?token={token}"
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address, timeout=30) as reply:
        shown = json.load(reply)["schema"]["properties"]
    assert (shown["fetchNews"]["default"], shown["checkForUpdates"]["default"]) == ("false", False)
    assert (lab[2] / "labconfig").is_dir() and "overrides.json" not in (ROOT / ".ci/setup").read_text()


@pytest.mark.skipif(bool(glob.glob("/dev/nvidia[0-9]*")), reason="this machine has GPUs: a setting can be tried")
def test_without_a_gpu_the_place_of_the_button_says_why_nothing_can_be_tried(page):
    give(
        page,
        "node0:7:7 [0] transport/nvls.cc:9 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error"
        " 401\nstep 2 of 3",
        "multicast",
    )
    page.get_by_label("Setting to try").wait_for()
    page.get_by_text("No GPU is visible on this machine").wait_for()
    assert page.get_by_role("button", name="Try the setting beside a control").is_hidden()
    interpret(page, f"env {sys.executable}")
    page.get_by_role("button", name="Try the setting beside a control").wait_for()
    interpret(page, "")


@pytest.mark.parametrize(("given", "words"), [
    ("CUDA error: an illegal memory access was encountered", "CUDA_LAUNCH_BLOCKING=1"),
    ("torch.distributed.DistBackendError: NCCL error: unhandled system error", "Which transport is broken"),
    ("tests/data/hang/skip", "rank 2 called broadcast")])
def test_one_thing_to_do_next_is_marked(page, given, words):
    give(page, given, words)
    page.wait_for_timeout(500)  # the buttons are widgets of their own: their message comes later
    blue = page.locator("div.nccl-next").evaluate_all("boxes => boxes.filter(b => b.style.background.includes('31, 111, 235')).length")
    assert blue + page.locator("button.mod-primary").count() == 1, (blue, words)


def test_every_wrong_field_is_marked(page):
    open_options(page)
    for label, wrong in (("Interpreter", "/nowhere/python"), ("GPUs", "seven")):
        page.get_by_label(label, exact=True).fill(wrong)
        page.get_by_label(label, exact=True).press("Tab")
    for why in ("program /nowhere/python", "'seven' is not a GPU index"):
        page.get_by_role("alert").filter(has_text=why).wait_for()
    page.get_by_text("first correct GPUs and Interpreter").wait_for()
    shot(page, "wrong")


def test_a_run_for_another_input_is_not_named(page):
    only_step(page, "02-environment")
    run_button(page).click()
    page.locator("progress").wait_for()
    page.get_by_text("open the report (index.html)").wait_for(timeout=60_000)
    assert page.get_by_text("Done after").count() == 1
    give(page, "tests/data/hang/skip", "rank 2 called broadcast")
    page.get_by_text("Done after").wait_for(state="detached")


def test_the_terminal_shows_one_address_and_no_warning_of_the_kernel(lab):
    """Without a token of the caller's, as `make lab` starts it."""
    process, _, session = lab
    env = dict(item.split("=", 1) for item in Path(f"/proc/{process.pid}/environ").read_text().split("\0") if "=" in item)
    env |= {"NCCL_RUNBOOK_RUN_DIR": str(session.parent / "second")}
    for name in ("JUPYTER_TOKEN_FILE", "JUPYTERLAB_WORKSPACES_DIR"):
        env.pop(name)
    log = session.parent / "second.log"
    with log.open("wb") as out:
        second = subprocess.Popen([sys.executable, ROOT / ".ci" / "lab", "--no-browser", f"--ServerApp.port={free_port()}"], env=env,
                                  stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, cwd=session.parent)
    try:
        address = _address(second, log)
        until = time.monotonic() + 10
        assert (
            str(session.parent / "second" / "workspaces").encode() in Path(f"/proc/{second.pid}/environ").read_bytes()
        ), "not those of another session"
        while "Ctrl-C" not in (shown := log.read_text()) and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        second.terminate()
        second.wait(20)
    assert re.findall(r"\S+://\S+", shown) == [address] and "WARNING" not in shown and "[C" not in shown, shown
    assert (session.parent / "second" / "token").read_text() == address.partition("?token=")[2]
    assert (session.parent / "second" / "token").stat().st_mode & 0o077 == 0
