"""The gym: jobs that end within a second or two, one for each kind of answer, judged by their log alone; and the command. All jobs: make
gym."""
from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import papermill
import pytest
from beside import begun
from live_worlds import free_port
from nccl_runbook.causes.causes import causes
from nccl_runbook.cli import dev
from nccl_runbook.cockpit import gym as notebook
from nccl_runbook.core.facts import Gap, Unusable
from nccl_runbook.gym import ask, judge, table
from nccl_runbook.gym.facts import Answer, Job, Trial, in_turn, jobs
from nccl_runbook.machine import ask_nvml
from warm_cli import read_cli

TRAIN = Path(ask.__file__).parent / "job" / "train.py"
DETAIL = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
# what its ranks are given besides; "" takes a variable away
QUICK: dict[str, dict[str, str]] = {
    "raises-shell": {},
    "wrong-argument": {},
    "host-memory": {},
    "open-files": {},
    "shapes-differ": {},
    "shapes-differ-detail": DETAIL,
    "types-of-one-size-detail": DETAIL,
    "ddp-models-differ": {},
    "interface": {"GLOO_SOCKET_IFNAME": "eth99"},
    "no-address": {"MASTER_ADDR": ""},
    "no-rank": {"RANK": ""},
}
UNDECIDED = {"exits-early": {}}  # only its victims print a word
WORKS = ("short", "caught_once")


