"""Facts of made-up environments for the rules' tests: a clean one shaped like the 4 x H200 host, and ways to change one thing in it."""
from __future__ import annotations

import dataclasses
from typing import Any

from nccl_runbook.core.facts import Gap
from nccl_runbook.environment.facts import Environment, Host, Library, Role

NCCL = "/venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"
SHA = "a5" * 32
NOT_RUN = Gap("not-run", "not read here")


def library(path: str = NCCL, **changes: Any) -> Library:
    return dataclasses.replace(Library(path, SHA, "2.28.9", "13.0", {"nvidia-nccl-cu13 2.28.9": "same"}), **changes)


def role(name: str = "a rank", variables: dict[str, str] | None = None, **changes: Any) -> Role:
    made = Role(name=name, variables=variables or {}, where={}, others=40, conf={}, torch="2.11.0+cu130", torch_cuda="13.0", mapped=[NCCL],
                reported="2.28.9", nofile="1048576", memlock="unlimited", shm=[64 << 30, 60 << 30, 23], container=[],
                ipc_namespace="ipc:[4026531839]", interfaces=["lo", "eth0", "ib0", "docker0"], routes=["eth0"])
    return dataclasses.replace(made, **changes)


def host(**changes: Any) -> Host:
    made = Host(name="node1", addresses=["10.0.0.1"], hcas=["mlx5_0", "mlx5_1"], iommu="off", acs=[], xids=[], libraries=[library()])
    return dataclasses.replace(made, **changes)


def environment(*roles: Role, on: Host | Gap | None = None) -> Environment:
    return Environment(list(roles) or [role()], host() if on is None else on)


def with_set(on: Host | Gap | None = None, torch: Any = "2.11.0+cu130", nccl: Any = "2.28.9", **variables: str) -> Environment:
    """One rank with these variables."""
    return environment(role(variables=variables, torch=torch, reported=nccl), on=on)
