"""NCCL Runbook: from a failed multi-GPU job to a proven cause. Notebooks begin with `step.open_step`."""
