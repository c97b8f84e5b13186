"""One notebook, executed by papermill in a kernel of its own, under a wall limit.

papermill's own account of the end is not used: after a dead kernel or a timeout it calls every cell completed
(papermill 2.7.0, clientwrap.py). What counts is the step's own record.
"""

import contextlib
import dataclasses
import math
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from nccl_runbook.book.kernels import Kernels
from nccl_runbook.core.records import write_text
from nccl_runbook.core.redact import Redactor, escaped
from nccl_runbook.launch.interpreters import is_stopped, killed_by
from nccl_runbook.launch.stop import Stop
from nccl_runbook.launch.supervised import below

START_S = 120
INTERRUPT_GRACE_S = 5.0
DEAD_S = 15.0  # nbclient asks once a second whether the kernel lives
STOPPED_S = 0.1  # somebody who stops a run does not wait for that
_loading = threading.Lock()
BANNER_ID = "runbook-banner"
NOT_RUN = "not run"


def load() -> None:
    """Import what executes notebooks, in one thread at a time: jupyter_client 8.10 and IPython 9 import in
    circles, and two threads that meet there each see half a module (seen on first runs of a fresh checkout,
    where imports are slow)."""
    # jsonschema 4.26.0 does without it; its 38 grammars take 1 s, and no notebook holds an IRI
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
    with _loading:
        import IPython  # noqa: F401
        import papermill.clientwrap
        import papermill.execute  # noqa: F401


@dataclasses.dataclass(eq=False)
class Visit:
    """One execution, in its own thread; the main thread calls ``watch`` and stays free for signals.
    ``notebook``: as far as it got, None if it never began."""

    source: Path
    parameters: dict[str, Any]
    kernels: Kernels
    notebook: Any = None
    error: BaseException | None = None
    client: Any = None
    _done: threading.Event = dataclasses.field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.until = time.monotonic() + self.parameters.get("budget_s", math.inf)
        self._thread = threading.Thread(target=self._work, name=self.source.stem, daemon=True)

    def _work(self) -> None:
        try:
            load()
            import papermill
            from papermill.engines import papermill_engines

            papermill_engines.register("nccl-runbook", _engine())
            braced = str(self.source).replace("{", "{{").replace("}", "}}")  # papermill formats paths
            papermill.execute_notebook(
                braced,
                None,
                parameters=self.parameters,
                engine_name="nccl-runbook",
                kernel_name="python3",
                progress_bar=False,
                start_timeout=START_S,
                config=self.kernels.config(),
                iopub_timeout=60,  # nbclient's 4 s are fatal on a loaded node (papermill#426)
                visit=self,
            )
        except BaseException as error:  # noqa: BLE001 the main thread asks for it, whatever it was
            self.error = error
        finally:
            self._done.set()

    def watch(self, limit_s: float, stop: Stop, grace_s: float = INTERRUPT_GRACE_S) -> str:
        """Wait for the end; interrupt at the limit, then kill; kill at once when stopped. Returns why it
        ended early, or empty."""
        self._thread.start()
        self._wait(limit_s, stop)
        why = stop()
        if not why and not self._done.is_set():
            stopped = [pid for pid in below(os.getpid()) if is_stopped(pid)]
            why = f"timed out after {limit_s:.0f} s" + (
                f": process {stopped[:1]} is stopped (state T)" if stopped else ""
            )
            for pid in stopped:  # it can answer no interrupt
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._signal(signal.SIGINT)
            self._wait(min(grace_s, INTERRUPT_GRACE_S), stop)
        self._kill(STOPPED_S if stop() else DEAD_S)
        return why or self._why()

    def _wait(self, seconds: float, stop: Stop) -> None:
        until = time.monotonic() + seconds
        while not self._done.wait(0.05) and not stop() and time.monotonic() < until:
            pass

    def _kill(self, notice_s: float) -> None:
        """Nothing of the kernel's own process group stays; its warm process sees the closed pipe.

        ``notice_s``: how long nbclient gets to notice the death.
        """
        deadline = time.monotonic() + DEAD_S
        while not self._done.wait(0.05) and time.monotonic() < deadline:
            if self._signal(signal.SIGKILL):
                deadline = min(deadline, time.monotonic() + notice_s)

    def _signal(self, number: int) -> bool:
        """Send it to the kernel; whether there was one."""
        if not (
            pid := getattr(getattr(self.client.km if self.client else None, "provisioner", None), "pid", None)
        ):
            return False
        with contextlib.suppress(ProcessLookupError):
            whole = number == signal.SIGKILL and os.getpgid(pid) == pid
            (os.killpg if whole else os.kill)(pid, number)
        return True

    def _why(self) -> str:
        if error := error_in(self.notebook):
            return f"the notebook stopped with an error: {error}"
        if self.error is None:
            return ""
        if type(self.error).__name__ == "DeadKernelError":
            return ": ".join(filter(None, ("the notebook's kernel died", killed_by(self.client.died_with))))
        path = self.kernels.errors()
        printed = path.read_text(errors="replace").splitlines() if path.exists() else []
        last_words = _first_line("\n".join(reversed(printed)))
        return (
            f"the notebook could not be run: {type(self.error).__name__}: {_first_line(str(self.error))}"
            + (f"; the kernel printed: {last_words}" if last_words else "")
        )


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def error_in(notebook: Any) -> str:
    """Name and first line of the last error in the cells; empty if there is none."""
    shown = [
        o
        for cell in (notebook.cells if notebook else [])
        for o in cell.get("outputs", [])
        if o.output_type == "error"
    ]
    return f"{shown[-1].ename}: {_first_line(shown[-1].evalue)}".rstrip(": ") if shown else ""


