"""A gate's report for people and for CI: what a terminal shows, and JUnit XML."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from toolchain.failure import encoded
from toolchain.pipeline.gate.result import LATENCY, UNITS, Gate, Quantity
from toolchain.stats import Verdict
from toolchain.tables import Table, plain
from toolchain.tensors import Difference

_KINDS = {Verdict.REGRESSION: "failure", Verdict.INCONCLUSIVE: "error"}


def shown(found: Gate) -> list[str | Table]:
    """Return what a person is shown of a gate."""
    mark = " (emulated)" if found.emulated else ""
    outputs = found.outputs
    fresh = sum(one.fresh for one in found.counted)
    taken = f"{len(found.counted) - fresh}" + (f" and {fresh} to confirm" if fresh else "")
    rows = [
        ("verdict", f"{str(found.verdict).upper()}{mark}"),
        ("model", found.new.manifest.name),
        ("new", f"{found.new.named}, {found.new.digest[:16]}"),
        ("base", f"{found.base.named}, {found.base.digest[:16]}"),
        ("board", f"{found.board} at {found.host}{mark}, {found.threads} thread(s)"),
        ("outputs", ", ".join(_outputs(found)) or "not compared: no reference"),
        *((one.name, f"{one.verdict!s}: {one.changed()}{mark}") for one in found.quantities),
        *(("", _values(one)) for one in found.quantities if one.name == LATENCY and one.known),
        ("slower layers", found.carrier),
        ("rounds", f"{taken}, {found.seconds:.1f} s in total{mark}"),
        *(("waited", f"{one.seconds:.1f} s: {one.owner}") for one in found.waited),
        ("given up", found.hot),
        *(("warning", text) for text in found.warnings()),
    ]
    if outputs.reference and outputs.new is None:
        rows.append(("warning", f"the reference ({outputs.reference}) is for other inputs, so it was not used"))
    return [Table([row for row in rows if row[1]])]


def _outputs(found: Gate) -> list[str]:
    pairs = [
        (f"new matches {found.outputs.reference}", found.outputs.new),
        (f"base matches {found.outputs.reference}", found.outputs.base),
        ("new matches base", found.outputs.each_other),
    ]
    return [f"{text} ({_far(one)})" for text, one in pairs if one]


def _far(found: Difference) -> str:
    return f"{found.max_rel:.1e}, limit {found.tolerance:.0e}"


def _values(one: Quantity) -> str:
    return f"median {one.new:.4g} {UNITS[one.name]} new, {one.base:.4g} {UNITS[one.name]} base"


def junit(found: Gate) -> bytes:
    """Render a gate as JUnit XML: a case for the outputs and one for each quantity.

    A regression is a `failure` of type `regression`; what is inconclusive is an `error` of type `inconclusive`.
    """
    name = f"{found.board}.{found.new.manifest.name}"
    counts = [sum(one.verdict is verdict for one in found.quantities) for verdict in _KINDS]
    numbers = {"tests": str(1 + len(found.quantities)), "failures": str(counts[0]), "errors": str(counts[1])}
    mark = "emulated: " if found.emulated else ""
    suite = ET.Element("testsuite", {"name": "toolchain gate" + (" (emulated)" if mark else ""), **numbers})
    properties = ET.SubElement(suite, "properties")
    for key, value in _properties(found).items():
        ET.SubElement(properties, "property", name=key, value=value)
    ET.SubElement(suite, "testcase", classname=name, name="outputs")
    for one in found.quantities:
        case = ET.SubElement(suite, "testcase", classname=name, name=one.name.replace(" ", "-"))
        if one.verdict in _KINDS:
            why = ET.SubElement(case, _KINDS[one.verdict], type=str(one.verdict), message=mark + one.sentence())
            why.text = "\n".join(text for text in (found.carrier, found.hot) if text) or None
        if one.name == LATENCY:
            case.set("time", f"{found.seconds:.3f}")
            ET.SubElement(case, "system-out").text = plain(shown(found))
    return encoded(suite)


def _properties(found: Gate) -> dict[str, str]:
    return {
        "verdict": str(found.verdict),
        "board": found.board,
        "host": found.host,
        "emulated": str(found.emulated).lower(),
        "new": f"sha256:{found.new.digest}",
        "base": f"sha256:{found.base.digest}",
        **{f"{one.name.replace(' ', '-')}-change": f"{one.change.value:+.4f}" for one in found.quantities if one.known},
    }
