"""AReaL's allocation strings over the tags, who gets which GPU, and what to do about it."""
from __future__ import annotations

import dataclasses
import math
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings, strategies as st
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Severity
from nccl_runbook.placement import place as place_ranks
from nccl_runbook.plan import judge as rules
from nccl_runbook.plan.allocation import areal_rules, judge_remedies as rules_remedies
from nccl_runbook.plan.allocation.areal_rules import spans
from nccl_runbook.plan.allocation.areal_written import valid_at, written_for
from nccl_runbook.plan.answer import intend, intention
from nccl_runbook.plan.areal import Refused, from_roles, parse
from nccl_runbook.plan.groups import LAUNCHERS, Site, place
from nccl_runbook.plan.table import intended_table, intended_tables

V, A, S = "ValueError", "AllocationValidationError", "InvalidAllocationModeError"
ONE_OF_EACH = ("v0.3.2", "v0.3.4", "v0.4.1", "v0.5.2", "v1.0.0", "v1.0.4")


def outcome(text: str, tag: str) -> str:
    """The type that a tag gives the string, or the class of its error."""
    try:
        return str(parse(text, areal_rules.at(tag)).type)
    except Refused as why:
        return why.error


# string, and what it is at v0.3.2, v0.3.4, v0.4.1, v0.5.2, v1.0.0 and v1.0.4
GRAMMAR = [
    ("sglang:d1+fsdp:d1", *["DECOUPLED_TRAIN"] * 6),
    ("  sglang : d1 \t+ fsdp:d1\n", *["DECOUPLED_TRAIN"] * 6),
    ("sglang.d1p1t1+d1p1t1", "DECOUPLED_TRAIN", "DECOUPLED_TRAIN", V, V, V, V),
    ("sglang.d4+fsdp.d4", V, V, V, V, V, V),
    ("fsdp:d4+sglang:d4", V, V, *["DECOUPLED_TRAIN"] * 4),
    ("sglang:d4|fsdp:d4", "COLOCATE", "COLOCATE", A, A, A, A),
    ("sglang:d4|fsdp:d2", A, A, A, A, A, A),
    ("sglang:d4|fsdp[actor]:d4", V, V, *["COLOCATE"] * 4),
    ("sglang[r]:d4|fsdp[a]:d2", V, V, A, A, A, A),
    ("sglang:d2+d2", *["DECOUPLED_TRAIN"] * 5, A),
    ("d4p2", *["COLOCATE"] * 5, A),
    ("[actor]:d4", V, V, *["COLOCATE"] * 3, A),
    ("d4+d4", V, V, A, A, A, A),
    ("[a]:d4+[b]:d4", V, V, "None", "None", "None", A),
    ("d3e2", V, V, V, V, V, A),
    ("sglang:d4+eval", "DECOUPLED_EVAL", "DECOUPLED_EVAL", "DECOUPLED_EVAL", "DECOUPLED_EVAL", V, V),
    ("sglang[r]:d4+cpu", V, V, "DECOUPLED_EVAL", "DECOUPLED_EVAL", V, V),
    ("fsdp:d4p2", "COLOCATE", "COLOCATE", A, A, A, A),
    ("archon:d4", V, V, V, "COLOCATE", "COLOCATE", "COLOCATE"),
    ("archon:d2p2", V, V, V, A, "COLOCATE", "COLOCATE"),
    ("megatron:d2p2t4e4", V, *["COLOCATE"] * 5),
    ("megatron:d3e2", V, V, V, V, V, V),
    ("megatron:(attn:d4p2t2c2|ffn:d2p2t4e2)", *["COLOCATE"] * 6),
    ("megatron:attn:d4|ffn:e4)", S, S, S, "COLOCATE", "COLOCATE", "COLOCATE"),
    ("megatron:(attn:d4p2|ffn:p4e4)", A, A, A, A, A, A),
    ("megatron:(attn:d4|ffn:d4e3)", S, S, S, S, S, S),
    ("megatron:(attn:d4|ffn:e3)", S, S, S, A, A, A),
    ("megatron[actor]:(attn:d4|ffn:d4)", V, V, V, V, V, V),
    ("(attn:d4|ffn:d4)", *["COLOCATE"] * 5, A),
    ("(attn:d4|ffn:d4e3)", S, S, S, S, S, S),
    ("sglang[a]:d2+fsdp[a]:d4", V, V, A, A, A, A),
    ("sglang[a]:d2+megatron[a]:d3e2", V, V, V, V, V, V),
    ("sglang:d2+fsdp[a]:d4+fsdp:d4", V, V, A, A, A, A),
    ("sglang[r]:d2+fsdp[a]:d4|fsdp[c]:d4", V, V, "None", "None", "None", "None"),
    ("vllm:d2t4", *["LLM_SERVER_ONLY"] * 6),
    ("sglang:d0", V, V, V, V, V, V),
    ("sglang:d01", V, V, V, V, V, V),
    ("SGLang:d4", V, V, V, V, V, V),
    ("sglang:d4e2", V, V, V, V, V, V),
    ("fsdp:d2,t2", V, V, V, V, V, V),
    ("sglang[1r]:d2+fsdp[a]:d4", V, V, V, V, V, V),
    ("", V, V, V, V, V, V),
    ("sglang:d1+fsdp:d1+", V, V, V, V, V, V),
    ("sglang:d٤", V, V, V, V, V, V),
    ("sglang(r):d2+fsdp(a):d2", V, V, V, V, V, V),
]


