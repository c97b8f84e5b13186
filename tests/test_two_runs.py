"""Two whole runs: what changed since it worked, and which of it could explain what leads in the bad run."""
from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jsonschema
import pytest
from book_samples import GOOD, make_book
from hypothesis import given, settings, strategies as st
from nccl_runbook.against import judge as against, read as read_profile
from nccl_runbook.against.facts import RunProfile
from nccl_runbook.causes.causes import causes
from nccl_runbook.causes.tables import table
from nccl_runbook.core.facts import to_json
from nccl_runbook.core.findings import Finding, Remedy, Severity
from nccl_runbook.core.records import Judged, Record, save
from nccl_runbook.core.redact import Redactor
from nccl_runbook.logs.facts import FileRead
from processes import ROOT
from warm_cli import read_cli
from world_samples import P2P, SHM, world

SCHEMA = json.loads((ROOT / "lib/nccl_runbook/schemas/diagnose.json").read_text())
FIX = (Remedy("you", "Choose one that is there:", ("unset NCCL_SOCKET_IFNAME",)),)
H200 = Judged(python="python3", torch="2.11.0+cu130", cuda="13.0", nccl="2.28.9", gpus=["0: NVIDIA H200", "1: NVIDIA H200"], host="node1")


def seen(variables=(), nofile="65536", **role) -> dict:
    """The environment of one rank, as 02 records it."""
    return {
        "environment": {
            "roles": [{"name": "a rank", "variables": {"OMP_NUM_THREADS": "1", **dict(variables)}, "nofile": nofile, **role}],
            "host": {"hcas": [], "iommu": "off", "acs": {"reason": "absent", "detail": "no bridge was read"}},
        }
    }


def machine(links="NV18", driver="580.65.06") -> dict:
    gpus = [
        {"nvml_index": i, "name": "NVIDIA H200", "uuid": f"GPU-{i}", "nvlinks": {"active": [True] * 18, "to_switch": True}} for i in (0, 1)
    ]
    return {"gpus": {"nvml": {"driver": driver, "gpus": gpus, "pairs": [{"a": 0, "b": 1, "level": links, "p2p_read": "ok"}]}}}


def record(step: str, facts: dict, finding: Finding | None = None, judged: Judged = H200) -> Record:
    told = finding or Finding("fine", Severity.OK, "fine")
    return Record(
        step=step,
        status=told.severity.value,
        reason=told.title,
        started="2026-11-29T06:00:00Z",
        facts=facts,
        findings=[told],
        judged=judged,
    )


def folder(where: Path, *records: Record) -> Path:
    for one in records:
        save(one, where / f"{one.step}.json", Redactor({}))
    (where / "verdict.json").write_text('{"schema": "nccl-runbook/verdict/1"}')
    return where


def profile(*records: Record) -> RunProfile:
    return read_profile.collect([], records=records)


def fault(cause: str, status: str = "established", title: str = "it is broken") -> Finding:
    return Finding("rule", Severity.BROKEN, title, remedy=FIX, cause=cause, status=status)


def differences(good: Record, bad: Record, lead: Finding | None = None) -> dict[str, tuple[bool, bool]]:
    compared = against.explained(against.compare(profile(good), profile(bad)), lead)
    return {d.name: (d.could_explain, d.is_tested) for d in compared.differences}


