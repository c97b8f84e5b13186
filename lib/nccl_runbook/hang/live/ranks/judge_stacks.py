"""What the stacks of one rank show: where it is, whether it waits."""

import itertools
import re
from typing import Callable, List, Optional, Tuple

from nccl_runbook.core.facts import Gap
from nccl_runbook.hang.live.facts import Frame, LiveRank, Stack

# a thread that used less CPU between two samples only waited: a wake-up every second
# costs under a tick of 10 ms
STILL_CPU_S = 0.05
BUSY_SHARE = 0.5  # of those moments on a CPU or ready to run; a share, as CPU time shrinks on a crowded host
GIL_SAMPLES = 4  # stacks at one and the same line: a loop in Python is seen at several
LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(?:64)?/python3\.\d+/|^<")
_PACKAGES = re.compile(r".*/(?:(?:site|dist)-packages|lib(?:64)?/python3\.\d+)/")
# what saves a checkpoint works between its collectives
DISTRIBUTED = re.compile(r"/torch/distributed/(?!checkpoint/)")

INIT = frozenset(
    (
        "init_process_group",
        "rendezvous",
        "_create_c10d_store",
        "_env_rendezvous_handler",
        "_store_based_barrier",
        "_new_process_group_helper",
        "new_group",
        "_new_group_with_tag",
    )
)

ANSWER = "an answer over a socket: the value of a store key that no rank sets, or the reply of a server"
_QUEUE = re.compile(r"/(?:queue|multiprocessing/queues|selectors|socketserver)\.py$")
_CHILD = re.compile(r"/(?:subprocess|multiprocessing/(?:process|popen_\w+))\.py$")
_DEVICE_WAITS = re.compile(r"/torch/(cuda/|autograd/graph\.py|accelerator/)")
_LOOP = re.compile(r"<(listcomp|setcomp|dictcomp|genexpr)>$")


def polls(rank: LiveRank) -> bool:
    """Whether the rank mostly sleeps, is at one line of its own code in every sample, and uses no CPU (a
    lock of torch's extensions, a file)."""
    return (
        share(rank, lambda what: "nanosleep" in what) >= BUSY_SHARE
        and len(set(places(rank))) == 1
        and rank.samples[-1].threads[0].cpu_s - rank.samples[0].threads[0].cpu_s <= STILL_CPU_S
    )


def asks(rank: LiveRank) -> bool:
    """Whether the rank waits for an answer over a socket, in native code that its own code called: get() and
    wait() of torch's store have no frame."""
    return any(
        stack.frames and own_frame(stack) == stack.frames[0] for stack in main_stacks(rank)[-1:]
    ) and bool(re.match("(?:do_|do_sys_|p)?poll", rank.samples[-1].threads[0].waits))


def awaits_work(rank: LiveRank) -> bool:
    """Whether the rank waits for a queue or for a client: an engine between two requests does, and a rank
    whose own thread brings nothing more. Only the innermost frames count, as long as they belong to the
    standard library: code that a server calls does not wait for a client, and neither does what waits for a
    child process."""
    files = [
        frame.file
        for last_stack in main_stacks(rank)[-1:]
        for frame in itertools.takewhile(
            lambda frame: LIBRARY.search(frame.file) and "-packages/" not in frame.file, last_stack.frames
        )
    ]
    return any(map(_QUEUE.search, files)) and not any(map(_CHILD.search, files))


def share(rank: LiveRank, fits: Callable[[str], bool]) -> float:
    """Share of moments between the samples in which the main thread was in such a state, 0 to 1."""
    return sum(n for what, n in rank.main_thread.items() if fits(what)) / max(
        1, sum(rank.main_thread.values())
    )


def main_stacks(rank: LiveRank) -> List[Stack]:
    """The stack of the main thread at each sample that has one."""
    return [s.stacks[0] for s in rank.samples if not isinstance(s.stacks, Gap) and s.stacks]


def own_frame(stack: Stack) -> Optional[Frame]:
    """The innermost frame outside the standard library and installed packages; else the innermost; None
    without frames."""
    return next(
        (f for f in stack.frames if not LIBRARY.search(f.file)), stack.frames[0] if stack.frames else None
    )


def places(rank: LiveRank) -> List[Tuple[str, int]]:
    """(file, line) of its own code in each sample with stacks."""
    return [(f.file, f.line) for f in map(own_frame, main_stacks(rank)) if f]


def waits_in(stack: Stack) -> str:
    """The call of torch.distributed, or the wait for a device, in which the stack is; empty if in neither."""
    device = ""
    for frame in stack.frames:
        if DISTRIBUTED.search(frame.file) and frame.function not in ("wrapper", "<module>"):
            return next((f.function for f in reversed(stack.frames) if f.function in INIT), frame.function)
        if _DEVICE_WAITS.search(frame.file):
            device = device or frame.function
        elif not LIBRARY.search(frame.file):
            break
    return device


def words_of(stack: Optional[Stack]) -> str:
    """ "save_pretrained, train.py:812", with the innermost call if that is a library's."""
    if stack is None or (frame := own_frame(stack)) is None:
        return ""
    return frame_words(frame) + (f" (in {stack.frames[0].function})" if stack.frames[0] != frame else "")


def frame_words(frame: Frame) -> str:
    """ "save, train.py:812"; a file of an installed package with its path below the package folder."""
    folder = _PACKAGES.match(frame.file)
    file = frame.file[folder.end() :] if folder else frame.file.rpartition("/")[2]
    return f"{frame.function}, {file}:{frame.line}" if file else frame.function


def holds_gil(rank: LiveRank) -> bool:
    """Whether the main thread held the interpreter lock at the same innermost line in every sample with
    stacks. A comprehension's frame (up to Python 3.11) is a loop and releases the lock, so it does not
    count."""
    stacks = main_stacks(rank)
    inner = stacks[0].frames[:1] if len(stacks) >= GIL_SAMPLES else []
    return (
        bool(inner)
        and all(s.owns_gil and s.is_active and s.frames[:1] == inner for s in stacks)
        and not _LOOP.search(inner[0].function)
    )
