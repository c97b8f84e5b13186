"""Ranks that are somewhere else while the others wait."""

import re
import socket
import subprocess
import threading
import time
import urllib.request

from loop import TROUBLE, Loop, Rows, count_words


class Late(Loop):
    """Ranks that are somewhere else while the others wait."""

    def stop(self) -> None:
        """Rank 1 stops."""
        self.kill(19)

    def loader(self) -> None:
        """The data loader of rank 1 waits for a mount that does not answer."""
        self.join()
        for batch in self.torch.utils.data.DataLoader(Rows(16, self.rank == 1), batch_size=2, num_workers=1):
            self.step(batch)

    def loaders(self) -> None:
        """The data loaders of all ranks wait for a mount that does not answer."""
        self.until_trouble()
        for batch in self.torch.utils.data.DataLoader(Rows(16, True), batch_size=2, num_workers=1):
            self.step(batch)

    def save(self) -> None:
        """Rank 0 writes checkpoints while the others wait."""
        self.alone(0, lambda: self.save_checkpoint(120))

    def save_checkpoint(self, seconds: float) -> None:
        """Write the weights again and again for ``seconds``."""
        weights, until = {f"layer{i}": self.torch.ones(1 << 18) for i in range(8)}, time.monotonic() + seconds
        while time.monotonic() < until:
            self.torch.save(weights, self.folder / "step3.pt")

    def upload(self) -> None:
        """Rank 0 waits for a program that uploads."""
        with self.between_steps():
            if self.rank == 0:
                subprocess.run(["sleep", "120"], check=True)

    def tokens(self) -> None:
        """Rank 2 never leaves a loop in Python."""
        self.alone(2, lambda: count_words(120))

    def matches(self) -> None:
        """One call that gives the interpreter lock to nobody."""
        with self.between_steps():
            if self.rank == 1:
                re.match(r"(a?){60}a{60}", "a" * 60)

    def downloads(self) -> None:
        """A server that takes the request and never answers."""
        with self.between_steps():
            if self.rank == 0:
                with socket.create_server(("127.0.0.1", 0)) as server:
                    urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/weights").read()

    def marker(self) -> None:
        """Rank 1 waits for a file that nobody writes."""
        with self.between_steps():
            if self.rank == 1:
                while not (self.folder / "preprocessed").exists():
                    time.sleep(0.2)

    def tokenizes(self) -> None:
        """Rank 1 needs 0.6 s more for every step."""
        self.join()
        for _ in range(100):
            if self.rank == 1:
                count_words(0.6)
            self.step()

    def cache(self) -> None:
        """Rank 2 waits for a lock that it holds already."""
        with self.between_steps():
            if self.rank == 2:
                lock = threading.Lock()
                with lock:
                    lock.acquire()

    def evaluates_long(self) -> None:
        """The others wait for 120 s, and have a time-out of 45 s."""
        self.join(45)
        self.loop(TROUBLE)
        if self.rank == 0:
            count_words(120)
        self.end()
