"""`bundle`: everything of a run in one archive, and nothing in it that names a person, a machine or a secret."""
from __future__ import annotations

import html
import json
import os
import re
import zipfile
from pathlib import Path

import pytest
from nccl_runbook.report.bundle import FORMS, LOG_BYTES, ends
from warm_cli import read_cli

DATA = Path(__file__).parent / "data"
SECRETS = [shape.strip("\n") for shape in (DATA / "secrets.txt").read_text().split("\n---\n")]
NAMES = [
    "canaryhost07:12:34 [0] NCCL INFO Bootstrap",
    "canaryuser@canarylogin2:~$ ls",
    'File "/home/canarydan/canaryteam/train.py", line 3',
    "MASTER_ADDR=canaryhead",
    "SLURM_JOB_NODELIST=canaryn[01-04,7]",
    "ssh -p 22 canary1.cs.uni.ch",
    "USER=canarysue",
]
PLANTED = [*SECRETS, *NAMES]
CANARY = re.compile("canary", re.I)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run whose files hold every canary unmasked, as an older version or another program may have left them."""
    folder = tmp_path / "run"
    (folder / "logs" / "03-fewer-gpus" / "002-2-ranks").mkdir(parents=True)
    nested = {
        "by name": {str(n): [{"deep": shape}] for n, shape in enumerate(PLANTED)},
        "in a text": json.dumps({"a": json.dumps(SECRETS)}),
    }
    record = {
        "schema": "nccl-runbook/record/2",
        "step": "03-fewer-gpus",
        "status": "broken",
        "reason": "\n".join(NAMES),
        "started": "2026-11-30T00:00:00Z",
        "parameters": {"log": PLANTED[0]},
        "judged": {"torch": "2.13.0", "nccl": "2.28.9", "host": "canaryhost07", "gpus": ["NVIDIA H200"]},
        "facts": nested,
        "findings": [
            {
                "id": "ladder",
                "severity": "broken",
                "title": "2 ranks fail on canaryhost07",
                "cause": "p2p-broken",
                "status": "established",
                "evidence": [{"text": shape, "source": f"/home/canarydan/{n}.log"} for n, shape in enumerate(PLANTED[::5])],
                "remedy": [{"who": "you", "text": shape, "lines": [shape]} for shape in NAMES],
            }
        ],
        "commands": [{"label": "2 ranks", "line": shape} for shape in PLANTED[1::5]],
        "not_looked_at": PLANTED[2::5],
        "tables": [{"caption": "Ranks", "columns": ["rank", "said"], "rows": [["0", {"text": shape}] for shape in PLANTED[3::5]]}],
    }
    (folder / "03-fewer-gpus.json").write_text(json.dumps(record))
    (folder / "01-gpu-visibility.json").write_text(json.dumps({**record, "step": "01-gpu-visibility", "facts": {}}))
    (folder / "04-transports.json").write_text("{")
    (folder / "logs" / "03-fewer-gpus" / "002-2-ranks" / "canaryhost07-rank0.log").write_text("\n".join(PLANTED))
    (tmp_path / "canaryhost07.out").write_text("\n".join(PLANTED))
    return folder


def test_nothing_is_written_before_it_was_read(run_dir: Path, tmp_path: Path) -> None:
    ended = read_cli("bundle", run_dir, tmp_path / "canaryhost07.out", "--out", tmp_path / "b.zip")
    assert ended.returncode == 0 and not (tmp_path / "b.zip").exists()
    listed = set(re.findall(r"(?m)^ *[\d,]+  (\S+)$", ended.stdout))
    assert {"index.html", "verdict.json", "03-fewer-gpus.json", *(f"issues/{name}.md" for name in FORMS)} < listed
    assert re.findall("(?m)^left out: ([^:]+):", ended.stdout) == ["04-transports"]


def test_no_canary_is_in_the_archive(run_dir: Path, tmp_path: Path) -> None:
    ended = read_cli("bundle", run_dir, tmp_path / "canaryhost07.out", "--out", tmp_path / "b.zip", "--yes")
    assert ended.returncode == 0 and not CANARY.search(ended.stdout + ended.stderr)
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert len(PLANTED) > 60 and len(texts) == 6 + len(FORMS)
    found = {
        name: [text[max(0, m.start() - 60) : m.end() + 20] for m in CANARY.finditer(name + text + html.unescape(text))]
        for name, text in texts.items()
    }
    assert {name: places for name, places in found.items() if places} == {}
    hosts = set(re.findall(r"host-x[0-9a-f]{6}-07", texts["03-fewer-gpus.json"]))
    assert len(hosts) == 1 and all(
        hosts <= set(re.findall(r"host-x[0-9a-f]{6}-07", text)) for name, text in texts.items() if name.startswith("job/")
    )


def test_a_link_in_a_run_leads_to_no_file_of_the_reader(run_dir: Path, tmp_path: Path) -> None:
    """Also where the folder of logs itself is one; the run may be named by a link, as outputs/latest is."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "diary.txt").write_text("dear diary")
    (run_dir / "logs" / "rank1.log").symlink_to(tmp_path / "home" / "diary.txt")
    (run_dir / "logs" / "rank2.log").symlink_to("03-fewer-gpus/002-2-ranks/canaryhost07-rank0.log")
    (tmp_path / "latest").symlink_to(run_dir)
    other = tmp_path / "other"
    other.mkdir()
    (other / "03-fewer-gpus.json").write_bytes((run_dir / "03-fewer-gpus.json").read_bytes())
    (other / "logs").symlink_to(tmp_path / "home")
    listed = [read_cli("bundle", run, "--out", tmp_path / "b.zip").stdout for run in (tmp_path / "latest", other)]
    assert "logs/rank2.log" in listed[0] and "logs/rank1.log" not in listed[0] and "logs/" not in listed[1]


