"""`plan` end to end: strings, YAMLs, scripts and folders; the launch lines of other frameworks; the GPUs of this machine."""
from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from fake_nvml import fake_nvml
from hypothesis import given, settings, strategies as st
from nccl_runbook.cli import plan as plan_command
from nccl_runbook.core.facts import Identity, bus_of_message, clashes, normal_bus
from nccl_runbook.plan import judge as rules, read_training_file as training_file
from nccl_runbook.plan.groups import Group, RankAt
from nccl_runbook.scripts.read import read as read_script
from processes import command_s, quickest_s
from warm_cli import read_cli

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = json.loads((ROOT / "lib/nccl_runbook/schemas/plan.json").read_text())
START = (
    "import sys; from nccl_runbook.__main__ import main; sys.argv[0] = 'x'\ntry: main()\nfinally: print(sorted(m for m in sys.modules if m"
    " in ('torch', 'IPython', 'jupyter_client', 'nbformat', 'papermill')), file=sys.stderr)"
)


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LD_LIBRARY_PATH", "FAKE_NVML", "FAKE_NVML_PID")}
    return read_cli("plan", *arguments, env={**clean, "PYTHONPATH": str(ROOT / "lib"), **env})


def plan(*arguments: str, **env: str) -> dict:
    done = run(*arguments, "--json", **env)
    document = json.loads(done.stdout)
    jsonschema.validate(document, SCHEMA)
    assert document["exit_code"] == done.returncode
    return document


# ---- strings -----------------------------------------------------------------------------------------------------------------------

def test_one_gpu_is_refused_before_anything_starts_with_the_ranks_and_the_remedies():
    found = plan("sglang:d1+fsdp:d1", "--gpus", "1")
    assert (found["ok"], found["type"], found["verdict"], found["exit_code"], found["total_gpus"]) == (
        True,
        "DECOUPLED_TRAIN",
        "duplicate",
        3,
        2,
    )
    assert found["components"] == [{"name": None, "backend": b, "world_size": 1, "alloc_size": 1} for b in ("sglang", "fsdp")]
    assert found["groups"][-1] == {
        "name": "weight-update",
        "ranks": [{"rank": 0, "role": "trainer", "gpu": 0}, {"rank": 1, "role": "engine", "gpu": 0}],
    }
    assert found["remedies"][0]["lines"][0] == "actor.weight_update_mode=disk" and found["remedies"][1]["lines"] == [
        "#SBATCH --gpus-per-node=2"
    ]


@pytest.mark.parametrize("text, error", [("fsdp:d=4", "ValueError"), ("sglang:d1\n+ fsdp:d1", None), ("fsdp:d--1", "ValueError")])
def test_one_argument_without_flags_is_an_allocation_whatever_stands_in_it(text, error):
    assert plan(text, "--gpus", "2")["error"] == error


def test_what_another_era_reads_is_refused_with_that_era_and_the_way_to_write_it():
    found = plan("sglang.d1p1t1+d1p1t1", "--gpus", "2", "--areal", "v1.0.4")
    assert (found["ok"], found["error"], found["verdict"], found["components"]) == (False, "ValueError", None, [])
    assert "v0.3.2 to v0.4.0" in found["evidence"][1] and found["remedies"][0]["lines"] == ["sglang:d1p1t1+fsdp:d1p1t1"]
    assert plan("sglang.d1p1t1+d1p1t1", "--gpus", "2", "--areal", "v0.4.0")["verdict"] == "clean"


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["sglang:d1+fsdp:d1"], "Add --gpus 8"),
        (["sglang:d1", "--gpus", "1", "--areal", "v0.2.0"], "older than v0.3.2"),
        (["x", "--gpus", "1", "--launcher", "k8s"], "--launcher must be one of"),
        (["nowhere.yaml", "--gpus", "1"], "there is no file"),
        (["sglang:d1", "--gpus", "-1"], "gpus"),
        (["python train.py --lr 1", "--gpus", "1"], "no known allocation"),
        (["a" * 5000 + ".yaml", "--gpus", "1"], "there is no file"),
        (["sglang:d1", "--gpus", "99999999"], "at most 1024"),
        ([""], "is empty"),
        ([" \n"], "is empty"),
        (["accelerate launch --num_processes $N t.py --use_vllm true", "--gpus", "1"], "num_processes is '$N t.py'"),
    ],
)
def test_wrong_usage_is_one_sentence(arguments, sentence):
    done = run(*arguments)
    assert done.returncode == 2 and sentence in done.stderr and "Traceback" not in done.stderr


def test_the_answer_comes_at_once_and_without_torch_or_jupyter():
    command = [sys.executable, "-c", START, "plan", "sglang:d1+fsdp:d1", "--gpus", "1", "--json"]
    took, done = command_s(command, 0.5, env={**os.environ, "PYTHONPATH": str(ROOT / "lib")})
    assert done.returncode == 3 and done.stderr.strip() == "[]"
    assert took < 0.5


def test_the_page_has_every_rank_and_runs_nothing_of_the_string(tmp_path):
    nasty = "<script>alert(1)</script>+sglang:d1"
    run("sglang:d1+fsdp:d1", "--gpus", "1", "--html", str(tmp_path / "a.html"))
    run(nasty, "--gpus", "1", "--html", str(tmp_path / "b.html"))
    page = (tmp_path / "a.html").read_text()
    assert (
        "0 trainer, 1 engine" in page
        and "actor.weight_update_mode=disk" in page
        and "<script" not in page + (tmp_path / "b.html").read_text()
    )
    assert run("sglang:d1", "--gpus", "1", "--html", str(tmp_path / "a.html" / "b.html")).returncode == 2


# ---- files -------------------------------------------------------------------------------------------------------------------------