@pytest.mark.parametrize(
    ("step", "good", "bad", "kind", "name", "was", "now"),
    [
        ("02-environment", seen(torch="2.11.0+cu130"), seen(torch="2.13.0+cu130"), "version", "torch", "2.11.0+cu130", "2.13.0+cu130"),
        ("02-environment", seen(reported="2.26.2"), seen(reported="2.27.5"), "version", "NCCL", "2.26.2", "2.27.5"),
        ("02-environment", seen(torch_cuda="12.6"), seen(torch_cuda="12.9"), "version", "CUDA", "12.6", "12.9"),
        ("02-environment", seen(), seen({"NCCL_IB_HCA": "mlx5_9"}), "environment", "NCCL_IB_HCA", "not set", "mlx5_9"),
        ("02-environment", seen({"NCCL_IB_HCA": "mlx5_9"}), seen(), "environment", "NCCL_IB_HCA", "mlx5_9", "not set"),
        ("02-environment", seen(), seen(nofile="1024"), "limits", "open files", "65536", "1024"),
        (
            "02-environment",
            seen(mapped=["/a/libnccl.so.2"]),
            seen(mapped=["/b/libnccl.so.2"]),
            "plugin",
            "loaded library",
            "/a/libnccl.so.2",
            "/b/libnccl.so.2",
        ),
        ("01-gpu-visibility", machine(), machine(driver="550.54"), "version", "Driver Version", "580.65.06", "550.54"),
        ("01-gpu-visibility", machine(), machine(links="SYS"), "links", "link of GPUs 0 1", "NV18", "SYS"),
        (
            "04-transports",
            {"a": to_json(world(name="control", transports=P2P))},
            {"a": to_json(world(name="control", transports=SHM))},
            "transport",
            "control",
            "P2P/CUMEM",
            "SHM/direct/direct",
        ),
    ],
)
def test_each_kind_of_fact_of_a_record_is_compared(step, good, bad, kind, name, was, now):
    good, bad = (record(step, facts, judged=Judged(gpus=H200.gpus)) for facts in (good, bad))
    found = against.compare(profile(good), profile(bad)).differences
    assert [(d.kind, d.name, d.good, d.bad) for d in found] == [(kind, name, was, now)]
    assert against.compare(profile(good), profile(good)).differences == ()


def test_of_what_differs_alike_on_many_gpus_one_stands_for_all():
    def eight(level):
        return record(
            "01-gpu-visibility", {"gpus": {"nvml": {"pairs": [{"a": a, "b": b, "level": level} for a in range(8) for b in range(a)]}}}
        )

    found = against.compare(profile(eight("NV18")), profile(eight("SYS"))).differences
    assert [(d.kind, d.name, d.good, d.bad) for d in found] == [("links", "link of GPUs 1 0", "NV18", "SYS")] and "28" in found[0].why


def test_what_the_cause_depends_on_could_explain_it_and_another_thing_cannot():
    good = record("02-environment", seen(reported="2.26.2"))
    bad = record(
        "02-environment",
        seen({"NCCL_SOCKET_IFNAME": "eth9", "NCCL_DEBUG": "INFO", "NCCL_NOT_KNOWN": "1"}, reported="2.27.5"),
        judged=dataclasses.replace(H200, nccl="2.27.5"),
    )
    sure = {"NCCL_SOCKET_IFNAME": (True, True), "NCCL": (False, True), "NCCL_DEBUG": (False, True), "NCCL_NOT_KNOWN": (False, True)}
    assert differences(good, bad, fault("socket-interface-wrong")) == sure
    assert differences(good, bad, fault("socket-interface-wrong", "likely")) == {
        **sure,
        "NCCL": (False, False),
    }, "another cause is still open"
    assert differences(good, bad, fault("nccl-bug")) == {**sure, "NCCL": (True, True)}, "its fix names the variable, the cause the version"
    assert differences(good, bad, fault("collective-mismatch")) == {**sure, "NCCL": (False, False)}, "what it depends on is open"
    assert differences(good, bad, dataclasses.replace(fault("x"), cause=None, status=None)) == {**sure, "NCCL": (False, False)}
    assert differences(good, bad) == {**sure, "NCCL": (True, True)}, "nothing leads: each could explain a change"


def test_what_a_cause_touches_is_a_kind_of_difference_and_a_name_that_some_reader_gives():
    rows, kinds = table("against/profile"), {*table("against/profile")["kind"]}
    for row in rows["touch"]:
        assert {touch.partition(" ")[0] for touch in row["kinds"]} <= kinds and {*row["causes"]} <= {*causes()}, row
    named = [cause for row in rows["touch"] for cause in row["causes"]]
    assert len(named) == len({*named}) and {row["kind"] for row in rows["fact"]} <= {*kinds, "time"}


def test_two_sources_of_one_thing_are_no_difference():
    """A log names the CUDA of a build, and only the variables that NCCL read; a record names every variable that was set."""
    by_record = profile(record("02-environment", seen({"NCCL_ALGO": "Ring"}, reported="2.27.5"), judged=Judged()))
    by_log = RunProfile([FileRead("train.log", 9, lines=1)], {"version": {"NCCL": ["2.27.5+cuda12.9"]}}, variables_from=["log"])
    assert against.compare(by_record, by_log).differences == () == against.compare(by_log, by_record).differences
    other = dataclasses.replace(by_log, settings={"version": {"NCCL": ["2.28.9+cuda12.9"]}, "environment": {"NCCL_PROTO": ["LL"]}})
    for pair in ((by_record, other), (other, by_record)):
        assert {d.name for d in against.compare(*pair).differences} == {"NCCL", "NCCL_PROTO"}


