"""Which files run on the node: what nccl-look.pyz holds, and what must be standard library and Python 3.9."""

WHOLE_ROOMS = ("core", "launch", "look", "ranks", "search")
OFF_NODE = ("core/findings.py", "core/parameters.py", "core/records.py", "hang/facts.py")
SUBJECTS = ("edges", "gpus", "hang", "machine", "sync", "worlds")
MORE = (
    "__init__.py",
    "hosts/__init__.py",
    "hosts/on_node/__init__.py",
    "hosts/on_node/agent.py",
    "hosts/on_node/node.py",
    "machine/guard.py",
    "machine/nvml_child.py",
    "placement.py",
    "report/__init__.py",
    "report/markup.py",
    "sync/delta/__init__.py",
    "sync/delta/facts.py",
    "sync/methods.py",
    "sync/reshard/__init__.py",
    "sync/reshard/facts.py",
)
BESIDE = ("fast_disk.py",)  # beside the package: a file to copy, which weight_sync.py imports
TEMPLATES = (
    "causes/causes.toml",
    "core/secrets.toml",
    "report/templates/frame.html",
    "report/templates/style.css",
)


def runs_on_node(path: str) -> bool:
    """Whether ``path`` (relative to the package, with slashes) runs on the job's hosts."""
    room, _, leaf = path.partition("/")
    if path in OFF_NODE:
        return False
    if room in WHOLE_ROOMS or path in MORE or path.startswith("hang/live/"):
        return True
    return room in SUBJECTS and (leaf == "__init__.py" or leaf.startswith(("facts", "ask")))
