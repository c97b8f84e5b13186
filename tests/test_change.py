"""The fix of a finding as a diff of the user's own script: only what the remedy says, and nothing where that is not sure."""

from __future__ import annotations

import difflib
import json
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given, settings, strategies as st
from nccl_runbook.causes.causes import causes
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.environment.change import changed, diff_of
from nccl_runbook.environment.read_file import assigned
from processes import quickest_s
from test_env import FORMS, ROOT
from warm_cli import read_cli

SCRIPT = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
# export NCCL_P2P_DISABLE=1
export API_TOKEN=0123456789abcdef0123456789abcdef01234567
export NCCL_SOCKET_IFNAME=lo
if [ "$X" = 1 ]; then
  export NCCL_IB_DISABLE=1
fi
echo "NCCL_NVLS_ENABLE=1"
srun \\
  torchrun --nnodes 2 --nproc-per-node 8 train.py
"""


def edits(old: str, new: str) -> list[str]:
    return [row for row in difflib.ndiff(old.splitlines(), new.splitlines()) if row[0] in "+-"]


def run(*arguments: str | Path) -> str:
    return read_cli(*arguments).stdout


def finding(name: str, *lines: str) -> Finding:
    return Finding("x", Severity.BROKEN, "x", (Evidence("x", f"roles.train.variables.{name}"),), (Remedy("you", "x", lines),))


@pytest.mark.parametrize(
    ("text", "name", "value", "expected"),
    [
        (SCRIPT, "NCCL_SOCKET_IFNAME", None, ["- export NCCL_SOCKET_IFNAME=lo", "+ unset NCCL_SOCKET_IFNAME"]),
        (SCRIPT, "NCCL_IB_DISABLE", None, ["-   export NCCL_IB_DISABLE=1", "+   unset NCCL_IB_DISABLE"]),  # an empty block is an error
        (SCRIPT, "NCCL_IB_DISABLE", "0", ["-   export NCCL_IB_DISABLE=1", "+   export NCCL_IB_DISABLE=0"]),
        (
            "export NCCL_SOCKET_IFNAME=eth0,eth1 A=1\n",
            "NCCL_SOCKET_IFNAME",
            None,
            ["- export NCCL_SOCKET_IFNAME=eth0,eth1 A=1", "+ export A=1"],
        ),
        ("NCCL_DEBUG=INFO torchrun t.py\n", "NCCL_DEBUG", None, ["- NCCL_DEBUG=INFO torchrun t.py", "+ torchrun t.py"]),
        ("export NCCL_DEBUG=INFO  # loud\n", "NCCL_DEBUG", None, ["- export NCCL_DEBUG=INFO  # loud", "+ unset NCCL_DEBUG  # loud"]),
        (
            "docker run -e NCCL_DEBUG=INFO image\n",
            "NCCL_DEBUG",
            "WARN",
            ["- docker run -e NCCL_DEBUG=INFO image", "+ docker run -e NCCL_DEBUG=WARN image"],
        ),
        ("docker run -e NCCL_DEBUG=INFO image\n", "NCCL_DEBUG", None, []),  # -e would be left
        ("export NCCL_DEBUG=INFO && srun x\n", "NCCL_DEBUG", None, []),  # export alone prints every variable
        ("NCCL_DEBUG=INFO & wait\n", "NCCL_DEBUG", None, []),
        ("export NCCL_DEBUG=$(a b)\n", "NCCL_DEBUG", "WARN", []),
        ("A=1 \\\nNCCL_DEBUG=INFO\nsrun x\n", "NCCL_DEBUG", None, []),  # the next command would get A
        ("for x in 1; do\nNCCL_DEBUG=INFO\ndone\n", "NCCL_DEBUG", None, []),
        ('A=1  # was NCCL_DEBUG=INFO\necho "NCCL_DEBUG=INFO"\n', "NCCL_DEBUG", "WARN", []),
        ('{"A": "1",\n "NCCL_DEBUG": "INFO"}\n', "NCCL_DEBUG", None, []),  # a comma would be left
    ],
)
def test_only_what_the_remedy_says_is_changed(text, name, value, expected):
    assert sorted(edits(text, changed(text, name, value))) == sorted(expected)


ROWS = st.lists(
    st.sampled_from([*FORMS.values(), "# NCCL_DEBUG=INFO", "echo NCCL_DEBUG=INFO", "  ", "torchrun t.py \\", "é\r"]), max_size=6
)


@settings(max_examples=150, deadline=None)
@given(rows=ROWS, value=st.sampled_from([None, "WARN"]))
def test_a_change_never_sets_anything_else(rows, value):
    text = "\n".join(rows)
    changes = changed(text, "NCCL_DEBUG", value)
    before, after = ({n: v for n, (v, _) in assigned(t).items() if n.isupper() and n != "NCCL_DEBUG"} for t in (text, changes))
    assert before == after
    assert [row for row in changes.splitlines() if row.startswith(("#", "echo"))] == [
        row for row in text.splitlines() if row.startswith(("#", "echo"))
    ]


@pytest.mark.parametrize("value", [None, "WARN"])
@pytest.mark.parametrize(
    "end", ["", " # loud", " && true", " & wait", "; true", " | cat", " > /dev/null", " A=1", " true", " \\\ntrue", "\r"]
)
@pytest.mark.parametrize("start", ["", "export ", "  export ", "A=1 \\\n", "if true; then\n  export ", "declare -x ", "export B=2 "])
def test_the_shell_takes_what_it_took_and_the_variable_is_as_told(start, end, value):
    text = f"{start}NCCL_DEBUG=INFO{end}\n" + "fi\n" * ("then" in start)
    new = changed(text, "NCCL_DEBUG", value)

    def told(script: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-c", script.replace("\r", "") + 'printf %s "[${NCCL_DEBUG-none}$A$B]"'], capture_output=True, text=True
        )
        return done.returncode, done.stdout

    code, said = told(text)
    if new != text:
        assert told(new)[0] == code
        assert told(new)[1] == said.replace("INFO", value or "none") and len(told(new)[1]) < 100


def test_a_diff_is_shown_where_the_file_then_says_what_the_remedy_says(tmp_path):
    script, docker = tmp_path / "train.sh", tmp_path / "docker.sh"
    script.write_text(SCRIPT)
    docker.write_text("docker run -e NCCL_IB_DISABLE=1 image\n")
    paths = [str(tmp_path / "none"), str(docker), str(script)]
    assert "-  export NCCL_IB_DISABLE=1" in diff_of(finding("NCCL_IB_DISABLE", "unset NCCL_IB_DISABLE"), paths)
    assert diff_of(finding("NCCL_IB_DISABLE", "unset NCCL_IB_DISABLE"), paths[:2]) == ""
    assert diff_of(finding("NCCL_P2P_DISABLE", "unset NCCL_P2P_DISABLE"), paths) == ""  # only a comment
    assert diff_of(finding("NCCL_IB_DISABLE", "unset NCCL_P2P_DISABLE"), paths) == ""
    assert diff_of(finding("NCCL_IB_DISABLE", "nccl-runbook env"), paths) == ""
    assert diff_of(None, paths) == ""


PAIRS = """apiVersion: v1
kind: Pod
spec:
  containers:
  - name: train
    env:
    - name: NCCL_SOCKET_IFNAME
      value: "rail7"
    - name: NCCL_DEBUG
      value: INFO
    - name: OTHER
      valueFrom: {secretKeyRef: {name: a, key: b}}
