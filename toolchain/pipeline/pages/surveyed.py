"""The page of a survey."""

from __future__ import annotations

from collections.abc import Sequence

from toolchain import page
from toolchain.page import number
from toolchain.pipeline.pages import common
from toolchain.pipeline.survey import Figure, Outcome, Survey

_MEDIAN = "median_ms"


def html(found: Survey) -> str:
    """Render a survey, finished or on its way."""
    steps: dict[str, list[Outcome]] = {}
    for one in found.outcomes:
        steps.setdefault(one.step, []).append(one)
    sections = [
        page.Section("Steps", [page.Table(("Step", "Network", "Result", "Seconds"), _rows(found), [3], "steps")]),
        *(section for one in found.outcomes for section in _failure(one)),
        page.Section("Median latency", _medians(found)),
        *(page.Section(step.capitalize(), _figures(ones)) for step, ones in steps.items()),
        common.provenance([("board", found.board)], found.versions),
    ]
    marks = common.marks(emulated=found.emulated)
    return page.Page(f"Survey of {found.board}", "survey", _verdict(found), sections, marks).html()


def _verdict(found: Survey) -> page.Verdict:
    failed = sum(one.fault is not None for one in found.outcomes)
    mark = " (emulated: times mean nothing)" if found.emulated else ""
    tone: page.Tone = "bad" if failed else "doubt" if found.emulated or not found.outcomes else "good"
    return page.Verdict(f"{len(found.outcomes)} steps, {failed} failed{mark}", tone)


def _rows(found: Survey) -> list[tuple[str | page.Cell, ...]]:
    return [(one.step, one.network, _result(one), f"{one.seconds:.1f}") for one in found.outcomes]


def _result(one: Outcome) -> page.Cell:
    return page.Cell(f"FAILED ({one.fault.exit_code})", tone="bad") if one.fault else page.Cell("ok", tone="good")


def _failure(one: Outcome) -> list[page.Section]:
    if one.fault is None:
        return []
    told = [page.Text(one.fault.message, "bad"), page.Text(one.fault.details.rstrip())]
    return [page.Section(f"{one.step} {one.network}".strip() + " failed", told)]


def _medians(found: Survey) -> list[page.Part]:
    known = [(f"{one.step} {one.network}", one.figures.get(_MEDIAN)) for one in found.outcomes]
    bars = [page.Bar(name, value, f"{number(value)} ms") for name, value in known if isinstance(value, float)]
    return [page.Bars("Median of one run", "milliseconds", bars)] if bars else []


def _figures(ones: Sequence[Outcome]) -> list[page.Part]:
    """Return what a step found out: a table of numbers with a column for each network, and the texts below it."""
    known = [one for one in ones if one.figures]
    if len(known) == 1:
        return [page.Facts([(name, _shown(value)) for name, value in known[0].figures.items()])]
    names = list(dict.fromkeys(name for one in known for name in one.figures))
    texts = [name for name in names if any(isinstance(one.figures.get(name), str) for one in known)]
    rows = [(name, *(_shown(one.figures.get(name)) for one in known)) for name in names if name not in texts]
    heads = [one.network or "device" for one in known]
    said = [
        (f"{one.network}: {name}", _shown(one.figures[name])) for one in known for name in texts if name in one.figures
    ]
    table = page.Table(("", *heads), rows, range(1, len(heads) + 1), "figures")
    return [*([table] if rows else []), page.Facts(said)]


def _shown(value: Figure) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else common.plain(value)
