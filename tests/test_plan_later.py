"""Launches of slime, miles, SkyRL, NeMo-RL, prime-rl and vLLM: roles, GPUs, what the framework itself refuses."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from nccl_runbook.plan.allocation import areal_rules
from nccl_runbook.plan.answer import FOREIGN, Plan, plans_of
from nccl_runbook.plan.groups import Site
from nccl_runbook.plan.later import LATER, configs

SLIME = "python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 4"
SKYRL = "uv run -m skyrl.train.entrypoints.main_base trainer.placement.policy_num_gpus_per_node=4"
NEMO = {
    "policy": {"generation": {"backend": "vllm", "vllm_cfg": {"tensor_parallel_size": 2}, "colocated": {"enabled": True}}},
    "cluster": {"gpus_per_node": 8, "num_nodes": 1},
}


def planned(target: object, gpus: int = 8, nodes: int = 0) -> Plan:
    plans, left_out = plans_of(str(target), Site(gpus, "", nodes, ""), areal_rules.newest())
    assert not left_out
    return plans[0]


def roles(plan: Plan) -> dict[str, list[int | None]]:
    """Component to the GPUs of its ranks, and the update group's as "sync"."""
    assert plan.placed is not None
    names = {"weight-update": "sync"}
    return {names.get(g.name, g.ranks[0].role): [r.gpu for r in g.ranks] for g in plan.placed.groups}


def test_slime_apart_and_together() -> None:
    apart = planned(f"{SLIME} --rollout-num-gpus 4 --rollout-num-gpus-per-engine 2")
    assert (apart.framework, apart.placement) == ("slime", "clean")
    assert roles(apart) == {"rollout": [4, 5, 6, 7], "actor": [0, 1, 2, 3], "sync": [0, 4, 5, 6, 7]}
    together = planned(f"{SLIME} --colocate ${{MODEL_ARGS[@]}} --advantage-estimator ppo")
    assert roles(together) == {"rollout": [0, 1, 2, 3], "actor": [0, 1, 2, 3], "critic": [0, 1, 2, 3]}
    larger = planned(f"{SLIME} --colocate --rollout-num-gpus 8")
    assert roles(larger) == {"rollout": [*range(8)], "actor": [0, 1, 2, 3]} and larger.placement == "clean"
    assert planned(f"{SLIME} --rollout-num-gpus 8").placement == "oversubscribed"
    assert planned(f"{SLIME} --rollout-num-gpus 8", nodes=2).placement == "clean"


@pytest.mark.parametrize("more", ["", "--debug-rollout-only --rollout-num-gpus 4", "--rollout-num-gpus $N"])
def test_slime_is_not_planned_without_its_engines(more: str) -> None:
    with pytest.raises(ValueError, match="rollout"):
        planned(f"{SLIME} {more}".strip())


def test_slime_trains_alone_or_with_engines_elsewhere() -> None:
    for more in ("--debug-train-only", "--rollout-external-engine-addrs 10.0.0.1:30000", "--load-debug-rollout-data x.pt"):
        assert roles(planned(f"{SLIME} {more}")) == {"actor": [0, 1, 2, 3]}


def test_slime_and_miles_refuse_a_delta_together() -> None:
    slime = planned(f"{SLIME} --colocate --update-weight-mode delta")
    miles = planned(f"{SLIME} --colocate --update-weight-transfer-mode disk-delta")
    assert [(p.framework, p.placement) for p in (slime, miles)] == [("slime", "refused"), ("miles", "refused")]
    assert planned(f"{SLIME} --rollout-num-gpus 4 --update-weight-mode delta --update-weight-transport nccl").placement == "refused"
    disk = planned(f"{SLIME} --rollout-num-gpus 4 --update-weight-mode delta --update-weight-transport disk")
    assert disk.placement == "clean" and "sync" not in roles(disk)


def test_miles_engines_for_evaluation_take_no_part_in_the_sync() -> None:
    plan = planned(f"{SLIME} --rollout-num-gpus 2 --eval-num-gpus 2 --eval-num-gpus-per-engine 2")
    assert plan.framework == "miles"
    assert roles(plan) == {"rollout": [4, 5], "eval": [6, 7], "actor": [0, 1, 2, 3], "sync": [0, 4, 5]}


