"""The verdict document: sums, merges, sentences, exit codes, schemas."""

import dataclasses
import errno
import json
import os
import re
import resource
from pathlib import Path

import jsonschema
import nccl_runbook
import pytest
import report_samples as samples
from hypothesis import given, strategies as st
from nccl_runbook.core import records
from nccl_runbook.core.facts import Gap, to_json
from nccl_runbook.core.findings import (
    EXIT_CODES,
    NOTHING_KNOWN,
    Evidence,
    Finding,
    Remedy,
    Severity,
    exit_code,
)
from nccl_runbook.core.records import read
from nccl_runbook.report import run as rules
from nccl_runbook.report.run import RunFolder, info_of, write_run
from nccl_runbook.report.tables import Cell, not_looked_at_table
from nccl_runbook.report.verdict import fixes, merge_causes, verdict_document
from nccl_runbook.report.verdict_document import RunInfo, VerdictDocument
from nccl_runbook.report.verdict_sentence import leading
from pydantic import TypeAdapter

SCHEMAS = Path(nccl_runbook.__file__).parent / "schemas"


@pytest.mark.parametrize(
    "sample, data, code",
    [
        ("healthy", r"Healthy: torch 2\.11\.0\+cu130, NCCL 2\.28\.9 .*4 GPUs; 4 steps .*", 0),
        ("duplicate-gpu", r"Broken: ranks 0 and 1 .*\(established\).", 3),
        ("cpu-only", r"Unknown: .*GPU.*; .*Gloo.*", 4),
        ("interrupted", r"Unknown: interrupted .*1 of 4.*", 130),
    ],
)
def test_sentence_and_exit_code(sample, data, code):
    document = verdict_document(*samples.SAMPLES[sample]())
    assert re.fullmatch(data, document.sentence) and document.exit_code == code


def test_a_rehearsal_is_told_once_and_never_as_health():
    run, found = samples.cpu_only()
    told = Finding("rehearsed", Severity.UNKNOWN, "no GPU was used: rehearsal on Gloo with 1 and 2 ranks, all right")
    rehearsals = [samples.record(step, [told]) for step in ("03-fewer-gpus", "04-transports", "05-weight-sync")]
    assert verdict_document(run, [found[0], *rehearsals[:1]]).sentence.startswith("Running: 2 of 4 ")
    without = dataclasses.replace(run, **{"planned": ["01-gpu-visibility", "03-fewer-gpus"]})
    rehearsed = told.title.partition(": ")[2]
    assert verdict_document(without, [found[0], rehearsals[0]]).sentence == f"Unknown: {found[0].findings[0].title}; {rehearsed}."
    assert verdict_document(run, [found[0], *rehearsals]).sentence == f"Unknown: {told.title}."


def test_a_run_before_its_first_step_is_running_and_unknown():
    document = verdict_document(samples.run_info(), [])
    assert document.sentence.startswith("Running: 0 of 4 ")
    assert (document.verdict, document.exit_code, document.running) == ("unknown", 4, True)
    assert {s.status for s in document.steps} == {"unknown"}


def test_a_page_of_a_run_that_was_killed_tells_when_it_was_written(tmp_path):
    document = write_run(tmp_path, samples.run_info())
    assert document.written in (tmp_path / "index.html").read_text()
    document = write_run(tmp_path, samples.run_info(interrupted=True))
    assert document.written not in (tmp_path / "index.html").read_text()


