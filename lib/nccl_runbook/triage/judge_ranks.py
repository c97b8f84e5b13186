"""What the table of ranks says: who waited, who was missing, who differed; and the experiments that
a reporter describes: a setting or a version, and whether the job worked with it."""

import dataclasses
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from nccl_runbook.causes.causes import Advice, advice, causes, table
from nccl_runbook.core.facts import grouped, rank_names
from nccl_runbook.logs.facts import LogLine
from nccl_runbook.messages.clues import PRINTED, compiled, says
from nccl_runbook.messages.facts import CONTEXT, Logs, RankLog, Timeout
from nccl_runbook.messages.judge import raised_first

MANY_COMMUNICATORS = 8  # of one rank; parallel groups of a usual job are fewer
_AT_WORK = re.compile(
    r"(?i)\b(?:sav|writ|load|generat|evaluat|validat|tokeni[sz]|download|export|compil|convert|merg|unpack|"
    r"extract|captur|quanti[sz])(?:es?|ing)\b|"
    r"\bwait(?:s|ing) (?:for|on|until) [^\n]{0,20}(?:\bfile|\bpath|\block|['\"]?/)|about to be \w+ed"
)
_COUNT = re.compile(
    r"(?<!\d)(\d+)(?:/\d+)?\s?(?:batch|it\b|steps?\b)|\b(?:step|iter(?:ation)?|batch)\W{0,3}(\d+)", re.I
)
# what the words of a trial say: [says] of the table
_SAYS = {
    name: re.compile("(?i)" + "|".join(lines).replace("<failure>", table("triage/experiments")["failure"]))
    for name, lines in table("triage/experiments")["says"].items()
}


@dataclasses.dataclass(frozen=True)
class Pointer:
    """Something that speaks for a cause. ``place``: among equally sure ones the smallest leads;
    ``advice``: in place of the cause's."""

    cause: str
    status: str
    evidence: tuple[LogLine, ...]
    against: tuple[str, ...] = ()
    place: float = 0
    advice: Advice | None = None


def judge(logs: Logs) -> list[Pointer]:
    """Everything that the ranks' own lines say together."""
    who_was_late = [
        p
        for rule in (rank_raised_first, rank_never_came, counts_differ, calls_differ, rank_is_silent)
        for p in rule(logs)
    ]
    return [
        *(who_was_late or all_wait_alike(logs)),
        *(
            p
            for rule in (
                guards_failed,
                ranks_on_one_gpu,
                ranks_chose_one_gpu,
                first_gpu_is_held,
                tensors_differ,
                numbered_calls_differ,
                versions_differ,
                nodes_differ,
                runs_apart,
                communicators_pile_up,
                somebody_raised,
            )
            for p in rule(logs)
        ),
    ]


def ranks_on_one_gpu(logs: Logs) -> list[Pointer]:
    """Behind `Duplicate GPU`: the devices that the ranks took."""
    seen = logs.seen.get("nccl-duplicate-gpu-detected")
    taken = ((row, device.partition("busId ")) for row in logs.ranks for device in row.devices)
    named = grouped((f"{row.hosts[:1]} {bus}", row) for row, (_, known, bus) in taken if known)
    same = next((rows for rows in named.values() if len({r.rank for r in rows}) > 1), None)
    if not seen or seen.resumed or not same or "reporter-uuids-differ" in logs.seen:
        return []
    devices = {d.split()[1] for r in same for d in r.devices if d.startswith("cudaDev")}
    nvml = {d.split()[3] for r in same for d in r.devices if " nvmlDev " in d}
    if len(nvml) > 1:
        return [Pointer("bus-id-collision", "likely", tuple(seen.lines[:2]), ("UUIDs were not printed",), 1)]
    if len(devices) == 1 and nvml == devices:
        return [
            Pointer(
                "device-not-set-per-rank",
                "likely",
                tuple(seen.lines[:2]),
                ("no rank's CUDA_VISIBLE_DEVICES was printed",),
                1,
            )
        ]
    return [
        Pointer(
            "scheduler-shares-gpu" if len(devices) > 1 else "device-not-set-per-rank",
            "possible",
            tuple(seen.lines[:2]),
            (),
            2,
        )
    ]


