"""The bench judges its own figures: ratios, goals, and what nccl-tests prints. What it measures is run by `make bench`."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench import Row, as_table, build_nccl_tests, busbw_of, not_measured, save

# all_reduce_perf of nccl-tests 2.19.6, 4 GPUs
PRINTED = """# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
   268435456      67108864     float     sum      -1  1163.77  230.66  345.99    N/A  1160.46  231.32  346.98    N/A
  1073741824     268435456     float     sum      -1  4511.46  238.00  357.00    N/A  4513.98  237.87  356.80    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 351.692
"""


def test_bus_bandwidth_out_of_place_is_read_per_size() -> None:
    assert busbw_of(PRINTED) == {268435456: 345.99, 1073741824: 357.0}
    assert busbw_of(PRINTED.replace("  -1 ", "   0 ").replace(" sum ", " none ")) == {268435456: 345.99, 1073741824: 357.0}
    assert busbw_of("# nothing\n  Avg 12\n") == {}


@pytest.mark.parametrize(("goal", "ours", "peer", "met"), [
    ("<= 0.4", [4.0, 3.0, 5.0], [10.0, 10.0, 10.0], True), ("<= 0.4", [4.1, 4.2, 1.0], [10.0, 10.0, 10.0], False),
    (">= 0.97", [98.0, 97.0, 20.0], [100.0, 100.0, 100.0], True), (">= 0.97", [96.0], [100.0], False),
    ("<= 10", [9.0, 11.0, 9.5], [], True), ("", [1.0], [2.0], None), ("<= 1", [], [], None)])
def test_a_goal_is_met_by_the_median_of_the_rounds(goal: str, ours: list[float], peer: list[float], met: bool | None) -> None:
    assert Row("s", "w", "s", ours, peer, goal).met is met


def test_what_was_not_measured_is_never_met(tmp_path: Path) -> None:
    rows = [Row("bandwidth", "<b>not measured</b>", "", [], [], ">= 0.97", "no nvcc"), Row("launch", "w", "s", [2.0], [8.0], "<= 0.4")]
    save(rows, {"torch": "2.13.0"}, tmp_path)
    told = json.loads((tmp_path / "bench.json").read_text())
    assert [row["met"] for row in told["rows"]] == [None, True] and told["rows"][1]["ratio"]["median"] == 0.25
    assert "not measured" in repr(as_table(rows)).splitlines()[2] and "<b>" not in (tmp_path / "index.html").read_text()


def test_a_section_that_was_not_measured_is_named() -> None:
    assert repr(as_table(not_measured("bandwidth", "needs two GPUs"))).splitlines()[-1].split() == [
        "bandwidth",
        "not",
        "measured",
        "needs",
        "two",
        "GPUs",
    ]


def test_programs_that_are_built_already_are_taken(tmp_path: Path) -> None:
    for name in ("all_reduce_perf", "broadcast_perf", "all_gather_perf", "sendrecv_perf"):
        (tmp_path / name).touch()
    assert build_nccl_tests(tmp_path, tmp_path, tmp_path / "into")["send_recv"] == tmp_path / "sendrecv_perf"
