"""The environment of ranks and processes: asks ranks/environment.py and turns its raw answer into facts."""

import base64
import dataclasses
import functools
import glob
import json
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nccl_runbook.causes.tables import table
from nccl_runbook.causes.variables import prefixes, variables
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.facts_world import WorldRequest
from nccl_runbook.core.secret_values import FORMS, sounds_secret
from nccl_runbook.environment import read_file as environment_file
from nccl_runbook.environment.facts import Environment, Host, Library, Role
from nccl_runbook.environment.read_role import CONTAINER, role_of, with_gaps

LOOK_TIMEOUT_S = 20
RANK_DEADLINE_S = 60.0


@functools.cache
def _names() -> str:
    """The same as one short pattern, for the node."""
    families = "|".join(map(re.escape, prefixes()))
    others = "|".join(re.escape(n) for n in variables() if not n.startswith(prefixes()) or sounds_secret(n))
    return f"(?:{others})|(?!{FORMS['secret_name'].pattern})(?:{families}).*"


def request(pid: str = "self", whole: bool = False, torch: bool = False, prefix: str = "") -> str:
    """The JSON request for ranks/environment.py. ``whole``: include slow parts (copies of libnccl, PCI
    bridges, kernel log, host name); ``prefix``: virtual or conda environment whose torch counts if none is
    mapped."""
    read = table("environment/read")
    files = {
        **read["process"],
        **{f.metadata["reads"]: "" for f in dataclasses.fields(Role) if f.metadata.get("reads")},
        **read["host"],
        **dict.fromkeys(CONTAINER, ""),
        **(read["slow"] if whole else {}),
    }
    packages = dict.fromkeys(
        name for part in ("frameworks", "watched") for name in table("environment/versions")[part]
    )
    return json.dumps(
        {
            "names": _names(),
            "hidden": FORMS["secret_name"].pattern,
            "pid": pid,
            "files": files,
            "mapped": read["mapped"],
            "copies": read["copies"] if whole else [],
            "import_torch": torch,
            "resolve": whole,
            "sites": [f"{glob.escape(prefix)}/lib/python3*/site-packages"] if prefix else [],
            "packages": [name.replace("-", "_") for name in packages],  # as their folders are named
        }
    )


def collect(engine: Any, script: str = "") -> Environment | Gap:
    """The environment of one fresh rank with torch imported, or a Gap; ``script`` is read as a role beside
    it."""
    raw = _of_rank(engine, {})
    if isinstance(raw, Gap):
        return raw
    role = role_of("a rank", raw)
    given = environment_file.read(script) if script else None
    shared = {
        name: getattr(role, name) for name in ("torch", "torch_cuda", "reported", "interfaces", "routes")
    }
    return Environment(
        [role, *([dataclasses.replace(given, **shared)] if isinstance(given, Role) else [])],
        host_of(raw),
        {"script": given} if isinstance(given, Gap) else {},
    )


def _of_rank(engine: Any, env: Mapping[str, str | None]) -> dict[str, Any] | Gap:
    rank = engine.run(
        WorldRequest(
            "the environment of a rank",
            "environment.py",
            [None],
            [request(whole=True, torch=True)],
            dict(env),
            RANK_DEADLINE_S,
        )
    ).ranks[0]
    return rank.first("environment") or rank.why_silent()


def of_arms(engine: Any, arms: Any) -> Environment | Gap:
    """A fresh rank in each of two set-ups (compare.read.Arms) as roles A and B, and one for each of their
    own roles; a Gap if none could be read."""
    if not arms.named:
        return Gap("absent", "no second environment was named to compare with")
    both = [(arm, arms.env(keys)) for arm, keys in (("A", []), ("B", arms.keys))]
    by_name = {
        f"{arm} {role}".strip(): _of_rank(engine, {**env[""], **env[role]})
        for arm, env in both
        for role in env
    }
    return _joined(
        [raw if isinstance(raw, Gap) else (role_of(name, raw), host_of(raw)) for name, raw in by_name.items()]
    )


def _joined(answers: Sequence[tuple[Role, Host] | Gap]) -> Environment | Gap:
    """Roles of one machine with the libraries of all; a path that holds something else for another one (in
    its container) gets its name. Or the first Gap among them."""
    roles, libraries = [], {}
    for one in answers:
        if isinstance(one, Gap):
            return one
        role, host = one
        other = {
            lib.path: f"{role.name}: {lib.path}"
            for lib in host.libraries
            if libraries.get(lib.path, lib).sha256 != lib.sha256
        }
        libraries |= {
            other.get(lib.path, lib.path): dataclasses.replace(lib, path=other.get(lib.path, lib.path))
            for lib in host.libraries
        }
        mapped, preloaded = (
            p if isinstance(p, Gap) else [other.get(x, x) for x in p] for p in (role.mapped, role.preloaded)
        )
        roles.append(dataclasses.replace(role, mapped=mapped, preloaded=preloaded))
    return Environment(roles, dataclasses.replace(answers[0][1], libraries=list(libraries.values())))


