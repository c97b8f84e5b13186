"""Frameworks that people run in 2026: which ranks they start, and on which GPUs. One file each, read at the
commit that its row of plan/flags.toml names. What a launch does not say is not planned: ValueError."""

from nccl_runbook.plan.later import nemo_rl, prime_rl, skyrl, slime, vllm

LATER = {
    "slime": slime.shape,
    "miles": slime.shape,
    "skyrl": skyrl.shape,
    "nemo-rl": nemo_rl.shape,
    "prime-rl": prime_rl.shape,
    "vllm": vllm.shape,
}
