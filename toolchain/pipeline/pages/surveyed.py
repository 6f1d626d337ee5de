"""The page of a survey."""

from __future__ import annotations

from collections.abc import Sequence

from toolchain import page
from toolchain.page import number
from toolchain.pipeline.pages import common
from toolchain.pipeline.survey import Figure, Outcome, Survey

_MEDIAN = "median_ms"


def html(survey: Survey) -> str:
    steps: dict[str, list[Outcome]] = {}
    rows: list[tuple[str | page.Cell, ...]] = []
    failures = []
    for outcome in survey.outcomes:
        steps.setdefault(outcome.step, []).append(outcome)
        fault = outcome.fault
        verdict = page.Cell(f"FAILED ({fault.exit_code})", tone="bad") if fault else page.Cell("ok", tone="good")
        rows.append((outcome.step, outcome.network, verdict, f"{outcome.seconds:.1f}"))
        if fault:
            texts = [page.Text(fault.message, "bad"), page.Text(fault.details.rstrip())]
            failures.append(page.Section(f"{outcome.step} {outcome.network}".strip() + " failed", texts))
    medians = [(f"{outcome.step} {outcome.network}", outcome.figures.get(_MEDIAN)) for outcome in survey.outcomes]
    bars = [page.Bar(name, ms, f"{number(ms)} ms") for name, ms in medians if isinstance(ms, float)]
    sections = [
        page.Section("Steps", [page.Table(("Step", "Network", "Result", "Seconds"), rows, [3], "steps")]),
        *failures,
        page.Section("Median latency", [page.Bars("Median of one run", "milliseconds", bars)] if bars else []),
        *(page.Section(step.capitalize(), _figures(outcomes)) for step, outcomes in steps.items()),
        common.provenance([("board", survey.board)], survey.versions),
    ]
    mark = " (emulated: times mean nothing)" if survey.emulated else ""
    tone: page.Tone = "bad" if failures else "doubt" if survey.emulated or not survey.outcomes else "good"
    headline = page.Verdict(f"{len(survey.outcomes)} steps, {len(failures)} failed{mark}", tone)
    marks = common.marks(emulated=survey.emulated)
    return page.Page(f"Survey of {survey.board}", "survey", headline, sections, marks).html()


def _figures(outcomes: Sequence[Outcome]) -> list[page.Part]:
    """Return a table of a step's numbers with a column for each network, and its texts below."""
    reported = [outcome for outcome in outcomes if outcome.figures]
    if len(reported) == 1:
        return [page.Facts([(name, _figure_text(value)) for name, value in reported[0].figures.items()])]
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
    table = page.Table(("", *heads), rows, range(1, len(heads) + 1), "figures")
    return [*([table] if rows else []), page.Facts(text_rows)]


def _figure_text(value: Figure) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else common.number_text(value)
