"""99-verdict, executed by papermill as a user would: from records only."""

import json
from pathlib import Path

import papermill
import pytest
import report_samples as samples
from nccl_runbook.core import records
from nccl_runbook.core.facts import to_json
from nccl_runbook.report.run import write_run
from nccl_runbook.step import HEADLESS_VARIABLE

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "99-verdict.ipynb"


def _folder(tmp_path: Path, sample: str) -> Path:
    for record in samples.SAMPLES[sample]()[1]:
        if record.step != "99-verdict":
            (tmp_path / f"{record.step}.json").write_text(json.dumps(to_json(record)))
    return tmp_path


def _outputs(path: Path) -> str:
    cells = json.loads(path.read_text())["cells"]
    return "".join("".join(o.get("data", {}).get("text/plain", "")) for c in cells for o in c.get("outputs", []))


def _execute(folder: Path, **parameters) -> str:
    out = folder / "99-verdict.ipynb"
    papermill.execute_notebook(NOTEBOOK, out, parameters={"run_dir": str(folder), **parameters}, progress_bar=False, log_output=False)
    return _outputs(out)


SHARED = f"Broken: {samples.shared_gpu().title} (established)."


def test_by_hand_it_shows_the_verdict_and_writes_the_page(tmp_path, monkeypatch):
    monkeypatch.delenv(HEADLESS_VARIABLE, raising=False)
    shown = _execute(_folder(tmp_path, "duplicate-gpu"))
    for wanted in (
        SHARED,
        "torch.cuda.set_device(local_rank)",
        "ruled out",
        "04-transports",
        "4 records read",
    ):
        assert wanted in shown, wanted
    own = records.load(tmp_path / "99-verdict.json")
    assert (own.status, own.facts["run"]["read"]) == ("ok", ["01-gpu-visibility", "03-fewer-gpus", "04-transports", "05-weight-sync"])
    document = json.loads((tmp_path / "verdict.json").read_text())
    assert document["exit_code"] == 3 and "99-verdict" not in [s["notebook"] for s in document["steps"]]
    assert SHARED in (tmp_path / "index.html").read_text()
    (tmp_path / "03-fewer-gpus.json").unlink()  # its own record says it all again, without the others
    again = _execute(tmp_path, record_path=str(tmp_path / "99-verdict.json"))
    assert SHARED in again


def test_inside_a_run_it_leaves_the_page_to_the_runner(tmp_path, monkeypatch):
    monkeypatch.setenv(HEADLESS_VARIABLE, "1")
    folder = _folder(tmp_path, "cpu-only")
    written = write_run(folder, samples.cpu_only()[0]).sentence
    before = (folder / "index.html").read_bytes()
    assert written in _execute(folder)
    assert (folder / "index.html").read_bytes() == before


def test_an_empty_folder_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setenv(HEADLESS_VARIABLE, "1")
    assert "Unknown: " in _execute(tmp_path)
    assert records.load(tmp_path / "99-verdict.json").status == "unknown"


def test_a_parameter_of_the_wrong_name_is_refused(tmp_path):
    with pytest.raises(papermill.PapermillExecutionError, match="budgets.*budget_s"):
        _execute(tmp_path, budgets=3)