def test_a_page_that_does_not_fit_on_the_disk_leaves_the_verdict_that_belongs_to_the_old_one(tmp_path):
    """A size limit stands in for the full disk: both end a write halfway with an OSError."""
    run, _ = samples.healthy()
    write_run(tmp_path, run)
    old = {path: path.read_text() for path in tmp_path.iterdir()}
    page, verdict = (len(old[tmp_path / name].encode()) for name in ("index.html", "verdict.json"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (page // 2, limits[1]))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            write_run(tmp_path, dataclasses.replace(run, **{"interrupted": True}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert verdict < page // 2, "else the limit stops verdict.json already"
    assert {path: path.read_text() for path in tmp_path.iterdir()} == old


STEPS = ["06-timeouts", "07-logs", "03-fewer-gpus", "02-environment"]  # the strongest proof first


def told(step: str, cause: str, status: str, severity: Severity = Severity.BROKEN) -> records.Record:
    finding = Finding("f", severity, f"{step} {cause}", (), (Remedy("you", "do it"),), cause, status)
    return records.Record(step=step, status="broken", started="2026-11-28T00:00:00Z", findings=[finding])


@pytest.mark.parametrize(("rows", "first"), [
    ([("02-environment", "ulimit-too-low", "established"), ("07-logs", "nvml-call-failed", "established")], "07-logs"),
    ([("07-logs", "nvml-call-failed", "established"), ("06-timeouts", "collective-mismatch", "established")], "06-timeouts"),
    ([("07-logs", "nvml-call-failed", "established"), ("06-timeouts", "collective-on-some-ranks-only", "likely")], "06-timeouts"),
    ([("06-timeouts", "peer-crashed", "likely"), ("07-logs", "gpu-memory-exhausted", "established")], "07-logs"),
    ([("06-timeouts", "collective-mismatch", "possible"), ("02-environment", "ulimit-too-low", "established")], "02-environment"),
    ([("03-fewer-gpus", "shm-too-small", "likely"), ("02-environment", "ulimit-too-low", "possible")], "03-fewer-gpus")])
def test_the_strongest_proof_leads_whatever_the_order_of_the_steps(rows, first):
    for order in (rows, rows[::-1]):
        found = [told(*row) for row in order]
        document = verdict_document(samples.run_info(planned=[r.step for r in found], command=""), found)
        lead = leading(document.steps, document.causes)
        assert lead is not None and lead.title.startswith(first) and lead.title in document.sentence


def test_what_has_a_likely_cause_leads_among_experiments():
    hung = dataclasses.replace(told("03-fewer-gpus", "straggler", "possible"))
    hung.findings[0] = dataclasses.replace(hung.findings[0], cause=None, status=None)
    for found in (
        [hung, told("04-transports", "p2p-broken-acs-iommu", "likely")],
        [told("04-transports", "p2p-broken-acs-iommu", "likely"), hung],
    ):
        document = verdict_document(samples.run_info(planned=[r.step for r in found], command=""), found)
        assert leading(document.steps, document.causes).cause == "p2p-broken-acs-iommu"


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from(["shm-too-small", "peer-crashed", "straggler", "nvml-call-failed"]),
                          st.sampled_from(["established", "likely", "possible"]), st.sampled_from([Severity.BROKEN, Severity.WARN])),
                min_size=1, max_size=4, unique_by=lambda row: row[0]))
def test_nothing_leads_before_what_is_proven(rows):
    document = verdict_document(samples.run_info(planned=[], command=""), [told(*row) for row in rows])
    lead, status = leading(document.steps, document.causes), {c.id: c.status for c in document.causes}
    proven = [row for row in rows if status[row[1]] == "established"]
    assert lead and (not proven or status[lead.cause] == "established" or lead.title.startswith("06-timeouts"))


def test_a_running_run_tells_trouble_at_once():
    document = verdict_document(samples.run_info(), samples.duplicate_gpu()[1][:2])
    assert document.sentence.startswith("Running: 2 of 4 ") and f"{samples.shared_gpu().title} (established)" in document.sentence


def test_a_step_without_a_finished_record_is_unknown_with_its_reason():
    (run, found), why = samples.healthy(), "the kernel died (signal 9)"
    run = dataclasses.replace(run, **{"not_run": {"04-transports": why, "05-weight-sync": "busy"}})
    stub = records.Record(step="04-transports", started="2026-11-20T14:03:00Z")
    document = verdict_document(run, [*found[:2], stub])
    assert [(s.notebook, s.status, s.reason, s.record) for s in document.steps[2:]] == [
        ("04-transports", "unknown", why, "04-transports.json"),
        ("05-weight-sync", "unknown", "busy", ""),
    ]
    assert document.sentence.startswith(f"Unknown: {why} (1 ") and "; 2 of 4 " in document.sentence


def test_a_finished_record_outweighs_a_reason_of_the_runner():
    run, found = samples.healthy()
    document = verdict_document(dataclasses.replace(run, not_run={"04-transports": "stopped while it said goodbye"}), found)
    assert document.verdict == "healthy"


