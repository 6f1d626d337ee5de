"""A gate's report as a page."""

from __future__ import annotations

import math

from toolchain.device.bench import Conditions
from toolchain.pipeline.gate.result import LATENCY, LOAD_TIME, PEAK_MEMORY, UNITS, Gate, metric_of
from toolchain.pipeline.report import waited_rows
from toolchain.report import (
    EMULATED,
    INCONCLUSIVE,
    Cell,
    Dots,
    Facts,
    Group,
    Headline,
    Histogram,
    Level,
    Notes,
    Page,
    Part,
    Plot,
    Section,
    Strokes,
    Table,
    Text,
    Tone,
    Value,
    samples,
)
from toolchain.stats import Verdict, estimate
from toolchain.tensors import Difference

_TONES: dict[Verdict, Tone] = {Verdict.PASS: "good", Verdict.REGRESSION: "bad", Verdict.INCONCLUSIVE: "doubt"}
_SIDES = ("new", "base")
_LIMITS_TEXT = (
    "The limits are for the interval, not for single rounds: it is a regression when all of it is above"
    " the lower limit; otherwise the gate passes when all of it is below the upper one."
)


def page(gate: Gate) -> str:
    marks = [
        *([EMULATED] if gate.emulated else []),
        *([INCONCLUSIVE] if gate.verdict is Verdict.INCONCLUSIVE else []),
    ]
    remarks = [
        Text(
            f"{quantity.name}, {confirmation.rounds} confirming rounds: {confirmation.value:+.2%},"
            f" {confirmation.confidence * 100:.6g} % within {confirmation.low:+.2%} to {confirmation.high:+.2%}"
        )
        for quantity in gate.quantities
        if quantity.judgement.confirmation
        for confirmation in [quantity.judgement.confirmation.change()]
    ]
    remarks += [Text(gate.accuracy.sentence(), _TONES[gate.accuracy.verdict])] if gate.accuracy else []
    remarks += [Text(gate.tail.sentence(), _TONES[gate.tail.verdict])] if gate.tail else []
    remarks += [Text(f"slower layers: {gate.slower_layers}", "bad")] if gate.slower_layers else []
    sections = [
        Section("Verdict", [_quantities(gate), *remarks]),
        Section("Each round", [_changes(gate), Text(_LIMITS_TEXT)]),
        Section("Every run", _runs(gate)),
        Section("Rounds", [_rounds(gate)]),
        Section("Warnings", [Notes(gate.warnings())]),
        Section("Releases and device", [_facts(gate)]),
    ]
    title = f"{gate.new.manifest.name} on {gate.board}: {gate.new.label} against {gate.base.label}"
    return Page(title, "gate", Headline(gate.sentence, _TONES[gate.verdict]), sections, marks).html()


def _quantities(gate: Gate) -> Table:
    head = ("quantity", "verdict", "new", "base", "unit", "change", "low end", "high end", "rounds", "limits")
    rows: list[tuple[str | Cell, ...]] = []
    for quantity in gate.quantities:
        name, rule, change, unit = quantity.name, quantity.rule, quantity.change, UNITS[quantity.name]
        if not quantity.has_change:
            rows.append((name, Cell(str(quantity.verdict), tone="doubt"), "", "", unit, "", "", "", "0", ""))
            continue
        is_bounded = quantity.judgement.estimate is not None and change.high < math.inf
        ends = (f"{change.low:+.2%}", f"{change.high:+.2%}") if is_bounded else ("", "")
        limits = f"{rule.least:+.1%} to {rule.worst:+.1%}" if rule else f"{quantity.worst:+.1%}"
        values = [f"{value:.5g}" if rule else f"{value:.0f}" for value in (quantity.new, quantity.base)]
        verdict = Cell(str(quantity.verdict), tone=_TONES.get(quantity.verdict, "plain"))
        rows.append((name, verdict, *values, unit, f"{change.value:+.2%}", *ends, str(change.rounds), limits))
    return Table(rows, head, numbers=(2, 3, 5, 6, 7, 8), name="verdict")


def _changes(gate: Gate) -> Plot:
    """Draw the change of each round; its whiskers are the interval of all rounds up to it."""
    logs: dict[bool, list[float]] = {False: [], True: []}
    dots: dict[bool, list[Value]] = {False: [], True: []}
    latency = next(quantity for quantity in gate.quantities if quantity.name == LATENCY)
    confidence = latency.rule.confidence if latency.rule else 0.99
    for pair in gate.counted:
        so_far = logs[pair.fresh]
        so_far.append(pair.ratio(LATENCY))
        change_so_far = estimate(so_far, confidence).change()
        value = estimate(so_far[-1:], confidence).change().value * 100
        low, high = (
            (change_so_far.low * 100, change_so_far.high * 100) if change_so_far.high < math.inf else (None, None)
        )
        label = (
            f"round {pair.number}: {value:+.2f} %, all {change_so_far.rounds} rounds so far {change_so_far.value:+.2%}"
        )
        dots[pair.fresh].append(Value(pair.number, value, label, low, high))
    limits = [(f"regression above {rule.least:+.1%}", rule.least) for rule in (latency.rule,) if rule]
    limits += [(f"pass below {rule.worst:+.1%}", rule.worst) for rule in (latency.rule,) if rule]
    return Plot(
        f"Change of each round, with the {confidence * 100:.6g} % interval of all rounds up to it",
        "round",
        "change in %",
        [Dots(dots[False], "test"), *([Dots(dots[True], "confirmation")] if dots[True] else [])],
        [Level(name, value * 100) for name, value in limits],
    )


