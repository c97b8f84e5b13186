"""Who and where, under other names, in what is passed on with --share. Standard library only, Python >= 3.9.

A name is known from this machine, or from a form in a text that nothing else has, such as NCCL's ``host:pid:tid [0]``. A known name is
replaced wherever it stands as a word; an address, a UUID and a whole host name are replaced for their form alone. The key of a run stands
in its variable: every process gives a name the same other name, and without the key nobody can compute it back.
"""
import collections
import functools
import getpass
import hashlib
import json
import os
import pkgutil
import re
import socket
from typing import Any, Dict, FrozenSet, Match, Pattern, Tuple

SHARE = "NCCL_RUNBOOK_SHARE"  # holds the key; set by --share, for notebooks and ranks, too
KINDS = {"host": "host name", "user": "user name", "ip": "IP address", "mac": "MAC address", "GPU": "GPU UUID", "MIG": "MIG UUID"}
_OURS = re.compile(r"(host|user|ip|mac|GPU|MIG)-x[0-9a-f]{6}")
_H = r"(?!\d{4}-)(?=[\w.-]{0,60}[A-Za-z])[A-Za-z0-9][\w-]{0,62}(?:\.[\w-]{1,62}){0,8}"  # a host; no time stamp
_U = r"[A-Za-z_][\w.-]{0,31}"
_FORMS = re.compile(
    rf"(?<![\w.-])(?P<host>{_H}):\d{{1,8}}:\d{{1,8}} \[|"  # NCCL's prefix
    rf"[/\\](?:home|Users)[/\\]{{1,2}}(?P<user>{_U})|"
    rf"(?<![\w.:@+-])(?<!\w/)(?P<user_at>{_U})@(?P<host_at>(?!v?\d|sha\d){_H})(?![\w(]|:\w+/)|"
    rf"\"host\": \"(?P<host_of>{_H})\"|"  # in a document of ours
    r"(?:SLURM_\w{0,20}NODELIST|MASTER_ADDR|HOSTNAME)[\"']?\s{0,4}[=:]\s{0,4}[\"']?(?P<hosts>[\w.,\[\]-]+)|"
    rf"(?<![A-Za-z])(?:USER|LOGNAME|USERNAME)=[\"']?(?P<user_is>{_U})")
_NUMBERED = re.compile(r"(.*?)(\[[\d,-]+\]|\d{0,6})", re.DOTALL)
_PIECE = re.compile(r"([A-Za-z][\w.-]*)(\[[\d,-]+\])?")  # of Slurm's node7,n[01-04]
_ALONE = re.compile(
    r"\b(?:(?i:version|driver|cu\w{0,8})\W{1,12}|[=<>~!]=)\d+(?:\.\d+){3}|"  # a version, which stays
    r"\b(?P<uuid>(?:GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{1,12}){0,4})(?![\w-])|"
    r"(?<![\w:])(?P<mac>(?:[0-9A-Fa-f]{2}:){5,19}[0-9A-Fa-f]{2})(?![\w:])|"
    r"(?<![A-Za-z0-9.+-])(?P<ip>\d{1,3}(?:\.\d{1,3}){3})(?!\w|\.\d|-\d{1,2}\b(?!\.))|"
    r"(?<![\w:.])(?P<ip6>[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7})(?![\w:])|"
    r"(?<![\w.-])(?P<host>ip(?:-\d{1,3}){4}(?![\w.-])|(?:[A-Za-z0-9][A-Za-z0-9-]{0,62}\.){2,7}(?i:com|org|net|edu|gov|mil|io|ai|dev|cloud|local|"
    r"internal|lan|corp|cluster|intranet|intra|priv|private|hpc|arpa|example|invalid|a[etu]|b[er]|c[ahnz]|de|dk|e[esu]|f[ir]|gr|h[ku]|i[elnt]|"
    r"jp|kr|mx|n[loz]|ru|s[eg]|t[rw]|u[aks]|za))(?![\w(\[-]|\.\w)")
_PUBLIC = re.compile(r"(?i)(?:.*\.)?(?:nvidia\.com|pytorch\.org|github(?:usercontent)?\.com|huggingface\.co|readthedocs\.io|python\.org|"
                     r"kernel\.org|schedmd\.com|ray\.io|vllm\.ai|w3\.org)")
_NOBODY = ("root", "localhost")
_known: Dict[str, str] = {}  # name -> kind, of all that this process has read


@functools.lru_cache(maxsize=1)
def _words() -> FrozenSet[str]:
    """What stands in sentences of ours: a name that is such a word is replaced in its form only."""
    data = [pkgutil.get_data("nccl_runbook", name) or b"" for name in ("causes/causes.toml", "core/secrets.toml")]
    return frozenset(re.findall(r"[a-z][\w-]+", b" ".join(data).decode().lower()))


