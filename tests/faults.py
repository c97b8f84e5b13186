"""Faults that `diagnose` is not told of, in real jobs over Gloo, and jobs that work: `python tests/faults.py [NAME...] [--json] [--jobs N]`.

Each job runs in a room of its own (process and mount namespaces, if they are permitted here), so that the live look, which is given no
argument, finds this job alone, and so that nothing is left. While it hangs `diagnose` looks at it; after its end `diagnose` reads its log.
"""
from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from live_worlds import free_port

TRAINING = Path(__file__).parent / "training.py"
CLI = [sys.executable, "-c", "from nccl_runbook.__main__ import main; main()"]
ROOM = ["unshare", "--pid", "--fork", "--mount-proc", "--mount", "--kill-child", "sh", "-c", '"$@"; exit $?', "sh"]
TOOK_HOLD_S = 2.0  # after the last rank has come to its trouble: each has met the call in which it hangs by then

# the launchers: bash, with the names of the programs filled in
TORCHRUN = "{torchrun} --nproc-per-node 3 --master-port {port} {training} {does}"
MEETING = "export MASTER_ADDR=127.0.0.1 MASTER_PORT={port} WORLD_SIZE=3; "
SHELL = MEETING + "for r in 0 1 2; do RANK=$r LOCAL_RANK=$r {training_py} {does} & done; wait"
SPAWN = MEETING + "{training_py} --spawn {does}"
ELASTIC = "{torchrun} --standalone --nproc-per-node 3 {training} {does}"
# its launcher was killed and its ranks were not: the first one still holds the port
EARLIER = "mkdir earlier; JOB_FOLDER=earlier bash -c '" + SHELL.replace("{does}", "upload") + "' > earlier.log 2>&1 & sleep 12; kill -9 $!; "
DETAIL = "export TORCH_DISTRIBUTED_DEBUG=DETAIL; "


@dataclasses.dataclass(frozen=True)
class Job:
    """``does``: what of training.py; ``causes``: that are right, none for a job that works; ``rank``: to name, None where no single one is at
    fault; ``says``: what the sentence holds instead, if the fault has no cause of its own in the table; ``dumps``: its ranks
    leave those of the flight recorder, as NCCL's do at a time-out. ``look``: once these files of ``many``
    ranks are there it is looked at, "" where it ends by itself too soon."""

    launch: str
    does: str
    causes: frozenset[str] = frozenset()
    rank: int | None = None
    look: str = ""
    many: int = 3
    says: str = ""
    timeout_s: int = 45
    dumps: bool = False


def fault(launch: str, does: str, causes: str, rank: int | None = None, look: str = "", **more: Any) -> Job:
    return Job(launch, does, frozenset(causes.split()), rank, look, **more)


