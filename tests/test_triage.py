"""Log triage: every cause fires on its own sample and not on the one that only looks like it; what follows is never the cause."""
from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import jsonschema
import papermill
import pytest
import score
from nccl_runbook.case.answer import case
from nccl_runbook.case.given import Material
from nccl_runbook.case.read import logs_of
from nccl_runbook.causes.causes import causes, fitting, for_launcher
from nccl_runbook.causes.tables import table
from nccl_runbook.core import records
from nccl_runbook.core.facts import to_json
from nccl_runbook.core.findings import Severity, verdict_of
from nccl_runbook.core.parameters import read_cell
from nccl_runbook.hang import judge as hang, read as hang_files
from nccl_runbook.messages import lines as lines_file, read as reader
from nccl_runbook.messages.clues import _rows, catalogue, clues, compiled
from nccl_runbook.messages.facts import Logs
from nccl_runbook.messages.judge_silent import unheard
from nccl_runbook.messages.lines import EXPRESSIONS
from nccl_runbook.messages.printed.recognise import recognise
from nccl_runbook.report.markup import badge
from nccl_runbook.triage import judge as triage
from nccl_runbook.triage.hypotheses import judge_weights as triage_weights
from nccl_runbook.triage.judge import answer
from processes import ROOT, quickest_s
from pydantic import TypeAdapter
from triage_samples import DUPLICATE, SAMPLES, hung
from warm_cli import read_cli

SCHEMA = json.loads((ROOT / "lib/nccl_runbook/schemas/triage.json").read_text())
# several causes behind one message: never named itself; and what a test between two hosts finds, no log
INTERNAL = {"duplicate-gpu", "mtu-black-hole"}


def read(tmp_path: Path, text: str, context: str = "", name: str = "job.log") -> Logs:
    path = tmp_path / name
    path.write_text(text)
    return reader.collect([str(path)], context)


def told(tmp_path: Path, text: str, context: str = "") -> list[tuple[str, str]]:
    return [(h.cause, h.status) for h in triage.judge(read(tmp_path, text, context))]


@pytest.mark.parametrize("cause, log, context, miss", SAMPLES, ids=[s[0] for s in SAMPLES])
class TestEveryCause:
    def test_cause_fires_when_its_messages_are_there(self, tmp_path, cause, log, context, miss):
        logs = read(tmp_path, log, context)
        found = triage.judge(logs)
        assert cause in [*(h.cause for h in found), *(c.id for c in triage_weights.fits(logs, found))][:3]

    def test_cause_stays_quiet_when_a_log_only_looks_like_it(self, tmp_path, cause, log, context, miss):
        (tmp_path / "job.log").write_text(miss)
        seen = [h for h in triage.judge(reader.collect([str(tmp_path / "job.log")]))]
        assert cause not in [
            h.cause for h in seen if h.status != "possible" or cause not in ("peer-crashed", "uneven-minibatches", "start-skew")
        ]


def test_what_decides_is_asked_of_what_can_answer_it():
    for cause in causes().values():
        probe, why, line = cause.decides
        runs_a_step = line.startswith((f"nccl-runbook run --step {probe}", "nccl-runbook ab "))
        assert probe[:2].isdecimal() == runs_a_step, f"{cause.id}: `line` runs the step that is `probe`, or `probe` is `by hand`"
        assert "py-spy" not in line or re.search(r"stack|state|branch", why), cause.id  # it shows stacks, no counts and no exceptions
    assert {causes()[c].decides[0] for c in ("env-conflict", "nccl-library-conflict", "ulimit-too-low")} == {"02-environment"}


def test_the_page_names_the_gpu_that_a_bus_id_stands_for_as_the_terminal_does(tmp_path):
    (tmp_path / "job.log").write_text(DUPLICATE)
    text = read_cli("triage", str(tmp_path / "job.log"), "--html", str(tmp_path / "page.html")).stdout
    bus = re.search(r"hexadecimal PCI bus id, ([0-9a-f:.]+)\.\s", text)
    assert bus and f"bus id, {bus[1]}." in (tmp_path / "page.html").read_text()


