"""Every secret that can be planted, in everything that the runbook reads; none of them in anything that it writes."""
from __future__ import annotations

import itertools
import json
import os
import pickle
import random
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from book_samples import run_cli
from hang_samples import Job
from live_samples import IN_ALL_REDUCE, SAVING, Frame, look, rank
from nccl_runbook.core.facts import to_json
from nccl_runbook.core.secret_values import MASK, OWN_LINES
from nccl_runbook.look import live
from nccl_runbook.messages import read as messages_read
from nccl_runbook.sync.read_trace import PREFIX
from test_redact_lines import FRESH, filled, left, made
from warm_cli import read_cli

SHAPES = [shape.strip("\n") for shape in (Path(__file__).parent / "data" / "secrets.txt").read_text().split("\n---\n")]
ONE_LINE = [shape for shape in SHAPES if "\n" not in shape]
CANARY = re.compile("canary", re.I)
KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEcanary0001\nRuntimeErrorcanary=\n-----END RSA PRIVATE KEY-----\n"
KNOWN = "node0:1:1 [0] NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60"
PREFIXES = (
    "[rank0]: RuntimeError: NCCL error: ",
    "[rank1]: ERROR ",
    "[rank2]:[E1128 10:00:00.000000000 ProcessGroupNCCL.cpp:683] [Rank 2] Watchdog caught ",
    f"{KNOWN} ",
    "step 12 loss 0.1 ",
)


def log(folder: Path) -> Path:
    path = folder / "job.log"
    lines = [f"{prefix}{shape}" for shape in ONE_LINE for prefix in PREFIXES] + SHAPES
    path.write_text(
        "\n".join(lines).replace("MIIEvQIBADANcanary", "")
        + "\n"
        + KEY
        + "\n".join(f"[rank{i}]: {s}" for i, s in enumerate(ONE_LINE))
        + "\n"
    )
    return path


def leaks(*texts: str) -> list[str]:
    return [text[max(0, found.start() - 80) : found.end() + 20] for text in texts for found in CANARY.finditer(text)]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_triage_shows_none_of_a_log(tmp_path: Path, prefix: str) -> None:
    """One log for a few shapes each, so that every line has its chance to be quoted."""
    for number in range(0, len(ONE_LINE), 6):
        lines = [prefix.replace("rank0", f"rank{i}") + shape for i, shape in enumerate(ONE_LINE[number : number + 6])]
        (tmp_path / "a.log").write_text("\n".join([*lines, KEY]))
        ended = read_cli("triage", tmp_path / "a.log", "--html", tmp_path / "page.html", "--json")
        assert leaks(ended.stdout, ended.stderr, (tmp_path / "page.html").read_text()) == []
        assert json.loads(ended.stdout)["files"][0]["lines"] == len([*lines, *KEY.splitlines()])


def test_triage_shows_none_of_what_the_reader_types(tmp_path: Path) -> None:
    context = "\n".join(["hangs at the first all_reduce", *SHAPES])
    (tmp_path / "good.log").write_text(
        "\n".join(f"export NCCL_DEBUG={s}\nNCCL INFO NCCL_IB_HCA set by environment to {s}" for s in ONE_LINE)
    )
    for more in ((), ("--json",)):
        ended = read_cli(
            "triage", log(tmp_path), "--context", context, "--against", tmp_path / "good.log", "--html", tmp_path / "page.html", *more
        )
        page = (tmp_path / "page.html").read_text()
        assert leaks(ended.stdout, ended.stderr, page) == [] and ended.returncode in (0, 3, 4)
    assert "Masked on this page: " in page and " x value behind a telling name" in page


