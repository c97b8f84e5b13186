"""A line that sets a variable, as each launcher wants it."""

from __future__ import annotations

import re

from nccl_runbook.knowledge import table

_EXPORT = re.compile(r"export (\w+)=(\S+)")
_FORMS = {
    "srun": ("#SBATCH --export=ALL,{}", ","),
    "deepspeed": ("echo '{}' >> ~/.deepspeed_env", "\n"),
    "docker": ("docker run -e {} ...", " -e "),
    "beaker": ("gantry run --env {} ...", " --env "),
}


def for_launcher(line: str, launcher: str) -> tuple[str, ...]:
    """The line as ``launcher`` takes it; unchanged where the table has no form for it and it sets nothing."""
    for form in table("launchers")["form"]:
        found = re.fullmatch(form["of"], line) if form["launcher"] == launcher else None
        if found:
            return tuple(wanted.format(*(group or "" for group in found.groups())) for wanted in form["lines"])
    pairs = _EXPORT.findall(line) if line.startswith("export ") else []
    if not pairs:
        return (line,)
    if launcher == "ray":
        inner = ", ".join(f'"{name}": "{value}"' for name, value in pairs)
        return (f'ray.init(runtime_env={{"env_vars": {{{inner}}}}})',)
    if launcher == "kubernetes":
        return tuple(f'- {{name: {name}, value: "{value}"}}  # under env: of the container' for name, value in pairs)
    if launcher in _FORMS:
        form, glue = _FORMS[launcher]
        return tuple(form.format(glue.join(f"{name}={value}" for name, value in pairs)).split("\n"))
    return (line,)