@pytest.fixture(scope="module")
def launcher() -> Iterator[subprocess.Popen[str]]:
    """It has imported torch, and forks the ranks of each job."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, Path(__file__).with_name("gym_ranks.py")], stdin=pipe, stdout=pipe, text=True, start_new_session=True
    ) as running:
        yield running
        os.killpg(running.pid, signal.SIGKILL)


def ended(launcher: subprocess.Popen[str], folder: Path, does: str, variables: dict[str, str]) -> tuple[list[int], dict[str, Any]]:
    """The ends of the ranks, and what `diagnose` answers to their log."""
    meeting = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "3",
        "OMP_NUM_THREADS": "1",
        "JOB_TIMEOUT_S": "10",
    }
    print(
        json.dumps({"does": does, "folder": str(folder), "variables": {**meeting, **variables}, "size": 3}), file=launcher.stdin, flush=True
    )
    codes = json.loads(launcher.stdout.readline())
    return codes, json.loads(read_cli("diagnose", folder / "job.log", "--json").stdout)


@pytest.mark.parametrize("name", QUICK)
def test_a_job_that_ends_by_itself_is_explained_by_its_log(launcher: subprocess.Popen[str], tmp_path: Path, name: str) -> None:
    job = jobs()[name]
    codes, told = ended(launcher, tmp_path, job.does, QUICK[name])
    assert any(codes) and judge.outcome(job, told) == "right", (codes, told["sentence"], (tmp_path / "job.log").read_text()[-3000:])


@pytest.mark.parametrize("name", UNDECIDED)
def test_what_no_line_shows_is_left_undecided(launcher: subprocess.Popen[str], tmp_path: Path, name: str) -> None:
    job = jobs()[name]
    codes, told = ended(launcher, tmp_path, job.does, UNDECIDED[name])
    assert any(codes) and told["verdict"] == "unknown" and judge.outcome(job, told) == "undecided", told["sentence"]


@pytest.mark.parametrize("does", WORKS)
def test_a_job_that_works_raises_no_alarm(launcher: subprocess.Popen[str], tmp_path: Path, does: str) -> None:
    codes, told = ended(launcher, tmp_path, does, {})
    assert codes == [0, 0, 0] and judge.outcome(Job("", "", "", does), told) == "right", told["sentence"]


def test_runs_of_jobs_that_work_come_in_turn() -> None:
    works = [jobs()[name] for name in ("works-short", "works-shell")]
    assert [job.name for job in in_turn(works, 3)] == ["works-short-1", "works-shell-2", "works-short-3"] and not in_turn([], 3)


@pytest.mark.parametrize(
    ("outcomes", "code"), [(["right", "right"], 0), (["right", "wrong", "undecided"], 3), (["right", "undecided"], 4), ([], 4)]
)
def test_the_exit_code_is_that_of_the_worst_outcome(outcomes: list[Any], code: int) -> None:
    assert judge.exit_code(outcomes) == code


# --- the judgement of the gym itself

def told(sentence: str, cause: str | None, status: str | None, verdict: str = "broken") -> dict[str, Any]:
    lead = {"cause": cause, "status": status, "evidence": [{"text": sentence, "source": ""}]} if status else None
    return {"sentence": sentence, "verdict": verdict, "lead": lead}


STOPPED = Job("", "", "", "", ("peer-stopped",), 1)


@pytest.mark.parametrize(("answer", "outcome"), [
    (told("Broken: rank 1 is stopped; 2 ranks wait for it in all_reduce.", "peer-stopped", "established"), "right"),
    (told("Broken: rank 2 is stopped; rank 1 waits for it in all_reduce.", "peer-stopped", "established"), "wrong"),
    (told("Broken: rank 1 died.", "peer-crashed", "likely"), "wrong"),
    (told("Unknown: rank 1 may be stopped.", "peer-stopped", "possible"), "undecided"),
    (told("Broken: a rank is stopped.", "peer-stopped", "likely"), "undecided"),
    (told("Broken: rank (pid 77) is stopped.", "peer-stopped", "likely"), "right"),
    (told("Unknown: nothing.", None, None, "unknown"), "undecided"),
    (told("Broken: a rank is stopped (likely): Rank 1 stopped (job.log line 9, rank 0).", "peer-stopped", "likely"), "right"),
    (told("Broken: a rank is stopped (likely): Rank 2 stopped (job.log line 9, rank 1).", "peer-stopped", "likely"), "wrong"),
    (told("Broken: a rank is stopped (likely): Stopped (job.log line 9, rank 0).", "peer-stopped", "likely"), "wrong"),
])
def test_only_the_cause_with_its_rank_counts_as_right(answer: dict[str, Any], outcome: str) -> None:
    assert judge.outcome(STOPPED, answer, "77") == outcome


@pytest.mark.parametrize(
    ("verdict", "status", "outcome"), [("broken", "possible", "right"), ("unknown", "possible", "undecided"), ("broken", None, "right")]
)
def test_a_first_line_that_says_the_fault_is_right_whatever_its_reason(verdict: str, status: str | None, outcome: str) -> None:
    job = Job("", "", "", "", ("duplicate-gpu",), says="use the same GPU")
    assert judge.outcome(job, told("Broken: ranks 0 and 1 use the same GPU.", "device-not-set-per-rank", status, verdict)) == outcome


def test_words_without_a_cause_name_the_rank_themselves() -> None:
    job = Job("", "", "", "", ("peer-crashed",), 1, says="ended local rank 1")
    assert judge.outcome(job, told("Broken: signal 6 ended local rank 1.", None, None)) == "right"


@pytest.mark.parametrize(("verdict", "outcome"), [("healthy", "right"), ("unknown", "right"), ("degraded", "wrong"), ("broken", "wrong")])
def test_any_alarm_of_a_job_that_works_is_wrong(verdict: str, outcome: str) -> None:
    assert judge.outcome(Job("", "", "", ""), told("", None, None, verdict)) == outcome


def test_one_wrong_answer_makes_a_job_wrong_and_one_right_answer_is_enough() -> None:
    assert [judge.together(outcomes) for outcomes in (["right", "undecided"], ["right", "wrong"], ["undecided"], [])] == [
        "right", "wrong", "undecided", "undecided"]


def test_what_a_job_accepts_as_words_is_still_said() -> None:
    library = Path(ask.__file__).parents[1]
    texts = "".join(path.read_text() for ending in ("py", "toml") for path in library.rglob(f"*.{ending}") if "gym" not in path.parts)
    bare = re.sub(r'"\s+f?"|<\w+>', "", texts).casefold()  # a sentence over several lines, and without its values
    said_now = [re.sub(r"\{[^{}]*\}", ending, bare) for ending in ("", "s")]
    missing = [job.name for job in jobs().values() if not any(re.sub(r"\d+", "", job.says).casefold() in text for text in said_now)]
    assert not missing


def test_every_job_is_something_that_a_rank_does_and_every_cause_is_in_the_table() -> None:
    words = TRAIN.parent.glob("*.py")
    does = {name for path in words for name in re.findall(r"    def (\w+)", path.read_text(encoding="utf-8"))}
    assert {job.does for job in jobs().values()} <= does
    assert {cause for job in jobs().values() for cause in job.causes} <= set(causes())
    assert len([job for job in jobs().values() if job.is_fault]) >= 50 and len([job for job in jobs().values() if not job.is_fault]) >= 25


# --- the command

@pytest.fixture(scope="module", autouse=True)
def two_jobs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """How the command ended on one job that hangs and one that works, and its page."""
    def run() -> tuple[Any, str]:
        page = tmp_path_factory.mktemp("two") / "gym.html"
        return (
            read_cli("dev", "gym", "--fault", "stopped", "--fault", "works-short", "--json", "--html", page, timeout=250),
            page.read_text(),
        )

    yield from begun(request, test_the_command_starts_a_job_that_hangs_and_one_that_works.__name__, run)


def test_jobs_on_gpus_are_listed_apart_and_refused_where_no_gpu_answers(tmp_path: Path) -> None:
    names = {name: read_cli("dev", "gym", "--list", "--on", name).stdout for name in ("cpu", "gpu")}
    assert all((job.gpus > 0) == (name in [line.split()[0] for line in names["gpu"].splitlines()]) for name, job in jobs().items())
    assert not {line.split()[0] for line in names["cpu"].splitlines()} & {line.split()[0] for line in names["gpu"].splitlines()}
    if isinstance(ask_nvml.users(), Gap):
        assert read_cli("dev", "gym", "--on", "gpu").returncode == 4


def test_the_notebook_starts_no_job_on_a_gpu() -> None:
    with pytest.raises(Unusable):
        notebook.show({"job": "gpu-memory", "python": ""})


def test_a_page_says_that_an_answer_was_wrong() -> None:
    assert "gym" in dev._page([trial("raises", "wrong")], 3)


@pytest.mark.parametrize(
    "words",
    [
        ["--fault", "no-such-fault"],
        ["--fault", "stopped", "--on", "gpu"],
        ["--fault", "gpu-memory"],
        ["--at-once", "0"],
        ["--works", "0"],
        ["--on", "tpu"],
        ["--python", "/no/such/python"],
        ["--keep", "/proc/x"],
    ],
)
def test_a_wrong_word_is_refused_before_a_job_starts(words: list[str]) -> None:
    ended = read_cli("dev", "gym", *words)
    assert ended.returncode == 2 and len(ended.stderr.strip().splitlines()) == 1 and not ended.stdout


def test_only_jobs_that_work_are_listed_and_a_fault_is_none_of_them() -> None:
    listed = read_cli("dev", "gym", "--list", "--works", "30").stdout.splitlines()
    assert len(listed) == 30 and all(line.startswith("works-") for line in listed)
    assert read_cli("dev", "gym", "--works", "2", "--fault", "stopped").returncode == 4


def test_without_namespaces_jobs_that_mount_are_left_out(tmp_path: Path) -> None:
    ended = read_cli(
        "dev", "gym", "--fault", "disk-full", "--fault", "shm-full", "--json", env={**os.environ, "PATH": str(tmp_path)}
    )  # no unshare(1)
    assert ended.returncode == 4 and json.loads(ended.stdout)["faults"] == [] and "mount" in ended.stderr


def test_a_folder_that_is_kept_is_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "raises").mkdir()
    ended = read_cli("dev", "gym", "--fault", "raises", "--keep", tmp_path)
    assert ended.returncode and str(tmp_path / "raises") in ended.stderr and len(ended.stderr.strip().splitlines()) == 1


# --- the notebook

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "reference" / "gym.ipynb"


def test_the_notebook_starts_a_job_and_lays_the_answer_beside_what_was_planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_RUNBOOK_HEADLESS", "1")
    papermill.execute_notebook(NOTEBOOK, tmp_path / "out.ipynb", parameters={"job": "wrong-argument"}, progress_bar=False)
    cells = json.loads((tmp_path / "out.ipynb").read_text())["cells"]
    shown = [output for cell in cells for output in cell.get("outputs", ())]
    printed = "".join("".join(o["text"]) for o in shown if o["output_type"] == "stream")
    table_text, = ("".join(o["data"]["text/plain"]) for o in shown if o["output_type"] == "execute_result")
    assert "unrecognized arguments" in printed and table_text.startswith("wrong-argument: right")
    assert jobs()["wrong-argument"].about in table_text and "peer-crashed" in table_text


def test_the_notebook_is_without_outputs_and_its_parameters_have_help() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
    seen = papermill.inspect_notebook(NOTEBOOK)
    assert set(seen) == {"job", "python"} and all(p["help"] for p in seen.values()) and seen["job"]["default"].strip('"') in jobs()


def test_the_notebook_refuses_a_job_that_there_is_not() -> None:
    with pytest.raises(Unusable, match="raises"):
        notebook.show({"job": "raise", "python": ""})


def trial(name: str, outcome: str) -> Trial:
    return Trial(jobs()[name], [Answer("log", outcome, "", None, None, [], 0.1)], outcome, 1.0)


@pytest.mark.parametrize(
    ("outcomes", "counts"),
    [
        ({"raises": "right", "works-short": "right"}, (1, 0, 0, 0)),
        ({"raises": "wrong", "killed": "undecided"}, (0, 1, 1, 0)),
        ({"works-short": "wrong"}, (0, 0, 0, 1)),
    ],
)
def test_faults_and_false_alarms_are_counted_apart(outcomes: dict[str, str], counts: tuple[int, ...]) -> None:
    trials = [trial(name, word) for name, word in outcomes.items()]
    faults = tuple(table.count(trials, word, True) for word in ("right", "undecided", "wrong"))
    assert (*faults, table.count(trials, "wrong", False)) == counts
    assert len(table.trials_table(trials).rows) == len(trials)


def test_the_command_starts_a_job_that_hangs_and_one_that_works(two_jobs: Any) -> None:
    ended, page = two_jobs.result()
    document = json.loads(ended.stdout)
    rows = {row["fault"]: row for row in document["faults"]}
    assert ended.returncode == 0 and document["exit_code"] == 0, ended.stderr
    assert {name: row["outcome"] for name, row in rows.items()} == {"stopped": "right", "works-short": "right"}
    assert [a["door"] for a in rows["stopped"]["answer"]] == ["live"] and rows["stopped"]["answer"][0]["cause"] == "peer-stopped"
    assert rows["stopped"]["expected"] == {"causes": ["peer-stopped"], "rank": 1} and "works-short" in page
