"""Guards to paste into a training job: one file, needs torch (>= 2.2) alone, Python >= 3.9. Copy it beside your script.

    import nccl_guards as guard
    guard.enable_flight_recorder("dumps/")       # before the process group
    guard.init_process_group_checked("nccl")
    guard.check_device_map()                     # once, before step 1
    agreed = guard.check_minibatches(minibatches=(len(samples), batch_size), wait=False)     # each step; while the ranks compute
    ...                                          # the step's own work
    agreed()                                     # before its first collective
    guard.check_agreement(tensor, "all_reduce")  # before a collective that you suspect

Every guard is called on all ranks, at the same place, and prints one line on standard error that begins with ``NCCL_GUARD `` and
goes on as one JSON object (at most 4,000 bytes, written at once):

    schema, guard   1, and the function's name
    ok          true, false, or null where it could not tell
    rank        global rank that printed it; world_size, host, pid; local_rank or null
    time        seconds since 1970 on this host; offset_s: this clock minus rank 0's as sync_clock() found it, or null
    wall_s      what the guard itself took
    says        one sentence; of a failure with its numbers: "rank 7: minibatches = 5 // 8 = 0"
    cause       an id of the runbook's causes, or null
    bad_ranks   ranks that are at fault, or []
    data        what was seen, by guard:
        check_device_map    [{rank, host, boot_id, local_rank, cuda_index, uuid, pci_bus_id, visible}], at most 8
        check_minibatches   {name: {"rank": value, ...}}, of names with zero or uneven counts
        check_agreement     {"rank": "all_reduce float32 [1024]", ...} of ranks that differ, and the most common one as "most"
        pause_trace         {phase: seconds, ...} in order
        sync_clock          {"offset_s": seconds, "uncertainty_s": seconds}
        weights_digest      {"tensors": n, "bytes": n, "digest": hex, "differs": [names]}
        enable_flight_recorder      {variable: value, ...}
        init_process_group_checked  {backend, device, device_id, timeout_s: {group: seconds}, init_s, first_collective_s}

Where all is well rank 0 prints for all, and of a check that is made again and again only the first; where not, each rank at fault
prints too, and every rank raises GuardError. The checks speak over a Gloo group of their own with a limit of 30 s, so that they end where
the job itself would hang: then the ranks that did not come are named.
"""
import collections
import contextlib
import datetime
import functools
import hashlib
import json
import os
import socket
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple, Union

import torch
import torch.distributed as dist

PREFIX = "NCCL_GUARD "
LIMIT_S = 30.0
REPORT_S = 1.0  # the others' limits end at about the same time
MOST_BYTES = 4000  # with the prefix below PIPE_BUF (4,096), so that lines of several ranks do not mix
Failed = Tuple[str, Any, Optional[str], Iterable[int]]  # sentence, data, cause, ranks at fault
_state: Dict[str, Any] = {"group": None, "of": None, "world": 0, "calls": 0, "offset_s": None, "said": set()}


class GuardError(RuntimeError):
    """A guard failed; the message says what and on which rank."""


def _say(guard: str, ok: Optional[bool], says: str, began: float, data: Any, cause: Optional[str] = None,
         bad_ranks: Iterable[int] = (), prints: bool = True) -> None:
    """Print the line; GuardError if it is not ok."""
    if ok and not prints and (guard, False) in _state["said"]:
        return
    ready = dist.is_available() and dist.is_initialized()
    rank = dist.get_rank() if ready else _number("RANK")
    line = {"schema": 1, "guard": guard, "ok": ok, "rank": rank, "world_size": dist.get_world_size() if ready else _number("WORLD_SIZE"),
            "local_rank": _number("LOCAL_RANK"), "host": socket.gethostname(), "pid": os.getpid(), "time": round(time.time(), 6),
            "offset_s": _state["offset_s"], "wall_s": round(time.perf_counter() - began, 6), "says": says[:600], "cause": cause,
            "bad_ranks": sorted(bad_ranks)[:64], "data": data}
    _state["said"].add((guard, prints))
    if prints or rank in line["bad_ranks"] or rank == 0:
        text = PREFIX + json.dumps(line, separators=(",", ":"))
        if len(text) >= MOST_BYTES:
            text = PREFIX + json.dumps({**line, "data": {"left_out": "too long for one line"}}, separators=(",", ":"))
        os.write(2, text.encode() + b"\n")
    if ok is False:
        raise GuardError(f"{guard}: {says}")