def ranks_chose_one_gpu(logs: Logs) -> list[Pointer]:
    """Two ranks that NCCL refuses printed the same device as theirs; if both see the same GPUs,
    the program chose it twice."""
    own = {found[1] or str(line.rank): (found[2], line) for found, line in _matches(logs, "device-of-rank")}
    visible = {str(line.rank): found[1] for found, line in _matches(logs, "visible-devices")}
    for pair, refused in _matches(logs, "ranks-share-gpu"):
        chosen = [own[rank] for rank in pair.groups() if rank in own]
        lists = {visible.get(rank, visible.get("None", "")) for rank in pair.groups()}
        if len(chosen) == 2 and chosen[0][0] == chosen[1][0] and not logs.seen["ranks-share-gpu"].resumed:
            several = len(lists) == 1 and "," in lists.pop()
            return [
                Pointer(
                    "device-not-set-per-rank",
                    "likely" if several else "possible",
                    (refused, *(line for _, line in chosen)),
                    () if several else ("the visible devices of these ranks were not printed",),
                    245,
                )
            ]
    return []


def first_gpu_is_held(logs: Logs) -> list[Pointer]:
    """nvidia-smi's list: processes of other GPUs hold memory of the first one, too."""
    rows = [(found[1], found[2], line) for found, line in _matches(logs, "nvidia-smi-process")]
    first = {pid for gpu, pid, _ in rows if gpu == "0"}
    both = first & {pid for gpu, pid, _ in rows if gpu != "0"}
    lines = tuple(line for _, pid, line in rows if pid in both)[:4]
    return [Pointer("device-not-set-per-rank", "likely", lines, (), 3)] if both and len(first) > 1 else []


def _waiting(logs: Logs) -> list[RankLog]:
    return [r for r in logs.ranks if r.timeouts]


def rank_raised_first(logs: Logs) -> list[Pointer]:
    """A rank raised an exception of its own while others waited for it."""
    first, echoes = raised_first(logs)
    who = ", ".join(str(line.rank) for line in first)
    against = (f"ranks {who} raised too close together to show which was first",) if len(first) > 1 else ()
    return (
        [Pointer("peer-crashed", "likely", (*first[:3], *echoes), against, 30, _traceback(first[0]))]
        if first
        else []
    )


def _traceback(line: LogLine) -> Advice:
    """An exception says more in the lines above it."""
    shown = f"sed -n '{max(1, line.line - 40)},{line.line}p' {shlex.quote(line.file)}"
    return (
        Advice()
        if line.file == CONTEXT
        else Advice(decides=("by hand", "the traceback above that line", shown))
    )


def rank_never_came(logs: Logs) -> list[Pointer]:
    """A rank that lives has enqueued less than another one waits for."""
    told = {
        "collective-on-some-ranks-only": "likely",
        "rank-dependent-branch": "possible",
        "uneven-minibatches": "possible",
    }
    for waiter, work in ((r, t) for r in logs.ranks for t in r.timeouts):
        group = work.group if work.group in waiter.enqueued else next(iter(waiter.enqueued), "")
        seq = work.seq or 0
        alive = [r for r in logs.ranks if r.rank != waiter.rank and r.warned and not r.first_error]
        late = [
            r
            for r in alive
            if 0 <= r.enqueued.get(group, -1) < seq and not any((t.seq or 0) >= seq for t in r.timeouts)
        ]
        if late:
            lines = (work.at, *(r.progress or r.last for r in late[:2] if r.progress or r.last))
            return [
                Pointer(cause, status, lines, (), 20 + i) for i, (cause, status) in enumerate(told.items())
            ]
    return []


def counts_differ(logs: Logs) -> list[Pointer]:
    """Ranks stopped at different batch numbers while one waited."""
    said = [(r, _COUNT.search(r.progress.text)) for r in logs.ranks if r.progress]
    counts = {r.rank: (int(next(filter(None, m.groups()))), r.progress) for r, m in said if m}
    if len(counts) < 2 or not _waiting(logs):
        return []
    low, high = min(counts.values(), key=lambda c: c[0]), max(counts.values(), key=lambda c: c[0])
    if high[0] - low[0] < 2 or [c for c, _ in counts.values()].count(high[0]) < 2:
        return []
    return [
        Pointer("uneven-minibatches", "likely", (high[1], low[1], _waiting(logs)[0].timeouts[0].at), (), 25)
    ]


