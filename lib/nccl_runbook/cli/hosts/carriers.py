"""How an agent is started on each host: as a step of a Slurm job, by ssh, kubectl or a line of the user's,
or by the user's Ray."""

import json
import os
import re
import shlex
from collections.abc import Callable, Sequence

from nccl_runbook.core.facts import Unusable
from nccl_runbook.core.parameters import check_range
from nccl_runbook.hosts.ask import hosts_of_job, output, srun
from nccl_runbook.launch.warm_link import source_of

SSH = "ssh -o BatchMode=yes {host}"
RAY_S = 60.0  # to join an existing cluster: 3 to 5 s on two cores (Ray 2.60)

RENDEZVOUS_PORT = 29500  # torchrun's default

Carrier = Callable[[str], list[str]]


def port_of(port: int = 0) -> int:
    """The port, else MASTER_PORT, else the usual one. Unusable for one that cannot be a port."""
    text = str(port or os.environ.get("MASTER_PORT") or RENDEZVOUS_PORT)
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise Unusable(f"{text} (--port, else MASTER_PORT) is not a port number from 1 to 65535")
    return int(text)


def chosen(
    names: Sequence[str], job: str, over_ray: bool, line: str, python: str
) -> tuple[list[str], Carrier]:
    """(hosts, carrier): named hosts, else those of the Slurm job. Unusable for a wrong
    name or line."""
    prefix = shlex.split(check_range("python", python)) or ["python3"]
    if over_ray:
        return ray(prefix)
    if names:
        return list(dict.fromkeys(names)), over(line, names, prefix)
    job, hosts = hosts_of_job(job, os.environ)
    return hosts, srun(job, prefix)


def over(line: str, hosts: Sequence[str], python: Sequence[str]) -> Carrier:
    """Host -> argv prefix of a Python there; ``line`` starts a program on {host}. Unusable for an unusable
    line."""
    words = shlex.split(check_range("over", line))
    if not any("{host}" in word for word in words):
        raise Unusable(f"--over must contain {{host}}, for example --over '{SSH}'")
    for host in hosts:
        if not re.fullmatch(
            r"(?a)[A-Za-z0-9][\w.:/@-]{0,252}", host
        ):  # one that begins with - would be an option
            raise Unusable(f"{host!r} is not a host name")
    return lambda host: [*(word.replace("{host}", host) for word in words), *python]


def ray(python: Sequence[str]) -> tuple[list[str], Carrier]:
    """(node addresses, carrier) of the Ray cluster of this machine. Unusable if there is none."""
    command = [*python, "-c", source_of("nccl_runbook/cli/hosts/over_ray.py").decode()]
    return json.loads(output(*command, within_s=RAY_S).splitlines()[-1]), lambda host: [*command, host]