OLD = (
    "experiment_name: x\ncluster: {n_nodes: 1, n_gpus_per_node: 4}\nallocation_mode: sglang:d4+fsdp:d4\nactor:\n  weight_update_mode:"
    " MODE\n"
)
NEW = """
cluster: {n_nodes: 1, n_gpus_per_node: GPUS}
rollout: {backend: "sglang:d2"}
actor: {backend: "fsdp:d2", kl_ctl: KL}
ref: {backend: "${actor.backend}", scheduling_strategy: {type: colocation, target: actor}}
"""


@pytest.mark.parametrize(
    "mode, tag, verdict", [("xccl", "v1.0.0", "duplicate"), ("disk", "v1.0.0", "oversubscribed"), ("disk", "v0.4.0", "duplicate")]
)
def test_a_yaml_is_read_with_its_gpus_and_its_update_where_the_tag_heeds_it(tmp_path, mode, tag, verdict):
    (tmp_path / "t.yaml").write_text(OLD.replace("MODE", mode))
    found = plan(str(tmp_path / "t.yaml"), "--areal", tag)
    assert (found["gpus"], found["verdict"], found["launcher"]) == (4, verdict, "local")
    assert any("never reads it" in e for e in found["evidence"]) == (mode == "disk" and tag == "v0.4.0")


@pytest.mark.parametrize("gpus, kl, verdict, groups", [(4, "0.1", "clean", 4), (4, "0.0", "clean", 3), (2, "0.1", "duplicate", 4)])
def test_backends_by_role_are_placed_as_the_controller_does(tmp_path, gpus, kl, verdict, groups):
    (tmp_path / "t.yaml").write_text(NEW.replace("GPUS", str(gpus)).replace("KL", kl))
    found = plan(str(tmp_path / "t.yaml"))
    assert (found["verdict"], found["launcher"], len(found["groups"])) == (verdict, "single-controller", groups)
    assert [c["name"] for c in found["components"]] == ["rollout", "actor", "ref"][:groups - 1] and found["total_gpus"] == 4


def test_the_gpus_of_a_second_node_have_its_name():
    said = run("sglang:d4+fsdp:d4", "--gpus", "4", "--nodes", "2", "--launcher", "ray").stdout
    assert "node 0 GPU 3" in said and "node 1 GPU 0" in said and "GPU 4" not in said
    assert "node" not in run("sglang:d2+fsdp:d2", "--gpus", "4").stdout.splitlines()[3]


def test_what_belongs_on_the_command_line_is_apart_from_what_belongs_in_a_file():
    by_script, started, *_ = plan("sglang:d1+fsdp:d1", "--gpus", "1", "--areal", "v0.4.0")["remedies"]
    assert "gsm8k_grpo.py:" in by_script["text"] and all(line[0] in "-+" for line in by_script["lines"])
    assert [line.partition(" ")[0] for line in started["lines"]] == ["sglang.mem_fraction_static=0.3"]