def _runs(gate: Gate) -> list[Part]:
    """Plot every run in the order of time, and the distribution of those that count."""
    values: dict[str, list[float]] = {side: [] for side in _SIDES}
    numbers: dict[str, list[float]] = {side: [] for side in _SIDES}
    number = 0
    for pair in gate.rounds:
        for side in _SIDES if pair.new_first else _SIDES[::-1]:
            for sample_ns in getattr(pair, side).run.samples_ns:
                number += 1
                values[side].append(sample_ns / 1e6)
                numbers[side].append(number)
    counted = {
        side: [ns / 1e6 for pair in gate.counted for ns in getattr(pair, side).run.samples_ns] for side in _SIDES
    }
    strokes = [Strokes(samples(values[side], numbers[side]), side) for side in _SIDES]
    return [
        Plot("Every run in order", "run", "ms", strokes),
        Histogram("How long runs took", "ms", [Group(side, counted[side]) for side in _SIDES]),
    ]


def _rounds(gate: Gate) -> Table:
    head = (
        *("round", "first", "new ms", "base ms", "change", "switches new", "switches base"),
        *("steal new", "steal base", "MHz new", "MHz base", "MiB new", "MiB base"),
        *("load ms new", "load ms base", "remarks"),
    )
    rows = []
    for pair in gate.rounds:
        turns = (pair.new, pair.base)
        remarks = ["confirmation"] if pair.fresh else []
        remarks += [f"throttled: {', '.join(pair.throttled)}"] if pair.throttled else []
        cells = (
            str(pair.number),
            "new" if pair.new_first else "base",
            *(f"{metric_of(turn, LATENCY):.4g}" for turn in turns),
            f"{metric_of(pair.new, LATENCY) / metric_of(pair.base, LATENCY) - 1:+.2%}",
            *(str(turn.run.involuntary_switches) for turn in turns),
            *(f"{turn.steal:.1%}" for turn in turns),
            *(f"{turn.after.mhz:.0f}" if turn.after.mhz else "" for turn in turns),
            *(f"{metric_of(turn, PEAK_MEMORY) / 1024:.1f}" for turn in turns),
            *(f"{metric_of(turn, LOAD_TIME):.3g}" for turn in turns),
            "; ".join(remarks),
        )
        rows.append(cells)
    return Table(rows, head, numbers=tuple(range(2, 15)), name="every round")


def _facts(gate: Gate) -> Facts:
    def difference_text(difference: Difference) -> str:
        values = f"largest difference {difference.max_abs:.2e}, relative {difference.max_rel:.2e}"
        return f"{values}, limit {difference.tolerance:.1e}"

    facts = gate.facts
    differences = (
        ("new outputs", gate.outputs.new),
        ("base outputs", gate.outputs.base),
        ("new against base", gate.outputs.each_other),
    )
    return Facts(
        [
            ("new", f"{gate.new.label}, sha256:{gate.new.digest}, {gate.new.size} bytes"),
            ("base", f"{gate.base.label}, sha256:{gate.base.digest}, {gate.base.size} bytes"),
            ("board", f"{gate.board} at {gate.host}{', emulated' if gate.emulated else ''}"),
            ("device", f"{facts.cpu or facts.machine}, {facts.cpus} CPUs, {facts.kernel}"),
            *((name, difference_text(difference)) for name, difference in differences if difference),
            ("threads", str(gate.threads)),
            ("before", _conditions(gate.before)),
            ("after", _conditions(gate.after)),
            ("rounds", f"{len(gate.counted)} counted of {len(gate.rounds)}"),
            ("time", f"{gate.seconds:.1f} s"),
            *waited_rows(gate.waited),
        ]
    )


def _conditions(conditions: Conditions) -> str:
    texts = [f"load {conditions.load:.2f}", f"{conditions.busy:.1%} busy", *conditions.governors]
    texts += [f"{conditions.mhz:.1f} MHz"] if conditions.mhz else []
    return ", ".join([*texts, *([f"{conditions.celsius:.1f} degrees C"] if conditions.celsius else [])])