def test_hang_shows_none_of_dumps_stacks_and_logs(tmp_path: Path) -> None:
    Job(1).write(tmp_path)
    for path in tmp_path.iterdir():
        dump = pickle.loads(path.read_bytes()) if path.read_bytes()[:1] == b"\x80" else None
        for number, entry in enumerate(dump["entries"] if isinstance(dump, dict) else ()):
            shape = ONE_LINE[number % len(ONE_LINE)]
            entry["profiling_name"] = f"nccl:all_reduce {shape}"
            for frame in entry.get("frames", []):
                frame["name"], frame["filename"] = f"train {shape}", f"/x/{shape}.py"
        if dump:
            path.write_bytes(pickle.dumps(dump, 2))
    log(tmp_path)
    (tmp_path / "rank7.txt").write_text(
        "Process 12: python train.py "
        + " ".join(ONE_LINE[:40])
        + "\nPython v3.11\n\nThread 12 (active): MainThread\n    "
        + "\n    ".join(f"all_reduce {s} (torch/x.py:1)" for s in ONE_LINE)
    )
    for more in ((), ("--json",)):
        ended = read_cli("hang", tmp_path, "--html", tmp_path / "page.html", *more)
        assert leaks(ended.stdout, ended.stderr, (tmp_path / "page.html").read_text()) == [] and ended.returncode in (0, 3, 4)


def test_env_and_plan_show_none_of_a_script(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        "#!/bin/bash\n"
        + "\n".join(f"export NCCL_X{i}='{s}'\nexport NCCL_TOPO_FILE=\"{s}\"\n{s}" for i, s in enumerate(SHAPES))
        + "\npython3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=8 "
        + " ".join(ONE_LINE)
    )
    for command in ("env", "plan"):
        for more in ((), ("--json",)):
            ended = read_cli(command, script, "--html", tmp_path / "page.html", *more)
            page = (tmp_path / "page.html").read_text() if (tmp_path / "page.html").exists() else ""
            assert leaks(ended.stdout, ended.stderr, page) == [] and ended.returncode in (0, 2, 3, 4)


def test_a_run_shows_none_in_any_of_its_files(tmp_path: Path) -> None:
    """Notebooks, their pages, records, verdict, logs, and what is printed, also of the surroundings and of the command line."""
    out, environment = tmp_path / "out", {
        "RAY_PWD": "canary-hunter2",
        "MY_API_KEY": "canary-9000",
        "NCCL_NET_PLUGIN": "glpat-canaryabcdefghij0123",
        "GIT_CRED": "canary & <b>'\"",
        "SLACK_WEBHOOK": "https://x.example/canary",
    }
    out.mkdir(mode=0o755)
    symptom = "\n".join(["Duplicate GPU detected", *SHAPES])
    ended = read_cli(
        "run",
        "--out",
        out,
        "--log",
        log(tmp_path),
        "--symptom",
        symptom,
        "--step",
        "07-logs",
        "--step",
        "02-environment",
        "--step",
        "00-start",
        "--budget",
        "90s",
        env={**os.environ, **environment},
        timeout=200,
    )
    files = [path for path in out.rglob("*") if path.is_file()]
    assert {"00-start.ipynb", "07-logs.html", "02-environment.json", "verdict.json", "index.html"} <= {path.name for path in files}
    assert leaks(ended.stdout, ended.stderr) == [] and ended.returncode in (3, 4)
    assert {path.name: found for path in files if (found := leaks(path.read_text()))} == {}
    assert [path for path in out.rglob("*") if path.stat().st_mode & 0o077] == []


def planted(value: object, shapes: Iterator[str]) -> object:
    """The same JSON value; every sentence in it ends with a secret."""
    if isinstance(value, dict):
        return {key: planted(inner, shapes) for key, inner in value.items()}
    if isinstance(value, list):
        return [planted(inner, shapes) for inner in value]
    return f"{value} {next(shapes)}" if isinstance(value, str) and " " in value else value


