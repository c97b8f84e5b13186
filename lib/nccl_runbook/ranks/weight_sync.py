"""One method of moving a trainer's weights to engines, one rank of N: rank 0 is the trainer, the others are the engines.

One file, standard library and torch (>= 2.2, Python >= 3.9); it runs as it is under the runbook's engine and under torchrun:
    torchrun --standalone --nproc-per-node 2 weight_sync.py --method disk --spec '{"head": [...], ...}' --directory /tmp/sync
Every tensor holds bytes that differ by tensor, place and repeat, which the engines make again by themselves and compare: stale,
swapped, shifted and torn data all show. Exit codes: 0 all right, 1 an exception (its text is the finding), 5 not enough memory or
space, 6 wrong bytes arrived, 7 another rank stopped first.
"""
import argparse
import ctypes
import datetime
import errno
import json
import os
import shutil
import sys
import time

import torch
import torch.distributed as dist

METHODS = ("nccl-per-tensor", "nccl-flat", "gloo-per-tensor", "gloo-flat", "disk")
FAULTS = ("corrupt", "stale", "torn", "unchecked", "die")
NOT_ENOUGH, WRONG_BYTES, PEER_STOPPED = 5, 6, 7
CHUNK = 1 << 20           # elements of the pattern, and the step in which bytes are made and compared
SPARE_BYTES, SPARE_GPU_BYTES = 64 << 20, 1 << 30  # left free beside what is needed; CUDA contexts and NCCL's buffers on a GPU
SAFETENSORS_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


class NotEnough(RuntimeError):
    def __init__(self, what, needed, free):
        super().__init__(f"not enough {what}: {needed} bytes needed, {free} free")
        self.what, self.needed, self.free = what, needed, free


class PeerStopped(RuntimeError):
    """Another rank failed and said so; its own text is the one to read."""


def emit(event):
    """One JSON line to whoever started this rank, else to standard output."""
    os.write(int(os.environ.get("NCCL_RUNBOOK_EVENT_FD", "1")), (json.dumps(event) + "\n").encode())


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", required=True, choices=METHODS)
    parser.add_argument("--spec", required=True, help="JSON: head, layer and tail as [[name, shape], ...], layers, prefix with {i}, dtype")
    parser.add_argument("--repeats", type=int, default=3, help="syncs; the first is told apart")
    parser.add_argument("--bucket-mib", type=int, default=512, help="for the flat methods; at least the largest tensor")
    parser.add_argument("--directory", default="", help="for disk; made if it is not there, and then removed again")
    parser.add_argument("--devices", default="", help="cuda index of each local rank, comma-separated; default: the local rank")
    parser.add_argument("--cpu", action="store_true", help="keep the tensors on the CPU, also where there is a GPU")
    parser.add_argument("--timeout", type=float, default=60.0, help="process-group timeout in seconds")
    parser.add_argument("--fault", default="", help="inject KIND@RANK for the runbook's own tests; KIND: " + ", ".join(FAULTS))
    return parser.parse_args()


def expand(spec):
    """[(name, shape)] of every tensor, in the order in which they are stored."""
    layers = [[spec["prefix"].format(i=i) + name, shape] for i in range(spec["layers"]) for name, shape in spec["layer"]]
    return spec["head"] + layers + spec["tail"]


def pick_device(args):
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    if args.cpu or not torch.cuda.is_available():
        return torch.device("cpu")
    index = int(args.devices.split(",")[local_rank]) if args.devices else local_rank
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def join(timeout_s):
    """Meet the others over Gloo, which also carries control messages; over a private file where the engine names one, else env://."""
    rank, size, path = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ.get("NCCL_RUNBOOK_STORE_FILE")
    options = {"store": dist.FileStore(path, size)} if path else {}
    dist.init_process_group("gloo", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=timeout_s), **options)
    return rank, size


def together(action=None, *args):
    """Do it on this rank, then meet the others: returns when all have done theirs, raises PeerStopped where one could not."""
    failure = None
    try:
        if action:
            action(*args)
    except Exception as error:  # raised again below, once the others know
        failure = error
    code = torch.tensor([1 if failure else 0])
    try:
        dist.all_reduce(code, op=dist.ReduceOp.MAX)
    finally:
        if failure:
            raise failure
    if int(code):
        raise PeerStopped("another rank stopped")