def test_what_is_only_possible_is_not_told_as_seen(tmp_path):
    (tmp_path / "job.log").write_text("RuntimeError: No CUDA GPUs are available\n")
    page = tmp_path / "page.html"
    text = read_cli("triage", str(tmp_path / "job.log"), "--html", str(page)).stdout
    assert (
        "Possible: the process has no access to a GPU" in text
        and "established: " not in text
        and "in your launcher: If the job runs in a container" in text
    )
    assert page.read_text().count("If the job runs in a container") == 1 and "If this is the cause: If " not in page.read_text()
    assert (
        f"If this is the cause: {causes()['container-gpu-access'].says}" in page.read_text()
        and 'id="causes"' in page.read_text()
        and "The fix" not in page.read_text()
    )
    (tmp_path / "job.log").write_text("[1.5] NVRM: Xid (PCI:0000:18:00): 79, pid=1, name=python, GPU has fallen off the bus.\n")
    text = read_cli("triage", str(tmp_path / "job.log"), "--html", str(page)).stdout
    assert "If this is the cause" not in text.split("\nalso ")[0] and "The fix" in page.read_text()


def test_every_cause_of_the_table_has_a_sample_words_and_a_probe():
    assert {s[0] for s in SAMPLES} | {row["cause"] for row in _rows() if "fires" in row} == set(causes()) - INTERNAL
    for cause in causes().values():
        assert cause.source and all(cause.decides), f"{cause.id}: source, or a part of decides, is empty"
        assert cause.id in INTERNAL or (cause.says.count(".") >= 1 and cause.remedy), f"{cause.id}: says needs a sentence, remedy a row"
    assert {c.cause for c in clues()} <= set(causes())


def test_what_establishes_a_cause_has_a_sample_and_a_near_miss():
    """A program printed it: a reporter's words establish nothing."""
    rows = [row for row in _rows() if row["status"] == "established"]
    assert [row["id"] for row in rows if row.get("words") or not row.get("fires") or not row.get("quiet")] == [] and len(rows) > 100


def test_no_benign_line_is_the_reason_why_a_test_of_ours_fails():
    benign = next(s[1] for s in SAMPLES if s[0] == "benign")
    assert recognise({"rank 0": benign}) is None


def test_what_the_matcher_selects_holds_all_that_a_naive_search_finds():
    lines = list(dict.fromkeys(line for sample in SAMPLES for text in sample[1:] for line in text.splitlines()))
    selected = lines_file.matcher().may_match([line.encode() for line in lines])
    for index, line in enumerate(lines):
        assert {i for i, e in {**catalogue()["printed"], **EXPRESSIONS}.items() if compiled(e).search(line)} <= {
            *selected.get(index, ())
        }, line


# what follows is not the cause


def test_out_of_memory_stays_quiet_when_it_came_after_the_timeout(tmp_path):
    oom = "[rank0]: torch.OutOfMemoryError: CUDA out of memory.\n"
    assert dict(told(tmp_path, hung(0) + oom))["gpu-memory-exhausted"] == "possible"
    assert told(tmp_path, oom.replace("rank0", "rank1") + hung(0))[0] == ("gpu-memory-exhausted", "likely")


def test_a_message_stays_quiet_when_the_rank_went_on(tmp_path):
    warned = "[rank0]: node0:7:7 [0] NCCL WARN Call to ibv_modify_qp failed with error Network is unreachable\n"
    assert told(tmp_path, warned)[0][0] == "roce-gid-wrong"
    assert "roce-gid-wrong" not in dict(told(tmp_path, warned + "[rank0]: step 1 loss 2.0\n[rank0]: step 2 loss 1.9\n"))


