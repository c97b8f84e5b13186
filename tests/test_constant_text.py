"""Text that torch prints below every error of NCCL is no evidence that a rank died."""

import pytest
from nccl_runbook.messages.read import collect
from nccl_runbook.triage.judge import judge

BEGINS = ("torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled error "
          "(run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5\n")


@pytest.mark.parametrize("text", [
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
    "ncclUnhandledCudaError: Call to CUDA function failed.", "ncclInternalError: Internal check failed."])
@pytest.mark.parametrize("first", ["", BEGINS])
def test_constant_text_of_torch_kills_no_rank(tmp_path, first, text):
    (tmp_path / "a.log").write_text(f"epoch 0 step 1 loss 3.1\n{first}{text}\nLast error:\n\n")
    logs = collect([str(tmp_path / "a.log")])
    assert logs.failed is not None and logs.raised is None
    assert "peer-crashed" not in {h.cause for h in judge(logs)}
