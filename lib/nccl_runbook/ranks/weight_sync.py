"""One method of moving a trainer's weights to engines, one rank of N: rank 0 is the trainer,
the others are the engines.

Standard library, torch (>= 2.2, Python >= 3.9) and files beside it: sync_ways.py and sync_disk.py, the
methods, sync_tensors.py, sync_bytes.py and sync_shapes.py, the tensors, sync_clock.py, the time, check.py,
how ranks meet, and reshard/, several trainers; and fast_disk.py of lib/, which a trainer can take as it is.
It runs under the runbook's engine and under torchrun:
    torchrun --standalone --nproc-per-node 2 weight_sync.py --method disk \\
        --spec '{"head": [...], ...}' --directory /tmp/sync
Every tensor holds bytes that differ by place and repeat, which the engines make again by themselves and
compare: stale, swapped, shifted and torn data all show. Exit codes: 0 all right, 1 an exception (its text
is the finding), 5 not enough memory or space, 6 wrong bytes arrived, 7 another rank stopped first.
"""

import contextlib
import datetime
import fcntl
import os
import shutil
import sys
import time

import torch
import torch.distributed as dist

# fast_disk.py lies beside this file where the engine sent both, else in lib/; that folder may hold another
# interpreter's packages
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [
    HERE,
    *(os.path.join(HERE, room) for room in ("delta", "reshard")),
    os.path.dirname(os.path.dirname(HERE)),
]
import check  # noqa: E402
import fast_disk  # noqa: E402
import sync_bytes  # noqa: E402
import sync_clock  # noqa: E402
import sync_delta  # noqa: E402
import sync_reshard  # noqa: E402
import sync_tensors  # noqa: E402
import sync_ways  # noqa: E402

del sys.path[:4]

NOT_ENOUGH, WRONG_BYTES, PEER_STOPPED = 5, 6, 7
SMALL = 16  # a part of every tensor, for t = N a + B / b from two sizes


WAYS = {**sync_ways.METHODS, **sync_delta.METHODS, **sync_reshard.METHODS}
OPTIONS = {
    "--method": {"required": True, "choices": WAYS},
    "--spec": {
        "required": True,
        "help": "JSON object with head, layer and tail (lists of [name, shape]), layers (number of layers), "
        "prefix (of the names in a layer, with {i} for the number of the layer) and dtype",
    },
    "--repeats": {
        "type": int,
        "default": 3,
        "help": ("number of syncs; the first sync is reported separately"),
    },
    "--buckets": {
        "default": "512",
        "help": "bucket sizes in MiB, such as 512,64; each must hold the largest tensor",
    },
    "--busy": {
        "default": "0",
        "help": (
            "sizes of the square matrices that the engines multiply during syncs, such as 0,4096; 0 means "
            "that the engines are idle"
        ),
    },
    "--tp": {
        "type": int,
        "default": 1,
        "help": ("number of ranks in one engine; each rank keeps its rows of every tensor"),
    },
    "--trainers": {
        "type": int,
        "default": 0,
        "help": "for reshard and gather: number of trainer ranks. The other ranks form one engine; if "
        "every rank is a trainer, all ranks also form the engine. 0 means half of the ranks if there "
        "are four or more ranks, else all ranks",
    },
    "--directory": {
        "default": "",
        "help": ("folder for the disk methods; created if missing, and then removed again"),
    },
    "--devices": check.DEVICES,
    "--cpu": {"action": "store_true", "help": "keep the tensors on the CPU, even if there is a GPU"},
    "--timeout": check.TIMEOUT,
    "--fault": {
        "default": "",
        "help": "inject KIND@RANK for the runbook's own tests; KIND: corrupt, stale, torn, die, "
        "dtype, map, leave",
    },
}


def drop(*paths):
    """Remove these files, empty folders, and links together with the folders they point to; missing paths
    are skipped."""
    for path in paths:
        if os.path.islink(path):
            shutil.rmtree(os.path.realpath(path))
        if os.path.isdir(path):
            os.rmdir(path)
        elif os.path.lexists(path):
            os.remove(path)


