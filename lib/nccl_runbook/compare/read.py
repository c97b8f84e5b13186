"""Two set-ups, A and B, each put together from what the user names: files, processes, logs, modules,
a preload, single settings.

Nothing of a file is executed; only ``module:`` starts a child, the user's own login shell with
its module command. Values are raw here and go nowhere but into the environment of what is run:
``Arms.differences`` is what may be shown.
"""

import contextlib
import dataclasses
import functools
import math
import os
import re
import shlex
import subprocess
import time
from collections.abc import Collection, Mapping
from typing import Any

from nccl_runbook.causes.variables import may_be_shown
from nccl_runbook.compare.facts import HIDDEN, NOT_SET, Difference
from nccl_runbook.core.facts import Gap, Unusable
from nccl_runbook.core.redact import Redactor
from nccl_runbook.core.secret_values import sounds_secret
from nccl_runbook.environment.read_file import MOST_BYTES, assigned, is_dump
from nccl_runbook.launch.running import TAKEN
from nccl_runbook.logs.file import text_of

GRAMMAR = (
    "a file, pid:4711, log:FILE, module:NAME, preload:PATH, NAME=VALUE, or . for the unchanged "
    "environment. Separate several parts with spaces. A word such as @trainer applies the parts after "
    "it only to that role: NCCL_DEBUG=INFO @trainer NCCL_P2P_DISABLE=1"
)
# of one process or session, not of a set-up: left as they are around the runbook
_SESSION = re.compile(
    r"_|(OLD)?PWD|SHLVL|HOME|USER|LOGNAME|HOST(NAME)?|TERM\w*|SSH_\w+|XDG_\w+|DISPLAY|LS_COLORS|PS\d|"
    r"MAIL|(LOCAL_|GROUP_|NODE_|ROLE_)?RANK|(LOCAL_|GROUP_|ROLE_)?WORLD_SIZE|MASTER_(ADDR|PORT)|"
    r"TORCHELASTIC_\w+|SLURM_\w+|PMIX?_\w+|OMPI_\w+|PBS_\w+|"
    r"BASH_FUNC_.*|NCCL_RUNBOOK_\w+|LOADEDMODULES|_LMFILES_|_*MODULES_\w+|_*LMOD_\w+|"
    r"_ModuleTable\w*|INVOCATION_ID"
)
_WORD = re.compile(r"(?P<name>[A-Za-z_]\w{0,80})=(?P<value>.*)", re.S)
_REFERENCE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_MODULE_LINE = re.compile(r"^[^\S\n]*(?:module|ml)\s+(?:load|add)\s+([^#;&|\n]+)", re.M)
# a login shell's environment before and after it loads modules
_LOAD = 'env -0; printf "\\0"; module load "$@" >&2 || exit 3; exec env -0'
MODULE_TIMEOUT_S = 60
MOST_LOG_BYTES = 256 << 20
Env = dict[str, str | None]
Key = tuple[str, str]  # role ("" for every process) and name


@dataclasses.dataclass(frozen=True)
class Arms:
    """Settings of A and B by role and name (None: not set), never shown unredacted. ``left_out``: name ->
    why it stays unchanged; ``secrets``: redactor for both and for this environment."""

    names: tuple[str, str]
    a: dict[Key, str | None] = dataclasses.field(repr=False)
    b: dict[Key, str | None] = dataclasses.field(repr=False)
    left_out: dict[str, str]
    secrets: Redactor = dataclasses.field(repr=False)

    @property
    def named(self) -> bool:
        """Whether the user named any settings; otherwise nothing is compared."""
        return self.names != (".", ".")

    def unless(self, somebody: Any) -> Any:
        """The finding that forbids tests, if there would be any; else None."""
        return somebody if self.named else None

    @property
    def keys(self) -> list[str]:
        """Names of the settings in which A and B differ."""
        return [_text(k) for k in self.a if self.a[k] != self.b[k]]

    @property
    def roles(self) -> list[str]:
        """Names of the roles (trainer, engine) whose variables differ from the common ones; empty without
        roles."""
        return sorted({role for role, _ in self.a if role})

    def env(self, of_b: Collection[str]) -> dict[str, Env]:
        """Role -> changes of this environment for A, with the settings ``of_b`` as in B."""
        changes: dict[str, Env] = {"": {}, **{role: {} for role in self.roles}}
        for key in self.a:
            changes[key[0]][key[1]] = (self.b if _text(key) in of_b else self.a)[key]
        # None for a role means "as all others", if there is a value for all
        return {
            role: {n: v for n, v in env.items() if not role or v is not None or n not in changes[""]}
            for role, env in changes.items()
        }

    @property
    def differences(self) -> list[Difference]:
        """Variables whose values differ, secrets hidden. "not set" stands for a missing variable."""

        def shown(key: Key, value: str | None) -> str:
            return (
                NOT_SET
                if value is None
                else self.secrets.text(value)
                if may_be_shown(key[1], value)
                else HIDDEN
            )

        return [
            Difference(_text(k), shown(k, self.a[k]), shown(k, self.b[k]))
            for k in self.a
            if self.a[k] != self.b[k]
        ]


