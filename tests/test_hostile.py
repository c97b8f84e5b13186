"""What others hand over is hostile: every reading command gets payloads in every carrier, and bombs of every kind. Nothing is executed,
nothing is written elsewhere, no control character reaches the terminal, no page gains a script, and each answer comes soon."""
from __future__ import annotations

import bz2
import gzip
import html.parser
import io
import json
import lzma
import os
import pickle
import re
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from warm_cli import read_cli

# seconds of computing, half a second of start less than 5, which other work on the machine does not lengthen; and until the answer, with
# two workers on a busy machine
CPU_S, WALL_S, MEMORY_BYTES = 4.5, 15.0, 300 << 20
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
SHELL = [
    "$(touch {c})",
    "`touch {c}`",
    "; touch {c}",
    "| touch {c} #",
    "& touch {c} &",
    "\ntouch {c}\n",
    "<(touch {c})",
    "${{x:-$(touch {c})}}",
]
TEMPLATE = [
    "{{{{ cycler.__init__.__globals__.os.system('touch {c}') }}}}",
    "{{% for x in ().__class__.__base__.__subclasses__() %}}{{% endfor %}}",
    "%(x)s%n%s{{0.__class__}}",
    "!!python/object/apply:os.system ['touch {c}']",
    "__import__('os').system('touch {c}')",
]
TERMINAL = [
    "\x1b]0;PWNED\x07",
    "\x1b[2J\x1b[1;1H",
    "\x9b31m",
    "\x08\x08\x08ok",
    "done\rall is well",
    "\u202egnp.exe",
    "\u2066x\u2069",
    "\u200fabc",
    "\u061cabc",
    "\u2028a",
    "\x00nul",
    "\x85next",
    "\x1bP+q544e\x1b\\",
    "\x1b]8;;http://x\x07link\x1b]8;;\x07",
]
MARKUP = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</pre><svg/onload=alert(1)>",
    "<a href=javascript:alert(1)>x</a>",
    "'\"><iframe src=//x>",
    "<style>@import '//x'</style>",
    "<meta http-equiv=refresh content=0;url=//x>",
    "</style></title><script>x</script>",
]
PAYLOADS = [*SHELL, *TEMPLATE, *TERMINAL, *MARKUP]


class _Gadget:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch CANARY",)


def carriers(payload: str, folder: Path) -> list[list[str]]:
    """One command line for each way in which a payload can come."""
    one_line = payload.replace("\n", " ")
    quoted = json.dumps(payload)
    row = {
        "record_id": 0,
        "pg_id": 0,
        "process_group": [payload, payload],
        "collective_seq_id": 1,
        "p2p_seq_id": 0,
        "op_id": 1,
        "is_p2p": False,
        "profiling_name": f"nccl:all_reduce{payload}",
        "state": "scheduled",
        "input_sizes": [[4]],
        "output_sizes": [[4]],
        "input_dtypes": ["Float"],
        "frames": [{"name": payload, "filename": payload, "line": 1}],
        "time_created_ns": 1,
        "timeout_ms": 600000,
        "retired": False,
    }
    dump = {"version": "2.4", "pg_config": {"0": {"name": "0", "desc": payload, "ranks": "[0, 1]"}}, "pg_status": {}, "entries": [row]}
    record = {"schema": "nccl-runbook/record/2", "step": payload, "status": "ok", "started": payload, "facts": {payload: payload}}
    texts = {
        "job.log": f"n1:1:2 [0] NCCL WARN Bootstrap : no socket interface found {one_line}\n[rank0]: RuntimeError: {payload}\n",
        "words.log": payload + "\n",
        "dump_rank_0": json.dumps(dump),
        "run.sh": f"export NCCL_DEBUG={payload}\nexport NCCL_{one_line}=1\ntorchrun {payload}\n",
        "job.yaml": f"env:\n  NCCL_DEBUG: {payload}\n  - name: {quoted}\n",
        "record.json": json.dumps(record),
        "job.env": f"NCCL_IB_HCA={one_line}\n{one_line}=1\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", errors="surrogatepass")
    pickled = folder / "dump_rank_1"
    pickled.write_bytes(pickle.dumps([_Gadget(), payload]))
    strange = folder / (one_line.replace("/", "_").replace("\0", "")[:80] + ".log")
    strange.write_text("n1:1:2 [0] NCCL WARN Bootstrap : no socket interface found\n")
    typed = payload.replace("\0", "")
    return [
        ["triage", "job.log", "words.log", "--html", "out.html"],
        ["triage", "job.log", "--json", "--context", typed],
        ["triage", str(strange)],
        ["hang", "dump_rank_0", "dump_rank_1", "--html", "out.html"],
        ["env", "run.sh", "job.yaml", "--html", "out.html"],
        ["env", "job.env", "--json"],
        ["plan", f"x{typed}", "--gpus", "8"],
        ["plan", "run.sh", "--gpus", "8"],
        ["run", "--record", "record.json", "--out", "run"],
        ["look", "--record", "record.json"],
        ["run", "--step", f"x{typed}"],
    ]


