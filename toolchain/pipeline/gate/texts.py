"""A gate's report for people and for CI: what a terminal shows, and JUnit XML."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from toolchain.failure import encoded
from toolchain.pipeline.gate.result import LATENCY, UNITS, Gate
from toolchain.pipeline.report import waited_rows
from toolchain.stats import Verdict
from toolchain.tables import Table, plain

_ELEMENTS = {Verdict.REGRESSION: "failure", Verdict.INCONCLUSIVE: "error"}


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
    name = f"{gate.board}.{gate.new.manifest.name}"
    counts = [sum(quantity.verdict is verdict for quantity in gate.quantities) for verdict in _ELEMENTS]
    numbers = {"tests": str(1 + len(gate.quantities)), "failures": str(counts[0]), "errors": str(counts[1])}
    mark = "emulated: " if gate.emulated else ""
    suite = ET.Element("testsuite", {"name": "toolchain gate" + (" (emulated)" if mark else ""), **numbers})
    properties = ET.SubElement(suite, "properties")
    changes = {
        f"{quantity.name.replace(' ', '-')}-change": f"{quantity.change.value:+.4f}"
        for quantity in gate.quantities
        if quantity.has_change
    }
    for key, value in {
        "verdict": str(gate.verdict),
        "board": gate.board,
        "host": gate.host,
        "emulated": str(gate.emulated).lower(),
        "new": f"sha256:{gate.new.digest}",
        "base": f"sha256:{gate.base.digest}",
        **changes,
    }.items():
        ET.SubElement(properties, "property", name=key, value=value)
    ET.SubElement(suite, "testcase", classname=name, name="outputs")
    for quantity in gate.quantities:
        case = ET.SubElement(suite, "testcase", classname=name, name=quantity.name.replace(" ", "-"))
        if element := _ELEMENTS.get(quantity.verdict):
            why = ET.SubElement(case, element, type=str(quantity.verdict), message=mark + quantity.sentence())
            why.text = "\n".join(text for text in (gate.slower_layers, gate.hot) if text) or None
        if quantity.name == LATENCY:
            case.set("time", f"{gate.seconds:.3f}")
            ET.SubElement(case, "system-out").text = plain(render_text(gate))
    return encoded(suite)
