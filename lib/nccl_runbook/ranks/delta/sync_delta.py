"""A full sync first, then only the values that changed, with their places (gloo-delta). Stands beside
weight_sync.py, whose Sync it completes.

The trainer keeps what it sent last and compares. An engine receives the changes of all buckets and checks
them before it writes one: whatever fails before that, its old weights stay whole. Standard library and
torch (>= 2.2), Python >= 3.9.
"""

import collections
import dataclasses
import os

import check
import sync_bytes
import sync_ways
import torch
import torch.distributed as dist

WHOLE_NUMBERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
PLACE_BYTES = 4
ONE_IN = 50  # 16-bit words that a sync changes here: 2 %
# of one tensor: its number, the places and values that arrived, and the sum of those that were sent
Change = collections.namedtuple("Change", "tensor places values sent_sum")


@dataclasses.dataclass
class Changing:
    """The bytes of a pattern of which each sync after sync ``first`` changes one word in ONE_IN."""

    pattern: sync_bytes.Pattern
    first: int

    def fill(self, number):
        """Write what sync ``number`` brings into memory that holds what the sync before brought."""
        if number == self.first:
            self.pattern.fill(number)
        else:
            for begin, words, base, turn in self.pattern.pieces:
                self.change(begin, words, base, self.pattern.added(turn, number), number)

    @staticmethod
    def change(begin, words, base, added, number):
        """Change the words of sync ``number`` in place. ``begin``: place of the first word in the whole."""
        at = (number - begin) % ONE_IN
        torch.add(base[at::ONE_IN], added, out=words[at::ONE_IN])

    def differing(self, number):
        """Index of each tensor with differences -> number of 16-bit words that differ."""
        words_by_tensor = {}
        for begin, words, base, turn in self.pattern.pieces:
            expected = base + self.pattern.added(turn, self.first)
            for earlier in range(max(self.first + 1, number - ONE_IN + 1), number + 1):
                self.change(begin, expected, base, self.pattern.added(turn, earlier), earlier)
            self.pattern.count(begin + (expected != words).nonzero().flatten(), words_by_tensor)
        return words_by_tensor


class Delta:
    """A sync whose trainer knows what it sent last."""

    def lay_out(self, shapes):
        """The trainer's memory holds every tensor twice: as it is, and as it was sent last."""
        super().lay_out(shapes)
        self.own_sizes = self.own_sizes * 2 if self.rank == 0 else self.own_sizes

    def show(self):
        """Lay out the tensors. The next sync sends everything: sizes and memory are new."""
        super().show()
        self.views, self.last = self.views[: len(self.names)], self.views[len(self.names) :]
        self.given = self.taken = Changing(self.pattern, self.number + 1)

    def values(self, view):
        """The bytes of a tensor, or of a part of it, as whole numbers as wide as its values."""
        return view.view(WHOLE_NUMBERS[self.dtype.itemsize])

    def kept(self):
        """Report whether the weights of the last sync are whole after one that failed."""
        if self.serves:
            check.emit("kept", whole=not self.taken.differing(self.number - 1), sync=self.number - 1)


def move(sync, clock):
    """Send everything (first sync), or what changed. RuntimeError names the tensor whose changes did not
    arrive as they were sent; nothing is written then."""
    if sync.number == sync.given.first:
        sync_ways.flat(sync, clock)
        with clock.queued("pack"):
            for last, view in zip(sync.last, sync.views):
                last.copy_(view)
        return
    changes, sent = [], 0
    try:
        for bucket in sync.buckets:
            here = changed(sync, clock, bucket) if sync.rank == 0 else []
            with clock.host("control" if sync.rank == 0 else "wait"):
                counts_and_sums = sync_ways.tell(
                    sync, [[len(places), check_sum(places, values)] for places, values in here]
                )
            counts = [count for count, _ in counts_and_sums]
            sums = [sent_sum for _, sent_sum in counts_and_sums]
            places, values = carry(sync, clock, here, sum(counts))
            if sync.rank:
                changes += map(Change, bucket, places.split(counts), values.split(counts), sums)
            sent += places.nbytes + values.nbytes
        with clock.host("control"):
            sync_ways.together(compare, sync, changes)
    except RuntimeError:
        sync.kept()
        raise
    sync.by = (
        f"positions and values of the changed elements, which are {sent / sync.total:.1%} of the bytes "
        "after the first sync"
    )
    with clock.queued("load"):
        for change in changes:
            apply(sync, change)


def changed(sync, clock, bucket):
    """(places, values) of what changed in each tensor of a bucket, on the CPU. The trainer counts them as
    sent. RuntimeError for a tensor whose places need more than PLACE_BYTES."""
    changes = []
    with clock.queued("pack"):
        for i in bucket:
            new, last = sync.values(sync.views[i]), sync.values(sync.last[i])
            if len(new) >> 31:
                raise RuntimeError(f"{sync.names[i]} has {len(new)} values, but positions are 32-bit numbers")
            places = (new != last).nonzero().flatten()
            last[places] = new[places]
            changes.append((places.to("cpu", torch.int32), new[places].cpu()))
    return changes


def check_sum(places, values):
    """A whole number, modulo 2^64, that differs if one place or one value differs: each counts with an odd
    factor, (2 place + 1) value + place."""
    places, values = places.long(), values.long()
    return int(((2 * places + 1) * values + places).sum())


def carry(sync, clock, changes, count):
    """Broadcast the changes of one bucket from the trainer. Returns all their places and values, in order."""
    begin = sync_bytes.padded(count * PLACE_BYTES)  # where the values are aligned
    data = torch.empty(begin + count * sync.dtype.itemsize, dtype=torch.uint8)
    places, values = data[: count * PLACE_BYTES].view(torch.int32), sync.values(data[begin:])
    if changes:
        torch.cat([p for p, _ in changes], out=places)
        torch.cat([v for _, v in changes], out=values)
    with clock.queued("wire"):
        dist.broadcast(data, 0)
    return places, values


def compare(sync, changes):
    """Raise RuntimeError for the first tensor whose changes are not those that were sent. The trainer has
    none to compare."""
    if sync.kind == "leave":
        os._exit(9)
    if sync.kind == "torn" and changes:
        changes[-1].values.bitwise_xor_(1)
    for change in changes:
        if check_sum(change.places, change.values) != change.sent_sum:
            name = sync.names[change.tensor]
            raise RuntimeError(f"the changes of {name} arrived incomplete, so no tensor was changed")


def apply(sync, change):
    """Write the values of one tensor that lie in this rank's part of it."""
    part = sync.values(sync.views[change.tensor])
    places = change.places.to(part.device, torch.int64) - sync.starts[change.tensor] // sync.dtype.itemsize
    mine = (places >= 0) & (places < len(part))
    part[places[mine]] = change.values.to(part.device)[mine]


METHODS = {"gloo-delta": move}