def test_a_folder_is_one_table_and_names_what_it_left_out(tmp_path):
    (tmp_path / "a.yaml").write_text(OLD)  # its weight_update_mode, MODE, is none
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.yml").write_text(OLD.replace("fsdp:d4", "fsdp:d2").replace("sglang:d4", "sglang:d2"))
    (tmp_path / "c.yaml").write_text("a: 1\n")
    (tmp_path / "d.yaml").write_text("a: [\n")
    found = plan(str(tmp_path), "--areal", "v1.0.0")
    assert [(p["file"], p["verdict"]) for p in found["plans"]] == [("a.yaml", "duplicate"), ("deep/b.yml", "clean")]
    assert [line.partition(":")[0] for line in found["left_out"]] == ["c.yaml", "d.yaml"] and "line 2" in found["left_out"][1]
    run(str(tmp_path), "--areal", "v1.0.0", "--html", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert (
        "1 of 2 allocations healthy, 1 file not read</h1>" in page
        and "a.yaml: trainer and engine share one GPU" in page
        and "c.yaml" in page
        and "not read" in page
    )
    text = run(str(tmp_path), "--areal", "v1.0.0")
    assert (
        "verdict: broken (exit code 3)" in text.stdout
        and any("is MODE" in e for e in found["plans"][0]["evidence"])
        and text.returncode == 3
    )
    assert run(str(tmp_path / "deep"), "--areal", "v1.0.0").returncode == 0


def test_what_could_not_be_read_is_not_clean_and_the_files_of_others_are(tmp_path):
    (tmp_path / "a.yaml").write_text(OLD.replace("fsdp:d4", "fsdp:d2").replace("sglang:d4", "sglang:d2"))
    (tmp_path / "b.yaml").write_text("jobs: 1\n")
    assert run(str(tmp_path), "--areal", "v1.0.0").returncode == 0
    (tmp_path / "c.yaml").symlink_to("nowhere.yaml")
    done = run(str(tmp_path), "--areal", "v1.0.0")
    assert (
        done.returncode == 4
        and "verdict: unknown (exit code 4): 1 of 1 allocation healthy, 1 file not read" in done.stdout
        and "not read: c.yaml" in done.stdout
    )
    assert plan(str(tmp_path), "--areal", "v1.0.0")["exit_code"] == 4
    assert "passed over: b.yaml: no known allocation" in done.stdout and done.stdout.count("not read: ") == 1, "as many as the verdict says"
    os.mkfifo(tmp_path / "p.yaml")
    assert run(str(tmp_path / "p.yaml")).stderr.startswith("nccl-runbook: p.yaml: it is not a regular file"), "named once"
    assert "not read: p.yaml: it is not a regular file" in run(str(tmp_path), "--areal", "v1.0.0").stdout


def test_a_folder_that_may_not_be_entered_is_named_and_is_not_clean(tmp_path, capsys):
    for name in ("open", "shut", "named"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.yaml").write_text(OLD.replace("fsdp:d4", "fsdp:d2").replace("sglang:d4", "sglang:d2"))
        (tmp_path / name / "a.yaml").chmod(0o644)
        (tmp_path / name).chmod(0o755)
    answers = [_answer(tmp_path, capsys)]
    (tmp_path / "shut").chmod(0o101)  # may be entered, but not listed
    (tmp_path / "named").chmod(0o404)  # listed, but nothing in it may be opened
    closed = [
        (p, p.stat().st_mode) for p in (tmp_path, *tmp_path.parents) if p.stat().st_uid == os.getuid() and p.stat().st_mode & 0o055 != 0o055
    ]
    try:
        for folder, mode in closed:
            folder.chmod(mode | 0o055)
        with _as_nobody():
            answers += [_answer(tmp_path, capsys), _answer(tmp_path / "shut", capsys)]
    finally:
        for folder, mode in [(tmp_path / "shut", 0o700), (tmp_path / "named", 0o700), *closed]:
            folder.chmod(mode)
    assert answers[0][0] == 0 and "verdict: healthy (exit code 0): 3 of 3 allocations healthy" in answers[0][1]
    code, said = answers[1]
    assert code == 4 and "not read: shut: it is not readable" in said and "2 files not read" in said
    assert re.search(r"not read: named(/a\.yaml)?: it is not readable", said), "kernels differ in what they list there"
    assert answers[2] == (2, "nccl-runbook: shut: it is not readable for this user\n")


def _answer(target: Path, capsys) -> tuple[int, str]:
    """In this process: another user may not read the interpreter's own files."""
    with pytest.raises(SystemExit) as ended:
        plan_command.plan(str(target), 0, "v1.0.0", "", 0, "", False, False, None)
    return ended.value.code, "".join(capsys.readouterr())


@contextlib.contextmanager
def _as_nobody():
    """No folder is closed to root."""
    if os.getuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_command_line_overrides_the_yaml_that_it_names(tmp_path):
    (tmp_path / "t.yaml").write_text(OLD)
    (tmp_path / "go.sh").write_text("#!/bin/bash\n#SBATCH --gpus=2\npython3 -m areal.launcher.local train.py \\\n  --config t.yaml \\\n"
                                    "  allocation_mode=sglang:d1+fsdp:d1 cluster.n_gpus_per_node=2  # ours\n")
    found = plan(str(tmp_path / "go.sh"), "--areal", "v1.0.0")
    assert (found["allocation"], found["gpus"], found["verdict"]) == ("sglang:d1+fsdp:d1", 2, "clean")


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]",
        "x: !!python/object/apply:os.system [touch OWNED]",
        "{" * 5000,
        "[" * 20000,
        "a: " + "9" * 10000,
        "? [x]\n: 1",
        "&a " * 2000,
        "- 1",
        "\x00",
        "a: *b",
        "allocation_mode: [1, 2]",
    ],
)
def test_a_hostile_yaml_is_a_reason_or_nothing_and_runs_nothing(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(ValueError):
        found = training_file.read(text)
        assert (found.mode, found.backends) == ("", {})
    assert list(tmp_path.iterdir()) == []


def test_a_bomb_of_aliases_is_read_in_no_time():
    bomb = "a0: &a0 {k: v}\n" + "".join(f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}}}\n" for i in range(1, 30))
    assert training_file.read(bomb).mode == "" and quickest_s(lambda: training_file.read(bomb), 2) < 2


def test_a_bomb_of_wide_maps_is_read_in_no_time():
    bomb = "a0: &a0 {}\n" + "".join(f"a{i}: &a{i} {{{', '.join(f'k{j}: *a{i - 1}' for j in range(6))}}}\n" for i in range(1, 30))
    assert quickest_s(lambda: training_file.read(bomb), 1.5) < 1.5


@pytest.mark.parametrize("nested", ["[" * 100_000, "{a: " * 60_000, "- " * 100_000, "a: " + "[" * 100_000 + "]" * 100_000])
def test_a_file_nested_without_end_is_named_and_costs_its_folder_nothing(nested, tmp_path):
    """libyaml builds by recursion and ends the whole process there."""
    (tmp_path / "a.yaml").write_text(nested)
    (tmp_path / "b.yaml").write_text(OLD)
    done = run(str(tmp_path), "--json")
    told = json.loads(done.stdout)
    assert [p["file"] for p in told["plans"]] == ["b.yaml"], done.stderr
    assert [line.partition(":")[0] for line in told["left_out"]] == ["a.yaml"]


def test_an_allocation_that_is_a_reference_to_elsewhere_is_not_said_to_be_refused(tmp_path):
    (tmp_path / "t.yaml").write_text("allocation_mode: ${oc.env:MODE,sglang:d1+fsdp:d1}\ncluster: {n_gpus_per_node: 2}\n")
    done = run(str(tmp_path / "t.yaml"))
    assert done.returncode == 2 and "not resolved in this file" in done.stderr and done.stdout == ""


def test_a_bomb_of_merges_is_read_in_no_time():
    bomb = "a0: &a0 {k: v}\n" + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 8)}]}}\n" for i in range(1, 7))
    assert quickest_s(lambda: training_file.read(bomb + OLD), 0.5) < 0.5


def test_what_is_merged_holds_where_nothing_else_is_said():
    found = training_file.read("one: &one {n_gpus_per_node: 2, n_nodes: 3}\ntwo: &two {n_gpus_per_node: 5, other: 7}\nnothing: null\n"
                               "cluster: {n_nodes: 4, <<: [*one, *two]}\nnot: &not {cluster: {n_nodes: 9}}\n<<: *not\n")
    assert (found.gpus, found.nodes, found.flat["cluster.other"]) == (2, 4, "7") and "nothing" not in found.flat


