"""The file that `accelerate config` writes, as the command that it stands for."""

import re

# accelerate 1.15.0, commands/config/config_args.py
_ACCELERATE = re.compile(r"\A(?!#!)(?=[^$]{0,4000}^distributed_type: *\S)[^$]{0,4000}^num_processes: ", re.M)
_LAUNCHED = re.compile(r"^(num_machines|num_processes|gpu_ids): *[\"']?([\w,]+)[\"']? *$", re.M)


def as_launch(text: str) -> str:
    """`accelerate launch` with the options of the file; any other text as it is."""
    if not _ACCELERATE.search(text):
        return text
    return "accelerate launch " + " ".join(f"--{name} {value}" for name, value in _LAUNCHED.findall(text))
