"""`env` end to end, the readers of files and processes, secrets, and what the node's part answers."""
from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from fnmatch import fnmatchcase
from pathlib import Path

import environments as made
import jsonschema
import pytest
from hypothesis import given, settings, strategies as st
from nccl_runbook.causes import variables
from nccl_runbook.core.facts import Gap, gaps_in, to_json
from nccl_runbook.environment import read as probe, read_role as probe_role
from nccl_runbook.environment.facts import Environment
from nccl_runbook.environment.judge import RESTS_ON, judge
from nccl_runbook.environment.read_file import acs_redirects, is_kept, parse, read
from nccl_runbook.logs import file
from processes import command_s
from warm_cli import read_cli

ROOT = Path(__file__).resolve().parents[1]
CANARY = "canary9f3a71c2e5"
SCHEMA = json.loads((ROOT / "lib/nccl_runbook/schemas/env.json").read_text())
CLEAN = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": str(ROOT / "lib")}


def run(*arguments: str, env: dict[str, str] | None = None, given: str = "") -> subprocess.CompletedProcess[str]:
    variables = {**CLEAN, **(env or {})}
    if not given:
        return read_cli("env", *arguments, env=variables)
    return subprocess.run(
        [sys.executable, "-m", "nccl_runbook", "env", *arguments], capture_output=True, text=True, timeout=60, env=variables, input=given
    )


def findings(*arguments: str, **more) -> dict[str, dict]:
    document = json.loads(run("--json", *arguments, **more).stdout)
    jsonschema.validate(document, SCHEMA)
    return {f["variable"] or f["id"]: f for f in document["findings"]}


def test_a_standard_input_without_end_is_refused() -> None:
    command = f"yes NCCL_DEBUG=INFO | timeout 60 {sys.executable} -m nccl_runbook env -"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=CLEAN, timeout=90)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


# ---- files -------------------------------------------------------------------------------------------------------------------------

FORMS = {
    "env output": "NCCL_DEBUG=INFO\nFOO=bar",
    "export": "export NCCL_DEBUG=INFO  # why",
    "quoted": 'export NCCL_DEBUG="INFO"',
    "prefix": "NCCL_DEBUG=INFO python t.py",
    "declare": 'declare -x NCCL_DEBUG="INFO"',
    "env command": "env NCCL_DEBUG=INFO python t.py",
    "docker": "docker run -e NCCL_DEBUG=INFO image",
    "beaker": "  --env NCCL_DEBUG=INFO \\",
    "mpirun": "mpirun -x NCCL_DEBUG=INFO ./a",
    "sbatch": "#SBATCH --export=ALL,NCCL_DEBUG=INFO,X=1",
    "srun": "srun --export ALL,NCCL_DEBUG=INFO python t.py",
    "csh": "setenv NCCL_DEBUG INFO",
    "yaml": "env:\n  NCCL_DEBUG: INFO",
    "yaml quoted": "env:\n  NCCL_DEBUG: 'INFO'",
    "kubernetes": 'env:\n  - name: NCCL_DEBUG\n    value: "INFO"',
    "compose": "environment:\n  - NCCL_DEBUG=INFO",
    "ray": 'runtime_env={"env_vars": {"NCCL_DEBUG": "INFO"}}',
    "python": 'os.environ["NCCL_DEBUG"] = "INFO"',
    "flow yaml": "{env: {NCCL_DEBUG: INFO, A: b}}",
    "default": "export NCCL_DEBUG=${NCCL_DEBUG:-INFO}",
    "last wins": "NCCL_DEBUG=WARN\nNCCL_DEBUG=INFO",
    "proc environ": "A=b\0NCCL_DEBUG=INFO\0",
    "before srun": "NCCL_DEBUG=INFO srun --export=ALL,X=1 python t.py",
    "apptainer": "apptainer exec --env A=1,NCCL_DEBUG=INFO x.sif python t.py",
    "dense json": '{"env_vars":{"A":"1","NCCL_DEBUG":"INFO"}}',
    "kubernetes in a line": "env: [{name: NCCL_DEBUG, value: INFO}]",
    "kubernetes json": '"env": [\n {\n"name": "NCCL_DEBUG",\n"value": "INFO"\n}]',
    "dense python": "os.environ['NCCL_DEBUG']='INFO'",
    "setdefault": 'os.environ.setdefault("NCCL_DEBUG", "INFO")',
    "Dockerfile": "ENV NCCL_DEBUG INFO",
    "dotenv": "NCCL_DEBUG=INFO\r\n",
    "exports": "export A=1 NCCL_DEBUG=INFO B=2",
    "and": "cd /x && export NCCL_DEBUG=INFO; python t.py",
    "keywords": 'BeakerEnvVar(name="NCCL_DEBUG", value="INFO"),',
    "keywords on lines": 'V1EnvVar(\n    name="NCCL_DEBUG",\n    value="INFO",\n)',
    "toml": 'image = "/x.sqsh"\n[env]\nNCCL_DEBUG = "INFO"',
    "toml in a line": 'env = { A = "x = y", NCCL_DEBUG = "INFO" }',
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_a_setting_is_read(form):
    assert parse(FORMS[form]).variables == {"NCCL_DEBUG": "INFO"}


@pytest.mark.parametrize(
    "text",
    [
        "#export NCCL_DEBUG=INFO",
        "# NCCL_DEBUG=INFO",
        "export NCCL_DEBUG=INFO\nunset NCCL_DEBUG",
        "MY_NCCL_DEBUG=INFO",
        "x.NCCL_DEBUG=INFO",
        "python t.py  # NCCL_DEBUG=INFO",
        "echo $NCCL_DEBUG",
        "NCCL_DEBUG",
        "",
        "env:\n  NCCL_DEBUG: null",
        "NCCL_DEBUG: ~",
        "{NCCL_DEBUG: null, A: b}",
        '{"NCCL_DEBUG": None}',
        'NCCL_DEBUG = "INFO"\nx(1)',
        "- name: NCCL_DEBUG\n  value: null",
        'if os.environ["NCCL_DEBUG"] == "INFO":',
        'os.environ.get("NCCL_DEBUG", "INFO")',
    ],
)
def test_what_is_no_setting_is_not_read(text):
    assert parse(text).variables == {}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("export NCCL_BUFFSIZE=$((4 * 1024 * 1024))", "4194304"),
        ("M=1024\nexport NCCL_BUFFSIZE=$((4*M * ${M}))", "4194304"),
        ("NCCL_BUFFSIZE=$(( (1+1)*2 ))", "4"),
        ("NCCL_BUFFSIZE=$((4 * UNKNOWN))", "$((4*UNKNOWN))"),
        ("NCCL_BUFFSIZE=$((9**99999999))", "$((9**99999999))"),
        ("NCCL_BUFFSIZE=$((1/0))", "$((1/0))"),
        ("NCCL_BUFFSIZE=$((__import__(1)))", "$((__import__(1)))"),
        ("NCCL_BUFFSIZE: 'null'", "null"),
        ("NCCL_BUFFSIZE=null", "null"),
    ],
)
def test_arithmetic_is_worked_out_and_nothing_else(text, value):
    assert parse(text).variables == {"NCCL_BUFFSIZE": value}


