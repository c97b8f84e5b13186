"""Weight syncs, one world a method: what was moved, how fast, and whether every byte arrived."""

import contextlib
import json
import os
import re
import secrets
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, ContextManager, Dict, List, Optional, Sequence, Union

from nccl_runbook.core.facts import Gap, Unusable, counted, fields_in, grouped
from nccl_runbook.core.facts_world import RankResult, World, WorldRequest
from nccl_runbook.launch.engine import LOGGED, Engine
from nccl_runbook.launch.stop import own_folder, sweep
from nccl_runbook.sync.facts import Shortage, SyncArm, SyncRuns, SyncTime, SyncVariant
from nccl_runbook.sync.methods import METHODS
from nccl_runbook.sync.reshard.facts import control, resharded

_FOLDER = "nccl-runbook-sync-"
_BUCKET_MIB = "512"
_LEAST_S = 5.0  # below that no arm is started
_KEPT_S = 12.0  # of the budget for each further method: a world and a first sync
_ONE_GPU_S = 20.0
_SHM = "/dev/shm"
_ON_GPUS = ("nccl", "ipc")


def collect(
    engine: Engine,
    spec: Dict[str, Any],
    devices: List[Optional[int]],
    methods: str = "usual",
    directory: str = "",
    repeats: int = 3,
    deadline_s: float = 100.0,
    busy: str = "",
    tp: int = 1,
    say: Callable[[str], None] = lambda _: None,
) -> SyncRuns:
    """Every method in turn, each in fresh ranks, until ``deadline_s`` seconds are spent or a signal arrives;
    ``say`` reports progress. ``spec``: tensors of the model, from sync/models.py; ``devices``: the
    trainer's, then one for each engine rank; ``directory``: where disk methods write (default: the temporary
    folder); nothing remains there or in /dev/shm. ``methods``: usual, all, or names; nccl-flat@64+512 uses
    buckets of 64 MiB, then 512; nccl-reshard@2 has two trainer ranks and adds its control. ``busy``: edges
    of matrices that engines multiply in further syncs; ``tp``: ranks of one engine. ValueError for an
    unknown method or a number out of range."""
    ends, chosen = time.monotonic() + deadline_s, methods_of(methods, devices)
    options = [
        "--busy",
        _numbers("receivers_busy", busy or "0", 0),
        "--tp",
        str(tp),
        "--repeats",
        str(repeats),
    ]
    if tp < 1 or (len(devices) - 1) % tp:
        raise Unusable(
            f"tensor_parallel: the number of engine ranks, {len(devices) - 1}, is not a multiple of {tp}"
        )
    local = len(engine.prefix) == 1  # behind docker exec or srun the folder is another one
    parent = os.path.abspath(directory or tempfile.gettempdir())
    sweep([parent, _SHM] if local else [], [_FOLDER])
    if (
        local
        and any("disk" in m and "shm" not in m for m in chosen)
        and not os.access(os.path.join(parent, ""), os.W_OK | os.X_OK)
    ):
        raise Unusable(f"directory: there is no folder {parent} in which files can be written")
    worlds: Dict[str, Union[World, Gap]] = {}
    arms: Dict[str, Union[SyncArm, Gap]] = {}
    say(
        f"weight sync of {spec['name']}, {counted(len(chosen), 'method')} in {deadline_s:.0f} s: "
        f"running {chosen[0]}"
    )
    for method, following in zip(chosen, [*chosen[1:], ""]):
        left_s, later = ends - time.monotonic(), len(chosen) - len(worlds) - 1
        share_s = max(left_s / (later + 1), left_s - later * _KEPT_S)
        with _folder(method, _SHM if "shm" in method else parent, local) as folder:
            worlds[method] = world = _world(engine, method, spec, devices, folder, options, share_s)
        arms[method] = world if isinstance(world, Gap) else _arm(method, world, engine.stopped())
        then = f"; running {following}" if following and not engine.stopped() else ""
        say(
            f"[{len(arms)}/{len(chosen)}] {f'{method}: {world}' if isinstance(world, Gap) else arms[method]}"
            f"{then}"
        )
    ran = [w for w in worlds.values() if isinstance(w, World)]
    hellos = [r.first("hello") or {} for r in ran[0].ranks] if ran else []
    moved = next((e for w in ran for r in w.ranks for e in r.named("sync")), {})
    return SyncRuns(
        model=spec["name"],
        layers=spec["layers"],
        layers_of=spec["layers_of"],
        tensors=moved.get("tensors", 0),
        size_bytes=moved.get("bytes", 0),
        repeats=repeats,
        directory=parent,
        file_system=_file_system(parent) if local else "",
        devices=list(devices),
        gpu_names=[h.get("name", "") for h in hellos],
        uuids=[h.get("uuid", "") for h in hellos],
        arms=arms,
        tensor_parallel=tp,
    )


