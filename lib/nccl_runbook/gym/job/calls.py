"""Ranks whose collectives differ from those of the others."""

from collections.abc import Callable
from datetime import timedelta

from loop import Loop, count_words


class Calls(Loop):
    """Ranks whose collectives differ from those of the others."""

    def metrics(self) -> None:
        """Rank 0 makes one all_gather more than the others."""
        with self.before_the_end():
            if self.rank == 0:
                losses = [self.torch.zeros(1) for _ in range(self.size)]
                self.dist.all_gather(losses, self.torch.ones(1))

    def swaps(self) -> None:
        """Rank 1 calls broadcast and all_reduce in the other order."""
        with self.before_the_end():
            if self.rank == 1:
                self.dist.broadcast(self.torch.ones(8), 0)
                self.dist.all_reduce(self.torch.ones(64))
            else:
                self.dist.all_reduce(self.torch.ones(64))
                self.dist.broadcast(self.torch.ones(8), 0)

    def weights(self) -> None:
        """Rank 2 broadcasts the weights that the others reduce."""
        with self.before_the_end():
            if self.rank == 2:
                self.dist.broadcast(self.torch.ones(64), 2)
            else:
                self.dist.all_reduce(self.torch.ones(64))

    def subgroup(self) -> None:
        """Rank 2 does not take part in new_group."""
        with self.before_the_end():
            if self.rank != 2:
                self.dist.new_group()

    def skips(self) -> None:
        """Rank 1 catches an exception of its own step, and goes on with the next one."""
        with self.before_the_end():
            for row in range(8):
                try:
                    self.step(self.torch.ones(256, 513 if (row, self.rank) == (3, 1) else 512))
                except RuntimeError as error:
                    print(f"row {row} is left out: {error}", flush=True)

    def groups(self) -> None:
        """Rank 0 uses two process groups in the other order."""
        with self.before_the_end():
            data, tensor = self.dist.new_group(), self.dist.new_group()
            if self.rank == 0:
                self.dist.all_reduce(self.torch.ones(64), group=tensor)
            self.dist.all_reduce(self.torch.ones(64), group=data)
            if self.rank:
                self.dist.all_reduce(self.torch.ones(64), group=tensor)

    def groups_in_a_loop(self) -> None:
        """Ranks use two process groups in different orders at one line; flight recorder dumps are there."""
        with self.before_the_end():
            data, tensor = self.dist.new_group(), self.dist.new_group()
            for group in (data, tensor, *((data, tensor) if self.rank else (tensor, data))):
                self.dist.all_reduce(self.torch.ones(64), group=group)

    def shapes(self) -> None:
        """Rank 2 calls all_reduce with another number of elements."""
        with self.before_the_end():
            self.dist.all_reduce(self.torch.ones(1 << (20 if self.rank == 2 else 12)))

    def types(self) -> None:
        """Rank 1 calls all_reduce with another data type."""
        with self.before_the_end():
            self.dist.all_reduce(
                self.torch.ones(1 << 16, dtype=self.torch.float64 if self.rank == 1 else self.torch.float32)
            )

    def counts(self) -> None:
        """Rank 1 calls all_reduce with a different data type of the same size."""
        with self.before_the_end():
            self.dist.all_reduce(
                self.torch.ones(64, dtype=self.torch.int32 if self.rank == 1 else self.torch.float32)
            )

    def wrapped_parts(self) -> None:
        """DistributedDataParallel, and a layer that no loss needs."""
        from torch.nn.parallel import DistributedDataParallel

        self.until_trouble()
        parts = self.torch.nn.ModuleDict({"used": self.net, "head": self.torch.nn.Linear(8, 8)})
        parts.forward = lambda batch: parts["used"](batch)
        model = DistributedDataParallel(parts)
        for _ in range(3):
            model(self.torch.ones(256, 512)).sum().backward()

    def wrapped_heads(self) -> None:
        """DistributedDataParallel, and rank 2 has a layer more."""
        from torch.nn.parallel import DistributedDataParallel

        self.until_trouble()
        layers = [self.net, *([self.torch.nn.Linear(8, 8)] if self.rank == 2 else [])]
        DistributedDataParallel(self.torch.nn.Sequential(*layers))

    def uneven(self, check: Callable[..., object] = dict) -> None:
        """Rank 1 has fewer batches than the others."""
        self.join()
        batches = list(range(10 if self.rank != 1 else 6))
        check(minibatches=len(batches))
        for _ in batches:
            self.step()
        self.end()

    def uneven_guarded(self) -> None:
        """The same with the guard in front of the first step."""
        import nccl_guards

        self.uneven(nccl_guards.check_minibatches)

    def receives(self) -> None:
        """Rank 1 receives from rank 2, which never sends."""
        with self.before_the_end():
            if self.rank == 1:
                self.dist.recv(self.torch.ones(8), 2)

    def monitored(self) -> None:
        """Rank 2 does not reach monitored_barrier in time."""
        with self.before_the_end():
            if self.rank == 2:
                count_words(120)
            self.dist.monitored_barrier(timeout=timedelta(seconds=45))
