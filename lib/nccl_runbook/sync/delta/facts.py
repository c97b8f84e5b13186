"""The method that sends what changed, as ranks/delta/sync_delta.py knows it."""

from nccl_runbook.sync.reshard.facts import resharded

DELTA = "gloo-delta"


def alike(method: str) -> bool:
    """Whether each sync of the method moves all bytes from one trainer rank: only such times compare."""
    return not resharded(method) and not method.startswith(DELTA)