def test_the_verdict_step_is_no_part_of_the_sum():
    run, found = samples.healthy()
    bad = samples.record("99-verdict", [Finding("no-records", Severity.UNKNOWN, "nothing was read")])
    document = verdict_document(run, [*found[:-1], bad])
    assert document.verdict == "healthy" and "99-verdict" not in {s.notebook for s in document.steps}


def test_a_fault_of_the_verdict_notebook_is_told_though_it_decides_nothing():
    run, found = samples.healthy()
    why = "NameError: name 'run' is not defined"
    failed = {"not_run": {"99-verdict": why}}
    document = verdict_document(dataclasses.replace(run, **failed), found)
    assert document.verdict == "healthy" and "99-verdict" not in str(verdict_document(run, found).not_looked_at)
    assert not_looked_at_table(document).rows[1:] == [[Cell("99-verdict"), Cell("its notebook"), Cell(why)]]
    assert "99-verdict" not in str(verdict_document(dataclasses.replace(run, **{**failed, "interrupted": True}), found).not_looked_at)


@pytest.mark.parametrize("sample, word", [("healthy", "unknown"), ("duplicate-gpu", "broken")])
def test_a_run_that_was_stopped_in_its_last_notebook_is_never_healthy(sample, word):
    """All steps are done, but the exit code is 130: a green banner beside it would contradict it."""
    run, found = samples.SAMPLES[sample]()
    stopped = {"interrupted": True, "signal": 2, "not_run": {"99-verdict": "interrupted (SIGINT)"}}
    document = verdict_document(dataclasses.replace(run, **stopped), found)
    assert (document.verdict, document.exit_code) == (word, 130)
    assert re.search(r"interrupted .*4 of 4\b", document.sentence)


def test_a_step_asked_for_by_name_that_is_skipped_is_unknown():
    skipped = samples.record("05-weight-sync", [Finding("one-gpu", Severity.SKIPPED, "needs two GPUs")])
    run, found = samples.healthy()
    assert verdict_document(run, [*found[:3], skipped]).verdict == "healthy"
    asked = verdict_document(dataclasses.replace(run, **{"asked": ["05-weight-sync"]}), [*found[:3], skipped])
    assert asked.verdict == "unknown" and asked.sentence.startswith(f"Unknown: {skipped.reason}; 3 of 4 ")


@pytest.mark.parametrize(
    "fail_on, codes", [("broken", [0, 0, 3, 0]), ("degraded", [0, 3, 3, 0]), ("unknown", [0, 3, 3, 4]), ("never", [0, 0, 0, 0])]
)
def test_exit_code_honours_fail_on(fail_on, codes):
    assert [exit_code(word, fail_on) for word in ("healthy", "degraded", "broken", "unknown")] == codes


def test_degraded_names_the_warning():
    slow = Finding("slow", Severity.WARN, "GPU 2 is 40 % slower than the others.", remedy=(Remedy("the administrator", "Look at GPU 2."),))
    run, found = samples.healthy()
    document = verdict_document(run, [samples.record("03-fewer-gpus", [slow]), *found[2:]])
    assert document.sentence.startswith("Running: ")
    document = verdict_document(run, [found[0], samples.record("03-fewer-gpus", [slow]), *found[2:]])
    assert document.sentence == f"Degraded: {slow.title}"


def test_merging_takes_the_best_status_and_joins_evidence():
    weak = samples.shared_gpu(Severity.WARN, "possible")
    elsewhere = Finding(
        "not-shared", Severity.OK, "no GPU is shared", (Evidence("4 UUIDs", "gpus"),), cause="device-not-set-per-rank", status="ruled-out"
    )
    (merged,) = merge_causes(
        [
            samples.record("01-gpu-visibility", [weak]),
            samples.record("03-fewer-gpus", [samples.shared_gpu()]),
            samples.record("04-transports", [elsewhere]),
        ]
    )
    assert merged.status == "established" and len(merged.remedy) == 2
    assert [e.source.split(":")[0] for e in merged.evidence] == ["01-gpu-visibility"] * 2  # the second step saw the same
    assert merged.against == [Evidence("4 UUIDs", "04-transports: gpus")]