@pytest.mark.parametrize("text, outcomes", [(row[0], row[1:]) for row in GRAMMAR], ids=[row[0].strip() or "empty" for row in GRAMMAR])
def test_each_tag_reads_a_string_in_its_own_way(text, outcomes):
    assert tuple(outcome(text, tag) for tag in ONE_OF_EACH) == outcomes


def test_the_last_of_repeated_dims_counts_and_experts_add_no_gpus():
    mode = parse("sglang:d2d4+megatron:d2t4e8e4", areal_rules.newest())
    assert [(p.world_size, p.alloc_size) for p in mode.parts] == [(4, 4), (8, 8)] and mode.total_gpus == 12


def test_who_shares_reports_no_gpus_of_its_own_and_names_its_anchor():
    mode = parse("sglang[r]:d2+fsdp[a]:d4|fsdp[c]:d4", areal_rules.at("v0.4.1"))
    assert [(p.name, p.world_size, p.alloc_size, p.anchor) for p in mode.parts] == [("r", 2, 2, None), ("a", 4, 4, None), ("c", 4, 0, 1)]
    assert mode.total_gpus == 6


def test_bare_trainers_get_their_backend_from_p_and_e():
    backends = {text: parse(text, areal_rules.at("v1.0.0")).parts[0].backend for text in ("d4", "d2p2", "d4e2", "attn:d4|ffn:d4")}
    assert backends == {"d4": "fsdp", "d2p2": "megatron", "d4e2": "megatron", "attn:d4|ffn:d4": "megatron"}


def test_a_string_without_end_is_refused_at_once():
    assert outcome("sglang:" + "d1" * 100_000, "v1.0.4") == V


DIM = st.tuples(st.sampled_from("dtpc"), st.integers(1, 40)).map(lambda d: f"{d[0]}{d[1]}")


@settings(max_examples=40, deadline=None)
@given(st.lists(DIM, min_size=1, max_size=5), st.sampled_from(["fsdp", "megatron", "archon"]), st.sampled_from(ONE_OF_EACH))
def test_a_trainer_has_as_many_ranks_as_its_last_dims_multiply_to(dims, backend, tag):
    last = {d[0]: int(d[1:]) for d in dims}
    done = outcome(f"{backend}:{''.join(dims)}", tag)
    row = areal_rules.at(tag)
    if backend not in row.trainers:
        assert done == V
    elif last.get("p", 1) > 1 and ((backend == "fsdp" and row.fsdp_plain) or (backend == "archon" and not row.archon_pipeline)):
        assert done == A
    else:
        assert parse(f"{backend}:{''.join(dims)}", row).parts[0].world_size == math.prod(last.values())


