"""Pairs of GPUs to run after the arms, when an arm fails every time."""

import functools
from typing import Union

from nccl_runbook.core.facts import Gap
from nccl_runbook.launch.engine import Engine
from nccl_runbook.worlds import ask as worlds
from nccl_runbook.worlds.ask import MIB, STALL_S, budget
from nccl_runbook.worlds.facts import Arms, Pairs, Trial

OPS = "all_reduce,broadcast,send_recv,all_gather"
GPU_SIZES, CPU_SIZES = (4, 65536, MIB, 16 * MIB, 256 * MIB, 1024 * MIB), (4, 65536, MIB)
PAIR_DEADLINE_S = 20.0  # of a few GPUs, nothing timed: four over sockets took 9.7 s on H200


def clean_passes(arms: Arms) -> bool:
    """Whether the arm *clean* ran and passed."""
    return not isinstance(arms.clean, Gap) and isinstance(arms.clean.trial, Trial) and arms.clean.trial.passed


def pairs(engine: Engine, arms: Union[Arms, Gap], budget_s: float) -> Union[Pairs, Gap]:
    """Which two GPUs alone reproduce the control's failure, neighbours first. Stops once all pairs fail at
    the same time: then no single GPU or link is at fault, and each hang costs seconds. A Gap if there is
    nothing to search."""
    if isinstance(arms, Gap) or clean_passes(arms) or not _fails_every_time(arms):
        return Gap(
            "not-run",
            "runs only if the test of three or more GPUs fails every time, both with your environment and "
            "without the variables that may affect NCCL",
        )
    gpus = sorted(arms.control.world.request.devices)
    make = functools.partial(
        worlds.request, ops=OPS, deadline_s=PAIR_DEADLINE_S, timed=False, stall_s=STALL_S, sizes=GPU_SIZES
    )
    return worlds.every_pair(engine, gpus, budget(budget_s, True, PAIR_DEADLINE_S), make, lone=len(gpus) > 3)


def _fails_every_time(arms: Arms) -> bool:
    devices = arms.control.world.request.devices
    return (
        arms.control.failed_twice
        and (isinstance(arms.control_after, Gap) or not arms.control_after.passed)
        and len(set(devices)) == len(devices) > 2
    )
