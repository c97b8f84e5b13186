"""The methods with several trainer ranks, as ranks/reshard/sync_reshard.py knows them, and what each method
is compared with."""

RESHARDED = ("nccl-reshard", "gloo-reshard", "nccl-gather", "gloo-gather")
CONTROLS = {"nccl-reshard": "nccl-gather", "gloo-reshard": "gloo-gather", "gloo-delta": "gloo-flat"}


def resharded(method: str) -> bool:
    """Whether the method (nccl-reshard, nccl-reshard@2) has several trainer ranks."""
    return method.partition("@")[0] in RESHARDED


def control(method: str) -> str:
    """The method to compare with; the method itself if it has no control."""
    name, at, rest = method.partition("@")
    return f"{CONTROLS.get(name, name)}{at}{rest}"