def test_an_issue_form_is_filled(run_dir: Path, tmp_path: Path) -> None:
    read_cli("bundle", run_dir, "--out", tmp_path / "b.zip", "--yes")
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        text = archive.read("issues/NVIDIA-nccl.md").decode()
    assert re.findall("(?m)^### (.+)", text) == list(FORMS["NVIDIA-nccl"])
    assert "### NCCL Version\n\n2.28.9\n" in text and "GPUs: NVIDIA H200" in text and text.count("```") % 2 == 0


@pytest.mark.parametrize(
    "words, says",
    [
        (("EMPTY",), "no record"),
        (("nowhere",), "nowhere"),
        (("RUN", "--out", "nowhere/b.zip"), "nowhere"),
        (("RUN", "nowhere.log"), "nowhere.log"),
        (("RUN", "--out", "THERE", "--yes"), "exists"),
        (("RUN/03-fewer-gpus.json",), "03-fewer-gpus.json"),
    ],
)
def test_wrong_input_is_refused(run_dir: Path, tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "there.txt").write_text("mine")
    places = {"EMPTY": str(tmp_path / "empty"), "RUN": str(run_dir), "THERE": str(tmp_path / "there.txt")}
    ended = read_cli("bundle", *(re.sub("EMPTY|RUN|THERE", lambda m: places[m[0]], word) for word in words))
    assert ended.returncode == 2 and says in ended.stderr and ended.stderr.count("\n") == 1 and ended.stdout == ""
    assert (tmp_path / "there.txt").read_text() == "mine"


@pytest.mark.parametrize("lines", [0, 1, 1000, 200_000])
@pytest.mark.parametrize("written", ["utf-8", "utf-16"])
def test_a_long_log_keeps_its_first_and_its_last_lines_whole(tmp_path: Path, lines: int, written: str) -> None:
    text = "".join(f"line {number} 0123456789\n" for number in range(lines))
    (tmp_path / "a.log").write_bytes(text.encode(written))
    kept, size = ends(tmp_path / "a.log"), (tmp_path / "a.log").stat().st_size
    assert (kept.removeprefix("\ufeff") == text) == (size <= LOG_BYTES)
    whole = {*text.split("\n")}
    assert {line.removeprefix("\ufeff") for line in kept.split("\n") if not line.startswith("... about ")} <= whole
    assert size <= LOG_BYTES or "\nline 199999 0123456789\n" in kept


def test_a_log_in_two_byte_characters_and_a_name_without_letters_are_no_way_around(run_dir: Path, tmp_path: Path) -> None:
    log = os.fsencode(tmp_path) + b"/job-\xff.log"
    Path(os.fsdecode(log)).write_bytes("export HF_TOKEN=hf_canaryAbCdEfGhIjKl0123456789abcdef\n".encode("utf-16"))
    ended = read_cli("bundle", run_dir, os.fsdecode(log), "--out", tmp_path / "b.zip", "--yes")
    assert ended.returncode == 0
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        assert not any(
            CANARY.search(archive.read(name).replace(b"\0", b"").decode()) for name in archive.namelist() if name.startswith("job/")
        )
