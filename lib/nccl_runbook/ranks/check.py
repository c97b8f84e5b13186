"""Checked collectives, one rank of N: starts, meets the others, and verifies every element that arrives.

One file, standard library and torch (>= 2.2, Python >= 3.9); it runs as it is under the
runbook's engine and under
    torchrun --nproc-per-node 4 check.py
    python3 -m torch.distributed.run --standalone --nproc-per-node 4 check.py
    deepspeed --num_gpus=4 check.py
    accelerate launch --num_processes 4 check.py
    srun -n 4 python3 check.py
Exit codes: 0 all right, 1 an exception (the text is the finding), 6 a collective returned wrong values.
Values are small integers in float32, so sums over up to 4,096 ranks are exact and any difference
is an error of the transport.
"""

import argparse
import datetime
import json
import os
import re
import signal
import statistics
import sys
import time

import torch
import torch.distributed as dist

OPS = ("barrier", "all_reduce", "broadcast", "all_gather", "send_recv")
WRONG_VALUES = 6
# sockets: 4.3 GB/s, SHM: 27 on 4 H200 (NCCL 2.28.9)
SLOW_GB_PER_S, SLOW_FROM, SLOW_BYTES = 20.0, 16 << 20, 64 << 20
ROOM = 6  # times the size that one operation with its check may take of a GPU's memory
PERIOD = 251  # prime, so that a shift by any power of two shows


def emit(event, **fields):
    """Report one event to the engine that started this rank, else print it as a line."""
    fd = os.environ.get("NCCL_RUNBOOK_EVENT_FD")
    fields = {"event": event, "t": round(time.monotonic(), 6), **fields}
    if fd:
        os.write(int(fd), (json.dumps(fields) + "\n").encode())
    else:
        words = " ".join(
            "%s=%s" % (k, v) for k, v in fields.items() if k not in ("event", "t") and v not in (None, "")
        )
        print("[rank%s] %s %s" % (rank_and_size()[0], event, words), flush=True)


def rank_and_size():
    """(rank, world size, local rank) from torchrun's variables, else from Slurm's, else a world of one."""
    env = os.environ
    return (
        int(env.get("RANK", env.get("SLURM_PROCID", 0))),
        int(env.get("WORLD_SIZE", env.get("SLURM_NTASKS", 1))),
        int(env.get("LOCAL_RANK", env.get("SLURM_LOCALID", 0))),
    )


