"""Weights to disk or /dev/shm and back, fast and whole. One file, torch (>= 2.2) and the standard library, Python >= 3.9: copy it.

    fast_disk.save(model.state_dict(), "/dev/shm/weights")                # the trainer
    fast_disk.load("/dev/shm/weights", into=engine.state_dict())          # an engine; or any loader of safetensors shards

``path`` is a symbolic link to a folder beside it: safetensors shards and model.safetensors.index.json. A save writes a new folder, then
swaps the link: ``path`` always leads to whole weights, the old ones until then, also if the sender is killed; what that leaves, the next
save removes. Shard names carry the version, so that no loader can mix two of them.

A file has one writer at a time in Linux, so there are several, each with a thread and a pinned buffer (15.2 GB from an H200, torch 2.11:
16 files 0.4 to 0.7 s, one file 2.4 s). Checksums are computed where the tensors lie, before and after the way through the CPU:
sum(word * odd weight) mod 2**64, in which the change of any single word shows.
"""
import concurrent.futures
import contextlib
import ctypes
import errno
import fcntl
import functools
import itertools
import json
import os
import pathlib
import re
import secrets
import sys
import threading
import time

import torch

CHUNK = 32 << 20          # bytes that a lane moves, and checks, at once (from an H200 and back, torch 2.11: 8 MiB 1.36, 16 1.00, 32 0.93 s)
LANES = 16                # files and threads, with two chunks each on the GPU and two pinned ones
RUN = 8                   # chunks that a thread reads before it takes others: reading one file by several threads is no matter
SPARE_BYTES = 4 << 20     # left free beside what is needed: indices, and the file system's own
HEADER_BYTES = 100 << 20  # the safetensors library reads no longer header (0.4 to 0.8)
INDEX, SUMS = "model.safetensors.index.json", f"words64 of {CHUNK} bytes"
_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
          "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL"}
_STORED = {getattr(torch, name): stored for name, stored in _NAMES.items() if hasattr(torch, name)}
_TYPES = {stored: dtype for dtype, stored in _STORED.items()}


class NotEnough(OSError):
    """Too little of ``what``: bytes ``needed`` and ``free``. Nothing was written, or it was removed again."""
    def __init__(self, what, needed, free):
        super().__init__(errno.ENOSPC, f"not enough {what} for the weights: {needed} bytes needed beside the old ones, {free} free")
        self.what, self.needed, self.free = what, needed, free


class Torn(ValueError):
    """A file differs from what the index, its own header or its checksums promise; the message names the file."""


def save(tensors, path, lanes=LANES, checksums=True, fsync=False, clean=True):
    """Let ``path`` lead to these ``tensors`` ({name: tensor}, all on one device); if this raises, nothing has changed. ``fsync``: they
    also survive a power failure. ``clean``: else the old weights stay until ``sweep(path)`` or the next save. Returns bytes, files,
    seconds and fsync_s (seconds). Raises NotEnough, OSError with the path, and ValueError for what cannot be stored."""
    began, device, (parent, path) = time.perf_counter(), _device_of(tensors), _place(path)
    if os.path.lexists(path) and not os.path.islink(path):
        raise FileExistsError(errno.EEXIST, "the weights' path is to be a symbolic link; move away what is there", path)
    sweep(path)
    shards = [_Shard(names, tensors) for names in _balanced(tensors, lanes)]
    needed = sum(len(s.header) + s.size for s in shards)
    free, limit = room(parent)
    if free < needed + SPARE_BYTES:
        raise NotEnough(f"{limit} in {parent}", needed, free)
    folder, lock = _new_folder(path)
    try:
        for number, shard in enumerate(shards, 1):
            shard.name = f"model-{folder[-16:]}-{number:05d}-of-{len(shards):05d}.safetensors"
        sums = _in_lanes(device, lambda lane, shard: _write(lane, folder, shard, checksums), shards)
        metadata = {"total_size": sum(s.size for s in shards), SUMS: {s.name: of_shard for s, of_shard in zip(shards, sums) if of_shard}}
        pathlib.Path(folder, INDEX).write_text(json.dumps(
            {"metadata": metadata, "weight_map": {name: s.name for s in shards for name in s.names}}), encoding="utf-8")
        written = time.perf_counter()
        _in_threads(_fsync, [*(os.path.join(folder, name) for name in os.listdir(folder)), folder] if fsync else [])
        fsync_s = time.perf_counter() - written
        os.symlink(os.path.basename(folder), os.path.join(folder, "link"))  # in there the lock guards it from other savers
        os.replace(os.path.join(folder, "link"), path)
        _in_threads(_fsync, [parent] if fsync else [])
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NotEnough(f"space in {parent}", needed, room(parent)[0]) from error
        raise
    finally:
        _let_go(lock)
        if clean or os.path.realpath(path) != folder:  # the old weights, or what has just failed
            sweep(path)
    return {"bytes": sum(s.size for s in shards), "files": len(shards), "seconds": time.perf_counter() - began, "fsync_s": fsync_s}


