"""Looks at several hosts made one: whose names are told apart, and which of their ranks are of one job."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from nccl_runbook.core.facts import grouped
from nccl_runbook.hang.live.facts import Live
from nccl_runbook.hang.live.judge_hosts import Members, sockets


def together(looks: Iterable[Live]) -> list[Live]:
    """The same. Hosts of one name, as containers and cloned machines have it, get their address and pid namespace beside it. What is
    named by a pid or by localhost is a job of one host, unless ranks of another one meet at the same port and only together they are
    those of one job: then somebody's MASTER_ADDR is wrong, or only rank 0's host calls itself so."""
    looks = _told_apart(sorted(looks, key=lambda one: (one.host, one.boot_id, one.taken)))
    jobs: list[Members] = []
    for part in grouped(((r.job, _place(r.job, look)), (r, look)) for look in looks for r in look.ranks).values():
        whole = next((one for one in jobs if _halves(one, part)), None)
        jobs += [part] if whole is None else []
        (part if whole is None else whole).extend([] if whole is None else part)
    names = [next((r.job for r, _ in one if " in net:" not in r.job), one[0][0].job) for one in jobs]
    own = {id(r): f"{name} on {one[0][1].host}" if names.count(name) > 1 else name for name, one in zip(names, jobs) for r, _ in one}
    return [dataclasses.replace(look, ranks=[dataclasses.replace(r, job=own[id(r)]) for r in look.ranks]) for look in looks]


def _told_apart(looks: list[Live]) -> list[Live]:
    boots = grouped((look.host, look.boot_id) for look in looks if look.ranks)
    return [dataclasses.replace(look, host=f"{look.host} ({_address(look)}pid namespace {look.boot_id.rpartition('[')[2].rstrip(']')})")
            if len(set(boots.get(look.host, ()))) > 1 else look for look in looks]


def _address(look: Live) -> str:
    found = {s.local.rpartition(":")[0] for r in look.ranks for s in sockets(r) if s.state == "ESTABLISHED"}
    return next((f"{one}, " for one in sorted(found) if not one.startswith(("127.", "[::1]"))), "")


def _place(job: str, look: Live) -> str:
    return look.boot_id if job.startswith(("children of ", "session ")) else look.boot_id.partition(" ")[0] if " in net:" in job else ""


def _halves(some: Members, others: Members) -> bool:
    """They are different ranks of as many, more than a host was to have, of different hosts, and meet at one port, some at localhost."""
    both, numbers = [*some, *others], [{r.rank for r, _ in part} for part in (some, others)]
    sizes, ports = {r.world_size for r, _ in both}, {r.variables.get("MASTER_PORT") for r, _ in both}
    return (len(sizes) == len(ports) == 1 and None not in sizes | ports | numbers[0] | numbers[1] and not numbers[0] & numbers[1]
            and all((r.local_world_size or 0) < (r.world_size or 0) for r, _ in both)
            and not {look.host for _, look in some} & {look.host for _, look in others} and any(" in net:" in r.job for r, _ in both))