@pytest.mark.parametrize(
    "text",
    [
        'env["NCCL_DEBUG"] = os.environ["NCCL_DEBUG"]',
        'env["MASTER_PORT"] = os.environ.get("MASTER_PORT", "")',
        'os.environ["NCCL_DEBUG"] = level',
        "os.environ['NCCL_DEBUG'] = self.level",
        'os.environ["NCCL_DEBUG"] = f"{level}"',
        'os.environ.setdefault("NCCL_DEBUG", level)',
        'env = {"MASTER_PORT": port, "A": "1"}',
        'NCCL_DEBUG=os.getenv("LEVEL")',
        "dict(NCCL_DEBUG=str(level))",
        'V1EnvVar(\n    name="NCCL_DEBUG",\n    value=level,\n)',
    ],
)
def test_an_expression_of_python_is_no_value(text):
    assert parse(text).variables == {}


@pytest.mark.parametrize(
    "text",
    [
        'printf "WORLD_SIZE: %s\\n" $WORLD_SIZE',
        "echo NCCL_DEBUG=$NCCL_DEBUG",
        'echo "NCCL_DEBUG=$NCCL_DEBUG" >&2',
        "echo NCCL_DEBUG=off || true",
        'print(f"MASTER_PORT: {port}")',
        "sleep 1; echo 'NCCL_DEBUG=off'",
    ],
)
def test_what_is_only_shown_sets_nothing(text):
    assert parse("export NCCL_DEBUG=INFO\n" + text).variables == {"NCCL_DEBUG": "INFO"}


@pytest.mark.parametrize(
    "text",
    [
        'echo "NCCL_DEBUG=INFO" >> ~/.nccl.conf',
        "echo NCCL_DEBUG=INFO | sudo tee -a /etc/nccl.conf",
        "echo start && export NCCL_DEBUG=INFO",
        "echo start; NCCL_DEBUG=INFO torchrun t.py",
        'os.environ["NCCL_DEBUG"] = "INFO"',
        '"NCCL_DEBUG": INFO',
        "bash -c 'echo start; export NCCL_DEBUG=INFO'",
    ],
)
def test_what_is_written_to_a_file_or_set_beside_is_read(text):
    assert parse(text).variables == {"NCCL_DEBUG": "INFO"}


