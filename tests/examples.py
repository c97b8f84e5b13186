"""Make the pages of outputs/example again: `.venv/bin/python tests/examples.py [RECORDS]`, half a minute each.

hang.html and hang.png show a job that is started here: eight ranks over Gloo, of which rank 5 saves a model while the others wait for it.
The others need GPUs: what a run on GPUs left in RECORDS/NAME/*.json is judged and drawn again as NAME.html.
"""
from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nccl_runbook.report.run import info_of, write_run
from test_lab_browser import CHROMIUM

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "outputs" / "example"
BIN = Path(sys.executable).parent
TRAIN = '''\
import torch
import torch.distributed as dist


def save_pretrained(weights, path):
    while True:
        torch.save(weights, path)


def train(rank, weights):
    for step in range(1000):
        if step == 3 and rank == 5:
            save_pretrained(weights, "model.pt")
        dist.all_reduce(weights)


dist.init_process_group("gloo")
train(dist.get_rank(), torch.ones(1 << 20))
'''


def hang(folder: Path) -> None:
    """The page of README's first row, and the picture of its head."""
    (folder / "train.py").write_text(TRAIN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{BIN}:{os.environ['PATH']}"}
    job = subprocess.Popen([BIN / "torchrun", "--standalone", "--nproc-per-node", "8", "train.py"], cwd=folder, env=environment)
    try:
        while not (folder / "model.pt").exists() and job.poll() is None:
            time.sleep(1)
        time.sleep(5)  # the others have reached the call in which they wait
        subprocess.run([BIN / "nccl-runbook", "diagnose", str(job.pid), "--html", "hang.html"], cwd=folder, env=environment)
    finally:
        job.terminate()
        job.wait()
    page = EXAMPLE / "hang.html"
    page.write_text((folder / "hang.html").read_text().replace(f"diagnose {job.pid} --html", "diagnose --html"))
    picture(page)


def picture(page: Path) -> None:
    """The first screen of the page, as README shows it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1060, "height": 820})
        tab.goto(page.as_uri())
        tab.screenshot(path=page.with_suffix(".png"))
        browser.close()


def judged_again(records: Path, folder: Path) -> None:
    """A run's records by today's rules, on a page that names the run which left them."""
    subprocess.run([BIN / "nccl-runbook", "run", "--record", *sorted(records.glob("[0-9]*.json")), "--out", folder])
    left_by = info_of(records)
    run = dataclasses.replace(info_of(folder), id=records.name, command=left_by.command, started=left_by.started)
    (folder / "verdict.json").unlink()
    write_run(folder, run)
    # the page alone is shown, without its folder
    page = re.sub(r'<p class="quiet small">In the run.s folder: .*?</p>', "", (folder / "index.html").read_text())
    (EXAMPLE / f"{records.name}.html").write_text(page)


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        if sys.argv[1:]:
            for records in sorted(Path(sys.argv[1]).iterdir()):
                judged_again(records, Path(made, records.name))
        else:
            hang(Path(made))


if __name__ == "__main__":
    main()
