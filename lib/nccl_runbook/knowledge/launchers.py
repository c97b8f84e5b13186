"""A line that sets a variable, as each launcher wants it."""

from __future__ import annotations

import re

from nccl_runbook.knowledge import table

_PAIR = re.compile(r"(\w+)=(\S+)")
_FORMS = {
    "srun": ("#SBATCH --export=ALL,{}", ","),
    "deepspeed": ("echo '{}' >> ~/.deepspeed_env", ""),
    "docker": ("docker run -e {} ...", " -e "),
    "beaker": ("gantry run --env {} ...", " --env "),
}


def for_launcher(line: str, launcher: str) -> tuple[str, ...]:
    """The line as ``launcher`` takes it; unchanged where the table has no form for it and it sets nothing."""
    for form in table("launchers")["form"]:
        found = re.fullmatch(form["of"], line) if form["launcher"] == launcher else None
        if found:
            either = "|".join("".join(found.groups()[:1]).split())
            return tuple(wanted.format(*found.groups(), either=either) for wanted in form["lines"])
    pairs = _PAIR.findall(line) if line.startswith("export ") else []
    if not pairs:
        return (line,)
    if launcher == "ray":
        inner = ", ".join(f'"{name}": "{value}"' for name, value in pairs)
        return (f'ray.init(runtime_env={{"env_vars": {{{inner}}}}})',)
    if launcher == "kubernetes":
        return tuple(f'- {{name: {name}, value: "{value}"}}  # under env: of the container' for name, value in pairs)
    told = [f"{name}={value}" for name, value in pairs]
    form, glue = _FORMS.get(launcher, (line, ""))
    return (form.format(glue.join(told)),) if glue or form == line else tuple(form.format(one) for one in told)