def test_a_remedy_is_told_once_and_without_if_where_one_step_is_sure():
    plain, other = Remedy("your launcher", "Give it more room:", ("docker run --shm-size=8g ...",)), Remedy(
        "the administrator", "If this is the cause: Look at it."
    )
    first = Remedy("you", "End the other process.")
    told = [
        dataclasses.replace(samples.shared_gpu(), remedy=(first,)),
        dataclasses.replace(samples.shared_gpu(Severity.WARN, "likely"), remedy=(plain,)),
        dataclasses.replace(
            samples.shared_gpu(Severity.WARN, "possible"),
            remedy=(dataclasses.replace(plain, text="If this is the cause: Give it more room:"), other),
        ),
    ]
    (merged,) = merge_causes([samples.record(f"0{n}-step", [one]) for n, one in enumerate(told, 1)])
    assert merged.status == "established" and merged.remedy == [first, plain, other]  # what the surest step does not say, another one does


def test_a_ruled_out_cause_offers_no_remedy():
    (merged,) = merge_causes([samples.record("03-fewer-gpus", [samples.shared_gpu(Severity.BROKEN, "ruled-out")])])
    assert merged.remedy == [] and len(merged.evidence) == 2


def test_fixes_come_surest_first_and_once():
    loose = Finding("loose", Severity.WARN, "swap is on", remedy=(Remedy("the administrator", "Switch it off."),))
    run, found = samples.duplicate_gpu()
    document = verdict_document(run, [samples.record("01-gpu-visibility", [loose, samples.shared_gpu()]), *found[1:]])
    assert [(title, len(remedies)) for title, remedies in fixes(document)] == [(samples.shared_gpu().title, 2), (loose.title, 1)]


def test_what_may_help_goes_before_what_explains_nothing():
    """Every arm hung but P2P off: 03 could say no more than that two ranks hung, and that stood alone under The fix."""
    hung = Finding("ladder", Severity.BROKEN, "2 ranks hung", remedy=(NOTHING_KNOWN,))
    told = Finding("slow", Severity.WARN, "swap is on", remedy=(Remedy("the administrator", "Switch it off."),))
    run, found = samples.duplicate_gpu()
    shared = samples.shared_gpu(status="possible")
    for seen, titles in (([hung, shared], []), ([hung, told, shared], [told.title]), ([hung], [hung.title])):
        document = verdict_document(run, [samples.record("01-gpu-visibility", seen), *found[2:]])
        assert [title for title, _ in fixes(document)] == titles


UNSET = Remedy("your launcher", "Remove it:", ("unset NCCL_X",))


def proven(step: str, title: str, **changes) -> records.Record:
    known = {"id": "f", "severity": Severity.BROKEN, "remedy": (UNSET,), "cause": "socket-interface-wrong", "status": "established"}
    return samples.record(step, [Finding(title=title, **{**known, **changes})])


def test_a_cure_that_was_tried_leads_with_what_the_setting_names():
    shown = [proven("02-environment", "NCCL_X: rail7 names no interface", setting="NCCL_X=rail7"), proven("03-fewer-gpus", "1 rank failed"),
             proven("04-transports", "NCCL_X=rail7: 1 rank fails with it", tried="failed; passed", setting="NCCL_X=rail7")]
    document = verdict_document(samples.run_info(planned=[r.step for r in shown]), shown)
    assert (
        leading(document.steps, document.causes).tried
        and document.causes[0].title == "NCCL_X=rail7 names no interface; 1 rank fails with it"
    )
    assert document.sentence == f"Broken: {document.causes[0].title} (established)."
    alone = verdict_document(samples.run_info(planned=[r.step for r in shown[1:]]), shown[1:])
    assert alone.causes[0].title == "NCCL_X=rail7: 1 rank fails with it", "nothing is said about the value"


def test_beside_a_cure_that_was_tried_only_advice_about_that_value_is_a_fix():
    other, value = Remedy("you", "Ask somebody."), Remedy("your launcher", "Name another one:", ("NCCL_X=rail0",))
    shown = [
        proven("02-environment", "NCCL_X: rail7 names no interface", remedy=(value,), setting="NCCL_X=rail7"),
        proven("03-fewer-gpus", "1 rank failed", remedy=(other,)),
        proven("04-transports", "NCCL_X=rail7: 1 rank fails with it", tried="failed; passed", setting="NCCL_X=rail7"),
    ]
    assert [list(c.remedy) for steps in (shown, shown[:2]) for c in merge_causes(steps)] == [[UNSET, value], [value, other]]


