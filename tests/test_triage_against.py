"""A good run beside the bad one: what became slower, what differs, and what of it could explain that; and what cannot."""
from __future__ import annotations

import json

import jsonschema
import pytest
from hypothesis import given, settings, strategies as st
from nccl_runbook.against import judge as against, read as log_profile
from nccl_runbook.against.facts import Comparison, RunProfile
from nccl_runbook.case.gathered import of_logs
from nccl_runbook.core.facts import Gap, to_json
from nccl_runbook.core.findings import Severity
from nccl_runbook.messages import read as logs
from processes import ROOT
from pydantic import TypeAdapter
from warm_cli import read_cli

SCHEMA = json.loads((ROOT / "lib/nccl_runbook/schemas/triage.json").read_text())


def run_log(
    syncs=(22.0, 21.5, 23.0, 22.4),
    comms_per_sync=0,
    network="AWS Libfabric",
    via="NET/AWS Libfabric/0/GDRDMA",
    env=(),
    nccl="2.27.5",
    bus="901000",
):
    """The log of two ranks: NCCL's own lines, and the times of a trainer."""
    head = [
        f"NCCL version {nccl}+cuda12.9",
        f"node1:7:9 [0] NCCL INFO Using network {network}",
        *(f"node1:7:9 [0] NCCL INFO {e}" for e in env),
    ]
    opened, lines = 0, []
    for number, seconds in enumerate(syncs):
        for _ in range(comms_per_sync if number or comms_per_sync else 1):
            opened += 1
            lines += [
                f"node1:{7 + r}:9 [{r}] NCCL INFO ncclCommInitRankConfig comm 0x{opened}{r} rank {r} nranks 2 cudaDev {r} nvmlDev {r} busId"
                f" {bus if r else '1000'} commId 0x{opened}a - Init COMPLETE"
                for r in (0, 1)
            ]
            lines += [f"node1:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via {via}"]
        lines += [f"step {number} loss 0.5 step_time: 130.{number} s", f"weight sync took {seconds} s"]
    return "\n".join(head + lines) + "\n"


def profile(tmp_path, text, name="run.log") -> RunProfile:
    (tmp_path / name).write_text(text)
    return log_profile.collect([str(tmp_path / name)])


def compared(tmp_path, good: str, bad: str) -> Comparison:
    return against.compare(profile(tmp_path, good, "good.log"), profile(tmp_path, bad, "bad.log"))


SLOW = (48.0, 47.5, 50.1, 49.0)


def test_the_table_of_a_slower_sync_names_what_could_explain_it_and_what_cannot(tmp_path):
    told = compared(tmp_path, run_log(comms_per_sync=1), run_log(SLOW, comms_per_sync=3, env=["NCCL_DEBUG set by environment to INFO."]))
    assert [(t.kind, t.good[0], t.says) for t in told.times] == [("step", 4, "as before"), ("sync", 4, "2.2 times slower")] and told.slower
    assert [(d.name, d.good, d.bad, d.could_explain) for d in told.differences] == [("communicators opened per sync", "1", "3", True)]
    told = compared(
        tmp_path,
        run_log(env=["NCCL_ALGO set by environment to Ring"]),
        run_log(
            SLOW,
            env=["NCCL_ALGO set by environment to Ring", "NCCL_DEBUG set by environment to INFO.", "NCCL_TIMEOUT set by environment to 9"],
        ),
    )
    assert [(d.name, d.good, d.bad, d.could_explain) for d in told.differences] == [
        ("NCCL_DEBUG", "not set", "INFO", False),
        ("NCCL_TIMEOUT", "not set", "9", False),
    ]