def fsync(path):
    with open(path, "rb+") as file:
        began = time.perf_counter()
        os.fsync(file.fileno())
        return time.perf_counter() - began


def remove(*paths):
    """None of these files and (empty) folders exists any longer."""
    for path in paths:
        if os.path.isdir(path):
            os.rmdir(path)
        elif os.path.exists(path):
            os.remove(path)


class Pattern:
    """Bytes that every rank makes alike. Chunk c of repeat r is a fixed random sequence plus a number that no other chunk of that
    repeat (below 128 GiB) and no other repeat of that chunk (below 65,536) has, so that all 16-bit words differ between them."""

    def __init__(self, device):
        words = torch.randint(-32768, 32768, (CHUNK,), generator=torch.Generator().manual_seed(5), dtype=torch.int16)
        self.base = words.to(device)
        self.scratch = torch.empty_like(self.base)

    def pieces(self, tensors, repeat):
        """(index of the tensor, its words, the number to add) for every chunk of every tensor."""
        number = 0
        for index, tensor in enumerate(tensors):
            for words in tensor.view(-1).view(torch.int16).split(CHUNK):
                yield index, words, (number * 40503 + repeat) % 65536 - 32768
                number += 1

    def fill(self, tensors, repeat):
        for _, words, number in self.pieces(tensors, repeat):
            torch.add(self.base[:len(words)], number, out=words)

    def differing(self, tensors, repeat):
        """Number of 16-bit words that differ, for each tensor."""
        counts = torch.zeros(len(tensors), dtype=torch.int64, device=self.base.device)
        for index, words, number in self.pieces(tensors, repeat):
            wanted = torch.add(self.base[:len(words)], number, out=self.scratch[:len(words)])
            counts[index] += torch.count_nonzero(wanted != words)
        return counts.tolist()


class Clock:
    """Consecutive intervals that add up: ``lap`` gives the time since the last one to a phase."""

    def __init__(self, device):
        self.device, self.phases, self.last = device, {}, 0.0
        self.lap("")
        self.phases, self.began = {}, self.last

    def lap(self, phase):
        """CUDA calls return before the work is done: it is waited for, or a rate comes out that no link has."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        self.phases[phase] = self.phases.get(phase, 0.0) + now - self.last
        self.last = now


def buckets_of(views, limit):
    """Consecutive tensors in lists of at most ``limit`` bytes, which no tensor exceeds."""
    found, room = [], 0
    for view in views:
        if view.numel() > room:
            found.append([])
            room = limit
        found[-1].append(view)
        room -= view.numel()
    return found


def memory_of(tensor):
    """The tensor's bytes on the CPU as a memoryview, without a copy and without numpy."""
    return memoryview((ctypes.c_char * tensor.numel()).from_address(tensor.data_ptr())).cast("B")


def host_free_bytes():
    """MemAvailable; more than anybody needs where the kernel does not say."""
    try:
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return sys.maxsize