def wide(levels: int, keys: int) -> str:
    empty = f"b0: &b0 {{{','.join(f'k{j}: ' for j in range(keys))}}}\n"
    return empty + "".join(f"b{i}: &b{i} {{{','.join(f'k{j}: *b{i - 1}' for j in range(keys))}}}\n" for i in range(1, levels))


@pytest.mark.parametrize("bomb", [wide(1, 12_000) + f"<<: [{','.join(['*b0'] * 5000)}]\n", wide(8, 2000)], ids=["merged", "nested"])
def test_a_bomb_of_maps_that_say_nothing_is_read_in_no_time(bomb):
    """Each of 5,000 visits once looked at thousands of empty values: 40 s of CPU for 112 kB."""
    assert quickest_s(lambda: training_file.read(bomb), 2) < 2


def test_what_is_said_nearer_replaces_what_is_merged_whole():
    """As YAML merges: a map or null in the place of another map or value leaves nothing of it."""
    flat = training_file.read("base: &base {share: {type: colocation, target: actor}, size: 5}\n"
                              "role: {<<: *base, share: {type: separation}, size: null}\nodd: {<<: word, size: 1}\n").flat
    assert {n: v for n, v in flat.items() if not n.startswith("base")} == {"role.share.type": "separation", "odd.size": "1"}


def test_references_that_multiply_are_cut():
    """100 references to itself, four levels deep, would be 100 million copies."""
    assert len(training_file.read("allocation_mode: " + "${allocation_mode}" * 100).mode) <= 2000


def test_secrets_of_a_file_are_not_printed(tmp_path):
    (tmp_path / "t.yaml").write_text(OLD.replace("sglang:d4", "sglang:hf_abcdefghijklmnopqrstuvwxyz0123456789"))
    done = run(str(tmp_path / "t.yaml"), "--json")
    assert "hf_abcdefghijklmnop" not in done.stdout + done.stderr and done.returncode == 3


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200))
def test_no_text_breaks_the_readers(text):
    with contextlib.suppress(ValueError):
        assert isinstance(training_file.read(text).flat, dict)
    assert all(isinstance(c.text, str) for c in read_script(text).commands)
    script = read_script("#SBATCH --nodes=" + "9" * 5000 + "\n" + text + "\nsrun -N 2 bash -c '\n" + text)
    assert 0 <= script.nodes <= 99_999 and script.spread >= script.nodes


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.from_regex(r"[a-z][a-z_]{0,9}", fullmatch=True), st.integers(0, 99), max_size=6))
def test_flags_are_read_however_they_are_written(flags):
    spaced = " ".join(f"--{n} {v}" for n, v in flags.items())
    equals = " \\\n".join(f"--{n.replace('_', '-')}={v}" for n, v in flags.items())
    wanted = {n.strip("-"): (str(v),) for n, v in flags.items()}
    for form in (
        f"python t.py {spaced}",
        f"X=1 python t.py {equals}",
        "V=7\npython t.py " + " ".join(f"--{n}={v}" for n, v in flags.items()),
    ):
        assert {n.strip("-"): v for c in read_script(form).commands for n, v in c.flags.items()} == wanted


# ---- other frameworks --------------------------------------------------------------------------------------------------------------

SERVE = (
    "CUDA_VISIBLE_DEVICES={} trl vllm-serve --tensor-parallel-size 1 &\nexport CUDA_VISIBLE_DEVICES={}\naccelerate launch --num_processes"
    " {} t.py --use_vllm true --vllm_mode server\n"
)
RAY = (
    "python3 -m openrlhf.cli.train_ppo_ray --advantage_estimator reinforce --actor_num_gpus_per_node 4 --ref_num_gpus_per_node 4"
    " --vllm_num_engines 2 --vllm_tensor_parallel_size 2 "
)
DOTS = (
    "python3 -m openrlhf.cli.train_ppo_ray --algo.advantage.estimator reinforce --actor.num_gpus_per_node 4 --ref.num_gpus_per_node 4"
    " --vllm.num_engines 2 --vllm.tensor_parallel_size 2 "
)