def _number(name: str) -> Optional[int]:
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else None


def _side() -> Any:
    """A Gloo group over all ranks, made at the first use."""
    if _state["of"] is not dist.group.WORLD:
        _state["group"] = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=LIMIT_S))
        _state["of"], _state["world"] = dist.group.WORLD, dist.get_world_size()
    return _state["group"]


def _all(guard: str, began: float, act: Callable[[Any], Any]) -> Any:
    """Result of ``act(group)``; if not all ranks come within the limit, GuardError names those that are missing."""
    _state["calls"] += 1
    try:
        return act(_side())
    except RuntimeError as error:  # Gloo raises no narrower one
        missing = _missing(f"nccl_guards/{_state['calls']}/")
        why = f"rank {', '.join(map(str, missing[:16]))} did not come" if missing else "the ranks could not speak to each other"
        _say(guard, False, f"{why} within {LIMIT_S:g} s ({str(error).splitlines()[0][:120]})", began, {},
             "collective-on-some-ranks-only", missing)


def _missing(here: str) -> List[int]:
    """Ranks that do not report to the store after a failure; none where the store has gone with rank 0."""
    try:
        store = dist.distributed_c10d._get_default_store()
        store.add(f"{here}{dist.get_rank()}", 1)
        time.sleep(REPORT_S)
        return [r for r in range(dist.get_world_size()) if not store.add(f"{here}{r}", 0)]  # torch 2.2 has no check()
    except RuntimeError:
        return []


def _gather(group: Any, mine: Any) -> List[Any]:
    """Everybody's JSON value, as tensors of bytes: no pickle."""
    text = torch.tensor(list(json.dumps(mine).encode()), dtype=torch.uint8, device="cpu")
    size = torch.tensor([len(text)], device="cpu")
    sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, size, group=group)
    padded = torch.nn.functional.pad(text, (0, max(map(int, sizes)) - len(text)))
    texts = [torch.zeros_like(padded) for _ in sizes]
    dist.all_gather(texts, padded, group=group)
    return [json.loads(bytes(t[:int(s)].tolist())) for t, s in zip(texts, sizes)]


@functools.lru_cache(maxsize=256)
def _number_of(text: str, times: int) -> torch.Tensor:
    """``times`` copies of a number derived from ``text``."""
    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
    return torch.full((times,), number, dtype=torch.int64, device="cpu")  # whatever the job's default device is


def _compared(guard: str, began: float, text: str, bad: bool, mine: Callable[[], Any], fine: Tuple[str, Any],
              words: Callable[[List[Any]], Failed], wait: bool) -> Optional[Callable[[], None]]:
    """Whether all ranks have the same ``text``, and that is not ``bad`` in itself. ``mine``: what to tell the others where they differ;
    ``words``: everybody's as sentence, data, cause and ranks at fault; ``fine``: sentence and data where all is well. Then it is one
    all-to-all of eight bytes a rank, in the time of a barrier (an all_reduce took twice that), and nothing is made that was made before."""

    def begin(group: Any) -> Tuple[Any, torch.Tensor, torch.Tensor]:
        sent = _number_of(f"{guard} {text}", _state["world"])
        received = torch.empty_like(sent)
        return dist.all_to_all_single(received, sent, group=group, async_op=True), received, sent

    def compare(group: Any) -> Optional[List[Any]]:
        work.wait()
        return None if not bad and torch.equal(received, sent) else _gather(group, [guard, mine()])

    def finish() -> None:
        everybody = _all(guard, began, compare)
        if everybody is None:
            return _say(guard, True, fine[0], began, fine[1], prints=False)
        where = {str(r): name for r, (name, _) in enumerate(everybody)}
        apart = f"ranks are at different guards: {json.dumps(where)[:300]}", where, "collective-on-some-ranks-only", _odd_ones(where)
        says, data, cause, at_fault = words([value for _, value in everybody]) if set(where.values()) == {guard} else apart
        return _say(guard, False, says, began, data, cause, at_fault, prints=False)

    work, received, sent = _all(guard, began, begin)
    return finish() if wait else finish


def _odd_ones(by_rank: Dict[str, Any]) -> List[int]:
    """Ranks whose value is not the most common one; empty if two values are equally common."""
    counts = collections.Counter(map(str, by_rank.values())).most_common(2)
    if len(counts) > 1 and counts[0][1] == counts[1][1]:
        return []
    return [int(r) for r, value in by_rank.items() if str(value) != counts[0][0]]


