"""The page of two models that ran beside each other."""

from __future__ import annotations

from toolchain.pipeline.beside import ROUNDS, CoRun, Side
from toolchain.pipeline.pages import common
from toolchain.report import Dots, Facts, Headline, Level, Notes, Page, Part, Plot, Section, Table, Value
from toolchain.units import duration

_HEAD = ("Model", "Alone", "Beside the other", "Times as long", "99 % within")


def page(result: CoRun) -> Page:
    sets = [
        (f"{side.label} {company}", latency)
        for side in result.sides
        for company, latency in (("alone", side.alone), ("beside", side.beside))
    ]
    first, second = (side.label for side in result.sides)
    device = [*([("board chosen", result.board_reason)] if result.board_reason else []), ("threads", _threads(result))]
    sections = [
        Section("Result", [Table([_row(side) for side in result.sides], _HEAD, (1, 2, 3, 4))], on_terminal=True),
        Section("Conditions of both", [Facts([*device, ("rounds", str(ROUNDS))])], on_terminal=True),
        Section("Warnings", [Notes(result.warnings)], on_terminal=True),
        Section("Latency (ms)", [common.latencies(sets)]),
        Section("Rounds", [_rounds(side) for side in result.sides]),
        Section("Runs", common.runs(sets)),
        Section("Conditions", [common.conditions(result.before, result.after), common.waiting(result.waited)]),
        common.provenance([(side.label, side.digest) for side in result.sides]),
    ]
    title = f"{first} and {second} beside each other on {result.board} at {result.host}"
    verdict = Headline("; ".join(side.outcome for side in result.sides), "doubt")
    return Page(title, "bench", verdict, sections, common.marks(emulated=result.emulated))


def _row(side: Side) -> tuple[str, ...]:
    interval = side.slowdown.ci99
    within = f"{interval[0]:.2f} to {interval[1]:.2f}" if interval else "too few rounds"
    return (side.label, duration(side.alone.median), duration(side.beside.median), f"{side.slowdown.value:.2f}", within)


def _threads(result: CoRun) -> str:
    where = f"different ones of {result.cpus} CPUs" if result.apart else f"the same {result.cpus} CPU(s)"
    return f"{result.threads} of each model, on {where}"


def _rounds(side: Side) -> Part:
    dots = [
        Value(number, value, f"round {number}: {value:.4g}") for number, value in enumerate(side.slowdown.rounds, 1)
    ]
    title = f"How many times as long {side.label} takes beside the other model"
    return Plot(title, "round", "times as long", [Dots(dots)], [Level("as alone", 1.0)])