def test_where_a_setting_stands_is_told_and_the_rest_is_counted():
    role = parse("FOO=1\nexport NCCL_NET=IB\nBAR=2\n", "x.sh")
    assert (role.where, role.others, role.name) == ({"NCCL_NET": "line 2"}, 2, "x.sh")


@given(st.text(max_size=400))
def test_any_text_is_read_without_an_error_and_only_allowed_names_are_kept(text):
    assert all(is_kept(name) for name in parse(text).variables)


values = st.text(st.characters(codec="ascii", categories=("L", "N"), include_characters="=,:/._-+^"), min_size=1, max_size=30).filter(
    lambda v: v[-1] not in ","
)


@given(st.dictionaries(st.sampled_from(["NCCL_ALGO", "NCCL_SOCKET_IFNAME", "TORCH_FR_BUFFER_SIZE", "NCCL_TOPO_FILE"]), values, max_size=4))
def test_env_output_and_exports_give_the_same_back(chosen):
    assert parse("".join(f"{n}={v}\n" for n, v in chosen.items())).variables == chosen
    assert parse("".join(f'export {n}="{v}" \n' for n, v in chosen.items())).variables == chosen


@given(st.dictionaries(st.sampled_from(["NCCL_ALGO", "NCCL_NET", "NCCL_PROTO"]), values))
def test_nccl_conf_is_read_as_nccl_does(chosen):
    assert probe_role.conf_lines("# NCCL_NET=no\n" + "".join(f"{n}={v}\n{n}=second\n" for n, v in chosen.items())) == chosen


@given(st.binary(max_size=300), st.text(max_size=10))
def test_any_configuration_space_is_read_without_an_error(data, bus):
    assert isinstance(acs_redirects({bus: data}), (list, Gap))


def bridge(control: int) -> bytes:
    head = bytes(10) + (0x0604).to_bytes(2, "little") + bytes(0x100 - 12)
    first = (0x0001 | 1 << 16 | 0x140 << 20).to_bytes(4, "little") + bytes(0x3C)
    return head + first + (0x000D | 1 << 16).to_bytes(4, "little") + bytes(2) + control.to_bytes(2, "little") + bytes(0x100)


def test_acs_is_found_where_a_bridge_redirects_and_is_a_gap_for_a_plain_user():
    assert acs_redirects({"0000:00:01.0": bridge(0x1D), "0000:00:02.0": bridge(0)}) == ["0000:00:01.0"]
    assert acs_redirects({"0000:00:01.0": bridge(0x1D)[:64]}).reason == "no-permission"


@pytest.mark.parametrize("path", ["/nonexistent/x.sh", "/proc", "/dev/zero", "PIPE"])
def test_a_file_that_cannot_be_read_is_one_sentence_at_once(path, tmp_path):
    os.mkfifo(tmp_path / "pipe")  # nobody writes to it
    path = path.replace("PIPE", str(tmp_path / "pipe"))
    assert path in read(path).detail
    done = run(path)
    assert done.returncode == 2 and path in done.stderr and done.stderr.count("\n") == 1


def test_a_pipe_of_the_shell_is_read_to_its_end_and_not_for_ever(monkeypatch):
    command = f"{sys.executable} -m nccl_runbook env --json <(sleep 0.3; echo NCCL_TIMEOUT=1800; sleep 0.3; echo NCCL_DEBUG=ERROR)"
    told = json.loads(subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=CLEAN).stdout)
    assert {f["variable"] for f in told["findings"]} == {"NCCL_TIMEOUT", "NCCL_DEBUG"}
    monkeypatch.setattr(file, "PIPE_S", 0.2)
    ours, theirs = os.pipe()
    os.write(theirs, b"NCCL_DEBUG=INFO\n")
    assert read(f"/dev/fd/{ours}").reason == "timed-out", "its writer is still there"
    os.close(theirs), os.close(ours)


# ---- the command -------------------------------------------------------------------------------------------------------------------

def test_env_of_this_process_and_its_exit_codes():
    assert run().returncode == 4 and run(env={"NCCL_DEBUG": "WARN"}).returncode == 0, "without a setting, torch and NCCL nothing is known"
    done = run(env={"NCCL_TIMEOUT": "1800"})
    assert done.returncode == 3 and "verdict: degraded" in done.stdout
    assert run("--fail-on", "broken", env={"NCCL_TIMEOUT": "1800"}).returncode == 0
    assert run("--fail-on", "sometimes").returncode == 2 and run("x", "--pid", "1").returncode == 2
    assert "NCCL_SOCKET_IFNAME" in findings(env={"NCCL_SOCKET_IFNAME": "nope0"})