@settings(max_examples=80, deadline=None)
@given(st.one_of(st.text(max_size=30), st.text(alphabet="sglanvmfdp:.+|[]()0123456789tce ", max_size=40)), st.sampled_from(ONE_OF_EACH))
def test_no_text_does_more_than_be_refused(text, tag):
    assert outcome(text, tag) in (V, A, S, "None", "COLOCATE", "DECOUPLED_TRAIN", "DECOUPLED_EVAL", "LLM_SERVER_ONLY")
    assert isinstance(written_for(text, areal_rules.at(tag)), str)


# ---- tags --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tag, era, known",
    [
        ("v0.3.2", "A", True),
        ("0.3.3", "A", True),
        ("v0.4.0", "A", True),
        ("v0.4.1", "B", True),
        ("v1.0.0.rc1", "B", True),
        ("v1.0.2", "B", True),
        ("v1.0.3", "C", True),
        ("v2.1.0", "C", False),
        ("v0.4.2", "B", False),
        ("v1.0.0.post1", "B", True),
    ],
)
def test_a_tag_has_the_rules_of_its_row_or_of_the_one_before(tag, era, known):
    row = areal_rules.at(tag)
    assert (row.era, row.known) == (era, known)


@pytest.mark.parametrize("tag", ["v0.3.1", "main", "v1", "", "v1.0.4; rm", "v" + "1" * 5000 + ".0.0"])
def test_what_is_no_tag_or_too_old_is_refused_with_a_sentence(tag):
    with pytest.raises(ValueError, match="tag|older"):
        areal_rules.at(tag)


# ---- written another way -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, tag, told",
    [
        ("sglang.d1p1t1+d1p1t1", "v1.0.4", "sglang:d1p1t1+fsdp:d1p1t1"),
        ("sglang:d4|fsdp:d4", "v1.0.4", "sglang[rollout]:d4|fsdp[actor]:d4"),
        ("sglang.d64p1m1+d32p2m1", "v1.0.4", "sglang:d64p1t1+megatron:d32p2t1"),
        ("sglang.d4+fsdp.d4", "v1.0.4", "sglang:d4+fsdp:d4"),
        ("fsdp:d4p2", "v1.0.4", "megatron:d4p2"),
        ("fsdp:d2,t2", "v1.0.4", "fsdp:d2t2"),
        ("SGLang:d4", "v1.0.4", "sglang:d4"),
        ("fsdp:d4+sglang:d4", "v0.4.0", "sglang:d4+fsdp:d4"),
        ("sglang[r]:d2+fsdp[a]:d2", "v0.3.2", "sglang:d2+fsdp:d2"),
        ("(attn:d4|ffn:d4)", "v1.0.3", "megatron:(attn:d4|ffn:d4)"),
        ("sglang(r):d2+fsdp(a):d2", "v1.0.4", "sglang[r]:d2+fsdp[a]:d2"),
        ("nonsense", "v1.0.4", ""),
        ("sglang[r]:d2+fsdp[a]:d2+fsdp[c]:d2", "v0.4.0", ""),
    ],
)
def test_a_refused_string_is_written_as_the_tag_wants_it(text, tag, told):
    assert written_for(text, areal_rules.at(tag)) == told
    assert not told or outcome(told, tag) not in (V, A, S)


def test_the_tags_that_read_a_string_are_named():
    tags = [re.findall(r"v[\d.]+", spans(valid_at(text))) for text in ("sglang.d1+d1", "d4")]
    assert tags == [["v0.3.2", "v0.4.0"], ["v0.3.2", "v0.4.0", "v0.4.1", "v1.0.2"]] and valid_at("nonsense") == []


# ---- ranks to GPUs -----------------------------------------------------------------------------------------------------------------

def placed(text: str, gpus: int, tag: str = "v1.0.4", **more):
    row = areal_rules.at(tag)
    return place(parse(text, row), Site(gpus, engines_first=row.controller == "engine", **more))