@pytest.mark.parametrize(
    "text, gpus, framework, verdict, update",
    [
        (SERVE.format(0, "1,2", 2), 3, "trl", "clean", [0, 1]),
        (SERVE.format(0, "0,1", 2), 2, "trl", "duplicate", [0, 0]),
        (SERVE.format(1, "0,1", 2), 2, "trl", "oversubscribed", [1, 0]),
        (SERVE.format(0, "1", 2), 2, "trl", "zero-visible", [0, 1]),
        ("accelerate launch --num_processes 2 t.py --use_vllm true --vllm_mode colocate", 2, "trl", "clean", []),
        (SERVE.format(0, "7", 1), 2, "trl", "zero-visible", []),
        (SERVE.format(0, "1,1", 1), 2, "trl", "zero-visible", []),
        (SERVE.format(9, "0", 1), 2, "trl", "zero-visible", []),
        (RAY + "--colocate_all_models", 4, "openrlhf", "clean", []),
        (RAY, 12, "openrlhf", "clean", [0, 8, 9, 10, 11]),
        (RAY, 8, "openrlhf", "oversubscribed", [0, None, None, None, None]),
        (RAY + "--colocate_actor_ref", 8, "openrlhf", "clean", [0, 4, 5, 6, 7]),
        (RAY + "--colocate_all_models --async_train", 4, "openrlhf", "oversubscribed", [0, None, None, None, None]),
        (DOTS + "--train.colocate_all", 4, "openrlhf", "clean", []),
        (DOTS + "--vllm.sync_backend gloo --vllm.sync_with_ray", 12, "openrlhf", "clean", []),
        (DOTS + "--vllm.sync_backend gloo", 12, "openrlhf", "clean", [0, 8, 9, 10, 11]),
        (RAY + "--colocate_all_models --vllm_sync_backend gloo", 4, "openrlhf", "duplicate", [0, 0, 1, 2, 3]),
        (RAY + "--colocate_all_models --vllm_sync_backend gloo --vllm_sync_with_ray", 4, "openrlhf", "clean", []),
        (RAY + "--vllm_sync_backend gloo", 12, "openrlhf", "clean", [0, 8, 9, 10, 11]),
        (DOTS + "--train.colocate_all --vllm.sync_backend gloo", 4, "openrlhf", "duplicate", [0, 0, 1, 2, 3]),
        (DOTS + "--train.colocate_all --vllm.sync_backend gloo --vllm.sync_with_ray", 4, "openrlhf", "clean", []),
        (
            "python open_instruct/grpo_fast.py --num_learners_per_node 1 --vllm_num_engines 1 --single_gpu_mode",
            1,
            "open-instruct",
            "clean",
            [],
        ),
        (
            "python open_instruct/grpo_fast.py --num_learners_per_node 6 2 --vllm_num_engines 4",
            12,
            "open-instruct",
            "clean",
            [0, 8, 9, 10, 11],
        ),
        (
            "python open_instruct/grpo_fast.py --num_learners_per_node 1 --vllm_num_engines 1",
            1,
            "open-instruct",
            "oversubscribed",
            [0, None],
        ),
        (
            "python3 -m verl_tool.trainer.main_ppo trainer.n_gpus_per_node=4 actor_rollout_ref.rollout.tensor_model_parallel_size=2",
            4,
            "verl",
            "clean",
            [],
        ),
        (
            "python3 -m verl.trainer.main config=a.yaml worker.rollout.tensor_parallel_size=4 trainer.n_gpus_per_node=4",
            4,
            "verl",
            "clean",
            [],
        ),
        (
            "python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=4 actor_rollout_ref.rollout.tensor_model_parallel_size=2",
            4,
            "verl",
            "clean",
            [],
        ),
        (
            "python3 -m recipe.one_step_off_policy.main_ppo trainer.n_gpus_per_node=2 rollout.n_gpus_per_node=2",
            4,
            "verl",
            "clean",
            [0, 2, 3],
        ),
    ],
)
def test_the_flags_that_decide_groups_are_read_as_the_frameworks_do(text, gpus, framework, verdict, update, tmp_path):
    (tmp_path / "go.sbatch").write_text("#!/bin/bash\nset -e\n" + text)
    found = plan(str(tmp_path / "go.sbatch"), "--gpus", str(gpus))
    assert (found["framework"], found["verdict"]) == (framework, verdict)
    assert [r["gpu"] for g in found["groups"] if g["name"] == "weight-update" for r in g["ranks"]] == update
    assert bool(found["remedies"]) == (verdict != "clean")


@pytest.mark.parametrize("value, ranks", [("0.01", 12), ("1e-3", 12), ("0", 8), ("0.0", 8), ("bla", 0), ("", 0), ("inf", 0)])
def test_a_kl_coefficient_decides_on_the_reference_model_and_one_that_is_no_number_is_named(value, ranks):
    line = RAY.replace("--ref_num_gpus_per_node 4", f"--ref_num_gpus_per_node 4 --init_kl_coef {value}")
    if ranks:
        assert plan(line, "--gpus", "12")["total_gpus"] == ranks
    else:
        done = run(line, "--gpus", "12")
        assert done.returncode == 2 and done.stderr.splitlines() == [
            f"nccl-runbook: init_kl_coef is '{value}', which cannot be resolved to a number"
        ]


def test_sizes_that_openrlhf_refuses_are_said_so():
    refused = plan(RAY.replace("--ref_num_gpus_per_node 4", "") + "--colocate_actor_ref", "--gpus", "12")
    assert (refused["verdict"], refused["exit_code"]) == ("refused", 3) and "1x4 must equal 1x8" in refused["remedies"][0]["text"]
    assert any("refuses this" in line and "1x4 must equal 1x8" in line for line in refused["evidence"])
    assert not any("refuses this" in line for line in plan(RAY + "--colocate_actor_ref", "--gpus", "8")["evidence"])


@pytest.mark.parametrize(
    "text, said",
    [
        (RAY + "--colocate_all_models --ref_num_nodes 2 --ref_num_gpus_per_node 2", "1x4 must equal 2x2"),
        (DOTS + "--train.colocate_all --train.async_enable --vllm.enable_sleep", "sleep mode"),
        (
            RAY
            + "--advantage_estimator gae --critic_pretrain x --reward_pretrain y --colocate_critic_reward --critic_num_gpus_per_node 2"
            " --reward_num_gpus_per_node 1",
            "critic and reward",
        ),
        (
            "accelerate launch --num_processes 4 t.py --use_vllm true --vllm_mode colocate --vllm_tensor_parallel_size 3",
            "does not divide 4",
        ),
        ("python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=8 actor_rollout_ref.rollout.data_parallel_size=3", "multiple of 6"),
        ("python3 -m verl.trainer.main trainer.n_gpus_per_node=8 worker.rollout.tensor_parallel_size=3", "multiple of 3"),
        (
            "python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=8 actor_rollout_ref.rollout.pipeline_model_parallel_size=3",
            "multiple of 6",
        ),
    ],
)
def test_what_a_framework_asserts_before_it_starts_is_refused(text, said):
    refused = plan(text, "--gpus", "16")
    assert refused["verdict"] == "refused" and said in refused["evidence"][0], refused["evidence"]


def test_what_it_does_not_assert_is_not_refused():
    shared = (
        "--advantage_estimator gae --critic_pretrain x --reward_pretrain y --colocate_critic_reward --critic_num_gpus_per_node 2"
        " --reward_num_gpus_per_node 2"
    )
    fine = [
        RAY + shared,
        RAY + "--vllm_enable_sleep --async_train",
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.data_parallel_size=4",
    ]
    assert [plan(text, "--gpus", "16")["verdict"] for text in fine] == ["clean"] * 3