def test_skyrl() -> None:
    engines = "generator.inference_engine.num_engines=2 generator.inference_engine.tensor_parallel_size=2"
    ref = "trainer.placement.ref_num_gpus_per_node=4"
    together = planned(f"{SKYRL} {engines} {ref}")
    assert (together.framework, together.placement) == ("skyrl", "clean")
    assert roles(together) == {"rollout": [0, 1, 2, 3], "policy": [0, 1, 2, 3], "ref": [0, 1, 2, 3]}
    apart = planned(f"{SKYRL} {engines} {ref} trainer.placement.colocate_all=false")
    assert roles(apart)["sync"] == [0, 4, 5, 6, 7] and apart.placement == "clean"
    assert planned(f"{SKYRL} {engines.replace('num_engines=2', 'num_engines=3')} {ref}").placement == "refused"
    assert planned(f"{SKYRL} {engines} trainer.placement.colocate_all=false").placement == "refused"  # ref has one GPU
    alone = planned(f"{SKYRL} {engines} trainer.placement.colocate_all=false trainer.algorithm.use_kl_loss=false")
    assert alone.placement == "clean" and "ref" not in roles(alone)
    elsewhere = planned(f"{SKYRL} {ref} trainer.placement.colocate_all=false generator.inference_engine.run_engines_locally=false")
    assert elsewhere.placement == "clean" and "rollout" not in roles(elsewhere)
    assert planned(f"{SKYRL.replace('main_base', 'fully_async')} {engines} {ref}").placement == "refused"


def nemo(folder: Path, **colocated: object) -> Path:
    path = folder / "grpo.yaml"
    generation = {**NEMO["policy"]["generation"], "colocated": colocated}
    path.write_text("policy:\n  generation: " + json.dumps(generation) + "\ncluster: " + json.dumps(NEMO["cluster"]) + "\n")
    return path


def test_nemo_rl(tmp_path: Path) -> None:
    together = planned(nemo(tmp_path, enabled=True), gpus=0)
    assert (together.framework, together.gpus, together.placement) == ("nemo-rl", 8, "clean")
    assert roles(together) == {"generation": [*range(8)], "policy": [*range(8)]}
    apart = planned(nemo(tmp_path, enabled=False, resources={"gpus_per_node": 2, "num_nodes": None}), gpus=0)
    assert roles(apart) == {"generation": [6, 7], "policy": [*range(6)], "sync": [0, 6, 7]}
    for resources in ({"gpus_per_node": 8}, {"gpus_per_node": 3}, {}, {"gpus_per_node": 2, "num_nodes": 2}):
        assert planned(nemo(tmp_path, enabled=False, resources=resources), gpus=0).placement == "refused"


def test_nemo_rl_inherits(tmp_path: Path) -> None:
    nemo(tmp_path, enabled=True)
    (tmp_path / "r").mkdir()
    child, grandchild = tmp_path / "r" / "child.yaml", tmp_path / "r" / "grandchild.yaml"
    child.write_text('defaults: "../grpo.yaml"\ncluster:\n  num_nodes: 3\n')
    resources = "{num_nodes: 1, gpus_per_node: 8}"
    apart = f"policy:\n  generation:\n    colocated: {{enabled: false, resources: {resources}}}\n"
    grandchild.write_text(f"defaults:\n  - child.yaml\n{apart}")
    assert planned(child, gpus=0).placed.groups[0].size == 24
    plan = planned(grandchild, gpus=0)
    assert (plan.placement, [g.size for g in plan.placed.groups]) == ("clean", [8, 16, 9])
    script = tmp_path / "run.sh"
    script.write_text("uv run examples/run_grpo.py --config r/child.yaml cluster.num_nodes=2\n")
    assert planned(script, gpus=0).placed.groups[0].size == 16
    script.write_text("uv run examples/run_grpo.py --config elsewhere.yaml cluster.num_nodes=2\n")
    with pytest.raises(ValueError, match="--config"):
        planned(script)
    child.write_text("defaults: child.yaml\ncluster:\n  num_nodes: 2\n")  # inherits from itself
    with pytest.raises(ValueError, match="known allocation"):
        planned(child)
    child.write_text("defaults: missing.yaml\n")
    with pytest.raises(ValueError, match=r"missing\.yaml"):
        planned(child)


PRIME = "max_steps = 20\n[orchestrator]\nbatch_size = 8\n"


@pytest.mark.parametrize(("more", "verdict", "expected"), [
    ("[inference]\n", "clean", {"inference": [0], "trainer": [1], "sync": [1, 0]}),
    ("[inference.vllm]\ntensor_parallel_size = 2\n[deployment]\nnum_train_gpus = 4\nnum_infer_gpus = 4\n", "clean",
     {"inference": [0, 1, 2, 3], "trainer": [4, 5, 6, 7], "sync": [4, 0, 1, 2, 3]}),
    ("[inference]\n[deployment]\nnum_train_gpus = 6\nnum_infer_gpus = 4\n", "refused", None),
    ("[inference.vllm]\ntensor_parallel_size = 4\n[deployment]\nnum_infer_gpus = 6\n", "refused", None),
    ("[inference]\n[weight_broadcast]\ntype = 'nccl'\n[trainer.model.lora]\n", "refused", None),
    ("[inference]\n[trainer.model.lora]\n", "clean", {"inference": [0], "trainer": [1]}), ("", "clean", {"trainer": [0]})])
