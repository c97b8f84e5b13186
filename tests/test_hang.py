"""Who did not come, from dumps of many simulated jobs and real ones: the right rank and kind, and nobody innocent, whatever is missing."""
from __future__ import annotations

import itertools
import json
import pickle
import random
import re
import shutil
from pathlib import Path

import hang_samples
import live_samples
import pytest
from hang_samples import FAULTS, START_NS, VERSIONS, Item, Job
from hypothesis import HealthCheck, given, settings, strategies as st
from nccl_runbook.core.facts import to_json
from nccl_runbook.core.findings import Severity
from nccl_runbook.hang import judge as rules, judge_silence as rules_silence, read as reader
from nccl_runbook.hang.dumps import columns as dump_columns, file as dump_file, times as dump_times
from nccl_runbook.hang.facts import EARLIER, Hang, HangFile, Op
from nccl_runbook.hang.inputs import read_inputs as reader_inputs
from nccl_runbook.hang.judge_accused import silent
from nccl_runbook.hang.judge_graph import Graph, Wait
from nccl_runbook.hang.table import ranks_table, tables
from nccl_runbook.logs.facts import LogLine
from nccl_runbook.messages import read as log_reader
from nccl_runbook.messages.facts import Logs, RankLog, Timeout
from nccl_runbook.triage import judge as triage
from processes import quickest_s
from pydantic import TypeAdapter
from triage_samples import hung, init

DATA = Path(__file__).parent / "data" / "hang"
KINDS = {
    "skip": {"skipped", "order", "mismatch", "unmatched"},
    "stall": {"host-busy", "skipped", "unmatched"},
    "size": {"mismatch"},
    "dtype": {"mismatch"},
    "op": {"mismatch"},
    "swap": {"order", "skipped", "mismatch"},
    "extra": {"mismatch", "skipped"},
    "gpu": {"gpu-stuck"},
}
QUICK = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def told(folder: Path) -> rules_silence.HangVerdict:
    return rules.judge_hang(reader.collect([str(folder)]))


def injected(seed: int, faults: int, world: int = 0) -> Job:
    """A job with faults of random kinds, at random steps of random ranks, run until nothing moves."""
    rng = random.Random(seed)
    job = Job(seed, world or rng.choice((4, 8, 16)), rng.choice((3, 6)))
    step = rng.randrange(job.steps)
    for rank in rng.sample(range(job.world), faults):
        job.inject(rank, rng.choice(FAULTS), step if rng.random() < 0.6 else rng.randrange(job.steps))
    return job.run()


def of(logs) -> list[str]:
    return [f.id for f in triage.answer(logs).findings]


