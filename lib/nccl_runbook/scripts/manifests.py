"""Manifests of Kubernetes, Docker Compose, SkyPilot and Beaker as scripts: one command for each container."""

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

from nccl_runbook.causes.tables import table

MOST_LEVELS = 64
MOST_CHARACTERS = 1 << 18
_LAUNCHES = re.compile(r"(?m)^[ \t{-]*[\"']?(apiVersion|services|tasks|run)[\"']?:")
_SET = re.compile(r'"name": "(\w+)", "value": "([^"\\]*)"')
_PROCESSES = re.compile(r"\b(?:nprocPerNode|nProcPerNode|numProcPerNode):(\d+)")
_PROGRAM = {"apiVersion": "kubernetes-container", "services": "compose-service"}


def documents(text: str, with_aliases: bool = True) -> list[Any]:
    """Text, lists and maps: no tag is heeded, no merge multiplied out. Raises ValueError for what is
    no YAML."""
    import yaml

    loader, depth = getattr(yaml, "CBaseLoader", yaml.BaseLoader), 0
    try:
        # the C one builds by recursion: 50,000 brackets end the process
        for event in yaml.parse(text, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_LEVELS or (isinstance(event, yaml.AliasEvent) and not with_aliases):
                raise ValueError(f"more than {MOST_LEVELS} levels, or an alias")
        return [*yaml.load_all(text, Loader=loader)]
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        if "{{" in text or "{%" in text:
            where = ": it is a template"
        raise ValueError(f"not readable as YAML{where}") from error


def as_script(text: str) -> str:
    """A command for each container: what it starts, behind what it gets; any other text as it is."""
    kind = _LAUNCHES.search(text[:MOST_CHARACTERS])
    try:
        # with aliases, a small text may be endless
        parts = documents(text, with_aliases=False) if kind and len(text) <= MOST_CHARACTERS else []
    except ValueError:
        return text
    program = _PROGRAM.get(kind[1], "manifest-task") if kind else ""
    return "\n".join(_containers(parts, {}, program)) or text


def _containers(part: Any, around: dict[str, Any], program: str) -> Iterator[str]:
    """``around``: what is said for all containers below."""
    if isinstance(part, dict):
        rows = table("scripts/launchers")["manifest"]
        replicas = re.findall(r'"replicas": "(\d{1,5})"', json.dumps([*map(part.get, rows["roles"])]))
        around = {
            **around,
            **({"nodes": sum(map(int, replicas))} if replicas else {}),
            **{key: part[key] for key in rows["sizes"] if part.get(key)},
        }
        gets = re.sub(r"[\"\s]", "", json.dumps(around, sort_keys=True))
        starts = [
            w if isinstance(w, str) else shlex.join(map(str, w)) for w in map(part.get, rows["starts"]) if w
        ]
        # KubeRay starts ray itself
        rays = re.findall(r"\bnum-gpus:(\d+)", gets)[-1:] if "image" in part and not starts else []
        processes = [("PET_NPROC_PER_NODE", n) for n in _PROCESSES.findall(gets)]
        sets = dict([*_SET.findall(json.dumps(part.get("env"))), *processes])
        # $(NAME) is Kubernetes' own, and $(date) the shell's
        started = re.sub(
            r"\$\((\w+)\)",
            lambda m: f"${{{m[1]}}}" if m[1] in sets else m[0],
            " ".join(starts or map("ray start --num-gpus={}".format, rays)),
        )
        if started:
            yield " ".join(
                (
                    *(f"{n}={shlex.quote(v)}" for n, v in sets.items()),
                    program,
                    shlex.quote(gets),
                    "bash -c",
                    shlex.quote(started),
                )
            )
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _containers(inner, around, program)