@pytest.mark.parametrize(
    ("slow", "says", "judged"),
    [
        (1.0, "as before", H200),
        (1.1, "as before", H200),
        (13.0, "13.0 times slower", H200),
        (0.5, "2.0 times faster", H200),
        (13.0, None, Judged()),
    ],
)
def test_bandwidths_are_compared_between_the_controls_of_two_gpu_runs(slow, says, judged):
    """One world is no spread, and a rehearsal on the CPU is noise: neither is called slower."""
    def run(by):
        return profile(
            record(
                "04-transports",
                {
                    "a": [
                        to_json(world(name=name, slow=by * drift))
                        for name, drift in (("control", 1.0), ("P2P off", 1.0), ("control again", 1.01))
                    ]
                },
                judged=judged,
            )
        )

    told = against.compare(run(1.0), run(slow))
    assert {t.kind: t.says for t in told.times} == ({"all_reduce, control, GB/s": says, "send_recv, control, GB/s": says} if says else {})
    assert {t.unit for t in told.times} <= {"GB/s"} and told.slower is (says == "13.0 times slower")


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            [
                "environment",
                "roles",
                "variables",
                "gpus",
                "nvml",
                "pairs",
                "level",
                "a",
                "runs",
                "arms",
                "syncs",
                "seconds",
                "request",
                "ranks",
                "transports",
                "key",
            ]
        )
        | st.text(max_size=3),
        inner,
        max_size=4,
    ),
    max_leaves=20,
)


@given(
    facts=st.dictionaries(st.sampled_from(["environment", "gpus", "runs", "arms"]), JSON),
    events=st.lists(
        st.dictionaries(
            st.sampled_from(["event", "op", "size_bytes", "median_s", "bus_factor"]), st.sampled_from(["op", 0, 1.5, None, [], "x"])
        ),
        max_size=3,
    ),
)
@settings(max_examples=100, deadline=None)
def test_any_facts_give_a_profile_that_equals_itself(facts, events):
    odd = to_json(world(1))
    odd["ranks"][0]["events"] = events
    told = profile(record("04-transports", {**facts, "world": odd}))
    assert against.compare(told, told).differences == () and not against.compare(told, told).slower
    assert told.steps == ["04-transports"] and all(
        isinstance(v, str) and v for by in told.settings.values() for values in by.values() for v in values
    )


def test_diagnose_lays_a_run_beside_a_good_one(tmp_path):
    good = folder(tmp_path / "good", record("02-environment", seen(reported="2.28.9")))
    bad = folder(
        tmp_path / "bad",
        record("02-environment", seen({"NCCL_SOCKET_IFNAME": "eth9"}, nofile="1024", reported="2.28.9"), fault("socket-interface-wrong")),
    )
    ended = read_cli("diagnose", bad, "--against", good, "--json", "--html", tmp_path / "page.html")
    told = json.loads(ended.stdout)
    jsonschema.validate(told, SCHEMA)
    assert (ended.returncode, told["verdict"], told["lead"]["cause"]) == (3, "broken", "socket-interface-wrong")
    assert {d["name"]: (d["could_explain"], d["is_tested"]) for d in told["against"]["differences"]} == {
        "NCCL_SOCKET_IFNAME": (True, True),
        "open files": (False, True),
    }
    assert (
        told["sentence"].startswith("Broken: it is broken")
        and "NCCL_SOCKET_IFNAME" in told["sentence"]
        and "open files" not in told["sentence"]
    )
    assert "The good run and the bad run" in (tmp_path / "page.html").read_text() and told["against"]["good_is"] == ""
    alone = json.loads(read_cli("diagnose", bad, "--json").stdout)
    assert alone["against"] is None and told["sentence"].startswith(alone["sentence"].rstrip("."))
    back = json.loads(read_cli("diagnose", good, "--against", bad, "--json").stdout)
    assert (back["verdict"], bool(back["against"]["good_is"])) == (
        "healthy",
        True,
    ), "the good run was broken: that is said, and changes no verdict"