def test_a_server_alone_meets_nobody_that_is_known():
    found = plan("trl vllm-serve --tensor-parallel-size 2", "--gpus", "2")
    assert [g["name"] for g in found["groups"]] == ["inference"] and found["verdict"] == "clean" and "not known" in found["evidence"][0]
    assert plan("trl vllm-serve --tensor-parallel-size 4", "--gpus", "2")["verdict"] == "zero-visible"


def test_a_slip_in_a_flag_that_places_ranks_is_named_and_other_flags_are_nobodys_business():
    found = plan(RAY + "--colocate_all_models --vllm_num_engine 2 --micro_train_batch_size_per_gpu 4 --eval_num_gpus 2", "--gpus", "4")
    assert [e.partition(":")[0] for e in found["evidence"] if "not in our table" in e] == ["--vllm_num_engine"]
    assert not any(
        "not known" in e
        for e in plan("python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=8 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4")[
            "evidence"
        ]
    )


ASYNC = (
    "python3 -m verl.experimental.fully_async_policy.fully_async_main trainer.nnodes={} trainer.n_gpus_per_node={} rollout.nnodes={}"
    " rollout.n_gpus_per_node={}"
)
FAST = "python open_instruct/grpo_fast.py --num_learners_per_node {} --vllm_num_engines {}"
SLURM = "#!/bin/bash\n#SBATCH --nodes={}\n#SBATCH --gres=gpu:h100:8\n"


@pytest.mark.parametrize(
    "text, nodes, verdict",
    [
        (ASYNC.format(1, 8, 2, 8), 3, "clean"),
        (ASYNC.format(1, 8, 1, 8), 2, "clean"),
        (ASYNC.format(12, 8, 4, 8), 16, "clean"),
        (ASYNC.format(1, 6, 1, 2), 1, "clean"),
        (ASYNC.format(1, 6, 1, 4), 1, "oversubscribed"),
        (SLURM.format(2) + ASYNC.format(2, 8, 1, 8), 2, "oversubscribed"),
        (SLURM.format(3) + ASYNC.format(2, 8, 1, 8), 3, "clean"),
        (
            SLURM.format(4) + "python3 -m verl.trainer.main_ppo trainer.nnodes=$SLURM_NNODES trainer.n_gpus_per_node=${SLURM_GPUS_ON_NODE}",
            4,
            "clean",
        ),
        ("GPUS=8\nROLL=2\nTRAIN=$((GPUS - ROLL))\n" + ASYNC.format(1, "${TRAIN}", 1, "$ROLL"), 1, "clean"),
        ("python mason.py --num_nodes 2 --gpus 8 -- " + FAST.format(8, 8), 2, "clean"),
        ("python mason.py --num_nodes 1 --gpus 8 -- " + FAST.format(8, 8), 1, "oversubscribed"),
        (FAST.format("8 8", 8), 3, "clean"),
        (FAST.format(8, 8), 1, "oversubscribed"),
        (SLURM.format(2) + FAST.format(8, 8), 2, "clean"),
        (SLURM.format(2) + RAY.replace("node 4", "node 8").replace("reinforce", "gae"), 2, "oversubscribed"),
        (SLURM.format(4) + RAY.replace("node 4", "node 8").replace("reinforce", "gae"), 4, "clean"),
        (
            SLURM.format(2) + 'srun --nodes=1 bash -c \\\n"ray job submit --runtime-env-json=\'{\\"a\\": \\"b\\"}\' \\\n -- ' + RAY + '"',
            2,
            "clean",
        ),
        (SLURM.format(2) + "srun bash -c '\n" + RAY + "\n'\n", 2, "clean"),
    ],
)
def test_the_size_of_a_job_is_what_its_script_says(text, nodes, verdict, tmp_path):
    (tmp_path / "go.sbatch").write_text(text)
    found = plan(str(tmp_path / "go.sbatch"), "--gpus", "8")
    assert (found["verdict"], f" on {8 * nodes} GPUs" in found["sentence"]) == (verdict, True), found["sentence"]



def test_defaults_alone_are_no_plan():
    done = run("python3 -m openrlhf.cli.train_ppo_ray --config_of_mine x", "--gpus", "8")
    assert (done.returncode, done.stdout) == (2, "") and "openrlhf" in done.stderr


def test_a_critic_that_nobody_named_needs_gpus():
    line = RAY.replace("reinforce", "gae") + "--critic_num_gpus_per_node 4 "
    assert [c["name"] for c in plan(line, "--gpus", "16")["components"]] == ["actor", "ref", "critic", "vllm"]
    assert (
        plan(line, "--gpus", "12")["verdict"] == "oversubscribed"
        and plan(line.replace("gae", "rloo"), "--gpus", "12")["verdict"] == "clean"
    )


