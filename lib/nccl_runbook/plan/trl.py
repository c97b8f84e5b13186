"""Placement of TRL, whose server and trainer are two programs: each counts from the first GPU that it sees.
Nothing is started. Sources: plan/flags.toml."""

from collections.abc import Sequence

from nccl_runbook.plan.allocation.flags import Launch
from nccl_runbook.plan.areal import Mode, part
from nccl_runbook.plan.groups import Group, Job, Placed, divisors, groups_of, that_apply, verdict_of


def place(launch: Launch, gpus: int, nodes: int) -> tuple[Mode, Placed]:
    """Components and placement on one node of those that the trainer has. ValueError if a size is no
    number."""
    all_visible = (
        "accelerate launch" in launch.text and not launch.value("processes") and not launch.value("per_node")
    )
    machines = max(nodes, launch.number("machines"))
    # accelerate 1.0, commands/launch.py: as many processes as torch.cuda.device_count() says
    processes = max(1, len(launch.trainer_sees)) if all_visible else 1
    if launch.value("per_node"):
        processes = launch.number("per_node")
    elif launch.value("processes"):
        processes = -(-launch.number("processes") // machines)
    of_trainer = launch.trainer_sees[:processes]
    notes = that_apply(
        (all_visible, "accelerate launch without --num_processes starts one process per visible GPU")
    )
    if launch.value("mode") != "server":
        return _colocated(launch, processes, of_trainer, notes)
    tensor, data = max(1, launch.number("server_tensor")), max(1, launch.number("server_data"))
    parts = (
        part("trainer", "accelerate", "trainer", processes),
        part("engine", "vllm", "vllm-serve", data, tensor),
    )
    of_server = launch.server_sees[: tensor * data]
    elsewhere = machines > 1 or launch.value("server_host") not in ("", "0.0.0.0", "127.0.0.1", "localhost")
    first_is_shared = bool(of_trainer) and of_trainer[0] in of_server and not elsewhere
    any_is_shared = bool(set(of_trainer) & set(of_server)) and not elsewhere
    too_few = len(of_server) < tensor * data or len(of_trainer) < processes
    verdict = verdict_of(
        (too_few, "zero-visible"), (first_is_shared, "duplicate"), (any_is_shared, "oversubscribed")
    )
    notes += that_apply(
        (
            first_is_shared,
            "TRL compares GPU UUIDs before NCCL starts (from v0.20.0 on) and raises "
            "'Attempting to use the same "
            "CUDA device'",
        ),
        (not processes, "this command starts only the server, and its trainer is not known"),
        (elsewhere, "server and trainer are assumed to be on different nodes"),
    )
    first_gpu = gpus * machines if elsewhere else 0  # a node behind those of the trainer
    return Mode(tuple(p for p in parts if p.world_size), None), Placed(
        _groups([first_gpu + gpu for gpu in of_server], of_trainer), verdict, tuple(notes)
    )


def _colocated(
    launch: Launch, processes: int, of_trainer: Sequence[int], notes: list[str]
) -> tuple[Mode, Placed]:
    tensor = max(1, launch.number("tensor"))
    parts = (
        part("trainer", "accelerate", "trainer", processes),
        part("engine", "vllm", "vllm", processes // tensor or 1, tensor, anchor=0),
    )
    refusals = that_apply(
        (
            processes % tensor > 0,
            f"TRL refuses this launch, because vllm_tensor_parallel_size {tensor} does not divide "
            f"{processes} processes. "
            + divisors("vllm_tensor_parallel_size", processes, 1)
            + f"start a multiple of {tensor} processes",
        )
    )
    verdict = verdict_of((refusals, "refused"), (len(of_trainer) < processes, "zero-visible"))
    in_process = (
        "with vllm_mode colocate, each trainer process runs its own engine and loads the weights "
        "itself, without an NCCL group"
    )
    return Mode(parts, None), Placed(_groups((), of_trainer), verdict, (*refusals, *notes, in_process))


def _groups(engine: Sequence[int], trainer: Sequence[int]) -> tuple[Group, ...]:
    """In the weight update the trainer has the highest rank (generation/vllm_client.py)."""
    engines = [Job("engine", len(engine), tuple(engine))] if engine else []
    trainers = [Job("trainer", len(trainer), tuple(trainer))] if trainer else []
    return groups_of(engines, trainers, "xccl", trainer_last=True)