def look(pid: str, name: str) -> tuple[Role, Host] | Gap:
    """(role, host) of this process (as it would start a job) or another one, by a child that reads and exits
    without torch; or a Gap."""
    prefix = (os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX") or "") if pid == "self" else ""
    command = [
        sys.executable,
        "-S",
        "-E",
        str(Path(__file__).resolve().parents[1] / "ranks" / "environment.py"),
        request(pid, prefix=prefix),
    ]
    try:
        raw = json.loads(
            subprocess.run(
                command, capture_output=True, text=True, timeout=LOOK_TIMEOUT_S, stdin=subprocess.DEVNULL
            ).stdout
        )
    except subprocess.TimeoutExpired:
        return Gap("timed-out", f"no answer within {LOOK_TIMEOUT_S} s")
    except (OSError, ValueError):
        return Gap("failed", "the process that reads the environment gave no answer")
    if raw["event"] != "environment":
        return Gap(
            raw["reason"],
            f"there is no process {pid}"
            if raw["reason"] == "absent"
            else f"no permission to read process {pid}. Run this command as the user of that process"
            if raw["reason"] == "no-permission"
            else f"process {pid} cannot be inspected: {raw['detail']}",
        )
    role = role_of(name, raw)
    if pid == "self" and isinstance(role.reported, Gap):  # nothing is loaded here yet: what a job would load
        nothing = Gap("absent", f"no torch in {prefix or 'an active environment'}")
        nccl = [
            package.rpartition(" ")[2] for package in role.requires if package.startswith("nvidia-nccl-cu")
        ]
        role = dataclasses.replace(
            role,
            torch=nothing if isinstance(role.torch, Gap) else role.torch,
            reported=next(iter(nccl), nothing),
        )
    return role, host_of(raw)


def host_of(raw: Mapping[str, Any]) -> Host:
    """The host in the raw answer."""
    answer = with_gaps(raw)
    files, addresses = answer["files"], answer["addresses"]
    kernel = files.get("/dev/kmsg", Gap("not-run", "not read here"))
    bridges = {
        path.split("/")[-2]: zlib.decompress(bytes.fromhex(what["binary"]))
        for path, what in files.items()
        if path.endswith("/config") and isinstance(what, dict)
    }
    return Host(
        name=answer["host"],
        addresses=sorted({*addresses}) if isinstance(addresses, list) else addresses,
        hcas=_below(files, "/sys/class/infiniband/", "/sys/class/cxi/"),
        iommu=_iommu(files),
        acs=environment_file.acs_redirects(bridges),
        xids=kernel if isinstance(kernel, Gap) else kernel.splitlines()[-20:],
        libraries=[library_of(path, what) for path, what in answer["libraries"].items()],
    )


def _below(files: Mapping[str, Any], *folders: str) -> list[str] | Gap:
    """Names in folders of /sys; none of them where its network folder shows that /sys is there."""
    names = [p[len(folder) :] for folder in folders for p in files if p.startswith(folder) and "*" not in p]
    return (
        names
        if names or any(p.startswith("/sys/class/net/") and "*" not in p for p in files)
        else Gap("absent", folders[0])
    )


def _iommu(files: Mapping[str, Any]) -> str | Gap:
    units = _below(files, "/sys/class/iommu/")
    if isinstance(units, Gap):
        return units
    return "off" if not units else "passthrough" if "iommu=pt" in str(files["/proc/cmdline"]) else "on"


def library_of(path: str, raw: Mapping[str, Any] | Gap) -> Library:
    """The library at this path; its fields are Gaps if it could not be read."""
    if isinstance(raw, Gap):
        return Library(path, raw, raw, raw, {})
    version, cuda = raw["says"] or [Gap("absent", "the file contains no version")] * 2
    return Library(
        path,
        raw["sha256"],
        version,
        cuda,
        {_wheel(folder): _same(text, raw["sha256"]) for folder, text in raw["wheels"].items()},
    )


def _wheel(folder: str) -> str:
    """ "nvidia_nccl_cu13-2.28.9.dist-info" as "nvidia-nccl-cu13 2.28.9"."""
    name, _, version = folder.removesuffix(".dist-info").partition("-")
    return f"{name.replace('_', '-')} {version}"


def _same(record: Any, sha256: str) -> str:
    """Whether a wheel's RECORD names this file with this hash (PEP 376: urlsafe base64 without padding)."""
    digests = re.findall(r"sha256=([\w-]+)", record) if isinstance(record, str) else []
    own = base64.urlsafe_b64encode(bytes.fromhex(sha256)).decode().rstrip("=")
    return "unknown" if not digests else "same" if own in digests else "other"


def looks(pids: Iterable[int] = ()) -> Environment | Gap:
    """These processes as roles of one environment; without any, this process."""
    return _joined(
        [
            look(pid, name)
            for pid, name in ({str(pid): f"pid {pid}" for pid in pids} or {"self": "this process"}).items()
        ]
    )