def _text(key: Key) -> str:
    return ":".join(filter(None, key))


def read(a: str, b: str, surroundings: Mapping[str, str] = os.environ, within_s: float = math.inf) -> Arms:
    """The two set-ups. ``within_s``: seconds left of the budget. ValueError says which file or setting
    cannot be read."""
    until = time.monotonic() + within_s
    left_out: dict[str, str] = {}
    one, two = (_effective(text, surroundings, left_out, until) for text in (a, b))
    secrets = Redactor(
        {
            **surroundings,
            **{
                f"SECRET_{i}": value
                for i, value in enumerate(
                    [v for (_, name), v in (*one.items(), *two.items()) if v and sounds_secret(name)]
                )
            },
        }
    )
    around = {key: surroundings.get(key[1]) for key in (*one, *two)}
    one, two = {**around, **one}, {**around, **two}
    fit = [
        k
        for k in [k for k in sorted(one) if (one[k], two[k]) != (surroundings.get(k[1]),) * 2]
        if _fits(k[1], (one[k], two[k]), left_out, secrets)
    ]
    return Arms((_name(a), _name(b)), {k: one[k] for k in fit}, {k: two[k] for k in fit}, left_out, secrets)


def _words(text: str) -> list[str]:
    """A file's name, or the words as a shell reads them."""
    try:
        return [text] if os.path.isfile(text) else shlex.split(text)
    except ValueError as error:
        raise Unusable(f"{text}: {error}") from None


def _name(text: str) -> str:
    """The name as the user gave it, without values that may not be shown."""
    return (
        " ".join(
            [
                m["name"] + "=..."
                if (m := _WORD.fullmatch(w)) and not may_be_shown(m["name"], m["value"])
                else w
                for w in _words(text)
            ]
        )
        or "."
    )


def _fits(
    name: str, values: tuple[str | None, str | None], left_out: dict[str, str], secrets: Redactor
) -> bool:
    if _SESSION.fullmatch(name):
        return False
    texts = [v for v in values if v is not None]
    if sounds_secret(name) or any(secrets.text(v) != v for v in texts):
        left_out[name] = (
            "its name or value looks like a secret, so both set-ups use the value from the environment "
            "in which nccl-runbook was started"
        )
    elif any(re.search(r"\$\(|`|\$\{\w+[^\w}]|\$\w", v) for v in texts):
        left_out[name] = "only a shell can compute its value"
    return name not in left_out


def _effective(
    text: str, surroundings: Mapping[str, str], left_out: dict[str, str], until: float
) -> dict[Key, str | None]:
    """What one arm sets, by role and name."""
    values: dict[Key, str | None] = {}
    role = ""
    for word in _words(text):
        if word.startswith("@"):
            role = word[1:]
        else:
            known = only_set({**surroundings, **{n: v for (r, n), v in values.items() if r in ("", role)}})
            values.update({(role, n): v for n, v in _part(word, known, left_out, until).items()})
    return values


def _part(word: str, known: Mapping[str, str], left_out: dict[str, str], until: float) -> Env:
    if word == ".":
        return {}
    if kind := re.fullmatch(r"(pid|log|module|preload):(.+)", word, re.S):
        of_module = functools.partial(_of_module, until=until)
        return {"pid": _of_process, "log": _of_log, "module": of_module, "preload": _preload}[kind[1]](
            kind[2], known
        )
    setting = _WORD.fullmatch(word)
    if os.path.exists(os.path.expanduser(word)) or not setting:
        return _of_file(word, known, left_out, until)
    return {setting["name"]: setting["value"]}


