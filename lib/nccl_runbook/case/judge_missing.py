"""The lines that collect, on the next run of a job, the evidence that is missing now."""
import re
from collections.abc import Iterable, Mapping

from nccl_runbook.causes.causes import for_launcher, table, variables, version
from nccl_runbook.messages.facts import Logs
from nccl_runbook.report.verdict import VerdictDocument

_ELSEWHERE = ("platform-ascend", "platform-xpu")  # neither NCCL nor its recorder
_OLDEST = "2.2"  # whose names every later torch reads as well: for a job that does not say its version


def to_collect(document: VerdictDocument, deciding: Iterable[str], logs: Logs, has_dumps: bool,
               is_set: Mapping[str, str]) -> tuple[str, ...]:
    """As this job's launcher takes them; none if a cause is established, or if nothing more can be collected. ``deciding``: lines
    that would decide between the causes, none if no cause is known; ``is_set``: variables of the job's script."""
    sure = document.verdict == "healthy" or any(c.status == "established" for c in document.causes)
    nothing_read = not logs.context and (logs.foreign or not any(f.lines for f in logs.files))
    if sure or nothing_read or any(message in logs.seen for message in _ELSEWHERE):
        return ()
    asked = "\n".join(deciding)
    there = {"dump": has_dumps, "log": any(r.network or r.transports for r in logs.ranks)}
    torch = version(next((r.torch for r in logs.ranks if r.torch), _OLDEST))
    rows = [row for row in table("case/collect")["row"] if version(row["since"]) <= torch < version(row["before"])
            and not there.get(row["kind"]) and (not document.causes or re.search(row["asks"], asked))]
    where = table("case/collect")["where"]
    place = where.get(logs.launcher, where["any"])
    pairs = [pair.format(dir=place["dir"]) for row in rows for pair in row["set"] if not _is_set(pair, is_set)]
    if not pairs:
        return ()
    look = [place["look"]] * any(row["kind"] == "stack" for row in rows)
    return (*look, place["make"], *for_launcher(f"export {' '.join(pairs)}", logs.launcher), place["read"])


def _is_set(pair: str, is_set: Mapping[str, str]) -> bool:
    """By its name, or its old or new one. Another folder or size serves as well; another level of the log does not."""
    name, _, value = pair.partition("=")
    names = {name, variables()[name].renamed_to, *(v.name for v in variables().values() if v.renamed_to == name)}
    return bool(names & {*is_set}) and (name != "NCCL_DEBUG" or is_set[name].upper() in (value, "TRACE"))