@pytest.mark.parametrize(
    "text, gpus, ranks, verdict",
    [
        (
            "CUDA_VISIBLE_DEVICES=0 trl vllm-serve &\nCUDA_VISIBLE_DEVICES=1,2,3 accelerate launch t.py --use_vllm true --vllm_mode server",
            4,
            3,
            "clean",
        ),
        ("accelerate launch t.py --use_vllm true --vllm_mode colocate", 4, 4, "clean"),
        ("python t.py --use_vllm true --vllm_mode colocate", 4, 1, "clean"),
        ("torchrun --nproc_per_node 8 --nnodes 2 t.py --use_vllm true --vllm_mode colocate", 8, 8, "clean"),
        ("accelerate launch --num_machines 2 --num_processes 16 t.py --use_vllm true --vllm_mode colocate", 8, 8, "clean"),
        ("accelerate launch --config_file two.yaml t.py --use_vllm true --vllm_mode colocate", 2, 2, "clean"),
        (
            (
                "#SBATCH --nodes=2\nsrun -N1 trl vllm-serve --tensor_parallel_size 8 &\nsrun -N1 accelerate launch --num_processes 8 t.py"
                " --use_vllm true --vllm_mode server"
            ),
            8,
            4,
            "clean",
        ),
        ("trl vllm-serve &\naccelerate launch t.py --use_vllm true --vllm_mode server", 2, 2, "duplicate"),
    ],
)
def test_accelerate_starts_what_it_was_told_or_a_process_for_each_gpu(text, gpus, ranks, verdict, tmp_path):
    (tmp_path / "two.yaml").write_text("num_machines: 1\nnum_processes: 2\n")
    (tmp_path / "go.sh").write_text(text)
    found = plan(str(tmp_path / "go.sh"), "--gpus", str(gpus))
    assert (found["components"][0]["backend"], found["components"][0]["world_size"], found["verdict"]) == ("accelerate", ranks, verdict)


def test_a_remedy_is_given_only_where_it_can_be_followed():
    text = json.dumps([plan("python3 -m verl.trainer.main_ppo trainer.nnodes=1 trainer.n_gpus_per_node=16", "--gpus", "8")["remedies"],
                       plan(SLURM.format(28) + FAST.format("8 8 8 8", 256), "--gpus", "8")["remedies"]])
    assert "main_ppo" not in text and "single_gpu_mode" not in text and "#SBATCH --gpus=16" in text
    assert "single_gpu_mode" in json.dumps(plan(FAST.format(1, 1), "--gpus", "1")["remedies"])


def test_an_engine_beside_the_rollout_needs_gpus_and_gets_no_weights(tmp_path):
    more = NEW.replace("GPUS", "4").replace("KL", "0.0")
    (tmp_path / "t.yaml").write_text(more + 'judge_engine: {backend: "sglang:d1"}\nwandb: {backend: local}\n')
    found = plan(str(tmp_path / "t.yaml"))
    assert (found["verdict"], [c["name"] for c in found["components"]], found["total_gpus"]) == (
        "oversubscribed",
        ["rollout", "actor", "judge_engine"],
        5,
    )
    assert {r["role"] for g in found["groups"] if g["name"] == "weight-update" for r in g["ranks"]} == {"actor", "rollout"}


@pytest.mark.parametrize("tag, verdict", [("v0.3.4", "clean"), ("v0.5.1", "clean"), ("v0.5.2", None)])
def test_a_configuration_of_realhf_is_read_as_long_as_its_tag_holds_it(tag, verdict, tmp_path):
    (tmp_path / "t.yaml").write_text("mode: ray\nallocation_mode: sglang.d80m4p1+d4p8m2\nn_nodes: 48\nn_gpus_per_node: 8\n")
    found = plan(str(tmp_path / "t.yaml"), "--areal", tag)
    assert (found["verdict"], found["gpus"]) == (verdict, 8) and (found["total_gpus"] == 384 or verdict is None)


# ---- the GPUs of this machine ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line, bus",
    [
        ("Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000", "0000:01:00.0"),
        ("both on CUDA device 60", "0000:00:06.0"),
        ("both on CUDA device 104c000", "0010:4c:00.0"),
        ("out of memory on CUDA device 0", ""),
        ("cudaDev 0 nvmlDev 0 busId 60", ""),
    ],
)
def test_the_device_of_ncclss_message_is_a_bus_id_in_hexadecimal(line, bus):
    assert bus_of_message(line) == bus


def test_a_log_with_the_message_is_told_with_its_bus(tmp_path):
    for device, bus in (("1000", "0000:01:00.0"), ("0 (torch)", None)):
        (tmp_path / "a.log").write_text(
            f"h:1:1 [0] init.cc:943 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 {'both' if bus else 'run'} on CUDA device"
            f" {device}\n"
        )
        done = read_cli("triage", tmp_path / "a.log")
        assert (f"bus id, {bus}." in done.stdout) == bool(bus) and ("PCI bus id" in done.stdout) == bool(bus)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 0xFFFF), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
def test_every_bus_id_survives_nccl_s_way_of_printing_it(domain, bus, device, function):
    text = f"{domain:04x}:{bus:02x}:{device:02x}.{function}"
    assert (
        bus_of_message(f"both on CUDA device {int(text.replace(':', '').replace('.', ''), 16):x}")
        == text
        == normal_bus(f"0000{text}".upper())
    )


@pytest.mark.parametrize(
    "seen, kinds",
    [
        ([("GPU-1", "0000:01:00.0"), ("GPU-2", "0000:02:00.0")], []),
        ([("GPU-1", "0000:01:00.0"), ("GPU-1", "0000:01:00.0")], ["shared"]),
        ([("GPU-1", "0000:01:00.0"), ("GPU-2", "00000000:01:00.0")], ["bus-id-collision"]),
        ([("MIG-1", "0000:01:00.0"), ("MIG-2", "0000:01:00.0")], ["slices"]),
        ([("MIG-1", "0000:01:00.0"), ("MIG-1", "0000:01:00.0")], ["shared"]),
        ([("", ""), ("", "")], []),
        ([("GPU-1", ""), ("GPU-2", "")], []),
    ],
)
def test_uuids_decide_and_bus_ids_only_tell_why_an_old_nccl_refuses(seen, kinds):
    assert [c.kind for c in clashes([Identity(i, uuid, bus) for i, (uuid, bus) in enumerate(seen)])] == kinds


def test_every_clash_of_a_group_is_a_finding_with_a_remedy_and_the_inference_ranks_are_no_group():
    gpus = [Identity(0, "MIG-a", "0000:01:00.0"), Identity(1, "MIG-b", "0000:01:00.0")]
    groups = [Group(name, (RankAt(0, "trainer", 0), RankAt(1, "engine", 1)), 2) for name in ("inference", "weight-update")]
    found = rules.judge_devices(groups, gpus)
    assert [(f.id, f.cause, bool(f.remedy)) for f in found] == [("devices-slices", "vgpu-or-mig-unsupported", True)]


