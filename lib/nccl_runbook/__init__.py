"""NCCL Runbook: from a failed multi-GPU job to a proven cause. Notebooks import this name; no module inside
does."""

from typing import Any


def __getattr__(name: str) -> Any:
    """``open_step``, loaded at its first use, so that a command that only reads starts quickly."""
    if name == "open_step":
        from nccl_runbook.step import open_step

        return open_step
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