class Sync(sync_tensors.Tensors):
    """All requested syncs of one method, with what sync_ways.py and sync_disk.py need."""

    def run(self):
        """Run every sync asked for, then separately the other bucket sizes, busy engines, and a small part
        of each tensor. True if every byte arrived right; raises what ``together`` raises."""
        sync_ways.together(self.check_memory)
        self.prepare()
        self.data = (
            dist.new_group(backend="nccl", timeout=datetime.timedelta(seconds=self.args.timeout))
            if self.over_nccl
            else None
        )
        try:
            good = [
                self.several("sync", self.args.repeats, self.mib[0], 0),
                *(self.several("variant", 2, mib, 0) for mib in self.mib[1:]),
                *(
                    self.several("variant", 2, self.mib[0], int(edge))
                    for edge in self.args.busy.split(",")
                    if int(edge)
                ),
            ]
            self.lay_out([torch.Size([-(-shape.numel() // SMALL)]) for shape in self.whole])
            self.show()
            repeats = 1 if self.args.method.endswith("per-tensor") else 2
            return all([*good, self.several("variant", repeats, self.mib[0], 0)])
        finally:
            if self.rank == 0 and self.args.directory:
                drop(self.path("weights"), self.args.directory if self.made else "")

    def several(self, event, repeats, mib, busy):
        """Run ``repeats`` syncs with buckets of ``mib`` MiB. True if every byte of all of them arrived
        right."""
        self.buckets = sync_bytes.buckets_of(self.sizes, self.bucket_bytes(mib))
        with sync_clock.busy(self.device, busy) if busy and self.rank else contextlib.nullcontext():
            return all(
                [
                    self.once(
                        {"event": event, "bucket_mib": mib, "busy": busy, "repeat": repeat},
                        repeat == repeats - 1,
                    )
                    for repeat in range(repeats)
                ]
            )

    def once(self, about, last):
        """Run one sync, timed and compared on every engine. True if this rank received every byte right."""
        self.number += 1
        if self.kind == "die" and self.number:
            os._exit(9)
        if self.trains:
            self.given.fill(self.number)
            if self.pinned is not None:
                for pinned, view in zip(self.pinned[: self.total].split(self.sizes), self.views):
                    pinned.copy_(view, non_blocking=True)
        before = self.views[-1].clone() if self.kind == "stale" else None
        # else the engines' clocks run while the trainer's bytes are still being made
        sync_ways.together(sync_clock.Clock(self.device).wait)
        clock = sync_clock.Clock(self.device)
        path = WAYS[self.args.method](self, clock)
        clock.stop()
        if self.kind == "corrupt":
            self.views[len(self.views) // 2][7:8].bitwise_xor_(1)
        elif before is not None:
            self.views[-1].copy_(before)
        wrong = [
            {"tensor": self.names[i], "index": i, "words": n}
            for i, n in (self.taken.differing(self.number) if self.serves else {}).items()
        ]
        check.emit(
            **about,
            method=self.args.method,
            seconds=clock.seconds,
            bytes=self.total,
            tensors=len(self.names),
            phases=clock.phases,
            by=self.by,
            verified=not wrong,
            compared=self.serves,
            wrong=wrong[:5],
            wrong_count=len(wrong),
            fsync_s=fsync(path) if path and last and about["event"] == "sync" else None,
        )
        sync_ways.together()
        if path and not path.endswith("weights"):
            drop(path)
        return not wrong

    def path(self, name):
        """Path of a file in the directory of the sync."""
        return os.path.join(self.args.directory, name)

    def by_file(self, clock, path, write, read, tidy=lambda: None):
        """The trainer writes, then the engines read while it tidies up. Returns the path on the trainer,
        None on engines. Raises as ``together``, after removing the file."""
        engine = [("wait", ()), ("control", (self.read, clock, read))]
        trainer = [("control", (self.write, clock, write, path)), ("wait", (tidy,))]
        try:
            for phase, action in engine if self.rank else trainer:
                with clock.host(phase):
                    sync_ways.together(*action)
        except BaseException:
            if self.rank == 0:
                drop(path, path + ".part")
            raise
        return None if self.rank else path

    def read(self, clock, read):
        """Read the weights on an engine, counted as loading."""
        with clock.host("load"):
            read()
            clock.wait()

    def write(self, clock, write, path):
        """Write the weights on the trainer and make the directory first. OSError if that fails."""
        if not os.path.isdir(self.args.directory):
            os.makedirs(self.args.directory)
            # held until this process ends, however it ends
            self.made = fast_disk._hold(self.args.directory, fcntl.LOCK_SH) is not None
        with clock.host("write"):
            write()
        if self.kind == "torn":
            # a shard, not the index
            file = os.path.join(path, min(os.listdir(path))) if os.path.isdir(path) else path
            os.truncate(file, os.path.getsize(file) - 1)


class Resharding(sync_reshard.Reshard, Sync):
    """A sync from several trainer ranks."""


class Changes(sync_delta.Delta, Sync):
    """A sync that sends what changed."""


KINDS = {**dict.fromkeys(sync_delta.METHODS, Changes), **dict.fromkeys(sync_reshard.METHODS, Resharding)}


def fsync(path):
    """Seconds that the disk takes to store what the sync left in the page cache; savers of frameworks do not
    wait for it."""
    began = time.perf_counter()
    for file in [os.path.join(path, name) for name in os.listdir(path)] if os.path.isdir(path) else [path]:
        fast_disk._fsync(file)
    return time.perf_counter() - began


def main():
    """Run one method and exit with a code of the module docstring; unexpected exceptions are reported and
    raised again."""
    args = check.parsed(__doc__, OPTIONS)
    try:
        rank, size, local_rank = check.rank_and_size()
        device = check.pick_device(args.devices, local_rank, args.cpu)
        check.emit("hello", **check.identity(device))
        check.join("gloo", args.timeout, rank, size)
        code = 0 if KINDS.get(args.method, Sync)(args, rank, size, device).run() else WRONG_BYTES
    except fast_disk.NotEnough as error:
        check.emit("not-enough", what=error.what, needed=error.needed, free=error.free)
        code = NOT_ENOUGH
    except sync_ways.PeerStopped:
        check.emit("peer-stopped")
        code = PEER_STOPPED
    except Exception as error:  # reported and raised again: the text is what the runbook judges
        check.emit("error", type=type(error).__name__, text=str(error))
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    sys.exit(code)


if __name__ == "__main__":
    main()
