"""00-start in a real JupyterLab, driven by a real browser: a field, Run to the verdict, Cancel while ranks hang."""

import json
import os
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
from processes import ROOT, children, gone, start_time

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.skipif(find_spec("jupyterlab") is None, reason="JupyterLab is not installed"),
              pytest.mark.skipif(find_spec("ipywidgets") is None, reason="ipywidgets is not installed"),
              pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are told apart by /proc")]
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
    """JupyterLab over a copy of the notebooks, with nothing of the user's own configuration: (process, address of 00-start, folder)."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", folder / "notebooks")
    for name, values in SETTINGS.items():
        path = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    homes = {f"JUPYTER_{n}_DIR": folder / n.lower() for n in ("CONFIG", "DATA", "RUNTIME")}
    homes |= {f"JUPYTERLAB_{n}_DIR": folder / n.lower() for n in ("SETTINGS", "WORKSPACES")}
    env = {**os.environ, **{k: str(v) for k, v in homes.items()}, "PYTHONPATH": str(ROOT / "lib"), "IPYTHONDIR": str(folder / "ipython"),
           "JUPYTER_PREFER_ENV_PATH": "1", "NCCL_RUNBOOK_RUN_DIR": str(folder / "outputs" / "by-hand")}
    env.pop("NCCL_RUNBOOK_HEADLESS", None)
    port, token = free_port(), secrets.token_hex(16)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0",
               f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={folder}", "--LabApp.extension_manager=readonly",
               *(["--allow-root"] if os.geteuid() == 0 else [])]
    with (folder / "lab.log").open("wb") as log:
        process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=folder)
    try:
        _wait_for(f"http://127.0.0.1:{port}/api?token={token}", process, folder / "lab.log")
        yield process, f"http://127.0.0.1:{port}/lab/tree/notebooks/00-start.ipynb?token={token}", folder
    finally:
        left = {pid: start_time(pid) for pid in [process.pid, *children(process.pid)]}
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
        assert gone(left, 10), "JupyterLab left processes behind"


def _wait_for(address: str, process: subprocess.Popen, log: Path) -> None:
    for _ in range(300):
        assert process.poll() is None, log.read_text(errors="replace")[-2000:]
        try:
            urllib.request.urlopen(address, timeout=2).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("JupyterLab did not answer within 30 s")


@pytest.fixture(scope="module")
def page(lab):
    """00-start in the browser, all cells run."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        shown = browser.new_page(viewport={"width": 1280, "height": 1500})
        shown.set_default_timeout(30_000)
        shown.goto(lab[1])
        shown.get_by_text("(ipykernel) | Idle").wait_for()  # before, Lab asks which kernel to take
        shown.get_by_role("menuitem", name="Run", exact=True).click()
        shown.get_by_text("Run All Cells", exact=True).click()
        shown.get_by_role("button", name="Cancel").wait_for()
        yield shown
        browser.close()


def shot(page, name: str) -> None:
    if SHOTS:
        page.get_by_role("button", name="Cancel").scroll_into_view_if_needed()
        page.screenshot(path=f"{SHOTS}/{name}-{THEME.split()[-1].lower()}.png")




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
    for name in ("01-gpu-visibility", "02-environment", "03-fewer-gpus", "04-transports", "05-weight-sync", "07-logs"):
        box = page.get_by_role("checkbox", name=name)
        if box.count():
            box.set_checked(name == wanted)


def test_run_writes_plain_variables_and_ends_with_the_verdict(lab, page):
    page.get_by_label("Symptom", exact=True).select_option(label="runs for a while, then hangs until the watchdog fires")
    page.get_by_label("GPUs", exact=True).fill("0")
    page.get_by_label("GPUs", exact=True).press("Tab")
    page.get_by_text("--gpus 0").wait_for()
    page.get_by_label("GPUs", exact=True).fill("")
    page.get_by_label("GPUs", exact=True).press("Tab")
    only_step(page, "03-fewer-gpus")
    page.get_by_text("--step 03-fewer-gpus").wait_for()
    page.get_by_role("button", name="Run", exact=True).click()
    page.locator("progress").first.wait_for()
    assert page.get_by_role("button", name="Run", exact=True).is_disabled()
    page.get_by_text("open the report (index.html)").wait_for(timeout=60_000)
    shot(page, "after-run")
    assert page.get_by_text("? unknown no GPU was used").or_(page.get_by_text("healthy torch")).count()
    assert page.get_by_role("button", name="Cancel").is_disabled() and page.get_by_role("button", name="Run", exact=True).is_enabled()
    run, = (p for p in (lab[2] / "outputs").iterdir() if (p / "verdict.json").exists() and p.name not in ("latest", "by-hand"))
    verdict = json.loads((run / "verdict.json").read_text())
    assert {s["notebook"] for s in verdict["steps"]} == {"00-start", "03-fewer-gpus"}
    assert json.loads((run / "00-start.json").read_text())["parameters"]["symptom"] == "hangs-later"


def test_cancel_ends_runner_kernel_and_hanging_ranks(lab, page):
    only_step(page, "03-fewer-gpus")
    page.get_by_role("button", name="Run", exact=True).click()
    runner = runner_of(lab[0].pid)
    ranks = _hang_a_rank(runner)
    ours = {pid: start_time(pid) for pid in [runner, *children(runner)]}
    assert set(ranks) <= set(ours) and len(ours) >= 4, "runner, kernel, warm process and ranks"
    clicked = time.monotonic()
    page.get_by_role("button", name="Cancel").click()
    done = gone(ours)  # 0.3 s from before the click on a quiet machine, browser and messages included
    assert done, [(_command(p), start_time(p)) for p in ours]
    print(f"gone {time.monotonic() - clicked:.2f} s after the click: {len(ours)} processes")
    page.get_by_text("interrupted; exit code 143").wait_for()
    shot(page, "after-cancel")
    page.get_by_role("button", name="Run", exact=True).and_(page.locator(":enabled")).wait_for()


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
