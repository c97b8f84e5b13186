"""Clocks of several hosts: how far they are apart is told by what both print, and nobody is called the first within the error."""
from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given, settings, strategies as st
from nccl_runbook.logs.facts import LogLine
from nccl_runbook.logs.text import Clocks
from nccl_runbook.messages import read as reader
from nccl_runbook.triage import judge as triage
from nccl_runbook.triage.table import order_table
from triage_samples import WATCHDOG

START = dt.datetime(2026, 11, 20, 12, 0, 0)


def stamp(seconds: float) -> str:
    return (START + dt.timedelta(seconds=seconds)).isoformat(sep=" ", timespec="milliseconds")


def job(tmp_path, ahead: float, raised: dict[int, float], steps: int = 8, jitter: float = 0.0):
    """Three ranks on three hosts; the clocks of ranks 1 and 2 are ``ahead``; ``raised``: rank -> true second of its own exception."""
    for rank in range(3):
        own = ahead if rank else 0.0
        lines = [f"{stamp(10 * n + own + (jitter if n % 2 and rank else 0.0))} [rank{rank}]: step {n} loss 1.5" for n in range(steps)]
        if rank in raised:
            lines.append(f"{stamp(raised[rank] + own)} [rank{rank}]: ValueError: bad sample")
        else:
            lines.append(WATCHDOG.format(r=rank, s=9, o="ALLREDUCE", n=64, t=600000).strip())
        (tmp_path / f"host{rank}.log").write_text("\n".join(lines) + "\n")
    return reader.collect([str(tmp_path)])


def crash(logs):
    return next(h for h in triage.judge(logs) if h.cause == "peer-crashed")


@pytest.mark.parametrize("ahead", [0.0, 37.5, -3600.0])
def test_the_first_is_named_whatever_the_clocks_say(tmp_path, ahead):
    logs = job(tmp_path, ahead, {0: 90.0, 1: 85.0})
    assert (
        [round(c.offset_s, 3) for c in logs.clocks] == [0.0, ahead, ahead]
        and crash(logs).evidence[0].rank == 1
        and crash(logs).against == ()
    )


def test_nobody_is_the_first_within_the_error(tmp_path):
    logs = job(tmp_path, 5.0, {0: 90.0, 1: 90.4}, jitter=0.9)
    told = crash(logs)
    assert {e.rank for e in told.evidence[:2]} == {0, 1} and told.against == (
        f"ranks {told.evidence[0].rank}, {told.evidence[1].rank} failed too close together to show which was first",
    )


def test_nobody_is_the_first_where_nothing_ties_the_clocks_together(tmp_path):
    logs = job(tmp_path, 5.0, {0: 90.0, 1: 200.0}, steps=2)
    assert len(logs.clocks) == 1 and "too close together" in crash(logs).against[0]


def test_the_order_is_shown_on_one_clock(tmp_path):
    table = order_table(job(tmp_path, -3600.0, {0: 90.0, 1: 85.0}))
    assert [(row[1].text, row[3].text) for row in table.rows if row[3].text == "first error"] == [
        ("1", "first error"),
        ("0", "first error"),
    ] and "give or take" in table.note


@given(offsets=st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=4), events=st.integers(3, 12))
@settings(max_examples=60, deadline=None)
def test_offsets_are_found_again(offsets, events):
    clocks = Clocks()
    for number in range(events):
        for host, ahead in enumerate([0.0, *offsets]):
            clocks.take(LogLine("a.log", 1, "", None, f"h{host}", 1e5 + 7.0 * number + ahead), f"step {number} loss 1")
    told = {c.clock: c for c in clocks.offsets()}
    assert [told[f"h{h + 1}"].offset_s for h in range(len(offsets))] == pytest.approx(offsets, abs=2e-3) and all(
        c.error_s < 2e-3 for c in told.values()
    )


@pytest.mark.parametrize("text", ["step two", "stepping 3", "commId 0xab - Init START", ""])
def test_what_is_no_shared_event_moves_no_clock(text):
    clocks = Clocks()
    for host in ("a", "b"):
        clocks.take(LogLine("x", 1, text, None, host, 3.0), text)
    assert clocks.offsets() == []


def test_a_rank_without_any_time_is_in_the_picture_and_every_wait_has_its_start(tmp_path):
    """A traceback has no time stamp: the rank that failed was the only one missing from the picture."""
    for rank in range(4):
        text = WATCHDOG.format(r=rank, s=9, o="ALLREDUCE", n=64, t=60000 + rank).replace(
            "03:15.806190993", f"03:15.80619{rank * 37 % 10}993"
        )
        if rank == 2:
            text = '[rank2]: Traceback (most recent call last):\n[rank2]:   File "a.py", line 9, in step\n[rank2]: ValueError: bad sample\n'
        (tmp_path / f"rank{rank}.log").write_text(text)
    table = order_table(reader.collect([str(tmp_path)]))
    assert list(table.curve.lanes)[0] == "rank 2" and set(table.curve.lanes) == {f"rank {rank}" for rank in range(4)}
    assert [len(marks) for marks in table.curve.lanes.values()] == [1, 2, 2, 2] and all(
        at >= 0 for marks in table.curve.lanes.values() for at, *_ in marks
    )
    assert table.picture.count("<circle") == table.picture.count("<rect") == 3, "a start and an end of each wait"
    assert (table.rows[0][1].text, table.rows[0][3].tone) == ("2", "broken") and "bad sample" in table.rows[0][4].text


def test_a_rank_that_also_waited_keeps_the_end_of_its_wait(tmp_path):
    for rank in range(2):
        (tmp_path / f"rank{rank}.log").write_text(
            WATCHDOG.format(r=rank, s=9, o="ALLREDUCE", n=64, t=60000) + f"[rank{rank}]: RuntimeError: bad\n"
        )
    assert {what for marks in order_table(reader.collect([str(tmp_path)])).curve.lanes.values() for _, _, what in marks} == {
        "began to wait",
        "waited 600 s",
    }


def test_the_silent_rank_stands_in_the_picture_without_a_time(tmp_path):
    waits = "".join(WATCHDOG.format(r=rank, s=9, o="ALLREDUCE", n=64, t=60000) for rank in (1, 2))
    (tmp_path / "job.log").write_text(f"[rank0]: step 8 loss 2.7\n{waits}")
    table = order_table(reader.collect([str(tmp_path)]))
    assert list(table.curve.lanes) == ["rank 1", "rank 2", "rank 0"]
    assert [cell.text for cell in table.rows[-1]][:2] == ["no time", "0"] and "step 8" in table.rows[-1][4].text
