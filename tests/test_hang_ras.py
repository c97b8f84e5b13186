"""What `ncclras` printed (NCCL 2.24 to 2.32), as text and as JSON, as input of `hang`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from nccl_runbook.core.facts import Gap
from nccl_runbook.hang.judge import judge_hang
from nccl_runbook.hang.judge_silence import HangVerdict
from nccl_runbook.hang.live import ask_ras as live_answers_ask_ras
from nccl_runbook.hang.live.ranks.judge_calls import apart
from nccl_runbook.hang.read import collect
from warm_cli import read_cli

TABLE = """Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""


def text(size: int, body: str, comms: int = 1, gpus: int | None = None) -> str:
    job = f"(total)   per node  per process    (total)  (total)\n      1  {gpus}  1  {gpus}  {gpus}\n\n" if gpus else ""
    return f"{job}{TABLE}    0  {comms}  1  {size}  {size}  {size * comms}   RUNNING  MISMATCH\n\nWarnings\n========\n\n{body}"


def mismatch(shares: dict[int, list[int]], call: str = "AllReduce", name: str = "aa11") -> str:
    """Text of one communicator: operations -> ranks; a share of more than one rank is not named."""
    lines = [f"#0-0 ({name}) MISMATCH", f"  Communicator ranks have different {call} operation counts"]
    for count, ranks in shares.items():
        lines.append(
            f"  {len(ranks)} ranks have launched up to operation {count}"
            if len(ranks) > 1
            else f"  Rank {ranks[0]} has launched up to operation {count} -- GPU {ranks[0]} managed by process {700 + ranks[0]} on node n1"
        )
    return "\n".join(lines) + "\n\n"


def told(folder: Path, *answers: str) -> HangVerdict:
    for number, answer in enumerate(answers):
        (folder / f"ras{number}.txt").write_text(answer)
    hang = collect([str(folder)])
    assert [(f.what, f.problem) for f in hang.files] == [("ras", "")] * len(answers)
    return judge_hang(hang)


def as_json(*communicators: tuple[str, dict[int, dict[str, int]], dict[int, dict[str, bool]]]) -> str:
    rows = [{"hash": name, "size": len(counts) + len(missing), "ranks": [
        {"rank": r, "host": "n1", "pid": 700 + r, "cuda_dev": r, "nvml_dev": r, "collective_counts": c} for r, c in counts.items()],
        "missing_ranks": [{"rank": r, "host": "n1", "pid": 700 + r, "cuda_dev": r, "nvml_dev": r, "status": s} for r, s in missing.items()]}
        for name, counts, missing in communicators]
    return json.dumps({"nccl_version": "2.29.2", "communicators_count": len(rows), "communicators": rows})


@pytest.mark.parametrize(
    ("shares", "culprits"),
    [
        ({41: [0, 1, 3], 40: [2]}, (2,)),
        ({41: [0, 1, 2], 42: [3]}, (3,)),
        ({41: [0, 1], 40: [2, 3]}, ()),
        ({5: [0], 6: [1], 7: [2], 8: [3]}, ()),
    ],
)
def test_who_is_apart_from_most_is_named_and_nobody_without_a_majority(tmp_path, shares, culprits) -> None:
    found = told(tmp_path, text(4, mismatch(shares)))
    assert found.culprits == culprits and found.kind == ("skipped" if culprits else "unknown")
    assert found.status == ("possible" if culprits else None), "one answer shows no standstill"


def test_a_second_answer_decides_whether_the_job_stands_still(tmp_path) -> None:
    stands = text(4, mismatch({41: [0, 1, 3], 40: [2]}))
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    found = told(tmp_path / "a", stands, stands)
    assert (found.culprits, found.status) == ((2,), "likely")
    assert told(tmp_path / "b", stands, text(4, mismatch({49: [0, 1, 3], 48: [2]}))).culprits == ()


def test_a_rank_of_a_smaller_communicator_has_no_known_number_in_the_job(tmp_path) -> None:
    found = told(tmp_path, text(4, mismatch({41: [0, 1, 3], 40: [2]}), gpus=8))
    assert found.culprits == () and "702" in found.sentence


def test_who_waits_in_one_communicator_is_not_blamed_for_being_late_in_another(tmp_path) -> None:
    """Rank 1 is late in the large one, as it waits for rank 0 in the small one."""
    large = {r: {"AllReduce": 9 if r == 1 else 10} for r in range(4)}
    found = told(tmp_path, as_json(("a1", large, {}), ("b2", {0: {"AllGather": 3}, 1: {"AllGather": 4}}, {})))
    assert found.culprits == ()
    both = {r: {"AllReduce": 9 if r == 1 else 10, "Broadcast": 3 if r == 1 else 2} for r in range(4)}
    (tmp_path / "one").mkdir()
    found = told(tmp_path / "one", as_json(("a1", both, {})))
    assert (found.culprits, found.kind) == ((1,), "mismatch")


