"""`nccl-runbook sync`: the ways to move weights, measured here; or where the seconds of your own sync go.

Example: nccl-runbook sync --model Qwen/Qwen2.5-7B --gpus 0,1 --methods
nccl-flat@64+512,fast-disk-shm --receivers-busy 4096
"""

import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from nccl_runbook import placement
from nccl_runbook.book import duration_s
from nccl_runbook.cli import answer, options
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.parameters import check_range
from nccl_runbook.launch import stop
from nccl_runbook.launch.gpu_lists import check_present
from nccl_runbook.launch.stop import own_folder
from nccl_runbook.launch.warm_link import EngineError
from nccl_runbook.look import own_sync
from nccl_runbook.look.live import checked_pids
from nccl_runbook.machine import ask_nvml as nvml, judge_busy as busy
from nccl_runbook.plan.answer import check, intend, intention
from nccl_runbook.plan.table import intended_tables
from nccl_runbook.report.tables import StepView, Table
from nccl_runbook.report.verdict import verdict_document
from nccl_runbook.report.verdict_document import RunInfo
from nccl_runbook.step import Step
from nccl_runbook.sync import ask as probe, judge as weight_sync, models, read_trace as sync_trace
from nccl_runbook.sync.arrived import judge as judge_arrived, read as read_arrived
from nccl_runbook.sync.arrived.table import arrival_table
from nccl_runbook.sync.pays import ask as ask_pays, judge as judge_pays
from nccl_runbook.sync.pays.table import kinds_table, methods_table as methods_of_pays
from nccl_runbook.sync.table import choice_table, own_table, tables

STEP = "05-weight-sync"


def sync(
    model: Annotated[
        str,
        typer.Option(metavar="NAME|PATH", help="Model to move: a name, a config.json, or safetensors files."),
    ] = "Qwen/Qwen2.5-0.5B",
    methods: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="Methods to measure: `usual` (the most common methods), `all`, or names "
            "separated by commas. `nccl-flat@64+512` measures nccl-flat with buckets of 64 "
            "MiB and of 512 MiB.",
        ),
    ] = "usual",
    gpus: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="CUDA indices, the trainer's GPU first. With one index, trainer and engine share that GPU.",
        ),
    ] = "",
    receivers_busy: Annotated[
        str, typer.Option(metavar="LIST", help="Sizes N: also measure while engines multiply N x N matrices.")
    ] = "",
    tensor_parallel: Annotated[
        int, typer.Option(metavar="N", min=1, help="Ranks per engine. Each rank holds a part of each tensor.")
    ] = 1,
    layers: Annotated[int, typer.Option(metavar="N", min=0, help="Number of layers; 0 means all.")] = 0,
    repeats: Annotated[
        int, typer.Option(metavar="N", min=1, help="Syncs per method; the table shows the first separately.")
    ] = 3,
    directory: Annotated[
        str,
        typer.Option(
            metavar="DIR", help="Folder for disk methods. `sync` deletes files of an interrupted past sync."
        ),
    ] = "",
    allocation: Annotated[
        str,
        typer.Option(metavar="STRING", help="AReaL allocation string. `sync` also shows its placement."),
    ] = "",
    areal: Annotated[
        str, typer.Option(metavar="TAG", help="AReaL tag of --allocation. Default: the newest known tag.")
    ] = "",
    python: options.PythonOption = "",
    budget: Annotated[str, typer.Option(metavar="TIME", help="Time limit, such as 90s or 5m.")] = "5m",
    allow_busy: options.AllowBusyOption = False,
    trace: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Show where your own sync spends its time, from a log with the lines that "
            "pause_trace() of nccl_guards.py prints.",
        ),
    ] = "",
    pid: Annotated[
        list[int],
        typer.Option(
            metavar="N...",
            help="Show where your own sync spends its time, from Python stacks of these processes: "
            "the trainer and the engines. For vLLM, name its EngineCore processes.",
        ),
    ] = [],  # noqa: B006
    will_it_pay: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="A B",
            help="Which transfer from checkpoint A to checkpoint B is fastest: all weights, a delta "
            "(only the changed values), or FP8? The times are computed for the rate --link. A and "
            "B are safetensors files or folders. With a --python that has numpy, the answer comes "
            "faster.",
        ),
    ] = None,
    link: Annotated[
        str,
        typer.Option(metavar="RATE", help="Rate of the link for --will-it-pay, such as 25GB/s or 200Gb/s."),
    ] = "",
    arrived: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="A B",
            help="Compare the weights of the trainer (digest file A) with the weights of the engine "
            "(digest file B). sync/arrived/digest.py writes such files. If each engine rank has a "
            "file, separate these files by commas. Exit code: 0 all tensors are the same, 3 some "
            "tensors differ, 2 no tensor can be compared.",
        ),
    ] = None,
    json: options.JsonOption = False,
    redact: options.RedactOption = "",
    share: options.ShareOption = False,
    html: options.HtmlOption = None,
    fail_on: options.FailOnOption = "unknown",
) -> None:
    """Measure the methods that move a trainer's weights to the engines, compare every byte, and
    recommend a method for this machine."""
    if (
        sum(map(bool, (trace, pid, will_it_pay, arrived))) > 1
        or (areal and not allocation)
        or (link and not will_it_pay)
    ):
        answer.leave(
            "--areal needs --allocation, --link needs --will-it-pay, and you can use only one "
            "of --trace, --pid, --will-it-pay and --arrived"
        )
    stopped = stop.Stop()
    with own_folder("nccl-runbook-") as folder:
        try:
            step = Step(
                STEP,
                {
                    name: check_range(name, value)
                    for name, value in {
                        "run_dir": folder,
                        "python": python,
                        "gpus": gpus,
                        "budget_s": int(duration_s("--budget", budget)),
                        "allow_busy": allow_busy,
                        "model": model,
                        "methods": methods,
                        "directory": directory,
                        "repeats": repeats,
                        "receivers_busy": receivers_busy,
                        "layers": layers,
                        "allocation": allocation,
                        "areal": areal,
                    }.items()
                },
                stopped,
            )
            outcome = (
                _compared(step, will_it_pay, link, arrived)
                if will_it_pay or arrived
                else _own(step, trace, pid, stopped)
                if trace or pid
                else _measured(step, tensor_parallel, stopped)
            )
        except (ValueError, EngineError) as error:  # an interpreter that cannot be used is a ValueError, too
            answer.leave(str(error).replace("receivers_busy:", "--receivers-busy"))
        _finish(step, *outcome, json, html, fail_on, stopped.received)