LEFT_OUT = "collective-on-some-ranks-only rank-dependent-branch"
FAULTS = {
    # a rank that goes
    "exits-early": fault(TORCHRUN, "returns", f"peer-crashed uneven-minibatches {LEFT_OUT}", 1),
    "raises": fault(TORCHRUN, "shard", "peer-crashed", 1),
    "raises-elastic": fault(ELASTIC, "index", "peer-crashed", 2),
    "raises-again": fault(ELASTIC.replace("--standalone", "--standalone --max-restarts 1"), "shard", "peer-crashed", 1),
    "loss-is-nan": fault(TORCHRUN, "checks", "peer-crashed", 2),
    "wrong-argument": fault(TORCHRUN, "arguments", "peer-crashed"),
    "wrong-checkpoint": fault(TORCHRUN, "optimizer", "peer-crashed"),
    "raises-shell": fault(SHELL, "shard", "peer-crashed", 1),
    "raises-spawn": fault(SPAWN, "index", "peer-crashed", 2),
    "killed": fault(TORCHRUN, "kill", "peer-crashed", 1),
    "killed-shell": fault(SHELL, "kill", "peer-crashed"),
    "killed-spawn": fault(SPAWN, "kill", "peer-crashed", 1),
    "segfault": fault(TORCHRUN, "native", "peer-crashed", 1),
    "host-memory": fault(TORCHRUN, "memory", "peer-crashed", 2),
    "import-error": fault(TORCHRUN, "imports", "peer-crashed", 1),
    "open-files": fault(TORCHRUN, "files", "ulimit-too-low", 1),
    "disk-full": fault("mkdir checkpoints && mount -t tmpfs -o size=1m none checkpoints && " + TORCHRUN, "disk", "peer-crashed", 0),
    "shm-full": fault("mount -t tmpfs -o size=8m none /dev/shm && " + TORCHRUN, "batches", "shm-too-small"),
    # a rank that is elsewhere
    "stopped": fault(TORCHRUN, "stop", "peer-stopped", 1, "ready"),
    "data-loader": fault(TORCHRUN, "loader", "data-stall", 1, "ready"),
    "saves-checkpoint": fault(TORCHRUN, "save", "rank-busy-on-host", 0, "ready"),
    "uploads": fault(TORCHRUN, "upload", "rank-busy-on-host", 0, "ready"),
    "infinite-loop": fault(TORCHRUN, "tokens", "rank-busy-on-host", 2, "ready"),
    "infinite-loop-spawn": fault(SPAWN, "tokens", "rank-busy-on-host", 2, "ready"),
    "holds-gil": fault(TORCHRUN, "matches", "rank-busy-on-host", 1, "ready"),
    "downloads": fault(TORCHRUN, "downloads", "rank-busy-on-host data-stall", 0, "ready", says="sleeps there"),
    "file-never-comes": fault(SHELL, "marker", "rank-busy-on-host data-stall", 1, "ready", says="sleeps there"),
    "timeout-too-short": fault(TORCHRUN, "evaluates_long", "rank-busy-on-host start-skew straggler", 0, "ready"),
    # ranks that call differently
    "extra-all-gather": fault(TORCHRUN, "metrics", LEFT_OUT, 0, "ready"),
    "extra-all-gather-shell": fault(SHELL, "metrics", LEFT_OUT, 0, "ready"),
    "order-of-calls": fault(TORCHRUN, "swaps", f"communicator-order collective-mismatch {LEFT_OUT}", 1, "ready"),
    "order-of-groups": fault(TORCHRUN, "groups", f"communicator-order {LEFT_OUT}", 0, "ready"),
    "order-of-groups-loop": fault(TORCHRUN, "groups_in_a_loop", f"communicator-order {LEFT_OUT}", None, "ready", dumps=True),
    "shapes-differ": fault(TORCHRUN, "shapes", "collective-mismatch"),
    "shapes-differ-detail": fault(DETAIL + TORCHRUN, "shapes", "collective-mismatch", 2),
    "types-differ": fault(TORCHRUN, "types", "collective-mismatch"),
    "uneven-batches": fault(TORCHRUN, "uneven", f"uneven-minibatches {LEFT_OUT}", 1, "ready"),
    "uneven-batches-guarded": fault(TORCHRUN, "uneven_guarded", "uneven-minibatches", 1),
    "receive-without-send": fault(TORCHRUN, "receives", f"send-recv-unmatched {LEFT_OUT}", 1, "ready"),
    "monitored-barrier": fault(TORCHRUN, "monitored", f"rank-busy-on-host start-skew straggler {LEFT_OUT}", 2, "ready"),
    # ranks that do not meet
    "world-size": fault(SHELL.replace("RANK=$r", "WORLD_SIZE=$((3 + r / 2)) RANK=$r", 1), "short", "rendezvous-misconfigured", 2, "begun"),
    "one-never-starts": fault(SHELL.replace("0 1 2", "0 1"), "short", "rendezvous-misconfigured", 2, "begun", many=2),
    "rank-twice": fault(SHELL.replace("RANK=$r", "RANK=$((r == 2 ? 1 : r))", 1), "short", "rendezvous-misconfigured", None, "begun", many=2),
    "wrong-address": fault(SHELL.replace("RANK=$r", "MASTER_ADDR=$(if ((r)); then echo 192.0.2.1; else echo 127.0.0.1; fi) RANK=$r", 1), "short",
                           "rendezvous-misconfigured network-path-blocked", None, "begun"),
    "wrong-port": fault(SHELL.replace("RANK=$r", "MASTER_PORT=$(({port} + r / 2)) RANK=$r", 1), "short", "rendezvous-misconfigured", None, "begun"),
    "port-held": fault("{python} -m http.server {port} & sleep 2; " + SHELL, "short", "rendezvous-port-in-use", 0, "begun"),
    "two-jobs-one-port": fault("(" + TORCHRUN.replace("{does}", "simple") + ") > earlier.log 2>&1 & sleep 12; " + TORCHRUN, "short", "rendezvous-port-in-use"),
    "interface": fault("export GLOO_SOCKET_IFNAME=eth99; " + TORCHRUN, "short", "socket-interface-wrong"),
    "no-such-host": fault(SHELL.replace("127.0.0.1", "head-node.invalid"), "short", "rendezvous-name-resolution"),
    "no-address": fault(SHELL.replace("MASTER_ADDR=127.0.0.1 ", ""), "short", "rendezvous-misconfigured"),
    "no-rank": fault(SHELL.replace("RANK=$r LOCAL_RANK=$r ", ""), "short", "rendezvous-misconfigured"),
    "left-over-ranks": fault(EARLIER + SHELL, "short", "rendezvous-port-in-use", None, "begun"),
    # the whole job
    "time-limit": fault(TORCHRUN + " & sleep 20; echo slurmstepd: error: \"*** JOB 4711 ON n1 CANCELLED AT 2026-11-29T06:00:00 DUE TO TIME LIMIT ***\"; "
                        "kill $!; wait", "simple", "scheduler-time-limit"),
    "terminated": fault("timeout 20 " + TORCHRUN, "simple", "scheduler-time-limit scheduler-cancelled"),
}
WORKS = {"works-" + name: job for name, job in {
    "torchrun": Job(TORCHRUN, "simple", look="ready"),
    "shell": Job(SHELL, "simple", look="ready"),
    "spawn": Job(SPAWN, "simple", look="ready"),
    "short": Job(TORCHRUN, "short"),
    "without-destroy": Job(TORCHRUN, "leaves", look="ready"),
    "ddp": Job(TORCHRUN, "wrapped", look="ready"),
    "slow": Job(TORCHRUN, "heavy", look="ready"),
    "late-batches": Job(TORCHRUN, "late_batches", look="ready"),
    "compiles": Job(TORCHRUN, "compiles", look="ready", timeout_s=120),
    "evaluates": Job(TORCHRUN, "evaluates", look="ready"),
    "saves": Job(TORCHRUN, "saves", look="ready"),
    "data-loader": Job(TORCHRUN, "workers", look="ready"),
    "reads-first": Job(TORCHRUN, "reads_first", look="ready"),
    "groups": Job(TORCHRUN, "parallel", look="ready"),
    "pipeline": Job(TORCHRUN, "pipeline", look="ready"),
    "caught": Job(TORCHRUN, "caught", look="ready"),
    "retries": Job(TORCHRUN, "retries", look="ready"),
    "join": Job(TORCHRUN, "joined", look="ready"),
    "several-calls": Job(ELASTIC, "several_calls", look="ready"),
    "overlap": Job(TORCHRUN, "overlapped", look="ready"),
    "jitter": Job(TORCHRUN, "jitter", look="ready"),
    "monitored": Job(TORCHRUN, "monitors", look="ready"),
    "threads": Job(TORCHRUN, "background", look="ready"),
    "one-rank": Job(TORCHRUN.replace("3", "1", 1), "alone", look="ready", many=1),
    "serves": Job(TORCHRUN, "serves", look="ready"),
}.items()}
JOBS = {**FAULTS, **WORKS}


