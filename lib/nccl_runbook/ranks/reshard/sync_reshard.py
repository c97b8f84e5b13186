"""Weights from the shards of T trainer ranks to those of E engine ranks: straight (reshard); or gathered on
one rank and broadcast (gather), which is the control. Stands beside weight_sync.py, whose Sync it completes.

A sync fills new memory, which takes the place of the old weights once every rank has every byte: whatever
fails before that, the old weights stay whole. Over NCCL the tensors lie on GPUs, over Gloo on the CPU.
Standard library and torch (>= 2.2), Python >= 3.9.
"""

import itertools
import os

import check
import sync_bytes
import sync_pieces
import sync_ways
import torch
import torch.distributed as dist


class Held:
    """Parts of tensors in memory, by index, as rows of bytes: a rank's shards, or a set of its weights."""

    def __init__(self, sync, parts, views):
        self.sync, self.parts = sync, parts
        self.rows = {i: v.view(p.bottom - p.top, p.right - p.left) for (i, p), v in zip(parts.items(), views)}

    def cut(self, tensor, part):
        """A view of ``part`` of a tensor, which must lie within the part that is held."""
        return sync_pieces.cut(self.rows[tensor], self.parts[tensor], part)

    def expected(self, number):
        """Yields (index, bytes that sync ``number`` should bring, bytes in memory) of each tensor."""
        places = [0, *itertools.accumulate(sync_bytes.padded(size) // 2 for size in self.sync.sizes)]
        for tensor, part in self.parts.items():
            width = sync_pieces.sides(self.sync.shapes[tensor], self.sync.dtype.itemsize)[1]
            made = self.sync.stage[2][: (part.bottom - part.top) * width]
            begin = places[tensor] + part.top * width // 2
            for _, words, base, turn in self.sync.pattern.cut(begin, made.view(torch.int16)):
                torch.add(base, self.sync.pattern.added(turn, number), out=words)
            if self.rows[tensor].numel():
                yield tensor, made.view(-1, width)[:, part.left : part.right], self.rows[tensor]

    def fill(self, number):
        """Write into every tensor the bytes that sync ``number`` sends."""
        for _, made, rows in self.expected(number):
            rows.copy_(made)

    def differing(self, number):
        """Index of each tensor with differences -> number of 16-bit words that differ."""
        words = (
            (i, made.view(torch.int16), rows.view(torch.int16)) for i, made, rows in self.expected(number)
        )
        return {i: int((made != rows).sum()) for i, made, rows in words if not torch.equal(made, rows)}


class Step:
    """One bucket on one rank: copies before sending (packs), sends, receives, and copies into place.
    Receives and copies exist for each of the two sets of weights."""

    def __init__(self, stage):
        self.stage, self.packs, self.sends, self.receives, self.copies = stage, [], [], ([], []), ([], [])

    def exchange(self, sync):
        """Send and receive all pieces. ``sync.at`` names the tensor under way (NCCL has one work for all)."""
        ops = [*self.sends, *self.receives[1 - sync.live]]
        works = dist.batch_isend_irecv([op for _, op in ops]) if ops else []
        for (tensor, _), work in zip(ops, works):
            sync.at = sync.names[tensor]
            work.wait()


class Reshard:
    """A sync from ``trainers`` ranks (the first ones) to one engine: the other ranks, or all ranks if none
    is left. ValueError for more trainers than ranks."""

    def __init__(self, args, rank, size, device):
        self.trainers = args.trainers or (size // 2 if size > 3 else size)
        if self.trainers > size:
            raise ValueError(f"{self.trainers} trainer ranks are more than all {size} ranks")
        self.engines, backend = [*range(self.trainers, size)] or [*range(size)], args.method.partition("-")[0]
        super().__init__(args, rank, size, device if backend == "nccl" else torch.device("cpu"))
        self.trains, self.serves = rank < self.trainers, rank in self.engines
        self.below = dist.new_group(sorted({0, *self.engines}), backend=backend)
        self.live, self.applied, self.at, self.straight = 0, -1, self.names[0], "reshard" in args.method
        both = ", on the same devices" if self.trainers == size else ""
        self.by = f"{self.trainers} trainer ranks, to {len(self.engines)} engine ranks{both}"

    def lay_out(self, shapes):
        """Compute the parts of every rank; this rank's memory holds its shards, then two sets of weights."""
        super().lay_out(shapes)
        t, e, width = range(self.trainers), range(len(self.engines)), self.dtype.itemsize
        self.held = [[sync_pieces.trainer_part(s, width, len(t), r) for r in t] for s in shapes]
        self.wanted = [
            [sync_pieces.engine_part(n, s, width, len(e), r) for r in e] for n, s in zip(self.names, shapes)
        ]
        shards, weights = (
            {i: parts[ranks.index(self.rank)] for i, parts in enumerate(whole) if self.rank in ranks}
            for ranks, whole in ((t, self.held), (self.engines, self.wanted))
        )
        self.parts = [shards, weights, weights]
        self.own_sizes = [sync_pieces.size(part) for parts in self.parts for part in parts.values()]

    def staging(self):
        """(bytes of a bucket, 3): two buckets in turn, and a third for the comparison."""
        return self.bucket_bytes(max(self.mib)), 3

    def check_memory(self):
        """Raise ValueError if names, dtypes or parts differ between ranks, before anything moves; then check
        that memory suffices."""
        dtype = "float32" if self.kind == "dtype" else str(self.dtype).partition(".")[2]
        # "map": a rank that takes each engine rank for its neighbour
        wanted = [[*p[1:], p[0]] if self.kind == "map" else p for p in self.wanted]
        ours = [[name, dtype, [*map(list, parts)]] for name, parts in zip(self.names, wanted)]
        for its, own in itertools.zip_longest(sync_ways.tell(self, ours), ours):
            if its != own:
                raise ValueError(
                    f"{(own or its)[0]}: {own} on rank {self.rank}, {its} on rank 0; nothing moved"
                )
        super().check_memory()

    def show(self):
        """Lay the shards and two sets of weights into this rank's memory, and fill the live set."""
        views = iter(sync_bytes.laid(self.memory, self.own_sizes))
        self.given, *self.sets = [
            Held(self, parts, itertools.islice(views, len(parts))) for parts in self.parts
        ]
        self.sets[self.live].fill(self.applied)
        self.planned, self.last = None, None if self.on_host else torch.cuda.Stream(self.device)

    @property
    def taken(self):
        """The weights that a sync fills."""
        return self.sets[1 - self.live]

    @property
    def views(self):
        """The weights that the next sync fills, each as flat bytes."""
        return [rows.view(-1) for rows in self.taken.rows.values()]

    def plan(self):
        """Plan every bucket. All ranks make NCCL's communicator, since a bucket may need only some of
        them."""
        dist.all_reduce(torch.zeros(1, device=self.device), group=self.data)
        self.steps, self.planned = [], self.buckets
        for number, bucket in enumerate(self.buckets):
            sizes = [self.sizes[i] for i in bucket]
            step = Step(self.stage[number % 2][: sum(sizes)])
            self.steps.append(step)
            if self.straight:
                self.route(step, bucket, self.wanted, self.engines, self.sets)
                continue
            # every shard to rank 0, in order; it broadcasts the bucket, and the engine ranks cut it
            whole = {i: sync_pieces.trainer_part(self.shapes[i], self.dtype.itemsize, 1, 0) for i in bucket}
            laid = Held(self, whole, step.stage.split(sizes))
            self.route(step, bucket, {i: [part] for i, part in whole.items()}, [0], [laid, laid])
            step.packs = step.copies[0]
            step.copies = [
                [(s.rows[i], laid.cut(i, s.parts[i])) for i in bucket if i in s.parts] for s in self.sets
            ]

    def route(self, step, bucket, wanted, ranks, into):
        """Add each piece to the sends, receives and copies of ``step``, from the trainer rank that holds it
        to that of ``ranks`` which wants it; columns are packed first. ``into``: where it is put, for either
        set of weights."""
        at = 0
        for tensor, source, target, part in sync_pieces.pieces(bucket, self.held, wanted):
            places = [held.cut(tensor, part) for held in into if self.rank == ranks[target]]
            if self.rank != source:
                for receives, place in zip(step.receives, places):
                    receives.append((tensor, dist.P2POp(dist.irecv, place, source, self.data)))
                continue
            given = self.given.cut(tensor, part)
            for copies, place in zip(step.copies, places):
                copies.append((place, given))
            if not places and not given.is_contiguous():
                packed = step.stage[at : at + given.numel()].view(given.shape)
                step.packs.append((packed, given))
                given, at = packed, at + given.numel()
            if not places:
                step.sends.append((tensor, dist.P2POp(dist.isend, given, ranks[target], self.data)))

    def once(self, about, last):
        """Run one sync. The new weights replace the old ones if they are right on every rank. True if they
        are on this rank."""
        good = super().once(about, last)
        bad = torch.tensor([not good], dtype=torch.int32)
        dist.all_reduce(bad)
        if int(bad):
            self.kept()
        else:
            self.live, self.applied = 1 - self.live, self.number
        return good

    def kept(self):
        """Report whether the live weights are whole after a failed sync, and from which sync they come."""
        check.emit("kept", whole=not self.sets[self.live].differing(self.applied), sync=self.applied)


def move(sync, clock):
    """Move all buckets; over NCCL the next one is packed or gathered while one is on the wire. RuntimeError
    names the tensor under way."""
    free, straight = [None, None], sync.straight
    try:
        with clock.host("control"):
            if sync.planned is not sync.buckets:
                sync.plan()
        for number, step in enumerate(sync.steps):
            here, sync.at = number % 2, sync.names[sync.buckets[number][0]]
            if number == 0 or not straight:
                sync_ways.announce(sync, clock, sync.buckets[number])
            if sync.kind == "leave" and sync.number:
                os._exit(9)
            sync_ways.after(sync.side, free[here])
            with clock.queued("pack" if straight else "gather", sync.side):
                copy(step.packs)
                if not straight:
                    step.exchange(sync)
            sync_ways.after(sync.wire, sync_ways.done(sync.side))
            with clock.queued("wire", sync.wire):
                if straight:
                    step.exchange(sync)
                elif sync.rank in (0, *sync.engines):
                    dist.broadcast(step.stage, 0, group=sync.below)
            if not straight:
                sync_ways.after(sync.last, sync_ways.done(sync.wire))
            with clock.queued("load", sync.last):
                copy(step.copies[1 - sync.live])
            free[here] = sync_ways.done(sync.wire if straight else sync.last)
        with clock.host("control"):
            sync_ways.together(clock.wait)
    except RuntimeError as error:
        sync.kept()
        raise RuntimeError(f"{sync.at} was under way: {error}") from error


def copy(pairs):
    """Queue copies of (target, source) pairs on the current stream."""
    for target, source in pairs:
        target.copy_(source, non_blocking=True)


METHODS = dict.fromkeys(("nccl-reshard", "gloo-reshard", "nccl-gather", "gloo-gather"), move)
