"""Run the notebooks of a book one after the other, and keep the truth about each on disk at every moment."""

import dataclasses
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nccl_runbook.book.folder import Options, from_here, in_order, make_folder, point_latest
from nccl_runbook.book.kernels import Kernels
from nccl_runbook.book.plan import Planned
from nccl_runbook.book.visit import Visit, load, save
from nccl_runbook.core import records
from nccl_runbook.core.facts import Unusable, utc_now
from nccl_runbook.core.findings import cut
from nccl_runbook.core.redact import Redactor
from nccl_runbook.launch.stop import Stop
from nccl_runbook.report.notebook_html import without_dead_links
from nccl_runbook.report.run import write_run
from nccl_runbook.report.verdict import VERDICT_STEP
from nccl_runbook.report.verdict_document import RunInfo, VerdictDocument

LINE_CHARACTERS = 160
# (records so far, waiting steps) -> (next step, ""), or (VERDICT_STEP, why no other step is needed)
Choice = Callable[[Sequence[records.Record], Sequence[str]], tuple[str, str]]
VERDICT_S = 10  # of 99-verdict at least: it takes 2 s, three times that on a loaded node


def duration_s(option: str, text: str) -> float:
    """Seconds in `90`, `90s`, `5m` or `1h30m`; Unusable with the ``option`` for any other text."""
    match = re.fullmatch(r"(?:(\d{1,5})h)?(?:(\d{1,5})m)?(?:(\d{1,7})s?)?", text.strip())
    hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    if not (total := hours * 3600 + minutes * 60 + seconds):
        raise Unusable(f"{option} {text!r} is not a duration from 1s to 99999h, such as 90s, 5m or 1h30m")
    return float(total)