# --- in the room

def run(name: str, folder: Path) -> dict[str, Any]:
    """The job from its start to its end, and what `diagnose` says of it at both doors."""
    job, log, began = JOBS[name], folder / "job.log", time.monotonic()
    python, training = sys.executable, str(TRAINING)
    text = job.launch.format(python=python, torchrun=f"{python} -m torch.distributed.run", training=training, training_py=f"{python} {training}",
                             does=job.does, port=free_port())
    env = {**os.environ, "JOB_FOLDER": str(folder), "JOB_TIMEOUT_S": str(job.timeout_s), "OMP_NUM_THREADS": "1",
           **({"JOB_DUMPS": str(folder / "dumps")} if job.dumps else {})}
    found: dict[str, Any] = {"name": name}
    with log.open("wb") as printed:
        running = subprocess.Popen(["bash", "-c", text], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
                                   start_new_session=True)
    try:
        if job.look and arrived(folder, job, running):
            time.sleep(TOOK_HOLD_S)
            found["live"] = asked(job, folder)
        running.wait(job.timeout_s + 90)
    except subprocess.TimeoutExpired:
        found["ended_by"] = "us"
    finally:
        end(running)
    found["log"] = asked(job, folder, str(log), *[str(folder / "dumps")] * job.dumps)
    return {**found, "outcome": together(found), "wall_s": round(time.monotonic() - began, 1)}


