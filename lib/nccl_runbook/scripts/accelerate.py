"""The file that `accelerate config` writes, as the equivalent command."""

import re

# accelerate 1.15.0, commands/config/config_args.py and utils/dataclasses.py: the kinds that use NVIDIA's GPUs
_GPUS = re.compile(r"(?m)^distributed_type: *[\"']?(?:MULTI_GPU|FSDP|DEEPSPEED|MEGATRON_LM)\b")
_CPU = re.compile(r"(?mi)^use_cpu: *[\"']?true\b")
_YAML = re.compile(r"\s*(?:#|$|-|[\w.-]+:(?:\s|$)|\.\.\.)")
_LAUNCHED = re.compile(
    r"(?m)^ *(num_machines|num_processes|gpu_ids|main_process_ip|deepspeed_multinode_launcher): *"
    r"[\"']?([\w,.: -]+)"
)


def as_launch(text: str) -> str:
    """`accelerate launch` with the options of the file, named `the-file`; any other text as it is."""
    if not _GPUS.search(text) or _CPU.search(text) or not all(map(_YAML.match, text.splitlines())):
        return text
    options = (f"--{name} {value.replace(' ', '')}" for name, value in _LAUNCHED.findall(text))
    return f"accelerate launch {' '.join(options)} the-file"
