"""Other names for hosts, users, addresses and GPUs in what --share writes.
Standard library only, Python >= 3.9.

Programs write names in forms of their own, such as NCCL's ``host:pid:tid [0]``. A form shows a name; from
then on the name is replaced wherever it stands as a word. The key of a run stands in its variable, so all
processes of the run use the same other names.
"""

import collections
import functools
import hashlib
import json
import os
import pkgutil
import re
import socket
from typing import Any, Collection, Dict, List, Match, Pattern, Set, Tuple

SHARE = "NCCL_RUNBOOK_SHARE"  # holds the key; set by --share, for notebooks and ranks, too
KINDS = {
    "host": "host name",
    "user": "user or team name",
    "ip": "IP address",
    "mac": "MAC address or GUID",
    "GPU": "GPU UUID",
    "MIG": "MIG UUID",
    "node": "Ray node ID",
    "bucket": "bucket name",
    "path": "folder",
}
_OURS = re.compile(r"(%s)-x[0-9a-f]{6}(?:-\d+)?" % "|".join(KINDS))
_NOBODYS = re.compile(
    r"root|git|localhost|auto|main|master|latest|.|\d+(?:\.\d+){0,2}|0\.0\.0\.0|(?:127|22\d|255)\.[\d.]+|"
    + _OURS.pattern
    + r"(?:\..*|-\[.*)?|"
    r"(?:.*\.)?(?:nvidia\.com|nvcr\.io|pytorch\.org|github(?:usercontent)?\.com|huggingface\.co|"
    r"readthedocs\.io|python\.org|kernel\.org|"
    r"schedmd\.com|ray\.io|vllm\.ai|wandb\.ai|w3\.org|docker\.io|pypi\.org|gitlab\.com|npmjs\.org|"
    r"kubernetes\.io|k8s\.io|vpc\.amazonaws\.com)",
    re.DOTALL,
)
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,120}[A-Za-z0-9])?(?![\w(-]|\.\w|://)"
# also Slurm's n[01-04,7],login1
_HOSTS = r"[A-Za-z0-9](?:[A-Za-z0-9.,\[\]-]{0,2000}[A-Za-z0-9\]])?(?![\w(-]|\.\w|://)"
_USER = r"[A-Za-z_](?:[\w.-]{0,30}\w)?"
_START = r"(?:(?<![\w.@+/\\-])|(?<=\\[nrt]))"  # of a word, also behind an escaped line end
_AT = "(?<!:)" + _START + r"%s@(?!v?\d|sha\d)%s(?!:\w+/)"
_TOP = (
    "com|org|net|edu|gov|mil|io|ai|internal|lan|corp|intranet|hpc|svc|arpa|example|invalid|"
    "at|au|be|br|ca|ch|cn|cz|de|dk|ee|es|eu|fi|fr|gr|hk|hu|ie|il|in|it|jp|kr|mx|nl|no|nz|ru|se|"
    "sg|tr|tw|ua|uk|us|za"
)
# in an absolute path, the folders between the first one and the file's own name, or a package's; where
# systems and builds lie, none
_SYSTEM = "usr|lib\\w*|opt|dev|proc|sys|etc|s?bin|run|var|boot|nix|pytorch|workspace|builds?|__w"
_FOLDER = r"(?!lib/python3|(?:site|dist)-packages/)[\w.@+=-]{1,255}"
# kind, words, expression. Whatever the expression matches has one of the words, written here in small letters
# and with 0 for every digit; | is between two words. A text without them is not searched
_FORMS = (
    # a version of four numbers has no group, and stays
    (
        "ip",
        "0.0",
        r"(?:(?i:version|driver|cu\w{0,8})\W{1,12}|[=<>~!]=)\d+(?:\.\d+){3}|"
        r"(?<![A-Za-z0-9.+-])(\d{1,3}(?:\.\d{1,3}){3})(?!\w|\.\d|-\d{1,2}\b(?!\.))",
    ),
    ("ip", ":", r"(?<![\w:.])((?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4})(?![\w:])"),
    ("ip", "::", r"(?i)(?<![\w:.])(?=[\da-f:]{0,40}::)((?:[23f][\da-f]{3}:|::ffff:)[\da-f:]{1,40})(?![\w:])"),
    ("mac", ":|-", r"(?<![\w:-])((?:[0-9A-Fa-f]{2}[:-]){5,19}[0-9A-Fa-f]{2})(?![\w:-])"),
    ("mac", "guid", r"(?i)guid\W{1,4}((?:0x)?[0-9a-f]{4}(?::?[0-9a-f]{4}){3})\b"),
    ("GPU", "gpu-", r"(GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{1,12}){0,4})(?![\w-])"),
    ("MIG", "mig-", r"(MIG-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{1,12}){0,4})(?![\w-])"),
    ("node", "", r"\b([0-9a-f]{56})\b"),
    ("bucket", "://", r"(?:s3|gs|abfss?)://([A-Za-z0-9][\w.-]{1,62})"),
    ("user", "home|users", rf"[/\\](?:home|[Uu]sers)[/\\]{{1,2}}({_USER})"),
    ("user", "@", _AT % (f"({_USER})", _HOST)),
    ("user", "user=|logname=|username=", rf"(?<![A-Za-z])(?:USER|LOGNAME|USERNAME)=[\"']?({_USER})"),
    ("user", '"user"', rf"\"user\":\s?\"({_USER})\""),  # in a document of ours
    ("user", "wandb.ai/", rf"wandb\.ai/({_USER})"),
    ("user", "logged in as", rf"logged in as:? ({_USER})"),
    ("user", "git@", rf"git@[\w.-]{{1,99}}:({_USER})"),
    ("user", "--account|--uid", rf"--(?:account|uid)[= ]({_USER})"),
    (
        "path",
        "/",
        rf"(?<![\w/\\.:*$}}~-])/(?!(?:{_SYSTEM})/)[\w.-]{{1,64}}/(?:user-x\w{{6}}/)?(?!user-x|path-x)"
        rf"((?:{_FOLDER}/){{0,39}}{_FOLDER})(?=/[\w.@+=-])",
    ),
    ("host", "0 [", rf"{_START}(?!\d{{4}}-)({_HOST}):\d{{1,8}}:\d{{1,8}} \["),  # NCCL
    (
        "host",
        "mpirun|mpiexec|horovodrun",
        r"(?:mpirun|mpiexec|horovodrun)\b[^\n]{0,200}? --?(?:H|"
        r"hosts?)[= ]([A-Za-z0-9][A-Za-z0-9.,:\[\]-]{0,2000})",
    ),
    ("host", "srun|salloc|sbatch", rf"\b(?:srun|salloc|sbatch)\b[^\n]{{0,200}}? -[wx][= ]?({_HOSTS})"),
    (
        "host",
        "ssh ",
        rf"(?m)(?:^|[$;&|] ?)ssh (?:-\S{{1,40}} (?:\d{{1,5}} |\S{{1,99}}=\S{{1,99}} )?){{0,9}}"
        rf"(?=[^\s.\d-]{{0,60}}[.\d-])({_HOST})(?= |$)",
    ),
    ("host", "@", _AT % (_USER, f"({_HOST})")),
    ("host", '"host', rf"\"hosts?\":\s?\[?\"({_HOST})\""),  # in a document of ours
    (
        "host",
        "nodelist|nodename|hostname|submit_host|master_addr|pod_name|ray_address|rdzv_endpoint",
        r"(?:NODELIST|NODENAME|HOSTNAME|SUBMIT_HOST|MASTER_ADDR|POD_NAME|RAY_ADDRESS|RDZV_ENDPOINT)"
        rf"[\"']?\s{{0,4}}[=:]\s{{0,4}}[\"']?({_HOSTS})",
    ),
    (
        "host",
        "--host|--nodelist|--exclude|--master|--rdzv",
        rf"--(?:hosts?|nodelist|exclude|master[_-]addr|rdzv[_-]endpoint)[= ]({_HOSTS})",
    ),
    ("host", "://", rf"://(?:[^\s/@]{{1,64}}@)?({_HOST})"),
    (
        "host",
        "connect to|resolve hostname|permanently added",
        r"(?:connect to host |resolve hostname |Permanently added '|"
        rf"connect to \[?(?=[\w.-]+\]?:\d))({_HOST})",
    ),
    ("host", "srun|slurmstepd", rf"(?:srun|slurmstepd): error: ({_HOST}): "),
    ("host", " cancelled", rf" ON ({_HOST}) CANCELLED"),
    (
        "host",
        "kernel|systemd|slurmd|sshd|nvidia-persistenced|nv-hostengine",
        rf"(?m)(?:^|\d\d:\d\d:\d\d(?:[.,]\d{{1,9}})?(?:Z|[+-]\d\d:?\d\d)? )({_HOST}) "
        r"(?:kernel|systemd|slurmd|sshd|nvidia-persistenced|nv-hostengine)(?:\[\d{1,9}\])?: ",
    ),
    ("host", "host ", rf"\n {{0,4}}host +: ({_HOST})"),  # torchrun's table of failures
    ("host", "[", rf"(?m)^\[({_HOST}):\d{{3,8}}\] "),  # Open MPI
    ("host", "pod", rf"[Pp]ods?(?:/| \")({_HOST})"),
    ("host", "ip-", rf"{_START}(ip(?:-\d{{1,3}}){{4}})(?![\w-])"),
    (
        "host",
        ".",
        rf"{_START}((?:[A-Za-z][\w-]{{0,62}}\.){{1,7}}cluster\.local|"
        rf"(?:[A-Za-z][A-Za-z0-9-]{{0,62}}\.){{2,7}}(?i:{_TOP}))"
        r"(?![\w(\[-]|\.\w)",
    ),
)
# at its first use: together they take 50 ms, and most texts need few
compiled = functools.lru_cache(maxsize=None)(re.compile)
_sentences = functools.lru_cache(maxsize=None)(
    lambda: (pkgutil.get_data("nccl_runbook", "causes/causes.toml") or b"").decode().lower()
)
ZEROS = str.maketrans("123456789", "000000000")
_WORD = r"(?:(?<![A-Za-z0-9\\])|(?<=\\[nrt]))(%s)(?![A-Za-z0-9])"
_PARTS = {
    "host": r"([^.]*?)(\[[\d,-]+\]|\d{0,6})(\..*)?",  # its own name, its number, its domain
    "GPU": "(.{12})()().*",
    "MIG": "(.{12})()().*",
}  # tables cut a UUID there
# expressions for the names that this process has seen
_known: Dict[str, Set[str]] = {"host": {r"(?!)"}, "user": {r"(?!)"}}


@functools.lru_cache(maxsize=None)
def _is_word(name: str) -> bool:
    """Whether a sentence of ours may use it: such a host stays, and such a user
    is replaced in a form only."""
    return name.lower() in _sentences() and bool(re.search(rf"\b{re.escape(name.lower())}\b", _sentences()))


@functools.lru_cache(maxsize=None)
def _other(kind: str, name: str) -> str:
    """The other name of this one, which is known from now on. A host keeps its number: the order
    of hosts and Slurm's lists stay."""
    if _NOBODYS.fullmatch(name) or (kind == "host" and _is_word(name)):
        return name
    parts = re.fullmatch(_PARTS.get(kind, "(.*)()()"), name)
    first, number, domain = parts.groups("") if parts else (name, "", "")
    if kind in _known and not _is_word(name):
        short = re.escape(first) + (r"(?:\[[\d,-]+\]|\d{1,6})" if "[" in number else number)
        _known[kind] |= {re.escape(name), short if number else re.escape(name)}
    digests = [
        hashlib.blake2s(part.encode(), key=os.environ[SHARE].encode()[:32], digest_size=3).hexdigest()
        for part in (first, domain)
    ]
    return f"{kind}-x{digests[0]}" + (number and f"-{number}") + (domain and f".x{digests[1]}")


def _in_form(kind: str, match: Match[str]) -> str:
    """The form with other names, name by name in a list of hosts."""
    if not match[1]:
        return match[0]
    # n1:8,n2:8 of mpirun
    names = re.split(r"(,(?![\d,-]{0,300}\])|:\d{1,3}(?=,|$))", match[1]) if kind == "host" else [match[1]]
    others = [name if not name or at % 2 else _other(kind, name) for at, name in enumerate(names)]
    return (
        match.string[match.start() : match.start(1)]
        + "".join(others)
        + match.string[match.end(1) : match.end()]
    )


def learn(value: Any) -> None:
    """Remember the host and user names in a text or fact, so that later output replaces them; does nothing
    without --share."""
    if os.environ.get(SHARE):
        if not isinstance(value, str):
            value = json.dumps(
                value,
                ensure_ascii=False,
                skipkeys=True,
                separators=(",\n", ": "),
                default=lambda fact: getattr(fact, "__dict__", str(fact)),
            )
        # one field a line: thousands of ranks have the same ones
        _in_forms("\n".join(dict.fromkeys(value.split("\n"))), _known)


def _in_forms(text: str, kinds: Collection[str]) -> str:
    """The text with other names in all forms of these kinds."""
    find = _forms_in if len(text) < 4096 else _forms_in.__wrapped__  # whole logs would fill the memory
    for kind, form in find(text.lower().translate(ZEROS)):
        if kind in kinds:
            text = compiled(form).sub(functools.partial(_in_form, kind), text)
    return text


@functools.lru_cache(maxsize=8192)  # the lines of thousands of ranks differ in their numbers only
def _forms_in(shape: str) -> List[Tuple[str, str]]:
    """Kind and expression of the forms whose words are in a text of this shape."""
    return [(k, form) for k, words, form in _FORMS if any(word in shape for word in words.split("|"))]


@functools.lru_cache(maxsize=2)
def _any_known(kind: str, number: int) -> Pattern[str]:
    """An expression for all names of this kind that this process has seen, and their number."""
    return re.compile(_WORD % "|".join(sorted(_known[kind], key=len, reverse=True)))


@functools.lru_cache(maxsize=1)
def _know_this_machine() -> None:
    learn(
        "\n".join(
            [f"HOSTNAME={socket.gethostname()}", os.path.expanduser("~"), *map("=".join, os.environ.items())]
        )
    )


def shared(text: str) -> str:
    """The text with names replaced; unchanged without --share."""
    if not os.environ.get(SHARE):
        return text
    _know_this_machine()
    return _with_other_names(text, sum(map(len, _known.values())))


@functools.lru_cache(maxsize=1 << 15)  # ranks and files say the same again and again
def _with_other_names(text: str, number: int) -> str:
    """The text with other names, in forms and where one of so many known names stands by itself."""
    text = _in_forms(text, KINDS)
    for kind, names in _known.items():
        text = _any_known(kind, len(names)).sub(functools.partial(_in_form, kind), text)
    return text


def replaced(text: str) -> str:
    """Sentences for a page: how many names of each kind were replaced, or how to replace them."""
    if not os.environ.get(SHARE):
        return (
            "This page contains host names, user names, addresses and paths. "
            "--share replaces names, addresses and folders."
        )
    names = {match[0]: KINDS[match[1]] for match in _OURS.finditer(text)}
    counts = ", ".join(
        f"{number} x {kind}" for kind, number in collections.Counter(names.values()).most_common()
    )
    return (
        f"Replaced: {counts or 'nothing'}. Names in other forms may remain, so read the text before "
        "you pass it on."
    )
