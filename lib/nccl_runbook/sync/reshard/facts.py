"""The methods with several trainer ranks, as ranks/reshard/sync_reshard.py knows them."""

CONTROLS = {"nccl-reshard": "nccl-gather", "gloo-reshard": "gloo-gather"}
RESHARDED = (*CONTROLS, *CONTROLS.values())


def resharded(method: str) -> bool:
    """Whether the method, nccl-reshard or nccl-reshard@2 (trainer ranks), has trainer ranks of its own."""
    return method.partition("@")[0] in RESHARDED


def control(method: str) -> str:
    """What a method is measured against, itself where it has no control."""
    name, at, trainers = method.partition("@")
    return f"{CONTROLS.get(name, name)}{at}{trainers}"