def load(path, into=None, device="cpu", rows=None, verify=True):
    """The weights at ``path``, every byte read and checked: into the tensors of ``into`` ({name: tensor}), or new ones on ``device``.
    ``rows``: {name: (first, last)} if a tensor of ``into`` holds only these; names that ``into`` lacks are read and dropped. Raises
    FileNotFoundError without weights, Torn if a byte differs from what was saved (by another writer or CHUNK: only index, header, size),
    KeyError for a name that was not saved."""
    held = None
    while held is None and os.path.isdir(path):  # again where a save has just replaced it
        held = _hold(folder := os.path.realpath(path), fcntl.LOCK_SH)
    if held is None:
        raise FileNotFoundError(errno.ENOENT, "no weights here", path)
    try:
        index = _read_index(folder)
        shards = [_Stored(folder, name, index) for name in sorted(set(index["weight_map"].values()))]
        if into is None:
            into = {n: torch.empty(e["shape"], dtype=_TYPES[e["dtype"]], device=device) for s in shards for n, e in s.entries.items()}
        for missing in set(into) - set(index["weight_map"]):
            raise KeyError(f"not among the weights in {path}: {missing}")
        tasks = [(s, at, chunks[at:at + RUN]) for s in shards for chunks in [_chunks(s.segments(into, rows or {}))]
                 for at in range(0, len(chunks), RUN)]
        _in_lanes(_device_of(into), lambda lane, task: _read(lane, task, verify), tasks)
    finally:
        _let_go(held)
    return into


def room(folder, cgroup="/sys/fs/cgroup"):
    """Bytes that can be written below ``folder``, and what limits them: space, or memory in /dev/shm, where unused page cache is free."""
    disk = os.statvfs(folder)
    limits = [(disk.f_bavail * disk.f_frsize, "space")]
    if os.path.isdir("/dev/shm") and os.stat(folder).st_dev == os.stat("/dev/shm").st_dev:
        limits.append((free_memory(), "memory"))
        with contextlib.suppress(OSError):
            most, used, stat = (pathlib.Path(cgroup, f"memory.{name}").read_text() for name in ("max", "current", "stat"))
            inactive = sum(int(n) for n in re.findall("^inactive_file (.*)", stat, re.M))
            limits += [(int(limit) + inactive - int(used), "memory of this container") for limit in most.split() if limit != "max"]
    return min(limits)


def free_memory():
    """Bytes of memory available to processes; a number that is always enough if the kernel does not report it."""
    with contextlib.suppress(OSError), open("/proc/meminfo") as lines:
        return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")), sys.maxsize)
    return sys.maxsize


