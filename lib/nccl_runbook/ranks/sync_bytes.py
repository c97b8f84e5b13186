"""The tensors of one rank in memory, and their bytes: every rank makes them alike, so that an engine can
compare each one that came.

Large tensors lie alone and small ones together, as torch's allocator for GPUs lays them out (2.2 to 2.13).
What lies end to end is made and compared at once: a kernel's launch costs 9 us (H200), and there are models
of 18,867 tensors. Standard library and torch (>= 2.2), Python >= 3.9.
"""

import itertools

import torch

ALIGN = 512  # bytes, at multiples of which a tensor begins
SLAB = 20 << 20  # bytes that hold several tensors; a larger one has its own
CHUNK = 4 << 20  # 16-bit words of the pattern, and the most that are made or compared at once


def padded(size):
    """Bytes that a tensor of ``size`` bytes takes up: the next multiple of ALIGN."""
    return -(-size // ALIGN) * ALIGN


def slabs(sizes, device):
    """Zeroed memory for tensors of these sizes (bytes), already touched."""
    room = [padded(size) for size in sizes]
    return [
        torch.zeros(sum(room[i] for i in bucket), dtype=torch.uint8, device=device)
        for bucket in buckets_of(room, SLAB)
    ]


def laid(memory, sizes):
    """A view of each size (bytes), in order. ``memory``: slabs of these sizes, or of larger ones."""
    views, number, at = [], 0, 0
    for size in sizes:
        while at + size > len(memory[number]):
            number, at = number + 1, 0
        views.append(memory[number][at : at + size])
        at += padded(size)
    return views


class Pattern:
    """A 16-bit word for every place of the whole tensors, laid end to end: a fixed random sequence of CHUNK
    words, repeated, plus a number that is unique among the rounds of one repeat (below 512 GiB) and among
    the repeats of one round (below 65,536). So all stale words differ, and all words of another round;
    within a round all but one in 65,536."""

    def __init__(self, device):
        self.base = torch.randint(
            -32768, 32768, (CHUNK,), generator=torch.Generator().manual_seed(5), dtype=torch.int16
        ).to(device)
        self.scratch, self.unequal = (
            torch.empty_like(self.base),
            torch.empty_like(self.base, dtype=torch.bool),
        )

    def lay(self, sizes, tensors, starts):
        """Set what is filled and compared: this rank's part of each tensor, which begins at byte ``starts``
        of the whole one, of ``sizes`` bytes."""
        bounds = [0, *itertools.accumulate(padded(size) // 2 for size in sizes)]
        places = [bound + start // 2 for bound, start in zip(bounds, starts)]
        self.bounds = torch.tensor(bounds, device=self.base.device)
        self.pieces = [piece for run in runs(places, tensors) for piece in self.cut(*run)]

    def cut(self, place, words):
        """Yields (place, words, base to add to, number of the round) for each part of a run within one
        round."""
        for first in range(place // CHUNK * CHUNK, place + len(words), CHUNK):
            a, b = max(first, place), min(first + CHUNK, place + len(words))
            yield a, words[a - place : b - place], self.base[a - first : b - first], first // CHUNK

    def fill(self, repeat):
        """Write the bytes of this repeat into every tensor that ``lay`` placed."""
        for _, words, base, number in self.pieces:
            torch.add(base, self.added(number, repeat), out=words)

    def differing(self, repeat):
        """Index of each tensor with differences -> number of words that differ."""
        words_by_tensor, flags = {}, torch.zeros(len(self.pieces), dtype=torch.bool, device=self.base.device)
        for flag, (_, words, base, number) in zip(flags, self.pieces):
            torch.add(base, self.added(number, repeat), out=self.scratch[: len(words)])
            torch.any(
                torch.ne(self.scratch[: len(words)], words, out=self.unequal[: len(words)]), 0, out=flag
            )
        for place, words, base, number in itertools.compress(self.pieces, flags.tolist()):
            at = place + (words != base + self.added(number, repeat)).nonzero().flatten()
            self.count(at, words_by_tensor)
        return words_by_tensor

    def count(self, places, words_by_tensor):
        """Add these places (of 16-bit words, in the whole) to the words of the tensor that each lies in."""
        tensors, counts = torch.unique(
            torch.bucketize(places, self.bounds, right=True) - 1, return_counts=True
        )
        for index, count in zip(tensors.tolist(), counts.tolist()):
            words_by_tensor[index] = words_by_tensor.get(index, 0) + count

    @staticmethod
    def added(number, repeat):
        """The number added to the base sequence in this round and repeat, as a signed 16-bit value."""
        return (number * 40503 + repeat) % 65536 - 32768


def runs(places, tensors):
    """(place, words) of tensors that lie end to end in memory and in the whole, joined."""
    merged, ends = [], None
    for place, tensor in zip(places, tensors):
        here, size = (tensor.untyped_storage().data_ptr(), tensor.storage_offset()), tensor.numel()
        if ends == (*here, place):
            merged[-1][2] += size
        else:
            merged.append([place, tensor, size])
        ends = (here[0], here[1] + size, place + size // 2)
    return [(place, tensor.as_strided((size,), (1,)).view(torch.int16)) for place, tensor, size in merged]


def buckets_of(sizes, limit):
    """Lists of indices of consecutive tensors, at most ``limit`` bytes a list; no tensor is larger than
    that."""
    buckets, room = [], 0
    for index, size in enumerate(sizes):
        if not buckets or size > room:
            buckets.append([])
            room = limit
        buckets[-1].append(index)
        room -= size
    return buckets