@pytest.mark.parametrize(
    "change, kind, good, bad",
    [
        ({"network": "Socket", "via": "NET/Socket/0"}, "network", "AWS Libfabric", "Socket"),
        ({"via": "NET/Socket/0"}, "transport", "NET/AWS Libfabric/GDRDMA", "NET/Socket"),
        ({"nccl": "2.28.9"}, "version", "2.27.5+cuda12.9", "2.28.9+cuda12.9"),
        ({"bus": "aa000"}, "devices", "cudaDev 1 busId 901000", "cudaDev 1 busId aa000"),
    ],
)
def test_each_kind_of_difference_is_seen(tmp_path, change, kind, good, bad):
    told = compared(tmp_path, run_log(), run_log(SLOW, **change))
    first = next(d for d in told.differences if d.kind == kind)
    assert (first.good, first.bad, first.could_explain) == (good, bad, True)


@pytest.mark.parametrize(("good", "bad", "could_explain"), [
    ((4, 4), (8, 4), [True]), ((4, 4), (7, 4), []), ((8, 4), (4, 4), [False]), ((4, 4), (16, 16), []),
    ((4, 0), (8, 4), [False]), ((4, 4), (8, 0), [False]), ((4, 0), (8, 0), [False]), ((0, 4), (8, 4), []), ((4, 4), (0, 4), [])])
def test_communicators_explain_a_change_only_if_each_sync_opens_twice_as_many(good, bad, could_explain):
    """Communicators and syncs of each run."""
    runs = [RunProfile([], communicators=opened, syncs=syncs, steps=["x"]) for opened, syncs in (good, bad)]
    differences = against.compare(*runs).differences
    assert [d.could_explain for d in differences] == could_explain and {d.kind for d in differences} <= {"communicators"}
    assert [d.why == against._KINDS["communicators"] for d in differences] == could_explain
    per_sync = all(syncs for _, syncs in (good, bad))
    assert [d.why.startswith("the bad run opened fewer") for d in differences] == [per_sync and not could for could in could_explain]
    assert {d.name for d in differences} <= {"communicators opened per sync" if per_sync else "communicators opened"}


def test_several_changes_at_once_prove_none(tmp_path):
    told = compared(tmp_path, run_log(), run_log(SLOW, network="Socket", nccl="2.28.9"))
    assert "does not prove which" in told.sentence and [d.kind for d in told.differences][:1] == ["network"]
    assert "does not prove which" not in compared(tmp_path, run_log(), run_log(SLOW, nccl="2.28.9")).sentence


@pytest.mark.parametrize(
    "times, says",
    [
        ((22.2, 21.6, 22.9, 22.5), "as before"),
        ((49.0, 48.0), "too few samples"),
        ((21.0, 21.0, 49.0, 22.0), "as before"),
        ((11.0, 10.0, 11.5, 10.2), "2.1 times faster"),
    ],
)
def test_what_is_no_slower_is_not_called_so(tmp_path, times, says):
    told = compared(tmp_path, run_log(), run_log(times))
    assert next(t.says for t in told.times if t.kind == "sync") == says and not told.slower


@pytest.mark.parametrize("good, bad", [("loss 0.5\n", run_log()), (run_log(SLOW[:1]), run_log()), (run_log(), "loss 0.5\n")])
def test_where_times_cannot_be_compared_nothing_is_called_no_slower(tmp_path, good, bad):
    assert compared(tmp_path, good, bad).sentence.startswith("The two runs print too few timings to compare.")
    assert compared(tmp_path, run_log(), run_log()).sentence.startswith("No timing that both runs print became longer.")


def test_silence_of_one_log_is_no_difference(tmp_path):
    assert compared(tmp_path, run_log(), "weight sync took 50 s\n" * 4).differences == ()
    assert compared(tmp_path, run_log(), "").sentence == "Unknown: the bad run could not be read."
    assert [f.severity for f in against.findings(compared(tmp_path, run_log(), ""))] == [Severity.UNKNOWN]


@pytest.mark.parametrize(
    "line, kind, seconds",
    [
        ("elapsed time per iteration (ms): 1234.5 | lm loss", "step", 1.2345),
        (" 3%| 9/300 [00:19<10:42,  2.20s/it]", "step", 2.2),
        ("12%| 9/300 [00:19<10:42,  4.00it/s]", "step", 0.25),
        ("time/weight_sync: 7.6s", "sync", 7.6),
        ("update_weights_from_distributed took 300 ms", "sync", 0.3),
        ("h:1:1 [0] NCCL INFO Init timings - ncclCommInitRank: rank 0 nranks 8 total 1.43 (kernels 0.18)", "init", 1.43),
    ],
)
def test_times_are_read_in_their_units(tmp_path, line, kind, seconds):
    assert profile(tmp_path, line + "\n").times == {kind: [pytest.approx(seconds)]}