WORDS = (
    "aria-label",
    "title",
    "alt",
)  # attributes whose value is read out or shown, and never followed (HTML living standard; WAI-ARIA 1.2)


class _Active(html.parser.HTMLParser):
    """What a page could do."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [tag] * (tag in ("script", "iframe", "object", "embed", "base", "form"))
        self.found += [f"{tag} {name}={value}" for name, value in attrs if name.startswith("on")
                       or (name not in WORDS and "javascript:" in re.sub(r"[\x00-\x20]", "", value or "").lower())
                       or (name in ("src", "href") and re.match(r"(?i)\s*(?:https?:)?//x", value or ""))]
        self.found += [tag] if tag == "meta" and dict(attrs).get("http-equiv") == "refresh" else []


def answered(arguments: list[str], folder: Path) -> str:
    """Everything that a command says, held to its time, memory and manners; what it wrote is held to be a page or a folder that was
    named."""
    before = {p for p in folder.rglob("*")}
    env = {**os.environ, "HOME": str(folder / "home"), "TERM": "xterm-256color"}
    began = time.monotonic()
    done = read_cli(*arguments, cwd=folder, env=env, timeout=60)
    took, body = time.monotonic() - began, done.stdout + done.stderr
    quick = (done.cpu_s < CPU_S or done.usual_s() < CPU_S) and took < WALL_S
    assert quick and done.peak_bytes < MEMORY_BYTES, (arguments, done.cpu_s, took, done.peak_bytes)
    assert done.returncode in (0, 2, 3, 4) and "Traceback (most recent call last)" not in body.replace("[rank0]", ""), (
        arguments,
        body[-400:],
    )
    assert not CONTROLS.search(body.replace("\r\n", "\n")), (arguments, CONTROLS.search(body))
    new = {p.relative_to(folder).parts[0] for p in folder.rglob("*") if p not in before}
    assert new <= {"out.html", "run", "home"} and not list(folder.rglob("CANARY")), (arguments, new)
    for page in [*folder.glob("out.html"), *folder.glob("run/*.html")]:
        text = page.read_text()
        active = _Active()
        active.feed(text)
        assert not active.found and not CONTROLS.search(text), (arguments, active.found, CONTROLS.search(text))
        page.unlink()
    return body


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(PAYLOADS)))
def test_a_payload_stays_text_whatever_carries_it(number: int, tmp_path: Path) -> None:
    """Each payload in two carriers, so that all payloads together meet each carrier several times."""
    payload = PAYLOADS[number].format(c="CANARY") if PAYLOADS[number] in (*SHELL, *TEMPLATE) else PAYLOADS[number]
    ways = carriers(payload, tmp_path)
    for way in {number % len(ways), (number * 7 + 3) % len(ways)}:
        answered(ways[way], tmp_path)


def _tar(zeros: int) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        member = tarfile.TarInfo("../../CANARY")
        member.size = zeros
        archive.addfile(member, io.BytesIO(bytes(zeros)))
    return held.getvalue()


def _zip(zeros: int) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../CANARY.log", bytes(zeros))
    return held.getvalue()


_LONG = 400_000
RECORD = '{"schema": "nccl-runbook/record/2", "step": "03-fewer-gpus", "status": "ok", "started": "x", %s}'
BOMBS: dict[str, Callable[[], bytes]] = {
    "bomb.gz": lambda: gzip.compress(bytes(400 << 20), 1),
    "bomb.bz2": lambda: bz2.compress(bytes(200 << 20)),
    "bomb.xz": lambda: lzma.compress(bytes(200 << 20), preset=0),
    "bomb.tar.gz": lambda: _tar(200 << 20),
    "bomb.zip": lambda: _zip(200 << 20),
    "twice.gz": lambda: gzip.compress(gzip.compress(bytes(400 << 20), 1), 1),
    "deep.json": lambda: b"[" * 100_000,
    "deep.yaml": lambda: b"{a: " * 50_000,
    "open.json": lambda: b'{"a":' * 100_000,
    "one-line.log": lambda: b"NCCL WARN " + b"x" * (8 << 20),
    "spaces.log": lambda: b" " * (4 << 20) + b"x",
    "dashes.log": lambda: b"-eyJaaaaaaaaaaaa" * (_LONG // 15),
    "at.log": lambda: b"a@" * (_LONG // 2),
    "scheme.log": lambda: b"://a" * (_LONG // 4),
    "password.log": lambda: b"password=" * (_LONG // 9),
    "rank.log": lambda: b"[rank" * (_LONG // 5),
    "quotes.log": lambda: b"\"'" * (_LONG // 2),
    "equals.sh": lambda: b"export A" + b"=" * _LONG,
    "braces.sh": lambda: b"${A:-" * (_LONG // 5),
    "parens.sh": lambda: b"$((" * (_LONG // 3),
    "pem.log": lambda: b"-----BEGIN " * (_LONG // 11),
    "keys.json": lambda: json.dumps({f"k{n}": n for n in range(200_000)}).encode(),
    "found.json": lambda: (RECORD % ('"findings": [' + "{}," * 200_000 + "{}]")).encode(),
    "texts.json": lambda: (RECORD % f'"facts": {json.dumps({"x": ["key=value" + chr(10) * n for n in (9, 900_000)]})}').encode(),
    "live.json": lambda: (RECORD.replace("03-fewer-gpus", "look") % ('"facts": {"live": {"ranks": [' + "{}," * 36_000 + "{}]}}")).encode(),
    "escapes.json": lambda: b'"' + b"\\ud800" * 175_000 + b'"',
    "long.env": lambda: b"export NCCL_DEBUG='password=\"" + b"ab" * 900_000 + b"\"'",
    "lines.environ": lambda: b"HOME=/\0PATH=/bin\0NCCL_DEBUG=" + b"key=value\n" * 120_000,
    "colon.log": lambda: b"a: " * (_LONG // 3),
    "wide.log": lambda: ("\ufeff" + "NCCL WARN x\n" * 100_000).encode("utf-16"),
    "binary.log": lambda: bytes(range(256)) * 8192,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_ends_soon_and_small(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(BOMBS[name]())
    for command in (["triage"], ["hang"], ["env"], ["look", "--record"], ["run", "--out", "run", "--record"]):
        answered([*command, name], tmp_path)


@pytest.mark.slow
def test_a_sparse_file_ends_soon(tmp_path: Path) -> None:
    with (tmp_path / "sparse.log").open("wb") as file:
        file.truncate(64 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"n1:1:2 [0] NCCL WARN Bootstrap : no socket interface found\n")
    answered(["triage", "sparse.log"], tmp_path)
    answered(["hang", "sparse.log"], tmp_path)
    (tmp_path / "nccl_trace_rank_0").write_text('{"version": "2.5", "entries": [')
    os.truncate(tmp_path / "nccl_trace_rank_0", 64 << 30)
    answered(["hang", "nccl_trace_rank_0"], tmp_path)


def test_the_limits_can_fail(tmp_path: Path) -> None:
    """A control character, an active page and a file elsewhere are each seen."""
    assert all(CONTROLS.search(payload) for payload in TERMINAL)
    for payload in (
        "<script>x</script>",
        "<img src=x onerror=alert(1)>",
        "<a href=javascript:x>",
        "<a href=' java\nscript:x'>",
        "<b style='x:url(javascript:x)'>",
        "<svg><a xlink:href=JavaScript:x>",
        "<p title=x onclick=y>",
    ):
        active = _Active()
        active.feed(payload)
        assert active.found, payload
    active = _Active()
    active.feed("<p aria-label='Group <a href=javascript:x>'>")
    assert not active.found


@pytest.mark.parametrize(
    "rest",
    [
        '"wall_s": NaN, "facts": {"users": []}',
        '"wall_s": 1e999, "facts": {"users": []}',
        '"facts": {}',
        '"reason": "x"',
        '"facts": {"x": [1]}',
        '"facts": {"rungs": [[]], "gpus": 7}',
    ],
)
def test_a_record_that_says_nothing_starts_no_kernel(rest: str, tmp_path: Path) -> None:
    head = '"schema": "nccl-runbook/record/2", "step": "03-fewer-gpus", "status": "ok", "started": "x"'
    (tmp_path / "r.json").write_text(f"{{{head}, {rest}}}")
    done = read_cli("run", "--out", "run", "--record", "r.json", cwd=tmp_path, timeout=60)
    assert (done.returncode, (tmp_path / "run").exists(), done.stderr.count("\n")) == (2, False, 1)