def arrived(folder: Path, job: Job, running: subprocess.Popen[bytes]) -> bool:
    until = time.monotonic() + 90
    while len(list(folder.glob(f"{job.look}-*"))) < job.many:
        if running.poll() is not None or time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def end(running: subprocess.Popen[bytes]) -> None:
    """Every process of its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[3]) == running.pid:
                    os.kill(int(stat.parent.name), number)
            except (OSError, ValueError):  # it has just ended
                continue
        time.sleep(0.5)
    running.wait()


def asked(job: Job, folder: Path, *given: str) -> dict[str, Any]:
    """What `diagnose` answers, and whether that is right."""
    began, ready = time.monotonic(), folder / f"ready-{job.rank}"
    pid = ready.read_text() if ready.exists() else ""
    ended = subprocess.run([*CLI, "diagnose", *given, "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    took = time.monotonic() - began
    if not ended.stdout:
        return {"outcome": "undecided", "sentence": ended.stderr.strip().splitlines()[-1], "cause": None, "status": None, "took_s": round(took, 1)}
    told = json.loads(ended.stdout)
    lead = told["lead"] or {}
    return {"outcome": outcome(job, told, pid), "sentence": told["sentence"], "cause": lead.get("cause"), "status": lead.get("status"),
            "verdict": told["verdict"], "evidence": lead.get("evidence", [])[:3], "took_s": round(took, 1)}


# --- the judgement

def outcome(job: Job, told: dict[str, Any], pid: str = "") -> str:
    """right, undecided or wrong: of a job that works every alarm is wrong. ``pid``: of the rank at fault, which names it as well."""
    lead = told["lead"] or {}
    if not job.causes:
        return "wrong" if told["verdict"] in ("broken", "degraded") else "right"
    if lead.get("status") not in ("established", "likely"):
        return "undecided"
    blamed = accused(told["sentence"])
    if (lead.get("cause") not in job.causes and not (job.says and job.says in told["sentence"])) or (
            job.rank is not None and blamed and job.rank not in blamed):
        return "wrong"
    shown = [told["sentence"], *(part for e in lead["evidence"] for part in (e["text"], e["source"]))]
    return "right" if job.rank is None or any(job.rank in numbers(text) or f"pid {pid})" in text for text in shown) else "undecided"


def accused(sentence: str) -> set[int]:
    """The ranks of the sentence, but for those that wait for them."""
    first, *others = sentence.partition(": ")[2].split("; ")
    return numbers("; ".join([first.partition(": it ")[0], *(clause for clause in others if not re.match(r"(?:rank )?\d+(?: ranks)? waits? ", clause))]))


def numbers(text: str) -> set[int]:
    """Every rank in it: "rank 1", "ranks 1 and 2", "[rank1]"."""
    return {int(n) for found in re.findall(r"\brank[s:]{0,2} ?:? ?(\d+(?:(?:, | and )\d+)*)", text) for n in re.findall(r"\d+", found)}


def together(found: dict[str, Any]) -> str:
    """Of both doors: wrong if one is, right if one is."""
    outcomes = [found[door]["outcome"] for door in ("live", "log") if door in found]
    return next(word for word in ("wrong", "right", "undecided") if word in outcomes)


# --- outside

def in_a_room(name: str, kept: Path | None = None) -> dict[str, Any]:
    """The same in namespaces of its own, which end with it."""
    room = ROOM if may_have_rooms() else []
    with tempfile.TemporaryDirectory(prefix="job-") as folder:
        ended = subprocess.run([*room, sys.executable, __file__, "--inside", folder, name], capture_output=True, text=True, timeout=400)
        if kept:
            shutil.copytree(folder, kept / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.pt", "checkpoints"))
    assert ended.returncode == 0, (name, ended.stderr[-2000:])
    return json.loads(ended.stdout.splitlines()[-1])


def may_have_rooms() -> bool:
    return bool(shutil.which("unshare")) and subprocess.run([*ROOM, "true"], capture_output=True, check=False).returncode == 0


def shown(found: dict[str, Any]) -> str:
    lines = [f"{found['name']:24} {found['outcome']:9} {found['wall_s']:6.1f} s"]
    for door in ("live", "log"):
        if door in found:
            one = found[door]
            lines.append(f"    {door:4} {one['outcome']:9} {one['took_s']:5.1f} s  {one['cause']} {one['status']}  {one['sentence'][:230]}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(JOBS)}; none: all")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--jobs", type=int, default=2, help="rooms at once")
    parser.add_argument("--keep", type=Path, help="a folder for the logs")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(run(options.names[0], options.inside)))
        return 0
    every = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for found in pool.map(lambda name: in_a_room(name, options.keep), options.names or list(JOBS)):
            every.append(found)
            print(json.dumps(found) if options.json else shown(found), flush=True)
    for what, names in (("faults", FAULTS), ("jobs that work", WORKS)):
        those = [found["outcome"] for found in every if found["name"] in names]
        print(f"{what}: {', '.join(f'{those.count(word)} {word}' for word in ('right', 'undecided', 'wrong'))}", file=sys.stderr)
    return any(found["outcome"] == "wrong" for found in every)


if __name__ == "__main__":
    sys.exit(main())