def seats(text: str, gpus: int, group: str, tag: str = "v1.0.4", **more) -> list[int | None]:
    return [r.gpu for g in placed(text, gpus, tag, **more).groups if g.name == group for r in g.ranks]


@pytest.mark.parametrize(
    "text, gpus, tag, engines, trainers, verdict",
    [
        ("sglang.d1p1t1+d1p1t1", 4, "v0.4.0", [0], [1], "clean"),
        ("sglang.d1p1t1+d1p1t1", 1, "v0.4.0", [0], [0], "duplicate"),
        ("sglang:d4+fsdp:d4", 4, "v1.0.4", [0, 1, 2, 3], [0, 1, 2, 3], "duplicate"),
        ("sglang:d1t2+fsdp:d2", 4, "v1.0.4", [0, 1], [2, 3], "clean"),
        ("sglang:d3+fsdp:d2", 4, "v1.0.4", [0, 1, 2], [3, 0], "oversubscribed"),
        ("sglang:d1+fsdp:d4", 4, "v1.0.4", [0], [1, 2, 3, 0], "oversubscribed"),
        ("sglang:t4+fsdp:d1", 4, "v1.0.4", [0, 1, 2, 3], [0], "duplicate"),
        ("sglang:d8+fsdp:d1", 4, "v1.0.4", [0, 1, 2, 3] * 2, [0], "zero-visible"),
        ("sglang:d4|fsdp:d4", 4, "v0.4.0", [0, 1, 2, 3], [0, 1, 2, 3], "duplicate"),
        ("sglang:d4|fsdp:d4", 8, "v0.4.0", [0, 1, 2, 3], [4, 5, 6, 7], "clean"),
        ("sglang[rollout]:d4|fsdp[actor]:d4", 4, "v1.0.4", [0, 1, 2, 3], [0, 1, 2, 3], "duplicate"),
        ("fsdp:d4+sglang:d4", 4, "v1.0.4", [0, 1, 2, 3], [0, 1, 2, 3], "duplicate"),
        ("sglang:d1+megatron:(attn:d1t2|ffn:e2)", 4, "v1.0.4", [0], [1, 2], "clean"),
        ("d2p2t1", 4, "v0.4.0", [], [0, 1, 2, 3], "clean"),
        ("vllm:d2t4", 4, "v1.0.4", [0, 1, 2, 3] * 2, [], "zero-visible"),
        ("sglang:d4+eval", 4, "v0.4.0", [0, 1, 2, 3], [], "clean"),
        ("sglang[r]:d2+fsdp[a]:d4|fsdp[c]:d4", 6, "v1.0.4", [0, 1], [2, 3, 4, 5] * 2, "clean"),
    ],
)
def test_the_local_launcher_counts_round_and_round(text, gpus, tag, engines, trainers, verdict):
    assert seats(text, gpus, "inference", tag) == engines and seats(text, gpus, "trainer", tag) == trainers
    assert placed(text, gpus, tag).verdict == verdict
    assert seats(text, gpus, "weight-update", tag) == ([trainers[0], *engines] if engines and trainers else [])


@pytest.mark.parametrize("gpus", range(1, 6))
def test_the_local_verdict_is_the_predicate_for_every_small_world(gpus):
    for engines in range(1, 8):
        for trainers in range(1, 8):
            wanted = ("zero-visible" if max(engines, trainers) > gpus else "duplicate" if engines == gpus
                      else "oversubscribed" if engines + trainers > gpus else "clean")
            assert placed(f"sglang:d{engines}+fsdp:d{trainers}", gpus).verdict == wanted
            assert placed(f"sglang:t{engines}+fsdp:c{trainers}", gpus, update="disk").verdict == (
                wanted if wanted != "duplicate" else "oversubscribed"
            )


