"""A report of one tuning run: as a live table, as a table at its end, as JSON and as a page of HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from toolchain.device.roofline import Peak
from toolchain.device.waiting import Waited
from toolchain.records.results import PRUNED, Verdict
from toolchain.report import (
    EMULATED,
    MODELLED,
    Cell,
    Facts,
    Headline,
    Level,
    Page,
    Part,
    Plot,
    Section,
    Steps,
    Table,
    Text,
    Tone,
    Value,
    percent,
)
from toolchain.tuning.report import limit
from toolchain.units import duration

if TYPE_CHECKING:
    from toolchain.records import Record

SCHEMA_VERSION = 1

_OK = "ok"
_NOTHING = "-"
_NAME_WIDTH = 36


@dataclass(frozen=True)
class TaskRow:
    """The progress of one task.

    Attributes:
        id: Its number.
        name: Name of its function.
        operator: Its main operator.
        shape: Its arguments' shapes.
        weight: How many times the model calls it.
        gflop: Billions of floating-point operations of one call.
        trials: Trials with a result.
        failed: How many of them have no latency.
        best_s: Latency of one call in seconds: by the final, or by the best trial before it; None if there is none yet.
        done: Whether nothing is left to try.
        untuned_s: Latency of one call of the untuned kernel: in the turns of the final, or in its best trial; None if
            it was not measured.
        pruned: How many more trials a model ruled out.
        verdict: What the final decided; empty before it.
        gbytes: Billions of bytes of its arguments and its result, each once; None if not all of them are float32, to
            which a measured peak applies.
    """

    id: int
    name: str
    operator: str
    shape: str
    weight: int
    gflop: float
    trials: int
    failed: int
    best_s: float | None
    done: bool
    untuned_s: float | None = None
    pruned: int = 0
    verdict: Verdict = ""
    gbytes: float | None = None

    @property
    def gain(self) -> float | None:
        """The speed relative to the untuned kernel; None without a final, since trials were taken at other times."""
        return self.untuned_s / self.best_s if self.verdict and self.untuned_s and self.best_s else None

    @property
    def gflops(self) -> float | None:
        """Billions of floating-point operations per second at the best latency."""
        return self.gflop / self.best_s if self.best_s else None

    @property
    def total_s(self) -> float | None:
        return None if self.best_s is None else self.weight * self.best_s


@dataclass(frozen=True)
class Point:
    """The estimate at one moment: seconds since the run began, trials so far, seconds of one run of the model."""

    seconds: float
    trials: int
    estimated_s: float


@dataclass(frozen=True)
class BoardRow:
    """The work of one board: trials, failed trials, and how often it was quarantined."""

    name: str
    trials: int
    failed: int
    quarantines: int


@dataclass(frozen=True)
class BuilderRow:
    """The work of one builder, if other machines compile.

    Attributes:
        name: Its address.
        processes: Candidates that it compiles at a time; 0 if it is refused or gone.
        candidates: Candidates that it compiled.
        note: What happened to it, if anything did.
    """

    name: str
    processes: int
    candidates: int
    note: str = ""


@dataclass(frozen=True)
class Totals:
    """The progress of a run.

    Attributes:
        estimated_s: Seconds of one run of the model, estimated; None while a task has no latency.
        trials: Trials so far.
        planned: Trials of the whole run.
        seconds: Seconds since it began.
        eta_s: Estimated seconds until it ends; None if unknown.
        next_id: The task that is searched now; None if there is none.
    """

    estimated_s: float | None
    trials: int
    planned: int
    seconds: float
    eta_s: float | None = None
    next_id: int | None = None


@dataclass(frozen=True)
class EndToEnd:
    """The comparison of the whole model with and without the user's records, in turns on a device.

    Attributes:
        outcome: The result, or why there was no comparison.
        warnings: Disturbances of the measurement.
        comparison: The document of the comparison; None if there was none.
        taken_back: How many winners were taken back because the whole model is slower with them.
    """

    outcome: str
    warnings: tuple[str, ...] = ()
    comparison: Mapping[str, Any] | None = None
    taken_back: int = 0


@dataclass(frozen=True)
class TuneReport:
    """The results of a tuning run.

    Attributes:
        model: Model name.
        board: Board type.
        emulated: Whether the times are an emulator's, or a model's.
        target: TVM's target as plain values.
        tuner: Search strategy.
        seed: Seed of the search.
        options: How candidates were measured.
        trials: Trials with a result.
        resumed: How many of them are from an earlier part of the run.
        causes: Trials by outcome: `ok`, or why there is no latency.
        seconds: Seconds of the run.
        shares: Seconds by what the run worked on or waited for, without what went on in the background.
        tasks: The tasks.
        points: The estimate over time; it only falls.
        boards: The boards.
        waited: Who was at work on them before, and how long they were waited for.
        modelled: What the times are by, if a model computed them and nothing ran; empty otherwise.
        pruned_by: What ruled candidates out before a board was asked; empty if nothing did.
        end_to_end: The comparison of the whole model; None if it was not requested.
        builders: What compiled candidates, where it was not this machine alone.
        winners: What finals decided for candidates that replace what a kernel is untuned.
        planned: Limit of the trials; 0 if unknown.
        first_batch: Trials of the first round of a task. Each task gets one before any task gets a second.
        ended: Why the run ended before it had made them; empty if it did not.
        peak: What the boards compute and move at most; None if that is unknown.
        no_peak: Why it is unknown.
    """

    model: str
    board: str
    emulated: bool
    target: Mapping[str, Any]
    tuner: str
    seed: int
    options: Mapping[str, Any]
    trials: int
    resumed: int
    causes: Mapping[str, int]
    seconds: float
    shares: Mapping[str, float]
    tasks: tuple[TaskRow, ...]
    points: tuple[Point, ...]
    boards: tuple[BoardRow, ...]
    waited: tuple[Waited, ...] = ()
    modelled: str = ""
    pruned_by: str = ""
    end_to_end: EndToEnd | None = None
    builders: tuple[BuilderRow, ...] = ()
    winners: tuple[Record, ...] = ()
    planned: int = 0
    first_batch: int = 0
    ended: str = ""
    peak: Peak | None = None
    no_peak: str = ""

    @property
    def enough_trials(self) -> int:
        """Trials with which each task has its first round."""
        return sum(row.trials if row.done else max(row.trials, self.first_batch) for row in self.tasks)

    @property
    def mark(self) -> str:
        """What its times are marked with; nothing where boards were measured."""
        return " (modelled)" if self.modelled else " (emulated)" if self.emulated else ""

    @property
    def pruned(self) -> dict[str, int]:
        """Trials that no board was asked about, by what the model said."""
        return {cause: number for cause, number in sorted(self.causes.items()) if cause in PRUNED and number}

    @property
    def estimated_s(self) -> float | None:
        """Seconds of one run of the model, estimated from the best latencies; None if a task has none."""
        return _sum([row.total_s for row in self.tasks])

    @property
    def untuned_s(self) -> float | None:
        """Seconds of one run of the model where nothing was tuned, from the same run; None if a task lacks its own."""
        return _sum([None if row.untuned_s is None else row.weight * row.untuned_s for row in self.tasks])

    @property
    def failed(self) -> dict[str, int]:
        return {
            cause: number for cause, number in sorted(self.causes.items()) if cause not in {_OK, *PRUNED} and number
        }

    def document(self) -> dict[str, Any]:
        """Return the report as plain values for JSON: latencies in seconds, null if there is none."""
        return {
            "schema_version": SCHEMA_VERSION,
            "model": self.model,
            "board": self.board,
            "emulated": self.emulated,
            "modelled": self.modelled,
            "target": dict(self.target),
            "tuner": self.tuner,
            "seed": self.seed,
            "options": dict(self.options),
            "trials": {
                "total": self.trials,
                "planned": self.planned,
                "ended": self.ended,
                "resumed": self.resumed,
                "ok": self.causes.get(_OK, 0),
                "failed": self.failed,
                "pruned": self.pruned,
                "pruned_by": self.pruned_by,
            },
            "seconds": self.seconds,
            "shares_s": dict(self.shares),
            "estimated_s": self.estimated_s,
            "untuned_s": self.untuned_s,
            "tasks": [self._task_document(row) for row in self.tasks],
            "peak": {**asdict(self.peak), "method": self.peak.method} if self.peak else None,
            "no_peak": self.no_peak,
            "points": [asdict(point) for point in self.points],
            "boards": [asdict(row) for row in self.boards],
            "builders": [asdict(row) for row in self.builders],
            "waited": [asdict(wait) for wait in self.waited],
            "end_to_end": asdict(self.end_to_end) if self.end_to_end else None,
        }

    def _task_document(self, row: TaskRow) -> dict[str, Any]:
        derived = {"gflops": row.gflops, "share": _share(row, self.tasks)}
        return {**asdict(row), **derived, **limit.document(row, self.peak)}


def _sum(values: Sequence[float | None]) -> float | None:
    """Return the sum; None if a value is missing, or if there is none."""
    present = [value for value in values if value is not None]
    return sum(present) if present and len(present) == len(values) else None


def _share(row: TaskRow, rows: Sequence[TaskRow]) -> float | None:
    """Return a task's share of the time of all tasks with a latency."""
    total = sum(other.total_s or 0.0 for other in rows)
    return None if row.total_s is None or not total else row.total_s / total