def _other(kind: str, name: str) -> str:
    """The other name of this one. A host's is that of its short name, and keeps its number: Slurm's lists of numbers stay what they are."""
    if name in _NOBODY or _OURS.match(name):
        return name
    first = name.split(".")[0]
    stem, number = _NUMBERED.fullmatch(first if kind == "host" and re.search(r"\d", first) else name).groups()
    seed = stem if kind == "host" and number else stem + number
    digest = hashlib.blake2s(seed.encode(errors="replace"), key=os.environ[SHARE].encode()[:32], digest_size=3).hexdigest()
    return f"{kind}-x{digest}" + f"-{number}" * (seed != stem + number)


def learn(text: str) -> None:
    """Keep the names that a text shows, for whatever is written from now on; nothing without --share."""
    if not os.environ.get(SHARE):
        return
    if not _known:
        _known[""] = ""  # begun
        own = [f"{n}={v}" for n, v in os.environ.items() if _FORMS.match(f"{n}={v}")]
        home = os.path.basename(os.path.expanduser("~"))
        learn("\n".join([f"HOSTNAME={socket.gethostname()}", f"USER={getpass.getuser()}", f"/home/{home}", *own]))
    for found in _ALONE.finditer(text):
        if found["host"] and not _PUBLIC.fullmatch(found["host"]):
            _keep("host", found["host"], "")
    for found in _FORMS.finditer(text):
        for group, value in found.groupdict().items():
            pieces = _PIECE.findall(value or "") if group == "hosts" else [(value or "", "")]
            for name, numbers in pieces:
                _keep("user" if group.startswith("user") else "host", name, numbers)


def learn_all(value: Any) -> None:
    """The same for every text of a value or a fact, before the first of them is written."""
    if os.environ.get(SHARE):
        learn(json.dumps(value, ensure_ascii=False, skipkeys=True, default=lambda fact: getattr(fact, "__dict__", str(fact))))


def _keep(kind: str, name: str, numbers: str) -> None:
    short = name.split(".")[0]
    for one in {name, short} if kind == "host" and re.search(r"\d", short) else {name}:
        if numbers:
            _known.setdefault(f"{one}[", kind)
        elif len(one) > 1 and one.lower() not in _words() and one not in _NOBODY and not _OURS.match(one):
            _known.setdefault(one, kind)


@functools.lru_cache(maxsize=64)
def _any_of(names: Tuple[str, ...]) -> Pattern[str]:
    """Each as a word; one with a bracket is the beginning of Slurm's numbered names."""
    longest_first = sorted(names, key=len, reverse=True)
    written = (re.escape(n[:-1]) + r"(?:\[[\d,-]+\]|\d{1,6})" if n.endswith("[") else re.escape(n) for n in longest_first)
    return re.compile(r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))(?:%s)(?![A-Za-z0-9])" % "|".join(written))


def shared(text: str) -> str:
    """The text with other names for hosts, users, addresses and GPUs; as it is without --share."""
    if not os.environ.get(SHARE):
        return text
    learn(text)
    text = _FORMS.sub(_in_form, _ALONE.sub(_alone, text))
    names = tuple(filter(None, tuple(_known)))
    return _any_of(names).sub(lambda found: _other(_known.get(found[0], "host"), found[0]), text) if names else text


def _in_form(found: Match[str]) -> str:
    text = found[0]
    for group, name in found.groupdict().items():
        if name and group != "hosts":
            text = text.replace(name, _other("user" if group.startswith("user") else "host", name))
    return text


def _alone(found: Match[str]) -> str:
    kind, name = found.lastgroup or "", found[0]
    if not kind or kind == "host" and _PUBLIC.fullmatch(name):
        return name
    if kind == "uuid":  # a table cuts it behind the first part, so that each part has its own
        first, *rest = name.split("-", 2)[1:]
        return "-".join([_other(name[:3], first), *(_other("", part)[2:] for part in rest)])
    return name if kind.startswith("ip") and _stays(name) else _other(kind[:2] if kind == "ip6" else kind, name)


def _stays(address: str) -> bool:
    """An address that is nobody's, or none."""
    from ipaddress import ip_address

    try:
        seen = ip_address(address)
    except ValueError:
        return True
    return seen.is_loopback or seen.is_unspecified or seen.is_multicast or seen.is_reserved


def replaced(text: str) -> str:
    """What was replaced in a text, by kind and count; "" for nothing."""
    return ", ".join(f"{number} x {KINDS[kind]}" for kind, number in collections.Counter(_OURS.findall(text)).most_common())