def test_what_is_expected_is_no_fix_beside_something_broken():
    expected = proven(
        "05-weight-sync",
        "two ranks share a GPU",
        severity=Severity.NOTE,
        cause="trainer-and-engine-share-gpu",
        remedy=(Remedy("you", "Use the disk."),),
    )
    titles = {}
    for name, shown in (("alone", [expected]), ("beside", [proven("03-fewer-gpus", "1 rank failed"), expected])):
        document = verdict_document(samples.run_info(planned=[r.step for r in shown]), shown)
        titles[name] = [title for title, _ in fixes(document)]
    assert titles == {"alone": ["two ranks share a GPU"], "beside": ["1 rank failed"]}


def test_evidence_in_the_same_words_is_told_once_with_the_first_place():
    said = [Finding("r", Severity.BROKEN, "t", (Evidence("Duplicate GPU", "rank 0"), Evidence(f"exit code {n}")), (Remedy("you", "x"),),
                    "more-ranks-than-gpus", "likely") for n in (1, 2)]
    steps = [samples.record("03-fewer-gpus", said[:1]), samples.record("04-transports", said[1:])]
    (cause,) = merge_causes(steps)
    assert [(e.text, e.source) for e in cause.evidence] == [
        ("Duplicate GPU", "03-fewer-gpus: rank 0"), ("exit code 1", "03-fewer-gpus"), ("exit code 2", "04-transports")]


def test_what_is_missing_for_one_reason_shares_a_row():
    run, found = samples.healthy()
    found[0].not_looked_at = ["gpus[0].ecc: absent: no ECC", "gpus[1].ecc: absent: no ECC", "gpus.xid: no-permission: /dev/kmsg", "odd",
                              "arms.guilty: not-run: passes", "pairs: not-run: two GPUs", "stacks: py-spy is not installed"]
    rows = [[cell.text for cell in row] for row in not_looked_at_table(verdict_document(run, found)).rows]
    step = "01-gpu-visibility"
    assert rows == [
        [step, "not there", "no ECC"],
        [step, "no permission", "/dev/kmsg"],
        [step, "", "odd"],
        [step, "tests that were not run", "passes; two GPUs"],
        [step, "stacks", "py-spy is not installed"],
    ]
    found[1].not_looked_at = ["users: absent: no ECC", "odd"]  # of other steps by themselves, but for what has no field
    rows = [[cell.text for cell in row] for row in not_looked_at_table(verdict_document(run, found)).rows]
    assert [f"{step}; {found[1].step}", "", "odd"] in rows and [found[1].step, "not there", "no ECC"] in rows


def test_steps_that_judged_different_software_are_told():
    run, found = samples.healthy()
    found[1].judged = samples.OWN
    document = verdict_document(run, found)
    assert document.judged.torch == "2.11.0+cu130" and not document.judged.own
    assert ": 01-gpu-visibility, 04-transports" in document.not_looked_at[-1]