def test_wrong_use_is_one_sentence():
    for arguments, said in ((("--torch", "latest"), "'latest'"), (("--nccl", "x"), "'x'"), (("-", "--pid", "1"), "process"),
                            (("--pid", "0"), "--pid 0: "), (("--pid", "-5"), "--pid -5: ")):
        done = run(*arguments)
        assert said in done.stderr
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_env_json_holds_its_contract(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("export TORCH_NCCL_TRACE_BUFFER_SIZE=67108864\n")
    found = findings(str(script), "--torch", "2.7")
    row = found["TORCH_NCCL_TRACE_BUFFER_SIZE"]
    assert set(row) == {"id", "variable", "severity", "text", "replacement"}
    assert (row["id"], row["replacement"]) == ("bytes-for-events", "TORCH_NCCL_TRACE_BUFFER_SIZE=2000")
    assert "NCCL_NET" not in findings("-", given="NCCL_NET=IB\n")


def test_env_answers_within_half_a_second_without_torch_or_jupyter(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("".join(f"export NCCL_UNKNOWN_{i}=1 NCCL_DEBUG=ERROR\n" for i in range(300)))
    took, ended = command_s([sys.executable, "-m", "nccl_runbook", "env", str(script)], 0.5, env=CLEAN)
    assert ended.returncode == 3 and took < 0.5
    ask = (
        "import sys; sys.argv = ['x', 'env', sys.argv[1]]\nfrom nccl_runbook.__main__ import main\ntry:\n main()\nexcept SystemExit:\n"
        " pass\nprint([m for m in ('torch', 'jupyter_client', 'papermill', 'nbformat', 'IPython', 'jinja2') if m in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", ask, str(script)], capture_output=True, text=True, env=CLEAN).stdout.splitlines()[-1] == "[]"
    )


def test_env_looks_at_other_processes_as_roles():
    one, two = (subprocess.Popen(["sleep", "60"], env={**CLEAN, "NCCL_CUMEM_ENABLE": v}) for v in "01")
    try:
        done = run("--pid", str(one.pid), str(two.pid))
        assert re.search(rf"NCCL_CUMEM_ENABLE: .*pid {one.pid} \(0\), pid {two.pid} \(1\)", done.stdout) and done.returncode == 3
    finally:
        for child in (one, two):
            child.kill()
            child.wait()
    assert run("--pid", str(one.pid)).returncode == 2