def sweep(path):
    """Remove every folder of ``path`` that is neither its target nor held by a living sender or reader."""
    parent, path = _place(path)
    ours = re.escape(f".{os.path.basename(path)}.") + r"[0-9a-f]{16}"
    for whole in [os.path.join(parent, n) for n in os.listdir(parent) if re.fullmatch(ours, n)]:
        with contextlib.suppress(FileNotFoundError):  # another sweep was faster; in /dev/shm any user may create such names
            held = _hold(whole, fcntl.LOCK_EX) if os.lstat(whole).st_uid == os.geteuid() else None
            if held is not None:
                if os.path.realpath(path) != whole:  # now that no saver can swap it in
                    _in_threads(functools.partial(os.remove, dir_fd=held), os.listdir(held))  # its name may come to lead elsewhere
                    os.rmdir(whole)
                _let_go(held)


class _Shard:
    """Tensors that go into one file, their header, and their bytes in order."""

    def __init__(self, names, tensors):
        self.names, self.views, self.size, entries = names, [_bytes_of(tensors[n]) for n in names], 0, {"__metadata__": {"format": "pt"}}
        for name, view in zip(names, self.views):
            tensor, ends = tensors[name], self.size + view.numel()
            if tensor.dtype not in _STORED or name in entries:
                raise ValueError(f"{name}: safetensors has no type for {tensor.dtype}, or keeps this name for itself")
            entries[name] = {"dtype": _STORED[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [self.size, ends]}
            self.size = ends
        text = json.dumps(entries, separators=(",", ":")).encode()
        self.header = (len(text) + -len(text) % 8).to_bytes(8, "little") + text + b" " * (-len(text) % 8)


class _Stored:
    """One file as its header describes it. Torn unless its size, every offset and the index agree."""

    def __init__(self, folder, name, index):
        self.path, self.name = os.path.join(folder, os.path.basename(name)), name
        self.sums = index["metadata"].get(SUMS, {}).get(name)
        with open(self.path, "rb") as file:
            size, self.start = os.fstat(file.fileno()).st_size, 8 + int.from_bytes(file.read(8), "little")
            if self.start > min(HEADER_BYTES, size):
                raise Torn(f"torn file: {name} has {size} bytes and a header of {self.start}")
            entries = _json(file.read(self.start - 8), name)
        entries.pop("__metadata__", None)
        try:
            self.entries = dict(sorted(entries.items(), key=lambda item: item[1]["data_offsets"]))
            spans = [tuple(e["data_offsets"]) for e in self.entries.values()]
            sizes = [torch.Size(e["shape"]).numel() * _TYPES[e["dtype"]].itemsize for e in self.entries.values()]
        except (KeyError, TypeError, IndexError, RuntimeError) as error:
            raise Torn(f"torn file: {name} has a header that cannot be read ({error})") from error
        ends = [0, *itertools.accumulate(sizes)]
        if size != self.start + ends[-1]:
            raise Torn(f"torn file: {name} has {size} of {self.start + ends[-1]} bytes")
        if spans != list(zip(ends, ends[1:])) or {n for n, file in index["weight_map"].items() if file == name} != set(self.entries):
            raise Torn(f"torn file: the header of {name} has holes, or names other tensors than the index")

    def segments(self, into, rows):
        """(destination or None, bytes) in the order of the file."""
        for name, entry in self.entries.items():
            size = entry["data_offsets"][1] - entry["data_offsets"][0]
            if name not in into:
                yield None, size
                continue
            count = entry["shape"][0] if entry["shape"] else 1
            first, last = rows.get(name, (0, count))
            shape, tensor = [last - first, *entry["shape"][1:]] if name in rows else entry["shape"], into[name]
            fits = 0 <= first <= last <= count and list(tensor.shape) == shape and tensor.is_contiguous()
            if not fits or tensor.dtype != _TYPES.get(entry["dtype"]):
                stored = f"rows {first} to {last} of {entry['dtype']} {entry['shape']}"
                raise ValueError(f"{name}: {stored} do not fit into {tensor.dtype} {list(tensor.shape)}")
            row = size // max(1, count)
            yield from ((None, row * first), (_bytes_of(tensor), row * (last - first)), (None, row * (count - last)))


def _bytes_of(tensor):
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _device_of(tensors):
    devices = {t.device for t in tensors.values()}
    for name, t in tensors.items():  # to_local: a DTensor, which holds a part (torch 2.5 to 2.13)
        if t.device.type not in ("cpu", "cuda") or t.layout != torch.strided or hasattr(t, "to_local"):
            raise ValueError(f"{name}: a whole, dense tensor in memory is needed, not a {type(t).__name__} ({t.layout}, {t.device})")
    if len(devices) != 1:
        raise ValueError("all tensors have to be on one device, not on " + (" and ".join(sorted(map(str, devices))) or "none"))
    return devices.pop()


def _balanced(tensors, lanes):
    """Names in at most ``lanes`` lists of about the same number of bytes: the largest first, each to the list with the fewest."""
    size = {name: t.numel() * t.element_size() for name, t in tensors.items()}
    lists = [[] for _ in range(max(1, min(lanes, len(tensors))))]
    filled = [0] * len(lists)
    for name in sorted(size, key=size.get, reverse=True):
        fewest = filled.index(min(filled))
        lists[fewest].append(name)
        filled[fewest] += size[name] + 1
    return lists


def _read_index(folder):
    with open(os.path.join(folder, INDEX), "rb") as file:
        index = _json(file.read(HEADER_BYTES), INDEX)
    files, metadata = index.get("weight_map"), index.get("metadata")
    if not (isinstance(files, dict) and isinstance(metadata, dict) and isinstance(metadata.get(SUMS, {}), dict)
            and all(isinstance(file, str) for file in files.values())):
        raise Torn(f"torn file: {INDEX} has no weight_map or no metadata")
    return index


def _json(text, name):
    with contextlib.suppress(ValueError, RecursionError, TypeError):  # TypeError: no object
        return {**json.loads(text)}
    raise Torn(f"torn file: {name} holds no JSON object")


class _Lane:
    """One thread's two buffers beside the tensors, two pinned ones, and its stream. On the CPU there are only two in all."""

    def __init__(self, device):
        self.gpu, self.stream = device.type == "cuda", torch.cuda.Stream(device) if device.type == "cuda" else None
        with torch.cuda.stream(self.stream):
            self.stage = [torch.empty(CHUNK, dtype=torch.uint8, device=device) for _ in range(2)]
            self.host = [torch.empty(CHUNK, dtype=torch.uint8, pin_memory=True) for _ in range(2)] if self.gpu else self.stage
        self.memory = [memoryview((ctypes.c_char * CHUNK).from_address(h.data_ptr())).cast("B") for h in self.host]

    def mark(self):
        """Something to wait for: what was put into the stream until now."""
        return self.stream.record_event() if self.gpu else None

    def checksum(self, stage, size):
        """Of the first ``size`` bytes, as a tensor that is not waited for."""
        n = -(-size // 8)
        stage[size:n * 8].zero_()
        words, weights = stage[:n * 8].view(torch.int64), _weights(stage.device)[:n]
        return (words * weights).sum() if self.gpu else torch.dot(words, weights)  # no dot of integers on GPUs (torch 2.11)


@functools.lru_cache(maxsize=None)
def _weights(device):
    """Odd numbers without a pattern, one for each word of a chunk; they make the swap of two words show."""
    x = torch.arange(CHUNK // 8, dtype=torch.int64) * -7046029254386353131
    return ((((x ^ (x >> 29)) * -4658895280553007687) >> 8) | 1).to(device)


def _in_lanes(device, work, items):
    """``work(lane, item)`` for every item, in threads of a lane each; what a failure finds not begun is left undone."""
    own = threading.local()
    _weights(device)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()  # so that other streams see what was computed

    def in_lane(item):
        own.lane = getattr(own, "lane", None) or _Lane(device)
        with torch.no_grad(), torch.cuda.stream(own.lane.stream):
            return work(own.lane, item)
    return _in_threads(in_lane, items)


def _in_threads(work, items):
    with concurrent.futures.ThreadPoolExecutor(max(1, min(LANES, len(items), 2 * (os.cpu_count() or LANES)))) as pool:
        return list(pool.map(work, items))


def _chunks(segments):
    """Lists of (view or None, bytes) of CHUNK bytes together; the last one shorter."""
    chunks, left = [], 0
    for view, size in segments:
        at = 0
        while at < size:
            if not left:
                chunks.append([])
                left = CHUNK
            n = min(size - at, left)
            chunks[-1].append((None if view is None else view[at:at + n], n))
            at, left = at + n, left - n
    return chunks


def _write(lane, folder, shard, checksums):
    """One file, and the checksums of its chunks. A chunk is written while the next one comes from the GPU."""
    sums, ready = [], (memoryview(shard.header), None)
    with open(os.path.join(folder, shard.name), "xb", buffering=0) as file:
        for number, chunk in enumerate(_chunks((view, view.numel()) for view in shard.views)):
            size, stage, host = sum(n for _, n in chunk), lane.stage[number % 2], lane.host[number % 2]
            torch.cat([view for view, _ in chunk], out=stage[:size])
            if lane.gpu:
                host[:size].copy_(stage[:size], non_blocking=True)
            if checksums:
                sums.append(lane.checksum(stage, size))
            _all(file.write, shard.name, *ready)
            ready = lane.memory[number % 2][:size], lane.mark()
        _all(file.write, shard.name, *ready)
    return torch.stack(sums).tolist() if sums else []


def _read(lane, task, verify):
    """Read some chunks of one file into its tensors; Torn if a checksum differs. A chunk is read while the last one goes to the GPU."""
    (stored, start, chunks), sums, busy = task, [], [None, None]
    with open(stored.path, "rb", buffering=0) as file:
        file.seek(stored.start + start * CHUNK)
        for number, chunk in enumerate(chunks):
            size, stage, host = sum(n for _, n in chunk), lane.stage[number % 2], lane.host[number % 2]
            _all(file.readinto, stored.name, lane.memory[number % 2][:size], busy[number % 2])
            if lane.gpu:
                stage[:size].copy_(host[:size], non_blocking=True)
            busy[number % 2] = lane.mark()
            if verify and stored.sums:
                sums.append(lane.checksum(stage, size))
            for view, part in ((v, p) for (v, _), p in zip(chunk, stage[:size].split([n for _, n in chunk])) if v is not None):
                view.copy_(part, non_blocking=True)
    if lane.gpu:
        lane.stream.synchronize()
    wrong = [i for i, total in enumerate(torch.stack(sums).tolist() if sums else [], start) if [total] != stored.sums[i:i + 1]]
    if wrong:
        raise Torn(f"torn file: {stored.name} differs from what was saved, in the {CHUNK >> 20} MiB from byte {wrong[0] * CHUNK} on")


def _all(move, name, memory, after):
    """Write, or read, all of it, once ``after`` has come: one call may move less."""
    if after:
        after.synchronize()
    while memory:
        if not (n := move(memory)):
            raise Torn(f"torn file: {name} ends early")
        memory = memory[n:]


def _place(path):
    """The folder that ``path`` is in, free of links, and ``path`` in there."""
    parent = os.path.realpath(os.path.dirname(os.path.abspath(path)))
    return parent, os.path.join(parent, os.path.basename(os.path.abspath(path)))


def _new_folder(path):
    """A folder beside ``path`` and a descriptor that holds its lock, which ends with this process however it ends."""
    held = None
    while held is None:  # again if another save took it for a left-over before it was locked
        os.mkdir(folder := os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{secrets.token_hex(8)}"))
        held = _hold(folder, fcntl.LOCK_EX)
    return folder, held


def _hold(folder, kind):
    """A descriptor that locks the folder; None where somebody else does, or has removed it, or it is no folder."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(held, kind | fcntl.LOCK_NB)
            if os.path.isdir(folder):
                return held
        os.close(held)
    return None


def _let_go(held):
    fcntl.flock(held, fcntl.LOCK_UN)  # a child that was forked meanwhile has the descriptor, too
    os.close(held)


def _fsync(path):
    os.fsync(opened := os.open(path, os.O_RDONLY))
    os.close(opened)