def test_prime_rl(tmp_path: Path, more: str, verdict: str, expected: dict[str, list[int]] | None) -> None:
    path = tmp_path / "rl.toml"
    path.write_text(PRIME + more)
    plan = planned(path, gpus=0)
    assert (plan.framework, plan.gpus, plan.placement) == ("prime-rl", 8, verdict)
    assert expected is None or roles(plan) == expected


def test_prime_rl_on_several_nodes_and_from_its_command(tmp_path: Path) -> None:
    several = "[inference]\n[deployment]\ntype = 'multi_node'\nnum_train_nodes = 2\nnum_infer_nodes = 1\n"
    (tmp_path / "rl.toml").write_text(PRIME + several)
    assert [g.size for g in planned(tmp_path / "rl.toml", gpus=0).placed.groups] == [8, 16, 9]
    (tmp_path / "run.sh").write_text("uv run rl @ rl.toml --deployment.num-train-nodes 3\n")
    assert planned(tmp_path / "run.sh", gpus=0).framework == "prime-rl"
    (tmp_path / "rl.toml").write_text("a = [\n")
    with pytest.raises(ValueError, match="TOML"):
        planned(tmp_path / "rl.toml")


def test_older_names_of_skyrl_are_planned_only_as_a_whole() -> None:
    """At skyrl_train-v0.3.0 the defaults were 4 GPUs and tensor parallel 4; now they are 1."""
    line = "python -m skyrl_train.entrypoints.main_base trainer.algorithm.use_kl_loss=false generator.num_inference_engines=2 "
    with pytest.raises(ValueError, match="tensor_parallel_size"):
        planned(f"{line} trainer.placement.policy_num_gpus_per_node=4")
    named = "generator.inference_engine_tensor_parallel_size=2 trainer.placement.policy_num_gpus_per_node=4"
    assert planned(line + named).placement == "clean"
    with pytest.raises(ValueError, match="ref_num_gpus"):
        planned((line + named).replace("=false", "=true"))


def test_vllm_alone() -> None:
    plan = planned("vllm serve m --tensor-parallel-size 2 --data-parallel-size 2 --weight-transfer-config '{\"backend\": \"nccl\"}'")
    assert (plan.framework, plan.placement, roles(plan)) == ("vllm", "clean", {"vllm": [0, 1, 2, 3]})
    assert any("group of 5" in e.text for e in plan.finding.evidence)
    with pytest.raises(ValueError, match="-tp"):
        planned("vllm serve m -tp 2 --weight-transfer-config '{\"backend\": \"nccl\"}'")


def test_every_answer_names_the_source_that_was_read() -> None:
    plan = planned(f"{SLIME} --colocate")
    assert "624b824a" in plan.finding.evidence[0].source and len(LATER) == 6


def test_files_of_others_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("defaults:\n  - _self_\n  - actor@actor: dp\npolicy: {lr: 1}\n")
    (tmp_path / "c.toml").write_text("[project]\nname = 'prime-rl-fork'\n[deployment]\n")
    (tmp_path / "b.yaml").write_text("policy: {lr: 1}\ncluster: {num_nodes: 2}\n")
    with pytest.raises(ValueError, match="known allocation"):
        planned(tmp_path)
    for name in ("a.yaml", "b.yaml", "c.toml"):
        with pytest.raises(ValueError) as why:
            planned(tmp_path / name)
        assert str(why.value).endswith(FOREIGN)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet="defaults: policy.cluster=[]{}\n-\"'#1ab", max_size=120), suffix=st.sampled_from([".toml", ".yaml"]))
def test_any_configuration_is_read_or_refused(tmp_path: Path, text: str, suffix: str) -> None:
    try:
        assert isinstance(configs.whole(text, tmp_path / f"x{suffix}"), str)
    except ValueError as error:
        assert str(error)


@given(sizes=st.tuples(st.integers(0, 9), st.integers(0, 40), st.integers(0, 40), st.integers(0, 9)), together=st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_rank_has_a_gpu_of_its_own_or_shares_as_it_was_told(sizes: tuple[int, int, int, int], together: bool) -> None:
    nodes, train, rollout, tensor = sizes
    line = f"python3 train.py --actor-num-nodes {nodes} --actor-num-gpus-per-node {train} --rollout-num-gpus {rollout}"
    plan = planned(f"{line} --rollout-num-gpus-per-engine {tensor} {'--colocate' * together}".strip(), nodes=64)
    assert plan.placed is not None and plan.placement == "clean"
    seats = [r.gpu for g in plan.placed.groups if g.name != "weight-update" for r in g.ranks]
    assert None not in seats and (together or len({*seats}) == len(seats))
