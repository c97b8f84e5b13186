"""Show records; judge nothing."""
from nccl_runbook.report.run import collect, info_of, write_by_hand, write_run
from nccl_runbook.report.verdict import RunInfo, VerdictDocument, verdict_document

__all__ = ["RunInfo", "VerdictDocument", "collect", "info_of", "verdict_document", "write_by_hand", "write_run"]
