"""Ranks that end before the others."""

import argparse
import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

from loop import Loop, Rows


class Early(Loop):
    """Ranks that end before the others."""

    def returns(self) -> None:
        """Rank 1 leaves with exit code 0 before the others; they fail in the next all_reduce."""
        self.until_trouble()
        if self.rank == 1:
            print("validation loss did not improve, stopping", flush=True)
            sys.exit(0)
        self.loop(3)

    def shard(self) -> None:
        """Rank 1 opens a file that is not there."""
        self.alone(1, Path("/data/shard-00001-of-00003.parquet").read_bytes)

    def checks(self) -> None:
        """The loss of rank 2 is not a number, and its assertion fails."""
        with self.between_steps():
            loss = self.step()
            if self.rank == 2:
                loss = loss * float("nan")
            assert loss == loss, f"loss is {loss.item()} at step {self.done}"

    def arguments(self) -> None:
        """The script does not know one of its own options."""
        argparse.ArgumentParser().parse_args(["--batch-sise", "8"])

    def optimizer(self) -> None:
        """A checkpoint of another model."""
        self.until_trouble()
        self.net.load_state_dict({"weight": self.torch.ones(8, 8)})

    def resumes(self) -> None:
        """The checkpoint is cut off."""
        self.until_trouble()
        checkpoint = self.folder / f"step3-{self.rank}.pt"
        self.torch.save({"weights": self.torch.ones(1 << 12)}, checkpoint)
        os.truncate(checkpoint, 9000)
        self.torch.load(checkpoint)

    def index(self) -> None:
        """The first rank of the traceback in the log is not the rank at fault, which is slow to print."""
        with self.between_steps():
            if self.rank == 2:
                print([0.1, 0.2][self.done])

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Rank 1 sends itself a signal."""
        self.alone(1, lambda: os.kill(os.getpid(), number))

    def native(self) -> None:
        """Rank 1 reads an invalid address."""
        self.alone(1, lambda: ctypes.string_at(8))

    def memory(self) -> None:
        """Rank 2 allocates more memory than its limit."""
        with self.between_steps():
            if self.rank == 2:
                resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
                self.torch.ones(16 << 30, dtype=self.torch.uint8)

    def imports(self) -> None:
        """Rank 1 imports a module that is not installed."""
        if os.environ["RANK"] == "1":
            import flash_attention_4  # noqa: F401
        self.until_trouble()

    def files(self) -> None:
        """Rank 1 opens more files than its limit."""
        with self.between_steps():
            if self.rank == 1:
                resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
                self.kept = [open("/dev/null") for _ in range(64)]

    def disk(self) -> None:
        """Rank 0 writes a checkpoint to a full disk."""
        with self.between_steps():
            if self.rank == 0:
                self.torch.save(
                    {"weights": self.torch.ones(1 << 20)}, self.folder / "checkpoints" / "step3.pt"
                )

    def batches(self) -> None:
        """Batches of 16 MB go through shared memory."""
        self.join()
        for batch in self.torch.utils.data.DataLoader(Rows(12, values=1 << 20), batch_size=4, num_workers=1):
            self.step(batch[:, :512])