def calls_differ(logs: Logs) -> list[Pointer]:
    """Waiting ranks wait in different calls: at different numbers, or at one number with
    another operation or size."""
    works = [(r.rank, t) for r in _waiting(logs) for t in r.timeouts[:1] if t.seq is not None]
    numbers, calls = {t.seq for _, t in works}, {(t.op, t.numel_in) for _, t in works}
    told: dict[str, tuple[str, int]] = {}  # cause -> status and place
    if len({_group(rank, t) for rank, t in works}) > 1 and len(calls) > 1:
        told = {"communicator-order": ("possible", 39), "collective-on-some-ranks-only": ("possible", 40)}
    elif len(numbers) > 1 and max(numbers) - min(numbers) < 100:
        told = {
            "collective-on-some-ranks-only": ("possible", 40),
            "rank-dependent-branch": ("possible", 41),
            "uneven-minibatches": ("possible", 42),
        }
    elif len(numbers) == 1 and len(calls) > 1 and not any(op == "ELIDED" for op, _ in calls):
        # another call, or another module's weights: ranks may have taken different branches
        sure = (
            "possible"
            if len({op for op, _ in calls}) > 1 or any(op == "_ALLGATHER_BASE" or n == 1 for op, n in calls)
            else "likely"
        )
        told = {"collective-mismatch": (sure, 26), "rank-dependent-branch": ("possible", 43)}
    lines = tuple(
        same[0] for same in grouped(((t.seq, t.op, t.numel_in), t.at) for _, t in works).values()
    )  # one of each call
    return [Pointer(cause, status, lines[:4], (), place) for cause, (status, place) in told.items()]


def _group(rank: int, work: Timeout) -> str:
    """The group in which a rank waits: its name, or its rank there if that is another one."""
    inside = re.search(r"\[Rank (\d+)\]", work.at.text)
    return work.group or (
        f"one in which it is rank {inside[1]}" if inside and int(inside[1]) != rank else "the world"
    )


def tensors_differ(logs: Logs) -> list[Pointer]:
    """Sender and receiver print one tensor with different types or shapes."""
    by = grouped((found[1], (found[2], found[3], line)) for found, line in _matches(logs, "tensor-described"))
    name, one, other = next(
        ((n, t[0], u) for n, t in by.items() for u in t if u[:2] != t[0][:2]), ("", None, None)
    )
    if not name:
        return []
    says = f"{name} is {one[0]} of ({one[1]}) on one side and {other[0]} of ({other[1]}) on the other."
    fix = (
        "you",
        f"Use the same data type and shape of {name} on both sides: convert it before the transfer.",
        (f"tensor = tensor.to(torch.{other[0]})",),
    )
    return [
        Pointer(
            "collective-mismatch",
            "likely" if _waiting(logs) else "possible",
            (one[2], other[2]),
            (),
            17,
            Advice(says, (fix,)),
        )
    ]


def all_wait_alike(logs: Logs) -> list[Pointer]:
    """A timeout, and nothing says who was missing."""
    if not (waiting := _waiting(logs)):
        return (
            [Pointer("collective-on-some-ranks-only", "possible", (logs.timeout,), (), 920)]
            if logs.timeout
            else []
        )
    lines = tuple(r.timeouts[0].at for r in waiting[:2])
    told = ("collective-on-some-ranks-only", "rank-busy-on-host", "rank-dependent-branch")
    return [
        Pointer(cause, "possible", lines, ("the missing rank is not known",), 900 + i)
        for i, cause in enumerate(told)
    ]