def test_the_same_run_twice_says_in_how_much_nothing_differs(tmp_path):
    run = folder(tmp_path / "run", record("02-environment", seen({"NCCL_ALGO": "Ring"})))
    told = json.loads(read_cli("diagnose", run, "--against", run, "--json").stdout)["against"]
    assert told["differences"] == [] and told["settings"] > 3 and "no difference" in told["sentence"]
    nothing = against.compare(RunProfile([], steps=["x"]), RunProfile([], steps=["x"]))
    assert (nothing.settings, nothing.sentence) == (
        0,
        "The two runs have no version and no setting in common to compare.",
    ), "silence is no sameness"


def test_a_log_is_compared_with_a_run(tmp_path):
    good = folder(tmp_path / "good", record("02-environment", seen(reported="2.27.5"), judged=Judged()))
    (tmp_path / "job.log").write_text("NCCL version 2.27.5+cuda12.9\nn1:7:9 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth9\n"
                                      "n1:7:9 [0] bootstrap.cc:114 NCCL WARN Bootstrap : no socket interface found\n")
    for command in ("diagnose", "triage"):
        told = json.loads(read_cli(command, tmp_path / "job.log", "--against", good, "--json").stdout)["against"]
        assert [(d["name"], d["good"], d["bad"], d["could_explain"]) for d in told["differences"]] == [
            ("NCCL_SOCKET_IFNAME", "not set", "eth9", True)
        ]


def test_scripts_and_logs_are_compared_as_runs_are(tmp_path):
    for name, interface in (("good", "eth0"), ("bad", "eth9")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.sbatch").write_text(
            f"#!/bin/bash\n#SBATCH --nodes=1\nexport NCCL_SOCKET_IFNAME={interface}\nsrun python3 train.py\n"
        )
        (tmp_path / name / "train.log").write_text(
            "NCCL version 2.27.5+cuda12.9\nnode1:7:9 [0] bootstrap.cc:114 NCCL WARN Bootstrap : no socket interface found\n"[
                : None if name == "bad" else 29
            ]
        )
    told = json.loads(read_cli("diagnose", tmp_path / "bad", "--against", tmp_path / "good", "--json").stdout)
    assert [(d["name"], d["good"], d["bad"], d["could_explain"]) for d in told["against"]["differences"]] == [
        ("NCCL_SOCKET_IFNAME", "eth0", "eth9", True)
    ]
    assert told["lead"]["cause"] == "socket-interface-wrong"


def test_a_good_run_that_cannot_be_compared_is_one_sentence(tmp_path):
    bad = folder(tmp_path / "bad", record("02-environment", seen()))
    other = folder(tmp_path / "other", record("01-gpu-visibility", machine()))
    (tmp_path / "empty").mkdir()
    (tmp_path / "words.log").write_text("loss 0.5\n")
    (tmp_path / "broken.json").write_text('{"schema": "nccl-runbook/record/2"}')
    for good in (tmp_path / "empty", tmp_path / "words.log", tmp_path / "broken.json", tmp_path / "nosuch", other):
        by_log = [["triage", tmp_path / "words.log"]] * (good != other)  # it has a record: then the answer says that nothing is in both
        for command in (["diagnose", bad], *by_log, ["run", "--step", "02-environment", "--out", tmp_path / "out"]):
            ended = read_cli(*command, "--against", good)
            assert (ended.returncode, ended.stdout) == (2, ""), good
            assert ended.stderr.startswith("nccl-runbook: ") and ended.stderr.count("\n") == 1 and good.name in ended.stderr
            assert not (tmp_path / "out").exists()


def test_a_run_beside_a_good_one_ends_as_it_would_alone(tmp_path):
    """The comparison is a step of its own, on the page and in verdict.json, and changes neither verdict nor exit code."""
    book = make_book(tmp_path / "book", n02_environment=GOOD + f"\nstep.record.facts = {seen({'NCCL_ALGO': 'Ring'})!r}\nstep.save()")
    good = folder(tmp_path / "good", record("02-environment", seen(), judged=Judged()))
    ended = read_cli("run", "--notebooks", book, "--against", good, "--out", tmp_path / "out", "--json")
    document = json.loads(ended.stdout)
    assert (ended.returncode, document["verdict"]) == (0, "healthy"), ended.stderr
    assert [(s["notebook"], s["status"]) for s in document["steps"]] == [("02-environment", "ok"), ("98-against", "note")]
    assert (
        document["steps"][1]["findings"][0]["id"] == "run-differs-from-good-run"
        and json.loads((tmp_path / "out" / "verdict.json").read_text()) == document
    )
    assert "NCCL_ALGO" in ended.stderr and "The good run and the bad run" in (tmp_path / "out" / "index.html").read_text()
