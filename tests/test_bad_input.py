"""What is damaged, written by another system, or not there: one sentence, a code, and whatever can be read."""
from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from nccl_runbook.logs.encoding import as_utf8, encoding
from nccl_runbook.logs.kind import damaged
from warm_cli import read_cli

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.27 GiB. GPU 3 has a total capacity of 79.11 GiB of which 4.12 GiB is"
    " free.\n"
)
SCRIPT = "#!/bin/bash\nexport NCCL_P2P_LEVEL=FOO\ntorchrun --nproc-per-node=8 t.py\n"
CODES = ("utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "utf-32")


def diagnosed(path: Path | str) -> dict:
    return json.loads(read_cli("diagnose", "--json", str(path)).stdout)


@pytest.mark.parametrize("code", CODES)
def test_a_text_is_read_in_the_encoding_of_its_system(tmp_path, code):
    for name, text in (("job.log", OOM), ("plain.log", OOM), ("run.sh", SCRIPT), ("plain.sh", SCRIPT)):
        (tmp_path / name).write_bytes(text.encode("utf-8" if name.startswith("plain") else code))
    for name in ("log", "sh"):
        own, plain = (diagnosed(tmp_path / f"{stem}.{name}") for stem in ("plain", {"log": "job", "sh": "run"}[name]))
        assert (own["verdict"], own["lead"]["id"]) == (plain["verdict"], plain["lead"]["id"])
        assert plain["verdict"] in ("broken", "degraded")


@given(st.text(st.characters(codec="ascii"), min_size=20), st.sampled_from(CODES))
def test_ascii_comes_back_from_every_encoding(text, code):
    wide = "".join(c for c in text if c != "\0") + "x" * 20
    assert as_utf8(wide.encode(code)).decode() == wide and encoding(wide.encode()) == ""


def test_a_cut_archive_is_read_up_to_the_cut_and_says_so(tmp_path):
    noise = bytes(random.Random(1).randbytes(40_000).hex(), "ascii")
    whole = gzip.compress(OOM.encode() + b"\n".join(noise[n:n + 80] for n in range(0, len(noise), 80)))
    (tmp_path / "job.log.gz").write_bytes(whole[:len(whole) // 2])
    found = diagnosed(tmp_path / "job.log.gz")
    assert found["lead"]["cause"] == "gpu-memory-exhausted" and any("job.log.gz" in line for line in found["not_looked_at"])
    (tmp_path / "bad.gz").write_bytes(b"\x1f\x8bjunk")
    found = diagnosed(tmp_path / "bad.gz")
    assert (found["verdict"], found["exit_code"]) == ("unknown", 4) and "bad.gz" in found["sentence"] and "damaged" in found["sentence"]


@pytest.mark.parametrize(
    ("text", "place"),
    [('{"a": {}', "line 1"), ('{\n"a": [1,\n}', "line 3"), ('{"a": 1}\n{"a"', ""), ('{"a": 1}', ""), ("no", ""), ("", "")],
)
def test_a_broken_json_is_named_with_its_line(tmp_path, text, place):
    assert (place in damaged(text.encode())) if place else damaged(text.encode()) == ""
    (tmp_path / "x.json").write_text(text)
    assert any("damaged JSON" in line and place in line for line in diagnosed(tmp_path / "x.json")["not_looked_at"]) == bool(place)


def test_a_broken_yaml_is_named_with_its_line_and_a_template_or_a_second_document_is_none(tmp_path):
    texts = {
        "bad": "a: 1\nb: [c\n",
        "template": "a: {{ .Values.x }}\nenv:\n  NCCL_DEBUG: INFO\n",
        "two": "a: 1\n---\nenv:\n  NCCL_DEBUG: INFO\n",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    found = diagnosed(tmp_path / "bad.yaml")
    assert found["exit_code"] == 4 and "bad.yaml" in found["sentence"] and "line 3" in found["sentence"]
    assert [diagnosed(tmp_path / f"{name}.yaml")["verdict"] for name in ("template", "two")] == ["healthy", "healthy"]


@pytest.mark.parametrize("word", ["*.nothing", "logs/*.log", "-5", "--verbose"])
def test_a_pattern_or_an_option_that_leads_to_no_file_is_no_error_text(tmp_path, word):
    done = read_cli("diagnose", "--", word, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and word in done.stderr and not done.stdout


def test_records_that_are_none_are_one_sentence(tmp_path):
    (tmp_path / "obj.json").write_text("{}\n")
    done = read_cli("hosts", "--record", "obj.json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("obj.json") == done.stderr.count("\n") == 1


def test_a_script_of_40_000_exports_is_read_in_two_seconds(tmp_path):
    lines = [f"export V{n}=$V{n - 1}" for n in range(1, 40_000)]
    (tmp_path / "run.sh").write_text("\n".join(["export V0=1", *lines, "export NCCL_DEBUG=INFO", "torchrun t.py"]))
    done = read_cli("env", "run.sh", "--json", cwd=tmp_path)
    assert done.returncode == 0 and done.usual_s() < 4  # 2 s on a machine of its own


def test_a_page_that_another_node_wrote_meanwhile_stays(tmp_path):
    """The same command on two nodes, with one name on a shared disk."""
    with subprocess.Popen(
        [sys.executable, "-m", "nccl_runbook", "diagnose", "-", "--html", "hang.html"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as slow:
        slow.stdin.write(OOM)
        slow.stdin.flush()
        time.sleep(4)  # it has begun by then, and waits for the end of its input
        assert read_cli("diagnose", "CUDA out of memory", "--html", "hang.html", cwd=tmp_path).returncode in (3, 4)
        first = (tmp_path / "hang.html").read_text()
        _, said = slow.communicate(timeout=60)
    assert (tmp_path / "hang.html").read_text() == first and len([*tmp_path.glob("hang-*.html")]) == 1 and "hang-" in said
    assert read_cli("diagnose", "CUDA out of memory", "--html", "hang.html", cwd=tmp_path).returncode in (3, 4)
    assert len([*tmp_path.glob("*.html")]) == 2


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("diagnose", "--htlm", "x"), "--html"),
        (("diagnose", "--gpu", "8"), "--gpus"),
        (("look", "--htlm"), "--html"),
        (("look", "-html", "x"), "--html"),
        (("run", "--stpe", "03"), "--step"),
        (("sync", "--modle=x"), "--model"),
        (("env", "--jsno"), "--json"),
        (("hosts", "--fail_on", "never"), "--fail-on"),
        (("dev", "gym", "--hlep"), "--help"),
        (("plan", "x", "--qqqqqqq"), ""),
    ],
)
def test_the_nearest_option_is_named(words, meant):
    done = read_cli(*words)
    assert done.returncode == 2 and done.stdout == "" and (f"did you mean {meant}?" in done.stderr) == bool(meant)
    assert "there is no option" in done.stderr


@pytest.mark.parametrize("option", ["--html", "--save"])
def test_an_option_is_no_file_to_write(option, tmp_path):
    done = read_cli("look", option, "--json", cwd=tmp_path)
    assert done.returncode == 2 and not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("name", "content", "reason"), [
    ("empty.log", b"", "is empty"), ("weights.bin", bytes(range(256)) * 8, "binary"), ("nccl_trace_rank_0", b"\x80\x04no", "damaged"),
    ("rank0.txt", b"Process 7: python\n", "")])
def test_hang_says_why_it_could_use_nothing(name, content, reason, tmp_path):
    (tmp_path / name).write_bytes(content)
    found = json.loads(read_cli("hang", "--json", str(tmp_path / name)).stdout)
    assert found["exit_code"] == 4 and name in found["sentence"] and reason in found["sentence"]
    (tmp_path / "job.log").write_text("step 1 loss 2.0\n")
    beside = json.loads(read_cli("hang", "--json", str(tmp_path)).stdout)["sentence"]
    assert name in beside and "job.log" not in beside


def test_a_process_that_is_no_rank_has_one_exit_code():
    with subprocess.Popen(["sleep", "60"]) as stranger:
        try:
            pid = str(stranger.pid)
            diagnosed, looked = read_cli("diagnose", "--json", "--gap", "0", pid), read_cli("look", "--json", "--gap", "0", "--pid", pid)
        finally:
            stranger.kill()
    assert diagnosed.returncode == looked.returncode == 4
    assert [json.loads(done.stdout)["verdict"] for done in (diagnosed, looked)] == ["unknown", "unknown"]