def check_device_map() -> None:
    """Check before step 1 that each rank has its own GPU. Equal UUIDs mean a shared GPU; only equal bus ids an enumeration fault.
    GuardError on the ranks if not."""
    began = time.perf_counter()
    rows = [{"rank": rank, **row} for rank, row in enumerate(
        _all("check_device_map", began, lambda group: _gather(group, _device())))]
    ok, says, cause, bad = map_says(rows)
    _say("check_device_map", ok, says, began, rows if len(rows) <= 8 else [r for r in rows if r["rank"] in bad[:8]], cause, bad,
         prints=False)


def map_says(rows: List[Dict[str, Any]]) -> Tuple[Optional[bool], str, Optional[str], List[int]]:
    """(ok, sentence, cause, bad ranks) for the rows of a device map; ok is None if some rank has no GPU."""
    with_gpu = [r for r in rows if r["uuid"]]
    for cause, what, key in (("device-not-set-per-rank", "one GPU", "uuid"), ("bus-id-collision", "one PCI bus id", "pci_bus_id")):
        places = [(r["boot_id"], r[key]) for r in with_gpu if r[key]]
        bad = [r for r in with_gpu if places.count((r["boot_id"], r[key])) > 1]
        if bad:
            numbers = [r["rank"] for r in bad]
            return False, f"ranks {', '.join(map(str, numbers[:16]))} are on {what}: {bad[0][key]} ({bad[0]['host']})", cause, numbers
    summary = f"{len(with_gpu)} of {len(rows)} ranks have a GPU each" if with_gpu else "no rank has a GPU: nothing to map"
    return (True if len(with_gpu) == len(rows) else None), summary, None, []


def _device() -> Dict[str, Any]:
    row = {"host": socket.gethostname(), "boot_id": _boot_id(), "local_rank": _number("LOCAL_RANK"), "cuda_index": None, "uuid": "",
           "pci_bus_id": "", "visible": os.environ.get("CUDA_VISIBLE_DEVICES", "")[:80]}
    if torch.cuda.is_available():
        index = torch.cuda.current_device()
        properties = torch.cuda.get_device_properties(index)
        bus = "%04x:%02x:%02x" % tuple(getattr(properties, f"pci_{p}_id", 0) for p in ("domain", "bus", "device"))
        uuid = str(getattr(properties, "uuid", ""))  # torch >= 2.4; before that the bus id stands for it
        row.update(cuda_index=index, uuid=uuid or f"{_boot_id()} {bus}", pci_bus_id=bus if hasattr(properties, "pci_bus_id") else "")
    return row


def _boot_id() -> str:
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return socket.gethostname()


def check_minibatches(wait: bool = True, **counts: Union[int, Tuple[int, int]]) -> Optional[Callable[[], None]]:
    """The same number of each, and none of them zero, on every rank: a rank with none enters no collective, and the others wait.

    ``minibatches=(5, 8)`` means 5 // 8, and the message shows it; ``steps=12`` is taken as it is. ``wait=False`` returns at once, with a
    function to call before the step's first collective: the ranks compare while they compute (of a 50 ms step 0.3 % instead of 1.3 %; two
    H200, torch 2.11). No rank comes past either before all came with the same numbers, none zero; else each that came raises: at once, or
    LIMIT_S later where one never comes, so that a bad step has begun no collective.
    """
    began, (values, text) = time.perf_counter(), _counted(tuple(counts.items()))

    def mine() -> List[Any]:
        return [values, {n: f"{c[0]} // {c[1]} = {values[n]}" if isinstance(c, tuple) else str(c) for n, c in counts.items()}]

    def words(everybody: List[Any]) -> Failed:
        by_name = {name: {str(r): v[0].get(name) for r, v in enumerate(everybody)} for name in values}
        wrong = {name: {int(r) for r, v in by_rank.items() if v == 0} or set(_odd_ones(by_rank)) for name, by_rank in by_name.items()}
        uneven = {name: by_rank for name, by_rank in by_name.items() if wrong[name] or len(set(by_rank.values())) > 1}
        parts = [f"rank {r}: {name} = {everybody[r][1].get(name)}" for name, by_rank in uneven.items()
                 for r in sorted(wrong[name] or map(int, by_rank))[:6]]
        return ("; ".join(parts), {name: dict(list(by_rank.items())[:64]) for name, by_rank in uneven.items()},
                "uneven-minibatches", set().union(*wrong.values()))

    return _compared("check_minibatches", began, text, 0 in values.values(), mine, (f"all ranks have {text}", {}), words, wait)


