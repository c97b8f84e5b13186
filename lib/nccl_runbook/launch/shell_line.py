"""The line that repeats a world in a shell."""

import os
import shlex
from pathlib import Path
from typing import List

from nccl_runbook.core.facts_world import WorldRequest
from nccl_runbook.launch.gpu_lists import device_arguments
from nccl_runbook.launch.interpreters import python_word

_LONGEST_WORD = 1 << 17  # bytes of one argument of a command, with its end (Linux, MAX_ARG_STRLEN)
HOME = Path(__file__).parents[2]  # the folder that holds the package, or nccl-look.pyz as the user named it


def rank_file(entry: str) -> List[str]:
    """Arguments that make Python run this rank: its file, relative to the checkout if there is one, or
    nccl-look.pyz, which contains the file."""
    if HOME.is_file():
        return [str(HOME), "--rank", entry]
    path, checkout = HOME.resolve() / "nccl_runbook" / "ranks" / entry, HOME.resolve().parent
    return [str(path.relative_to(checkout) if (checkout / "notebooks").is_dir() else path)]


def shell_line(prefix: List[str], request: WorldRequest) -> str:
    """A command that repeats the world from the runbook's folder, or from where nccl-look.pyz was started:
    environment, torchrun, rank file. ``timeout`` stands in for the engine's deadline, which torchrun
    lacks."""
    visible, arguments = device_arguments(
        request.devices, {**os.environ, **request.env}.get("CUDA_VISIBLE_DEVICES")
    )
    delta = {**request.env, **visible}
    unset = [f"-u {shlex.quote(k)}" for k, v in delta.items() if v is None and k in os.environ]
    env = (
        (["env"] if unset else [])
        + unset
        + [f"{k}={shlex.quote(v)}" for k, v in delta.items() if v is not None]
    )
    words = [
        *prefix,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(request.world_size),
        *_by_rank(prefix, request),
        *rank_file(request.entry),
        *request.args,
        *arguments,
    ]
    return " ".join(
        [
            *env,
            "timeout",
            str(int(request.deadline_s) + 30),
            *(
                request.shown
                if word[:1] == "{" and request.shown and not HOME.is_file()
                else shlex.quote(word)
                for word in words
            ),
        ]
    )


def _by_rank(prefix: List[str], request: WorldRequest) -> List[str]:
    """What stands before the rank file where ranks have environments of their own: torchrun starts
    all of them the same way."""
    if not any(request.of_ranks.values()):
        return []
    own = {
        rank: "; ".join(f"unset {k}" if v is None else f"export {k}={shlex.quote(v)}" for k, v in env.items())
        for rank, env in request.of_ranks.items()
    }
    cases = " ".join(f"{rank}) {line};;" for rank, line in own.items() if line)
    return [
        "--no-python",
        "sh",
        "-c",
        f'case $RANK in {cases} esac; exec "$@"',
        "sh",
        *prefix[python_word(prefix) :],
        "-u",
    ]


def pasteable(line: str, arguments: List[str]) -> str:
    """The line, or its beginning and why no shell can run it: an argument is longer than Linux allows."""
    longest = max(map(len, arguments), default=0)
    why = f"too long to paste, because one argument has {longest} characters"
    return line if longest < _LONGEST_WORD else f"{line[:300]} ... ({why})"
