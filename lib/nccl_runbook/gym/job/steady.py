"""Jobs that work."""

import contextlib
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loop import TROUBLE, Loop, Rows, count_words

RETRY = (
    "WARNING urllib3.connectionpool: Retrying (Retry(total=4)) after connection broken by "
    "'ConnectionResetError(104, 'Connection reset by peer')': /api/models"
)


class Steady(Loop):
    """Jobs that work."""

    def simple(self) -> None:
        """100 steps, one every 0.3 s."""
        with self.training():
            self.loop(100, 0.3)

    def short(self) -> None:
        """Three steps."""
        self.until_trouble()
        self.end()

    def leaves(self) -> None:
        """A job that ends without destroy_process_group."""
        self.join()
        self.loop(100, 0.3)
        os._exit(0)

    def wrapped(self) -> None:
        """DistributedDataParallel with no_sync at every other step."""
        from torch.nn.parallel import DistributedDataParallel

        with self.training():
            model = DistributedDataParallel(self.net)
            for step in range(100):
                with contextlib.nullcontext() if step % 2 else model.no_sync():
                    model(self.torch.ones(256, 512)).sum().backward()
                time.sleep(0.3)
                self.finished(self.torch.ones(1))

    def heavy(self) -> None:
        """Steps of 1.5 s of Python."""
        with self.training():
            for _ in range(20):
                count_words(1.5)
                self.step()

    def late_batches(self) -> None:
        """A batch every 2 s."""
        with self.training():
            self.loop(20, 2.0)

    def compiles(self) -> None:
        """torch.compile at every step."""
        with self.training():
            self.loop(TROUBLE)
            for width in range(8, 11):
                layer = self.torch.compile(
                    self.torch.nn.Sequential(self.torch.nn.Linear(width, 8), self.torch.nn.GELU())
                )
                layer(self.torch.ones(4, width)).sum().backward()
                self.step()

    def evaluates(self, work: Callable[[float], None] = count_words, seconds: float = 3) -> None:
        """Rank 0 evaluates; the others wait in a barrier."""
        with self.training():
            for _ in range(6):
                self.loop(12, 0.3)
                if self.rank == 0:
                    work(seconds)
                self.dist.barrier()

    def saves(self) -> None:
        """Rank 0 saves for 2 s; the others wait in a barrier."""
        self.evaluates(self.save_checkpoint, 2)

    def workers(self) -> None:
        """A data loader with two workers."""
        with self.training():
            for batch in self.torch.utils.data.DataLoader(Rows(200), batch_size=2, num_workers=2):
                time.sleep(0.3)
                self.step(batch)

    def reads_first(self) -> None:
        """Every rank reads data for 30 s before the process group exists."""
        (self.folder / f"ready-{os.environ['RANK']}").write_text(str(os.getpid()))
        count_words(30)
        self.join()
        self.loop(TROUBLE)
        self.end()

    def parallel(self) -> None:
        """Two process groups of different sizes."""
        with self.training():
            first_two, last_one = self.dist.new_group([0, 1]), self.dist.new_group([self.size - 1])
            for _ in range(80):
                self.step()
                self.dist.all_reduce(
                    self.torch.ones(8), group=last_one if self.rank == self.size - 1 else first_two
                )
                time.sleep(0.4)

    def pipeline(self) -> None:
        """A pipeline with send and recv."""
        with self.training():
            for _ in range(80):
                if self.rank:
                    self.dist.recv(self.torch.ones(8), self.rank - 1)
                time.sleep(0.15)
                if self.rank + 1 < self.size:
                    self.dist.send(self.torch.ones(8), self.rank + 1)
                self.step()

    def caught_once(self) -> None:
        """One exception that the program catches and prints."""
        with self.before_the_end():
            try:
                Path("/data/shard-00001-of-00003.parquet").read_bytes()
            except FileNotFoundError:
                traceback.print_exc()
            self.loop(3)

    def caught(self) -> None:
        """Exceptions that the program catches and prints."""
        with self.training():
            for step in range(100):
                if step % 20 == 5:
                    try:
                        Path("/data/shard-00001-of-00003.parquet").read_bytes()
                    except FileNotFoundError:
                        traceback.print_exc()
                time.sleep(0.3)
                self.step()

    def retries(self) -> None:
        """Warnings of a library that retries."""
        with self.training():
            for step in range(100):
                if step in (5, 9):
                    print(RETRY, file=sys.stderr, flush=True)
                time.sleep(0.3)
                self.step()

    def joined(self) -> None:
        """Uneven inputs under DistributedDataParallel's Join."""
        from torch.distributed.algorithms.join import Join
        from torch.nn.parallel import DistributedDataParallel

        with self.training():
            model = DistributedDataParallel(self.net)
            with Join([model]):
                for _ in range(100 + 5 * self.rank):
                    model(self.torch.ones(256, 512)).sum().backward()
                    time.sleep(0.3)
                    self.finished(self.torch.ones(1))

    def several_calls(self) -> None:
        """broadcast, all_gather and all_reduce in every step."""
        with self.training():
            for step in range(100):
                chosen, gathered = self.torch.tensor([step]), [self.torch.zeros(1) for _ in range(self.size)]
                self.dist.broadcast(chosen, 0)
                self.dist.all_gather(gathered, self.torch.ones(1))
                time.sleep(0.3)
                self.step()

    def overlapped(self) -> None:
        """Four asynchronous all_reduce calls at a time."""
        with self.training():
            for _ in range(100):
                works = [self.dist.all_reduce(self.torch.ones(1 << 14), async_op=True) for _ in range(4)]
                time.sleep(0.3)
                for work in works:
                    work.wait()
                self.step()

    def jitter(self) -> None:
        """A different rank is late at every step."""
        with self.training():
            for step in range(100):
                time.sleep(0.6 if step % self.size == self.rank else 0.1)
                self.step()

    def monitors(self) -> None:
        """monitored_barrier in every step."""
        with self.training():
            for _ in range(100):
                self.dist.monitored_barrier()
                time.sleep(0.3)
                self.step()

    def background(self) -> None:
        """Batches come from a thread, and metrics go to one."""
        with self.training():
            batches: queue.Queue[Any] = queue.Queue(2)
            threading.Thread(
                target=lambda: [batches.put(self.torch.ones(256, 512)) for _ in range(80)], daemon=True
            ).start()
            for _ in range(80):
                time.sleep(0.4)
                self.step(batches.get())

    def serves(self) -> None:
        """An engine between two requests: rank 0 waits for a request, the others for rank 0."""
        with self.before_the_end():
            requests: queue.Queue[str] = queue.Queue()
            threading.Timer(30, requests.put, ["prompt"]).start()
            prompt = requests.get() if self.rank == 0 else ""
            self.dist.broadcast(self.torch.tensor([len(prompt)]), 0)