def test_write_run_writes_both_files_and_redacts(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_API_TOKEN", "correct-horse-battery")
    run, found = samples.duplicate_gpu()
    run = dataclasses.replace(run, command="nccl-runbook run --note correct-horse-battery")
    for record in found:
        (tmp_path / f"{record.step}.json").write_text(json.dumps(to_json(record)))
    document = write_run(tmp_path, run)
    texts = [(tmp_path / name).read_text() for name in ("verdict.json", "index.html")]
    assert all("correct-horse-battery" not in text and "[redacted:" in text for text in texts)
    assert document.sentence in texts[1] and json.loads(texts[0])["exit_code"] == 3
    assert info_of(tmp_path) == document.run
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize(
    "content, said",
    [
        ("", "the file"),
        ('{"schema": "nccl-runbook/record/9", "step": "x", "started": ""}', "schema"),
        (
            json.dumps(to_json(samples.record("04-transports", [samples.ok("a", "b")]))),
            "04-transports",
        ),
    ],
)
def test_a_file_that_is_no_record_makes_its_step_unknown(tmp_path, content, said):
    (tmp_path / "05-weight-sync.json").write_text(content)
    document = write_run(tmp_path, RunInfo(id="r", started="now", command="make report", planned=[]))
    (step,) = document.steps
    assert (
        step.status == "unknown"
        and step.reason.startswith("05-weight-sync.json ")
        and said in step.reason
        and str(tmp_path) not in step.reason
    )


def test_a_folder_run_by_hand_has_no_plan_and_is_never_running(tmp_path):
    for record in (samples.healthy()[1][0], records.Record(step="03-fewer-gpus", started="2026-11-20T14:02:00Z")):
        (tmp_path / f"{record.step}.json").write_text(json.dumps(to_json(record)))
    document = write_run(tmp_path, info_of(tmp_path))
    assert re.fullmatch(r"Unknown: 03-fewer-gpus .*; 1 of 2 .*", document.sentence) and not document.running


@pytest.mark.parametrize("name, model", [("record", records.Record), ("verdict", VerdictDocument)])
def test_committed_schemas_match_the_code(name, model):
    assert json.loads((SCHEMAS / f"{name}.json").read_text()) == TypeAdapter(model).json_schema()


@pytest.mark.parametrize("sample", samples.SAMPLES)
def test_real_documents_validate_against_the_schemas(sample):
    run, found = samples.SAMPLES[sample]()
    document = to_json(verdict_document(run, found))
    jsonschema.validate(document, json.loads((SCHEMAS / "verdict.json").read_text()))
    for record in found:
        jsonschema.validate(to_json(record), json.loads((SCHEMAS / "record.json").read_text()))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "verdict": "fine"}, json.loads((SCHEMAS / "verdict.json").read_text()))


_SEVERITY = st.sampled_from(list(Severity))
_FINDING = st.builds(
    lambda s, c, t: Finding("r", s, t, (), (Remedy("you", "x"),), c, "likely" if c else None),
    _SEVERITY,
    st.sampled_from([None, "a", "b"]),
    st.text(max_size=20),
)


@given(st.lists(st.lists(_FINDING, max_size=3), max_size=4), st.booleans(), st.sampled_from(["", "make report"]))
def test_any_records_give_one_sentence_that_says_the_verdict(found, interrupted, command):
    made = [samples.record(f"0{i}-step", findings) for i, findings in enumerate(found)]
    document = verdict_document(RunInfo(id="r", started="", command=command, interrupted=interrupted), made)
    assert document.sentence.split(":")[0].lower() == document.verdict
    assert document.exit_code == EXIT_CODES[document.verdict]
    assert read(VerdictDocument, json.dumps(to_json(document)).encode()) == document


def _folder(read=(), unreadable=None):
    return RunFolder("run", list(read), unreadable or {}, {})


def test_no_records_fires_when_the_folder_is_empty():
    assert [f.id for f in rules.judge(_folder())] == ["no-records"]


def test_no_records_stays_quiet_when_one_was_read():
    assert [(f.id, f.severity) for f in rules.judge(_folder(["01-gpu-visibility"]))] == [("records-read", Severity.OK)]


def test_record_unreadable_fires_when_a_record_is_broken():
    found = rules.judge(_folder(["01-gpu-visibility"], {"03-fewer-gpus": "no JSON"}))
    assert [(f.id, f.severity) for f in found] == [("record-unreadable", Severity.UNKNOWN), ("records-read", Severity.OK)]


def test_record_unreadable_stays_quiet_when_all_were_read():
    assert "record-unreadable" not in {f.id for f in rules.judge(_folder(["01-gpu-visibility", "03-fewer-gpus"]))}


def test_by_hand_a_record_that_was_mended_or_removed_leaves_no_trace(tmp_path):
    bad = tmp_path / "03-fewer-gpus.json"
    bad.write_text("no record")
    assert write_run(tmp_path, info_of(tmp_path)).steps[0].status == "unknown"
    bad.unlink()
    assert write_run(tmp_path, info_of(tmp_path)).steps == []


@pytest.mark.parametrize("make", [lambda: Gap("vanished"), lambda: Remedy("somebody", "Wait."), lambda: Cell("x", "purple")])
def test_a_word_that_no_page_has_is_refused(make):
    with pytest.raises(ValueError, match="one of"):
        make()