def test_a_record_that_somebody_else_wrote_shows_none(tmp_path: Path) -> None:
    """Its texts are masked on the way in: on a page, after escaping, some shapes are none."""
    (tmp_path / "job.log").write_text(
        "".join(f"[rank{n}]: RuntimeError: NCCL error number {'abcdefghij'[n % 10]} {n}\n" for n in range(len(SHAPES))) + KNOWN + "\n"
    )
    logs = planted(to_json(messages_read.collect(str(tmp_path / "job.log"), "it hangs")), itertools.cycle(SHAPES))
    record = {
        "schema": "nccl-runbook/record/2",
        "step": "07-logs",
        "status": "broken",
        "reason": ONE_LINE[0],
        "started": "2026-11-30T00:00:00Z",
        "judged": {"host": ONE_LINE[1]},
        "facts": {"logs": logs},
        "findings": [{"id": "x", "severity": "broken", "title": s, "remedy": [{"who": "you", "text": s, "lines": [s]}]} for s in ONE_LINE],
    }
    (tmp_path / "r.json").write_text(json.dumps(record))
    assert len(leaks(json.dumps(record))) > len(SHAPES)
    ended = read_cli("run", "--record", tmp_path / "r.json", "--out", tmp_path / "out", "--budget", "90s", timeout=200)
    files = {path.name: path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert {"07-logs.html", "07-logs.ipynb", "07-logs.json", "index.html"} <= {*files} and ended.returncode in (3, 4), ended.stderr
    assert leaks(ended.stdout, ended.stderr) == [] and {name: found for name, text in files.items() if (found := leaks(text))} == {}
    for words in (("hosts", "--record", tmp_path / "r.json", tmp_path / "r.json"), ("diagnose", tmp_path / "r.json")):
        ended = read_cli(*words, "--html", tmp_path / "page.html")
        assert leaks(ended.stdout, ended.stderr, (tmp_path / "page.html").read_text()) == [] and ended.returncode in (3, 4), ended.stderr


def test_diagnose_shows_none_of_what_it_is_given(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/bash\n" + "\n".join(f"export NCCL_X{i}='{s}'" for i, s in enumerate(ONE_LINE)) + "\nsrun python3 train.py\n")
    for more in ((), ("--json",)):
        ended = read_cli(
            "diagnose", log(tmp_path), script, "hangs with " + " ".join(ONE_LINE[:30]), "--html", tmp_path / "page.html", *more
        )
        assert leaks(ended.stdout, ended.stderr, (tmp_path / "page.html").read_text()) == [] and ended.returncode in (0, 3, 4)


def test_look_shows_none_of_a_record_and_sync_none_of_a_trace(tmp_path: Path) -> None:
    frames = [Frame(f"save {s}", f"/x/{s}.py", 3) for s in ONE_LINE[:40]]
    seen = look(rank(0, IN_ALL_REDUCE), rank(1, [*SAVING, *frames]))
    record = json.loads(json.dumps(live.record(seen, 1.0), default=vars))
    record["facts"]["live"]["ranks"][0]["log"] = ONE_LINE
    (tmp_path / "look.json").write_text(json.dumps(record))
    phases = {f"phase {s}": 1.0 for s in ONE_LINE[:8]}
    event = {"guard": "pause_trace", "rank": 0, "data": phases}
    (tmp_path / "trace.log").write_text("".join(f"{PREFIX}{json.dumps(event)}\n{s}\n" for s in ONE_LINE))
    for words, codes in (
        (("look", "--record", tmp_path / "look.json"), (0, 3, 4)),
        (("sync", "--trace", tmp_path / "trace.log"), (0, 2, 3, 4)),
    ):
        for more in ((), ("--json",)):
            ended = read_cli(*words, "--html", tmp_path / "page.html", *more)
            assert leaks(ended.stdout, ended.stderr, (tmp_path / "page.html").read_text()) == [] and ended.returncode in codes, ended.stderr


@pytest.mark.parametrize("number", range(0, len(ONE_LINE), 80))
def test_ab_and_reduce_show_none_of_what_a_command_prints(tmp_path: Path, number: int) -> None:
    (tmp_path / "said.txt").write_text(
        "\n".join(f"{'x' * (i % 9)} error: {s}" for i, s in enumerate(ONE_LINE[number : number + 80])) + "\n"
    )
    (tmp_path / "b.env").write_text("".join(f"NCCL_X{i}={shlex.quote(s)}\n" for i, s in enumerate(ONE_LINE[number : number + 80])))
    print_it = ("--", "sh", "-c", f"cat {tmp_path / 'said.txt'}; exit 3")
    for more in ((), ("--json",)):
        ended = read_cli("ab", ".", tmp_path / "b.env", "--rounds", "1", "--html", tmp_path / "page.html", *more, *print_it)
        page = (tmp_path / "page.html").read_text() if (tmp_path / "page.html").exists() else ""
        assert leaks(ended.stdout, ended.stderr, page) == [] and ended.returncode in (1, 2, 3, 4), ended.stderr
        out = tmp_path / f"out{len(more)}"
        out.mkdir(mode=0o755)
        ended = read_cli("reduce", "--out", out, "--axis", "n=1", "--fail-on", "error: .*", *more, *print_it)
        assert leaks(ended.stdout, ended.stderr) == [] and ended.returncode == 3, ended.stderr
        assert out.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_what_a_run_leaves_is_private_whatever_folder_and_umask(tmp_path: Path, umask: int) -> None:
    out, full = tmp_path / "out", tmp_path / "full"
    out.mkdir(mode=0o755)
    full.mkdir(mode=0o755)
    (full / "notes.txt").write_text("x")
    (tmp_path / "job.log").write_text(KNOWN + "\n")
    out.chmod(0o755)
    full.chmod(0o755)
    words = ("run", "--log", tmp_path / "job.log", "--step", "07-logs", "--budget", "60s", "--out")
    ended = run_cli(*words, out, preexec_fn=lambda: os.umask(umask))
    assert ended.returncode in (3, 4) and len(list(out.iterdir())) > 4
    assert [path.name for path in (out, *out.rglob("*")) if path.stat().st_mode & 0o077] == []
    refused = run_cli(*words, full, preexec_fn=lambda: os.umask(umask))
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1 and [path.name for path in full.iterdir()] == ["notes.txt"]
    again = read_cli(*words, out)
    assert again.returncode == 2 and "new folder" in again.stderr


def test_own_patterns_are_masked_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("bluebird-\\d+\n\n(?i)PROJECT x\n(?:[A-Z]{4}){2,9}\\d{1,3}(?:\\.\\d{1,3}){3}\n")
    (tmp_path / "wrong.txt").write_text("fine\n(never closed\n")
    (tmp_path / "slow.txt").write_text("fine\n(?:a*)*\\d\n")
    (tmp_path / "job.log").write_text(f"{KNOWN} of bluebird-42, project X\n")
    ended = read_cli("triage", tmp_path / "job.log", "--redact", tmp_path / "own.txt", "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    for text in (ended.stdout, page):
        assert "bluebird" not in text and "project X" not in text and "[redacted:own], [redacted:own]" in text
    for name, line in (("wrong.txt", "line 2"), ("slow.txt", "line 2"), ("none.txt", "none.txt")):
        wrong = read_cli("triage", tmp_path / "job.log", "--redact", tmp_path / name)
        assert wrong.returncode == 2 and line in wrong.stderr and wrong.stdout == ""


def test_no_terminal_page_or_document_gets_a_character_that_acts(tmp_path: Path) -> None:
    odd = "\u202egnp\u2066\u061c\u200f\x9b31m\x1b]0;PWNED\x07"
    (tmp_path / "job.log").write_text(f"{KNOWN} {odd}\nRuntimeError: {odd}\n")
    (tmp_path / "r.json").write_text(json.dumps({"schema": "nccl-runbook/record/1", "step": odd, "status": "ok", "started": "x"}))
    calls = [
        ("triage", tmp_path / "job.log", "--context", odd, "--html", tmp_path / "page.html"),
        ("triage", tmp_path / "job.log", "--json", "--context", odd),
        ("triage", tmp_path / f"none{odd}"),
        ("run", "--record", tmp_path / "r.json"),
        ("run", "--step", odd),
        ("run", f"--{odd}"),
        (odd,),
        ("look", "--record", tmp_path / "r.json"),
        ("plan", odd),
        ("env", tmp_path / odd.replace("/", "")),
    ]
    texts = [text for call in calls for ended in [read_cli(*call)] for text in (ended.stdout, ended.stderr)] + [
        (tmp_path / "page.html").read_text()
    ]
    acts = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
    assert [text[max(0, found.start() - 80) : found.end() + 20] for text in texts for found in acts.finditer(text)] == []


def test_a_record_with_a_text_of_megabytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(
        json.dumps({"schema": "nccl-runbook/record/2", "step": "07-logs", "status": "ok", "started": "x", "reason": "x" * 60_000_000})
    )
    ended = run_cli("run", "--record", tmp_path / "r.json", "--out", tmp_path / "out", timeout=15)
    assert ended.returncode == 2 and "MiB" in ended.stderr and not (tmp_path / "out").exists()


@pytest.mark.timeout(600)
def test_no_product_shows_a_secret_of_the_sets_that_were_written_before(tmp_path: Path) -> None:
    """Shapes behind what is quoted, names in a script, all of it as a symptom."""
    texts, values = [], []
    for shapes, _, _ in FRESH:
        for shape in shapes.split("\n---\n"):
            text, secrets = filled(shape, random.Random(f"1{shape}"))  # as test_redact_lines.py hides it: one in 300 random values is not
            texts.append(text)
            values += [secret for secret in secrets if len(secret) >= 6]
    given = {name.replace(".", "_"): made("p", random.Random(name)) for _, names, _ in FRESH for name in names.split()}
    values += given.values()
    job, script, page, out = tmp_path / "job.log", tmp_path / "train.sh", tmp_path / "page.html", tmp_path / "out"
    job.write_text(KNOWN + "\n" + "\n".join(f"[rank{n % 8}]: RuntimeError: NCCL error: {text}" for n, text in enumerate(texts)) + "\n")
    script.write_text("#!/bin/bash\n" + "".join(f"export {name}={value}\n" for name, value in given.items()) + "srun python3 train.py\n")
    symptom = "\n".join(["it hangs", *texts, *(f"{name}: {value}" for name, value in given.items())])
    for words in (("triage", job, "--context", symptom, "--json"), ("diagnose", job, script, symptom), ("env", script, "--json")):
        ended = read_cli(*words, "--html", page)
        assert left("\n".join([ended.stdout, ended.stderr, page.read_text()]), values) == [] and ended.returncode in (0, 3, 4), words[0]
    ended = read_cli(
        "run",
        "--out",
        out,
        "--log",
        job,
        "--symptom",
        symptom,
        "--step",
        "07-logs",
        "--step",
        "02-environment",
        "--budget",
        "300s",
        env={**os.environ, **given},
        timeout=400,
    )
    files = {path.name: path.read_text() for path in out.rglob("*") if path.is_file()}
    assert {"07-logs.ipynb", "07-logs.html", "07-logs.json", "02-environment.json", "verdict.json", "index.html"} <= {
        *files
    } and ended.returncode in (3, 4)
    assert {name: shown for name, text in {**files, "terminal": ended.stdout + ended.stderr}.items() if (shown := left(text, values))} == {}


@pytest.mark.parametrize("number", range(len(FRESH)))
def test_what_was_written_before_as_no_secret_is_readable_on_the_page(number: int, tmp_path: Path) -> None:
    lines = [filled(line, random.Random(line))[0] for line in FRESH[number][2].split("\n")]
    (tmp_path / "job.log").write_text("".join(f"[rank{n}]: RuntimeError: NCCL error: {line}\n" for n, line in enumerate(lines)))
    ended = read_cli(
        "triage", tmp_path / "job.log", "--context", "\n".join(["it hangs", *lines]), "--json", "--html", tmp_path / "page.html"
    )
    assert ended.returncode in (0, 3, 4) and MASK not in ended.stdout + (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("text", ["bluebird-\\d+\n" * 2_000_000, "a\n" * 500, "|".join(f"word{n}" for n in range(9000))])
def test_a_file_of_patterns_that_is_too_large_is_refused(text: str, tmp_path: Path) -> None:
    """30 MB of them took 97 s, and 30,000 short ones a minute."""
    (tmp_path / "own.txt").write_text(text)
    (tmp_path / "job.log").write_text(f"{KNOWN}\n")
    ended = read_cli("triage", tmp_path / "job.log", "--redact", tmp_path / "own.txt")
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1) and "own.txt" in ended.stderr
    assert ended.usual_s() < 2 and ended.peak_bytes < 200 << 20


def test_as_many_patterns_as_are_allowed_keep_the_time(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("\n".join(f"[a-z]+-{n}-bluebird" for n in range(OWN_LINES)))
    (tmp_path / "job.log").write_text("".join(f"[rank{n}]: RuntimeError: NCCL error at x-7-bluebird\n" for n in range(1000)))
    ended = read_cli("triage", tmp_path / "job.log", "--redact", tmp_path / "own.txt")
    assert "bluebird" not in ended.stdout and "[redacted:own]" in ended.stdout and ended.usual_s() < 4.5


def test_a_file_of_patterns_in_the_environment_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(f"{KNOWN}\n")
    ended = read_cli("triage", tmp_path / "job.log", env={**os.environ, "NCCL_RUNBOOK_REDACT": str(tmp_path / "own.txt")})
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1) and "NCCL_RUNBOOK_REDACT" in ended.stderr