@pytest.mark.parametrize(
    "line",
    [
        "NCCL WARN socketProgress: Connection closed by remote peer node1<41109>",
        "NCCL WARN Socket recv failed while polling for opId=0x7",
        "NCCL WARN Call to recv from 10.0.0.1 failed : Broken pipe",
        "NCCL WARN [Proxy Service 1] Failed to execute operation Connect from rank 1",
        "NCCL INFO transport/net.cc:362 -> 3",
    ],
)
def test_an_echo_is_never_the_cause(tmp_path, line):
    assert [s for _, s in told(tmp_path, f"node0:7:7 [0] proxy.cc:1 {line}\n") if s != "possible"] == []


def test_the_rank_that_raised_leads_and_the_waiting_one_follows(tmp_path):
    logs = read(tmp_path, hung(0) + "[rank2]: KeyError: 'label'\n")
    lead = triage.judge(logs)[0]
    assert (lead.cause, lead.status, lead.evidence[0].rank) == ("peer-crashed", "likely", 2)


@pytest.mark.parametrize(
    "line, raised",
    [
        ("KeyError: 'label'", True),
        ("yaml.scanner.ScannerError: mapping values are not allowed here", True),
        ("MemoryError", False),
        ("Killed", False),
        ("torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:93", False),
        ("RuntimeError: Connection closed by peer [192.0.2.1]:1", False),
        ("RuntimeError: DataLoader worker (pid 5) is killed by signal: Killed.", False),
    ],
)
def test_advice_for_a_rank_that_died_fits_the_line_that_says_so(line, raised):
    advice = fitting("peer-crashed", line)
    lines = " ".join([advice.decides[2], *(x for _, _, lines in advice.remedy for x in lines)])
    assert ("(Error|Exception)" in lines, "oom" in lines) == (raised, not raised)


@pytest.mark.parametrize(("line", "by_dumps"), [
    ("rank 2 called all_gather (train.py:9); in earlier steps, the rank called all_reduce at this point", True),
    ("rank 2 called all_gather; all_reduce came at this place in earlier steps", True),  # a record of an older version
    ("rank 2 waits in all_gather; the earlier steps are not recorded", False)])
def test_a_rank_that_left_its_order_needs_no_second_collection_of_dumps(line, by_dumps):
    assert (fitting("collective-on-some-ranks-only", line).decides[0] == "by hand") is by_dumps


def test_the_silent_rank_is_possible_only(tmp_path):
    (tmp_path / "rank0.log").write_text(hung(0))
    (tmp_path / "rank1.log").write_text("step 2 ok\n")
    assert [(h.cause, h.status) for h in triage.judge(reader.collect([str(tmp_path)]))][:2] == [
        ("peer-crashed", "possible"),
        ("peer-stopped", "possible"),
    ]


def test_the_silent_rank_that_last_said_that_it_saves_is_rather_busy(tmp_path):
    (tmp_path / "rank0.log").write_text(hung(0))
    (tmp_path / "rank1.log").write_text("step 2 ok\nSaving model checkpoint: out/step2.pt\n")
    assert [(h.cause, h.status) for h in triage.judge(reader.collect([str(tmp_path)]))][:2] == [
        ("rank-busy-on-host", "possible"),
        ("collective-on-some-ranks-only", "possible"),
    ]


@pytest.mark.parametrize(("others", "is_named"), [((), True), ((4, 5), False)])
def test_a_rank_outside_the_group_that_waits_is_not_called_silent(tmp_path, others, is_named):
    log = tmp_path / "job.log"
    late = "".join(waits(r).replace(f"[Rank {r}]", f"[PG ID 3 PG GUID 3(dp_group) Rank {r}]") for r in (0, 1, 3))
    log.write_text(late + "".join(f"[rank{r}]: step 2 ok\n" for r in others))
    logs = reader.collect([str(log)])
    assert [r.rank for r in unheard(logs)] == [2] * is_named


def waits(rank: int, seq: int = 51) -> str:
    return re.sub(r"SeqNum=\d+", f"SeqNum={seq}", hung(rank))