def test_every_process_tells_its_own_limits_and_its_own_shared_memory():
    other = ["unshare", "-r", "-m", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /dev/shm && ulimit -n 512 && echo && exec sleep 60"]
    if subprocess.run([*other[:5], "mount -t tmpfs tmpfs /dev/shm"], capture_output=True).returncode:
        pytest.skip("no mount namespace of one's own may be made here")
    with subprocess.Popen(["sleep", "60"]) as one, subprocess.Popen(other, stdout=subprocess.PIPE) as two:
        two.stdout.readline()
        try:
            seen = probe.looks([one.pid, two.pid])
            done = run("--pid", str(one.pid), str(two.pid))
        finally:
            one.kill(), two.kill()
    size, _, device = seen.roles[0].shm
    assert seen.roles[1].shm[0] == 1 << 20 and seen.roles[1].shm[2] != device
    assert re.search(rf"/dev/shm: .*pid {one.pid} \({size >> 20} MiB, device {device}\), pid {two.pid} \(1 MiB, ", done.stdout)
    assert re.search(rf"files: .*pid {one.pid} \({seen.roles[0].nofile}\), pid {two.pid} \(512\)", done.stdout)
    assert re.search(rf"pid {two.pid}: /dev/shm has only 1 of 1 MiB", done.stdout) and done.returncode == 3
    assert f"pid {two.pid}.torch: absent: " in done.stdout, "silence is no health"


def test_every_process_is_judged_by_its_own_namespaces_and_its_own_nccl_conf(tmp_path):
    (tmp_path / ".nccl.conf").write_text("NCCL_SOCKET_IFNAME=nope0\n")
    apart = ["unshare", "-rni", "sh", "-c", "echo && exec sleep 60"]
    here = next((n for n in os.listdir("/sys/class/net") if n != "lo"), "")
    if not here or subprocess.run(["unshare", "-rni", "true"], capture_output=True).returncode:
        pytest.skip("no namespaces of one's own may be made here, or there is no interface but the loopback")
    with subprocess.Popen(["sleep", "60"], env={**CLEAN, "NCCL_SOCKET_IFNAME": here}) as one, \
            subprocess.Popen(apart, stdout=subprocess.PIPE, env={**CLEAN, "HOME": str(tmp_path), "GLOO_SOCKET_IFNAME": here}) as two:
        two.stdout.readline()
        try:
            seen = probe.looks([one.pid, two.pid])
        finally:
            one.kill(), two.kill()
    assert here in seen.roles[0].interfaces and here not in seen.roles[1].interfaces
    missing = {f.title.partition(": ")[0]: f.title for f in judge(seen) if f.id == "interface-missing"}
    assert f": {here} " in missing["GLOO_SOCKET_IFNAME"] and missing["GLOO_SOCKET_IFNAME"].endswith(
        f"({', '.join(seen.roles[1].interfaces)})"
    ), "its own network"
    assert "nope0" in missing["NCCL_SOCKET_IFNAME"] and here not in missing["NCCL_SOCKET_IFNAME"], "its own home"
    differ = [f.title for f in judge(seen) if f.id == "roles-differ"]
    assert any(f" pid {one.pid} ({seen.roles[0].ipc_namespace}), pid {two.pid} (ipc:[" in title for title in differ)


def _seen(path: str, contents: str, cuda: str) -> tuple:
    """A process that has this file mapped, and its machine."""
    return made.role(mapped=[path], preloaded=[path]), made.host(libraries=[made.library(path, sha256=contents * 64, cuda=cuda)])


@pytest.mark.parametrize(("paths", "contents", "told"), [
    (("/a/libnccl.so.2", "/b/libnccl.so.2"), "12", "warn"),
    (("/a/libnccl.so.2", "/a/libnccl.so.2"), "12", "warn"),  # in containers of their own
    (("/a/libnccl.so.2", "/b/libnccl.so.2"), "11", "note"),
    (("/a/libnccl.so.2", "/a/libnccl.so.2"), "11", "")])
def test_the_library_of_every_process_is_known_not_only_of_the_first(paths, contents, told):
    seen = [(dataclasses.replace(r, name=f"pid {i}"), h) for i, (r, h) in enumerate(_seen(p, c, "13.0") for p, c in zip(paths, contents))]
    joined = probe._joined(seen)
    assert [f.severity.value for f in judge(joined) if f.id == "roles-libraries-differ"] == ([told] if told else [])
    assert all(set(r.mapped) <= {lib.path for lib in joined.host.libraries} and r.mapped == r.preloaded for r in joined.roles)


def test_a_second_process_on_another_cuda_is_told():
    seen = [
        (dataclasses.replace(r, name=n), h)
        for n, (r, h) in (("a", _seen("/a/libnccl.so.2", "1", "13.0")), ("b", _seen("/b/libnccl.so.2", "2", "12.8")))
    ]
    assert [f.title for f in judge(probe._joined(seen)) if f.title.startswith("b: ") and "12.8" in f.title]


def test_env_html_is_a_page_without_script_or_request(tmp_path):
    page = tmp_path / "env.html"
    run(
        "-",
        "--html",
        str(page),
        "--torch",
        "2.11",
        "--nccl",
        "2.28.9",
        given="NCCL_TOPO_FILE='<script>alert(1)</script>'\nNCCL_TIMEOUT=1\n",
    )
    text = page.read_text()
    assert "<strong>torch 2.11, NCCL 2.28.9</strong>" in text, "what was judged"
    assert "&lt;script&gt;" in text and "<script" not in text and "://" not in text and "NCCL_TIMEOUT" in text


# ---- secrets -----------------------------------------------------------------------------------------------------------------------

SECRETS = {
    "WANDB_API_KEY": CANARY + "a",
    "HF_TOKEN": CANARY + "b",
    "VLLM_API_KEY": CANARY + "c",
    "NCCL_TOPO_FILE": f"/x/{CANARY}a/y",
    "MY_DB": CANARY + "d",
    "NCCL_DEBUG_FILE": f"http://user:{CANARY}b@host/log",
    "NCCL_FASTRAK_SECRET": CANARY + "e",
    "NCCL_TIMEOUT": "1",
    "UCX_TLS": f"{CANARY}c",
}


def everything(*arguments: str, tmp_path: Path, **more) -> str:
    page = tmp_path / "page.html"
    told = [run(*arguments, "--json", **more), run(*arguments, "--html", str(page), **more)]
    return "".join(t.stdout + t.stderr for t in told) + page.read_text()


def test_no_secret_of_this_process_is_told_anywhere(tmp_path):
    text = everything(tmp_path=tmp_path, env=SECRETS)
    assert CANARY not in text and "NCCL_TIMEOUT" in text and "[redacted:" in text


def test_no_secret_of_a_file_is_told_anywhere(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("".join(f"export {n}='{v}'\n" for n, v in SECRETS.items()))
    text = everything(str(script), tmp_path=tmp_path)
    assert CANARY not in text and "NCCL_TIMEOUT" in text and "[redacted:" in text


def test_no_secret_of_another_process_is_told_anywhere(tmp_path):
    child = subprocess.Popen(["sleep", "60"], env={**CLEAN, **SECRETS})
    try:
        text = everything("--pid", str(child.pid), tmp_path=tmp_path)
    finally:
        child.kill()
        child.wait()
    assert CANARY not in text and "NCCL_TIMEOUT" in text


def test_no_secret_leaves_the_node():
    done = subprocess.run(
        [sys.executable, str(ROOT / "lib/nccl_runbook/ranks/environment.py"), probe.request()],
        capture_output=True,
        text=True,
        env={**CLEAN, **SECRETS},
    )
    assert CANARY not in done.stdout.replace(f"user:{CANARY}b", "") and "WANDB" not in done.stdout and '"NCCL_TIMEOUT": "1"' in done.stdout


# ---- the node's part and libraries -------------------------------------------------------------------------------------------------

def library(tmp_path: Path, wheels: dict[str, bool], text: bytes = b"NCCL version 2.28.9+cuda13.0\0") -> Path:
    """A file that says what a libnccl says, with wheels beside it that claim it; True: with its real hash."""
    import base64
    import hashlib

    file = tmp_path / "site-packages/nvidia/nccl/lib/libnccl.so.2"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"\x7fELF" + bytes(5 << 20) + text + bytes(100))
    own = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).decode().rstrip("=")
    for wheel, is_its in wheels.items():
        folder = tmp_path / "site-packages" / f"{wheel}.dist-info"
        folder.mkdir()
        (folder / "RECORD").write_text(f"nvidia/nccl/lib/libnccl.so.2,sha256={own if is_its else 'A' * 43},123\n")
    return file


