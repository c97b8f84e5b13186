"""02-environment run by the runner: a real rank, a launch script, and the record judged again."""
from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from nccl_runbook import __main__ as main
from nccl_runbook.__main__ import spread
from typer.testing import CliRunner

ROOT = Path(__file__).resolve().parents[1]
CANARY = "canary9f3a71c2e5"


def run(*arguments: str) -> dict:
    done = CliRunner().invoke(main.app(), spread(["run", "--json", *arguments]))
    assert done.exit_code in (0, 3, 4), done.output
    return json.loads(done.stdout[done.stdout.index("{"):])


def test_the_notebook_judges_a_rank_and_a_script_and_its_record_is_judged_alike(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", CANARY)
    monkeypatch.setenv("NCCL_TOPO_FILE", f"/x/{CANARY}")
    monkeypatch.setenv("NCCL_TIMEOUT", "1800")
    script = tmp_path / "run.sh"
    script.write_text(f"export WANDB_API_KEY={CANARY}w\nexport NCCL_DEBUG=ERROR\n")
    out = tmp_path / "run"
    document = run("--step", "02-environment", "--python", sys.executable, "-p", "script", str(script), "--out", str(out))
    step = next(s for s in document["steps"] if s["notebook"] == "02-environment")
    titles = [f["title"] for f in step["findings"]]
    assert (
        step["status"] == "warn" and any(t.startswith("NCCL_TIMEOUT") for t in titles) and any(t.startswith("NCCL_DEBUG") for t in titles)
    )
    assert not [p for p in out.rglob("*") if p.is_file() and CANARY in p.read_text(errors="replace")]
    again = run("--record", str(out / "02-environment.json"), "--out", str(tmp_path / "again"))
    judged = next(s for s in again["steps"] if s["notebook"] == "02-environment")
    assert [f["title"] for f in judged["findings"]] == titles


    line = json.loads((out / "02-environment.json").read_text())["commands"][0]["line"]
    by_hand = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert by_hand.returncode == 0 and '"event": "environment"' in by_hand.stdout, by_hand.stderr[-2000:]


def test_two_set_ups_are_compared_in_the_notebook_and_the_record_is_judged_alike(tmp_path, monkeypatch):
    monkeypatch.delenv("NCCL_P2P_DISABLE", raising=False)
    (tmp_path / "b.env").write_text("export NCCL_P2P_DISABLE=1\nexport NCCL_DEBUG=WARN\n")
    job = f"{sys.executable} -S -c \"import os; print('sync took', 1 + int(os.environ.get('NCCL_P2P_DISABLE', 0)))\""
    out = tmp_path / "run"
    document = run(
        "--step",
        "02-environment",
        "--python",
        sys.executable,
        "-p",
        "arm_b",
        str(tmp_path / "b.env"),
        "-p",
        "command",
        job,
        "-p",
        "figure",
        "sync took ([0-9.]+)",
        "--out",
        str(out),
    )
    step = next(s for s in document["steps"] if s["notebook"] == "02-environment")
    titles = [f["title"] for f in step["findings"]]
    assert [f["title"].split()[0] for f in step["findings"] if f["id"] == "effect-named"] == ["NCCL_P2P_DISABLE"], step
    again = run("--record", str(out / "02-environment.json"), "--out", str(tmp_path / "again"))
    assert [f["title"] for f in next(s for s in again["steps"] if s["notebook"] == "02-environment")["findings"]] == titles