def test_a_rank_without_a_line_among_those_of_all_others_is_named(tmp_path):
    log = tmp_path / "job.log"
    log.write_text("step 1 ok\n" + "".join(map(waits, (0, 1, 2, 4, 5))))
    logs = reader.collect([str(log)])
    assert triage.judge(logs)[0].status == "possible" and "rank 3" in triage.judge(logs)[0].says
    log.write_text("step 1 ok\n" + "".join(map(waits, (0, 4))))  # most are not here: nobody is named
    assert not any("nothing at all" in h.says for h in triage.judge(reader.collect([str(log)])))
    log.write_text("step 1 ok\n" + "".join(waits(r, 51 + r) for r in (0, 1, 2, 4, 5)))  # in different calls
    assert not any("nothing at all" in h.says for h in triage.judge(reader.collect([str(log)])))


def test_torchruns_summary_and_the_watchdogs_words_show_no_configured_timeout(tmp_path):
    log = tmp_path / "job.log"
    torchrun = ("W1129 08:01:02.113000 23110 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable for each process "
                "to be 1 in default, to avoid your system being overloaded\n")
    ended = "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 0] Process group watchdog thread terminated with exception: "
    log.write_text(torchrun + "".join(map(waits, range(4))) + ended + waits(0))
    assert "timeout-on-other-group" not in {h.cause for h in triage.judge(reader.collect([str(log)]))}


def test_what_was_only_told_is_possible(tmp_path):
    assert told(tmp_path, "nothing of note\n", "the GPU has fallen off the bus")[0] == ("gpu-or-link-fault", "possible")


def test_a_number_tells_one_fault_from_another(tmp_path):
    xids = "kernel: NVRM: Xid (PCI:0000:3b:00): 31, pid=7\n" * 3 + "kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=7\n"
    assert told(tmp_path, xids)[0] == ("gpu-or-link-fault", "established")


# unknown, never healthy


@pytest.mark.parametrize(
    ("line", "verdict", "sentence"),
    [
        (
            "NVRM: Xid (PCI:0000:06:00): 79, pid=123, GPU has fallen off the bus.",
            "broken",
            "Broken: a GPU or a link is faulty (established): GPU 0000:06:00 no longer answers on PCIe (Xid 79) (job.log line 1).",
        ),
        (
            "NCCL WARN Bootstrap : no socket interface found",
            "broken",
            (
                "Broken: no usable network interface connects the ranks (likely): "
                '"NCCL WARN Bootstrap : no socket interface found" (job.log line 1).'
            ),
        ),
        (
            "n1:11:21 [0] transport/net_ib.cc:95 NCCL WARN NET/IB : mlx5_1:1 Got async event : port error",
            "degraded",
            (
                "Degraded: the network path that NCCL chose does not work (likely): On n1, port 1 of the network card mlx5_1 lost its link"
                " (job.log line 1)."
            ),
        ),
        (
            (
                "[rank3]:[E ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4711,"
                " OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 milliseconds before timing out."
            ),
            "unknown",
            (
                "Unknown: rank 3 waited in ALLREDUCE 4711 until the timeout of 600 s (job.log line 1, rank 3). Possible: a collective runs"
                " on some ranks only, or 2 other causes."
            ),
        ),
        (
            "NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000",
            "broken",
            (
                "Broken: ranks 0 and 1 use the same GPU "
                "(job.log line 1). Possible: ranks did not each choose their own GPU, or 2 other causes."
            ),
        ),
        ("nothing that anybody knows", "unknown", "Unknown: 1 line read, but this does not look like the log of a GPU job."),
    ],
)
def test_the_verdict_is_as_sure_as_its_surest_cause(tmp_path, line, verdict, sentence):
    logs = read(tmp_path, line + "\n")
    told = case(logs_of(Material(logs=(str(tmp_path / "job.log"),)), None), "triage", "", "unknown").document
    assert (told.verdict, told.sentence.replace(f"{tmp_path.name}/", "")) == (verdict, sentence)
    assert verdict_of(answer(logs).findings) == verdict, "07-logs and the page say the same"


@pytest.mark.parametrize("text", ["", "\n\n", "dear diary\n", "step 1 loss 2\nstep 2 loss 1\ndone\n"])
def test_silence_is_unknown(tmp_path, text):
    logs = read(tmp_path, text)
    assert triage.judge(logs) == [] and answer(logs).findings[0].severity is Severity.UNKNOWN