def looked(**more: object) -> dict:
    asked = json.loads(probe.request()) | more
    done = subprocess.run(
        [sys.executable, str(ROOT / "lib/nccl_runbook/ranks/environment.py"), json.dumps(asked)], capture_output=True, text=True
    )
    return json.loads(done.stdout)


@pytest.mark.skipif(not Path("/proc/sys/vm/swappiness").exists(), reason="no /proc/sys here")
def test_a_file_that_answers_no_large_read_is_read():
    assert looked(files={"/proc/sys/vm/swappiness": ""})["files"]["/proc/sys/vm/swappiness"].isdigit()


def test_a_library_says_its_version_and_which_wheel_wrote_it(tmp_path):
    file = library(tmp_path, {"nvidia_nccl_cu13-2.28.9": True, "nvidia_nccl_cu12-2.27.5": False})
    seen, = probe.host_of(looked(copies=[str(file)])).libraries
    assert (seen.version, seen.cuda, len(seen.sha256)) == ("2.28.9", "13.0", 64)
    assert seen.wheels == {"nvidia-nccl-cu13 2.28.9": "same", "nvidia-nccl-cu12 2.27.5": "other"}


def test_a_preload_by_a_link_is_seen_as_the_file_that_is_mapped(tmp_path):
    """The loader maps the file behind the link; Python itself stands for a process with a library preloaded."""
    real = next(p for p in Path("/proc/self/maps").read_text().split() if p.startswith("/") and "/libc.so" in p)
    (tmp_path / "libnccl.so.2").symlink_to(real)
    asked = {**json.loads(probe.request()), "mapped": "/libc.so", "copies": []}
    done = subprocess.run(
        [sys.executable, str(ROOT / "lib/nccl_runbook/ranks/environment.py"), json.dumps(asked)],
        capture_output=True,
        text=True,
        env={**CLEAN, "LD_PRELOAD": str(tmp_path / "libnccl.so.2")},
    )
    said = json.loads(done.stdout)
    assert said["preloaded"] == [os.path.realpath(real)] == said["mapped"]
    assert probe_role.role_of("x", said).preloaded == said["preloaded"]


def test_a_library_without_a_version_is_a_gap(tmp_path):
    seen, = probe.host_of(looked(copies=[str(library(tmp_path, {}, b"nothing"))])).libraries
    assert isinstance(seen.version, Gap) and seen.wheels == {}


def test_a_real_rank_tells_its_environment(engine):
    seen = probe.collect(engine)
    role, = seen.roles
    assert role.variables["RANK"] == "0" and isinstance(role.torch, str) and role.nofile.isdecimal()
    assert (
        "lo" in role.interfaces
        and role.ipc_namespace.startswith("ipc:[")
        and isinstance(role.container, list)
        and seen.host.name
        and not any(n.startswith("NCCL_RUNBOOK") for n in role.variables)
    )
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert role.markers == {"python_version": python, "platform_machine": os.uname().machine}
    assert to_json(seen)


def test_a_script_is_a_role_beside_the_rank_and_only_a_missing_one_is_a_gap(engine, tmp_path):
    (tmp_path / "a.sh").write_text("export NCCL_DEBUG=ERROR")
    assert [r.name for r in probe.collect(engine, str(tmp_path / "a.sh")).roles] == ["a rank", "a.sh"]
    seen = probe.collect(engine, str(tmp_path / "b.sh"))
    assert [r.name for r in seen.roles] == ["a rank"] and seen.host.name and judge(seen)
    assert [(path, gap.reason) for path, gap in gaps_in({"environment": seen}) if fnmatchcase(path, RESTS_ON[-1])] == [
        ("environment.left_out.script", "absent")
    ]