@pytest.mark.parametrize("gpus", range(1, 6))
def test_the_controller_puts_trainers_first_and_wraps_onto_rank_0(gpus):
    for engines in range(1, 8):
        for trainers in range(1, gpus + 1):
            wanted = "duplicate" if trainers + engines > gpus else "clean"
            assert placed(f"sglang:d{engines}+fsdp:d{trainers}", gpus, launcher="single-controller").verdict == wanted
    assert seats("sglang:d2+fsdp:d3", 4, "weight-update", launcher="single-controller") == [0, 3, 0]
    assert seats("sglang:d2+fsdp:d3", 4, "weight-update", "v0.5.2", launcher="single-controller") == [2, 0, 1]  # engines first there


def test_ray_gives_the_trainer_whole_nodes_and_none_on_one():
    assert placed("sglang:d4+fsdp:d4", 8, launcher="ray").verdict == "zero-visible"
    two = placed("sglang:d8+fsdp:d4", 8, launcher="ray", nodes=2)
    assert two.verdict == "clean" and [g.size for g in two.groups] == [8, 8, 9] and "asks for 4" in two.notes[0]
    assert seats("sglang:d8+fsdp:d8", 8, "weight-update", launcher="ray", nodes=2) == [8, *range(8)]
    assert placed("sglang:d12+fsdp:d8", 8, launcher="ray", nodes=2).verdict == "oversubscribed"
    assert (
        placed("vllm:d4+fsdp:d8", 8, launcher="ray").verdict == "oversubscribed" and placed("vllm:d4", 8, launcher="ray").verdict == "clean"
    )


def test_a_huge_world_is_counted_and_only_its_first_ranks_are_listed():
    found = placed("sglang:d1000000+fsdp:d1", 8)
    assert found.verdict == "zero-visible" and found.groups[0].size == 1000000 and len(found.groups[0].ranks) == 4096


@pytest.mark.parametrize("site", [{}, {"nodes": 10 ** 9}, {"launcher": "single-controller"}, {"launcher": "ray", "nodes": 2}])
def test_sizes_beyond_any_machine_take_no_time(site):
    """The remedies look for what would be clean; they must not try every number up to it."""
    code = (f"from nccl_runbook.plan.allocation.areal_rules import newest; from nccl_runbook.plan.areal import parse;"
            f"from nccl_runbook.plan.groups import Site, place; from nccl_runbook.plan.judge import judge;"
            f"r, t, s = newest(), 'sglang:d99999999999999999999+fsdp:d1', Site(8, **{site!r}); m = parse(t, r);"
            f"print(judge(t, m, place(m, s), r, s).severity.value)")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=10, check=True)
    assert ended.stdout.strip() == "broken"


@pytest.mark.parametrize(
    "shares", [{"actor": "actor"}, {"actor": "ref", "ref": "actor"}, {"actor": "ref", "ref": "rollout", "rollout": "actor"}]
)
def test_roles_that_share_in_a_circle_are_refused_and_a_chain_shares_the_gpus_of_its_end(shares):
    roles, row = {"rollout": "sglang:d2", "actor": "fsdp:d2", "ref": "fsdp:d2"}, areal_rules.newest()
    with pytest.raises(Refused, match="circle"):
        from_roles(roles, shares, row)
    chain = place(from_roles(roles, {"rollout": "ref", "ref": "actor"}, row), Site(8))
    assert all([r.gpu for r in g.ranks] == [0, 1] for g in chain.groups if g.name != "weight-update")


def test_roles_with_their_own_backends_share_only_where_they_are_scheduled_so():
    row = areal_rules.newest()
    roles = {"rollout": "sglang:d2", "actor": "fsdp:d2", "ref": "fsdp:d2"}
    apart, shared = from_roles(roles, {"ref": "actor"}, row), from_roles(roles, {"ref": "actor", "rollout": "actor"}, row)
    site = Site(2, "single-controller", update="disk")
    assert place(apart, Site(4, "single-controller")).verdict == "clean" and place(apart, site).verdict == "oversubscribed"
    assert place(shared, site).verdict == "clean" and place(shared, Site(2, "single-controller")).verdict == "duplicate"
    assert place(shared, site).notes == ()
    uneven = from_roles({"rollout": "sglang:t2", "actor": "fsdp:d2"}, {"rollout": "actor"}, row)
    for note, in (place(shared, Site(2, "single-controller")).notes, place(uneven, site).notes):  # not by disk; not as many workers each
        assert "actor.weight_update_mode=disk" in note and "workers" in note
    with pytest.raises(Refused, match="one component"):
        from_roles({"actor": "fsdp:d1+fsdp:d1"}, {}, row)