@pytest.mark.parametrize(("status", "kind"), [({"considered_dead": True}, "dead"), ({"unresponsive": True}, "unknown"), ({}, "unknown")])
def test_a_lost_rank_is_named_unless_more_are_lost_than_answer(tmp_path, status, kind) -> None:
    counts = {r: {"AllReduce": 7} for r in range(3)}
    found = told(tmp_path, as_json(("a1", counts, {3: status})))
    assert (found.culprits, found.kind) == ((3,), kind)
    (tmp_path / "most").mkdir()
    assert told(tmp_path / "most", as_json(("a1", {0: {}}, {r: status for r in (1, 2, 3)}))).culprits == ()


def test_text_names_the_missing_and_the_dead(tmp_path) -> None:
    place = "GPU {0} managed by process {1} on node n1"
    incomplete = f"#0-0 (aa11) INCOMPLETE\n  Missing communicator data from 1 rank\n  Rank 1 -- {place.format(1, 701)}\n\n"
    dead = "DEAD\n  1 process is considered dead\n  Process 701 on node n1 managing GPU 1\n\n"
    assert (told(tmp_path, text(4, incomplete)).kind, judge_hang(collect([str(tmp_path)])).culprits) == ("unknown", (1,))
    (tmp_path / "dead").mkdir()
    found = told(tmp_path / "dead", text(4, incomplete + dead))
    assert (found.kind, found.culprits) == ("dead", (1,))
    (old,) = live_answers_ask_ras.read_ras(
        "x", text(4, "#0-0 (aa11) INCOMPLETE\n  Missing communicator data from 2 ranks\n  The missing ranks: 1,3\n")
    )
    assert [(r.rank, bool(r.missing)) for r in old.communicators[0].ranks] == [(1, True), (3, True)], "NCCL 2.24"


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.integers(0, 7), st.integers(1, 3), min_size=2, max_size=8))
def test_text_gives_back_the_counts_that_it_was_written_from(counts: dict[int, int]) -> None:
    counts = dict(enumerate(counts.values()))
    shares = {n: [r for r, count in counts.items() if count == n] for n in sorted(set(counts.values()))}
    (answer,) = live_answers_ask_ras.read_ras("x", text(len(counts), mismatch(shares)))
    ranks = answer.communicators[0].ranks
    assert sorted(r.launched["AllReduce"] for r in ranks) == sorted(counts.values()) and answer.gpus == len(counts)
    assert all(counts[r.rank] == r.launched["AllReduce"] for r in ranks if r.rank >= 0)
    for row in apart(ranks):
        assert row.usual is None or 2 * list(counts.values()).count(row.usual) > len(counts)


@settings(max_examples=80, deadline=None)
@given(
    st.text(max_size=80)
    | st.lists(
        st.sampled_from(
            [
                TABLE,
                "    0  1  1  4  4  4  RUNNING  OK\n",
                "#0-0 (aa) MISMATCH\n",
                "#7-0 (bb) INCOMPLETE\n",
                "DEAD\n",
                "  Rank 9999999 --\n",
                "  Communicator ranks have different X operation counts\n",
                "  9999999 ranks have launched up to operation 1\n",
                "  Rank 1\n",
                "{",
                "}",
            ]
        )
    ).map("".join)
)
def test_any_text_gives_answers_or_a_gap(data: str) -> None:
    assert isinstance(live_answers_ask_ras.read_ras("x", data), (list, Gap))


@pytest.mark.parametrize("as_text", [True, False])
def test_triage_reads_an_answer_of_ras_as_hang_does(tmp_path: Path, as_text: bool) -> None:
    counts = {rank: {"AllReduce": 40 if rank == 2 else 41} for rank in range(4)}
    (tmp_path / "ras.txt").write_text(text(4, mismatch({41: [0, 1, 3], 40: [2]})) if as_text else as_json(("aa11", counts, {})))
    alone, beside = (json.loads(read_cli(command, tmp_path, "--json").stdout) for command in ("hang", "triage"))
    assert alone["culprits"] == [2] and alone["sentence"].rstrip(".") in beside["sentence"]
    assert beside["hypotheses"][0]["cause"] == alone["cause"] and beside["dumps"]