def test_a_machine_without_proc_and_sys_gives_gaps_not_errors():
    gap = {"reason": "absent", "detail": "no such file"}
    asked = json.loads(probe.request())
    said = {
        "event": "environment",
        "variables": {"NCCL_NET": "IB"},
        "names": 9,
        "files": {p.replace("{pid}", "self"): gap for p in asked["files"]},
        "mapped": gap,
        "libraries": {},
        "reports": "",
        "torch": {},
        "host": "mac",
        "interfaces": ["lo0", "en0"],
        "addresses": gap,
        "shm": gap,
    }
    host, role = probe.host_of(said), probe_role.role_of("this process", said)
    assert isinstance(role.mapped, Gap) and isinstance(host.hcas, Gap) and isinstance(role.shm, Gap) and isinstance(host.iommu, Gap)
    assert judge(Environment([role], host))
    assert probe_role.role_of("this process", {**said, "reports": gap}).reported == Gap(**gap)


def test_settings_of_a_named_conf_file_are_judged(tmp_path):
    (tmp_path / "my.conf").write_text("# a comment\nNCCL_SOCKET_IFNAME=nope0\nMY_TOKEN=" + CANARY + "\n")
    done = run(env={"NCCL_CONF_FILE": str(tmp_path / "my.conf")})
    assert done.returncode == 3 and "nope0" in done.stdout and CANARY not in done.stdout


def test_a_rank_has_the_conf_file_that_its_own_environment_names(own_engine, tmp_path, monkeypatch):
    named, usual = str(tmp_path / "my.conf"), str(tmp_path / ".nccl.conf")
    (tmp_path / "my.conf").write_text("NCCL_NET=IB\n")
    (tmp_path / ".nccl.conf").write_text("NCCL_NET=Socket\n")
    monkeypatch.setenv("NCCL_CONF_FILE", named)  # of the notebook, not of a rank for which it is unset
    seen = [
        probe_role.role_of("x", probe._of_rank(own_engine, {"HOME": str(tmp_path), "NCCL_CONF_FILE": conf})).conf for conf in (named, None)
    ]
    assert seen[0][named] == {"NCCL_NET": "IB"} and usual not in seen[0]
    assert seen[1][usual] == {"NCCL_NET": "Socket"} and named not in seen[1]


@given(st.text(max_size=300))
def test_limits_and_routes_of_any_text_are_read_without_an_error(text):
    assert isinstance(probe_role.row_of(text, "Max open files"), (str, Gap))
    assert isinstance(probe_role._routes(text), list)


def test_versions_are_read_out_of_an_environment_without_importing(tmp_path, monkeypatch):
    site = tmp_path / "lib/python3.12/site-packages"
    (site / "torch").mkdir(parents=True)
    (site / "torch/version.py").write_text("__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n")
    (site / "nvidia_nccl_cu13-2.28.9.dist-info").mkdir()
    (site / "nvidia_nccl_cu13-2.28.9.dist-info/METADATA").write_text("Name: nvidia-nccl-cu13\nVersion: 2.28.9\n")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    role = probe.looks().roles[0]
    assert (role.torch, role.torch_cuda, role.reported) == ("2.11.0+cu130", "13.0", "2.28.9")
    assert role.markers["python_version"] == "3.12"
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "lib"))
    assert [getattr(probe.looks().roles[0], part).reason for part in ("torch", "reported")] == ["absent", "absent"]


def test_the_metadata_of_frameworks_beside_torch_is_read_without_importing_them(tmp_path):
    site = tmp_path / "lib/python3.12/site-packages"
    (site / "torch").mkdir(parents=True)
    (site / "torch/version.py").write_text("__version__ = '2.11.0+cu130'\n")
    (site / "vllm-0.10.0.dist-info").mkdir()
    (site / "vllm-0.10.0.dist-info/METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: 0.10.0\nAuthor: {CANARY}\nRequires-Dist: torch==2.7.1; python_version =="
        " '3.12'\nRequires-Dist: numpy\n\nName: no\n"
    )
    done = run("--json", env={"VIRTUAL_ENV": str(tmp_path)})
    rows = [f for f in json.loads(done.stdout)["findings"] if f["id"] == "framework-version-incompatible"]
    assert [r["severity"] for r in rows] == ["warn"] and rows[0]["text"].startswith("this process: ")
    assert all(version in rows[0]["text"] for version in ("vllm 0.10.0", "torch==2.7.1", "2.11.0+cu130"))


@settings(deadline=None)
@given(st.lists(st.text(max_size=120) | st.just({"reason": "absent", "detail": "x"}), max_size=3))
def test_metadata_of_any_text_is_read_without_an_error(texts):
    assert isinstance(probe_role.requires_of(texts), dict)


