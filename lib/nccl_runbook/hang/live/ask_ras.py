"""What NCCL's RAS answers: how many collectives each rank launched, and which ranks are lost."""

import collections
import json
import re
import socket
import time
from typing import Any, Dict, Iterator, List, Set, Tuple, Union

from nccl_runbook.core.facts import Gap
from nccl_runbook.core.redact import clipped
from nccl_runbook.hang.live.facts import RasAnswer, RasCommunicator, RasRank

STACK_DEADLINE_S, RECORDER_DEADLINE_S, RAS_DEADLINE_S = 5.0, 2.0, 4.0
MOST_BYTES = 1 << 26
RAS_ADDRESS = "127.0.0.1:28028"  # NCCL_RAS_CLIENT_PORT of src/ras/ras_internal.h, NCCL 2.24 to 2.30.7
MOST_RANKS, MOST_COMMUNICATORS = 4096, 256
# what RAS prints as text
_TABLE = re.compile(r"^Group +Comms +Nodes +Ranks", re.M)
_GROUP = re.compile(r"^ *(\d{1,7}) +(\d{1,7}) +\d+ +[\d-]+ +(\d{1,7}) +\d+ +[A-Z,]+ +[A-Z,]+ *$", re.M)
_GPUS = re.compile(r"^\(total\) .*\(total\)\n[ \d]* (\d{1,7}) *$", re.M)
_HEAD = re.compile(r"^(?:#(\d{1,7})-\d+ \(([0-9a-f]{1,16})\) )?(INCOMPLETE|ERROR|MISMATCH|DEAD)$", re.M)
_COUNTED = re.compile(r"^  Communicator ranks[^\n]*?(?:different (\w{1,40}) operation counts)?$", re.M)

_LAUNCHED = re.compile(
    r"^  (?:(\d{1,7}) ranks?|Rank (\d{1,7}))"
    r"( ha(?:s|ve) (?:launched up to operation (\d{1,18})|not launched any operations))?",
    re.M,
)

_PLACE = re.compile(
    r"^  Rank (\d{1,7})\b.*? -- GPU (\d{1,7})(?: \(NVML (\d{1,7})\))?"
    r" managed by process (\d{1,9}) on node (\S{1,100})$",
    re.M,
)

_PROCESS = re.compile(r"^  Process (\d{1,9}) on node (\S{1,100}) managing GPU", re.M)
# NCCL 2.24 has them in one line
_MISSING = re.compile(r"^  (?:The missing ranks?:|Rank) ([\d,]{1,20000})\b", re.M)


def all_of(link: socket.socket, until: float, most_bytes: int = MOST_BYTES, end: bytes = b"") -> bytes:
    """Everything received until the end, or until ``end``. socket.timeout if the peer takes too long, even
    if it keeps sending."""
    answer = bytearray()
    while len(answer) < most_bytes and not (end and answer.endswith(end)):
        link.settimeout(max(0.001, until - time.monotonic()))
        block = link.recv(min(1 << 16, most_bytes - len(answer)))
        if not block:
            break
        answer += block
    return bytes(answer)


def ras(addresses: List[str]) -> Union[List[RasCommunicator], Gap]:
    """All communicators of the job as NCCL's RAS thread reports them, or a Gap. Asks only on this host."""
    until = time.monotonic() + RAS_DEADLINE_S  # for all of them together
    for address in dict.fromkeys([*addresses, RAS_ADDRESS]):
        answer = _ras_at(*address.rpartition(":")[::2], until)
        if not isinstance(answer, Gap):
            break
    return answer


def _ras_at(host: str, port: str, until: float) -> Union[List[RasCommunicator], Gap]:
    if host not in ("127.0.0.1", "localhost", "[::1]", "::1") or not port.isdecimal():
        return Gap(
            "not-run",
            f"RAS at {host}:{port} was not queried, because this address is not this host's loopback",
        )
    try:
        with socket.create_connection(
            (host.strip("[]"), int(port)), max(0.001, until - time.monotonic())
        ) as link:
            for line in ("CLIENT PROTOCOL 2", "TIMEOUT 2", "SET FORMAT json"):
                link.sendall(line.encode() + b"\n")
                reply = all_of(link, until, 4096, b"\n").decode("utf-8", "replace").strip()
                if (
                    not reply.startswith(("SERVER PROTOCOL", "OK")) and line != "SET FORMAT json"
                ):  # older ones know text only
                    return Gap("unsupported", clipped(f"RAS answered {line!r} with {reply!r}", 300))
            link.sendall(b"VERBOSE STATUS\n")
            answers = read_ras(f"{host}:{port}", all_of(link, until).decode("utf-8", "replace"))
            return answers if isinstance(answers, Gap) else answers[-1].communicators
    except socket.timeout:
        return Gap("timed-out", f"RAS at {host}:{port} did not answer within {RAS_DEADLINE_S:g} s")
    except OSError as error:
        return Gap("absent", f"no answer from RAS at {host}:{port}: {error.strerror or error}")


def looks_like_ras(head: str) -> bool:
    """Whether a file that begins so was printed by `ncclras`."""
    return (
        '"communicators_count"' in head
        if head.lstrip().startswith("{")
        else bool(_TABLE.search(head) or _GPUS.search(head))
    )


