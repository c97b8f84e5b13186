"""May GPU tests run beside whoever is on the GPUs: settled before anything starts,
in a notebook as on a bare node.

Pure, standard library only, Python >= 3.9: the same decision with the same words in nccl-look.pyz. It guards
the jobs of others; what the machine is worth is judged by rules.
"""

import dataclasses
from typing import Iterator, List, Optional, Tuple, Union

from nccl_runbook.core.facts import Gap, grouped, listed
from nccl_runbook.machine.facts import GpuUse, GpuUsers, Owner

UNLISTED_MIB = (
    1024  # memory that no process is listed for: another container's job; contexts of services stay below
)
UNLISTED_WSL_MIB = 6144  # on WSL2 the Windows desktop's own memory is never listed
BOTH_KINDS_MIB = 2048  # a compositor or browser is listed as compute and graphics
WORKING_PERCENT = 10  # utilisation without a listed process, in every sample
WORKING_WSL_PERCENT = 60
SERVICES = ("nvidia-cuda-mps", "nvidia-persiste", "nv-hostengine", "dcgm")


@dataclasses.dataclass(frozen=True)
class Busy:
    """Why no GPU test runs. ``words``: one phrase a process or GPU; ``mine``: pids of the same user that the
    runbook did not start."""

    words: List[str]
    mine: List[int]

    @property
    def reason(self) -> str:
        """Why a step was not run: the first two owners, and the number of the others."""
        return f"not run: busy ({listed(self.words, 2, '; ')})"


def in_the_way(users: Union[GpuUsers, Gap], allow_busy: bool) -> Optional[Busy]:
    """Who would be disturbed; None if tests may run, or nothing is known (without NVML no GPU test runs
    anyway)."""
    if allow_busy or isinstance(users, Gap):
        return None
    uses = [u for u in users.gpus if isinstance(u, GpuUse)]
    held = [(u, o) for u in uses if not isinstance(u.owners, Gap) for o in u.owners if _counts(o)]
    words = [
        *_merged(held),
        *(
            f"unknown owner, {text} on GPU {u.nvml_index}"
            for u in uses
            if not any(h is u for h, _ in held) and (text := _unlisted(u, users.is_wsl))
        ),
    ]
    return Busy(words, sorted({o.pid for _, o in held if o.is_same_user})) if words else None


def _counts(owner: Owner) -> bool:
    """Whether this process's work would be disturbed: not ours, not the desktop, no idle service."""
    if (
        owner.is_ours
        or owner.kind == "graphics"
        or (isinstance(owner.name, str) and owner.name.startswith(SERVICES))
    ):
        return False
    return owner.kind == "compute" or isinstance(owner.used_mib, Gap) or owner.used_mib > BOTH_KINDS_MIB


def _unlisted(use: GpuUse, is_wsl: bool) -> str:
    """Memory or utilisation on a GPU that no listed process explains, in words; "" if none to speak of."""
    owners = [] if isinstance(use.owners, Gap) else use.owners
    sizes = [use.used_mib, *(o.used_mib for o in owners)]
    rest = 0 if any(isinstance(mib, Gap) for mib in sizes) else sizes[0] - sum(sizes[1:])
    if rest > (UNLISTED_WSL_MIB if is_wsl else UNLISTED_MIB):
        return f"{rest} MiB"
    samples = [] if isinstance(use.utilisation_percent, Gap) or owners else use.utilisation_percent
    return (
        f"{min(samples)} % utilisation"
        if samples and min(samples) >= (WORKING_WSL_PERCENT if is_wsl else WORKING_PERCENT)
        else ""
    )


def _merged(held: List[Tuple[GpuUse, Owner]]) -> Iterator[str]:
    """One phrase a process: "pid 4711, alice, 40213 MiB on GPU 2"."""
    for pid, uses in grouped((o.pid, (u, o)) for u, o in held).items():
        sizes = [o.used_mib for _, o in uses if not isinstance(o.used_mib, Gap)]
        user = uses[0][1].user
        yield (
            f"pid {pid}, {user if isinstance(user, str) else 'unknown owner'}, "
            f"{f'{sum(sizes)} MiB' if sizes else 'memory unknown'} on GPU "
            f"{', '.join(str(u.nvml_index) for u, _ in uses)}"
        )