"""


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("NCCL_SOCKET_IFNAME", None, ["-     - name: NCCL_SOCKET_IFNAME", '-       value: "rail7"']),
        ("NCCL_DEBUG", "WARN", ["-       value: INFO", '+       value: "WARN"']),
        ("OTHER", None, []),
        ("NCCL_DEBU", None, []),
    ],
)
def test_a_pair_of_kubernetes_is_changed_as_a_whole(name, value, expected):
    after = changed(PAIRS, name, value)
    assert sorted(row for row in edits(PAIRS, after)) == sorted(expected)
    assert set(yaml.safe_load(after)["spec"]["containers"][0]) == {"name", "env"}


RAY = 'runtime_env:\n  env_vars:\n    NCCL_P2P_DISABLE: "1"  # old\n    NCCL_DEBUG: INFO\n'
COMPOSE = "services:\n  t:\n    environment:\n      - A=1\n      - NCCL_P2P_DISABLE=1\n    image: x\n"
BRACES = 'env:\n- {name: A, value: "1"}\n- {name: NCCL_P2P_DISABLE, value: "1"}\n'
PYTHON = 'import os\nif x:\n    os.environ["NCCL_P2P_DISABLE"] = "1"\n'


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        (RAY, None, ['-     NCCL_P2P_DISABLE: "1"  # old']),
        (RAY, "0", ['-     NCCL_P2P_DISABLE: "1"  # old', '+     NCCL_P2P_DISABLE: "0"']),
        (RAY.replace("    NCCL_DEBUG: INFO\n", ""), None, []),  # env_vars would be empty
        (RAY.replace('"1"', "&a '1'"), None, []),
        (COMPOSE, None, ["-       - NCCL_P2P_DISABLE=1"]),
        (COMPOSE.replace("      - A=1\n", ""), None, []),
        (COMPOSE, "0", ["-       - NCCL_P2P_DISABLE=1", "+       - NCCL_P2P_DISABLE=0"]),
        (COMPOSE.replace("NCCL_P2P_DISABLE=1", '"NCCL_P2P_DISABLE=1"'), "0", None),
        (BRACES, None, ['- - {name: NCCL_P2P_DISABLE, value: "1"}']),
        (BRACES, "0", None),
        (PYTHON, None, ['-     os.environ["NCCL_P2P_DISABLE"] = "1"', '+     os.environ.pop("NCCL_P2P_DISABLE", None)']),
        (PYTHON, "0", ['-     os.environ["NCCL_P2P_DISABLE"] = "1"', '+     os.environ["NCCL_P2P_DISABLE"] = "0"']),
        (PYTHON.replace('"1"', "str(x)"), "0", []),
        ('env = {\n    "A": "1",\n    "NCCL_P2P_DISABLE": "1",\n}\n', None, []),
    ],
)
def test_yaml_and_python_are_changed_where_the_place_is_certain(text, value, expected):
    after = changed(text, "NCCL_P2P_DISABLE", value)
    rows = edits(text, after)
    assert sorted(rows) == sorted(expected) if expected is not None else [row[0] for row in rows] == ["-", "+"]
    assert expected == [] or assigned(after).get("NCCL_P2P_DISABLE", (None,))[0] == value
    if "import" in text:
        compile(after, "x", "exec")
    elif "{\n" not in text:
        assert type(yaml.safe_load(after)) is type(yaml.safe_load(text))


@pytest.mark.parametrize(("file", "text"), [("job.yaml", RAY), ("compose.yml", COMPOSE), ("pod.yaml", BRACES), ("t.py", PYTHON)])
def test_a_configuration_gets_its_diff(tmp_path, file, text):
    (tmp_path / file).write_text(text)
    assert json.loads(run("diagnose", tmp_path / file, "--json"))["fix_diff"].count("\n-") >= 1
    assert (tmp_path / file).read_text() == text


def nulls(part: object) -> int:
    """How many values of loaded YAML or JSON are empty."""
    inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return (part in (None, {}, [])) + sum(map(nulls, inner))


PAIR = '- name: NCCL_P2P_DISABLE\n  value: "1"\n'


@pytest.mark.parametrize(
    ("text", "is_changed"),
    [
        ('{"env": {\n  "A": "1",\n  "NCCL_P2P_DISABLE": "1"\n}}\n', False),  # a comma would be left
        ('{"env": {\n"NCCL_P2P_DISABLE": "1"\n}}\n', False),
        ('{\n"env": {\n"NCCL_P2P_DISABLE": "1"\n}}\n', False),
        ("environment:\n- NCCL_P2P_DISABLE=1\ncommand: x\n", False),
        ("command: x\nenvironment:\n- NCCL_P2P_DISABLE=1\n---\na: 1\n", False),
        ("environment:\n- NCCL_P2P_DISABLE=1\n- A=1\ncommand: x\n", True),
        ("environment:\n- A=1\n- NCCL_P2P_DISABLE=1\ncommand: x\n", True),
        ('env:\n- {name: NCCL_P2P_DISABLE, value: "1"}\ncommand: x\n', False),
        ("env:\n" + PAIR + "command: x\n", False),
        ("env:\n  " + PAIR.replace("\n ", "\n   ") + "command: x\n", False),
        ("a:\n- env:\n  " + PAIR.replace("\n ", "\n   ") + "  command: x\n", False),
        ("env:\n" + PAIR + "- name: A\n  value: x\n", True),
        ("env:\n- name: A\n  value: x\n" + PAIR + "command: x\n", True),
        ("env:\n- name: A\n  value: x\n" + PAIR.replace('"1"', ">-\n    1") + "command: x\n", False),
        ("env:\n- name: A\n  value: x\n" + PAIR.replace('"1"', "|\n    1") + "command: x\n", False),
    ],
)
def test_no_list_or_map_is_left_empty(text, is_changed):
    after = changed(text, "NCCL_P2P_DISABLE", None)
    assert (after != text) == is_changed
    for new in (after, changed(text, "NCCL_P2P_DISABLE", "0")):
        assert sum(map(nulls, yaml.safe_load_all(new))) == 0
        if new.startswith("{"):
            json.loads(new)


@pytest.mark.parametrize("value", [">-\n    1", "|\n    1", "one\n    two"])
def test_a_block_of_text_is_no_value_to_change(value):
    text = "env:\n" + PAIR.replace('"1"', value)
    assert changed(text, "NCCL_P2P_DISABLE", "0") == text


def test_a_file_of_windows_gets_no_diff(tmp_path):
    path = tmp_path / "t.sh"
    path.write_bytes(SCRIPT.replace("\n", "\r\n").encode())
    assert diff_of(finding("NCCL_IB_DISABLE", "unset NCCL_IB_DISABLE"), [str(path)]) == ""


NO_INTERFACE = (
    "n1:7:7 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to rail7\n"
    "n1:7:7 [0] bootstrap.cc:9 NCCL WARN Bootstrap : no socket interface found\n"
)


@pytest.mark.parametrize(
    ("file", "text", "is_changed"),
    [
        ("a.sh", "#!/bin/bash\nexport NCCL_SOCKET_IFNAME=rail7\nsrun python t.py\n", True),
        ("a.yaml", PAIRS, True),
        ("a.sh", "#!/bin/bash\nexport NCCL_SOCKET_IFNAME=rail70\n", False),  # another run's value
        ("a.sh", "#!/bin/bash\nexport GLOO_SOCKET_IFNAME=rail7\n", False),
        ("a.sh", "#!/bin/bash\n# export NCCL_SOCKET_IFNAME=rail7\nsrun python t.py\n", False),
    ],
)
def test_what_a_log_proves_is_changed_in_the_script_beside_it(tmp_path, file, text, is_changed):
    (tmp_path / "job.log").write_text(NO_INTERFACE)
    (tmp_path / file).write_text(text)
    document = json.loads(run("diagnose", tmp_path / "job.log", tmp_path / file, "--json"))
    assert document["lead"]["cause"] == "socket-interface-wrong" and bool(document["fix_diff"]) == is_changed
    assert (tmp_path / file).read_text() == text


@pytest.mark.parametrize("command", ["diagnose", "env"])
def test_the_diff_is_in_the_terminal_the_document_and_the_page(tmp_path, command):
    script, page = tmp_path / "train.sbatch", tmp_path / "page.html"
    script.write_bytes(SCRIPT.encode() + b"# \xff\n")
    before = script.read_bytes()

    answer, shown = run(command, script, "--json", "--html", page), run(command, script)
    document = json.loads(answer)
    jsonschema.validate(document, json.loads((ROOT / f"lib/nccl_runbook/schemas/{command}.json").read_text()))
    for said in (document["fix_diff"], page.read_text(), shown):
        assert "-export NCCL_SOCKET_IFNAME=lo" in said and "0123456789abcdef" not in said
    assert script.read_bytes() == before


@pytest.mark.parametrize(
    "piece",
    [
        " ",
        "\t",
        "\\\n",
        "a ",
        "a=b ",
        "'",
        "docker run ",
        "-e ",
        "NCCL_DEBUG=",
        "NCCL_DEBUG=a ",
        "- name: NCCL_DEBUG\n",
        "exec ",
        "[",
        "${",
    ],
)
def test_no_text_takes_long(piece):
    text = piece * ((1 << 15) // len(piece))
    assert quickest_s(lambda: [changed(text, "NCCL_DEBUG", value) for value in (None, "WARN")], 4.0) < 4.0


def test_a_fix_says_how_to_see_that_it_acts(tmp_path):
    script, page = tmp_path / "train.sbatch", tmp_path / "page.html"
    script.write_text(SCRIPT)
    said = run("diagnose", script, "--html", page)
    verify = causes()["socket-interface-wrong"].verify
    assert verify in said and verify.split("`")[1] in page.read_text()
    of_variables = [
        c for c in causes().values() for _, _, lines in c.remedy for line in lines[:1] if line.startswith(("export NCCL", "unset"))
    ]
    assert {c.id for c in of_variables if not c.verify} <= {"foreign-connection", "collective-on-some-ranks-only"}
