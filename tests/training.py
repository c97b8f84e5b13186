"""One rank of a small training run over Gloo, as somebody has it: `training.py JOB`, under any launcher. tests/faults.py has the launchers and
what is wrong with each job; nothing here names it, as stacks and tracebacks show these names.

A rank leaves FOLDER/begun-RANK before it joins the others, and FOLDER/ready-RANK once it has done its first steps.
"""
from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import queue
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Any

TROUBLE = 3  # the step at which it happens
FOLDER = Path(os.environ.get("JOB_FOLDER", "."))


class Rows:
    """A data set whose later rows are on a mount that does not answer, if ``broken``."""

    def __init__(self, count: int, broken: bool = False, values: int = 512) -> None:
        self.count, self.broken, self.values = count, broken, values

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        import torch

        if self.broken and index == 8:
            read_row()
        return torch.ones(self.values)


def read_row() -> None:
    time.sleep(300)


class Training:
    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        self.done, self.says = 0, True

    def join(self, timeout_s: float = 0) -> None:
        (FOLDER / f"begun-{os.environ.get('RANK', 'x')}").touch()
        self.dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s or float(os.environ.get("JOB_TIMEOUT_S", "30"))))
        self.rank, self.size = self.dist.get_rank(), self.dist.get_world_size()
        if folder := os.environ.get("JOB_DUMPS"):
            threading.Thread(target=write_dump, args=(Path(folder), self.rank), daemon=True).start()
        self.net = self.torch.nn.Linear(512, 512)

    def backward(self, batch: Any = None) -> Any:
        loss = self.net(self.torch.ones(256, 512) if batch is None else batch).sum()
        loss.backward()
        return loss.detach()

    def step(self, batch: Any = None) -> Any:
        loss = self.backward(batch)
        for weight in self.net.parameters():
            self.dist.all_reduce(weight.grad)
        self.finished(loss)
        return loss

    def finished(self, loss: Any) -> None:
        self.done += 1
        if self.rank == 0 and self.says:
            print(f"step {self.done} loss {loss.item():.4f}", flush=True)
        if self.done == TROUBLE:
            (FOLDER / f"ready-{self.rank}").write_text(str(os.getpid()))

    def loop(self, steps: int, every_s: float = 0.0) -> None:
        for _ in range(steps):
            time.sleep(every_s)
            self.step()

    def end(self) -> None:
        self.dist.barrier()
        self.dist.destroy_process_group()

    def until_trouble(self) -> None:
        self.join()
        self.loop(TROUBLE)

    # --- a rank that goes

    def returns(self) -> None:
        self.until_trouble()
        if self.rank == 1:
            print("validation loss did not improve, stopping", flush=True)
            sys.exit(0)
        self.loop(3)

    def shard(self) -> None:
        self.until_trouble()
        if self.rank == 1:
            Path("/data/shard-00001-of-00003.parquet").read_bytes()
        self.loop(3)

    def checks(self) -> None:
        self.until_trouble()
        loss = self.step()
        if self.rank == 2:
            loss = loss * float("nan")
        assert loss == loss, f"loss is {loss.item()} at step {self.done}"
        self.loop(3)

    def arguments(self) -> None:
        argparse.ArgumentParser().parse_args(["--batch-sise", "8"])

    def optimizer(self) -> None:
        """A checkpoint of another model."""
        self.until_trouble()
        self.net.load_state_dict({"weight": self.torch.ones(8, 8)})

    def index(self) -> None:
        """The first rank of the traceback in the log is not the rank at fault, which is slow to print."""
        self.until_trouble()
        if self.rank == 2:
            print([0.1, 0.2][self.done])
        self.loop(3)

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.until_trouble()
        if self.rank == 1:
            os.kill(os.getpid(), number)
        self.loop(3)

    def native(self) -> None:
        self.until_trouble()
        if self.rank == 1:
            ctypes.string_at(8)
        self.loop(3)

    def memory(self) -> None:
        self.until_trouble()
        if self.rank == 2:
            resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
            self.torch.ones(16 << 30, dtype=self.torch.uint8)
        self.loop(3)

    def imports(self) -> None:
        if os.environ["RANK"] == "1":
            import flash_attention_4  # noqa: F401
        self.until_trouble()

    def files(self) -> None:
        self.until_trouble()
        if self.rank == 1:
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            self.kept = [open("/dev/null") for _ in range(64)]
        self.loop(3)

    def disk(self) -> None:
        self.until_trouble()
        if self.rank == 0:
            self.torch.save({"weights": self.torch.ones(1 << 20)}, FOLDER / "checkpoints" / "step3.pt")
        self.loop(3)

    def batches(self) -> None:
        """Batches of 16 MB go through shared memory."""
        self.join()
        for batch in self.torch.utils.data.DataLoader(Rows(12, values=1 << 20), batch_size=4, num_workers=1):
            self.step(batch[:, :512])

    # --- a rank that is elsewhere

    def stop(self) -> None:
        self.kill(19)

    def loader(self) -> None:
        self.join()
        for batch in self.torch.utils.data.DataLoader(Rows(16, self.rank == 1), batch_size=2, num_workers=1):
            self.step(batch)

    def save(self) -> None:
        self.until_trouble()
        if self.rank == 0:
            self.save_checkpoint(120)
        self.loop(3)

    def save_checkpoint(self, seconds: float) -> None:
        weights, until = {f"layer{i}": self.torch.ones(1 << 18) for i in range(8)}, time.monotonic() + seconds
        while time.monotonic() < until:
            self.torch.save(weights, FOLDER / "step3.pt")

    def upload(self) -> None:
        self.until_trouble()
        if self.rank == 0:
            subprocess.run(["sleep", "120"], check=True)
        self.loop(3)

    def tokens(self) -> None:
        self.until_trouble()
        if self.rank == 2:
            count_words(120)
        self.loop(3)

    def matches(self) -> None:
        """One call that gives the interpreter lock to nobody."""
        self.until_trouble()
        if self.rank == 1:
            re.match(r"(a?){60}a{60}", "a" * 60)
        self.loop(3)

    def downloads(self) -> None:
        """A server that takes the request and never answers."""
        self.until_trouble()
        if self.rank == 0:
            with socket.create_server(("127.0.0.1", 0)) as server:
                urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/weights").read()
        self.loop(3)

    def marker(self) -> None:
        self.until_trouble()
        if self.rank == 1:
            while not (FOLDER / "preprocessed").exists():
                time.sleep(0.2)
        self.loop(3)

    def evaluates_long(self) -> None:
        """The others wait for 120 s, and have a time-out of 45 s."""
        self.join(45)
        self.loop(TROUBLE)
        if self.rank == 0:
            count_words(120)
        self.end()

    # --- ranks that call differently

    def metrics(self) -> None:
        self.until_trouble()
        if self.rank == 0:
            losses = [self.torch.zeros(1) for _ in range(self.size)]
            self.dist.all_gather(losses, self.torch.ones(1))
        self.end()

    def swaps(self) -> None:
        self.until_trouble()
        if self.rank == 1:
            self.dist.broadcast(self.torch.ones(8), 0)
            self.dist.all_reduce(self.torch.ones(64))
        else:
            self.dist.all_reduce(self.torch.ones(64))
            self.dist.broadcast(self.torch.ones(8), 0)
        self.end()

    def groups(self) -> None:
        self.until_trouble()
        data, tensor = self.dist.new_group(), self.dist.new_group()
        if self.rank == 0:
            self.dist.all_reduce(self.torch.ones(64), group=tensor)
        self.dist.all_reduce(self.torch.ones(64), group=data)
        if self.rank:
            self.dist.all_reduce(self.torch.ones(64), group=tensor)
        self.end()

    def groups_in_a_loop(self) -> None:
        self.until_trouble()
        data, tensor = self.dist.new_group(), self.dist.new_group()
        for group in (data, tensor, *((data, tensor) if self.rank else (tensor, data))):
            self.dist.all_reduce(self.torch.ones(64), group=group)
        self.end()

    def shapes(self) -> None:
        self.until_trouble()
        self.dist.all_reduce(self.torch.ones(1 << (20 if self.rank == 2 else 12)))
        self.end()

    def types(self) -> None:
        self.until_trouble()
        self.dist.all_reduce(self.torch.ones(1 << 16, dtype=self.torch.float64 if self.rank == 1 else self.torch.float32))
        self.end()

    def uneven(self) -> None:
        self.join()
        batches = list(range(10 if self.rank != 1 else 6))
        for _ in batches:
            self.step()
        self.end()

    def uneven_guarded(self) -> None:
        """The same with the guard in front of the first step."""
        import nccl_guards

        self.join()
        batches = list(range(10 if self.rank != 1 else 6))
        nccl_guards.check_minibatches(minibatches=len(batches))
        for _ in batches:
            self.step()
        self.end()

    def receives(self) -> None:
        self.until_trouble()
        if self.rank == 1:
            self.dist.recv(self.torch.ones(8), 2)
        self.end()

    def monitored(self) -> None:
        self.until_trouble()
        if self.rank == 2:
            count_words(120)
        self.dist.monitored_barrier(timeout=timedelta(seconds=45))
        self.end()

    # --- jobs that work

    def simple(self) -> None:
        self.join()
        self.loop(100, 0.3)
        self.end()

    def short(self) -> None:
        self.until_trouble()
        self.end()

    def leaves(self) -> None:
        self.join()
        self.loop(100, 0.3)
        os._exit(0)

    def wrapped(self) -> None:
        from torch.nn.parallel import DistributedDataParallel

        self.join()
        model = DistributedDataParallel(self.net)
        for step in range(100):
            with contextlib.nullcontext() if step % 2 else model.no_sync():
                model(self.torch.ones(256, 512)).sum().backward()
            time.sleep(0.3)
            self.finished(self.torch.ones(1))
        self.end()

    def heavy(self) -> None:
        self.join()
        for _ in range(20):
            count_words(1.5)
            self.step()
        self.end()

    def late_batches(self) -> None:
        self.join()
        self.loop(20, 2.0)
        self.end()

    def compiles(self) -> None:
        self.join()
        self.loop(TROUBLE)
        for width in range(8, 11):
            layer = self.torch.compile(self.torch.nn.Sequential(self.torch.nn.Linear(width, 8), self.torch.nn.GELU()))
            layer(self.torch.ones(4, width)).sum().backward()
            self.step()
        self.end()

    def evaluates(self) -> None:
        self.join()
        for _ in range(6):
            self.loop(12, 0.3)
            if self.rank == 0:
                count_words(3)
            self.dist.barrier()
        self.end()

    def saves(self) -> None:
        self.join()
        for _ in range(6):
            self.loop(12, 0.3)
            if self.rank == 0:
                self.save_checkpoint(2)
            self.dist.barrier()
        self.end()

    def workers(self) -> None:
        self.join()
        for batch in self.torch.utils.data.DataLoader(Rows(200), batch_size=2, num_workers=2):
            time.sleep(0.3)
            self.step(batch)
        self.end()

    def reads_first(self) -> None:
        (FOLDER / f"ready-{os.environ['RANK']}").write_text(str(os.getpid()))
        count_words(30)
        self.join()
        self.loop(TROUBLE)
        self.end()

    def parallel(self) -> None:
        self.join()
        halves = [self.dist.new_group([0, 1]), self.dist.new_group([self.size - 1])]
        for _ in range(80):
            self.step()
            self.dist.all_reduce(self.torch.ones(8), group=halves[self.rank == self.size - 1])
            time.sleep(0.4)
        self.end()

    def pipeline(self) -> None:
        self.join()
        for _ in range(80):
            if self.rank:
                self.dist.recv(self.torch.ones(8), self.rank - 1)
            time.sleep(0.15)
            if self.rank + 1 < self.size:
                self.dist.send(self.torch.ones(8), self.rank + 1)
            self.step()
        self.end()

    def caught_once(self) -> None:
        import traceback

        self.until_trouble()
        try:
            Path("/data/shard-00001-of-00003.parquet").read_bytes()
        except FileNotFoundError:
            traceback.print_exc()
        self.loop(3)
        self.end()

    def caught(self) -> None:
        import traceback

        self.join()
        for step in range(100):
            if step % 20 == 5:
                try:
                    Path("/data/shard-00001-of-00003.parquet").read_bytes()
                except FileNotFoundError:
                    traceback.print_exc()
            time.sleep(0.3)
            self.step()
        self.end()

    def retries(self) -> None:
        self.join()
        for step in range(100):
            if step in (5, 9):
                print("WARNING urllib3.connectionpool: Retrying (Retry(total=4)) after connection broken by 'ConnectionResetError(104, "
                      "'Connection reset by peer')': /api/models", file=sys.stderr, flush=True)
            time.sleep(0.3)
            self.step()
        self.end()

    def joined(self) -> None:
        from torch.distributed.algorithms.join import Join
        from torch.nn.parallel import DistributedDataParallel

        self.join()
        model = DistributedDataParallel(self.net)
        with Join([model]):
            for _ in range(100 + 5 * self.rank):
                model(self.torch.ones(256, 512)).sum().backward()
                time.sleep(0.3)
                self.finished(self.torch.ones(1))
        self.end()

    def several_calls(self) -> None:
        self.join()
        for step in range(100):
            chosen, gathered = self.torch.tensor([step]), [self.torch.zeros(1) for _ in range(self.size)]
            self.dist.broadcast(chosen, 0)
            self.dist.all_gather(gathered, self.torch.ones(1))
            time.sleep(0.3)
            self.step()
        self.end()

    def overlapped(self) -> None:
        self.join()
        for _ in range(100):
            works = [self.dist.all_reduce(self.torch.ones(1 << 14), async_op=True) for _ in range(4)]
            time.sleep(0.3)
            for work in works:
                work.wait()
            self.step()
        self.end()

    def jitter(self) -> None:
        self.join()
        for step in range(100):
            time.sleep(0.6 if step % self.size == self.rank else 0.1)
            self.step()
        self.end()

    def monitors(self) -> None:
        self.join()
        for _ in range(100):
            self.dist.monitored_barrier()
            time.sleep(0.3)
            self.step()
        self.end()

    def background(self) -> None:
        """Batches come from a thread, and metrics go to one."""
        self.join()
        batches: queue.Queue[Any] = queue.Queue(2)
        threading.Thread(target=lambda: [batches.put(self.torch.ones(256, 512)) for _ in range(80)], daemon=True).start()
        for _ in range(80):
            time.sleep(0.4)
            self.step(batches.get())
        self.end()

    def alone(self) -> None:
        self.simple()

    def serves(self) -> None:
        """An engine between two requests: rank 0 waits for the next one, the others for what it will send them."""
        self.until_trouble()
        requests: queue.Queue[str] = queue.Queue()
        threading.Timer(30, requests.put, ["prompt"]).start()
        prompt = requests.get() if self.rank == 0 else ""
        self.dist.broadcast(self.torch.tensor([len(prompt)]), 0)
        self.end()


