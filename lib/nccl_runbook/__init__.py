"""NCCL Runbook: from a failed multi-GPU job to a proven cause. The names that notebooks use; imported by nobody inside."""