@pytest.mark.parametrize(
    "text, gpus, line",
    [
        ("sglang:d4+fsdp:d8", 8, "#SBATCH --nodes=2"),
        ("sglang:d16+fsdp:d16", 16, "#SBATCH --nodes=2"),
        ("sglang:d1+fsdp:d1", 1, "#SBATCH --gpus-per-node=2"),
        ("sglang:d4+fsdp:d4", 4, "#SBATCH --gpus-per-node=8"),
    ],
)
def test_more_gpus_than_a_node_has_come_from_more_nodes(text, gpus, line):
    asked = [line for r in fixes(text, gpus, "v1.0.4").remedy for line in r.lines if line.startswith("#SBATCH")]
    assert asked == [line]


# ---- remedies ----------------------------------------------------------------------------------------------------------------------

def fixes(text: str, gpus: int, tag: str):
    row, site = areal_rules.at(tag), Site(gpus)
    mode = parse(text, row)
    return rules.judge(text, mode, place(mode, site), row, site)


@pytest.mark.parametrize(
    "tag, line",
    [
        ("v0.3.2", "WeightUpdateMeta.from_disk("),
        ("v0.3.3", "WeightUpdateMeta.from_disk("),
        ("v0.3.4", "WeightUpdateMeta.from_disk("),
        ("v0.4.1", "WeightUpdateMeta.from_disk("),
        ("v0.5.0", "actor.weight_update_mode=disk"),
        ("v1.0.2", "actor.weight_update_mode=disk"),
        ("v1.0.4", "actor.weight_update_mode=disk"),
    ],
)
def test_the_first_remedy_is_the_switch_to_disk_of_that_tag(tag, line):
    finding = fixes("sglang:d1+fsdp:d1", 1, tag)
    lines = "\n".join(finding.remedy[0].lines)
    assert finding.cause == "trainer-and-engine-share-gpu" and line in lines
    assert ("weight_update_mode=disk" in lines) == areal_rules.at(tag).switch["honours_option"]


def test_the_options_that_no_script_reads_are_called_so_and_the_shipped_example_only_where_it_is():
    assert "never reads it" in fixes("sglang:d1+fsdp:d1", 1, "v0.4.0").remedy[0].text
    assert any("gsm8k_rlvr_scaffolding.yaml" in line for line in fixes("sglang:d1+fsdp:d1", 1, "v1.0.4").remedy[0].lines)
    assert not any("scaffolding" in line for line in fixes("sglang:d1+fsdp:d1", 1, "v1.0.3").remedy[0].lines)


