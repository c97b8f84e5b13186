"""Runs jobs of the gym, and asks `diagnose` about each without a hint.

Each job has namespaces of its own (processes and mounts) if the system permits them: the live look, which
gets no argument, then sees this job alone, and a full disk is full for this job alone. Otherwise the look
gets the job's process. Nothing of a job outlives it: see launch.supervised.
"""

import contextlib
import dataclasses
import functools
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nccl_runbook.core.records import new_folder
from nccl_runbook.gym import judge
from nccl_runbook.gym.facts import Answer, Job, Trial
from nccl_runbook.launch import command
from nccl_runbook.launch.stop import never, own_folder

# copied beside the job, as its own files
FILES = (*Path(__file__).with_name("job").glob("*.py"), Path(__file__).parents[2] / "nccl_guards.py")
CLI = [sys.executable, "-c", "from nccl_runbook.__main__ import main; main()"]
NAMESPACES = ["--pid", "--fork", "--mount-proc", "--mount", "--kill-child"]
# sh is process 1 of the namespace, so that a job that loses its parent falls to it
ROOM = ["unshare", *NAMESPACES, "sh", "-c", '"$@"; exit $?', "sh"]
TOOK_HOLD_S = 2.0  # after the last rank has come to its trouble: each has met the call in which it hangs
ARRIVE_S, END_S, ANSWER_S = 90.0, 90.0, 120.0  # to reach the trouble; to end after the timeout; to answer
DUMPS = "fr_rank_"  # and the rank, in the folder dumps


@functools.cache
def has_namespaces() -> bool:
    """Whether this user may make them here."""
    if not shutil.which("unshare"):
        return False
    return subprocess.run([*ROOM, "true"], capture_output=True, check=False).returncode == 0


@dataclasses.dataclass(frozen=True)
class Gym:
    """How jobs are run. ``python``: argv prefix of an interpreter with torch; ``to_the_end``: a job that was
    looked at runs on, and its log is read as well; ``keep``: where each job gets a folder of its name, which
    stays; ``stopped`` gives a reason to stop."""

    python: Sequence[str]
    to_the_end: bool = False
    keep: Path | None = None
    stopped: Callable[[], str] = never

    def run(self, chosen: Sequence[Job], at_once: int) -> Iterator[Trial]:
        """Run the jobs, ``at_once`` at a time, and yield them in their order; those that ``stopped`` ends are
        left out. ValueError if a job cannot be started."""
        with ThreadPoolExecutor(at_once) as pool:
            yield from (trial for trial in pool.map(self.trial, chosen) if trial)

    def trial(self, job: Job) -> Trial | None:
        """Run one job; None if it was stopped. ValueError if it cannot be started."""
        room = ROOM if has_namespaces() else []
        with self._folder(job) as folder:
            answer, errors = Path(folder, "answer.json"), Path(folder, "errors.txt")
            words = [
                sys.executable,
                "-m",
                "nccl_runbook.gym.ask",
                folder,
                json.dumps(dataclasses.asdict(job)),
            ]
            words += ["alone" if room else "", "end" if self.to_the_end else "", *self.python]
            with (
                errors.open("wb") as printed,
                command.supervised([*room, *words], os.environ, printed) as child,
            ):
                command.ends(child, ARRIVE_S + job.timeout_s + END_S + 2 * ANSWER_S, self.stopped)
            if self.stopped():
                return None
            if not answer.exists():
                last = "".join(errors.read_text(errors="replace").splitlines()[-1:])
                raise ValueError(f"{job.name} did not run: {last[-500:]}")
            trial = json.loads(answer.read_text())
            return Trial(job, [Answer(**row) for row in trial["answer"]], trial["outcome"], trial["wall_s"])

    def _folder(self, job: Job) -> contextlib.AbstractContextManager[str]:
        if self.keep is None:
            return own_folder("nccl-runbook-gym-")
        folder = self.keep.absolute() / job.name
        if folder.exists():
            raise ValueError(f"{folder} already exists. Name another folder")
        new_folder(folder)
        return contextlib.nullcontext(str(folder))


def inside(folder: Path, job: Job, is_alone: bool, to_the_end: bool, python: Sequence[str]) -> Trial:
    """Run the job in this namespace. ``is_alone``: no other job is visible here."""
    for file in FILES:
        shutil.copy(file, folder)
    program, dumps = " ".join(python), folder / "dumps"
    line = job.launch.format(
        python=program, torchrun=f"{program} -m torch.distributed.run", does=job.does, port=_free_port()
    )
    env = {
        **os.environ,
        "JOB_FOLDER": str(folder),
        "JOB_TIMEOUT_S": str(job.timeout_s),
        "JOB_BACKEND": "nccl" if job.gpus else "gloo",
        "OMP_NUM_THREADS": "1",
        "JOB_DUMPS": str(dumps) if job.dumps else "",
    }
    answers, log, began = [], folder / "job.log", time.monotonic()
    with (
        log.open("wb") as printed,
        command.supervised(["bash", "-c", f"cd {shlex.quote(str(folder))}; {line}"], env, printed) as running,
    ):
        if job.look and _left_by_all(folder, f"{job.look}-", job, running):
            time.sleep(TOOK_HOLD_S)
            answers.append(_answer("live", job, folder, *([] if is_alone else [str(running.pid)])))
        if job.dumps:
            dumps.mkdir()
            _left_by_all(dumps, DUMPS, job, running)
        elif not answers or to_the_end:
            command.ends(running, job.timeout_s + END_S)
    if job.dumps or not answers or to_the_end:
        answers.append(_answer("log", job, folder, str(log), *([str(dumps)] if job.dumps else [])))
    took_s = round(time.monotonic() - began, 1)
    return Trial(job, answers, judge.together([a.outcome for a in answers]), took_s)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _left_by_all(folder: Path, name: str, job: Job, running: subprocess.Popen[bytes]) -> bool:
    """Whether each rank left a file that begins with ``name``, before the job ended."""
    until = time.monotonic() + ARRIVE_S
    while len(list(folder.glob(f"{name}*"))) < job.many:
        if running.poll() is not None or time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def _answer(door: str, job: Job, folder: Path, *given: str) -> Answer:
    """What `diagnose` answers, and whether that is right."""
    began, ready = time.monotonic(), folder / f"ready-{job.rank}"
    pid = ready.read_text() if ready.exists() else ""
    ended = subprocess.run(
        [*CLI, "diagnose", *given, "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=ANSWER_S, check=False,
    )  # fmt: skip
    took_s = round(time.monotonic() - began, 1)
    if not ended.stdout:
        return Answer(
            door,
            "undecided",
            sentence=ended.stderr.strip()[-500:],
            cause=None,
            status=None,
            evidence=[],
            took_s=took_s,
        )
    document = json.loads(ended.stdout)
    lead = document["lead"] or {}
    return Answer(
        door,
        judge.outcome(job, document, pid),
        sentence=document["sentence"],
        cause=lead.get("cause"),
        status=lead.get("status"),
        evidence=[e["text"] for e in lead.get("evidence", [])[:3]],
        took_s=took_s,
    )


if __name__ == "__main__":
    where, row, is_alone, to_the_end, *interpreter = sys.argv[1:]
    done = inside(Path(where), Job(**json.loads(row)), bool(is_alone), bool(to_the_end), interpreter)
    Path(where, "answer.json").write_text(json.dumps(done.to_json()))
