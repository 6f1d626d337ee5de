"""A gate's report as a page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from toolchain.device.bench import Conditions
from toolchain.page import (
    EMULATED,
    INCONCLUSIVE,
    Cell,
    Dot,
    Dots,
    Facts,
    Group,
    Histogram,
    Level,
    Notes,
    Page,
    Run,
    Section,
    Series,
    Table,
    Text,
    Tone,
)
from toolchain.page import Verdict as Headline
from toolchain.pipeline.gate.result import LATENCY, LOAD_TIME, PEAK_MEMORY, UNITS, Gate, Quantity, Round, of_turn
from toolchain.stats import Verdict, estimate

_TONES: dict[Verdict, Tone] = {Verdict.PASS: "good", Verdict.REGRESSION: "bad", Verdict.INCONCLUSIVE: "doubt"}
_SIDES = ("new", "base")
_LIMITS = (
    "The limits are for the interval, not for single rounds: it is a regression when all of it is above"
    " the lower limit; otherwise the gate passes when all of it is below the upper one."
)


def page(found: Gate) -> str:
    """Write a gate as a page: the verdict, the quantities, every round against the limits, every run, statistics."""
    marks = [*([EMULATED] if found.emulated else []), *([INCONCLUSIVE] if _open(found) else [])]
    sections = [
        Section("Verdict", [_quantities(found), *_more(found)]),
        Section("Each round", [_ratios(found), Text(_LIMITS)]),
        Section("Every run", [_runs(found), _histogram(found)]),
        Section("Rounds", [_rounds(found)]),
        Section("Warnings", [Notes(found.warnings())]),
        Section("Releases and device", [_facts(found)]),
    ]
    title = f"{found.new.manifest.name} on {found.board}: {found.new.named} against {found.base.named}"
    return Page(title, "gate", Headline(found.sentence, _TONES[found.verdict]), sections, marks).html()


def _open(found: Gate) -> bool:
    return found.verdict is Verdict.INCONCLUSIVE


def _more(found: Gate) -> list[Text]:
    """Say how a regression was confirmed, and what carries it."""
    texts = [
        Text(
            f"{one.name}, {again.rounds} confirming rounds: {again.value:+.2%}, {again.confidence * 100:.6g} % within"
            f" {again.low:+.2%} to {again.high:+.2%}"
        )
        for one in found.quantities
        if one.judgement.confirmation
        for again in [one.judgement.confirmation.change()]
    ]
    return [*texts, *([Text(f"slower layers: {found.carrier}", "bad")] if found.carrier else [])]


def _quantities(found: Gate) -> Table:
    head = ("quantity", "verdict", "new", "base", "unit", "change", "low end", "high end", "rounds", "limits")
    rows = [_quantity(one) for one in found.quantities]
    return Table(head, rows, numbers=(2, 3, 5, 6, 7, 8), name="verdict")


def _quantity(one: Quantity) -> tuple[str | Cell, ...]:
    change, sure = one.change, one.judgement.estimate is not None and one.change.high < math.inf
    if not one.known:
        return (one.name, Cell(str(one.verdict), tone="doubt"), "", "", UNITS[one.name], "", "", "", "0", "")
    ends = (f"{change.low:+.2%}", f"{change.high:+.2%}") if sure else ("", "")
    limits = f"{one.rule.least:+.1%} to {one.rule.worst:+.1%}" if one.rule else f"{one.worst:+.1%}"
    values = (f"{one.new:.5g}", f"{one.base:.5g}") if one.rule else (f"{one.new:.0f}", f"{one.base:.0f}")
    verdict = Cell(str(one.verdict), tone=_TONES.get(one.verdict, "plain"))
    return (one.name, verdict, *values, UNITS[one.name], f"{change.value:+.2%}", *ends, str(change.rounds), limits)


def _ratios(found: Gate) -> Dots:
    """Draw the change of each round; its whiskers are the interval of all rounds up to it."""
    dots, logs = [], {False: [], True: []}  # type: tuple[list[Dot], dict[bool, list[float]]]
    latency = next(one for one in found.quantities if one.name == LATENCY)
    confidence = latency.rule.confidence if latency.rule else 0.99
    for one in found.counted:
        so_far = logs[one.fresh]
        so_far.append(one.ratio(LATENCY))
        known = estimate(so_far, confidence).change()
        value = estimate(so_far[-1:], confidence).change().value * 100
        low, high = (known.low * 100, known.high * 100) if known.high < math.inf else (None, None)
        label = f"round {one.number}: {value:+.2f} %, all {known.rounds} rounds so far {known.value:+.2%}"
        dots.append(Dot(one.number, value, low, high, label, int(one.fresh)))
    limits = [(f"regression above {rule.least:+.1%}", rule.least) for rule in (latency.rule,) if rule]
    limits += [(f"pass below {rule.worst:+.1%}", rule.worst) for rule in (latency.rule,) if rule]
    return Dots(
        f"Change of each round, with the {confidence * 100:.6g} % interval of all rounds up to it",
        "round",
        "change in %",
        dots,
        [Level(name, value * 100) for name, value in limits],
        ("test", "confirmation") if any(one.fresh for one in found.counted) else (),
    )


def _runs(found: Gate) -> Series:
    values: dict[str, list[float]] = {name: [] for name in _SIDES}
    places: dict[str, list[float]] = {name: [] for name in _SIDES}
    place = 0
    for one in found.rounds:
        for name in _SIDES if one.new_first else _SIDES[::-1]:
            for sample in getattr(one, name).run.samples_ns:
                place += 1
                values[name].append(sample / 1e6)
                places[name].append(place)
    return Series("Every run in order", "run", "ms", [Run(name, values[name], places[name]) for name in _SIDES])


def _histogram(found: Gate) -> Histogram:
    samples = {name: [ns / 1e6 for one in found.counted for ns in getattr(one, name).run.samples_ns] for name in _SIDES}
    return Histogram("How long runs took", "ms", [Group(name, samples[name]) for name in _SIDES])


def _rounds(found: Gate) -> Table:
    head = (
        *("round", "first", "new ms", "base ms", "change", "switches new", "switches base"),
        *("steal new", "steal base", "MHz new", "MHz base", "MiB new", "MiB base"),
        *("load ms new", "load ms base", "remarks"),
    )
    return Table(head, [_round(one) for one in found.rounds], numbers=tuple(range(2, 15)), name="every round")


def _round(one: Round) -> Sequence[str]:
    sides = (one.new, one.base)
    remarks = [
        *(["confirmation"] if one.fresh else []),
        *([f"throttled: {', '.join(one.throttled)}"] if one.throttled else []),
    ]
    return (
        str(one.number),
        "new" if one.new_first else "base",
        *(f"{of_turn(turn, LATENCY):.4g}" for turn in sides),
        f"{of_turn(one.new, LATENCY) / of_turn(one.base, LATENCY) - 1:+.2%}",
        *(str(turn.run.involuntary_switches) for turn in sides),
        *(f"{turn.steal:.1%}" for turn in sides),
        *(f"{turn.after.mhz:.0f}" if turn.after.mhz else "" for turn in sides),
        *(f"{of_turn(turn, PEAK_MEMORY) / 1024:.1f}" for turn in sides),
        *(f"{of_turn(turn, LOAD_TIME):.3g}" for turn in sides),
        "; ".join(remarks),
    )


def _facts(found: Gate) -> Facts:
    facts = found.facts
    return Facts(
        [
            ("new", f"{found.new.named}, sha256:{found.new.digest}, {found.new.size} bytes"),
            ("base", f"{found.base.named}, sha256:{found.base.digest}, {found.base.size} bytes"),
            ("board", f"{found.board} at {found.host}{', emulated' if found.emulated else ''}"),
            ("device", f"{facts.cpu or facts.machine}, {facts.cpus} CPUs, {facts.kernel}"),
            *_outputs(found),
            ("threads", str(found.threads)),
            ("before", _condition(found.before)),
            ("after", _condition(found.after)),
            ("rounds", f"{len(found.counted)} counted of {len(found.rounds)}"),
            ("time", f"{found.seconds:.1f} s"),
            *(("waited", f"{one.seconds:.1f} s: {one.owner}") for one in found.waited),
        ]
    )


def _outputs(found: Gate) -> list[tuple[str, str]]:
    outputs = found.outputs
    pairs = [("new outputs", outputs.new), ("base outputs", outputs.base), ("new against base", outputs.each_other)]
    return [
        (name, f"largest difference {one.max_abs:.2e}, relative {one.max_rel:.2e}, limit {one.tolerance:.1e}")
        for name, one in pairs
        if one
    ]


def _condition(found: Conditions) -> str:
    parts = [f"load {found.load:.2f}", f"{found.busy:.1%} busy", *found.governors]
    parts += [f"{found.mhz:.1f} MHz"] if found.mhz else []
    return ", ".join([*parts, *([f"{found.celsius:.1f} degrees C"] if found.celsius else [])])
