"""Where kernels get their sockets and their environment."""

import contextlib
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

from nccl_runbook.launch.stop import own_folder, sweep


class Kernels(contextlib.ExitStack):
    """Where kernels get their sockets: unix sockets in a private folder, else TCP. A context manager that
    removes the folder. Each kernel gets an absolute prefix of its own: relative sockets land in the working
    directory and cross-talk (jupyter_client 8.10)."""

    def __init__(self, base: str = "/tmp", run_dir: str = "") -> None:
        """``base``: a short path, since paths of unix sockets are limited to 107 bytes; ``run_dir``: where
        this run writes."""
        super().__init__()
        self.swept = sweep({base, tempfile.gettempdir(), "/dev/shm"})
        self.path = Path(
            self.enter_context(
                own_folder("nr-", base if os.access(base, os.W_OK | os.X_OK) else None, run_dir)
            )
        )
        self.note = self._why_not_ipc()
        self._count = 0

    def unfinished(self) -> list[Path]:
        """Files that killed runs left unfinished."""
        return [
            path
            for run_dir in self.swept
            for name in (".verdict.json.*", ".index.html.*", ".[0-9][0-9]-*")
            for path in Path(run_dir).glob(name)
            if os.access(path.parent, os.W_OK)
        ]

    def _why_not_ipc(self) -> str:
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.bind(str(self.path / "probe-socket"))
        except OSError as error:
            return (
                "kernels communicate over TCP on loopback, because no Unix socket can be created in "
                f"{self.path} ({error.strerror or error})"
            )
        return ""

    def config(self) -> Any:
        """traitlets configuration of the next kernel."""
        from traitlets.config import Config

        self._count += 1
        transport = {} if self.note else {"transport": "ipc", "ip": str(self.path / f"k{self._count}")}
        # the file is removed with the folder, even if the kernel is killed
        return Config(
            {"KernelManager": {"connection_file": str(self.path / f"k{self._count}.json"), **transport}}
        )

    def errors(self) -> Path:
        """File with the standard error of the newest kernel itself (that of its cells is in the notebook)."""
        return self.path / f"k{self._count}.stderr"

    def environment(self, until: float) -> dict[str, str]:
        """The kernel's environment: the user's, without Python and IPython start-up files (ranks read
        neither) and without widgets, which a page cannot show. Files of its warm process are removed with
        the folder. ``until``: end of the step's budget."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONSTARTUP"}
        return {
            **kept,
            "NCCL_RUNBOOK_HEADLESS": "1",
            "NCCL_RUNBOOK_UNTIL": str(until),
            "NCCL_RUNBOOK_SCRATCH": str(self.path),
            "IPYTHONDIR": str(self.path / "ipython"),
        }