def _compared(
    step: Step, checkpoints: tuple[str, str] | None, link: str, digests: tuple[str, str] | None
) -> tuple[list[Any], tuple[str, ...], list[Table]]:
    name, collect, judge, table_makers = (
        (
            "pays",
            (
                ask_pays.collect,
                *checkpoints,
                ask_pays.link_rate(link),
                shlex.split(step.parameters["python"]) or [shutil.which("python3") or sys.executable],
                step.left_s,
            ),
            judge_pays.judge,
            (methods_of_pays, kinds_table),
        )
        if checkpoints
        else ("arrived", (read_arrived.collect, *(digests or ())), judge_arrived.judge, (arrival_table,))
    )
    compared = step.collect(name, *collect)
    return judge(compared), (name,), [table(compared) for table in table_makers]


def _own(
    step: Step, trace: str, pids: list[int], stopped: stop.Stop
) -> tuple[list[Any], tuple[str, ...], list[Table]]:
    if not trace:
        answer.say(
            f"nccl-runbook: sampling the stacks of process {', '.join(map(str, checked_pids(pids)))} "
            f"for up to {step.left_s:.0f} s (--budget); no process is stopped or changed"
        )
        stopped.remember()
    own = (
        step.collect("own", sync_trace.collect_trace, trace)
        if trace
        else step.collect(
            "own", own_sync.collect, pids, step.left_s, phase_of=weight_sync.phase_of, stopped=stopped
        )
    )
    if isinstance(own, Gap) and own.reason in ("failed", "no-permission"):
        raise ValueError(own.detail)
    return weight_sync.own_sync(own), (), [] if isinstance(own, Gap) else [own_table(own)]


def _measured(
    step: Step, tensor_parallel: int, stopped: stop.Stop
) -> tuple[list[Any], tuple[str, ...], list[Table]]:
    p, shapes = step.parameters, models.find(step.parameters["model"])
    check_present("" if p["allocation"] else p["gpus"], p["python"])  # a plan may be for other GPUs
    check(p["allocation"], p["areal"])
    somebody = step.guard(nvml.users, busy.gpus_busy)
    plan = step.collect("plan", placement.place, lambda: step.devices, unless=somebody)
    intended = intend(p["allocation"], plan, p["areal"], step.named_gpus)
    stopped.remember()
    runs = step.collect(
        "runs",
        probe.collect,
        lambda: step.engine,
        lambda: models.part(shapes, placement.layers_to_move(plan, p["layers"], shapes["layers_of"])),
        lambda: plan.devices,
        p["methods"],
        p["directory"],
        p["repeats"],
        lambda: step.left_s,
        p["receivers_busy"],
        tensor_parallel,
        unless=somebody,
        say=answer.say,
    )
    return (
        intention(intended, weight_sync.judge(runs, plan)),
        weight_sync.RESTS_ON,
        [*intended_tables(intended), *tables(plan, runs), choice_table(weight_sync.topology(runs))],
    )


def _finish(
    step: Step,
    findings: list[Any],
    rests_on: tuple[str, ...],
    shown: list[Table],
    json: bool,
    html: Path | None,
    fail_on: str,
    received: int,
) -> None:
    step.finish(findings, rests_on, shown)
    record = step.redactor.json(step.record)
    info = RunInfo(
        id="sync",
        started=record.started,
        command=answer.command(),
        planned=[STEP],
        asked=[STEP],
        fail_on=fail_on,
        interrupted=bool(received),
        signal=received,
    )
    document = verdict_document(info, [record])
    lines = [
        *map(repr, shown[:-1] or shown),
        repr(StepView(record)),
        f"verdict: {document.verdict} (exit code {document.exit_code})",
    ]
    answer.end(
        record if json else "\n\n".join(lines),
        document.exit_code,
        html,
        lambda: answer.index(document, [record]),
    )
