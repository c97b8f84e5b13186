"""Jobs of many ranks, simulated: what each would have in its recorder when it hangs, with NCCL's fields of any torch from 2.2 to 2.13.

Every rank runs a program of collectives in its groups (tensor, pipeline, data parallel, world) and of sends and receives. Its host runs
ahead of its GPU by a few operations; its GPU works in order; an operation ends when every member has it first in line. A fault changes
one rank's program or GPU.
"""
from __future__ import annotations

import dataclasses
import json
import os
import pickle
import random
from pathlib import Path
from typing import Any

START_NS = 1_795_176_183_000_000_000
TICK_NS = 3_000_000
FAULTS = ("skip", "stall", "size", "dtype", "op", "swap", "extra", "gpu")
VERSIONS = ("2.10", "2.7", "2.4", "2.2", "1.4")


@dataclasses.dataclass
class Item:
    """One call: ``op`` of ``group`` (name), or a send or recv with ``peer``."""

    group: str
    op: str
    numel: int = 1024
    dtype: str = "Float"
    peer: int = -1

    @property
    def p2p(self) -> bool:
        return self.op in ("send", "recv")


@dataclasses.dataclass
class Entry:
    item: Item
    seq: int
    created: int
    done: int | None = None


class Job:
    """``run`` it, then ``write`` its dumps. ``culprits``: whom a fault was given to."""

    def __init__(self, seed: int, world: int = 16, steps: int = 6) -> None:
        self.random = random.Random(seed)
        self.world, self.steps = world, steps
        self.groups: dict[str, tuple[str, tuple[int, ...]]] = {"0": ("default_pg", tuple(range(world)))}
        self._lay_out()
        self.programs = [self._program(r) for r in range(world)]
        self.ahead = [self.random.choice((0, 0, 1, 3, 6)) for _ in range(world)]
        self.culprits: dict[int, str] = {}
        self.records: list[list[Entry]] = [[] for _ in range(world)]
        self.stuck: dict[int, int] = {}  # rank -> index of the operation that its GPU never finishes
        self.stop: dict[int, int] = {}  # rank -> index of the call that it never makes
        self.delay: dict[int, int] = {}  # rank -> ticks late at each step
        self.taken: dict[int, tuple[int, list[Entry]]] = {}
        self._fault_at: dict[int, int] = {}
        self.tick = 0

    def shown(self) -> set[int]:
        """Culprits that came as far as their fault: the others were held up before it."""
        return {
            r
            for r, at in self._fault_at.items()
            if (self._head[r] if self.culprits[r] == "gpu" else self._pc[r] - (self.culprits[r] not in ("stall", "skip"))) >= at
        }

    def _lay_out(self) -> None:
        tp = self.random.choice((2, 4))
        pp = self.random.choice((1, 2)) if self.world // tp > 2 else 1
        dp = self.world // tp // pp
        self.tp, self.pp, self.dp = tp, pp, dp
        grid = [[[d * tp * pp + p * tp + t for t in range(tp)] for p in range(pp)] for d in range(dp)]
        sets = [("tp", [tuple(grid[d][p]) for d in range(dp) for p in range(pp)]),
                ("pp", [tuple(grid[d][p][t] for p in range(pp)) for d in range(dp) for t in range(tp)] if pp > 1 else []),
                ("dp", [tuple(grid[d][p][t] for d in range(dp)) for p in range(pp) for t in range(tp)] if dp > 1 else [])]
        for desc, members in sets:
            for ranks in members:
                self.groups[str(len(self.groups))] = (desc, ranks)

    def group_of(self, rank: int, desc: str) -> str | None:
        return next((n for n, (d, ranks) in self.groups.items() if d == desc and rank in ranks), None)

    def _program(self, rank: int) -> list[Item]:
        tp, pp, dp = (self.group_of(rank, d) for d in ("tp", "pp", "dp"))
        stage = (rank // self.tp) % self.pp
        items: list[Item] = []
        for step in range(self.steps):
            if step == 0:
                items.append(Item("0", "broadcast", 64))
            for _ in range(2):
                if pp and stage:
                    items.append(Item(pp, "recv", 256, "BFloat16", self.groups[pp][1][stage - 1]))
                items += [Item(tp, "all_reduce", 4096, "BFloat16"), Item(tp, "_all_gather_base", 2048, "BFloat16")]
                if pp and stage + 1 < self.pp:
                    items.append(Item(pp, "send", 256, "BFloat16", self.groups[pp][1][stage + 1]))
            if dp:
                items += [Item(dp, "_reduce_scatter_base", 8192), Item(dp, "_all_gather_base", 8192, "BFloat16")]
            items.append(Item("0", "all_reduce", 1))
        return items

    def add_phase(self, step: int) -> None:
        """An evaluation before ``step``: calls that no rank made before, and some that only every fourth rank makes."""
        log = str(len(self.groups))
        self.groups[log] = ("log", tuple(range(0, self.world, 4)))
        for rank, program in enumerate(self.programs):
            mine = [Item(log, "all_reduce", 5)] if rank % 4 == 0 else []
            at = 1 + step * ((len(program) - 1) // self.steps)
            program[at:at] = [
                Item("0", "all_gather"),
                *mine,
                *[Item(self.group_of(rank, "tp") or "0", "broadcast", 32)] * 2,
                Item("0", "barrier", 1),
            ]

    # faults

    def inject(self, rank: int, fault: str, step: int) -> None:
        """Change what ``rank`` does in ``step`` (from 0); the others are innocent."""
        per = (len(self.programs[rank]) - 1) // self.steps
        low = 1 + step * per
        program = self.programs[rank]
        at = self.random.choice([i for i in range(low, low + per) if not program[i].p2p])
        item = program[at]
        self.culprits[rank] = fault
        self._fault_at[rank] = at
        if fault == "skip":
            del program[at]
        elif fault == "stall":
            self.stop[rank] = at
        elif fault == "gpu":
            self.stuck[rank] = at
        elif fault == "size":
            program[at] = dataclasses.replace(item, numel=item.numel * 2 + 1)
        elif fault == "dtype":
            program[at] = dataclasses.replace(item, dtype="Half")
        elif fault == "op":
            program[at] = dataclasses.replace(item, op="broadcast" if item.op != "broadcast" else "all_reduce")
        elif fault == "extra":
            program.insert(at, Item(item.group, "broadcast", 7))
        elif fault == "swap":
            mate = next(
                (i for i in range(at + 1, min(at + 4, len(program))) if program[i].group != item.group and not program[i].p2p), None
            )
            if mate is None:
                at, mate = next((i, i + 1) for i in range(low, low + per) if program[i].group != program[i + 1].group and not program[i].p2p
                                and not program[i + 1].p2p)
            program[at], program[mate] = program[mate], program[at]
        else:
            raise ValueError(fault)

    # the run

    def run(self, ticks: int = 100_000, looks: dict[int, list[int]] | None = None) -> Job:
        """Until nothing moves, or for so many ticks. ``looks``: tick -> ranks whose dump is taken then, as it would be of a job that
        lives."""
        self._pc = [0] * self.world
        self._head = [0] * self.world
        self._seqs: list[dict[tuple[str, bool], int]] = [{} for _ in range(self.world)]
        idle = 0
        for _ in range(ticks):
            self.tick += 1
            for rank in (looks or {}).get(self.tick, ()):
                self.taken[rank] = (self.tick, [dataclasses.replace(e) for e in self.records[rank]])
            moved = [self._issue(r) for r in range(self.world)]
            moved.append(self._finish())
            idle = 0 if any(moved) else idle + 1
            if idle > 3 + max(self.delay.values(), default=0):
                break
        return self

    def _issue(self, rank: int) -> bool:
        record, program = self.records[rank], self.programs[rank]
        if self._pc[rank] >= len(program) or self.stop.get(rank, 1 << 60) <= self._pc[rank]:
            return False
        if len(record) - self._head[rank] > self.ahead[rank] or self._late(rank):
            return False
        item = program[self._pc[rank]]
        key = (item.group, item.p2p)
        seq = self._seqs[rank][key] = self._seqs[rank].get(key, 0) + 1
        record.append(Entry(item, seq, self.tick))
        self._pc[rank] += 1
        return True

    def _late(self, rank: int) -> bool:
        """A straggler computes for ``delay`` ticks after its last operation ended."""
        done = [e.done for e in self.records[rank][-1:]]
        return bool(self.delay.get(rank) and done and (done[0] is None or self.tick - done[0] < self.delay[rank]))

    def _first(self, rank: int) -> Entry | None:
        return self.records[rank][self._head[rank]] if self._head[rank] < len(self.records[rank]) else None

    def _frozen(self, rank: int) -> bool:
        return self.stuck.get(rank, 1 << 60) <= self._head[rank]

    def _finish(self) -> bool:
        done: set[int] = set()
        for rank in range(self.world):
            entry = self._first(rank)
            if entry is None or rank in done:
                continue
            members = self._partners(rank, entry)
            if members:
                for member in members:
                    if not self._frozen(member):
                        self.records[member][self._head[member]].done = self.tick
                        self._head[member] += 1
                        done.add(member)
        return bool(done)

    def _partners(self, rank: int, entry: Entry) -> list[int]:
        """Everybody who ends this operation together with ``rank``; empty while somebody is missing."""
        item = entry.item
        if item.op == "send":
            return [] if self._frozen(rank) else [rank]  # small messages are on their way before anybody receives
        if item.op == "recv":
            sent = sum(e.item.op == "send" and e.item.peer == rank and e.done is not None for e in self.records[item.peer])
            had = sum(e.item.op == "recv" and e.item.peer == item.peer and e.done is not None for e in self.records[rank])
            return [rank] if sent > had and not self._frozen(rank) else []
        members = list(self.groups[item.group][1])
        for member in members:
            other = self._first(member)
            mine = other and (other.item.group, other.seq, other.item.op, other.item.numel, other.item.dtype)
            if mine != (item.group, entry.seq, item.op, item.numel, item.dtype):
                return []
        return [m for m in members if not self._frozen(m)]

    # what is left of it

    def dump(
        self, rank: int, version: str = "2.10", buffer: int = 2000, shift: int = 0, frames: int = 2, active: bool = False
    ) -> dict[str, Any]:
        """The dump of one rank; ``shift``: record ids begin there (operations of groups that nobody sees); ``active``: only what is
        open, and a table of groups, as torch 2.5 and later write it with TORCH_INCLUDE_ONLY_ACTIVE."""
        entries = [self._entry(rank, i + shift, e, version, frames) for i, e in enumerate(self._record(rank)[1])][-buffer:]
        groups = {n: {"name": n, "desc": d, "ranks": str(list(ranks))} for n, (d, ranks) in self.groups.items() if rank in ranks}
        status: dict[str, dict[str, int]] = {}
        local = {name: str(at + 3) for at, name in enumerate(sorted(groups, key=int))}
        for one in self._record(rank)[1] if active else []:
            row = status.setdefault(
                local[one.item.group],
                dict.fromkeys(("last_enqueued_collective", "last_started_collective", "last_completed_collective"), -1),
            )
            row["last_enqueued_collective"] = one.seq
            row["last_completed_collective"] = one.seq if one.done else row["last_completed_collective"]
        for name in groups if active else ():
            status.setdefault(
                local[name], dict.fromkeys(("last_enqueued_collective", "last_started_collective", "last_completed_collective"), -1)
            )
        entries = [{**e, "pg_id": int(local[e["process_group"][0]])} for e in entries] if active else entries
        entries = [e for e in entries if e["state"] != "completed"] if active else entries
        return {"version": version, "pg_config": groups, "comm_lib_version": "2.28.9", "pg_status": status, "entries": entries}

    def _record(self, rank: int) -> tuple[int, list[Entry]]:
        return self.taken.get(rank) or (self.tick, self.records[rank])

    def _entry(self, rank: int, number: int, entry: Entry, version: str, frames: int) -> dict[str, Any]:
        item, (desc, ranks) = entry.item, self.groups[entry.item.group]
        me, peer = ranks.index(rank), ranks.index(item.peer) if item.p2p else -1
        name = f"nccl:{item.op} {me}{'->' if item.op == 'send' else '<-'}{peer}" if item.p2p else f"nccl:{item.op}"
        made = START_NS + entry.created * TICK_NS + rank * 1000
        row = {"frames": [{"name": "step", "filename": "/home/user/train.py", "line": 10 + i} for i in range(frames)],
               "record_id": number, "pg_id": int(item.group), "process_group": (item.group, desc),
               "collective_seq_id": 0 if item.p2p else entry.seq, "p2p_seq_id": entry.seq if item.p2p else 0, "op_id": entry.seq,
               "profiling_name": name, "time_created_ns": made, "input_sizes": [[item.numel]], "input_dtypes": [item.dtype],
               "output_sizes": [[item.numel]], "output_dtypes": [item.dtype], "state": "completed" if entry.done else "scheduled",
               "time_discovered_started_ns": None, "time_discovered_completed_ns": START_NS + entry.done * TICK_NS if entry.done else None,
               "retired": entry.done is not None, "timeout_ms": 600_000, "is_p2p": item.p2p}
        if version == "1.4":
            row["seq_id"] = row.pop("collective_seq_id") or row["p2p_seq_id"]
            for late in ("p2p_seq_id", "is_p2p", "timeout_ms", "input_dtypes", "output_dtypes", "process_group"):
                del row[late]
        return row

    def write(self, folder: Path, version: str = "2.10", as_json: bool = False, age_s: float = 700.0, without: tuple[int, ...] = (),
              ahead: dict[int, float] | None = None, own_clock: bool = False, **how: int) -> Path:
        """All dumps into ``folder``, as of ``age_s`` after the last tick. ``ahead``: rank -> seconds that its host's clock is ahead; the
        times of files are by ``own_clock``, or by that of one server."""
        folder.mkdir(parents=True, exist_ok=True)
        for rank in (r for r in range(self.world) if r not in without):
            dump, path = self.dump(rank, version, **how), folder / f"nccl_trace_rank_{rank}"
            off = (ahead or {}).get(rank, 0.0)
            for entry in dump["entries"]:
                entry.update(
                    {key: entry[key] + int(off * 1e9) for key in ("time_created_ns", "time_discovered_completed_ns") if entry.get(key)}
                )
            path.write_bytes(json.dumps(dump).encode() if as_json else pickle.dumps(dump, protocol=2))
            at = (START_NS + self._record(rank)[0] * TICK_NS) / 1e9 + age_s + off * own_clock
            os.utime(path, (at, at))
        return folder