# --- tables ----------------------------------------------------------------------------------------------------


def live(rows: Sequence[TaskRow], totals: Totals) -> list[str | Table]:
    """Return the table of tasks of a running run, with a line of totals.

    Latencies are the best so far: of one call, and of all calls in one run of the model.
    """
    eta = _NOTHING if totals.eta_s is None else f"{totals.eta_s:.0f} s"
    fields = [
        f"Estimate: {_time(totals.estimated_s)}",
        f"Trials: {totals.trials}/{totals.planned}",
        f"Time: {totals.seconds:.0f} s",
        f"ETA: {eta}",
        f"Next task: {_NOTHING if totals.next_id is None else totals.next_id}",
    ]
    return [_task_table(rows), "  ".join(fields)]


_TASK_HEAD = (
    *("ID", "Task", "Operator", "Shapes", "Latency", "GFLOPS", "Trials", "Failed", "Weight", "Total", "Share"),
    *("Untuned", "Gain", "Done"),
)


def _task_table(rows: Sequence[TaskRow], peak: Peak | None = None) -> Table:
    """Return the table of tasks; with a peak, also how near each comes to it."""
    numbers, spare, details = (0, *range(4, 13)), (5, 8, 4, 7, 13), (2, 3, 11, 12)
    cells = [_task_cells(row, rows) for row in rows]
    if peak is None:
        return Table(cells, _TASK_HEAD, numbers, spare, details, "tasks")
    cells = [(*line, *limit.cells(row, peak)) for line, row in zip(cells, rows, strict=True)]
    return Table(cells, (*_TASK_HEAD, *limit.HEAD), (*numbers, 14, 15), (*spare, 14, 16), details, "tasks")