STORY = (
    "A job on two nodes hangs since yesterday when it evaluates: the validation set does not divide by the number of ranks, so that some"
    " ranks have a batch more, and we wrote metrics only on those that still had data."
)


@pytest.mark.parametrize(
    "sample",
    [s for s in SAMPLES if s[0] in ("collective-on-some-ranks-only", "uneven-minibatches", "collective-mismatch")],
    ids=lambda s: s[0],
)
def test_words_that_tell_nothing_change_nothing_and_a_story_overturns_no_comparison_of_ranks(tmp_path, sample):
    """Blanks, a question mark, a title; then two sentences that speak of something else."""
    alone = told(tmp_path, sample[1])
    for context in (" ", "?", "nccl", "The job ends after 20 minutes at the first all_reduce.", STORY):
        now = told(tmp_path, sample[1], context)
        assert [one for one in now if one[1] == "likely"] == [one for one in alone if one[1] == "likely"], context


def test_no_log_is_skipped_and_an_unreadable_one_is_unknown(tmp_path):
    assert [f.severity for f in answer(reader.collect("")).findings] == [Severity.SKIPPED]
    assert {f.severity for f in answer(reader.collect([str(tmp_path / "none")])).findings} == {Severity.UNKNOWN}


def test_a_recorded_fact_is_read_back(tmp_path):
    logs = read(tmp_path, DUPLICATE + hung(1), "two ranks")
    assert TypeAdapter(Logs).validate_python(json.loads(json.dumps(to_json(logs)))) == logs


# the launcher's own line


@pytest.mark.parametrize(
    "launcher, expected",
    [
        ("srun", "export NCCL_IB_GID_INDEX=3  # in the batch script, before srun"),
        ("ray", 'ray.init(runtime_env={"env_vars": {"NCCL_IB_GID_INDEX": "3"}})'),
        ("docker", "docker run -e NCCL_IB_GID_INDEX=3 ..."),
        ("kubernetes", '- {name: NCCL_IB_GID_INDEX, value: "3"}  # under env: of the container'),
        ("torchrun", "export NCCL_IB_GID_INDEX=3"),
        ("beaker", "gantry run --env NCCL_IB_GID_INDEX=3 ..."),
        ("accelerate", "NCCL_IB_GID_INDEX=3 accelerate launch ...  # on every machine: accelerate passes on its own environment"),
    ],
)
def test_a_remedy_speaks_the_launchers_language(launcher, expected):
    assert for_launcher("export NCCL_IB_GID_INDEX=3", launcher) == (expected,)
    assert for_launcher("show_gids", launcher) == ("show_gids",)


def test_a_port_that_is_in_use_is_changed_by_the_option_of_deepspeed_alone(tmp_path):
    text = (
        "[launch.py:216:main] world_info_dict={'n1': [0, 1]}\nRuntimeError: The server socket has failed to bind to [::]:29512 (errno: 98 -"
        " Address already in use).\n"
    )
    first = triage.judge(read(tmp_path, text))[0]
    assert first.remedy[0].lines == ("deepspeed --master_port 29501 train.py",) and "torchrun" not in first.remedy[0].text


@pytest.mark.parametrize(
    "launcher, expected",
    [
        (
            "deepspeed",
            (
                "export A=1 B=2",
                (
                    "printf '%s\\n' A=1 B=2 >> ~/.deepspeed_env  # in a job on several hosts, DeepSpeed passes on only NCCL_ variables and"
                    " the variables in this file"
                ),
            ),
        ),
        ("ray", ('ray.init(runtime_env={"env_vars": {"A": "1", "B": "2"}})',)),
        ("srun", ("export A=1 B=2  # in the batch script, before srun",)),
        ("docker", ("docker run -e A=1 -e B=2 ...",)),
        ("torchrun", ("export A=1 B=2",)),
    ],
)
def test_a_line_that_sets_two_variables_loses_none(launcher, expected):
    assert for_launcher("export A=1 B=2", launcher) == expected