@pytest.mark.parametrize(
    "scenario, string, code, said", [("healthy", "sglang:d1+fsdp:d1", 0, []), ("same-bus-id", "sglang:d1+fsdp:d1", 3, ["bus id"])]
)
def test_the_planned_gpus_are_compared_by_uuid_before_nccl_starts(scenario, string, code, said):
    with fake_nvml(scenario):
        found = plan(string, "--check-devices")
    assert found["exit_code"] == code and found["verdict"] == "clean" and found["gpus"] >= 2
    assert [word for word in said if any(word in line for line in found["devices"])] == said and bool(found["devices"]) == bool(said)


def test_where_nvml_says_nothing_the_check_is_no_health():
    done = run("sglang:d1+fsdp:d1", "--check-devices", LD_LIBRARY_PATH="/nonexistent")
    assert done.returncode == 2 and "reports no GPU here" in done.stderr


def test_a_launch_of_verl_tells_its_own_number_of_nodes():
    said = "python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=8 {} actor_rollout_ref.rollout.tensor_model_parallel_size=4"
    assert plan(said.format("trainer.nnodes=2"))["verdict"] == "clean"
    assert plan(said.format("trainer.nnodes=2"), "--nodes", "1")["verdict"] != "clean"
    apart = (
        "python3 -m verl.experimental.one_step_off_policy.main_ppo actor_rollout_ref.hybrid_engine=False trainer.n_gpus_per_node=6"
        " trainer.nnodes=1 rollout.n_gpus_per_node=4 rollout.nnodes=1 actor_rollout_ref.rollout.tensor_model_parallel_size=2"
    )
    assert plan(apart, "--gpus", "8")["verdict"] != "clean"  # two pools of one node are one node


def test_no_remedy_names_a_gpu_that_is_not_there():
    lines = [
        x
        for gpus in ("2", "1")
        for r in plan("accelerate launch --num_processes 2 -m trl.scripts.grpo --use_vllm true --vllm_mode server", "--gpus", gpus)[
            "remedies"
        ]
        for x in r["lines"]
    ]
    more = plan(
        "accelerate launch --num_processes 8 -m trl.scripts.grpo --use_vllm true --vllm_mode server", "--gpus", "8", "--nodes", "2"
    )["remedies"]
    assert not [x for r in more for x in r["lines"] if ",8 " in x]
    assert "CUDA_VISIBLE_DEVICES=1 accelerate launch --num_processes 1 ..." in lines and not [
        x for x in lines if "CUDA_VISIBLE_DEVICES=1," in x or "=,1" in x or "num_processes 0" in x
    ]


def test_an_allocation_over_two_nodes_is_one_for_ray():
    assert (plan("sglang:d8+fsdp:d8", "--gpus", "8", "--nodes", "2")["launcher"], plan("sglang:d4+fsdp:d4", "--gpus", "8")["launcher"]) == (
        "ray",
        "local",
    )


@pytest.mark.parametrize(
    "path", ["examples/math", "conf/grpo.py", "../nofolder", "train.py", "~/x", "/my run/grpo.yaml", "./my config.yaml"]
)
def test_a_slip_in_a_path_is_no_allocation(path):
    done = run(path, "--gpus", "8")
    assert (done.returncode, done.stdout) == (2, "") and f"there is no file {path}" in done.stderr


@pytest.mark.parametrize(
    "text, gpus",
    [
        ("#SBATCH --gpus-per-node=8\n", 8),
        ("#SBATCH --gpus-per-node=h100:8  # all\n", 8),
        ("#SBATCH --gres=gpu:8\n", 8),
        ("#SBATCH --gres=gpu:a100:8\n#SBATCH --time=1\n", 8),
        ("#SBATCH -N 2\n#SBATCH --gpus=16\n", 8),
        ("#SBATCH -N2 -G 16\n", 8),
        ("python mason.py --num_nodes 2 --gpus 8 -- true\n", 8),
        ("sbatch --nodes 2 --gpus-per-node 8 x.sh\n", 8),
    ],
)
def test_the_gpus_of_a_node_are_those_that_a_script_asks_for(text, gpus, tmp_path):
    (tmp_path / "go.sbatch").write_text(text + RAY + "--colocate_all_models")
    assert plan(str(tmp_path / "go.sbatch"))["gpus"] == gpus
    assert plan(str(tmp_path / "go.sbatch"), "--gpus", "4")["gpus"] == 4, "who asks knows better"


MANY = 99999
HUGE = {
    "verl": f"python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node={MANY} trainer.nnodes={MANY} "
    "actor_rollout_ref.rollout.tensor_model_parallel_size=7",
    "trl": f"accelerate launch --num_processes {MANY} grpo.py trl --vllm_mode colocate --vllm_tensor_parallel_size 98765",
    "openrlhf": f"python3 -m openrlhf.cli.train_ppo_ray --actor_num_nodes {MANY} --actor_num_gpus_per_node {MANY} "
    f"--vllm_num_engines {MANY} --vllm_tensor_parallel_size {MANY}",
    "open-instruct": f"python open_instruct/grpo_fast.py --num_learners_per_node {MANY} --vllm_num_engines {MANY} "
    f"--vllm_tensor_parallel_size {MANY}",
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize(("framework", "line"), HUGE.items(), ids=HUGE)
def test_a_launch_of_ten_billion_gpus_is_answered_at_once(framework, line):
    found = plan(line, "--gpus", "8")
    assert (found["framework"], found["verdict"] == "refused") == (framework, framework in ("verl", "trl"))