def only_set(env: Env) -> dict[str, str]:
    """The variables that have a value."""
    return {n: v for n, v in env.items() if v is not None}


def _of_file(path: str, known: Mapping[str, str], left_out: dict[str, str], until: float) -> Env:
    text = text_of(path, MOST_BYTES, "an environment")
    if isinstance(text, Gap):
        raise Unusable(f"{text.detail}. A set-up is {GRAMMAR}")
    loaded: Env = {}
    for line in _MODULE_LINE.findall(text):
        try:
            loaded.update(_of_module(line.strip(), only_set({**known, **loaded}), until))
        except ValueError as error:
            left_out[f"module load {line.strip()}"] = str(error)
    if is_dump(text):
        return {**dict.fromkeys(known), **_pairs(text, "\0" if "\0" in text else "\n")}
    shown = Redactor(os.environ).text(text)  # what looks like a name may be a key (curl -u KEY:)
    for name, value in ((name, value) for name, (value, _) in assigned(text).items() if name in shown):
        # $NAME and ${NAME}; nothing else of the shell is worked out
        value_of = only_set({**known, **loaded}).get
        loaded[name] = _REFERENCE.sub(lambda m, of=value_of: str(of(m[1] or m[2], m[0])), value)
    return loaded


def _pairs(text: str, between: str) -> dict[str, str]:
    return {m["name"]: m["value"] for row in text.split(between) if (m := _WORD.fullmatch(row))}


def _of_process(pid: str, known: Mapping[str, str]) -> Env:
    values: dict[str, str] = {}
    with (
        contextlib.suppress(OSError, ValueError),
        open(f"/proc/{int(pid)}/environ", encoding="utf-8", errors="replace") as file,
    ):
        values = _pairs(file.read(), "\0")
    if not values:
        raise Unusable(f"the environment of process {pid} cannot be read")
    values.pop("CUDA_VISIBLE_DEVICES", None)  # which GPUs that rank has, not how it talks
    return {**dict.fromkeys(n for n in known if n != "CUDA_VISIBLE_DEVICES"), **values}


def _of_log(path: str, known: Mapping[str, str]) -> Env:
    """NCCL variables that NCCL reports as set (NCCL_DEBUG=INFO)."""
    text = text_of(path, MOST_LOG_BYTES, "an environment")
    if isinstance(text, Gap):
        raise Unusable(text.detail)
    values: Env = dict(TAKEN.findall(text))
    if not values:
        raise Unusable(
            f'{path} has no line that shows which settings NCCL read ("NCCL_... set by environment to '
            '...", from NCCL_DEBUG=INFO)'
        )
    return values


def _of_module(names: str, known: Mapping[str, str], until: float) -> Env:
    """What `module load` changes in a login shell of the user's."""
    words = re.split(r"[\s,]+", names.strip())
    if not all(re.fullmatch(r"[A-Za-z0-9][\w./+-]{0,120}", w) for w in words):
        raise Unusable(f"{names!r} is not the name of a module")
    try:
        done = subprocess.run(
            ["bash", "-lc", _LOAD, "ab", *words],
            capture_output=True,
            env=dict(known),
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=max(0.0, min(MODULE_TIMEOUT_S, until - time.monotonic())),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unusable(f"module load {names}: {type(error).__name__}") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["module printed no reason"])[-1]
        raise Unusable(f"module load {names} fails on this host: {Redactor(os.environ).text(last)[:200]}")
    before, after = (_pairs(part, "\0") for part in done.stdout.split("\0\0", 1))
    return {n: after.get(n) for n in {**before, **after} if before.get(n) != after.get(n)}


def _preload(path: str, known: Mapping[str, str]) -> Env:
    if not os.path.isfile(path):
        raise Unusable(f"there is no file {path} to preload. The loader would only warn, and run without it")
    return {"LD_PRELOAD": ":".join(filter(None, (path, known.get("LD_PRELOAD", ""))))}
