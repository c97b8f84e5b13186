"""Weight syncs, one world a method: what was moved, how fast, and whether every byte arrived."""
from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
import time
from typing import Any, Dict, List, Optional, Union

from nccl_runbook.facts import Gap
from nccl_runbook.facts.sync import METHODS, Shortage, SyncArm, SyncRuns, SyncTime
from nccl_runbook.facts.world import RankResult, World, WorldRequest
from nccl_runbook.launch.engine import Engine
from nccl_runbook.probes.worlds import LOGGED

_FOLDER = "nccl-runbook-sync-"
_STALE_S = 3600.0       # a folder of ours untouched for so long belongs to a run that was killed
_LEAST_S = 5.0          # below that no arm is started


def collect(engine: Engine, spec: Dict[str, Any], devices: List[Optional[int]], methods: str = "all", directory: str = "", repeats: int = 3,
            deadline_s: float = 100.0) -> SyncRuns:
    """Every method in turn, each in fresh ranks, until ``deadline_s`` is spent.

    ``spec``: the model's tensors as knowledge/models.py gives them; ``devices``: the trainer's, then one for each engine; ``directory``:
    where the disk method writes, the temporary folder if empty; nothing is left there. Raises ValueError for a method that does not exist.
    """
    ends = time.monotonic() + deadline_s
    parent = os.path.abspath(directory or tempfile.gettempdir())
    _sweep(parent)
    folder = os.path.join(parent, f"{_FOLDER}{os.getpid()}-{secrets.token_hex(4)}")
    worlds: Dict[str, Union[World, Gap]] = {}
    try:
        for method in _chosen(methods, devices):
            worlds[method] = _world(engine, method, spec, devices, folder, repeats, ends - time.monotonic())
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # the ranks remove it themselves unless they were killed
    local = len(engine.prefix) == 1  # behind docker exec or srun the folder is another one
    return _runs(spec, devices, parent, _file_system(parent) if local else "", repeats, worlds)


def _chosen(methods: str, devices: List[Optional[int]]) -> List[str]:
    """Methods by name; "all" leaves NCCL out where there is no GPU, as it cannot start there."""
    if methods == "all":
        return [m for m in METHODS if devices[0] is not None or not m.startswith("nccl")]
    names = [m.strip() for m in methods.split(",")]
    unknown = [m for m in names if m not in METHODS]
    if unknown:
        raise ValueError(f"unknown method {unknown[0]!r}; all, or some of {', '.join(METHODS)}")
    return names


def _world(engine: Engine, method: str, spec: Dict[str, Any], devices: List[Optional[int]], folder: str, repeats: int,
           left_s: float) -> Union[World, Gap]:
    if left_s < _LEAST_S:
        return Gap("not-run", f"{max(0.0, left_s):.0f} s of the budget were left")
    if method.startswith("nccl") and devices[0] is None:
        return Gap("unsupported", "NCCL needs GPUs, and CUDA shows none")
    args = ["--method", method, "--spec", json.dumps(spec, separators=(",", ":")), "--repeats", str(repeats)]
    args += ["--directory", folder] if method == "disk" else []
    args += ["--cpu"] if devices[0] is None else []
    env = LOGGED if method.startswith("nccl") else {}
    return engine.run(WorldRequest(f"weight sync, {method}", "weight_sync.py", list(devices), args, dict(env), left_s))


def _sweep(parent: str) -> None:
    """Remove what a run that was killed in the middle of a sync left here: a gigabyte or more."""
    try:
        for entry in os.scandir(parent):
            if entry.name.startswith(_FOLDER) and entry.is_dir(follow_symlinks=False) and time.time() - entry.stat().st_mtime > _STALE_S:
                shutil.rmtree(entry.path, ignore_errors=True)
    except OSError:
        pass  # no such folder, or not ours to list: the rank that writes there says so


def _runs(spec: Dict[str, Any], devices: List[Optional[int]], parent: str, file_system: str, repeats: int,
          worlds: Dict[str, Union[World, Gap]]) -> SyncRuns:
    ran = [w for w in worlds.values() if isinstance(w, World)]
    hellos = [r.first("hello") or {} for r in ran[0].ranks] if ran else []
    moved = next((e for w in ran for r in w.ranks for e in r.named("sync")), {})
    return SyncRuns(
        model=spec["name"], layers=spec["layers"], layers_of=spec["layers_of"], tensors=moved.get("tensors", 0),
        size_bytes=moved.get("bytes", 0), repeats=repeats, directory=parent, file_system=file_system, devices=list(devices),
        gpu_names=[h.get("name", "") for h in hellos], uuids=[h.get("uuid", "") for h in hellos],
        arms={m: w if isinstance(w, Gap) else _arm(m, w) for m, w in worlds.items()})


def _file_system(directory: str) -> str:
    """Type below ``directory``, such as ext4, tmpfs, overlay or nfs4; "" where the kernel does not say."""
    path = os.path.realpath(directory)
    try:
        with open("/proc/self/mounts") as mounts:
            kinds = {line.split()[1]: line.split()[2] for line in mounts}
    except OSError:
        return ""
    while path not in kinds and path != "/":
        path = os.path.dirname(path)
    return kinds.get(path, "")


def _arm(method: str, world: World) -> SyncArm:
    failed = [r for r in world.ranks if r.code != 0 or r.outcome != "exited"]
    shortages = [Shortage(e["what"], e["needed"], e["free"]) for r in world.ranks for e in r.named("not-enough")]
    moved = [(r.rank, e) for r in world.ranks for e in r.named("sync")]
    return SyncArm(
        method=method, syncs=_times(world.ranks), compared=sum(e["compared"] for _, e in moved),
        wrong=[{"rank": rank, "repeat": e["repeat"], "count": e["wrong_count"], **w} for rank, e in moved for w in e["wrong"]],
        errors={str(r.rank): e["text"] for r in world.ranks for e in r.named("error")},
        shortage=shortages[0] if shortages else None, ended=[f"{r.outcome} {r.code}" for r in world.ranks],
        timed_out=world.hung, deadline_s=world.request.deadline_s, wall_s=world.wall_s,
        transports=world.transports if method.startswith("nccl") and not failed else {}, shell_line=world.shell_line,
        last_lines=[f"[rank{r.rank}] {line}" for r in failed for line in r.last_lines[-8:]])


def _times(ranks: List[RankResult]) -> List[SyncTime]:
    """One SyncTime for each repeat that every rank finished."""
    by_rank = [r.named("sync") for r in ranks]
    found = []
    for events in zip(*by_rank):
        trainer, engine = events[0], max(events[1:] or events, key=lambda e: e["seconds"])
        longest = max(e["seconds"] for e in events)
        found.append(SyncTime(trainer["repeat"], longest, trainer["phases"], engine["phases"], trainer["fsync_s"]))
    return found