def _folder(method: str, place: str, local: bool) -> ContextManager[str]:
    """The folder in which a disk method writes; behind a prefix the ranks make it and remove it."""
    if local and "disk" in method and os.access(os.path.join(place, ""), os.W_OK | os.X_OK):
        return own_folder(_FOLDER, place)
    return contextlib.nullcontext(os.path.join(place, f"{_FOLDER}{os.getpid()}-{secrets.token_hex(4)}"))


def _numbers(name: str, text: str, least: int) -> str:
    """The text, if it is whole numbers of at least ``least`` with commas."""
    parts = [p.strip() for p in text.split(",")]
    if not all(p.isdecimal() and least <= int(p) < 1 << 20 for p in parts):
        raise Unusable(
            f"{name}: {text!r} is not of the form 512 or 64,256, each from {least} to {(1 << 20) - 1}"
        )
    return ",".join(parts)


def methods_of(methods: str, devices: Sequence[Optional[int]] = (None,)) -> List[str]:
    """The methods to run; "usual" and "all" skip those that cannot start on these devices. ValueError for an
    unknown one."""
    shared = len(set(devices)) < len(devices)
    if methods in ("all", "usual"):
        few = ("nccl-flat", "ipc-direct" if shared else "nccl-per-tensor", "gloo-flat", "disk", "fast-disk")
        return [
            m
            for m in (METHODS if methods == "all" else few)
            if (devices[0] is not None or not m.startswith(_ON_GPUS))
            and (shared or m != "nccl-one-gpu")
            and not (resharded(m) and m.startswith("gloo") and devices[0] is not None)
        ]
    names = [m.strip() for m in methods.split(",")]
    for name in names:
        if name.partition("@")[0] not in METHODS or (resharded(name) and "+" in name):
            raise Unusable(
                f"unknown method {name!r}. Write usual (the default selection of methods), all, or "
                f"some of {', '.join(METHODS)}"
            )
        _buckets(name)
    return list(dict.fromkeys(each for name in names for each in (name, control(name))))


def _buckets(method: str) -> str:
    return _numbers(method, method.partition("@")[2].replace("+", ",") or _BUCKET_MIB, 1)