@functools.lru_cache(maxsize=256)
def _counted(counts: Tuple[Tuple[str, Union[int, Tuple[int, int]]], ...]) -> Tuple[Dict[str, int], str]:
    """The numbers by name, and the same in words."""
    values = {name: c[0] // c[1] if isinstance(c, tuple) else int(c) for name, c in counts}
    return values, json.dumps(values)[1:-1]


def check_agreement(tensor: torch.Tensor, op: str, wait: bool = True) -> Optional[Callable[[], None]]:
    """Check that all ranks call the same operation with the same dtype and shape, else GuardError; ``wait`` as in check_minibatches. NCCL
    2.28.9 sums float16 with float32, or 1,048,576 elements with 1,052,672, without an error and with wrong values (measured on H200)."""
    began = time.perf_counter()
    mine = f"{op} {str(tensor.dtype).replace('torch.', '')} {list(tensor.shape)} on {tensor.device.type}"

    def words(everybody: List[Any]) -> Failed:
        by_rank = {str(r): text for r, text in enumerate(everybody)}
        most = collections.Counter(everybody).most_common(1)[0][0]
        data = {"most": most, **{r: t for r, t in by_rank.items() if t != most}}
        parts = "; ".join(f"rank {r}: {t}" for r, t in list(data.items())[1:7])
        return f"{parts}; most have {most}", data, "collective-mismatch", _odd_ones(by_rank)

    return _compared("check_agreement", began, mine, False, lambda: mine, (f"all ranks: {mine}", {}), words, wait)


@contextlib.contextmanager
def pause_trace(name: str = "weight sync") -> Iterator[Callable[[str], None]]:
    """Time the phases of a pause: call the function that this yields with the phase that begins (gather, control, wire, load, resume);
    time before the first call is pause, and other if no phase is ever named. No rank waits for another; each prints its own line with
    seconds. A GPU is synchronised at each phase."""
    began = last = time.perf_counter()
    spent, current = {}, "pause"  # seconds by phase

    def phase(following: str) -> None:
        nonlocal last, current
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        now = time.perf_counter()
        current = current if spent or following else "other"  # no phase was ever named: not all of the time was a pause
        spent[current] = round(spent.get(current, 0.0) + now - last, 6)
        last, current = now, following

    try:
        yield phase
    finally:
        phase("")
        longest = max(spent, key=lambda p: spent[p])
        _say("pause_trace", None, f"{name} took {last - began:.3f} s, most in {longest} ({spent[longest]:.3f} s)", began, spent)


def sync_clock(rounds: int = 8) -> float:
    """Seconds by which this host's clock is ahead of rank 0's, from the quickest of some round trips (Cristian, 1989); later lines use
    it."""
    began = time.perf_counter()
    _state["offset_s"], uncertainty = _all("sync_clock", began, lambda group: _offset(group, rounds))
    _say("sync_clock", True, f"clock {_state['offset_s']:+.6f} s from rank 0's, +- {uncertainty:.6f} s", began,
         {"offset_s": _state["offset_s"], "uncertainty_s": uncertainty})
    return _state["offset_s"]


def _offset(group: Any, rounds: int) -> Tuple[float, float]:
    best, rank, box = (0.0, 0.0), dist.get_rank(), torch.zeros(1, dtype=torch.float64, device="cpu")
    for other in range(1, dist.get_world_size()):
        trips = []
        for _ in range(rounds if rank in (0, other) else 0):
            if rank == other:
                sent = time.time()
                dist.send(box, 0, group=group)
                dist.recv(box, 0, group=group)
                back = time.time()
                trips.append(((back - sent) / 2, (sent + back) / 2 - float(box[0])))
            else:
                dist.recv(box, other, group=group)
                box[0] = time.time()
                dist.send(box, other, group=group)
        best = min(trips)[::-1] if trips else best
    return round(best[0], 6), round(best[1], 6)


def weights_digest(named_tensors: Iterable[Tuple[str, torch.Tensor]], compare: bool = True) -> str:
    """Hex digest of names, dtypes, shapes and every byte, computed where the tensors are. ``compare``: with all ranks, GuardError names
    the tensors that differ; without it no rank waits. For trainer against engine, which fuse and cut tensors: sync/arrived/digest.py."""
    began, each, size = time.perf_counter(), {}, 0
    for name, tensor in named_tensors:
        size += tensor.numel() * tensor.element_size()
        each[name] = f"{tensor.dtype} {tuple(tensor.shape)} {_sum(tensor.detach())}"
    digest = hashlib.sha256(json.dumps(each).encode()).hexdigest()[:16]
    data = {"tensors": len(each), "bytes": size, "digest": digest, "differs": []}
    fine = f"{len(each)} tensors, {size} bytes: {digest}"

    def words(everybody: List[Any]) -> Failed:
        names = dict.fromkeys(name for digests in everybody for name in digests)
        by_name = {name: {str(r): digests.get(name) for r, digests in enumerate(everybody)} for name in names}
        differs = {name: _odd_ones(by_rank) for name, by_rank in by_name.items() if len(set(by_rank.values())) > 1}
        return (f"{len(differs)} of {len(names)} tensors differ, the first is {next(iter(differs))}",
                {**data, "differs": list(differs)[:16]}, None, {r for ranks in differs.values() for r in ranks})

    if compare:
        _compared("weights_digest", began, digest, False, lambda: {n: hashlib.sha256(v.encode()).hexdigest()[:8] for n, v in each.items()},
                  (fine, data), words, True)
    else:
        _say("weights_digest", None, fine, began, data)
    return digest


def _sum(tensor: torch.Tensor, block: int = 1 << 22) -> int:
    """Every byte, weighted by its place, modulo 2**64."""
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    weights = torch.arange(1, min(block, flat.numel()) + 1, dtype=torch.int64, device=flat.device)
    return sum(number * 1000003 * int((part.to(torch.int64) * weights[:len(part)]).sum())
               for number, part in enumerate(flat.split(block), 1)) % (1 << 64)


def enable_flight_recorder(folder: str = "", entries: int = 20000) -> None:
    """Set the recorder's variables under the installed torch's names, before the process group: a number of events, not bytes; the dump's
    name ends in the rank. OSError if the folder cannot be made."""
    began, newer = time.perf_counter(), tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 9)
    size, file = (("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE") if newer else
                  ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"))
    chosen = {size: str(entries), "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    if folder:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        chosen[file] = os.path.join(os.path.abspath(folder), "nccl_trace_rank_")
    late = dist.is_initialized()
    os.environ.update({} if late else chosen)
    _say("enable_flight_recorder", not late, "the process group is there already: call it before" if late else
         f"torch {torch.__version__} records {entries} events", began, chosen, "env-conflict" if late else None, prints=False)


def init_process_group_checked(backend: str = "nccl", timeout_s: float = 600.0, device_id: Optional[bool] = None, **options: Any) -> None:
    """Call dist.init_process_group after the rank has its GPU, with one timeout, then a first collective. ``device_id``: whether the group
    is bound to the GPU at once; None asks NCCL_GUARD_DEVICE_ID (0 or 1, default 0), so that two runs differ in nothing else."""
    began, device = time.perf_counter(), torch.device("cpu")
    if "nccl" in backend:
        device = torch.device("cuda", (_number("LOCAL_RANK") or 0) % max(1, torch.cuda.device_count()))
        torch.cuda.set_device(device)
    bound = device.type == "cuda" and (os.environ.get("NCCL_GUARD_DEVICE_ID") == "1" if device_id is None else device_id)
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout_s), **({"device_id": device} if bound else {}), **options)
    ready = time.perf_counter()
    value = torch.ones(1, device=device)
    dist.all_reduce(value)
    right = int(value) == dist.get_world_size()
    data = {"backend": backend, "device": str(device), "device_id": bound, "timeout_s": group_timeouts(), "init_s": round(ready - began, 6),
            "first_collective_s": round(time.perf_counter() - ready, 6)}
    _say("init_process_group_checked", right,
         f"{dist.get_world_size()} ranks over {backend}, this one on {device}; the first all_reduce gave {float(value):g}",
         began, data, None if right else "collective-mismatch")


def group_timeouts() -> Dict[str, float]:
    """"group backend" -> timeout in seconds, of every existing group: a timeout given to one group does not hold for another."""
    backends = {f"{group.group_name} {device.type}": group._get_backend(device)
                for group in list(dist.distributed_c10d._world.pg_map) for device in group._device_types}
    limits = {name: getattr(getattr(backend, "options", None), "_timeout", None) for name, backend in backends.items()}
    return {name: limit.total_seconds() for name, limit in limits.items() if limit is not None}
