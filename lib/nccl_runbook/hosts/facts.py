"""Facts about the hosts of one job: what each shows, how far a TCP connection between two of them came,
and worlds over several."""

import dataclasses
from typing import Any

from nccl_runbook.core.facts import Gap
from nccl_runbook.core.facts_world import RankResult


@dataclasses.dataclass(frozen=True)
class HostFacts:
    """Facts of one host. ``source``: the file or carrier; ``facts``: dotted path -> value as text, or a Gap
    for all below that path."""

    host: str
    source: str
    facts: dict[str, str | Gap]


@dataclasses.dataclass(frozen=True)
class Difference:
    """One fact, or several that split the hosts alike. ``values``: value -> its hosts, most hosts first."""

    name: str
    paths: list[str]
    values: dict[str, list[str]]
    severity: str = "note"

    @property
    def majority(self) -> str:
        """The value of more than half of the hosts; empty if there is none."""
        value, hosts = next(iter(self.values.items()))
        return value if 2 * len(hosts) > sum(map(len, self.values.values())) else ""

    @property
    def odd(self) -> list[str]:
        """Hosts outside the majority, or all hosts if there is none."""
        return [
            host
            for value, hosts in self.values.items()
            if value != self.majority or not self.majority
            for host in hosts
        ]


@dataclasses.dataclass(frozen=True)
class TcpPath:
    """A connection from ``source`` to ``target`` by that name. ``purpose``: rendezvous or data. ``kind``:
    passes, refused, no-answer, large-lost (1 byte passed, 1 MiB did not), no-route, unresolved,
    other-host, closed; ``mss``: bytes of a segment, 0 if not connected; ``stage``: what was under way when
    it stopped."""

    source: str
    target: str
    purpose: str
    port: int
    kind: str
    detail: str = ""
    address: str = ""
    mss: int = 0
    stage: str = ""
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class HostWorld:
    """Ranks over hosts: ``ranks[i]`` ran on ``hosts[i]``. ``lost``: host -> why its agent was lost
    meanwhile; ``not_run``: why no rank was started, empty if ranks ran."""

    name: str
    hosts: list[str]
    ranks: list[RankResult]
    wall_s: float
    backend: str
    lost: dict[str, str] = dataclasses.field(default_factory=dict)
    not_run: str = ""

    @property
    def passed(self) -> bool:
        """Whether all ranks ran and exited with 0, and no host was lost."""
        return (
            not self.lost
            and not self.not_run
            and all(r.outcome == "exited" and r.code == 0 for r in self.ranks)
        )

    def last_begun(self, rank: RankResult) -> str:
        """The last operation that the rank began: "init", "all_reduce", or empty if it never reported."""
        return next((str(e["what"]) for e in reversed(rank.named("begin"))), "")


@dataclasses.dataclass(frozen=True)
class Ended:
    """How one record of a step ended, and its file."""

    started: str
    status: str
    reason: str
    path: str


@dataclasses.dataclass(frozen=True)
class Hosts:
    """Everything seen. ``hosts``: host -> facts, or a Gap if it did not answer; ``unread``: files that are
    no records; ``lost``: hosts that stopped answering; ``judged``: host -> step -> status and reason;
    ``records``: (host, step) -> each of its records, earliest first;
    ``marks``: seconds from the start until a result was known; ``paths``, ``worlds``: Gaps if they were not
    tried."""

    hosts: dict[str, HostFacts | Gap]
    unread: dict[str, Gap] = dataclasses.field(default_factory=dict)
    paths: list[TcpPath] | Gap = Gap("not-run", "only records were compared, and no machine was contacted")
    worlds: list[HostWorld] | Gap = Gap("not-run", "only records were compared, and no machine was contacted")
    lost: dict[str, Gap] = dataclasses.field(default_factory=dict)
    judged: dict[str, dict[str, tuple[str, str]]] = dataclasses.field(default_factory=dict)
    records: dict[tuple[str, str], list[Ended]] = dataclasses.field(default_factory=dict)
    marks: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def answered(self) -> list[HostFacts]:
        """Facts of the hosts that answered."""
        return [h for h in self.hosts.values() if isinstance(h, HostFacts)]

    @property
    def missing(self) -> dict[str, Gap]:
        """Hosts and files that gave no facts, with the reason."""
        return {**{host: h for host, h in self.hosts.items() if isinstance(h, Gap)}, **self.unread}