class Sync:
    """The tensors of this rank and the way they travel."""

    def __init__(self, args, rank, size, device):
        self.args, self.rank, self.size, self.device = args, rank, size, device
        self.spec = json.loads(args.spec)
        self.manifest = expand(self.spec)
        self.dtype = getattr(torch, self.spec.get("dtype", "bfloat16"))
        self.nbytes = [torch.Size(shape).numel() * torch.empty(0, dtype=self.dtype).element_size() for _, shape in self.manifest]
        self.total = sum(self.nbytes)
        kind, _, where = args.fault.partition("@")
        self.kind = kind if where == str(rank) else ""
        self.on_host = device.type == "cpu"
        self.bucket = max(args.bucket_mib << 20, max(self.nbytes))
        self.made, self.over_nccl = False, args.method.startswith("nccl")

    def staging_bytes(self):
        """Of the buffer beside the tensors: a bucket, or the largest tensor where bytes pass through the CPU."""
        if self.args.method.endswith("flat"):
            return min(self.bucket, self.total)
        return 0 if self.on_host or self.over_nccl else max(self.nbytes)

    def check_memory(self):
        """NotEnough before anything is allocated. Ranks of one host or one GPU share what is free there."""
        if self.on_host:
            needed, free, what = (self.total + self.staging_bytes()) * self.size + SPARE_BYTES, host_free_bytes(), "host memory"
        else:
            devices = self.args.devices.split(",") if self.args.devices else [str(self.device.index)]
            staging = self.staging_bytes() if self.over_nccl else 0
            needed = (self.total + staging) * devices.count(str(self.device.index)) + SPARE_GPU_BYTES
            free, what = torch.cuda.mem_get_info(self.device)[0], f"memory on GPU {self.device.index}"
        if free < needed:
            raise NotEnough(what, needed, free)

    def prepare(self):
        """Allocate and touch all memory, so that no first sync pays for page faults of the measurement itself."""
        self.tensors = [torch.zeros(shape, dtype=self.dtype, device=self.device) for _, shape in self.manifest]
        self.views = [t.view(-1).view(torch.uint8) for t in self.tensors]
        self.pattern = Pattern(self.device)
        where = self.device if self.over_nccl else torch.device("cpu")
        self.stage = torch.zeros(self.staging_bytes(), dtype=torch.uint8, device=where, pin_memory=not (self.over_nccl or self.on_host))

    def run(self):
        together(self.check_memory)
        self.prepare()
        timeout = datetime.timedelta(seconds=self.args.timeout)
        self.data = dist.new_group(backend="nccl", timeout=timeout) if self.over_nccl else None
        return all([self.once(repeat) for repeat in range(self.args.repeats)])

    def once(self, repeat):
        """One sync: new weights on the trainer, the clock, the bytes compared on every engine."""
        if self.kind == "die" and repeat:
            os._exit(9)
        if self.rank == 0:
            self.pattern.fill(self.tensors, repeat)
        before = self.tensors[-1].clone() if self.kind == "stale" else None
        together()
        clock = Clock(self.device)
        way = {"disk": self.over_disk, "flat": self.flat}.get(self.args.method.rpartition("-")[2], self.per_tensor)
        fsync_s = way(clock, repeat)
        seconds = clock.last - clock.began
        if self.kind == "corrupt":
            self.views[len(self.views) // 2][7:8].bitwise_xor_(1)
        elif before is not None:
            self.tensors[-1].copy_(before)
        differing = self.pattern.differing(self.tensors, repeat) if self.rank else []
        wrong = [{"tensor": self.manifest[i][0], "index": i, "words": n} for i, n in enumerate(differing) if n]
        emit({"event": "sync", "method": self.args.method, "repeat": repeat, "seconds": seconds, "bytes": self.total,
              "tensors": len(self.tensors), "phases": clock.phases, "verified": not wrong, "compared": bool(self.rank),
              "wrong": wrong[:5], "wrong_count": len(wrong), "fsync_s": fsync_s})
        together()
        return not wrong

    def per_tensor(self, clock, _):
        """One broadcast a tensor, from GPU to GPU over NCCL, or through the CPU over Gloo."""
        if self.over_nccl:
            for view in self.views:
                dist.broadcast(view, 0, group=self.data)
            return clock.lap("wire")
        for view in self.views:
            host = self.on_cpu(view, clock) if self.rank == 0 else self.room_for(view)
            dist.broadcast(host, 0)
            clock.lap("wire")
            self.load(view, host, clock)

    def flat(self, clock, _):
        """Tensors packed into one buffer a bucket, one broadcast each. Over Gloo the buffer lies on the CPU."""
        for bucket in buckets_of(self.views, self.bucket):
            sizes = [view.numel() for view in bucket]
            parts = self.stage[:sum(sizes)].split(sizes)
            if self.rank == 0:
                for part, view in zip(parts, bucket):
                    part.copy_(view, non_blocking=True)
                clock.lap("pack")
            dist.broadcast(self.stage[:sum(sizes)], 0, group=self.data)
            clock.lap("wire")
            if self.rank:
                for part, view in zip(parts, bucket):
                    view.copy_(part, non_blocking=True)
                clock.lap("load")

    def over_disk(self, clock, repeat):
        """One safetensors file: written under another name, renamed, told, read whole by every engine, removed.

        Returns the seconds of an fsync after the last sync, apart from it: the frameworks' savers do none.
        """
        path = os.path.join(self.args.directory, f"model-v{repeat}.safetensors")
        here = self.rank == 0
        try:
            together(self.write if here else None, path, clock)
            clock.lap("control" if here else "wait")
            together(None if here else self.read, path, clock)
            return fsync(path) if here and repeat == self.args.repeats - 1 else None
        finally:
            if here:
                remove(path, path + ".part", self.args.directory if self.made else "")

    def header(self):
        """Length and JSON header of a safetensors file (little-endian u64, then JSON padded with blanks to 8 bytes; format of 0.4)."""
        entries, at = {"__metadata__": {"format": "pt"}}, 0
        for (name, shape), n in zip(self.manifest, self.nbytes):
            entries[name] = {"dtype": SAFETENSORS_NAMES[self.spec.get("dtype", "bfloat16")], "shape": shape, "data_offsets": [at, at + n]}
            at += n
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text

    def write(self, path, clock):
        self.made = not os.path.isdir(self.args.directory)
        os.makedirs(self.args.directory, exist_ok=True)
        header, needed = self.header(), len(self.header()) + self.total
        free = shutil.disk_usage(self.args.directory).free
        if free < needed + SPARE_BYTES // 16 and self.kind != "unchecked":
            raise NotEnough("space in " + self.args.directory, needed, free)
        try:
            with open(path + ".part", "wb") as file:
                file.write(header)
                for view in self.views:
                    file.write(memory_of(self.on_cpu(view, clock)))
                    clock.lap("write")
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise NotEnough("space in " + self.args.directory, needed, shutil.disk_usage(self.args.directory).free) from error
        if self.kind == "torn":
            os.truncate(path + ".part", needed - 1)
        os.replace(path + ".part", path)

    def room_for(self, view):
        """Where its bytes pass through the CPU: the tensor itself if it lies there."""
        return view if self.on_host else self.stage[:view.numel()]

    def on_cpu(self, view, clock):
        host = self.room_for(view)
        if host is not view:
            host.copy_(view)
            clock.lap("gather")
        return host

    def load(self, view, host, clock):
        if self.rank and host is not view:
            view.copy_(host)
            clock.lap("load")

    def read(self, path, clock):
        """Every byte is read (not mapped) and checked against the header, so that no page is counted that nobody fetched."""
        header, size = self.header(), os.path.getsize(path)
        if size != len(header) + self.total:
            raise RuntimeError(f"torn file: {os.path.basename(path)} has {size} of {len(header) + self.total} bytes")
        with open(path, "rb") as file:
            if file.read(len(header)) != header:
                raise RuntimeError(f"{os.path.basename(path)} has another header than was to be written")
            for view in self.views:
                host = self.room_for(view)
                if file.readinto(memory_of(host)) != host.numel():
                    raise RuntimeError(f"torn file: {os.path.basename(path)} ends early")
                clock.lap("read")
                self.load(view, host, clock)


def identity(device):
    said = {"event": "hello", "device": str(device), "torch": torch.__version__}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        said.update(name=properties.name, uuid=str(getattr(properties, "uuid", "")))  # uuid: torch >= 2.4
    return said


def main():
    args = arguments()
    device = pick_device(args)
    emit(identity(device))
    try:
        rank, size = join(args.timeout)
        code = 0 if Sync(args, rank, size, device).run() else WRONG_BYTES
    except NotEnough as error:
        emit({"event": "not-enough", "what": error.what, "needed": error.needed, "free": error.free})
        code = NOT_ENOUGH
    except PeerStopped:
        emit({"event": "peer-stopped"})
        code = PEER_STOPPED
    except Exception as error:  # reported and raised again: the text is what the runbook judges
        emit({"event": "error", "type": type(error).__name__, "text": str(error)})
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    sys.exit(code)


if __name__ == "__main__":
    main()
