"""The page of a survey."""

from __future__ import annotations

from collections.abc import Sequence

from toolchain.pipeline.pages import common
from toolchain.pipeline.survey import Figure, Outcome, Survey
from toolchain.report import Bar, Bars, Cell, Facts, Headline, Page, Part, Section, Table, Text, Tone, number

_MEDIAN = "median_ms"


def html(survey: Survey) -> str:
    steps: dict[str, list[Outcome]] = {}
    rows: list[tuple[str | Cell, ...]] = []
    failures = []
    for outcome in survey.outcomes:
        steps.setdefault(outcome.step, []).append(outcome)
        fault = outcome.fault
        verdict = Cell(f"FAILED ({fault.exit_code})", tone="bad") if fault else Cell("ok", tone="good")
        rows.append((outcome.step, outcome.network, verdict, f"{outcome.seconds:.1f}"))
        if fault:
            texts = [Text(fault.message, "bad"), Text(fault.details.rstrip())]
            failures.append(Section(f"{outcome.step} {outcome.network}".strip() + " failed", texts))
    medians = [(f"{outcome.step} {outcome.network}", outcome.figures.get(_MEDIAN)) for outcome in survey.outcomes]
    bars = [Bar(name, ms, f"{number(ms)} ms") for name, ms in medians if isinstance(ms, float)]
    sections = [
        Section("Steps", [Table(rows, ("Step", "Network", "Result", "Seconds"), [3], name="steps")]),
        *failures,
        Section("Median latency", [Bars("Median of one run", "milliseconds", bars)] if bars else []),
        *(Section(step.capitalize(), _figures(outcomes)) for step, outcomes in steps.items()),
        common.provenance([("board", survey.board)], survey.versions),
    ]
    mark = " (emulated: times mean nothing)" if survey.emulated else ""
    tone: Tone = "bad" if failures else "doubt" if survey.emulated or not survey.outcomes else "good"
    headline = Headline(f"{len(survey.outcomes)} steps, {len(failures)} failed{mark}", tone)
    marks = common.marks(emulated=survey.emulated)
    return Page(f"Survey of {survey.board}", "survey", headline, sections, marks).html()


def _figures(outcomes: Sequence[Outcome]) -> list[Part]:
    """Return a table of a step's numbers with a column for each network, and its texts below."""
    reported = [outcome for outcome in outcomes if outcome.figures]
    if len(reported) == 1:
        return [Facts([(name, _figure_text(value)) for name, value in reported[0].figures.items()])]
    names = list(dict.fromkeys(name for outcome in reported for name in outcome.figures))
    texts = [name for name in names if any(isinstance(outcome.figures.get(name), str) for outcome in reported)]
    rows = [
        (name, *(_figure_text(outcome.figures.get(name)) for outcome in reported))
        for name in names
        if name not in texts
    ]
    heads = [outcome.network or "device" for outcome in reported]
    text_rows = [
        (f"{outcome.network}: {name}", _figure_text(outcome.figures[name]))
        for outcome in reported
        for name in texts
        if name in outcome.figures
    ]
    table = Table(rows, ("", *heads), range(1, len(heads) + 1), name="figures")
    return [*([table] if rows else []), Facts(text_rows)]


def _figure_text(value: Figure) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else common.number_text(value)
