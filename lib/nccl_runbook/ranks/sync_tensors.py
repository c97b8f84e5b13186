"""The tensors of one rank of a weight sync, and the memory that they and the way of the method need. Stands
beside weight_sync.py.

Standard library and torch (>= 2.2), Python >= 3.9.
"""

import argparse
import dataclasses
import json

import fast_disk
import sync_bytes
import sync_disk
import sync_shapes
import sync_ways
import torch

# left free beside what is needed; CUDA contexts and NCCL's buffers on a GPU
SPARE_BYTES, SPARE_GPU_BYTES = 64 << 20, 1 << 30


@dataclasses.dataclass(eq=False)
class Tensors:
    """The tensors that move, this rank's part of them, and the buffers beside them. ``number``: of the sync,
    from 0; ``by``: who saves and loads files; ``made``: whether this rank made the directory; ``pinned``,
    ``data``, ``wire``, ``side``: as in sync_ways.py."""

    args: argparse.Namespace
    rank: int
    size: int
    device: torch.device
    number: int = -1
    by: str = ""
    made: bool = False
    pinned: object = None
    data: object = None
    wire: object = None
    side: object = None

    def __post_init__(self):
        args = self.args
        spec = json.loads(args.spec)
        self.dtype = getattr(torch, spec.get("dtype", "bfloat16"))
        self.names, shapes = zip(*sync_shapes.tensors(spec))
        self.whole = [torch.Size(shape) for shape in shapes]
        self.lay_out(self.whole)
        kind, _, where = args.fault.partition("@")
        self.kind = kind if where == str(self.rank) else ""
        method, self.on_host = args.method, self.device.type == "cpu"
        self.over_nccl, self.on_gpu = method.startswith("nccl"), method.startswith(("nccl", "ipc"))
        self.through_cpu = not self.on_host and not self.on_gpu
        self.staged = self.through_cpu or (args.tp > 1 and self.rank > 0)
        self.mib = [int(n) for n in args.buckets.split(",")]
        self.trains, self.serves = self.rank == 0, self.rank > 0

    def lay_out(self, shapes):
        """Set shapes and sizes (bytes); a tensor-parallel rank keeps only its rows. ``starts``: in bytes."""
        part, width = (self.rank - 1) % self.args.tp if self.rank else 0, self.dtype.itemsize
        self.shapes, self.sizes = [list(s) for s in shapes], [s.numel() * width for s in shapes]
        split = [
            self.rank > 0 and self.args.tp > 1 and len(s) > 0 and s[0] % self.args.tp == 0 for s in shapes
        ]
        self.starts = [size // self.args.tp * part if cut else 0 for size, cut in zip(self.sizes, split)]
        self.own_shapes = [
            torch.Size([s[0] // self.args.tp, *s[1:]]) if cut else s for s, cut in zip(shapes, split)
        ]
        self.rows = {
            name: (part * own[0], (part + 1) * own[0])
            for name, own, cut in zip(self.names, self.own_shapes, split)
            if cut
        }
        self.total, self.own_sizes = sum(self.sizes), [shape.numel() * width for shape in self.own_shapes]

    def own(self, i, whole):
        """This rank's part of the bytes of tensor ``i``."""
        return whole[self.starts[i] : self.starts[i] + self.views[i].numel()]

    def bucket_bytes(self, mib):
        """Bytes of a bucket of ``mib`` MiB: at least the largest tensor, at most all of them."""
        return min(max(mib << 20, max(self.sizes)), self.total)

    def staging(self):
        """(bytes of each extra buffer, number of them): buckets, or the largest tensor if bytes pass through
        the CPU."""
        method, largest = self.args.method, self.bucket_bytes(max(self.mib))
        if method in sync_ways.IN_BUCKETS:
            return largest, 2 if self.rank == 0 or not method.startswith("ipc") else 0
        if self.staged and "disk" not in method:
            return (largest if method.endswith("list") else max(self.sizes)), 1
        return 0, 0

    def check_memory(self):
        """Raise NotEnough before anything is allocated if host or GPU memory is too small. Ranks of one
        host, or of one GPU, share what is free there."""
        busy = 3 * self.dtype.itemsize * max(map(int, self.args.busy.split(","))) ** 2
        own, staging = (
            busy + sum(map(sync_bytes.padded, self.own_sizes)),
            self.staging()[0] * self.staging()[1],
        )
        lanes = 4 * fast_disk.LANES * fast_disk.CHUNK * self.args.method.startswith("fast")
        copies = (
            self.total
            if self.args.method == "nccl-pinned" or (self.args.method.startswith("disk") and not self.on_host)
            else 0
        )
        host = (0 if self.on_gpu else staging + lanes) + (own if self.on_host else 0)
        places = [("host memory", host * self.size + copies + SPARE_BYTES, fast_disk.free_memory())]
        if not self.on_host:
            index, (free, _) = str(self.device.index), torch.cuda.mem_get_info(self.device)
            each = (own + lanes + staging * self.on_gpu) * max(1, self.args.devices.split(",").count(index))
            places.append((f"memory on GPU {index}", each + SPARE_GPU_BYTES, free))
        for what, needed, free in places:
            if free < needed:
                raise fast_disk.NotEnough(what, needed, free)

    def prepare(self):
        """Allocate and touch all memory, so that the first sync does not pay for page faults."""
        self.memory, self.pattern = (
            sync_bytes.slabs(self.own_sizes, self.device),
            sync_bytes.Pattern(self.device),
        )
        if self.args.method.startswith("disk"):
            sync_disk.library()
        size, count = self.staging()
        self.stage = [
            torch.zeros(
                size,
                dtype=torch.uint8,
                device=self.device if self.on_gpu else torch.device("cpu"),
                pin_memory=self.through_cpu,
            )
            for _ in range(count)
        ]
        if self.args.method == "nccl-pinned" and self.rank == 0:
            self.pinned = torch.zeros(self.total, dtype=torch.uint8, pin_memory=True)
        if self.on_gpu and not self.on_host:
            self.wire, self.side = torch.cuda.Stream(self.device), torch.cuda.Stream(self.device)
        self.show()

    def show(self):
        """Make the views that move from the memory at hand; handles that other ranks opened become
        invalid."""
        self.views = sync_bytes.laid(self.memory, self.own_sizes)
        self.shaped = [view.view(self.dtype).view(shape) for view, shape in zip(self.views, self.own_shapes)]
        self.pattern.lay(self.sizes, self.views, self.starts)
        self.opened, self.given, self.taken = {}, self.pattern, self.pattern