def rank_is_silent(logs: Logs) -> list[Pointer]:
    """Another rank waited, and this one said nothing more: it died without a word, or it stands still."""
    waiting = _waiting(logs)
    known = max((r.nranks or 0 for r in logs.ranks), default=0)
    silent = [
        r
        for r in logs.ranks
        if waiting
        and not (r.timeouts or r.warned or r.first_error or r.ended)
        and r.rank < (known or 1 << 20)
    ]
    if not silent or len(silent) > max(1, len(logs.ranks) // 2):
        return []
    last = [r.last for r in silent if r.last]
    against = (
        "a killed process and a stopped one both print nothing; only the process state shows which it is",
    )
    busy = [line for line in last if _AT_WORK.search(line.text)]
    told = enumerate(
        ("rank-busy-on-host", "collective-on-some-ranks-only") * bool(busy)
        + ("peer-crashed", "peer-stopped")
        + ("rank-busy-on-host",) * (not busy)
    )
    doing = [
        Advice(
            f"{rank_names([r.rank for r in waiting])} waited in "
            f"{' and '.join(dict.fromkeys(r.timeouts[0].op for r in waiting))}, "
            f"and rank {line.rank} printed nothing after: {line.text[:120]}"
        )
        for line in (busy or last)[:1]
    ]
    lines = tuple(dict.fromkeys((*(busy or last)[:1], waiting[0].timeouts[0].at, *last[:2])))
    return [
        Pointer(cause, "possible", lines, against, 28 + i, advice)
        for (i, cause), advice in zip(told, [*doing, *[None] * 4])
    ]


def guards_failed(logs: Logs) -> list[Pointer]:
    """A guard in the job itself measured the fault before the collective."""
    return [
        Pointer(found[2], "established", (line,), (), 0)
        for found, line in _matches(logs, "guard-failed")
        if found[2] in causes()
    ]


def numbered_calls_differ(logs: Logs) -> list[Pointer]:
    """NCCL prints what each rank calls: another operation, size or type under one number
    within groups of one size."""
    against = ("groups of the same size may be different groups; then these calls do not belong together",)
    find = (
        "you",
        "Compare these two calls, and find out why the ranks differ: another branch, "
        "another input, or an extra call.",
        (),
    )
    return (
        [Pointer("collective-mismatch", "possible", tuple(logs.apart), against, 34, Advice("", (find,)))]
        if logs.apart
        else []
    )


def versions_differ(logs: Logs) -> list[Pointer]:
    """Different processes name different NCCL versions."""
    if len(logs.nccl_versions) < 2:
        return []
    speakers = list(logs.nccl_versions.values())
    known = all(s.startswith("rank ") for who in speakers for s in who)
    apart = known and not set(speakers[0]) & {s for others in speakers[1:] for s in others}
    lines = tuple(
        LogLine(who[0], 0, f"NCCL version {version}") for version, who in logs.nccl_versions.items()
    )
    return [Pointer("nccl-version-mismatch", "likely" if apart else "possible", lines, (), 35)]


def nodes_differ(logs: Logs) -> list[Pointer]:
    """Ranks or hosts took another network, or as members of one communicator another number of channels;
    hosts may share a name, and two runs one file."""
    networks = {
        found[1]: line for found, line in _matches(logs, "nccl-network") if line.rank is not None or line.host
    } | {
        r.network: LogLine("".join(r.files[:1]), 0, f"Using network {r.network}", r.rank, *r.hosts[:1])
        for r in logs.ranks
        if r.network
    }
    sure = "likely" if len({(line.rank, line.host) for line in networks.values()}) > 1 else "possible"
    channels = {
        found[1]: line
        for found, line in _matches(logs, "nccl-channels")
        if line.rank is not None and (logs.failed or logs.context)
    }
    told = (
        (networks, sure, (), 36),
        (channels, "possible", ("communicators of other ranks may have different numbers of channels",), 37),
    )
    return [
        Pointer("nodes-differ", status, tuple(by.values()), why, place)
        for by, status, why, place in told
        if len(by) > 1
    ]


def runs_apart(logs: Logs) -> list[Pointer]:
    """nccl-tests made without MPI: what mpirun starts on each host is a job of its own,
    with a rank 0 of its own."""
    first = {
        line.file: line.line for _, line in reversed(_matches(logs, "nccl-tests-end"))
    }  # behind a result stands another run
    begun = [
        (found, line)
        for found, line in _matches(logs, "nccl-tests-rank-0")
        if line.line < first.get(line.file, line.line + 1)
    ]
    by = {found[1].split(".")[0]: line for found, line in begun if line.file == begun[0][1].file}
    return [Pointer("rendezvous-misconfigured", "likely", tuple(by.values()), (), 38)] if len(by) > 1 else []


def _matches(logs: Logs, message: str) -> list[tuple[re.Match[str], LogLine]]:
    """The lines of one of PRINTED, each with the match of its expression."""
    lines = logs.seen[message].lines if message in logs.seen else []
    return [(found, line) for line in lines if (found := compiled(PRINTED[message]).search(line.text))]


def communicators_pile_up(logs: Logs) -> list[Pointer]:
    """One rank opened many communicators."""
    most = max(logs.ranks, key=lambda r: r.communicators, default=None)
    if most is None or most.communicators < MANY_COMMUNICATORS:
        return []
    return [
        Pointer(
            "communicator-recreated",
            "possible",
            (LogLine(most.files[0], 0, f"{most.communicators} communicators opened", most.rank),),
            (),
            950,
        )
    ]


def somebody_raised(logs: Logs) -> list[Pointer]:
    """An exception of the program's own, and no other rank is heard; it says more where nobody waited."""
    place = 450 if logs.timeout or says(logs.context, "<hang>|<timeout>") else 300
    return (
        [Pointer("peer-crashed", "possible", (logs.raised,), (), place, _traceback(logs.raised))]
        if logs.raised
        else []
    )


def experiments(context: str) -> list[Pointer]:
    """A trial that makes the job work shows the broken path; if one cause is left
    for it, that one is likely."""
    out = ruled_out(context)
    return [
        *(p for row, works, clause in _trials(context) if works for p in _broken(row, out, clause)),
        *(
            p
            for row in table("triage/experiments")["library"]
            if row["name"].lower() in context.lower()
            for p in _versions(row, context)
        ),
    ]


def ruled_out(context: str) -> set[str]:
    """Causes whose path was switched off, and the job failed all the same."""
    return {
        c
        for row, works, _ in _trials(context)
        if works is False
        for c in row["causes"]
        if c not in row.get("keeps", ())
    }


def _broken(row: Mapping[str, Any], out: set[str], clause: str) -> list[Pointer]:
    left = [cause for cause in row["causes"] if cause not in out]
    status = "likely" if len(left) == 1 else "possible"
    told = Advice(f"The job works with this path switched off: {row['path']}.", **advice(row))
    return [
        Pointer(cause, status, (LogLine(CONTEXT, 1, clause),), (), 10 + at, told)
        for at, cause in enumerate(left)
    ]


def _trials(context: str) -> Iterator[tuple[Mapping[str, Any], bool | None, str]]:
    """Each setting that was tried, whether the job worked with it (None: unknown), and the words."""
    for clause in _SAYS["next"].split(context):
        for row in table("triage/experiments")["experiment"]:
            if setting := re.search("(?i)" + row["words"], clause):
                yield row, _outcome(clause, setting), clause.strip()


def _outcome(clause: str, tried: re.Match[str]) -> bool | None:
    rest = _SAYS["settled"].sub(
        "works", _SAYS["nothing"].sub("", clause[: tried.start()] + " " + clause[tried.end() :])
    )
    works = False if _SAYS["fails"].search(rest) else True if _SAYS["works"].search(rest) else None
    return not works if works is not None and _SAYS["without"].search(clause[: tried.start()]) else works


def _versions(row: Mapping[str, str], context: str) -> list[Pointer]:
    """The same job under another version of one library: it fails with one version and works with another,
    or somebody names the version from which on it fails."""
    expression = compiled(
        r"(?i)(?<![\w.])"
        + row.get("words", row["name"] + table("triage/experiments")["number"])
        + r"(?![\w.]*\d)"
    )
    told = [
        (v, clause[: v.start()], clause)
        for clause in _SAYS["next"].split(context)
        for v in expression.finditer(clause)
        if not _SAYS["other"].search(clause[: v.start()])
    ]
    works = [
        (bool(_SAYS["not-with"].search(before)) or _outcome(clause, v), v[1], clause.strip())
        for v, before, clause in told
    ]
    bad = [(version, clause) for ok, version, clause in works if ok is False]
    good = [(version, clause) for ok, version, clause in works if ok and version not in dict(bad)]
    begins = [
        (v[1], clause.strip())
        for v, before, clause in told
        if _SAYS["since"].search(before + v[0][: -len(v[1])]) or _SAYS["on"].match(clause, v.end())
    ]
    if not (good and (bad or row["alone"]) or begins and not good and not row["alone"]):
        return []
    lines = tuple(
        dict.fromkeys(LogLine(CONTEXT, 1, clause) for _, clause in (*(good or begins)[:1], *bad[:1]))
    )
    if not good:
        change = (
            "you",
            f"Go back to the {row['name']} that worked, or update the libraries that use it.",
            (),
        )
        says = f"The report names {row['name']} {begins[0][0]} as the version from which on this happens."
        return [Pointer(row["cause"], "possible", lines, (), 500, Advice(says, (change,)))]
    cuda = _SAYS["cuda"].search(context)
    install = row["install"].format(version=good[0][0], cuda=cuda[1] if cuda else 12)
    says = f"The job works with {row['name']} {good[0][0]}" + (
        f" and fails with {bad[0][0]}." if bad else "."
    )
    use = (
        "you",
        f"Use {row['name']} {good[0][0]}" + (":" if install else "."),
        (install,) if install else (),
    )
    return [Pointer(row["cause"], row["status"], lines, (), 9, Advice(says, (use,)))]
