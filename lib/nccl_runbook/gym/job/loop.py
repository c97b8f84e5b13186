"""A small training loop over Gloo or NCCL, as somebody has it. Nothing here names what goes wrong, since
stacks and tracebacks show these names."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

TROUBLE = 3  # the step at which it happens


class Rows:
    """A data set of ``count`` rows; if ``broken``, row 8 is on a mount that does not answer."""

    def __init__(self, count: int, broken: bool = False, values: int = 512) -> None:
        self.count, self.broken, self.values = count, broken, values

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        import torch

        if self.broken and index == 8:
            read_row()
        return torch.ones(self.values, device="cpu")


def read_row() -> None:
    """Wait as long as such a mount."""
    time.sleep(300)


def count_words(seconds: float) -> None:
    """Work in Python for ``seconds``."""
    until, words = time.monotonic() + seconds, dict[str, int]()
    while time.monotonic() < until:
        text = " ".join(map(str, range(1000)))
        for word in text.split():
            words[word] = words.get(word, 0) + 1
        order = sorted(words, key=lambda w: -words[w])
        words = {w: words[w] for w in order}


def write_dump(folder: Path, rank: int) -> None:
    """Leave the dump of the flight recorder in ``folder`` as soon as that exists."""
    from torch._C import _distributed_c10d as recorder

    while not folder.exists():
        time.sleep(0.2)
    part = folder / f"part-{rank}"
    part.write_bytes(recorder._dump_fr_trace())
    part.rename(folder / f"fr_rank_{rank}")


class Loop:
    """One rank. It leaves begun-RANK in ``folder`` before it joins the others, and ready-RANK with its pid
    after its third step."""

    def __init__(self, folder: Path) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.folder = torch, dist, folder
        self.backend = os.environ.get("JOB_BACKEND", "gloo")
        self.device = "cuda" if self.backend == "nccl" else "cpu"
        self.done = 0

    def join(self, timeout_s: float = 0) -> None:
        """Make the process group and the model. ``timeout_s``: of the group; 0: JOB_TIMEOUT_S."""
        (self.folder / f"begun-{os.environ.get('RANK', 'x')}").touch()
        limit_s = timeout_s or float(os.environ.get("JOB_TIMEOUT_S", "30"))
        if self.device == "cuda":
            self.torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            self.torch.set_default_device("cuda")
        self.dist.init_process_group(self.backend, timeout=timedelta(seconds=limit_s))
        self.rank, self.size = self.dist.get_rank(), self.dist.get_world_size()
        if dumps := os.environ.get("JOB_DUMPS"):
            threading.Thread(target=write_dump, args=(Path(dumps), self.rank), daemon=True).start()
        self.net = self.torch.nn.Linear(512, 512)

    def step(self, batch: Any = None) -> Any:
        """One step; returns its loss."""
        loss = self.net(self.torch.ones(256, 512) if batch is None else batch.to(self.device)).sum()
        loss.backward()
        for weight in self.net.parameters():
            self.dist.all_reduce(weight.grad)
        self.finished(loss.detach())
        return loss.detach()

    def finished(self, loss: Any) -> None:
        """Count the step; rank 0 prints it. Every rank waits for the GPU, as for a loss that is logged."""
        self.done, value = self.done + 1, loss.item()
        if self.rank == 0:
            print(f"step {self.done} loss {value:.4f}", flush=True)
        if self.done == TROUBLE:
            (self.folder / f"ready-{self.rank}").write_text(str(os.getpid()))

    def loop(self, steps: int, every_s: float = 0.0) -> None:
        """That many steps, with a pause before each."""
        for _ in range(steps):
            time.sleep(every_s)
            self.step()

    def end(self) -> None:
        """Wait for the others and leave."""
        self.dist.barrier()
        self.dist.destroy_process_group()

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Join the others, and at the end wait for them and leave."""
        self.join()
        yield
        self.end()

    def until_trouble(self) -> None:
        """Join and do the steps that go well."""
        self.join()
        self.loop(TROUBLE)

    @contextlib.contextmanager
    def before_the_end(self) -> Iterator[None]:
        """What happens after the steps that go well; then the ranks leave together."""
        self.until_trouble()
        yield
        self.end()

    @contextlib.contextmanager
    def between_steps(self) -> Iterator[None]:
        """What happens between the steps that go well and the next ones."""
        self.until_trouble()
        yield
        self.loop(3)

    def alone(self, rank: int, work: Callable[[], object]) -> None:
        """What one rank does between the steps that go well and the next ones."""
        with self.between_steps():
            if self.rank == rank:
                work()