@pytest.mark.parametrize(
    "line, launcher, expected",
    [
        ("docker run --shm-size=8g ...", "beaker", "gantry run --shared-memory 8GiB ..."),
        ("docker run --shm-size=8g ...", "kubernetes", "volumes: [{name: dshm, emptyDir: {medium: Memory, sizeLimit: 8Gi}}]"),
        ("ulimit -l unlimited", "docker", "docker run --ulimit memlock=-1 --cap-add=IPC_LOCK ..."),
        ("ulimit -n 65536", "srun", "ulimit -n 65536 && srun --propagate=NOFILE,MEMLOCK ..."),
        ("unset NCCL_TOPO_FILE", "docker", "docker run ... IMAGE sh -c 'unset NCCL_TOPO_FILE; exec python train.py'"),
        ("unset NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME", "deepspeed", "unset NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME"),
        ("export MASTER_PORT=29501", "deepspeed", "deepspeed --master_port 29501 train.py"),
        ("torchrun --master-port 29501 --nproc-per-node N train.py", "deepspeed", "deepspeed --master_port 29501 train.py"),
        (
            "export MASTER_PORT=$((20000 + ${SLURM_JOB_ID:-0} % 20000))",
            "deepspeed",
            "deepspeed --master_port $((20000 + ${SLURM_JOB_ID:-0} % 20000)) train.py",
        ),
        ("export MASTER_ADDR=n1 MASTER_PORT=29500", "deepspeed", "deepspeed --master_addr n1 --master_port 29500 train.py"),
        (
            "unset NCCL_TOPO_FILE",
            "ray",
            "unset NCCL_TOPO_FILE; ray stop; ray start ...  # on every node: workers inherit the environment of the raylet",
        ),
        (
            "torchrun --nproc-per-node $(x) train.py",
            "srun",
            (
                "srun --ntasks-per-node=4 --gpus-per-node=4 --gpu-bind=none bash -c 'LOCAL_RANK=$SLURM_LOCALID exec python train.py'  # as"
                " many tasks as GPUs"
            ),
        ),
        (
            "torchrun --nproc-per-node $(x) train.py",
            "ray",
            "ray status  # start at most as many workers with num_gpus=1 as this lists GPUs",
        ),
        ("unset CUDA_LAUNCH_BLOCKING", "accelerate", "unset CUDA_LAUNCH_BLOCKING  # on every machine, then: accelerate launch ..."),
    ],
)
def test_what_is_no_variable_is_said_in_the_launchers_way_too(line, launcher, expected):
    assert for_launcher(line, launcher)[0] == expected and for_launcher(line, "torchrun") == (line,)


def test_every_line_that_a_launcher_says_otherwise_is_a_remedy_of_some_cause():
    remedies = [*(cause.remedy for cause in causes().values()), *(clue.advice.remedy for clue in clues() if clue.advice)]
    lines = [line for remedy in remedies for _, _, lines in remedy for line in lines]
    for form in table("causes/launchers")["form"]:
        assert any(re.fullmatch(form["of"], line) for line in lines), form["of"]


# the command


def test_json_follows_its_schema_and_ends_3(tmp_path):
    (tmp_path / "job.log").write_text(DUPLICATE + hung(0))
    ended = read_cli("triage", tmp_path / "job.log", "--json", "--context", "two Ray actors")
    document = json.loads(ended.stdout)
    jsonschema.validate(document, SCHEMA)
    assert (
        ended.returncode == document["exit_code"] == 3 and document["undecided"] and document["hypotheses"][0]["evidence"][0]["line"] == 1
    )


def test_exit_codes(tmp_path):
    (tmp_path / "bad.log").write_text("kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=7\n")
    (tmp_path / "empty.log").write_text("")
    codes = [
        read_cli("triage", tmp_path / n, *more).returncode
        for n, more in (
            ("bad.log", ()),
            ("bad.log", ("--fail-on", "never")),
            ("empty.log", ()),
            ("none.log", ()),
            ("bad.log", ("--fail-on", "soon")),
        )
    ]
    assert codes == [3, 0, 4, 2, 2]