def _task_cells(row: TaskRow, rows: Sequence[TaskRow]) -> tuple[str | Cell, ...]:
    brief = row.name if len(row.name) <= _NAME_WIDTH else f"{row.name[: _NAME_WIDTH - 1]}…"
    share = _share(row, rows)
    return (
        str(row.id),
        Cell(row.name, brief=brief),
        row.operator,
        row.shape,
        _time(row.best_s),
        _NOTHING if row.gflops is None else f"{row.gflops:.2f}",
        str(row.trials),
        str(row.failed),
        str(row.weight),
        _time(row.total_s),
        Cell(percent(share), share),
        _time(row.untuned_s),
        _NOTHING if row.gain is None else f"{row.gain:.2f}x",
        "yes" if row.done else "",
    )


def _time(seconds: float | None) -> str:
    return _NOTHING if seconds is None else duration(seconds * 1e3)


def summary(report: TuneReport) -> list[tuple[str, str]]:
    """Return what was tuned, how, and the results, as rows of a name and a text; texts may be empty."""
    mark = report.mark
    return [
        ("model", report.model),
        ("board", f"{report.board}{mark}"),
        ("target", _pairs(report.target)),
        ("tuner", f"{report.tuner}, seed {report.seed}"),
        ("options", _pairs(report.options)),
        ("latency", f"{_latency_text(report)}{mark}"),
        ("finals", _finals_text(report)),
        ("limit", limit.limit_text(report.tasks, report.peak)),
        ("peak", limit.peak_text(report.peak, report.no_peak)),
        ("end to end", report.end_to_end.outcome if report.end_to_end else ""),
        ("disturbed", "; ".join(report.end_to_end.warnings) if report.end_to_end else ""),
        ("trials", _trials_text(report)),
        ("pruned", _pruned_text(report)),
        ("modelled", report.modelled and f"{report.modelled}: no board has confirmed it"),
        ("used time", _time_text(report)),
    ]


def _latency_text(report: TuneReport) -> str:
    estimated = report.estimated_s
    if estimated is None:
        return f"no estimate: {_no_estimate(report)}"
    if report.untuned_s is None:
        return f"{_time(estimated)} estimated"
    gain = report.untuned_s / estimated
    return f"{_time(estimated)} estimated, {gain:.2f} times as fast as untuned ({_time(report.untuned_s)})"


def _no_estimate(report: TuneReport) -> str:
    """Return how many kernels were not measured or had no working candidate, and how many trials are needed."""
    tasks = len(report.tasks)
    unmeasured = sum(not row.trials and row.best_s is None for row in report.tasks)
    failed = sum(bool(row.trials) and row.best_s is None for row in report.tasks)
    remedy = f"; use --trials {report.enough_trials} or more" if report.enough_trials > report.planned else ""
    reasons = [
        *([f"{unmeasured} of {tasks} kernels were not measured{remedy}"] if unmeasured else []),
        *([f"no candidate of {failed} of {tasks} kernels worked"] if failed else []),
    ]
    return "; ".join(reasons) or "no kernel was measured"


