"""What the gym shows: one sentence, and one row a job."""

from collections.abc import Sequence

from nccl_runbook.core.facts import counted
from nccl_runbook.gym.facts import Outcome, Trial
from nccl_runbook.report.tables import Cell, Table

TONES: dict[Outcome, str] = {"right": "ok", "undecided": "warn", "wrong": "broken"}


def count(trials: Sequence[Trial], outcome: Outcome, of_faults: bool) -> int:
    """Trials with that outcome, of the faults or of the jobs that work."""
    return sum(t.outcome == outcome and t.job.is_fault == of_faults for t in trials)


def sentence(trials: Sequence[Trial]) -> str:
    """How many faults were explained, and how many jobs that work were accused. The bound on the rate of
    false alarms is the rule of three: 3/N at 95 % if N jobs gave none."""
    faults = sum(t.job.is_fault for t in trials)
    works = len(trials) - faults
    alarms = count(trials, "wrong", False)
    wrong, undecided = count(trials, "wrong", True), count(trials, "undecided", True)
    parts = [f"{count(trials, 'right', True)} of {counted(faults, 'fault')} explained"] if faults else []
    parts += [f"{wrong} explained wrongly"] if wrong else []
    parts += [f"{undecided} undecided"] if undecided else []
    parts += [f"{counted(alarms, 'false alarm')} in {counted(works, 'job')} without a fault"] if works else []
    bound = f" (fewer than {3 / works:.0%} at 95% confidence)" if works > 3 and not alarms else ""
    return "; ".join(parts) + bound if parts else "no job was run"


def trials_table(trials: Sequence[Trial]) -> Table:
    """One row a job, with the answer while it ran and the answer from its log."""
    rows = []
    for trial in trials:
        cells = [Cell(trial.job.name), Cell(trial.job.about), Cell(trial.outcome, TONES[trial.outcome])]
        for door in ("live", "log"):
            answer = next((a for a in trial.answers if a.door == door), None)
            cause = f"{answer.cause} ({answer.status})" if answer and answer.cause else "no cause named"
            cells.append(Cell(f"{cause}, {answer.took_s:.1f} s" if answer else ""))
        rows.append([*cells, Cell(f"{trial.wall_s:.0f}")])
    return Table(
        "Jobs of the gym",
        ["job", "what is wrong with it", "outcome", "while it ran", "from its log", "s"],
        rows,
        "Right: the cause, likely or established, with its rank; for a job without a fault, no alarm.",
    )


def lines(trial: Trial) -> str:
    """The trial for a terminal."""
    head = f"{trial.job.name:24} {trial.outcome:9} {trial.wall_s:6.1f} s  {trial.job.about}"
    return "\n".join([head, *(f"    {a.door:4} {a.outcome:9} {a.sentence}" for a in trial.answers)])
