"""A gate's report for people and for CI: what a terminal shows, and JUnit XML."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from toolchain.device.tail import TAIL
from toolchain.pipeline.gate.result import ACCURACY, LATENCY, UNITS, Gate
from toolchain.pipeline.report import waited_rows
from toolchain.report import Table, plain
from toolchain.report.junit import Case, Suite
from toolchain.stats import Verdict

_OUTCOMES: dict[Verdict, Literal["failure", "error"]] = {
    Verdict.REGRESSION: "failure",
    Verdict.INCONCLUSIVE: "error",
}


def render_text(gate: Gate) -> list[str | Table]:
    mark = " (emulated)" if gate.emulated else ""
    outputs = gate.outputs
    confirming = sum(pair.fresh for pair in gate.counted)
    rounds = f"{len(gate.counted) - confirming}" + (f" and {confirming} to confirm" if confirming else "")
    differences = (
        (f"new matches {outputs.reference}", outputs.new),
        (f"base matches {outputs.reference}", outputs.base),
        ("new matches base", outputs.each_other),
    )
    matches = [
        f"{text} ({difference.max_rel:.1e}, limit {difference.tolerance:.0e})"
        for text, difference in differences
        if difference
    ]
    medians = [
        f"median {quantity.new:.4g} {UNITS[LATENCY]} new, {quantity.base:.4g} {UNITS[LATENCY]} base"
        for quantity in gate.quantities
        if quantity.name == LATENCY and quantity.has_change
    ]
    rows = [
        ("verdict", f"{str(gate.verdict).upper()}{mark}"),
        ("model", gate.new.manifest.name),
        ("new", f"{gate.new.label}, {gate.new.digest[:16]}"),
        ("base", f"{gate.base.label}, {gate.base.digest[:16]}"),
        ("board", f"{gate.board} at {gate.host}{mark}, {gate.threads} thread(s)"),
        ("outputs", ", ".join(matches) or "not compared: no reference"),
        *((quantity.name, f"{quantity.verdict!s}: {quantity.change_text()}{mark}") for quantity in gate.quantities),
        *(("", text) for text in medians),
        *((ACCURACY, f"{compared.verdict!s}: {compared.text()}") for compared in (gate.accuracy,) if compared),
        *((TAIL, f"{slowest.verdict!s}: {slowest.text()}{mark}") for slowest in (gate.tail,) if slowest),
        ("slower layers", gate.slower_layers),
        ("rounds", f"{rounds}, {gate.seconds:.1f} s in total{mark}"),
        *waited_rows(gate.waited),
        ("given up", gate.hot),
        *(("warning", text) for text in gate.warnings()),
    ]
    if outputs.reference and outputs.new is None:
        rows.append(("warning", f"the reference ({outputs.reference}) is for other inputs, so it was not used"))
    return [Table([row for row in rows if row[1]])]


def junit(gate: Gate) -> bytes:
    """Render a gate as JUnit XML: a case for the outputs and one for each quantity.

    A regression is a `failure` of type `regression`, an inconclusive quantity an `error` of type `inconclusive`.
    """
    mark = "emulated: " if gate.emulated else ""
    changes = {
        f"{quantity.name.replace(' ', '-')}-change": f"{quantity.change.value:+.4f}"
        for quantity in gate.quantities
        if quantity.has_change
    }
    properties = {
        "verdict": str(gate.verdict),
        "board": gate.board,
        "host": gate.host,
        "emulated": str(gate.emulated).lower(),
        "new": f"sha256:{gate.new.digest}",
        "base": f"sha256:{gate.base.digest}",
        **changes,
    }
    cases = [Case("outputs")]
    for quantity in gate.quantities:
        case = Case(quantity.name.replace(" ", "-"))
        if outcome := _OUTCOMES.get(quantity.verdict):
            details = "\n".join(filter(None, (gate.slower_layers, gate.hot)))
            case = Case(case.name, outcome, mark + quantity.sentence(), str(quantity.verdict), details)
        if quantity.name == LATENCY:
            case = replace(case, output=plain(render_text(gate)), seconds=gate.seconds)
        cases.append(case)
    if compared := gate.accuracy:
        case = Case(ACCURACY)
        if outcome := _OUTCOMES.get(compared.verdict):
            case = Case(ACCURACY, outcome, compared.sentence(), str(compared.verdict), "\n".join(compared.changed[:20]))
        cases.append(case)
    if gate.tail:
        case, text = Case(TAIL), gate.tail.sentence()
        if outcome := _OUTCOMES.get(gate.tail.verdict):
            case = Case(TAIL, outcome, mark + text, str(gate.tail.verdict))
        cases.append(case)
    name = "toolchain gate" + (" (emulated)" if gate.emulated else "")
    return Suite(name, f"{gate.board}.{gate.new.manifest.name}", cases, properties).xml()
