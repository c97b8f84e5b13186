"""nccl-look.pyz as it is copied to a bare node: what it writes is judged elsewhere as if the notebooks had run there."""
from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

import pytest
import test_structure as house
from book_samples import run_cli, with_library
from fake_nvml import fake_nvml
from live_worlds import free_port
from nccl_runbook.core import records
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.facts_world import WorldRequest
from nccl_runbook.core.redact import Redactor
from nccl_runbook.hang.live.ask_processes import processes
from nccl_runbook.launch.engine import Engine
from nccl_runbook.launch.interpreters import choose
from nccl_runbook.launch.warm_link import EngineError, WarmLink
from nccl_runbook.look.members import TEMPLATES
from nccl_runbook.machine.facts import GpuUsers
from nccl_runbook.machine.judge_busy import gpus_busy
from processes import ROOT, children, gone, start_time
from pydantic import TypeAdapter
from warm_cli import read_cli

BUILDER = ROOT / ".ci" / "look"
STEPS = ["01-gpu-visibility", "03-fewer-gpus", "04-transports", "05-weight-sync"]
LADDER = ("--step", "03-fewer-gpus")


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built file."""
    folder = tmp_path_factory.mktemp("look")
    subprocess.run([sys.executable, str(BUILDER), str(folder / "nccl-look.pyz")], check=True, env=with_library(), stdout=subprocess.DEVNULL)
    return folder / "nccl-look.pyz"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python without torch and without anything of ours."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False)
    return str(folder / "bin" / "python")


def look(pyz: Path, *arguments: str | Path, python: str = sys.executable, before: tuple[str, ...] = (), timeout: float = 240,
         **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        [*before, python, str(pyz), *map(str, arguments)],
        cwd=pyz.parent,
        env={**clean, **env},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.fixture(scope="module")
def seen(pyz: Path) -> tuple[Path, str]:
    """The file of one whole look under this interpreter, and what it printed."""
    ended = look(pyz, "--json", pyz.parent / "seen.json")
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    return pyz.parent / "seen.json", ended.stdout


def records_of(path: Path) -> dict[str, records.Record]:
    return {r.step: r for r in records.load_all(path)}


# --- the file

def test_the_file_is_small_and_the_same_input_gives_the_same_bytes(pyz: Path) -> None:
    again = pyz.with_name("again.pyz")
    subprocess.run(
        [sys.executable, str(BUILDER), str(again)], check=True, env={**with_library(), "TZ": "Asia/Tokyo"}, stdout=subprocess.DEVNULL
    )
    assert again.read_bytes() == pyz.read_bytes() and pyz.stat().st_size < 400_000 and os.access(pyz, os.X_OK)


def test_the_file_holds_what_is_counted_as_on_node_and_nothing_else_of_ours(pyz: Path) -> None:
    held = {n.removeprefix("nccl_runbook/") for n in zipfile.ZipFile(pyz).namelist() if n.startswith("nccl_runbook/")}
    names = {p.relative_to(house.LIB).as_posix() for p in house.sources()}
    assert held == {name for name in names if house.runs_on_node(name)} | {"look.json", *TEMPLATES}


def test_its_steps_and_parameters_are_those_of_the_notebooks(pyz: Path) -> None:
    settled = json.loads(zipfile.ZipFile(pyz).read("nccl_runbook/look.json"))
    assert list(settled["parameters"]) == STEPS
    for step, parameters in settled["parameters"].items():
        assert parameters == {n: p.default for n, p in house.read_cell(ROOT / "notebooks" / f"{step}.ipynb").items()}


def test_it_looks_under_the_oldest_python_that_it_promises(pyz: Path, tmp_path: Path) -> None:
    """A name that came after 3.9, such as enum.StrEnum, is no syntax that the linter sees."""
    found = [p for p in (shutil.which("python3.9"), *map(str, Path.home().glob(".pyenv/versions/3.9.*/bin/python"))) if p]
    python = next((p for p in found if subprocess.run([p, "-c", ""], capture_output=True).returncode == 0), None)
    if python is None:
        pytest.skip("no Python 3.9 here")
    ended = look(pyz, "--step", "01-gpu-visibility", "--budget", "30", "--json", str(tmp_path / "look.json"), python=python)
    assert ended.returncode == 0, ended.stderr
    assert [record["step"] for record in json.loads((tmp_path / "look.json").read_text())] == ["01-gpu-visibility"]


def test_an_old_python_is_told_so_in_one_sentence(pyz: Path) -> None:
    found = [
        p for v in ("3.8", "3.6", "2.7") for p in (shutil.which(f"python{v}"), *Path.home().glob(f".pyenv/versions/{v}.*/bin/python")) if p
    ]
    old = [p for p in map(str, found) if subprocess.run([p, "-c", ""], capture_output=True).returncode == 0]
    ended = look(pyz, python=old[0] if old else pytest.skip("no Python older than 3.9 here"))
    assert ended.returncode == 1 and re.fullmatch(
        r"nccl-look .*\b3\.9\b.* [23]\.\d: .*\n", ended.stderr
    ), "the oldest that will do, and this one"


# --- judged elsewhere

def without_measures(value: object) -> object:
    """The same with every measured number, time and path of this run taken out."""
    text = re.sub(r'"heat": (null|[\d.]+)', '"heat": 0', json.dumps(value))
    text = re.sub(r"(?<=[\[ ])\d+\.\d+(?:e-\d+)?(?=[,\]}])", "0", text)  # a number of its own: a point of a curve, a length of a bar
    return json.loads(re.sub(r"\d+(\.\d+)+|\b\d+(?= us)", "N", text))


def test_it_is_judged_as_if_the_notebooks_had_run_there(seen: tuple[Path, str], tmp_path: Path) -> None:
    env = {**with_library(), "PATH": "/usr/bin:/bin"}
    there = run_cli("run", "--record", seen[0], "--out", tmp_path / "there", env=env, timeout=120)
    here = run_cli("run", "--python", sys.executable, "--step", *STEPS, "--out", tmp_path / "here", env=env, timeout=120)
    assert there.returncode == here.returncode, there.stdout + there.stderr + here.stdout
    for step in STEPS:
        ours, theirs = (records.load(tmp_path / where / f"{step}.json") for where in ("here", "there"))
        assert (theirs.status, theirs.reason) == (ours.status, ours.reason) and theirs.status != "running"
        assert theirs.findings == ours.findings and theirs.not_looked_at == ours.not_looked_at
        whose = {"own": False}  # under `make test` the notebooks know that this torch is the runbook's own; the file cannot
        assert dataclasses.replace(theirs.judged, **whose) == dataclasses.replace(ours.judged, **whose)
        assert without_measures(theirs.tables) == without_measures(ours.tables)
        assert {**theirs.parameters, "run_dir": ""} == {**ours.parameters, "run_dir": ""}
        assert [c.label for c in theirs.commands] == [c.label for c in ours.commands] and (theirs.commands or step == STEPS[0])
    verdicts = [json.loads((tmp_path / where / "verdict.json").read_text()) for where in ("here", "there")]
    assert verdicts[0]["verdict"] == verdicts[1]["verdict"] and (tmp_path / "there" / "index.html").exists()


def test_nothing_is_judged_on_the_node(seen: tuple[Path, str]) -> None:
    assert {(r.status, len(r.findings), len(r.tables)) for r in records_of(seen[0]).values()} == {("unknown", 0, 0)}
    assert all(r.reason.endswith("nccl-runbook run --record FILE") for r in records_of(seen[0]).values())
    assert "2 ranks: passed" in seen[1] and "gloo-flat: " in seen[1] and seen[0].stat().st_mode & 0o777 == 0o600


def test_the_line_that_repeats_a_world_runs_as_printed(seen: tuple[Path, str], pyz: Path) -> None:
    line = next(c.line for c in records_of(seen[0])["03-fewer-gpus"].commands if c.label == "2 ranks")
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    ended = subprocess.run(["bash", "-c", line], cwd="/", env=clean, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0 and "--rank check.py" in line and "[rank1] bye right=True" in ended.stdout, ended.stderr


def test_a_file_of_several_records_gives_the_step_that_is_asked_for(seen: tuple[Path, str], tmp_path: Path) -> None:
    assert records.load(seen[0], "04-transports").step == "04-transports"
    one = tmp_path / "one.json"
    one.write_text(json.dumps(json.loads(seen[0].read_text())[:2]))
    with pytest.raises(records.RecordError, match=r"one\.json .*01-gpu-visibility.*03-fewer-gpus.*05-weight-sync"):
        records.load(one, "05-weight-sync")
    one.write_text("[]")
    with pytest.raises(records.RecordError, match=r"one\.json "):
        records.load(one)
    one.write_text('[{"schema": "else"}]')
    with pytest.raises(records.RecordError, match=r"one\.json .*schema"):
        records.load_all(one)


# --- what a node may lack

def test_without_torch_it_looks_and_says_so_in_one_sentence(pyz: Path, bare: str, tmp_path: Path) -> None:
    with fake_nvml("healthy"):
        ended = look(pyz, "--json", tmp_path / "look.json", python=bare)
    first = ended.stdout.splitlines()[0]
    assert ended.returncode == 0 and bare in first and "'torch'" in first and ended.stdout.count(first) == 1
    kept = records_of(tmp_path / "look.json")
    assert len(kept["01-gpu-visibility"].facts["gpus"]["nvml"]["gpus"]) == 4 and "NVML: GPU 3, NVIDIA H200" in ended.stdout
    cuda = kept["01-gpu-visibility"].facts["gpus"]["cuda"]
    assert cuda["reason"] == "absent" and "'torch'" in cuda["detail"]
    assert kept["03-fewer-gpus"].facts["ladder"]["reason"] == kept["05-weight-sync"].facts["runs"]["reason"] == "absent"
    judged = read_cli("run", "--record", tmp_path / "look.json", "--out", tmp_path / "out", env=with_library())
    assert judged.returncode == 4 and "verdict: unknown" in judged.stdout


def test_gpus_that_somebody_uses_are_left_alone_in_the_words_of_the_rule(pyz: Path, tmp_path: Path) -> None:
    with fake_nvml("unlisted"):
        ended = look(pyz, "--json", tmp_path / "busy.json", *LADDER)
        allowed = look(pyz, "--json", tmp_path / "allowed.json", *LADDER, "--allow-busy")
    facts = records_of(tmp_path / "busy.json")["03-fewer-gpus"].facts
    finding = gpus_busy(TypeAdapter(GpuUsers | Gap).validate_python(facts["users"]), allow_busy=False)
    assert facts["ladder"] == facts["pairs"] == {"reason": "not-run", "detail": finding.title} and re.search(
        r"\b40213 MiB .*GPU 1\b", ended.stdout
    )
    assert "rungs" in records_of(tmp_path / "allowed.json")["03-fewer-gpus"].facts["ladder"] and allowed.returncode == 0


def test_a_run_that_is_ended_leaves_what_it_saw_and_no_process(pyz: Path, tmp_path: Path) -> None:
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    running = subprocess.Popen(
        [sys.executable, str(pyz), "--json", str(tmp_path / "look.json")], stdout=subprocess.PIPE, text=True, env=clean
    )
    for line in running.stdout:
        if line.startswith("03-fewer-gpus"):
            break
    below = {pid: start_time(pid) for pid in children(running.pid)}
    running.send_signal(signal.SIGTERM)
    assert running.wait(30) == 128 + signal.SIGTERM and below and gone(below, within_s=5)
    kept = records_of(tmp_path / "look.json")
    assert list(kept) == STEPS and "nvml" in kept["01-gpu-visibility"].facts["gpus"] and kept["05-weight-sync"].reason == "not run"
    assert not list(tmp_path.glob("*.part"))


def test_a_spent_budget_is_on_record(pyz: Path, tmp_path: Path) -> None:
    assert look(pyz, "--json", tmp_path / "look.json", *LADDER, "--budget", "0").returncode == 0
    ladder = records_of(tmp_path / "look.json")["03-fewer-gpus"].facts["ladder"]
    assert ladder["reason"] == "not-run" and "--budget" in ladder["detail"]


def test_a_gpu_that_this_machine_lacks_is_refused_before_anything_runs(pyz: Path, tmp_path: Path) -> None:
    refused = look(pyz, "--json", tmp_path / "look.json", *LADDER, "--gpus", "99")
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1) and "gpus: " in refused.stderr


def test_gpus_that_mean_nothing_are_wrong_usage_in_one_sentence(pyz: Path, tmp_path: Path) -> None:
    ended = look(pyz, "--json", tmp_path / "look.json", "--gpus", "0,x")
    assert ended.returncode == 2 and ended.stderr.startswith("nccl-look: gpus: 'x' ") and ended.stderr.count("\n") == 1


@pytest.mark.parametrize(("arguments", "says"), [(("--budget", "nan"), "budget: nan"), (("--budget", "-1"), "budget: -1"),
                                                 (("--live", "--gap", "nan"), "gap: nan"), (("--live", "--gap", "inf"), "gap: inf")])
def test_seconds_that_mean_nothing_are_wrong_usage(pyz: Path, tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    ended = look(pyz, "--json", tmp_path / "look.json", *arguments)
    assert ended.returncode == 2 and ended.stderr.startswith(f"nccl-look: {says} ") and ended.stderr.count("\n") == 1
    assert json.loads((tmp_path / "look.json").read_text()) == []


def test_an_interpreter_that_cannot_be_started_again_is_named_and_the_rest_is_seen(pyz: Path, tmp_path: Path) -> None:
    code = (
        f"import runpy, sys; sys.executable, sys.argv = '/gone/python', ['l', '--json', 'look.json']; runpy.run_path({str(pyz)!r},"
        " run_name='__main__')"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    facts = records_of(tmp_path / "look.json")["01-gpu-visibility"].facts["gpus"]
    first = ended.stdout.splitlines()[0]
    assert ended.returncode == 0 and "/gone/python" in first and ended.stdout.count(first) == 1, ended.stderr
    assert all(facts[of]["reason"] == "failed" and "/gone/python" in facts[of]["detail"] for of in ("nvml", "surroundings", "cuda"))


def test_secrets_stay_there(pyz: Path, tmp_path: Path) -> None:
    ended = look(
        pyz,
        "--json",
        tmp_path / "look.json",
        "--step",
        "01-gpu-visibility",
        WANDB_API_KEY="canary-0123456789",
        LD_LIBRARY_PATH="/x/canary-0123456789",
    )
    assert (
        ended.returncode == 0
        and "canary" not in ended.stdout + (tmp_path / "look.json").read_text()
        and "/x/[redacted:variable]" in (tmp_path / "look.json").read_text()
    )


def test_it_is_piped_into_a_container_and_its_record_out_of_it(pyz: Path) -> None:
    line = f"cat > l.pyz && {shlex.quote(sys.executable)} l.pyz --step 01-gpu-visibility --json - && rm l.pyz"
    with tempfile.TemporaryDirectory() as folder, open(pyz, "rb") as source:
        ended = subprocess.run(
            ["env", "-i", "PATH=/usr/bin:/bin", "sh", "-c", line], cwd=folder, stdin=source, capture_output=True, timeout=100
        )
    assert ended.returncode == 0 and [r["step"] for r in json.loads(ended.stdout)] == ["01-gpu-visibility"], ended.stderr


def lines_of_reference(word: str) -> str:
    """The shell block of the page about bare nodes that holds the word."""
    page = (ROOT / "notebooks" / "reference" / "bare-nodes.md").read_text()
    return next(b for b in re.findall(r"```bash\n(.*?)```", page, re.S) if word in b)


@pytest.mark.parametrize("failed", [3, 0])
def test_the_lines_for_a_batch_file_look_only_after_a_failure_and_keep_its_exit_code(pyz: Path, tmp_path: Path, failed: int) -> None:
    script = (
        lines_of_reference("failed=")
        .replace("srun python3 train.py", f"(exit {failed})")
        .replace("/shared/nccl-look.pyz", shlex.quote(str(pyz)))
    )
    script = re.sub(r"^(.*nccl-look\.pyz.*?)( *#.*)?$", r"\1 --step 01-gpu-visibility", script, count=1, flags=re.M)
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    ended = subprocess.run(["bash", "-eu", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
    assert ended.returncode == failed and len(list(tmp_path.glob("nccl-look-*.json"))) == bool(failed), ended.stderr


def mounted(*commands: str) -> tuple[str, ...]:
    """A private mount namespace in which these commands were run first."""
    if not shutil.which("unshare") or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("mount namespaces are not permitted here")
    return ("unshare", "-m", "bash", "-c", " && ".join([*commands, 'exec "$@"']), "look")


def read_only(pyz: Path, *commands: str) -> tuple[str, ...]:
    if pyz.stat().st_dev != os.stat("/").st_dev:
        pytest.skip("the temporary folder is not on the root file system")
    return mounted(*commands, "mount -o remount,bind,ro /")


def test_a_page_that_cannot_be_written_names_its_own_option(tmp_path: Path) -> None:
    words = ["--live", "--gap", "0", "--pid", str(os.getpid()), "--json", str(tmp_path / "x.json"), "--html", "/proc/x"]
    refused = subprocess.run(
        [sys.executable, "-c", "from nccl_runbook.look.run import main; main()", *words], capture_output=True, text=True, env=with_library()
    )
    assert refused.returncode == 1 and re.fullmatch(r"nccl-look: .* /proc/x: .*--html\n", refused.stderr) and "--json" not in refused.stderr


def test_on_a_read_only_root_it_names_the_way_out_and_works_over_standard_output(pyz: Path) -> None:
    box = read_only(pyz)
    refused = look(pyz, *LADDER, before=box)
    assert refused.returncode == 1 and re.fullmatch(
        rf"nccl-look: .* nccl-look-\S+Z\.json: {os.strerror(errno.EROFS)}\b.*--json\b.* - .*\n", refused.stderr
    )
    ended = look(pyz, *LADDER, "--json", "-", before=box)
    assert ended.returncode == 0 and len(json.loads(ended.stdout)[0]["facts"]["ladder"]["rungs"]) == 2 and "2 ranks: passed" in ended.stderr


def test_without_any_folder_to_write_to_it_says_what_it_lacks(pyz: Path) -> None:
    ended = look(pyz, *LADDER, "--json", "-", before=read_only(pyz, "mount -t tmpfs -o ro none /dev/shm"))
    assert (ended.returncode, ended.stdout) == (1, "") and re.fullmatch(r"nccl-look: .* /dev/shm\. .* TMPDIR\n", ended.stderr)


def test_a_reader_that_goes_away_is_not_told_as_a_file_that_cannot_be_written(pyz: Path, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        ended = subprocess.run(
            [sys.executable, pyz, "--step", "01-gpu-visibility", "--json", tmp_path / "l.json"],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (ended.returncode, ended.stderr) == (1, "nccl-look: [Errno 32] Broken pipe\n") and (tmp_path / "l.json").read_text().startswith(
        "["
    )


def test_an_interpreter_behind_a_prefix_says_it_as_well(pyz: Path) -> None:
    with pytest.raises(EngineError, match=r"OSError: .* /dev/shm\b.* TMPDIR$"):
        WarmLink([*read_only(pyz, "mount -t tmpfs -o ro none /dev/shm"), sys.executable], os.environ, print)


def test_a_tiny_temporary_folder_is_enough_but_for_the_disk_arm(pyz: Path) -> None:
    box = mounted("mkdir -p /run/tiny", "mount -t tmpfs -o size=1m none /run/tiny")
    ended = look(pyz, "--step", "03-fewer-gpus", "05-weight-sync", "--json", "-", before=box, TMPDIR="/run/tiny")
    worlds, sync = (step["facts"] for step in json.loads(ended.stdout))
    assert len(worlds["ladder"]["rungs"]) == 2 and sync["runs"]["arms"]["gloo-flat"]["syncs"]
    assert sync["runs"]["arms"]["disk"]["shortage"]["what"].startswith("space in /run/tiny") and "bytes needed" in ended.stderr


def test_a_full_disk_takes_nobodys_answer(pyz: Path, tmp_path: Path) -> None:
    """The record and the page cannot be written: the ranks are told all the same, then what could not be written."""
    rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, "RANK": "0", "WORLD_SIZE": "1"})
    try:
        ended = look(
            pyz,
            "--live",
            "--gap",
            "0.1",
            "--pid",
            str(rank.pid),
            "--json",
            "/run/tiny/l.json",
            "--html",
            "/run/tiny/l.html",
            before=mounted("mkdir -p /run/tiny", "mount -t tmpfs -o size=64k none /run/tiny", "head -c 60000 /dev/zero > /run/tiny/filled"),
        )
    finally:
        rank.kill()
        rank.wait()
    assert ended.returncode == 1 and f"/run/tiny/l.json: {os.strerror(errno.ENOSPC)}" in ended.stderr, ended.stderr
    assert f"{rank.pid}" in ended.stdout and "not seen: " in ended.stdout, ended.stdout


def test_the_rank_that_moves_weights_runs_from_the_file(pyz: Path, tmp_path: Path) -> None:
    """Its neighbours lie beside it there, and fast_disk.py at the top."""
    spec = json.dumps({"head": [["w", [8, 8]]], "layer": [], "layers": 0, "prefix": "", "tail": []})
    asked = ["--rank", "weight_sync.py", "--method", "fast-disk", "--spec", spec, "--directory", tmp_path / "w", "--cpu"]
    port = str(free_port())
    ended = look(pyz, *asked, RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    assert ended.returncode == 0 and ended.stdout.count("fast-disk") == 5, ended.stderr


def test_a_user_without_name_and_home_can_look(pyz: Path) -> None:
    import torch

    if os.getuid() or not shutil.which("setpriv"):
        pytest.skip("only root can become another user")
    become = ("setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups", "env", "-i", "PATH=/usr/bin:/bin")
    packages = Path(torch.__file__).parents[1]
    python = next((p for p in (sys.executable, "/usr/bin/python3") if subprocess.run(
        [*become, f"PYTHONPATH={packages}", p, "-c", "import torch"], capture_output=True).returncode == 0), None)
    if python is None:
        pytest.skip("no Python with this torch that another user may run")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        copy = Path(shutil.copy(pyz, folder))
        refused = look(copy, *LADDER, before=become, python=python)
        ended = look(copy, *LADDER, "--json", "-", before=(*become, f"PYTHONPATH={packages}"), python=python)
    assert refused.returncode == 1 and f"{os.strerror(errno.EACCES)}. " in refused.stderr and "--json" in refused.stderr
    assert ended.returncode == 0 and len(json.loads(ended.stdout)[0]["facts"]["ladder"]["rungs"]) == 2, ended.stderr


# --- interpreters behind a prefix: code over standard input, and its end ends everything

OWNER = """
import shlex, sys
from nccl_runbook.core.facts_world import WorldRequest
from nccl_runbook.launch.engine import Engine
from nccl_runbook.launch.interpreters import choose
from nccl_runbook.core.redact import Redactor
engine = Engine(choose(sys.argv[1]).prefix, None, Redactor({}))
world = engine.run(WorldRequest("healthy", "check.py", [None] * 2, ["--ops", "all_reduce", "--sizes", "4"], {}, 60.0))
print(world.passed, flush=True)
engine.run(WorldRequest("hang", "check.py", [None] * 2, ["--fault", "skip@0"], {}, 300.0))
"""
# each stands for one that is not here: a container's bare environment, srun and docker exec (another parent), a container's mounts
PREFIXES = {
    "bare environment": "env -i PATH=/usr/bin:/bin",
    "another session": "setsid -w",
    "another parent": "sh -c 'exec 3<&0; setsid \"$@\" <&3 3<&- & exec 3<&- 0<&-; wait' sh",
    "other mounts": "unshare -m",
    "another's mounts": "nsenter -t 1 -m",
}


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_a_prefix_runs_ranks_and_the_end_of_input_ends_them(prefix: str) -> None:
    command = [*shlex.split(prefix), "true"]
    if not shutil.which(command[0]) or subprocess.run(command, capture_output=True).returncode:
        pytest.skip(f"{prefix} is not permitted here")
    owner = subprocess.Popen([sys.executable, "-c", OWNER, f"{prefix} {sys.executable}"], stdout=subprocess.PIPE, text=True,
                             env=with_library())
    assert owner.stdout.readline() == "True\n"
    below = wait_for_ranks(owner.pid)
    owner.kill()
    owner.wait()
    assert gone(below, within_s=5)


# as `conda run -n NAME` (26.7): standard input is empty unless nothing is captured. The real one was tried by hand
CONDA = """#!/bin/sh
shift
case "$1" in --no-capture-output|--live-stream) shift; shift 2; exec "$@";; esac
shift 2
exec "$@" </dev/null
"""


@pytest.mark.parametrize("flag", ["", "--live-stream "])
def test_conda_run_is_told_to_leave_standard_input_open(tmp_path: Path, flag: str) -> None:
    conda = tmp_path / "conda"
    conda.write_text(CONDA)
    conda.chmod(0o755)
    choice = choose(f"{conda} run {flag}-n rl {sys.executable}")
    assert choice.prefix == [str(conda), "run", flag.strip() or "--no-capture-output", "-n", "rl", sys.executable]
    with Engine(choice.prefix, None, Redactor({})) as engine:
        assert engine.run(WorldRequest("1 rank", "check.py", [None], ["--ops", "all_reduce", "--sizes", "4"], {}, 60.0)).passed


def test_only_conda_run_gets_the_flag(tmp_path: Path) -> None:
    other = tmp_path / "mamba"
    other.write_text(CONDA.replace("shift\n", "shift 3\n", 1).split("case")[0] + 'exec "$@"\n')
    other.chmod(0o755)
    assert choose(f"{other} run -n rl {sys.executable}").prefix == [str(other), "run", "-n", "rl", sys.executable]


def wait_for_ranks(pid: int) -> dict[int, str | None]:
    """Identities of everything below, once two ranks are there: the second world of OWNER hangs."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        below = {p: start_time(p) for p in children(pid)}
        ranks = [p for p in below if not children(p) and start_time(p)]
        if len(ranks) >= 2:
            return below
        time.sleep(0.05)
    raise AssertionError("the ranks did not start")