@pytest.mark.parametrize("line", ["step 7 of 9", "synchronise weights soon", "version 3", "h:1:1 [0] NCCL INFO AllReduce: opCount 3"])
def test_what_only_looks_like_a_time_is_none(tmp_path, line):
    assert profile(tmp_path, line + "\n").times == {}


PARTS = st.sampled_from(
    run_log(env=["NCCL_ALGO set to Ring"]).splitlines()
    + ["weight sync took ", "1.2.3", "9" * 400, "s/it", "\x00", " via ", "export NCCL_X=1"]
)


@given(text=st.lists(PARTS | st.text(max_size=9), max_size=30).map("".join))
@settings(max_examples=100, deadline=None)
def test_any_text_gives_a_profile_that_can_be_compared(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "any.log"
    path.write_bytes(text.encode("utf-8", "replace"))
    told = log_profile.collect([str(path)])
    assert (
        against.compare(told, told).differences == ()
        and TypeAdapter(RunProfile).validate_python(json.loads(json.dumps(to_json(told)))) == told
    )


def test_the_command_shows_both_runs_and_ends_3(tmp_path):
    (tmp_path / "good.log").write_text(run_log())
    (tmp_path / "bad.log").write_text(run_log(SLOW, nccl="2.28.9"))
    ended = read_cli("triage", tmp_path / "bad.log", "--against", tmp_path / "good.log", "--json", "--html", tmp_path / "page.html")
    document = json.loads(ended.stdout)
    jsonschema.validate(document, SCHEMA)
    assert (ended.returncode, document["verdict"]) == (3, "degraded") and document["against"]["sentence"].rstrip(".") in document[
        "sentence"
    ]
    assert "The good run and the bad run" in (tmp_path / "page.html").read_text()
    assert read_cli("triage", tmp_path / "bad.log", "--against", tmp_path / "none.log").returncode == 2


def test_a_record_that_lacks_a_run_has_no_comparison():
    told = against.compare(Gap("absent", "the record holds no good"), RunProfile([], steps=["x"]))
    assert told.sentence.startswith("Unknown: the good run") and told.differences == () and against.findings(None) == []


def test_a_sync_that_every_rank_times_is_one_sync(tmp_path):
    for rank in range(4):
        (tmp_path / f"rank{rank}.log").write_text(run_log(comms_per_sync=2))
    together = "".join(f"[rank{rank}]: {line}\n" for rank in range(4) for line in run_log(comms_per_sync=2).splitlines())
    assert log_profile.collect([str(tmp_path)]).syncs == profile(tmp_path / "..", together, "together.log").syncs == 4


def test_beside_a_slower_run_nothing_is_called_harmless(tmp_path):
    quiet = "node1:7:9 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.\n"
    good, bad = tmp_path / "good.log", tmp_path / "bad.log"
    good.write_text(quiet + run_log())
    bad.write_text(quiet + run_log(SLOW))
    told = json.loads(read_cli("triage", str(bad), "--against", str(good), "--json").stdout)
    assert "benign" not in [h["cause"] for h in told["hypotheses"]] and "2.2 times slower" in told["sentence"]
    told = json.loads(read_cli("triage", str(bad), "--against", str(bad), "--json").stdout)
    assert [h["cause"] for h in told["hypotheses"]] == ["benign"]
    read = logs.collect([str(bad)])  # as the notebook does it
    runs = [log_profile.collect([str(p)]) for p in (good, bad)]
    for other, calls_it_harmless in ((runs[0], False), (runs[1], True)):
        found = of_logs(read, None, against.compare(other, runs[1]))
        assert ("benign" in [f.cause for f in found.findings]) is calls_it_harmless