def _engine() -> type:
    """papermill's engine, except that the visit learns of the notebook and the
    client while they are at work."""
    from jupyter_client import AsyncKernelManager
    from jupyter_client.kernelspec import KernelSpec
    from nbclient.exceptions import DeadKernelError
    from papermill.clientwrap import PapermillNotebookClient
    from papermill.engines import NBClientEngine

    class Manager(AsyncKernelManager):
        """Of this interpreter's kernel, whatever kernel specs named python3 lie
        in JUPYTER_PATH or a home folder."""

        kernel_spec = KernelSpec(
            argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], language="python"
        )

    class Client(PapermillNotebookClient):
        died_with: int | None = None

        async def _async_check_alive(self) -> None:
            try:
                await super()._async_check_alive()
            except DeadKernelError:
                self.died_with = await self.km.provisioner.poll() if self.km and self.km.provisioner else None
                raise

    class RunbookEngine(NBClientEngine):
        @classmethod
        def execute_managed_notebook(
            cls,
            nb_man: Any,
            kernel_name: str,
            *,
            visit: Visit,
            start_timeout: int,
            config: Any,
            iopub_timeout: int,
            **_: Any,
        ) -> Any:
            visit.notebook = nb_man.nb
            visit.client = Client(
                nb_man,
                kernel_name=kernel_name,
                startup_timeout=start_timeout,
                config=config,
                kernel_manager_class=Manager,
                iopub_timeout=iopub_timeout,
                timeout=None,
            )
            with open(visit.kernels.errors(), "wb") as errors:
                return visit.client.execute(
                    env=visit.kernels.environment(visit.until), stdout=errors, stderr=errors
                )

    return RunbookEngine


def save(notebook: Any, why: str, target: Path, redactor: Redactor) -> None:
    """Write the notebook atomically, repaired and redacted. ``why``: the reason for a missing result, else
    empty. OSError if writing fails."""
    import nbformat

    given = redactor.json(notebook.metadata.get("papermill", {}).get("parameters", {}))
    for cell in notebook.cells:
        if "injected-parameters" in cell.metadata.get(
            "tags", []
        ):  # before Python's quotes hide what a value looks like
            cell.source = "\n".join(
                [cell.source.partition("\n")[0], *(f"{name} = {value!r}" for name, value in given.items())]
            )
    write_text(
        target, escaped(nbformat.writes(nbformat.from_dict(redactor.json(mend(notebook, why))))) + "\n"
    )


def mend(notebook: Any, why: str) -> Any:
    """The notebook with cells that never ran marked as such: papermill 2.7.0 calls them completed; only
    their start time is missing."""
    notebook.cells = [
        c for c in notebook.cells if "papermill-error-cell-tag" not in c.metadata.get("tags", [])
    ]
    paths = notebook.metadata.get("papermill", {})
    paths.update({key: Path(paths[key]).name for key in ("input_path", "output_path") if paths.get(key)})
    if why:
        code = [c for c in notebook.cells if c.cell_type == "code" and c.source.strip()]
        started = [c for c in code if c.metadata.get("papermill", {}).get("start_time")]
        for cell in code:
            if cell not in started:
                _mark(cell, NOT_RUN, NOT_RUN)
        if started:
            _mark(started[-1], "failed", "" if started[-1].outputs else f"the notebook stopped here: {why}")
        notebook.cells.insert(0, _banner(why))
    return notebook


def _mark(cell: Any, status: str, sentence: str) -> None:
    cell.metadata.setdefault("papermill", {})["status"] = status
    if sentence:
        cell.outputs = [{"output_type": "stream", "name": "stdout", "text": sentence + "\n"}]


def _banner(why: str) -> dict[str, Any]:
    """The reason stands in a code block: it may quote anything. Its fence is longer than any inside."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", why)), default=0))
    banner = (
        f"**This step has no result, so its outcome is unknown.** Cells marked *{NOT_RUN}* were never "
        f"reached.\n\n{fence}text\n{why}\n{fence}"
    )
    return {"cell_type": "markdown", "id": BANNER_ID, "metadata": {"tags": [BANNER_ID]}, "source": banner}