@pytest.mark.parametrize(
    "line", [hung(3), "step 1 loss 2", "NCCL WARN Bootstrap : no socket interface found", "NVRM: Xid (PCI:0000:3b:00): 79, pid=7"]
)
def test_the_banner_of_the_page_says_what_the_exit_code_says(tmp_path, line):
    (tmp_path / "job.log").write_text(line + "\n")
    ended = read_cli("triage", tmp_path / "job.log", "--json", "--html", tmp_path / "page.html")
    tone = re.search('class="banner ([a-z]+)"', (tmp_path / "page.html").read_text())[1]
    assert tone == badge(json.loads(ended.stdout)["verdict"]).tone != badge("healthy").tone


def test_the_page_escapes_and_hides_secrets(tmp_path):
    token = "hf_" + "a1B2" * 8
    (tmp_path / "job.log").write_text(
        f"NCCL WARN Duplicate GPU detected : <script>alert(1)</script> token={token}\nERROR <img src=x onerror=alert(2)> {token}\n"
    )
    ended = read_cli("triage", tmp_path / "job.log", "--json", "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Duplicate GPU detected" in page and "<script" not in page and "<img" not in page
    assert token not in page and token not in ended.stdout


def test_it_starts_without_torch_and_jupyter(tmp_path):
    (tmp_path / "job.log").write_text(DUPLICATE)
    code = (
        "import sys; sys.argv = ['nccl-runbook', 'triage', sys.argv[1], '--json']\nfrom nccl_runbook.__main__ import main\ntry:\n   "
        " main()\nexcept SystemExit:\n    pass\nassert not {'torch', 'jupyter_client', 'nbformat', 'papermill', 'jinja2'} &"
        " set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "job.log")],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "lib")},
    )


def test_five_megabytes_take_less_than_a_second(tmp_path):
    line = (
        "node{h}:{p}:{p} [{d}] NCCL INFO AllReduce: opCount {i:x} sendbuff 0x{i:x} recvbuff 0x{i:x} count {i} datatype 7 comm 0x55d0"
        " [nranks=8] stream 0x{i:x}\n[rank{d}]: step {i} loss 0.{i}\n"
    )
    text = "".join(line.format(h=i % 4, p=i % 97, d=i % 8, i=i) for i in range(31_000)) + hung(3)
    assert len(text) > 5 << 20
    path = tmp_path / "big.log"
    path.write_text(text)
    logs = reader.collect([str(path)])
    assert (
        quickest_s(lambda: reader.collect([str(path)]), 1.0) < 1.0
        and logs.files[0].lines == 62_001
        and [r.rank for r in logs.ranks if r.timeouts] == [3]
    )


# a log of other hosts


def test_the_log_of_another_host_is_noted_once(tmp_path):
    """The same log with this host's name, and one that names no host: it can be tested here, or nobody knows where."""
    log = SAMPLES[[s[0] for s in SAMPLES].index("device-not-set-per-rank")][1]
    for name, text in (
        ("there", log),
        ("here", log.replace("node0", f"{socket.gethostname()}.cluster")),
        ("nowhere", "RuntimeError: CUDA error: invalid device ordinal\n"),
    ):
        (tmp_path / f"{name}.log").write_text(text)
        noted = [f for f in answer(reader.collect([str(tmp_path / f"{name}.log")])).findings if f.id == "read-elsewhere"]
        assert len(noted) == (name == "there") and all("node0" in f.title for f in noted), name


# the score


def test_the_score_counts_what_was_labelled(tmp_path, capsys):
    rows = [
        {
            "id": "a",
            "cause": "rendezvous-port-in-use",
            "decisive_from_log": True,
            "log": SAMPLES[[s[0] for s in SAMPLES].index("rendezvous-port-in-use")][1],
            "context": "",
        },
        {
            "id": "b",
            "cause": "straggler",
            "decisive_from_log": False,
            "log": "kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=7\n",
            "context": "",
        },
        {"id": "c", "cause": "benign", "decisive_from_log": True, "log": "nothing\n", "context": ""},
    ]
    (tmp_path / "reports.jsonl").write_text("\n".join(map(json.dumps, rows)))
    score.main([str(tmp_path / "reports.jsonl"), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert [told[n]["hits"] for n in ("top1_decisive", "top3_all", "wrong_but_confident", "undecided", "benign_alarms")] == [1, 1, 1, 1, 0]
    assert told["top1_decisive"]["of"] == 2 and told["top1_decisive"]["low"] < 0.5 < told["top1_decisive"]["high"]
    assert told["by_cause"]["straggler"] == {"reports": 1, "top1": 0, "top3": 0, "wrong": 1}


def test_the_score_refuses_what_is_no_report(tmp_path):
    (tmp_path / "x.jsonl").write_text("[1]\n")
    with pytest.raises(SystemExit) as ended:
        score.main([str(tmp_path / "x.jsonl")])
    assert ended.value.code == 2


# the notebook


@pytest.mark.parametrize(
    ("notebook", "found"), [("06-timeouts", hang.findings(hang_files.collect(""))), ("07-logs", answer(reader.collect("")).findings)]
)
def test_what_a_step_without_a_file_asks_for_is_a_parameter_of_its_notebook(notebook, found):
    (told,) = found
    assert told.severity is Severity.SKIPPED and re.search(r"-p (\w+)", told.title)[1] in read_cell(ROOT / f"notebooks/{notebook}.ipynb")


def test_the_notebook_judges_a_log_and_its_own_record(tmp_path):
    (tmp_path / "job.log").write_text(SAMPLES[[s[0] for s in SAMPLES].index("gpu-memory-exhausted")][1])
    for given in ({"log": str(tmp_path / "job.log")}, {"record_path": str(tmp_path / "run/07-logs.json")}, {}):
        papermill.execute_notebook(
            ROOT / "notebooks/07-logs.ipynb",
            tmp_path / "out.ipynb",
            parameters={"run_dir": str(tmp_path / "run"), **given},
            progress_bar=False,
        )
        record = records.load(tmp_path / "run/07-logs.json")
        assert record.status == ("broken" if given else "skipped")
        if given:
            assert (
                record.findings[0].cause == "gpu-memory-exhausted" and len(record.tables) > 0 and record.tables[0]["columns"][0] == "rank"
            )


def test_a_warning_that_no_row_knows_is_quoted_in_the_first_sentence(tmp_path: Path) -> None:
    warning = "NCCL WARN some brand new warning about the frobnicator"
    (tmp_path / "a.log").write_text(f"n1:1:2 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\nn1:1:2 [0] foo.cc:12 {warning}\n")
    ended = read_cli("triage", str(tmp_path / "a.log"), "--json")
    assert ended.returncode == 4 and warning in json.loads(ended.stdout)["sentence"]


def test_a_node_failure_leads_where_srun_says_first_that_the_step_was_cancelled(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("slurmstepd: error: *** STEP 77.0 ON n3 CANCELLED AT 2026-11-21T11:00:31 DUE to SIGNAL Terminated ***\n"
                                    "srun: error: Node failure on n4\nsrun: error: n4: tasks 8-15: Exited with exit code 255\n")
    said = json.loads(read_cli("triage", str(tmp_path / "a.log"), "--json").stdout)
    assert [(h["cause"], h["status"]) for h in said["hypotheses"]][:1] == [("node-failed", "established")]


def test_a_time_limit_after_a_rank_had_failed_is_still_no_cause(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(
        "[rank3]: ValueError: bad batch\nslurmstepd: error: *** JOB 77 ON n3 CANCELLED AT 2026-11-21T11:00:31 DUE TO TIME LIMIT ***\n"
    )
    said = json.loads(read_cli("triage", str(tmp_path / "a.log"), "--json").stdout)
    assert ("scheduler-time-limit", "established") not in [(h["cause"], h["status"]) for h in said["hypotheses"]]
