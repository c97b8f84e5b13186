"""What a weight sync is measured by, beside weight_sync.py: the time of each phase, and engines kept busy.

Standard library and torch (>= 2.2), Python >= 3.9.
"""

import collections
import contextlib
import dataclasses
import threading
import time

import check
import torch

# what counts where two overlap: the first of these
PHASES = ("wire", "load", "pack", "gather", "write", "control", "wait")
# what the host does to queue a phase's work, and to learn that it is done: counts for
# that phase while nothing else runs
LAUNCH = " launch"
ORDER = (*PHASES, *(phase + LAUNCH for phase in PHASES))


@dataclasses.dataclass
class Span(contextlib.AbstractContextManager):
    """A phase on the host that starts when made and ends with its ``with`` block. A generator took 12 us a
    tensor that no phase counted."""

    clock: object
    phase: str
    first: float = dataclasses.field(default_factory=time.perf_counter)

    def __exit__(self, kind, *_):
        if kind is None:
            self.clock.spans.append(
                (self.phase, self.first - self.clock.began, time.perf_counter() - self.clock.began)
            )


@dataclasses.dataclass(eq=False)
class Clock:
    """When each phase ran on this rank; on a GPU by events in its streams, since waiting would serialise
    work that overlaps."""

    device: torch.device
    spans: list = dataclasses.field(default_factory=list)
    events: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.wait()
        self.base = self.mark()
        self.began = time.perf_counter()

    def wait(self):
        """Wait until the device has finished all queued work."""
        check.settle(self.device)

    def mark(self):
        """A timing event in the current stream, or None on a CPU."""
        if self.device.type != "cuda":
            return None
        return torch.cuda.current_stream().record_event(torch.cuda.Event(enable_timing=True))

    def host(self, phase):
        """A context that counts its time on the host towards ``phase``."""
        return Span(self, phase)

    @contextlib.contextmanager
    def queued(self, phase, stream=None):
        """A context that times the work queued on ``stream``. Without a stream (or on a CPU) it waits for
        the work and counts host time."""
        if stream is None:
            with self.host(phase):
                yield
                self.wait()
        else:
            with self.host(phase + LAUNCH), torch.cuda.stream(stream):
                first = self.mark()
                yield
                self.events.append((phase, first, self.mark()))

    def notice(self, phase):
        """Wait for the device; the time until the host learns of the end counts towards ``phase``."""
        with self.host(phase + LAUNCH):
            self.wait()

    def stop(self):
        """Wait for the last byte; sets ``seconds`` (total) and ``phases`` (phase -> seconds, same total)."""
        self.wait()
        self.seconds = time.perf_counter() - self.began
        self.spans += [
            (p, self.base.elapsed_time(a) / 1e3, self.base.elapsed_time(b) / 1e3) for p, a, b in self.events
        ]
        self.phases = shares(self.spans, self.seconds)


def shares(spans, total):
    """Phase -> seconds of ``total``: when several phases overlap, the first of PHASES counts; "other" when
    none runs."""
    edges = sorted(edge for phase, a, b in spans for edge in ((a, 1, phase), (b, -1, phase)))
    seconds, running, last = collections.Counter(), dict.fromkeys((*ORDER, ""), 0), 0.0
    for at, step, phase in [*edges, (total, 0, "")]:
        at = min(max(at, last), total)
        now = next((p for p in ORDER if running[p]), "other")
        seconds[now.replace(LAUNCH, "")] += at - last
        running[phase] += step
        last = at
    return {p: s for p, s in seconds.items() if s > 0}


@contextlib.contextmanager
def busy(device, edge):
    """A context in which an engine keeps multiplying square bfloat16 matrices of this edge on its own
    stream. RuntimeError if the multiplication fails before it has started (cuBLAS loads first, which takes
    longer than a sync)."""
    running, stopped = threading.Event(), threading.Event()
    thread = threading.Thread(target=_multiply, args=(device, edge, running, stopped), daemon=True)
    thread.start()
    while not running.wait(0.1):
        if not thread.is_alive():
            raise RuntimeError(f"the engine could not multiply matrices of {edge} x {edge}")
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _multiply(device, edge, running, stopped):
    """Multiply until ``stopped`` is set; sets ``running`` once the queue is full (runs in a thread)."""
    gpu = device.type == "cuda"
    a, b, c = (torch.ones(edge, edge, dtype=torch.bfloat16, device=device) for _ in "abc")
    stream, queued = torch.cuda.Stream(device) if gpu else None, collections.deque()
    with torch.cuda.stream(stream):
        while not stopped.is_set():
            torch.mm(a, b, out=c)
            if gpu:
                queued.append(stream.record_event())
                if len(queued) > 4:
                    queued.popleft().synchronize()
            if not gpu or len(queued) == 4:
                running.set()