def read_ras(source: str, text: str) -> Union[List[RasAnswer], Gap]:
    """Every answer in a text, in order; a Gap if there is none."""
    try:
        if text.lstrip().startswith("{"):
            return list(_of_json(source, text))
        starts = [match.start() for match in _TABLE.finditer(text)]
        gpus = _GPUS.search(text)
        return [
            _of_text(source, int(gpus[1]) if gpus else 0, text[a:b])
            for a, b in zip(starts, [*starts[1:], len(text)])
        ] or Gap("failed", "RAS answered without its table of communicators")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Gap("failed", f"RAS answered in an unknown form: {type(error).__name__} {error}"[:300])


def _of_json(source: str, text: str) -> Iterator[RasAnswer]:
    """NCCL 2.28.7 to 2.28.9 forget the comma behind "nvml_dev" of a missing rank
    (src/ras/client_support.cc)."""
    text = re.sub(r'("nvml_dev": *-?\d+)(\s*"status")', r"\1,\2", text).strip()
    at = 0
    while at < len(text):
        document, at = json.JSONDecoder().raw_decode(text, text.index("{", at))
        documents = [
            RasCommunicator(
                str(c["hash"])[:40],
                int(c["size"]),
                [
                    *(_rank(r, "") for r in c["ranks"][:MOST_RANKS]),
                    *(_rank(r, _lost(r)) for r in c["missing_ranks"][:MOST_RANKS]),
                ],
                [],
            )
            for c in document["communicators"][:MOST_COMMUNICATORS]
        ]
        yield RasAnswer(
            source, len({(r.host, r.pid, r.nvml_index) for c in documents for r in c.ranks}), documents
        )


def _rank(row: Dict[str, Any], missing: str) -> RasRank:
    return RasRank(
        int(row["rank"]),
        int(row["pid"]),
        clipped(str(row["host"]), 100),
        int(row["nvml_dev"]),
        {str(n)[:40]: int(v) for n, v in list(row.get("collective_counts", {}).items())[:32]},
        missing,
    )


def _lost(row: Dict[str, Any]) -> str:
    status = row.get("status", {})
    return (
        "considered dead"
        if status.get("considered_dead")
        else "unresponsive"
        if status.get("unresponsive")
        else "not heard of"
    )


def _of_text(source: str, gpus: int, text: str) -> RasAnswer:
    """One answer from its table of communicators on. Without a summary the only communicator of the
    largest size is that of the job."""
    groups = {
        number: (min(int(size), MOST_RANKS), int(comms)) for number, comms, size in _GROUP.findall(text)
    }
    size, comms = max(groups.values(), default=(0, 0))
    lost: Dict[Tuple[int, str], str] = {}
    topics: Dict[Tuple[str, str], Dict[str, str]] = {}
    parts = _HEAD.split(text)
    for number, own, topic, body in zip(*(parts[at::4] for at in (1, 2, 3, 4))):
        lost.update(
            ((int(pid), host), "considered dead" if topic == "DEAD" else "unresponsive")
            for pid, host in _PROCESS.findall(body)
        )
        if own:
            topics.setdefault((own, number), {})[topic] = body
    return RasAnswer(
        source,
        gpus or (size if comms == 1 else 0),
        [
            RasCommunicator(own, groups[number][0], list(_ranks(groups[number][0], words, lost)), [])
            for (own, number), words in topics.items()
        ][:MOST_COMMUNICATORS],
    )


def _ranks(size: int, topics: Dict[str, str], lost: Dict[Tuple[int, str], str]) -> Iterator[RasRank]:
    """The ranks of one communicator that the text distinguishes."""
    places = {
        int(rank): (int(pid), host, int(nvml or gpu))
        for body in topics.values()
        for rank, gpu, nvml, pid, host in _PLACE.findall(body)
    }
    missing = {
        int(rank) for row in _MISSING.findall(topics.get("INCOMPLETE", "")) for rank in row.split(",") if rank
    }
    launched: Dict[int, Dict[str, int]] = {rank: {} for rank in missing}
    parts = _COUNTED.split(topics.get("MISMATCH", ""))
    for call, body in zip(parts[1::2], parts[2::2]):
        named, unnamed = _counts(body, set(range(size)) - missing)
        for rank, count in named.items() if call else []:
            launched.setdefault(rank, {})[call] = count
        yield from (
            RasRank(-1, 0, "", -1, {call: count}, "")
            for number, count in unnamed
            if call
            for _ in range(min(MOST_RANKS, number))
        )
    for rank, counts in sorted(launched.items()):
        pid, host, gpu = places.get(rank, (0, "", -1))
        yield RasRank(
            rank, pid, host, gpu, counts, lost.get((pid, host), "not heard of") if rank in missing else ""
        )


def _counts(body: str, ranks: Set[int]) -> Tuple[Dict[int, int], List[Tuple[int, int]]]:
    """How many operations each rank launched, and (number of ranks, operations) of those without a name. RAS
    names the ranks only of groups smaller than a quarter, or half with -v; who is left over belongs to the
    only group without names."""
    named: Dict[int, int] = {}
    shares, count = [], 0
    for number, rank, launched, operations in _LAUNCHED.findall(body):
        count = int(operations or 0) if launched else count
        named.update({int(rank): count} if rank else {})
        shares += [] if rank else [(int(number), count)]
    have = collections.Counter(named.values())
    unnamed = [(number - have[n], n) for number, n in shares if number > have[n]]
    left = ranks - set(named)
    if [number for number, _ in unnamed] == [len(left)]:
        return {**named, **dict.fromkeys(left, unnamed[0][1])}, []
    return named, unnamed