def test_of_a_file_of_names_without_end_the_known_ones_are_kept():
    role = parse("".join(f"NCCL_X{n}=1\n" for n in range(5000)) + "NCCL_P2P_DISABLE=1\n")
    assert "NCCL_P2P_DISABLE" in role.variables and len(role.variables) < 5000 and len(role.variables) + role.others == 5001


@pytest.mark.parametrize(
    ("launch", "code"),
    [
        ("torchrun --nnodes 2 --rdzv_backend c10d --rdzv_endpoint $MASTER_ADDR:29500 train.py", 3),
        ("torchrun --nnodes 2 --rdzv-endpoint localhost:29500 t.py", 3),
        ("torchrun --nnodes 2 --rdzv-endpoint node-1:29500 t.py", 0),
        ("torchrun --nnodes 2 --master-addr node-1 t.py", 0),
        ("python t.py", 3),
    ],
)
def test_a_meeting_address_counts_unless_the_launcher_is_told_another(launch, code, tmp_path):
    (tmp_path / "run.sbatch").write_text(f"#!/bin/bash\n#SBATCH --nodes=2\nexport MASTER_ADDR=localhost\nsrun {launch}\n")
    assert run(str(tmp_path / "run.sbatch"), "--json").returncode == code


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("NCCL_BI_HCA", "NCCL_IB_HCA"),
        ("NCCL_RPOTO", "NCCL_PROTO"),
        ("NCCL_IB_DISABEL", "NCCL_IB_DISABLE"),
        ("NCCL_SOKCET_IFNAME", "NCCL_SOCKET_IFNAME"),
        ("NCCL_SOMETHING_ELSE", ""),
    ],
)
def test_a_slip_of_two_letters_is_recognised(slip, meant):
    assert variables.nearest(slip) == meant


@pytest.mark.parametrize(("new", "ids"), [("1", {"renamed-variable"}), ("3", {"contradiction"})])
def test_an_old_name_beside_its_new_one_is_one_instruction(new, ids, tmp_path):
    (tmp_path / "run.sh").write_text(f"export NCCL_ASYNC_ERROR_HANDLING=1 TORCH_NCCL_ASYNC_ERROR_HANDLING={new}\n")
    found = json.loads(run(str(tmp_path / "run.sh"), "--json").stdout)["findings"]
    assert {f["id"] for f in found} & {"renamed-variable", "contradiction"} == ids


@pytest.mark.parametrize(
    "line",
    [
        "Traceback (most recent call last):",
        "node0:1:1 [0] NCCL INFO NCCL_DEBUG set by environment to INFO",
        "[rank0]: Traceback (most recent call last):",
    ],
)
def test_a_log_sets_nothing_and_is_not_healthy(line, tmp_path):
    (tmp_path / "job.log").write_text(f"{line}\nrun with NCCL_DEBUG=WARN for details\n")
    document = json.loads(run(str(tmp_path / "job.log"), "--json").stdout)
    assert (document["verdict"], document["settings"]) == ("unknown", {"job.log": {}})


def test_a_long_line_of_pairs_takes_time_as_it_is_long() -> None:
    """Each pair looked at the rest of its line: four times the line took sixteen times as long."""
    def took(count: int) -> float:
        began = time.process_time()
        parse("[" + '{"schema": "a", "step": "b", "facts": {}},' * count + "]")
        return time.process_time() - began

    assert took(4000) < 9 * max(took(1000), 0.02)


@pytest.mark.parametrize(("lines", "of_all"), [
    (["NCCL_DEBUG=INFO"], ""), (["NCCL_DEBUG=LOUD"], ""),
    (["NCCL_DEBUG=LOUD", "NCCL_IB_TIMOUT=22"], "(1 of 2 faults and warnings)"),
    (["NCCL_DEBUG=LOUD", "NCCL_IB_TIMOUT=22", "NCCL_P2P_LEVEL=NVLINK", "NCCL_ASYNC_ERROR_HANDLING=1"], "(1 of 3 faults and warnings)")])
def test_a_sentence_comes_first_and_counts_the_rest(tmp_path, lines, of_all):
    (tmp_path / "job.env").write_text("".join(f"{line}\n" for line in lines))
    shown = run(str(tmp_path / "job.env"), "--html", str(tmp_path / "page.html")).stdout.splitlines()
    document = json.loads(run(str(tmp_path / "job.env"), "--json").stdout)
    first = document["findings"][0]
    assert (
        shown[0] == f"{document['verdict'].capitalize()}: {first['text']} {of_all}".strip()
        and sum(first["text"] in line for line in shown) == 1
    )
    assert shown[-1] == f"verdict: {document['verdict']} (exit code {document['exit_code']})"
    assert of_all in (tmp_path / "page.html").read_text()
    assert document["verdict"] != "healthy" or first["severity"] == "ok", "a note is no headline"