def write_dump(folder: Path, rank: int) -> None:
    from torch._C import _distributed_c10d as recorder

    time.sleep(25)
    folder.mkdir(exist_ok=True)
    (folder / f"fr_rank_{rank}").write_bytes(recorder._dump_fr_trace())


def count_words(seconds: float) -> None:
    until, words = time.monotonic() + seconds, dict[str, int]()
    while time.monotonic() < until:
        text = " ".join(map(str, range(1000)))
        for word in text.split():
            words[word] = words.get(word, 0) + 1
        order = sorted(words, key=lambda w: -words[w])
        words = {w: words[w] for w in order}


def spawned(local_rank: int, job: str) -> None:
    """What `torch.multiprocessing.spawn` calls: its ranks learn who they are from an argument."""
    os.environ.update(RANK=str(local_rank), LOCAL_RANK=str(local_rank))
    getattr(Training(), job)()


def fork(rank: int, job: str, folder: str, variables: dict[str, str]) -> int:
    """A rank of a warm launcher: it prints and ends as one that an interpreter of its own runs."""
    global FOLDER
    if pid := os.fork():
        return pid
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "JOB_FOLDER": folder, **variables})
    for name in [name for name, value in os.environ.items() if value == ""]:
        del os.environ[name]
    FOLDER = Path(folder)
    sys.modules["torch.distributed"].set_debug_level_from_env()
    log = os.open(FOLDER / "job.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        getattr(Training(), job)()
    except Exception:  # noqa: BLE001 - what a rank ends with is what the job is for
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(1)
    finally:
        sys.stdout.flush()
    os._exit(0)


def serve() -> None:
    """Lines of JSON (job, folder, variables, how many ranks); each is answered once all its ranks have ended."""
    import torch.distributed  # noqa: F401
    import torch.utils.data  # noqa: F401

    for line in sys.stdin:
        asked = json.loads(line)
        ranks = [fork(rank, asked["job"], asked["folder"], asked["variables"]) for rank in range(asked["size"])]
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve()
    elif sys.argv[1] == "--spawn":
        import torch.multiprocessing

        torch.multiprocessing.spawn(spawned, (sys.argv[2],), nprocs=int(os.environ["WORLD_SIZE"]))
    else:
        getattr(Training(), sys.argv[1])()
