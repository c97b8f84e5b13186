"""One role of a job, from the raw answer of its process."""

import dataclasses
import email
import re
from collections.abc import Iterable, Mapping
from typing import Any

from nccl_runbook.causes.variables import is_kept
from nccl_runbook.core.facts import Gap, known
from nccl_runbook.core.redact import Redactor
from nccl_runbook.environment.facts import WHOLE, Role

CONTAINER = ("/.dockerenv", "/run/.containerenv", "/singularity")


def _markers(paths: Iterable[str], raw: Mapping[str, Any]) -> dict[str, str]:
    """``Role.markers``: the machine that was reported, and the Python in the path
    of the folder that holds torch."""
    pythons = {match[1] for path in paths if (match := re.search(r"/python(3\.\d+)/", f"{path}/"))}
    return {
        **({"python_version": pythons.pop()} if len(pythons) == 1 else {}),
        **({"platform_machine": raw["machine"]} if "machine" in raw else {}),
    }


def with_gaps(raw: Any) -> Any:
    """The raw answer with a Gap for each {"reason", "detail"}, and for what was not asked."""
    if isinstance(raw, dict):
        return (
            Gap(raw["reason"], raw["detail"])
            if {*raw} == {"reason", "detail"}
            else {n: with_gaps(v) for n, v in raw.items()}
        )
    return Gap("not-run", "not asked here") if raw is None else raw


def role_of(name: str, raw: Mapping[str, Any]) -> Role:
    """One process in the raw answer."""
    answer, redactor = with_gaps(raw), Redactor({})
    kept = {
        n: redactor.text(f"{n}={v}").partition("=")[2] for n, v in answer["variables"].items() if is_kept(n)
    }
    files = answer["files"]
    conf = {
        path: {
            n: redactor.text(f"{n}={v}").partition("=")[2] for n, v in conf_lines(text).items() if is_kept(n)
        }
        for path, text in files.items()
        if path.endswith("nccl.conf") or path == kept.get("NCCL_CONF_FILE")
        if isinstance(text, str)
    }
    release = next((t for t in answer["torch"].values() if isinstance(t, str)), "")
    shm, devices = answer["shm"], _of(files, "/net/dev")
    # of the process's own network namespace; without /proc of whoever asked
    interfaces = (
        answer["interfaces"]
        if isinstance(devices, Gap)
        else [d.partition(":")[0].strip() for d in devices.splitlines() if ":" in d]
    )
    return Role(
        name=name,
        variables=kept,
        where={},
        others=answer["names"] - len(kept),
        conf=conf,
        torch=_python_string(release, "__version__"),
        torch_cuda=_python_string(release, "cuda"),
        mapped=answer["mapped"],
        preloaded=answer.get("preloaded", []),
        reported=answer["reports"] if answer["reports"] != "" else _told_by_file(answer),
        requires=requires_of(answer.get("packages", [])),
        markers=_markers(answer["torch"], answer),
        container=[path for path in CONTAINER if isinstance(files[path], str)],
        ipc_namespace=_of(files, "/ns/ipc"),
        interfaces=interfaces,
        routes=_routes(_of(files, "/net/route")),
        shm=shm if isinstance(shm, Gap) else [shm[0] * shm[1], shm[0] * shm[2], shm[3]],
        **rows_of(files),
    )


def rows_of(files: Mapping[str, Any]) -> dict[str, str | Gap]:
    """Every field of Role that names its file and row (environment/facts.py, ``shown``), from the texts of
    the files by path."""
    return {
        field.name: row_of(_of(files, field.metadata["reads"].removeprefix("/proc/{pid}")), row)
        for field in dataclasses.fields(Role)
        if (row := field.metadata.get("row"))
    }


def _of(files: Mapping[str, Any], end: str) -> Any:
    """What /proc/PID holds there."""
    return next(text for path, text in files.items() if path.startswith("/proc/") and path.endswith(end))


def requires_of(texts: Iterable[Any]) -> dict[str, list[str]]:
    """ "name version" of each distribution -> its requirements, from the lines of its METADATA."""
    heads = [email.message_from_string(text) for text in texts if isinstance(text, str)]
    return {
        f"{head['Name'].lower().replace('_', '-')} {head['Version']}": [
            line[:200] for line in head.get_all("Requires-Dist", [])
        ][:400]
        for head in heads
        if head["Name"] and head["Version"]
    }


def _told_by_file(answer: Mapping[str, Any]) -> str | Gap:
    """The version in the text of the mapped libnccl, if the process itself cannot be asked."""
    libraries = (answer["libraries"].get(p, {}) for p in known(answer["mapped"]) if "/libnccl.so" in p)
    return next(
        (raw["says"][0] for raw in libraries if not isinstance(raw, Gap) and raw.get("says")),
        Gap("not-run", "no libnccl is loaded, or the loaded libnccl has no version"),
    )


def conf_lines(text: str) -> dict[str, str]:
    """Name -> value in nccl.conf as NCCL 2.30.7 reads it: nothing is stripped, lines that begin with # are
    skipped, the first setting wins."""
    settings: dict[str, str] = {}
    for line in text.splitlines():
        if "=" in line and not line.startswith("#"):
            settings.setdefault(*line.split("=", 1))
    return settings


def _python_string(text: str, name: str) -> str | Gap:
    match = re.search(rf"^{name}\b[^=]*=\s*['\"]([^'\"]+)['\"]", text, re.M)
    return match[1] if match else Gap("absent", "no torch is loaded, or the loaded torch has no version")


def row_of(text: str | Gap, name: str) -> str | Gap:
    """The first value of the row of this name ("Max open files  1024  ...", "Seccomp:  2") in the text of a
    file of /proc/PID: of a limit, the soft limit; a Gap if it is not there."""
    if isinstance(text, Gap):
        return text
    row = re.search(r"^(\S+)" if name == WHOLE else rf"^{re.escape(name)}:?[ \t]+(\S+)", text, re.M)
    return row[1] if row else Gap("absent", f"{name} is not in its file of /proc")


def _routes(text: Any) -> list[str] | Gap:
    rows = [line.split() for line in text.splitlines()[1:]] if isinstance(text, str) else []
    return (
        text
        if isinstance(text, Gap)
        else sorted({row[0] for row in rows if len(row) > 1 and row[1] == "00000000"})
    )