def meeting_point():
    """Set MASTER_ADDR and MASTER_PORT if the launcher did not: Slurm's first node, else this host."""
    nodes = os.environ.get("SLURM_STEP_NODELIST", os.environ.get("SLURM_NODELIST", ""))
    os.environ.setdefault("MASTER_ADDR", re.sub(r"\[(\d+).*$", r"\1", nodes).split(",")[0] or "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(29500 + int(os.environ.get("SLURM_JOB_ID", 0)) % 1000))


def parsed(description, options):
    """The arguments of this rank; ``options``: flag -> keyword arguments of add_argument."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for flag, known in options.items():
        parser.add_argument(*flag.split(), **known)
    return parser.parse_args()


def pick_device(devices, local_rank, on_cpu):
    """This rank's device, made current; the CPU if asked for, or if none is named and CUDA has none."""
    if on_cpu or (not devices and not torch.cuda.is_available()):
        return torch.device("cpu")
    index = int(devices.split(",")[local_rank]) if devices else local_rank
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def identity(device):
    """Which device this is, in names that no renumbering changes."""
    fields = {
        "device": str(device),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "torch": torch.__version__,
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        fields.update(name=properties.name, uuid=str(getattr(properties, "uuid", "")))  # uuid: torch >= 2.4
        if hasattr(properties, "pci_bus_id"):
            fields["pci_bus_id"] = "%08x:%02x:%02x" % (
                properties.pci_domain_id,
                properties.pci_bus_id,
                properties.pci_device_id,
            )
    return fields


def join(backend, timeout_s, rank, size):
    """Meet the other ranks, over the engine's private file or env://, and return torch's store."""
    path = os.environ.get("NCCL_RUNBOOK_STORE_FILE")
    if not path:
        meeting_point()
    dist.init_process_group(
        backend,
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=timeout_s),
        store=dist.FileStore(path, size) if path else None,
    )
    return dist.distributed_c10d._get_default_store()


def least(store, key, mine, rank, size):
    """The smallest value of any rank, exchanged through the store: collectives are what is tested."""
    store.set("%s/%d" % (key, rank), repr(mine))
    return min(float(store.get("%s/%d" % (key, other))) for other in range(size))


def part(store, rank, size):
    """Wait until no rank reads another's memory; rank 0 may hold the store and leaves last."""
    least(store, "left", 0.0, rank, size)
    if rank:
        store.set("gone/%d" % rank, "1")
    for other in range(1, size if rank == 0 else 1):
        store.get("gone/%d" % other)


def prepare(device):
    """Make the CUDA context and load the kernels of the checks, then wait at the engine's gate (if there is
    one) for this world's turn. Other ranks still run meanwhile, so slow preparation delays none. Exits if
    the runbook has gone."""
    warm = pattern(PERIOD, device, 0)
    (warm + 1 != warm).nonzero()
    settle(device)
    emit("ready")
    gate = os.environ.get("NCCL_RUNBOOK_GATE_FD")
    if gate and not os.read(int(gate), 1):
        sys.exit("the runbook has gone")


def pattern(count, device, seed):
    """float32 of ``count`` integers that differ by position and by seed (a rank, or a rank and a round)."""
    return (
        torch.arange(count, device=device, dtype=torch.int32).remainder_(PERIOD).add_(seed).to(torch.float32)
    )


class Operation:
    """One collective at one size: ``fill`` makes fresh input, ``run`` runs it, ``expected`` gives the right
    result."""

    def __init__(self, op, size_bytes, device, rank, size, corrupt):
        self.op, self.device, self.rank, self.size, self.corrupt = op, device, rank, size, corrupt
        self.count = max(1, size_bytes // 4)
        self.part = max(1, self.count // size)
        self.previous, self.next = (rank - 1) % size, (rank + 1) % size
        self.run = {
            "barrier": lambda: barrier(device),
            "all_reduce": lambda: dist.all_reduce(self.send),
            "broadcast": lambda: dist.broadcast(self.send, src=0),
            "all_gather": lambda: dist.all_gather_into_tensor(self.received, self.send),
            "send_recv": self.exchange,
        }[op]

    def fill(self, round_number):
        """New buffers; the round is part of the values, so that stale data shows. A corrupting rank changes
        one element."""
        self.round = round_number
        count, arriving = (
            (self.part, self.part * self.size) if self.op == "all_gather" else (self.count, self.count)
        )
        self.send = pattern(count, self.device, self.rank + round_number)
        if self.corrupt:
            self.send[count // 2] += 1000
        self.received = torch.full((arriving,), -1.0, device=self.device)

    def exchange(self):
        """A ring: send to the next rank, receive from the previous one."""
        pair = [
            dist.P2POp(dist.isend, self.send, self.next),
            dist.P2POp(dist.irecv, self.received, self.previous),
        ]
        for work in dist.batch_isend_irecv(pair):
            work.wait()

    def expected(self):
        """[(rank that sent it or None, what arrived, what should have arrived)]."""
        if self.op == "all_reduce":
            total = (
                pattern(self.count, self.device, 0) * self.size
                + self.size * (self.size - 1) / 2
                + self.size * self.round
            )
            return [(None, self.send, total)]
        arrived = {
            "broadcast": {0: self.send},
            "send_recv": {self.previous: self.received},
            "all_gather": dict(enumerate(self.received.split(self.part))),
        }.get(self.op, {})
        return [
            (source, got, pattern(len(got), self.device, source + self.round))
            for source, got in arrived.items()
        ]

    def wrong(self):
        """The first wrong element (index, got, expected, count, from_rank), or None if all are right."""
        for source, got, wanted in self.expected():
            differ = (got != wanted).nonzero()
            if len(differ):
                at = int(differ[0])  # got: a text, as JSON has no NaN
                return {
                    "index": at,
                    "got": str(float(got[at])),
                    "expected": float(wanted[at]),
                    "count": len(differ),
                    "from_rank": source,
                }
        return None

    def verified(self, round_number):
        """The result of ``wrong`` after one run with fresh buffers."""
        self.fill(round_number)
        self.run()
        settle(self.device)
        return self.wrong()


def barrier(device):
    """Every rank has arrived; on a GPU the group must know which device to use."""
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)


def bus_factor(op, size):
    """Bus bandwidth divided by algorithm bandwidth, as nccl-tests 2.19 defines it (doc/PERFORMANCE.md)."""
    return {"all_reduce": 2 * (size - 1) / size, "all_gather": (size - 1) / size}.get(op, 1.0)


def settle(device):
    """Wait until the GPU has finished all queued work; nothing to wait for on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def sample(operation, device, iterations):
    """Mean seconds of one operation. On a GPU ``iterations`` share one synchronisation (20 us)."""
    barrier(device)
    settle(device)
    began = time.perf_counter()
    for _ in range(iterations):
        operation.run()
    settle(device)
    return (time.perf_counter() - began) / iterations


def measure(op, size_bytes, device, rank, size, repeats, iterations, corrupt):
    """Run, verify, time, verify again. Returns whether every value was right, and the bus bandwidth in GB/s
    (1e9 bytes per second; None if not timed)."""
    emit("begin", what=op, size_bytes=size_bytes)
    operation = Operation(op, size_bytes, device, rank, size, corrupt)
    before = operation.verified(0)
    times = [sample(operation, device, iterations if device.type == "cuda" else 1) for _ in range(repeats)]
    after = operation.verified(1)
    wrong = before or after
    timing = {"median_s": statistics.median(times), "min_s": min(times), "max_s": max(times)} if times else {}
    emit(
        "op",
        op=op,
        size_bytes=size_bytes,
        repeats=repeats,
        wrong=wrong,
        bus_factor=bus_factor(op, size),
        **timing,
    )
    return wrong is None, bus_factor(op, size) * size_bytes / timing[
        "median_s"
    ] / 1e9 if times and size > 1 else None


def every_size(op, asked, most, run):
    """Run ``op`` at these sizes, smallest first; whether every value was right. Sizes above ``most`` bytes
    are replaced by that, and the largest by SLOW_BYTES if ``run`` reports a rate at which it would take
    minutes; an event says so."""
    right, done, why = True, set(), "what is free on the GPU"
    for size_bytes in sorted(asked):
        if size_bytes > most:
            emit("narrowed", op=op, from_bytes=size_bytes, to_bytes=most, why=why)
        if min(size_bytes, most) not in done:
            done.add(min(size_bytes, most))
            fine, rate = run(op, min(size_bytes, most))
            right = fine and right
            if rate is not None and rate < SLOW_GB_PER_S and SLOW_BYTES < most:
                most, why = SLOW_BYTES, "%.1f GB/s at %d bytes" % (rate, size_bytes)
    return right


def wait_for_ever(on_term):
    """Never join the collective: sleep for an hour, with ``on_term`` as the handler of SIGTERM."""
    signal.signal(signal.SIGTERM, on_term)
    time.sleep(3600)


def fail():
    """Raise RuntimeError with the text that the tests look for."""
    raise RuntimeError("injected on rank %d" % rank_and_size()[0])


# what a rank does that is broken on purpose, for tests of the runbook
FAULTS = {
    "corrupt": lambda: None,  # the operations spoil what they send
    "exit": lambda: sys.exit(3),
    "flood": lambda: sys.stdout.writelines(
        "flood %08d %s\n" % (number, "x" * 100) for number in range(1 << 20)
    ),
    "ignore-term": lambda: wait_for_ever(signal.SIG_IGN),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "raise": fail,
    "skip": lambda: wait_for_ever(signal.SIG_DFL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}

DEVICES = {"default": "", "help": "cuda index of each local rank, comma-separated; default: the local rank"}
TIMEOUT = {"type": float, "default": 60.0, "help": "process-group timeout in seconds"}
OPTIONS = {
    "--ops": {"default": ",".join(OPS), "help": "comma-separated: " + ", ".join(OPS)},
    "--sizes": {"default": "4,16777216", "help": "bytes, comma-separated"},
    "--repeats": {"type": int, "default": 3, "help": "timed samples per operation and size"},
    "--iterations": {
        "type": int,
        "default": 5,
        "help": "operations per timed sample on GPUs, with one synchronisation per sample",
    },
    "--backend": {"default": "auto", "choices": ("auto", "nccl", "gloo")},
    "--devices": DEVICES,
    "--timeout": TIMEOUT,
    "--leave": {
        "action": "store_true",
        "help": "end after the last result, without destroying the process group",
    },
    "--fault": {
        "default": "",
        "help": "inject KIND@RANK for the runbook's own tests; KIND: " + ", ".join(FAULTS),
    },
    "--local_rank --local-rank": {"type": int, "help": argparse.SUPPRESS},  # deepspeed passes it
}


def inject(fault, rank):
    """Run this rank's fault, if it has one; True if the rank has to corrupt what it sends."""
    kind, _, where = fault.partition("@")
    if where != str(rank):
        return False
    FAULTS[kind]()
    return kind == "corrupt"


def check(args):
    """Run every operation at every size. The exit code: 0, or 6 if any value was wrong."""
    rank, size, local_rank = rank_and_size()
    local_rank = local_rank if args.local_rank is None else args.local_rank
    device = pick_device(args.devices, local_rank, args.backend == "gloo")
    emit(
        "hello",
        rank=rank,
        local_rank=local_rank,
        world_size=size,
        pid=os.getpid(),
        host=os.uname().nodename,
        python=sys.executable,
        **identity(device),
    )
    prepare(device)
    emit("begin", what="init")
    began = time.perf_counter()
    backend = {"cuda": "nccl", "cpu": "gloo"}[device.type] if args.backend == "auto" else args.backend
    store = join(backend, args.timeout, rank, size)
    emit("init", backend=backend, seconds=round(time.perf_counter() - began, 4))
    asked = [int(s) for s in args.sizes.split(",")]
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
    most = max(1, int(least(store, "free", free, rank, size)) // ROOM >> 20) << 20 if free else max(asked)
    corrupt = inject(args.fault, rank)

    def run(op, size_bytes):
        """Whether all values are right, and the rate by which larger sizes are narrowed: that of the slowest
        rank, so that all do alike."""
        fine, rate = measure(op, size_bytes, device, rank, size, args.repeats, args.iterations, corrupt)
        narrows = rate is not None and SLOW_FROM <= size_bytes < max(asked)
        return fine, least(store, "%s-%d" % (op, size_bytes), rate, rank, size) if narrows else None

    # with one rank send_recv has no peer
    ops = [op for op in args.ops.split(",") if size > 1 or op != "send_recv"]
    right = all([run(op, 0)[0] if op == "barrier" else every_size(op, asked, most, run) for op in ops])
    emit("begin", what="destroy")
    # taking NCCL's group apart took 0.5 to 0.7 s of a world of four ranks (H200, NCCL 2.28.9); over Gloo a
    # sixth of healthy worlds hung there with torch 2.2, which joins threads under the GIL
    if args.leave or backend == "gloo":
        part(store, rank, size)
    else:
        dist.destroy_process_group()
    emit("bye", right=right)
    code = 0 if right else WRONG_VALUES
    # exit handlers that take Gloo's group apart can abort a healthy rank (torch 2.13: 2 of 8 under torchrun)
    if dist.is_initialized():
        sys.stdout.flush()
        os._exit(code)
    return code


def main():
    """Exit with the code of check(). Any exception is reported as an event and raised again."""
    args = parsed(__doc__, OPTIONS)
    unknown = [op for op in args.ops.split(",") if op not in OPS]
    if unknown:
        sys.exit("unknown operation %s; one of %s" % (unknown[0], ", ".join(OPS)))
    try:
        sys.exit(check(args))
    except Exception as error:  # reported and raised again: the text is what the runbook judges
        emit("error", type=type(error).__name__, text=str(error))
        raise


if __name__ == "__main__":
    main()