@dataclasses.dataclass(eq=False)
class Book:
    """One run of a plan. Unusable if the run's folder cannot be used or a notebook refuses a value of the
    command line; OSError (such as a full disk) if a later file cannot be written: earlier files stay
    whole."""

    plan: list[Planned]
    options: Options
    on_line: Callable[[str], None]
    choose: Choice = in_order
    done: list[records.Record] = dataclasses.field(default_factory=list)
    redactor: Redactor = dataclasses.field(default_factory=lambda: Redactor(os.environ))
    started: str = dataclasses.field(default_factory=utc_now)
    not_run: dict[str, str] = dataclasses.field(default_factory=dict)
    stop: Stop = dataclasses.field(default_factory=Stop)
    before: Path | None = None  # the report that `latest` pointed to

    def run(self) -> VerdictDocument:
        """Run every notebook in order; returns the verdict document with its exit code. The page is complete
        on disk before the first notebook and after each."""
        self._open_folder()
        self._pages = ThreadPoolExecutor(1, "pages").submit(_load_pages)
        with self.stop, Kernels(run_dir=str(self.run_dir)) as kernels:
            for unfinished in kernels.unfinished():
                unfinished.unlink(missing_ok=True)
            if kernels.note:
                self.on_line(f"note: {kernels.note}")
            for number, (planned, unneeded) in enumerate(self._order(), 1):
                self._step(number, planned, unneeded, kernels)
            document = self._write()
            for page in self.run_dir.glob("[0-9][0-9]-*.html"):
                without_dead_links(page)
            if self.stop() and self.before:  # a report that ended by itself stays the one that README opens
                point_latest(self.before)
                self.page = self.run_dir / "index.html"
            return document

    def _open_folder(self) -> None:
        """Make the run's folder and the first page, before anything else runs."""
        try:
            self.run_dir = make_folder(self.options)
            names = ("[0-9][0-9]-*.json", "verdict.json", "index.html")
            if self.options.out and any(
                os.path.lexists(path) for name in names for path in self.run_dir.glob(name)
            ):
                raise Unusable(
                    f"{self.options.out} already contains a run or a page. Name a new folder with --out"
                )
            if (
                self.run_dir.stat().st_mode & 0o077
            ):  # one that was there: what comes into it is this user's own
                if any(self.run_dir.iterdir()):
                    raise Unusable(
                        f"{self.options.out} is accessible to other users and not empty. Name a new "
                        "folder with --out"
                    )
                self.run_dir.chmod(0o700)
            self.page = self.run_dir / "index.html"
            self.page.touch(exist_ok=False)  # of two runs that come to one folder at once, one takes it
            try:
                self._write()
            except OSError:
                self.page.unlink()
                raise
        except OSError as error:
            raise Unusable(
                f"cannot write to {error.filename or self.options.out or self.options.outputs}: "
                f"{error.strerror}. Name another folder with --out"
            ) from error
        if not self.options.out:
            last = self.run_dir.parent / "latest"
            self.before = last.resolve() if last.is_dir() else None
            latest = point_latest(self.run_dir)
            self.page = latest / "index.html" if latest else self.page

    def _write(self) -> VerdictDocument:
        return write_run(
            self.run_dir,
            RunInfo(
                id=self.run_dir.name,
                started=self.started,
                command=self.options.command,
                planned=[p.name for p in self.plan],
                asked=list(self.options.asked),
                not_run=self.not_run,
                fail_on=self.options.fail_on,
                interrupted=bool(self.stop()),
                signal=self.stop.received,
            ),
        )

    def _order(self) -> Iterator[tuple[Planned, str]]:
        """Each step at its turn, with why it need not run, "" for one that runs."""
        waiting = {planned.name: planned for planned in self.plan}
        while waiting:
            name, why = self.choose(self.done, [*waiting])
            for unneeded in [other for other in waiting if name == VERDICT_STEP != other]:
                yield waiting.pop(unneeded), why
            yield waiting.pop(name), ""

    def _step(self, number: int, planned: Planned, unneeded: str, kernels: Kernels) -> None:
        clock, left_s, reserve_s = time.monotonic(), self.options.left_s, self.options.reserve_s
        # 99-verdict comes also after a step that took the whole budget, and the others leave it its time
        left_s = (
            max(VERDICT_S, left_s + 2 * reserve_s)
            if planned.name == VERDICT_STEP
            else left_s - min(VERDICT_S, reserve_s)
        )
        if why := self._why_not(left_s):
            self.not_run[planned.name], status, reason = why, "unknown", why
        else:
            record = self._leave_out(planned, unneeded) if unneeded else self._visit(planned, kernels, left_s)
            self.done.append(record)
            status, reason = record.status, record.reason
        self._write()
        width = max(len(p.name) for p in self.plan)
        steps = sum(p.name != VERDICT_STEP for p in self.plan)  # the verdict sums them up, and is none
        place = " " * len(f"[{steps}/{steps}]") if planned.name == VERDICT_STEP else f"[{number}/{steps}]"
        head = f"{place} {planned.name:<{width}}  {status:<7}  {time.monotonic() - clock:.1f} s"
        self.on_line(f"{head}  {cut(' '.join(self.redactor.text(reason).split()), LINE_CHARACTERS)}")
        if refused := planned.refused(self.not_run.get(planned.name, "")):
            raise Unusable(self.redactor.text(refused))

    def _why_not(self, left_s: float) -> str:
        """Why the next step does not run; empty if it runs."""
        if self.stop():
            return "not run: interrupted"
        return (
            f"not run: the time budget of {self.options.budget_s:.0f} s was used up (--budget)"
            if left_s < 1
            else ""
        )

    def _leave_out(self, planned: Planned, why: str) -> records.Record:
        """The record of a step that the verdict does not need."""
        record = records.Record(
            step=planned.name, started=utc_now(), ended=utc_now(), status="skipped", reason=why
        )
        records.save(record, self.run_dir / f"{planned.name}.json", self.redactor)
        return record

    def _visit(self, planned: Planned, kernels: Kernels, left_s: float) -> records.Record:
        """Run one notebook, leave its record and its pages, and give the record back."""
        reserve_s = self.options.reserve_s
        parameters = self._parameters(planned, left_s - reserve_s)
        path, started, clock = self.run_dir / f"{planned.name}.json", utc_now(), time.monotonic()
        stub = records.Record(step=planned.name, started=started, parameters=parameters)
        records.save(stub, path, self.redactor)
        self._write()
        visit = Visit(planned.source, parameters, kernels)
        ended = visit.watch(
            min(left_s, planned.budget_s(left_s - reserve_s) + reserve_s), self.stop, reserve_s / 2
        )
        record, why = self._settle(path, stub, ended, time.monotonic() - clock)
        if why:
            self.not_run[planned.name] = why
        if visit.notebook is not None:
            target = self.run_dir / f"{planned.name}.ipynb"
            save(visit.notebook, why, target, self.redactor)
            self._pages.result().write(target)
        return record

    def _parameters(self, planned: Planned, left_s: float) -> dict[str, Any]:
        """Parameters of the runner that the notebook declares, overridden by those of the command line."""
        given = {
            "run_dir": from_here(self.run_dir),
            "python": self.options.python,
            "gpus": self.options.gpus,
            "allow_busy": self.options.allow_busy,
            "record_path": str(planned.record or ""),
            **planned.parameters,
            "budget_s": planned.budget_s(left_s),
        }
        return {name: value for name, value in given.items() if name in planned.declared}

    def _settle(
        self, path: Path, stub: records.Record, ended: str, wall_s: float
    ) -> tuple[records.Record, str]:
        """The step's record, and why it has no result: only a record that the step
        itself finished counts as done."""
        try:
            record = records.load(path)
            if record.status != "running" and record.step == stub.step:
                return record, ""
            why = ended or "the notebook ended without finishing its step"
        except records.RecordError as error:
            record, why = stub, ended or str(error)
        record = dataclasses.replace(
            stub,
            status="unknown",
            reason=why,
            ended=utc_now(),
            wall_s=round(wall_s, 2),
            tried_by_hand=record.tried_by_hand,
            facts=record.facts,
            judged=record.judged,
        )
        records.save(record, path, self.redactor)
        return record, why


def _load_pages() -> Any:
    """Load nbconvert while the first notebook runs, so that a stopped run does not wait for it (0.8 s)."""
    load()  # first, whole: nbconvert imports the same packages
    from nccl_runbook.report.notebook_html import NotebookPages

    return NotebookPages()