def _world(
    engine: Engine,
    method: str,
    spec: Dict[str, Any],
    devices: List[Optional[int]],
    folder: str,
    options: List[str],
    left_s: float,
) -> Union[World, Gap]:
    if engine.stopped():
        return Gap("not-run", engine.stopped())
    if left_s < _LEAST_S:
        return Gap(
            "not-run",
            f"only {max(0.0, left_s):.0f} s of the time budget were left. To run only this method, use "
            f"--methods {method}, or methods={method}",
        )
    if method.startswith(_ON_GPUS) and devices[0] is None:
        return Gap("unsupported", "this method needs GPUs, but CUDA shows none")
    nccl = engine.judged()["nccl"] if method == "nccl-one-gpu" else ""
    # NCCL_MULTI_RANK_GPU_ENABLE is read from 2.30 on (NCCL 2.30.7, read);
    # experimental, so its time is bounded
    if method == "nccl-one-gpu" and tuple(map(int, re.findall(r"\d+", nccl)[:2])) < (2, 30):
        return Gap(
            "unsupported",
            f"NCCL {nccl or 'of unknown version'} does not support two ranks on one GPU, but NCCL 2.30 does",
        )
    name, _, trainers = method.partition("@")
    args = [
        "--method",
        "nccl-flat" if name == "nccl-one-gpu" else name,
        "--spec",
        json.dumps(spec, separators=(",", ":")),
        *(["--trainers", trainers or "0"] if resharded(method) else ["--buckets", _buckets(method)]),
        *options,
        *(["--directory", folder] if "disk" in method else []),
        *(["--cpu"] if devices[0] is None else []),
    ]
    env = {
        **(LOGGED if method.startswith("nccl") else {}),
        **({"NCCL_MULTI_RANK_GPU_ENABLE": "1"} if method == "nccl-one-gpu" else {}),
    }
    return engine.run(
        WorldRequest(
            f"weight sync, {method}",
            "weight_sync.py",
            list(devices),
            args,
            env,
            min(left_s, _ONE_GPU_S) if method == "nccl-one-gpu" else left_s,
            shown=spec.get("line", ""),
        )
    )


def _file_system(directory: str) -> str:
    """Type below ``directory``, such as ext4, tmpfs, overlay or nfs4; "" where the kernel does not say."""
    here = Path(directory).resolve()
    try:
        kinds = {
            line.split()[1]: line.split()[2] for line in Path("/proc/self/mounts").read_text().splitlines()
        }
    except OSError:
        return ""
    return next((kinds[str(path)] for path in (here, *here.parents) if str(path) in kinds), "")


def _arm(method: str, world: World, stopped: str) -> SyncArm:
    failed = [r for r in world.ranks if r.code != 0 or r.outcome != "exited"]
    moved = [(r.rank, e) for r in world.ranks for e in [*r.named("sync"), *r.named("variant")]]
    return SyncArm(
        method=method,
        syncs=_times(world.ranks),
        compared=sum(e["compared"] for _, e in moved),
        wrong=[
            {"rank": rank, "repeat": e["repeat"], "count": e["wrong_count"], **w}
            for rank, e in moved
            for w in e["wrong"]
        ],
        errors={str(r.rank): e["text"] for r in world.ranks for e in r.named("error")},
        shortage=next(
            (Shortage(e["what"], e["needed"], e["free"]) for r in world.ranks for e in r.named("not-enough")),
            None,
        ),
        ended=[f"{r.outcome} {r.code}" for r in world.ranks],
        timed_out=world.hung,
        deadline_s=world.request.deadline_s,
        wall_s=world.wall_s,
        transports=world.transports if method.startswith("nccl") and not failed else {},
        shell_line=world.shell_line,
        last_lines=[f"[rank{r.rank}] {line}" for r in failed for line in r.last_lines[-8:]],
        variants=_variants(world.ranks),
        by=next((e["by"] for _, e in moved if e["by"]), ""),
        stopped=stopped if failed else "",
    )


def _variants(ranks: List[RankResult]) -> List[SyncVariant]:
    seconds = grouped(
        ((events[0]["bucket_mib"], events[0]["busy"], events[0]["bytes"]), max(e["seconds"] for e in events))
        for events in zip(*(r.named("variant") for r in ranks))
    )
    return [SyncVariant(*variant, min(each)) for variant, each in seconds.items()]


def _times(ranks: List[RankResult]) -> List[SyncTime]:
    """One SyncTime for each repeat that every rank finished; the trainer reports first."""
    return [
        SyncTime(
            **{
                **fields_in(SyncTime, events[0]),
                "seconds": max(e["seconds"] for e in events),
                "trainer": events[0]["phases"],
                "engine": max(events[1:] or events, key=lambda e: e["seconds"])["phases"],
            }
        )
        for events in zip(*(r.named("sync") for r in ranks))
    ]