class TestRealDumps:
    """torch 2.11, NCCL 2.28.9, four H200, 2026-11-21; pair-: two H200, 2026-11-22, its spin with TORCH_NCCL_ENABLE_TIMING=1 (paths in
    them made neutral). The culprit is the one that the job was told."""

    @pytest.mark.parametrize(
        "fault, culprits, kind",
        [
            ("none", (), "healthy"),
            ("skip", (2,), "skipped"),
            ("op", (3,), "mismatch"),
            ("stall", (1,), "host-busy"),
            ("slow", (3,), "slow"),
            ("spin", (), "symmetric"),
            ("pair-swap", (1,), "skipped"),
            ("pair-spin", (1,), "gpu-stuck"),
        ],
    )
    def test_real_dumps_are_judged_as_injected(self, fault, culprits, kind):
        found = told(DATA / fault)
        assert (found.culprits, found.kind) == (culprits, kind), found.sentence

    @pytest.mark.parametrize(
        "fault, line",
        [
            ("skip", "hang_job.py:60"),
            ("stall", "hang_job.py:60"),
            ("pair-swap", "hang_job.py:68"),
            ("pair-spin", "hang_job.py:85"),
            ("gloo-dtype", "train.py:74"),
            ("gloo-swap", "train.py:64"),
            ("gloo-minibatch", "train.py:61"),
            ("gloo-recv", "train.py:97"),
        ],
    )
    def test_the_sentence_names_the_line_of_the_culprits_call(self, fault, line):
        found = told(DATA / fault)
        assert line in found.sentence and found.frame.endswith(line) and len(found.sentence.split()) <= 45, found.sentence

    @pytest.mark.parametrize(
        "fault, line",
        [
            ("skip", "open hang_job.py:60"),
            ("pair-swap", "open hang_job.py:68"),
            ("gloo-swap", "open train.py:64"),
            ("stall", "nccl-runbook look"),
        ],
    )
    def test_a_line_that_the_dumps_show_is_not_asked_for_again(self, fault, line):
        assert told(DATA / fault).decides.startswith(line)

    def test_how_far_the_missing_rank_came_is_told_of_one_group_and_by_its_own_numbers(self):
        assert re.findall(r"\d+", told(DATA / "stall").evidence[0].text) == [
            "1",
            "6",
            "3",
            "7",
        ], "rank 1 issued 6, 3 others 7; ranks wait for it in two smaller groups, too"

    @pytest.mark.parametrize(
        "fault, culprits, kind",
        [
            ("dtype", (1,), "mismatch"),
            ("size", (0,), "mismatch"),
            ("swap", (3,), "skipped"),
            ("minibatch", (3,), "skipped"),
            ("exception", (1,), "dead"),
            ("kill", (2,), "dead"),
            ("send", (0,), "unmatched"),
            ("recv", (1,), "unmatched"),
            ("stop", (), "unknown"),
            ("timeout", (2,), "skipped"),
        ],
    )
    def test_dumps_logs_and_stacks_of_gloo_jobs_are_judged_as_injected(self, fault, culprits, kind):
        """torch 2.13, Gloo, four ranks on one CPU, from hang_job.py. A rank that is stopped leaves nothing, and only a live look tells;
        where calls end on the host one by one, a call that was put off looks like one that was left out."""
        found = told(DATA / f"gloo-{fault}")
        assert (found.culprits, found.kind) == (culprits, kind), found.sentence

    @pytest.mark.parametrize(
        ("fault", "noise_ms", "apart_ms", "ends_ms", "kind"),
        [
            ("slow", 60, 0, 0, "slow"),
            ("slow", 150, 0, 0, "slow"),
            ("slow", 150, 400, 0, "slow"),
            ("none", 150, 0, 0, "healthy"),
            ("none", 60, 400, 0, "healthy"),
            ("slow", 60, 0, 400, "healthy"),
        ],
    )
    def test_a_straggler_is_told_by_when_it_came_whatever_torch_saw_late(self, tmp_path, fault, noise_ms, apart_ms, ends_ms, kind):
        """On a crowded host torch's watchdog notes ends later still (a straggler was missed so, four H200, 2026-11-22). Neither clocks
        that differ nor hosts that merely run ahead of their GPUs make one: there, operations end long after the last rank came to them."""
        dice = random.Random(f"{fault}{noise_ms}")
        for rank in range(4):
            dump = pickle.loads((DATA / fault / f"fr_rank_{rank}").read_bytes())  # our own file
            for entry in dump["entries"]:
                for name, later_ms in (("time_created_ns", 0.0), ("time_discovered_completed_ns", dice.uniform(0, noise_ms) + ends_ms)):
                    entry[name] = entry[name] and entry[name] + int((later_ms + rank * apart_ms) * 1e6)
            (tmp_path / f"fr_rank_{rank}").write_bytes(pickle.dumps(dump))
        found = told(tmp_path)
        assert (found.kind, found.culprits) == (kind, (3,) if kind == "slow" else ()), found.sentence

    @pytest.mark.parametrize(
        ("step_ms", "slow_ms", "ahead", "kind"),
        [
            (5, 0, 0, "healthy"),
            (30, 0, 0, "healthy"),
            (80, 0, 0, "healthy"),
            (300, 0, 1, "healthy"),
            (600, 0, 2, "healthy"),
            (30, 250, 0, "slow"),
        ],
    )
    @pytest.mark.parametrize("world", [2, 4])
    def test_neither_a_watchdog_out_of_step_nor_a_rank_that_waits_for_its_gpu_makes_a_straggler(
        self, tmp_path, world, step_ms, slow_ms, ahead, kind
    ):
        """Each rank's watchdog looks ten times a second, when it likes, so that clocks set by what they saw are up to 100 ms off; rank 0
        reads its loss at each step, the others are so many steps ahead of their GPUs."""
        for seed in range(8):
            dice, job = random.Random(seed), Job(seed, world)
            job.programs = [[Item("0", "all_reduce", 64)] * 60 for _ in range(world)]
            dumps, looks = [job.dump(rank) for rank in range(world)] if job.run() else [], [dice.uniform(0, 100) for _ in range(world)]
            for step in range(60):
                began = (step_ms + slow_ms) * step
                came = [
                    began - step_ms * ahead * (rank > 0) + slow_ms * (rank == world - 1) + dice.uniform(0.1, 0.2) * step_ms
                    for rank in range(world)
                ]
                end = max(*came, began + step_ms * 0.9 * (ahead > 0)) + 1
                for rank, dump in enumerate(dumps):
                    seen = end + (looks[rank] - end) % 100
                    dump["entries"][step].update(
                        time_created_ns=START_NS + int(came[rank] * 1e6), time_discovered_completed_ns=START_NS + int(seen * 1e6)
                    )
            for rank, dump in enumerate(dumps):
                (tmp_path / f"fr_rank_{rank}").write_bytes(pickle.dumps(dump))
            assert (told(tmp_path).kind, told(tmp_path).culprits) == (kind, (world - 1,) if kind == "slow" else ()), (
                seed,
                told(tmp_path).sentence,
            )

    def test_a_dump_that_is_missing_costs_certainty_only(self, tmp_path):
        for fault, culprit in (("skip", 2), ("op", 3), ("stall", 1)):
            for left_out in range(4):
                folder = shutil.copytree(DATA / fault, tmp_path / f"{fault}-{left_out}")
                (folder / f"fr_rank_{left_out}").unlink()
                assert set(told(folder).culprits) <= {culprit}, (fault, left_out)

    @pytest.mark.parametrize(
        ("world", "began", "timed", "culprits"),
        [
            (4, {0, 1, 3}, {0, 1, 2, 3}, (2,)),
            (2, {0}, {0, 1}, (1,)),
            (2, {0, 1}, {0, 1}, ()),
            (2, {0}, {0}, ()),
            (4, {0, 1, 3}, {0, 1, 3}, ()),
            (4, {0, 1}, {0, 1, 2, 3}, ()),
        ],
    )
    def test_with_timing_the_gpu_that_never_began_is_named(self, tmp_path, world, began, timed, culprits):
        """The dumps of a spinning GPU as TORCH_NCCL_ENABLE_TIMING would have left them; of a rank without it nothing follows."""
        for rank in range(world):
            dump = pickle.loads((DATA / "spin" / f"fr_rank_{rank}").read_bytes())  # our own file
            dump["pg_config"] = {
                k: {**v, "ranks": str(list(range(world)))} for k, v in dump["pg_config"].items() if v["desc"] == "default_pg"
            }
            dump["entries"] = [e for e in dump["entries"] if e["process_group"][1] == "default_pg"]
            for entry in dump["entries"] if rank in timed else ():
                done = entry["state"] == "completed"
                if done or (entry["collective_seq_id"] == 7 and rank in began):
                    entry.update(state=entry["state"] if done else "started", time_discovered_started_ns=entry["time_created_ns"] + 1000)
            (tmp_path / f"fr_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
        found = told(tmp_path)
        assert (found.culprits, found.kind) == (culprits, "gpu-stuck" if culprits else "symmetric"), found.sentence

    @pytest.mark.parametrize(
        ("rank", "at", "byte"), [(0, 2245, 161), (0, 1137, 2), (3, 2072, 113), (2, 1230, 95), (2, 2378, 100), (2, 2547, 152)]
    )
    @pytest.mark.parametrize(("fault", "culprit"), [("none", set()), ("stall", {1})])
    def test_one_changed_byte_costs_certainty_only(self, tmp_path, fault, culprit, rank, at, byte):
        """A size, a name or a type that no longer is one: found among 2,000 changes of one byte, of which 42 accused an innocent."""
        folder = shutil.copytree(DATA / fault, tmp_path / fault)
        changed = bytearray((folder / f"fr_rank_{rank}").read_bytes())
        changed[at] = byte
        (folder / f"fr_rank_{rank}").write_bytes(bytes(changed))
        assert set(told(folder).culprits) <= culprit, told(folder).sentence

    def test_a_recorder_that_names_no_types_still_shows_who_called_something_else(self, tmp_path):
        """As those of format 1.4 do."""
        for rank in range(4):
            dump = pickle.loads((DATA / "op" / f"fr_rank_{rank}").read_bytes())  # our own file
            for entry in dump["entries"]:
                entry["input_dtypes"] = entry["output_dtypes"] = []
            (tmp_path / f"fr_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
        assert (told(tmp_path).culprits, told(tmp_path).kind) == ((3,), "mismatch")

    def test_all_present_and_waiting_accuses_nobody_when_one_dump_is_lost(self, tmp_path):
        folder = shutil.copytree(DATA / "spin", tmp_path / "spin")
        (folder / "fr_rank_1").unlink()
        found = told(folder)
        assert (found.kind, found.culprits) == ("unknown", ()) and "rank 1" in found.decides


class TestSimulatedJobs:
    def test_one_culprit_of_random_kind_is_found(self, tmp_path):
        hung = found = 0
        for seed in range(80):
            job = injected(seed, 1)
            answer = told(job.write(tmp_path / str(seed), VERSIONS[seed % 4], buffer=(2000, 20)[seed % 2]))
            assert set(answer.culprits) <= set(job.culprits), (seed, job.culprits, answer.sentence)
            stuck = any(e.done is None for record in job.records for e in record)
            hung, found = hung + stuck, found + bool(stuck and answer.culprits)
            if answer.culprits:
                assert answer.kind in KINDS[next(iter(job.culprits.values()))], (seed, job.culprits, answer.sentence)
        assert hung >= 70 and found >= hung - 2

    @pytest.mark.parametrize(
        "least, kinds, phase, how",
        [
            (0.88, FAULTS, False, {}),
            (0.88, FAULTS, False, {"shift": 31, "buffer": 20}),
            (0.78, FAULTS, True, {}),
            (0.75, ("stall", "gpu"), False, {"active": True}),
            (0.5, FAULTS, False, {"active": True, "without": (3, 11)}),
        ],
        ids=["full", "wrapped", "evaluation", "open-only", "open-only-missing"],
    )
    def test_two_culprits_of_sixteen_and_no_innocent(self, tmp_path, least, kinds, phase, how):
        """What is missed cannot be told: a rank whose fault comes behind the other one's waits like everybody."""
        shown = found = 0
        for seed in range(50):
            job, rng = Job(seed, 16, 6), random.Random(seed)
            step = rng.randrange(1, job.steps)
            if phase:
                job.add_phase(step)
            for rank in rng.sample(range(16), 2):
                job.inject(rank, rng.choice(kinds), step if rng.random() < 0.6 else rng.randrange(job.steps))
            answer = told(job.run().write(tmp_path / str(seed), **how))
            assert set(answer.culprits) <= set(job.culprits), (seed, job.culprits, answer.sentence)
            here = job.shown() - set(how.get("without", ()))
            shown, found = shown + len(here), found + len(set(answer.culprits) & here)
        assert found >= least * shown, (found, shown)

    def test_ranks_of_groups_without_a_description_go_different_ways_and_are_not_odd_for_it(self, tmp_path):
        """torch 2.3 describes no group: rank 2 was the first to come to a group that only it and rank 10, a culprit, are in."""
        job = injected(292, 2, world=16)
        assert set(told(job.write(tmp_path, "1.4")).culprits) <= set(job.culprits) == {4, 10}

    def test_healthy_jobs_raise_no_alarm(self, tmp_path):
        """Looked at while they run, at slightly different times, and after their end; several groups, sends and receives, shifted ids."""
        for seed in range(24):
            rng = random.Random(seed)
            job = Job(seed, rng.choice((2, 4, 8, 16)), 4)
            looks: dict[int, list[int]] = {}
            for rank in range(job.world):
                looks.setdefault(rng.randrange(10, 60), []).append(rank)
            job.run(looks=looks if seed % 2 else None)
            folder = job.write(tmp_path / str(seed), VERSIONS[seed % 5], as_json=seed % 3 == 0, age_s=0.002, shift=seed % 2 * 30)
            assert (told(folder).kind, told(folder).culprits) == ("healthy", ()), seed

    def test_stragglers_are_those_that_wait_least(self, tmp_path):
        for seed in range(8):
            job = Job(seed, (4, 8, 16)[seed % 3], 6)
            slow = sorted(random.Random(seed).sample(range(job.world), 1 if job.world < 8 else 2))
            job.delay = dict.fromkeys(slow, 70)
            answer = told(job.run().write(tmp_path / str(seed)))
            assert (answer.kind, list(answer.culprits)) == ("slow", slow), answer.sentence

    def test_jobs_that_run_ahead_unevenly_are_not_slow(self, tmp_path):
        job = Job(0, 16, 6)
        job.ahead = [0, 6] * 8
        assert told(job.run().write(tmp_path)).kind == "healthy"

    @QUICK
    @given(seed=st.integers(0, 400), data=st.data())
    def test_the_answer_does_not_depend_on_the_order_of_files_nor_accuse_when_some_are_gone(self, tmp_path_factory, seed, data):
        job = injected(seed, 1, world=8)
        folder = job.write(tmp_path_factory.mktemp("job"))
        files = sorted(str(p) for p in folder.iterdir())
        assert rules.judge_hang(reader.collect(data.draw(st.permutations(files)))) == rules.judge_hang(reader.collect(files))
        fewer = data.draw(st.lists(st.sampled_from(files), unique=True))
        assert set(rules.judge_hang(reader.collect(fewer)).culprits) <= set(job.culprits)

    @QUICK
    @given(seed=st.integers(0, 400), cut=st.floats(0, 0.99), rank=st.integers(0, 7))
    def test_a_truncated_dump_accuses_no_innocent(self, tmp_path_factory, seed, cut, rank):
        job = injected(seed, 1, world=8)
        path = job.write(tmp_path_factory.mktemp("job")) / f"nccl_trace_rank_{rank}"
        path.write_bytes(path.read_bytes()[: int(cut * path.stat().st_size)])
        hang = reader.collect([str(path.parent)])
        assert set(rules.judge_hang(hang).culprits) <= set(job.culprits)
        assert any(f.problem for f in hang.files if f.name.endswith(f"_{rank}"))


class TestWhatIsNotProven:
    def job(self, tmp_path, **how) -> tuple[Job, Path]:
        job = Job(3, 4, 4)
        job.inject(2, "stall", 2)
        return job, job.run().write(tmp_path / "dumps", **how)

    def test_an_operation_just_begun_is_no_hang(self, tmp_path):
        _, folder = self.job(tmp_path, age_s=0.05)
        assert told(folder).culprits == () and told(folder).kind in ("unknown", "healthy")
        _, folder = self.job(tmp_path, age_s=30.0)
        assert told(folder).culprits == (2,)

    def test_file_times_that_cannot_be_right_are_not_used(self, tmp_path):
        _, folder = self.job(tmp_path, age_s=-100_000.0)
        assert told(folder).culprits == (2,)

    def test_copies_say_that_their_time_is_not_that_of_the_dump(self, tmp_path):
        """A job that lives, its dumps taken at one moment and copied an hour later, looks like one that hangs: the reader must know."""
        job = Job(11, 16, 4)
        job.inject(3, "stall", 2)
        job.run()
        asked = {
            age: [e for e in told(job.write(tmp_path / f"{age}", age_s=age)).evidence if "when the dumps were written" in e.text]
            for age in (700.0, 7200.0)
        }
        assert not asked[700.0] and len(asked[7200.0]) == 1

    def test_a_ring_that_was_overwritten_is_not_absence(self, tmp_path):
        """Rank 2 has gone on in another group so long that nothing of the first one is left in its ring."""
        job = Job(3, 4, 4)
        job.inject(1, "stall", 3)
        folder = job.run().write(tmp_path / "dumps")
        dump = job.dump(2)
        dump["entries"] = [
            {
                **e,
                "record_id": i + 5000,
                "collective_seq_id": 900 + i,
                "process_group": ("99", "other"),
                "state": "completed",
                "retired": True,
            }
            for i, e in enumerate(e for e in dump["entries"] if not e["is_p2p"])
        ]
        (folder / "nccl_trace_rank_2").write_bytes(pickle.dumps(dump, protocol=2))
        assert set(told(folder).culprits) <= {1}

    def test_an_older_dump_than_what_others_completed_is_not_believed(self, tmp_path):
        job, folder = self.job(tmp_path)
        (folder / "nccl_trace_rank_0").write_bytes(pickle.dumps({**job.dump(0), "entries": job.dump(0)["entries"][:6]}, protocol=2))
        assert set(told(folder).culprits) <= {2}

    def test_two_files_for_one_rank_are_both_left_out(self, tmp_path):
        job, folder = self.job(tmp_path)
        (folder / "b").mkdir()
        other = {**job.dump(0), "entries": job.dump(0)["entries"][:-1]}
        other["entries"][-1] = {**job.dump(0)["entries"][-1], "record_id": 77}
        (folder / "b" / "nccl_trace_rank_0").write_bytes(pickle.dumps(other, protocol=2))
        hang = reader.collect([str(folder)])
        assert [f.rank for f in hang.files if f.problem] == [0, 0] and set(rules.judge_hang(hang).culprits) <= {2}

    def test_wrong_rank_in_the_name_is_said(self, tmp_path):
        _, folder = self.job(tmp_path)
        (folder / "nccl_trace_rank_3").rename(folder / "nccl_trace_rank_9")
        assert [(f.rank, "rank 9" in f.problem) for f in reader.collect([str(folder)]).files if f.problem] == [(9, True)]

    @pytest.mark.parametrize(
        "name, rank",
        [
            ("nccl_trace_rank_node01_7", 7),
            ("fr_rank_12", 12),
            ("dump-3.json", 3),
            ("_dump_4", 4),
            ("rank5.pkl", 5),
            ("2026-11-20-rank_6.json", 6),
            ("trace", None),
            ("rank_3_20261121.pkl", 3),
            ("dump_20261121", None),
        ],
    )
    def test_rank_is_read_from_any_usual_name(self, name, rank):
        assert reader_inputs.rank_of(name) == rank


class TestAttempts:
    """Two attempts of one torchrun (elastic_job.py, torch 2.13, Gloo): rank 1 raised in the first, the second hangs as rank 2 sleeps. A
    dump or log of the first accuses nobody of the second."""

    @pytest.mark.parametrize(("folder", "left_out"), [("elastic-names", 3), ("elastic-same", 0)])
    def test_the_last_attempt_is_judged_and_the_page_says_so(self, folder, left_out):
        hang = reader.collect([str(DATA / folder)])
        answer = rules.judge_hang(hang)
        assert (answer.culprits, answer.kind) == ((2,), "skipped"), answer.sentence
        assert any("attempt" in e.text for e in answer.evidence if e.source == "files")
        assert [f.rank for f in hang.files if f.problem.startswith(EARLIER) and "clock" in f.problem] == [left_out]
        assert not hang.clocks

    @pytest.mark.parametrize("path", ["elastic-names/logs", "elastic-same/console.log"])
    def test_an_error_of_the_first_attempt_ends_nobody_in_the_second(self, path):
        hang = reader.collect([str(DATA / path)])
        answer = rules.judge_hang(hang)
        assert (answer.culprits, answer.kind) == ((), "unknown") and "last attempt" in answer.evidence[0].text
        left_out = [
            f.name.rpartition("logs/")[2]
            for f in hang.files
            if f.problem == "of an earlier attempt: this file is of attempt 0, and the answer is about attempt 1"
        ]
        assert len(left_out) == (8 if path.endswith("logs") else 0) and all(name.startswith("run/attempt_0/") for name in left_out)

    def test_without_a_second_attempt_the_error_counts(self, tmp_path):
        shutil.copytree(DATA / "elastic-names/logs/run/attempt_0", tmp_path / "attempt_0")
        lines = (DATA / "elastic-same/console.log").read_text().splitlines(keepends=True)
        (tmp_path / "console.log").write_text("".join(line for line in lines if "attempt 1 " not in line))
        for path in (tmp_path / "attempt_0", tmp_path / "console.log"):
            answer = told(path)
            assert (answer.culprits, answer.kind) == ((1,), "dead") and not any("attempt" in e.text for e in answer.evidence), path

    def test_triage_names_what_broke_first_and_that_there_was_another_attempt(self, tmp_path):
        whole = DATA / "elastic-same/console.log"
        assert triage.judge(log_reader.collect([str(whole)])) == []  # the second attempt went further
        (tmp_path / "console.log").write_text(whole.read_text().partition("attempt 1 rank 1 step 2")[0])
        logs = log_reader.collect([str(tmp_path)])
        lead = triage.judge(logs)
        assert (lead[0].cause, lead[0].evidence[0].rank) == ("peer-crashed", 1) and "started-again" in of(logs)
        logs = log_reader.collect([str(DATA / "elastic-names/logs/run/attempt_0")])
        assert "started-again" not in of(logs)

    def test_one_attempt_alone_is_not_said_to_be_several_whatever_its_number(self, tmp_path):
        shutil.copytree(DATA / "elastic-names/logs/run/attempt_0", tmp_path / "attempt_2")
        logs, answer = log_reader.collect([str(tmp_path)]), told(tmp_path)
        assert "started-again" not in of(logs) and "started" not in str(answer.evidence) and answer.culprits == (1,)

    def test_each_node_has_a_console_of_its_own_and_what_one_says_of_its_ranks_stays(self, tmp_path):
        """The console of the job, as if two nodes had written it; each tells of the same second attempt."""
        lines = (DATA / "elastic-same/console.log").read_text().partition("failed (exitcode: 3)")[0].splitlines(keepends=True)
        for node in (0, 1):
            others = [f"rank {rank}" for rank in (2 - 2 * node, 3 - 2 * node)] + [f"rank{rank}]" for rank in (2 - 2 * node, 3 - 2 * node)]
            mine = [line for line in lines if not any(word in line for word in others)]
            (tmp_path / f"node{node}.log").write_text("".join(mine) + f"[rank{2 * node}]: step 9 loss 0.1\n")
        logs = log_reader.collect([str(tmp_path)], newest=True)
        assert logs.attempts == 2 and {0, 2} <= {r.rank for r in logs.ranks} and told(tmp_path).culprits == ()

    @pytest.mark.parametrize("newer", ["none", "stall", "skip", "op", "spin"])
    def test_dumps_of_another_run_accuse_nobody_whoever_left_them(self, tmp_path, newer):
        """Of every older real job under the same names, for every one or two ranks that left none of the newer one."""
        culprits = {"none": (), "stall": (1,), "skip": (2,), "op": (3,), "spin": ()}
        for older, stale in ((o, s) for o in culprits if o != newer for n in (1, 2) for s in itertools.combinations(range(4), n)):
            for rank in range(4):
                dump = pickle.loads((DATA / (older if rank in stale else newer) / f"fr_rank_{rank}").read_bytes())  # our own file
                later = START_NS + 60_000_000_000 * (rank not in stale) - self.began(older if rank in stale else newer)
                for entry in dump["entries"]:
                    entry.update({key: entry[key] + later for key in ("time_created_ns", "time_discovered_completed_ns") if entry[key]})
                (tmp_path / f"fr_rank_{rank}").write_bytes(pickle.dumps(dump))
            hang = reader.collect([str(tmp_path)])
            assert {f.rank for f in hang.files if "earlier attempt" in f.problem} == set(stale), (older, stale)
            assert set(rules.judge_hang(hang).culprits) <= set(culprits[newer]) - set(stale), (
                older,
                stale,
                rules.judge_hang(hang).sentence,
            )

    @pytest.mark.parametrize("older", ["skip", "stall", "op", "spin", "slow"])
    def test_a_dump_of_a_larger_world_accuses_its_rank_of_nothing_in_the_smaller_one_after_it(self, tmp_path, older):
        """torchrun started three of four ranks again; the fourth left its dump under the name that it would have again."""
        for rank in range(4):
            fault = older if rank == 3 else "none"
            dump = pickle.loads((DATA / fault / f"fr_rank_{rank}").read_bytes())  # our own file
            for entry in dump["entries"]:
                later = START_NS + 60_000_000_000 * (rank < 3) - self.began(fault)
                entry.update({key: entry[key] + later for key in ("time_created_ns", "time_discovered_completed_ns") if entry[key]})
            if rank < 3:
                dump["pg_config"] = {name: {**group, "ranks": "[0, 1, 2]"} for name, group in dump["pg_config"].items()}
            (tmp_path / f"fr_rank_{rank}").write_bytes(pickle.dumps(dump))
        answer = told(tmp_path)
        assert (answer.culprits, answer.kind) == ((), "unknown") and "1 file " in answer.evidence[-1].text
        assert "damaged" not in answer.sentence + answer.decides

    @pytest.mark.parametrize("spoil", ["clock", "cut"])
    def test_whose_dump_could_not_be_used_did_leave_one(self, tmp_path, spoil):
        """Rank 1 did not come, rank 3 only waits, on the same host: of neither can the dump be used, and both logs are silent."""
        shutil.copytree(DATA / "stall", tmp_path / "x")
        for rank in (1, 3):
            path = tmp_path / "x" / f"fr_rank_{rank}"
            dump = pickle.loads(path.read_bytes())  # our own file
            for entry in dump["entries"]:
                entry.update({key: entry[key] - 3600 * 10**9 for key in ("time_created_ns", "time_discovered_completed_ns") if entry[key]})
            path.write_bytes(pickle.dumps(dump) if spoil == "clock" else path.read_bytes()[:900])
        for rank in range(4):
            watched = (
                f"[rank{rank}]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=4096,"
                " NumelOut=4096, Timeout(ms)=60000)"
            )
            (tmp_path / "x" / f"rank{rank}.log").write_text(f"step 6 done\n{watched if rank in (0, 2) else ''}\n")
        answer = told(tmp_path / "x")
        assert (answer.culprits, answer.kind) == ((), "unknown") and "ranks 1, 3, so no rank" in answer.sentence
        for rank in (1, 3):
            (tmp_path / "x" / f"fr_rank_{rank}").unlink()
        assert told(tmp_path / "x").culprits == (1, 3)  # who left none at all and fell silent may be dead

    @staticmethod
    def began(fault: str) -> int:
        return min(pickle.loads((DATA / fault / f"fr_rank_{rank}").read_bytes())["entries"][0]["time_created_ns"] for rank in range(4))

    def test_who_comes_late_to_the_very_first_operation_is_of_the_same_attempt(self, tmp_path):
        """Rank 3 of a real job with all that it did a minute later: the others only waited for it, and had completed nothing."""
        for rank in range(4):
            dump = pickle.loads((DATA / "none" / f"fr_rank_{rank}").read_bytes())  # our own file
            dump["entries"] = dump["entries"][:1]
            dump["entries"][0].update(time_discovered_completed_ns=None, state="scheduled", retired=False)
            dump["entries"][0]["time_created_ns"] += 60_000_000_000 * (rank == 3)
            (tmp_path / f"fr_rank_{rank}").write_bytes(pickle.dumps(dump))
        assert not any(f.problem for f in reader.collect([str(tmp_path)]).files)


class TestGlooStragglers:
    """Real dumps of torch 2.13, four ranks, rank 2 late by 200 ms at each step: Gloo's recorder holds no ends, only when each call was
    made."""

    @pytest.mark.parametrize(("folder", "culprits", "kind", "said"), [
        ("gloo-slow", (2,), "slow", r"\d ms "),  # several calls a step: what comes right after one sets the clocks
        ("gloo-one-slow", (), "unknown", r"rank 2 .*\b200 ms\b"),  # one call a step
        ("gloo-async-slow", (), "unknown", r"rank 2 .*\b199 ms\b")])  # DDP, which does not block
    def test_who_comes_last_is_named_and_accused_where_its_clock_cannot_be_the_reason(self, folder, culprits, kind, said):
        answer = told(DATA / folder)
        assert (answer.culprits, answer.kind) == (culprits, kind) and re.search(said, answer.sentence), answer.sentence
        assert kind == "slow" or answer.decides.startswith("nccl-runbook look ")

    @pytest.mark.parametrize("apart_ms", [400, -400, 2000, -2000])
    def test_clocks_that_differ_change_nothing_where_calls_follow_each_other(self, tmp_path, apart_ms):
        for rank in (0, 2):
            answer = self.shifted(tmp_path, "gloo-slow", {rank: apart_ms})
            assert (answer.culprits, answer.kind) == ((2,), "slow"), (rank, answer.sentence)

    @pytest.mark.parametrize("late", [{}, {0: 90}, {0: 90, 3: -90}, {1: 600}, {1: -600}])
    def test_a_healthy_job_is_healthy_and_says_what_was_not_seen_whatever_the_clocks(self, tmp_path, late):
        """The straggler's dumps with its lateness taken away, on clocks that are so many ms apart."""
        for rank in range(4):
            dump = pickle.loads((DATA / "gloo-slow" / f"fr_rank_{rank}").read_bytes())  # our own file
            for entry in dump["entries"]:
                step = (entry["collective_seq_id"] - 1) // 2 if entry["process_group"][0] == "0" else entry["collective_seq_id"] - 1
                first = entry["process_group"][0] == "0" and entry["collective_seq_id"] % 2
                entry["time_created_ns"] -= int((step + (rank == 2 or not first)) * 200e6 - late.get(rank, 0) * 1e6)
            (tmp_path / f"fr_rank_{rank}").write_bytes(pickle.dumps(dump))
        answer = told(tmp_path)
        assert (answer.kind, answer.culprits) == ("healthy", ()), answer.sentence
        assert "Gloo" in answer.sentence and answer.decides and answer.evidence, "whether a rank is slow is not seen"

    def test_several_hundred_ranks_take_no_longer_each(self):
        """Each against each other's clock took half a minute for 1,024."""
        one = dump_columns.condense(pickle.loads((DATA / "gloo-slow" / "fr_rank_0").read_bytes()), b"")  # our own file
        readings = dict.fromkeys(range(500), one)
        assert quickest_s(lambda: dump_times.latecomers(readings), 1.5) < 1.5

    def test_of_nccl_which_records_ends_nothing_is_said_to_be_unseen(self):
        assert "not seen" not in told(DATA / "none").sentence

    @staticmethod
    def shifted(folder: Path, name: str, apart_ms: dict[int, int]) -> rules_silence.HangVerdict:
        for rank in range(4):
            dump = pickle.loads((DATA / name / f"fr_rank_{rank}").read_bytes())  # our own file
            for entry in dump["entries"]:
                entry["time_created_ns"] += apart_ms.get(rank, 0) * 1_000_000
            (folder / f"fr_rank_{rank}").write_bytes(pickle.dumps(dump))
        return told(folder)


class TestClocks:
    """Two hosts, whose clocks are apart; the times of the files are those of a server or of each host."""

    @pytest.mark.parametrize("own_clock", [False, True])
    @pytest.mark.parametrize("ahead", [3600.0, -3600.0, 7.5])
    def test_the_culprit_is_the_same_and_the_page_says_how_far_the_clocks_are_apart(self, tmp_path, monkeypatch, ahead, own_clock):
        """In a run that is longer than the clocks are apart."""
        monkeypatch.setattr(hang_samples, "TICK_NS", int(abs(ahead) / 10 * 1e9))
        for seed, fault in enumerate(FAULTS):
            job = Job(seed, 8, 6)
            job.inject(seed % 8, fault, 3)
            job.run()
            plain = told(job.write(tmp_path / f"{seed}-plain"))
            answer = told(job.write(tmp_path / f"{seed}", ahead=dict.fromkeys(range(5, 8), ahead), own_clock=own_clock))
            assert (answer.culprits, answer.kind) == (plain.culprits, plain.kind), seed
            assert f"ranks 5, 6, 7 {ahead:+.0f} s" in answer.evidence[-1].text and not any("clock" in e.text for e in plain.evidence), seed

    @pytest.mark.parametrize("own_clock", [False, True])
    @pytest.mark.parametrize("ahead", [3600.0, -3600.0, -7.5])
    def test_a_clock_that_is_off_by_more_than_the_run_costs_certainty_only(self, tmp_path, ahead, own_clock):
        """Such dumps look like those of an earlier attempt, which prove nothing."""
        for seed, fault in enumerate(FAULTS):
            job = Job(seed, 8, 6)
            job.inject(seed % 8, fault, 3)
            folder = job.run().write(tmp_path / str(seed), ahead=dict.fromkeys(range(5, 8), ahead), own_clock=own_clock)
            hang = reader.collect([str(folder)])
            doubted = {f.rank for f in hang.files if f.problem.startswith(EARLIER)}
            assert doubted == (set(range(5, 8)) if ahead < 0 else set(range(5)) if own_clock else set()), seed
            assert set(rules.judge_hang(hang).culprits) <= {seed % 8}, (seed, rules.judge_hang(hang).sentence)

    @pytest.mark.parametrize("own_clock", [False, True])
    @pytest.mark.parametrize("ahead", [3600.0, -3600.0, -7.5])
    def test_a_job_that_moves_raises_no_alarm(self, tmp_path, ahead, own_clock):
        """What was issued a moment ago by its own clock looks an hour old by that of the server."""
        for seed in range(6):
            job, rng = Job(seed, 8, 6), random.Random(seed)
            looks: dict[int, list[int]] = {}
            for rank in range(8):
                looks.setdefault(rng.randrange(40, 60), []).append(rank)
            folder = job.run(looks=looks).write(tmp_path / f"{seed}", age_s=0.002, ahead=dict.fromkeys((6, 7), ahead), own_clock=own_clock)
            assert told(folder).kind in ("healthy", "unknown") and told(folder).culprits == (), (seed, told(folder).sentence)

    @pytest.mark.parametrize("jitter, culprits, kind", [(0.0, (0,), "dead"), (0.9, (), "unknown")])
    def test_of_two_that_raised_nobody_is_first_within_the_error(self, tmp_path, jitter, culprits, kind):
        """Rank 1 raised 0.4 s after rank 0; its host's clock is 5 s ahead, as what both print at each step tells, give or take
        ``jitter``."""
        for rank in range(3):
            off = 5.0 * (rank > 0)
            lines = [
                f"2026-11-20 12:{n:02}:{10 + off + (jitter if n % 2 and rank else 0):06.3f} [rank{rank}]: step {n} loss 1.5"
                for n in range(8)
            ]
            end = {
                0: f"2026-11-20 12:09:{20.0:06.3f} [rank0]: ValueError: bad sample",
                1: f"2026-11-20 12:09:{25.4:06.3f} [rank1]: KeyError: 'label'",
            }
            lines.append(
                end.get(
                    rank,
                    "[rank2]:[E1120 12:19:15.815806190 ProcessGroupNCCL.cpp:689] [Rank 2] Watchdog caught collective operation timeout:"
                    " WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600086 milliseconds before"
                    " timing out.",
                )
            )
            (tmp_path / f"rank{rank}.log").write_text("\n".join(lines) + "\n")
        answer = told(tmp_path)
        assert (answer.culprits, answer.kind) == (culprits, kind), answer.sentence
        assert "group ." not in answer.sentence, answer.sentence
        assert (
            kind == "dead"
            or (re.match(r"ranks (0, 1|1, 0) ", answer.sentence)
            and answer.cause == "peer-crashed"
            and len(answer.evidence) == 2)
        )


class TestPointToPoint:
    def dumps(self, folder: Path, open_on: dict[int, list[str]], world_waits: list[int] = ()) -> Path:
        """Four ranks in one group after ten rounds of sends 0 -> 1 -> 2 -> 3; some operations are open."""
        folder.mkdir(parents=True, exist_ok=True)
        for rank in range(4):
            names = [
                n
                for _ in range(10)
                for n in [f"nccl:recv {rank}<-{rank - 1}"] * (rank > 0) + [f"nccl:send {rank}->{rank + 1}"] * (rank < 3)
            ]
            rows = [self.entry(i, n, True) for i, n in enumerate(names)] + [
                self.entry(100 + i, n, False) for i, n in enumerate(open_on.get(rank, []))
            ]
            if rank in world_waits:
                rows.append({**self.entry(200, "nccl:all_reduce", False), "is_p2p": False, "collective_seq_id": 1})
            dump = {"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}, "entries": rows}
            (folder / f"rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
        return folder

    def entry(self, number: int, name: str, done: bool) -> dict:
        return {
            "record_id": number,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": 0,
            "p2p_seq_id": number + 1,
            "profiling_name": name,
            "time_created_ns": 10**18 + number,
            "input_sizes": [[4]],
            "output_sizes": [[4]],
            "input_dtypes": ["Float"],
            "output_dtypes": ["Float"],
            "state": "completed" if done else "scheduled",
            "retired": done,
            "time_discovered_completed_ns": 10**18 + number + 5 if done else None,
            "is_p2p": True,
            "timeout_ms": 1000,
        }

    def test_a_recv_without_its_send_names_the_sender(self, tmp_path):
        answer = told(self.dumps(tmp_path, {1: ["nccl:recv 1<-0"], 2: ["nccl:recv 2<-1"], 3: ["nccl:recv 3<-2"]}))
        assert (answer.kind, answer.culprits, answer.victims) == ("unmatched", (0,), (1, 2, 3)), answer.sentence

    def test_a_send_that_nobody_expects_is_its_senders_fault_when_all_wait_for_it_elsewhere(self, tmp_path):
        answer = told(self.dumps(tmp_path, {2: ["nccl:send 2->0"]}, world_waits=[0, 1, 3]))
        assert answer.culprits == (2,) and answer.kind == "unmatched", answer.sentence

    def test_both_ends_there_is_nobodys_fault(self, tmp_path):
        answer = told(self.dumps(tmp_path, {1: ["nccl:recv 1<-0"], 0: ["nccl:send 0->1"]}))
        assert answer.culprits == ()

    def test_a_batch_that_ended_leaves_nothing_open(self, tmp_path):
        """Operations inside a batch stay `scheduled` for ever; only the batch's own entry is completed (torch 2.4 to 2.13)."""
        folder = self.dumps(tmp_path, {1: ["nccl:recv 1<-0"]})
        path = folder / "rank_1"
        dump = dump_file.decode(path.read_bytes())
        last = dump["entries"][-1]
        dump["entries"].append({**last, "profiling_name": "nccl:coalesced", "state": "completed", "retired": True, "record_id": 101})
        path.write_bytes(pickle.dumps(dump, protocol=2))
        assert told(folder).kind == "healthy"


class TestJoin:
    def hung(self, tmp_path: Path) -> Path:
        return shutil.copytree(DATA / "stall", tmp_path / "dumps")

    def test_a_stack_says_what_the_missing_rank_does(self, tmp_path):
        folder = self.hung(tmp_path)
        (folder / "rank1.txt").write_text(
            'Process 4711: python train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread 4711 (active): "MainThread"\n'
            "    write (/usr/lib/python3.11/site-packages/safetensors/torch.py:28)\n    save_pretrained (train.py:812)\n"
        )
        answer = told(folder)
        assert (answer.kind, answer.culprits, answer.cause) == ("host-busy", (1,), "rank-busy-on-host")
        assert answer.frame == "save_pretrained, train.py:812" and "save_pretrained, train.py:812" in answer.sentence

    def test_a_stack_in_a_recv_is_a_send_without_partner(self, tmp_path):
        folder = self.hung(tmp_path)
        (folder / "rank1.txt").write_text(
            'Thread 0x00007f011ec72140 (most recent call first):\n  File "/x/site-packages/torch/distributed/distributed_c10d.py", line'
            ' 2500 in recv\n  File "/home/user/train.py", line 9 in step\n'
        )
        assert told(folder).kind == "unmatched"

    def test_a_live_look_says_that_it_is_stopped(self, tmp_path):
        folder = self.hung(tmp_path)
        (folder / "fr_rank_1").unlink()
        answer = told(self.with_look(folder, live_samples.rank(1, None, "T")))
        assert (answer.kind, answer.culprits, answer.status) == ("stopped", (1,), "established")

    def with_look(self, folder: Path, *ranks, **more) -> Path:
        """That folder with a live look, as nccl-look.pyz writes it."""
        folder.mkdir(parents=True, exist_ok=True)
        look = to_json({"live": live_samples.look(*ranks, **more)})
        (folder / "look.json").write_text(json.dumps([{"schema": "nccl-runbook/record/1", "step": "06-timeouts", "facts": look}]))
        return folder

    def test_a_live_look_alone_says_who_did_not_come(self, tmp_path):
        waiting = [live_samples.rank(n, live_samples.IN_ALL_REDUCE) for n in (0, 1, 3)]
        saving = live_samples.rank(2, live_samples.SAVING, "R", "", 2.9, lines=(0, 3, 1, 0))
        held = live_samples.rank(2, live_samples.ASLEEP, "R", "", 3.0, gil=True, moments={"R": 97})
        for name, rank, kind in (("saving", saving, "host-busy"), ("held", held, "gil-held")):
            found = told(self.with_look(tmp_path / name, *waiting, rank))
            assert (found.kind, found.culprits, found.victims, found.cause) == (kind, (2,), (0, 1, 3), "rank-busy-on-host"), found
            assert found.sentence.startswith("rank 2 ") and ".py:" in found.sentence, "of kinds that only living ranks have, the nearest"

    def test_a_live_look_that_decides_nothing_or_does_not_have_the_shape_accuses_nobody(self, tmp_path):
        waiting = [live_samples.rank(n, live_samples.IN_ALL_REDUCE) for n in range(4)]
        for name, ranks, more in (("all", waiting, {}), ("once", waiting[:3], {"gap_s": 0.0})):
            found = told(self.with_look(tmp_path / name, *ranks, **more))
            assert ((found.kind, found.culprits) == ("unknown", ()) and "4 ranks" in found.sentence) or name == "once", found
        (tmp_path / "all" / "look.json").write_text((tmp_path / "all" / "look.json").read_text().replace('"gap_s"', '"gap"'))
        hang = reader.collect([str(tmp_path / "all")])
        assert not hang.looks and not hang.stacks and "version" in hang.files[0].problem

    def test_dumps_that_decide_are_not_overruled_by_a_look_at_another_moment(self, tmp_path):
        moving = [live_samples.rank(n, None, switches=900, moments={"R": 60, "S futex": 37}) for n in range(4)]
        found = told(self.with_look(self.hung(tmp_path), *moving))
        assert (found.kind, found.culprits) == ("host-busy", (1,))
        assert told(self.with_look(tmp_path / "alone", *moving)).kind == "healthy"

    def test_watchdog_lines_alone_give_the_table(self, tmp_path):
        says = (
            "[rank{r}]:[E1120 12:03:{s}.815806190 ProcessGroupNCCL.cpp:2303] [PG ID 0 PG GUID 0(default_pg) Rank {r}]  failure detected by"
            " watchdog at work sequence id: {n} PG status: last enqueued work: {n}, last completed work: {c}\n"
        )
        work = (
            "[rank{r}]:[E1120 12:03:14.815806190 ProcessGroupNCCL.cpp:689] [Rank {r}] Watchdog caught collective operation timeout:"
            " WorkNCCL(SeqNum={n}, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=12000) ran for 12086 milliseconds before timing"
            " out.\n"
        )
        late = (
            "[rank{r}]:[E1120 12:03:18.236 ProcessGroupNCCL.cpp:1914] [PG ID 0 PG GUID 0(default_pg) Rank {r}] Received a dump signal due"
            " to a collective timeout from  rank 0 and we will try our best to dump the debug info. Last enqueued NCCL work: {n}, last"
            " completed NCCL work: {n}.\n"
        )
        (tmp_path / "job.log").write_text(
            "".join(work.format(r=r, n=7) + says.format(r=r, s=15, n=7, c=6) for r in (0, 1, 3)) + late.format(r=2, n=6)
        )
        hang = reader.collect([str(tmp_path)])
        answer = rules.judge_hang(hang)
        assert (answer.kind, answer.culprits, answer.victims) == ("skipped", (2,), (0, 1, 3)), answer.sentence
        assert {(t.rank, t.enqueued, t.completed) for g in hang.groups for t in g.tracks} == {(0, 7, 6), (1, 7, 6), (3, 7, 6), (2, 6, 6)}
        assert {str(getattr(row[1], "text", row[1])) for row in ranks_table(hang).rows} == {"default_pg"}, "one name"

    def test_a_rank_whose_log_fell_silent_is_named_and_dead_only_where_others_lost_their_connection(self, tmp_path):
        folder = self.hung(tmp_path)
        (folder / "fr_rank_1").unlink()
        assert told(folder).culprits == ()
        for rank in (0, 2, 3):
            (folder / f"rank{rank}.log").write_text(
                f"step 3 done\n[rank{rank}]:[E1120 12:03:15.815 ProcessGroupNCCL.cpp:689] [Rank {rank}] Watchdog caught collective"
                " operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=12000) ran for 12086"
                " milliseconds before timing out.\n"
            )
        (folder / "rank1.log").write_text("step 3 done\n")
        quiet = told(folder)
        assert (quiet.kind, quiet.culprits, quiet.status) == ("unknown", (1,), "possible"), quiet.sentence
        assert quiet.decides.startswith("ps ") and rules.hang_finding(quiet).severity is Severity.UNKNOWN
        launcher = folder / "launcher.log"
        for line, now in (
            ("E1201 api.py:1002] failed (exitcode: -6) local_rank: 1 (pid: 64) of binary: python", False),
            ("slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***", False),
            ("Failures:\n[0]:\n  rank      : 2 (local_rank: 2)\n  exitcode  : -6 (pid: 64)", False),
            ("n0:7:9 [1] NCCL WARN Cuda failure 'unspecified launch failure'", True),  # others may still run
            ("terminate called after throwing an instance of 'c10::DistBackendError'", True),
        ):
            launcher.write_text(line + "\n")
            assert told(folder).decides.startswith("ps ") is now, line
        launcher.unlink()
        waited = [(folder / f"rank{rank}.log").read_text() for rank in (0, 2, 3)]
        for rank in (0, 2, 3):
            (folder / f"rank{rank}.log").write_text(
                "step 3 done\nRuntimeError: [pair.cc:553] Connection closed by peer [192.0.2.1]:16279.\n"
            )
        ended = told(folder)
        assert (ended.kind, ended.culprits, ended.status) == ("dead", (1,), "possible") and "oom" in ended.decides
        for rank, text in zip((0, 2, 3), waited):
            (folder / f"rank{rank}.log").write_text(text)
        (folder / "rank1.log").write_text("step 3 done\nTraceback (most recent call last):\n    raise ValueError('x')\nValueError: x\n")
        raised = told(folder)
        assert (raised.kind, raised.culprits, raised.status) == ("dead", (1,), "likely")
        advice = " ".join([raised.decides, *(x for r in rules.hang_finding(raised).remedy for x in r.lines)])
        assert "(Error|Exception): " in advice and "oom" not in advice, "a rank that raised was not killed by the kernel"
        (folder / "rank1.log").write_text("step 3 done\nKilled\n")
        assert "oom" in told(folder).decides

    def test_a_rank_that_said_it_was_done_is_not_blamed_for_its_silence(self, tmp_path):
        folder = self.hung(tmp_path)
        (folder / "fr_rank_1").unlink()
        for rank in (0, 2, 3):
            (folder / f"rank{rank}.log").write_text(
                "step 3 done\nRuntimeError: [pair.cc:553] Connection closed by peer [192.0.2.1]:16279.\n"
            )
        for last, culprits in (("step 3 loss 0.5", (1,)), ("Training finished", ())):
            (folder / "rank1.log").write_text(f"step 2 loss 0.6\n{last}\n")
            assert told(folder).culprits == culprits, last

    def test_beside_dumps_who_raised_is_named_before_anybody_else_has_said_a_word(self, tmp_path):
        """Four H200, NCCL, 2026-11-22: the others still waited, so that their logs told nothing."""
        folder = self.hung(tmp_path)
        dump = (folder / "fr_rank_1").read_bytes()
        (folder / "fr_rank_1").unlink()
        for rank in (0, 2, 3):
            (folder / f"rank{rank}.log").write_text("step 3 done\n")
        raised = "step 3 done\nTraceback (most recent call last):\n    raise ValueError('x')\nValueError: x\n"
        (folder / "rank1.log").write_text(raised)
        found = told(folder)
        assert (found.kind, found.culprits, found.victims) == ("dead", (1,), (0, 2, 3)) and "ValueError: x" in found.sentence
        (folder / "rank1.log").write_text(raised + "step 4 done\n")
        assert told(folder).culprits == (), "it went on after that"
        for more in ("falling back\n", "=== restarted ===\nloading the model\n", "Watchdog caught collective operation timeout\n"):
            (folder / "rank1.log").write_text(raised + more)
            assert told(folder).culprits == (), "whoever says more was not ended by it"
        for more in (
            "RuntimeError: y\n",
            "[rank1]:[W1122 08:00:00.0 ProcessGroupNCCL.cpp:1538] Warning: WARNING: destroy_process_group() was not called\n",
        ):
            (folder / "rank1.log").write_text(raised + more)
            assert told(folder).culprits == (1,), "said as it ended"
        (folder / "rank1.log").write_text(raised)
        (folder / "fr_rank_1").write_bytes(dump)
        assert told(folder).kind != "dead", "it lived to leave a dump"

    @pytest.mark.parametrize(
        "calls, kind, words",
        [
            ({0: "ALLREDUCE", 2: "ALLREDUCE"}, "unknown", ", while rank 1 "),
            ({0: "ALLREDUCE", 1: "ALLGATHER", 2: "ALLREDUCE"}, "mismatch", "rank 1 called ALLGATHER"),
            ({0: "ALLREDUCE", 1: "BROADCAST", 2: "ALLREDUCE"}, "mismatch", "rank 1 called BROADCAST"),
            ({0: "ALLREDUCE", 1: "COALESCED", 2: "ALLREDUCE"}, "unknown", "COALESCED 7 of group default_pg (1 "),
        ],
    )
    def test_logs_alone_name_who_fell_silent_and_every_call_that_ranks_wait_in_and_accuse_nobody(self, tmp_path, calls, kind, words):
        for rank in range(3):
            text = f"[rank{rank}]: step 6/90 loss 2.0\n"
            if rank in calls:
                text += (
                    f"[rank{rank}]:[E1120 12:03:15.815 ProcessGroupNCCL.cpp:689] [Rank {rank}] Watchdog caught collective operation"
                    f" timeout: WorkNCCL(SeqNum=7, OpType={calls[rank]}, NumelIn=64, NumelOut=64, Timeout(ms)=12000) ran for 12086"
                    f" milliseconds before timing out.\n[rank{rank}]:[E1120 12:03:15.816 ProcessGroupNCCL.cpp:2271] [PG ID 0 PG GUID"
                    f" 0(default_pg) Rank {rank}] failure detected by watchdog at work sequence id: 7 PG status: last enqueued work: 7,"
                    " last completed work: 6\n"
                )
            (tmp_path / f"rank{rank}.log").write_text(text)
        answer = told(tmp_path)
        assert (answer.kind, answer.culprits) == (kind, ()) and words in answer.sentence, answer.sentence
        assert answer.status == ("likely" if kind == "mismatch" else answer.status)
        assert answer.decides.startswith(("nccl-runbook ", "ps ")), "a line to paste"
        assert "was killed" not in answer.sentence


class TestSilence:
    LAST, RESET, ECHOED, RAISED = (
        LogLine("rank1.log", 3, text, 1)
        for text in ("step 3 done", "RuntimeError: Connection closed by peer", "RuntimeError: Socket Timeout", "ValueError: x")
    )
    LATE = Timeout(LAST, "ALLREDUCE", 7, 64, 12000, 12086)

    def accused(self, ranks: dict[int, dict], perhaps=frozenset({1}), on=frozenset(), files=()) -> list[tuple[int, str, str]]:
        """(rank, kind, where its last words are) of ranks with such logs; all others wait, perhaps for these."""
        logs = [RankLog(n, [], [], **{"last": self.LAST, **ranks.get(n, {})}) for n in range(4)]
        hang = Hang([HangFile("x", what, n) for n, what in files], [], [], [], [], Logs([], "", {}, logs))
        waits = {n: [Wait(n, "0", Op(7, "all_reduce", "scheduled"), on, perhaps)] for n in range(4) if n not in perhaps}
        return [(a.rank, a.kind, a.evidence[0].source) for a in silent(hang, Graph(waits, {}))]

    @pytest.mark.parametrize(
        ("others", "kind"),
        [
            ({"timeouts": [LATE]}, "unknown"),
            ({"warned": True}, "unknown"),
            ({"first_error": ECHOED}, "unknown"),
            ({"first_error": RESET}, "dead"),
            ({"first_error": RESET, "timeouts": [LATE]}, "unknown"),
            ({"first_error": RESET, "warned": True}, "unknown"),
            ({"first_error": RAISED}, None),
            ({}, None),
        ],
    )
    def test_who_fell_silent_is_named_where_others_spoke_up_and_dead_where_all_lost_a_connection(self, others, kind):
        assert self.accused(dict.fromkeys((0, 2, 3), others)) == [(1, kind, "rank1.log line 3")] * bool(kind)
        one = {0: {"first_error": self.RESET}, 2: others, 3: others}
        assert self.accused(one) == [(1, "dead" if kind in ("dead", None) else kind, "rank1.log line 3")]

    @pytest.mark.parametrize("own", [{"timeouts": [LATE]}, {"warned": True}, {"first_error": RAISED}, {"ended": True}])
    def test_who_said_anything_is_not_named(self, own):
        assert self.accused({0: {"warned": True}, 1: own}) == []

    def test_who_left_a_dump_or_is_missing_for_sure_is_not_named_here(self):
        spoke = {0: {"warned": True}}
        assert self.accused(spoke, files=[(1, "dump")]) == [] != self.accused(spoke, files=[(1, "log"), (2, "dump")])
        assert self.accused(spoke, on=frozenset({1})) == []
        assert self.accused(spoke, perhaps=frozenset()) == [] == self.accused(spoke, perhaps=frozenset({1, 7})), "rank 7 has no log"

    def test_of_more_than_half_nobody_is_named_and_a_rank_without_a_line_has_no_last_one(self):
        spoke = {0: {"warned": True}, 1: {"last": None}}
        assert self.accused(spoke, frozenset({1, 2})) == [(1, "unknown", "rank 1"), (2, "unknown", "rank1.log line 3")]
        assert self.accused(spoke, frozenset({1, 2, 3})) == []


class TestFindings:
    def test_every_answer_is_a_finding_with_a_remedy_where_it_is_bad(self, tmp_path):
        for fault, severity in (("none", Severity.OK), ("skip", Severity.BROKEN), ("slow", Severity.WARN), ("spin", Severity.BROKEN)):
            found = rules.findings(reader.collect([str(DATA / fault)]))
            assert found[0].severity is severity and (found[0].remedy or severity is Severity.OK)

    def test_nothing_named_is_skipped_and_nothing_readable_is_unknown(self, tmp_path):
        assert rules.findings(reader.collect(""))[0].severity is Severity.SKIPPED
        (tmp_path / "fr_rank_0").write_bytes(b"\x80\x02broken")
        found = rules.findings(reader.collect([str(tmp_path)]))
        assert found[0].severity is Severity.UNKNOWN and any("damaged" in f.title for f in found)

    def test_facts_survive_a_record(self):
        hang = reader.collect([str(DATA / "skip")])
        again = TypeAdapter(Hang).validate_python(json.loads(json.dumps(to_json(hang))))
        assert rules.judge_hang(again) == rules.judge_hang(hang)


@pytest.mark.parametrize(
    ("folder", "group"), [("gloo-swap", "1"), ("pair-swap", "1"), ("gloo-minibatch", "0"), ("stall", "0"), ("op", "0"), ("none", "")]
)
def test_the_group_in_which_the_rank_is_missing_is_named_and_its_table_comes_first(folder: str, group: str) -> None:
    hang = reader.collect([str(DATA / folder)])
    answer = rules.judge_hang(hang)
    assert answer.group == group
    assert not group or tables(hang, answer.culprits, answer.group)[0].caption.split()[1].rstrip(":") == group


class TestActiveOperationsAlone:
    """Dumps of torch 2.8 with NCCL hold what is open and a table of groups, nothing that is complete. Two groups of two within one of four;
    rank 1's GPU reports nothing from number 10 of its pair on, although rank 0 has completed up to 13 with it."""

    GROUPS = {"0": ("world", [0, 1, 2, 3], "1"), "1": ("tp", [0, 1], "5"), "2": ("tp", [2, 3], "5")}

    def write(self, folder, opens, status=True):
        """``opens``: rank -> [(group, first open number, last issued)]."""
        for rank, groups in opens.items():
            entries = [
                {
                    "record_id": 90_000 + n,
                    "pg_id": int(self.GROUPS[g][2]),
                    "process_group": (g, self.GROUPS[g][0]),
                    "collective_seq_id": seq,
                    "p2p_seq_id": 0,
                    "op_id": seq,
                    "profiling_name": "nccl:all_gather",
                    "time_created_ns": 10**18 + n * 10**6,
                    "input_sizes": [[64]],
                    "output_sizes": [[128]],
                    "input_dtypes": ["BFloat16"],
                    "output_dtypes": ["BFloat16"],
                    "state": "scheduled",
                    "retired": False,
                    "timeout_ms": 180_000,
                    "is_p2p": False,
                    "time_discovered_started_ns": None,
                    "time_discovered_completed_ns": None,
                }
                for n, (g, seq) in enumerate((g, seq) for g, low, high in groups for seq in range(low, high + 1))
            ]
            told_of = {
                self.GROUPS[g][2]: {"last_enqueued_collective": high, "last_started_collective": -1, "last_completed_collective": low - 1}
                for g, low, high in groups
            }
            config = {g: {"name": g, "desc": desc, "ranks": str(ranks)} for g, (desc, ranks, _) in self.GROUPS.items() if rank in ranks}
            dump = {"version": "2.9", "pg_config": config, "entries": entries, **({"pg_status": told_of} if status else {})}
            (folder / f"_dump_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
        return told(folder)

    HUNG = {
        0: [("1", 14, 16), ("0", 7, 7)],
        1: [("1", 10, 13), ("0", 6, 6)],
        2: [("2", 15, 16), ("0", 7, 7)],
        3: [("2", 15, 16), ("0", 7, 7)],
    }

    def test_a_rank_that_does_not_see_the_end_of_what_its_peer_completed_is_named(self, tmp_path):
        found = self.write(tmp_path, self.HUNG)
        assert (found.culprits, found.kind) == ((1,), "gpu-stuck"), found.sentence

    STALLED = {
        0: [("1", 14, 16), ("0", 7, 7)],
        1: [("1", 14, 13), ("0", 7, 6)],
        2: [("2", 15, 16), ("0", 7, 7)],
        3: [("2", 15, 16), ("0", 7, 7)],
    }

    def test_a_dump_without_entries_tells_by_its_table_where_its_rank_stopped(self, tmp_path):
        found = self.write(tmp_path, self.STALLED)
        assert (found.culprits, found.kind, found.victims) == (
            (1,),
            "host-busy",
            (0, 2, 3),
        ) and "ALL_GATHER 14 of group 1 (tp)" in found.sentence

    @pytest.mark.parametrize(
        "opens", [{**STALLED, 1: [("1", 14, 12), ("0", 7, 5)]}, {**STALLED, 0: [("1", 14, 16), ("1", 20, 19), ("0", 7, 7), ("0", 9, 8)]}]
    )
    def test_a_table_of_an_older_dump_or_one_that_fits_no_entries_accuses_nobody(self, tmp_path, opens):
        assert self.write(tmp_path, opens).culprits == ()

    def test_nothing_follows_without_the_table_of_groups(self, tmp_path):
        assert self.write(tmp_path, self.STALLED, status=False).culprits == ()
        assert self.write(tmp_path, self.HUNG, status=False).kind != "gpu-stuck"

    def test_all_at_the_same_number_accuse_nobody(self, tmp_path):
        same = {r: [("1" if r < 2 else "2", 14, 16), ("0", 7, 7)] for r in range(4)}
        assert self.write(tmp_path, same).culprits == ()


@pytest.mark.parametrize("there, before, missing", [
    ((0, 1, 2, 4, 5), "", [3]),
    ((0, 1, 2, 4, 5), "[rank3]: step 3 loading shard\n", [3]),
    ((0, 1, 2), init(0, 0, 0, "60", nranks=4), [3]),  # the last one: NCCL printed how many there are
    ((1, 2, 3), "", [0]),
    ((0, 1, 2, 5), "", []),  # more than one: a host whose log is not here
    ((0, 1, 2, 3), "", []),
])
def test_hang_and_triage_miss_the_same_rank_of_a_log(tmp_path: Path, there: tuple[int, ...], before: str, missing: list[int]) -> None:
    (tmp_path / "job.log").write_text(before + "".join(hung(rank) for rank in there))
    told = rules.judge_hang(reader.collect([str(tmp_path)]))
    (first, *_) = triage.judge(log_reader.collect([str(tmp_path)]))
    assert told.kind == "unknown" and sorted(told.victims) == sorted(there)
    assert (told.status == "possible", (first.cause == "rank-busy-on-host")) == (bool(missing),) * 2, (told, first)
    assert all(f"rank {rank} " in told.sentence and f"rank {rank} printed nothing" in first.says for rank in missing)


@pytest.mark.parametrize("seed", [6, 7, 21])
def test_a_skipped_call_among_calls_that_alternate_is_not_called_another_order(tmp_path: Path, seed: int) -> None:
    """In these, the rank that skipped one of two alternating calls had made two calls in the other order, as far as two calls show."""
    job = Job(seed)
    job.inject(5, "skip", 3)
    job.run().write(tmp_path)
    told = rules.judge_hang(reader.collect([str(tmp_path)]))
    assert (told.cause, told.culprits) == ("collective-on-some-ranks-only", (5,)) and told.status in ("likely", "possible")