def _trials_text(report: TuneReport) -> str:
    failed = ", ".join(f"{number} {cause}" for cause, number in report.failed.items())
    resumed = f", {report.resumed} of them from an earlier part of the run" if report.resumed else ""
    text = f"{report.trials}{resumed}: {report.causes.get(_OK, 0)} ok" + (f", failed: {failed}" if failed else "")
    return f"{text}; ended before {report.planned} trials: {report.ended}" if report.ended else text


def _finals_text(report: TuneReport) -> str:
    verdicts = [row.verdict for row in report.tasks]
    if not any(verdicts):
        return ""
    faster, stay = verdicts.count("faster"), len(verdicts) - verdicts.count("faster")
    if not faster:
        return f"no kernel became faster; all {stay} keep the untuned version"
    rest = f"; {stay} keep the untuned version" if stay else ""
    return f"{faster} of {len(verdicts)} kernels became faster{rest}"


def _pruned_text(report: TuneReport) -> str:
    if not report.pruned_by:
        return ""
    verbs = {"spills": "spill", "costly": "cost too much"}
    causes = ", ".join(f"{number} {verbs[cause]}" for cause, number in report.pruned.items())
    count = sum(report.pruned.values())
    return f"{count} of the trials were not measured{causes and f': {causes}'}; {report.pruned_by}"


def _time_text(report: TuneReport) -> str:
    shares = ", ".join(
        f"{name} {seconds:.1f} s ({seconds / report.seconds:.0%})"
        for name, seconds in report.shares.items()
        if report.seconds
    )
    return f"{report.seconds:.1f} s" + (f": {shares}" if shares else "")


def _pairs(values: Mapping[str, Any]) -> str:
    texts = {
        name: " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        for name, value in values.items()
    }
    return ", ".join(f"{name} {text}" for name, text in texts.items())


# --- the page --------------------------------------------------------------------------------------------------


def page(report: TuneReport) -> Page:
    # The tasks that take most of the time come first, those without a latency last.
    tasks = sorted(report.tasks, key=lambda row: -(row.total_s or 0.0))
    boards = [(row.name, str(row.trials), str(row.failed), str(row.quarantines)) for row in report.boards]
    builders = [(row.name, str(row.processes), str(row.candidates), row.note) for row in report.builders]
    board_table = Table(boards, ("Board", "Trials", "Failed", "Quarantines"), (1, 2, 3), name="boards")
    builder_table = Table(builders, ("Builder", "Processes", "Candidates", "Note"), (1, 2), name="builders")
    sections = [
        Section("The run", [Facts(summary(report))], on_terminal=True),
        Section("Estimated latency over time", [_steps(report), Text(_plot_text(report))]),
        Section("Tasks", [_task_table(tasks, report.peak)], on_terminal=True),
        Section("Boards", [board_table], on_terminal=True),
        Section("Builders", [builder_table] if builders else [], on_terminal=True),
    ]
    marks = [MODELLED] if report.modelled else [EMULATED] if report.emulated else []
    tone: Tone = "plain" if report.estimated_s is not None else "doubt"
    headline = Headline(f"{_latency_text(report)}{report.mark}", tone)
    return Page(f"{report.model} tuned for {report.board}", "tune", headline, sections, marks)


def _steps(report: TuneReport) -> Part:
    if not report.points:
        return Text(f"There is no estimate: {_no_estimate(report)}.", "doubt")
    steps = [
        Value(
            point.seconds / 60,
            point.estimated_s * 1e3,
            f"{_time(point.estimated_s)} after {point.seconds / 60:.1f} min, {point.trials} trials",
        )
        for point in report.points
    ]
    levels = [
        Level(f"{name}, {_time(seconds)}", seconds * 1e3)
        for name, seconds in (("untuned", report.untuned_s), ("tuned, by the finals", _final_s(report)))
        if seconds is not None
    ]
    caption = "Estimate of one run of the model, by the best trials"
    return Plot(caption, "minutes", "milliseconds", [Steps(steps)], levels, report.seconds / 60)


def _final_s(report: TuneReport) -> float | None:
    """Return the estimate by the finals; None if none was held."""
    return report.estimated_s if any(row.verdict for row in report.tasks) else None


def _plot_text(report: TuneReport) -> str:
    if _final_s(report) is None or not report.points:
        return ""
    return (
        "The line is the best of many single trials, so chance makes it look faster than it is. The finals measured the"
        " best candidates and the untuned kernels again, in turns; the dashed lines and the headline are by the finals."
    )
