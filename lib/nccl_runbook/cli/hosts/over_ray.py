"""Runs in the interpreter of a Ray job, on a machine of its cluster (Python >= 3.9, Ray; nothing of ours).

Without arguments it prints the addresses of the nodes that are alive, the head first. With an address and
arguments for Python it starts that Python there, in an actor, and passes its input and output through. Ray
ends an actor with the process that made it (not a detached one), and the agent ends with its input.
"""

import json
import os
import subprocess
import sys
import threading

# with these Ray hides no GPU from an actor that asks for none (2.60, ray/_private/accelerators/)
SEE_ALL = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
PIECE = 1 << 16


class There:
    """A Python on another node, with its pipes."""

    def __init__(self, arguments):
        self.child = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def read(self, name):
        """At most PIECE bytes of a stream; b"" at its end."""
        return os.read(getattr(self.child, name).fileno(), PIECE)

    def write(self, data):
        """Write to the child's standard input and flush."""
        self.child.stdin.write(data)
        self.child.stdin.flush()


def nodes():
    """Address -> id of each living node, the head first."""
    import ray

    head_first = sorted(ray.nodes(), key=lambda node: "node:__internal_head__" not in node["Resources"])
    return {node["NodeManagerAddress"]: node["NodeID"] for node in head_first if node["Alive"]}


def passed_through(address, arguments):
    """Run the command on the node at ``address`` and pass its standard streams through. KeyError if there is
    no such node."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    actor = ray.remote(
        num_cpus=0,
        max_concurrency=4,
        runtime_env={"env_vars": SEE_ALL},
        scheduling_strategy=NodeAffinitySchedulingStrategy(nodes()[address], soft=False),
    )(There).remote(arguments)

    def read(name, into):
        for data in iter(lambda: ray.get(actor.read.remote(name)), b""):
            os.write(into, data)

    for stream in (("stdout", 1), ("stderr", 2)):
        threading.Thread(target=read, args=stream, daemon=True).start()
    for data in iter(lambda: os.read(0, PIECE), b""):
        ray.get(actor.write.remote(data))


def main():
    """Print the addresses of the nodes as JSON, or run a command on one of them."""
    import ray

    ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
    if sys.argv[1:]:
        passed_through(sys.argv[1], sys.argv[2:])
    else:
        print(json.dumps(list(nodes())))


if __name__ == "__main__":
    main()