@pytest.mark.parametrize(
    "text, gpus, smaller",
    [
        ("sglang:d4+fsdp:d4", 4, "sglang:d2+fsdp:d2"),
        ("vllm:d2t2+fsdp:d4", 4, "vllm:d1t2+fsdp:d2"),
        ("sglang:d3+fsdp:d2", 4, "sglang:d2+fsdp:d2"),
        ("sglang:d1+fsdp:d1", 1, ""),
        ("sglang:d8+fsdp:d1", 4, "sglang:d3+fsdp:d1"),
        ("sglang:d4+fsdp:d8", 8, "sglang:d4+fsdp:d4"),
        ("sglang:d2t2+fsdp:d12", 8, "sglang:d1t2+fsdp:d6"),
        ("vllm:d1+fsdp:d7", 4, "vllm:d1+fsdp:d1"),
    ],
)
def test_a_smaller_string_of_the_same_shape_is_offered_and_is_clean(text, gpus, smaller):
    row = areal_rules.newest()
    assert rules_remedies.fitting(parse(text, row), Site(gpus), row) == smaller
    assert not smaller or placed(smaller, gpus).verdict == "clean"


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(ONE_OF_EACH),
    st.sampled_from(["sglang", "vllm"]),
    st.sampled_from(["fsdp", "megatron"]),
    st.tuples(*[st.integers(1, 6)] * 4),
    st.builds(Site, st.integers(1, 9), st.sampled_from(LAUNCHERS), st.integers(1, 3), st.sampled_from(["xccl", "disk"])),
)
def test_every_plan_that_is_not_clean_has_a_remedy_and_each_does_what_it_says(tag, engine, trainer, sizes, site):
    d, t, n, c = sizes
    row, text = areal_rules.at(tag), f"{engine}:d{d}t{t}+{trainer}:d{n}c{c}"

    def verdict(text, **changed):
        return place(parse(text, row), dataclasses.replace(site, **changed)).verdict

    found = rules.judge(text, parse(text, row), place(parse(text, row), site), row, site)
    assert bool(found.remedy) == (verdict(text) != "clean")
    for remedy in found.remedy:
        assert "disk" not in remedy.text or verdict(text, update="disk") != "duplicate"
        assert not remedy.text.startswith("Ask for") or verdict(remedy.lines[0]) == "clean"
        told = re.match(r"Give the job (\d+) (GPU|node)", remedy.text)
        launcher = "ray" if "Ray launcher" in remedy.text else site.launcher
        assert not told or verdict(text, launcher=launcher, **{"gpus" if told[2] == "GPU" else "nodes": int(told[1])}) == "clean"


def test_a_clean_plan_needs_nothing_and_an_unread_tag_says_so():
    assert fixes("sglang:d1+fsdp:d1", 2, "v1.0.4").remedy == ()
    row = areal_rules.at("v3.0.0")
    assert "v3.0.0" in rules.about_tag(row, Site(1))[0] and rules.about_tag(areal_rules.newest(), Site(1)) == []


# ---- named in 05-weight-sync -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, devices, ids, caption",
    [
        ("sglang:d1+fsdp:d1", [0], ["allocation-duplicate"], "on 1 GPU: two ranks on one GPU"),
        ("sglang:d1+fsdp:d1", [0, 1], ["allocation-clean"], "on 2 GPUs: fits"),
        ("sglang.d1+d1", [0], ["allocation-refused"], "Your allocation"),
        ("", [0, 1], [], None),
        ("sglang:d1", [None, None], [], "Your allocation"),
    ],
)
def test_the_allocation_of_the_notebook_is_planned_on_the_gpus_that_are_seen(text, devices, ids, caption):
    fact = intend(text, place_ranks(devices))
    assert [f.id for f in intention(fact)] == ids and intended_table(fact).columns
    assert [caption in t.caption for t in intended_tables(fact)] == [True] * (caption is not None)
    assert isinstance(fact, Gap) == (bool(text) and devices == [None, None])
    assert isinstance(intend(text, Gap("not-run", "busy")), Gap) == bool(text)
    assert not text or intend(text, place_ranks([None, None]), "v0.4.0", 3).gpus == 3, "where none is seen, as many as are named"


def test_sharing_a_gpu_is_no_cause_for_who_plans_none():
    noted = dataclasses.replace(fixes("sglang:d1+fsdp:d1", 1, "v1.0.4"), severity=Severity.NOTE)
    assert noted.cause and noted.remedy
    alone = intention(None, [noted])[0]
    assert (alone.cause, alone.status, alone.remedy, alone.evidence) == (None, None, (), noted.evidence)
    worse = dataclasses.replace(noted, severity=Severity.BROKEN)
    assert intention(None, [worse]) == [worse] and intention(intend("sglang:d1+fsdp:d1", place_ranks([0])), [noted])[0].cause == noted.cause


def test_the_notebook_says_of_a_tag_that_was_not_read_what_plan_says_of_it():
    read, unread = (intention(intend("sglang:d1+fsdp:d1", place_ranks([0, 1]), tag)) for tag in ("v1.0.4", "v3.0.0"))
    assert [len(f.evidence) for f in (*read, *unread)] == [0, 1] and "v3.0.0" in unread[0].evidence[0].text