def test_options_of_the_live_look_are_refused_without_it(pyz):
    for options in (("--html", "a.html"), ("--pid", "1"), ("--gap", "3")):
        ended = look(pyz, *options)
        assert ended.returncode == 2 and "--live" in ended.stderr and options[0] in ended.stderr


def test_the_quick_profile_of_the_page_keeps_its_time_and_is_what_fleet_reads(pyz: Path, tmp_path: Path) -> None:
    """With the options that the page for Slurm names, of two nights on this machine; the second night has another MTU."""
    options = re.search(r"nccl-look.pyz (--step [\w -]+--budget (\d+))", (ROOT / "notebooks/reference/slurm.md").read_text())
    assert options and int(options[2]) <= 20
    began = time.monotonic()
    ended = look(pyz, *options[1].split(), "--json", tmp_path / "now.json")
    wall_s = time.monotonic() - began
    assert ended.returncode == 0 and wall_s < int(options[2]) + 5, ended.stderr
    now = json.loads((tmp_path / "now.json").read_text())
    network = now[0]["facts"]["network"]
    assert sum(record["wall_s"] for record in now) <= int(options[2]) and "lo" in network["interfaces"]
    for record in now:
        record["started"] = "2026-01-01T23:00:00Z"
    network["interfaces"]["eth7"] = {"mtu": "9000", "state": "up", "speed": "", "address": "10.0.0.1"}
    (tmp_path / "before.json").write_text(json.dumps(now))
    now[0]["facts"]["network"]["interfaces"]["eth7"]["mtu"] = "1500"
    for record in now:
        record["started"] = "2026-01-02T23:00:00Z"
    (tmp_path / "now.json").write_text(json.dumps(now))
    answer = json.loads(run_cli("fleet", tmp_path, "--json").stdout)
    assert (answer["nodes"], [(c["name"], c["was"], c["now"]) for c in answer["changes"]]) == (1, [("MTU of eth7", "9000", "1500")])


def test_test_ranks_of_the_runbook_are_no_job_unless_they_are_named() -> None:
    """They run beside a hung job while a report is made: "another job may hang" named them."""
    with Engine([sys.executable], None, Redactor({})) as engine:
        engine.software()
        warm, = (pid for pid in children(os.getpid()) if b"warm.py" in Path(f"/proc/{pid}/cmdline").read_bytes())
        assert "/libtorch" in Path(f"/proc/{warm}/maps").read_text()
        assert warm not in processes() and warm in processes([warm])
