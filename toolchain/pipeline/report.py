"""A report of one deploy or benchmark: as JSON, as a table for people, and as JUnit XML for CI."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from toolchain.bundle.manifest import InHalf, InInt8, Modelled
from toolchain.device.application import Started
from toolchain.device.bench import Latency, Measurement
from toolchain.device.energy import Energy
from toolchain.device.fidelity import Fidelity
from toolchain.device.shipment import Transfer
from toolchain.device.store import DeviceFacts
from toolchain.device.trust import Verified
from toolchain.device.waiting import Waited
from toolchain.failure import encoded
from toolchain.models.inputs import Guess
from toolchain.progress import size_text
from toolchain.tables import Table, plain
from toolchain.tensors import ROUNDING, Difference, OutputDifference

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Report:
    """Everything a deploy or a benchmark found out.

    Attributes:
        board: Board type.
        host: Name of the device.
        model: Model name.
        bundle_digest: Digest of the release.
        emulated: Whether the times are an emulator's.
        facts: The device.
        stages: Seconds by stage.
        measurement: The benchmark.
        transfer: What was sent.
        reference: What the outputs were compared with; empty if with nothing.
        difference: How far the outputs are from it.
        warnings: What else makes the result doubtful.
        top: Top-5 table, where labels were given.
        modelled: What a model of the accelerator says of its part of a run; None where there is none.
        application: How the device's application started on the release; None where none is known.
        fidelity: What a comparison of many inputs found; None where there was one.
        unchecked: Whether the release was deployed without a reference, so that nobody knows whether it is right.
        verified: What the device found of the release's signatures; None where it asks for none.
        energy: Joules of an inference, or why there are none; None where nobody asked.
        waited: Who was at work on the device meanwhile, and how long they were waited for.
        half: How far half precision is from the reference by the machine that built it; None in single precision.
        int8: How near a network that was made int8 is to the user's own, by that machine; None where it was not.
        board_reason: Why the board type is the one, where a probe of the device chose it; else empty.
        can_roll_back: Whether the device keeps an earlier release.
    """

    board: str
    host: str
    model: str
    bundle_digest: str
    emulated: bool
    facts: DeviceFacts
    stages: Mapping[str, float]
    measurement: Measurement
    transfer: Transfer
    reference: str = ""
    difference: Difference | None = None
    warnings: tuple[str, ...] = field(default=())
    top: tuple[Guess, ...] = ()
    modelled: Modelled | None = None
    application: Started | None = None
    fidelity: Fidelity | None = None
    unchecked: bool = False
    verified: Verified | None = None
    energy: Energy | None = None
    waited: tuple[Waited, ...] = ()
    half: InHalf | None = None
    int8: InInt8 | None = None
    board_reason: str = ""
    can_roll_back: bool = False

    def document(self) -> dict[str, Any]:
        """Return the report as report.json holds it; docs/report.md describes every field."""
        measured = self.measurement
        return {
            "schema_version": SCHEMA_VERSION,
            "board": self.board,
            "board_reason": self.board_reason or None,
            "host": {"name": self.host, **_machine(self.facts)},
            "model": self.model,
            "bundle_digest": f"sha256:{self.bundle_digest}",
            "emulated": self.emulated,
            "outputs": self._outputs(),
            "unchecked": self.unchecked,
            "fidelity": _fidelity(self.fidelity),
            "latency_ms": asdict(measured.latency),
            "warmup_ms": [value / 1e6 for value in measured.run.warmup_ns],
            "modelled": _modelled(self.modelled),
            "half_precision": asdict(self.half) if self.half else None,
            "int8": asdict(self.int8) if self.int8 else None,
            "threads": measured.run.threads,
            "load_ms": measured.run.load_ms,
            "peak_rss_kib": measured.run.peak_rss_kib,
            "processor": asdict(measured.run.processor) if measured.run.processor else None,
            "copies": asdict(measured.run.copies) if measured.run.copies else None,
            "conditions": {"before": asdict(measured.before), "after": asdict(measured.after)},
            "warnings": [*self.warnings, *measured.warnings],
            "transfer": asdict(self.transfer),
            "application": asdict(self.application) if self.application else None,
            "verified": asdict(self.verified) if self.verified else None,
            "energy": asdict(self.energy) if self.energy else None,
            "waited": [asdict(one) for one in self.waited],
            "stages_s": {name: round(value, 4) for name, value in self.stages.items()},
            "top": [{**asdict(guess), "score": _finite(guess.score)} for guess in self.top],
        }

    def _outputs(self) -> dict[str, Any]:
        if self.difference is None:
            return {"reference": None, "max_abs_diff": None, "max_rel_diff": None, "tolerance": None, "ok": None}
        each = [_output(one) for one in self.difference.outputs]
        return {"reference": self.reference, **_difference(self.difference), "each": each}


_FEW = 3  # outputs of which a line says something


def _difference(found: Difference) -> dict[str, Any]:
    # JSON has no infinity; an output that is not finite is not ok, and says so by null.
    return {
        "max_abs_diff": _finite(found.max_abs),
        "max_rel_diff": _finite(found.max_rel),
        "tolerance": _finite(found.tolerance),
        "ok": found.ok,
        "reordered": list(found.reordered),
    }


def _output(found: OutputDifference) -> dict[str, Any]:
    return {
        "name": found.name,
        "max_abs_diff": _finite(found.max_abs),
        "max_rel_diff": _finite(found.max_rel),
        "tolerance": _finite(found.limit.value),
        "reason": found.limit.reason,
        "ok": found.ok,
    }


def _fidelity(found: Fidelity | None) -> dict[str, Any] | None:
    if found is None:
        return None
    kept = ("samples", "seed", "worst", "beyond", "flips", "rows")
    return {**{name: getattr(found, name) for name in kept}, **_difference(found.difference)}


def _modelled(found: Modelled | None) -> dict[str, Any] | None:
    if found is None:
        return None
    derived = {"ms": found.milliseconds, "gops": found.gops, "utilisation": found.utilisation}
    return {**asdict(found), **{name: round(value, 4) for name, value in derived.items()}}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _machine(facts: DeviceFacts) -> dict[str, Any]:
    kept = ("machine", "kernel", "glibc", "cpu", "cpus", "memory_kib")
    return {name: getattr(facts, name) for name in kept}


def shown(report: Report) -> list[str | Table]:
    """Return what a person is shown of a report."""
    latency, facts, processor = report.measurement.latency, report.facts, report.measurement.run.processor
    mark = " (emulated)" if report.emulated else ""
    rows = [
        ("model", report.model),
        ("release", report.bundle_digest[:16]),
        ("board", f"{report.board} at {report.host}{mark}"),
        ("device", f"{facts.cpu or facts.machine}, {facts.cpus} CPUs, {facts.kernel}"),
        ("computed on", processor.text if processor else ""),
        ("outputs", outputs_text(report)),
        ("samples", fidelity_text(report.fidelity)),
        ("latency", f"{_ms(latency.median)} median{mark}, 95 % within {_interval(report)}"),
        ("", f"{_spread(latency)}{mark}"),
        ("runs", f"{_runs_text(report)}{mark}"),
        ("modelled", modelled_text(report.modelled)),
        ("copied", report.measurement.run.copies.text if report.measurement.run.copies else ""),
        *(("when built", line) for made in (report.half, report.int8) if made for line in made.lines()),
        ("transfer", _transfer_text(report.transfer)),
        ("signed", signed_text(report.verified)),
        ("application", application_text(report.application)),
        ("stages", ", ".join(f"{name} {seconds:.1f} s" for name, seconds in report.stages.items())),
        *waited_rows(report.waited),
        *(("warning", text) for text in (*report.warnings, *report.measurement.warnings)),
    ]
    return [Table([row for row in rows if row[1]]), *_top(report.top)]


def table(report: Report) -> str:
    """Write it for a file."""
    return plain(shown(report))


def _ms(value: float) -> str:
    return f"{value:.3g} ms" if value < 1 else f"{value:.2f} ms"


def _spread(latency: Latency) -> str:
    return f"{_ms(latency.mean)} mean, {_ms(latency.min)} min, {_ms(latency.max)} max, {_ms(latency.std)} std"


def _interval(report: Report) -> str:
    low, high = report.measurement.latency.median_ci95
    return f"{_ms(low)} to {_ms(high)}"


def outputs_text(report: Report) -> str:
    """Say how the outputs compare with their reference."""
    if report.unchecked:
        return "UNCHECKED: the release was deployed without its reference"
    if report.difference is None:
        return "not compared: no reference for these inputs"
    verdict = "match" if report.difference.ok else "DIFFER FROM"
    names = ", ".join(report.difference.reordered)
    order = f"; rows of {names} with nearly equal scores are in another order" if names else ""
    wider = [one for one in report.difference.outputs if one.limit.reason == ROUNDING]
    limits = "".join(
        f"; limit of {one.name} {one.limit.value:.0e}: these inputs amplify rounding" for one in wider[:_FEW]
    )
    return (
        f"{verdict} {report.reference}, largest relative difference {report.difference.max_rel:.1e}"
        f" (limit {report.difference.tolerance:.0e}){order}{limits}"
    )


def fidelity_text(found: Fidelity | None) -> str:
    """Say what a comparison of many inputs found; empty where there was none."""
    if found is None:
        return ""
    flips = "" if found.flips is None else f", a different class in {found.flips} of {found.rows}"
    return (
        f"{found.samples} random inputs match, largest relative difference {found.difference.max_rel:.1e}"
        f" (sample {found.worst}, limit {found.difference.tolerance:.0e}){flips}"
    )


def modelled_text(found: Modelled | None) -> str:
    """Say what a model of an accelerator says of its part of a run; empty where there is none."""
    if found is None:
        return ""
    basis = found.calibration or "not measured"
    return (
        f"{_ms(found.milliseconds)} at {found.clock_mhz:g} MHz in {found.kernels} kernels of the accelerator,"
        f" {found.gops:.1f} GOPS, {found.utilisation:.0%} of its peak (model {found.model}, {basis})"
    )


def energy_text(found: Energy | None) -> str:
    """Say what an inference takes, or why that is not known; empty where nobody asked."""
    if found is None:
        return ""
    if found.joules is None:
        return f"no figure: {found.reason}"
    joules = found.joules
    gross, low, high, net = map(_joules_text, (joules.gross_j, *joules.gross_ci95, joules.net_j))
    beyond = " to ".join(map(_joules_text, joules.net_ci95))
    return (
        f"{gross} an inference, 95 % within {low} to {high}; beyond idleness {net}, within {beyond};"
        f" {joules.run_w:.2f} W, idle {joules.idle_w:.2f} W ({joules.method})"
        + "".join(f"; not counted: {text}" for text in joules.warnings)
    )


def _joules_text(value: float) -> str:
    return f"{value * 1e3:.3g} mJ" if abs(value) < 1 else f"{value:.3g} J"


def _runs_text(report: Report) -> str:
    measured = report.measurement
    tails = [("p90", measured.latency.p90), ("p99", measured.latency.p99)]
    known = "".join(f", {name} {_ms(value)}" for name, value in tails if value is not None)
    return f"{len(measured.latency.samples)} timed on {measured.run.threads} thread(s){known}"


def _transfer_text(transfer: Transfer) -> str:
    sent = f"{size_text(transfer.bytes_sent)} sent in {transfer.seconds:.1f} s"
    return f"{sent}, {transfer.blobs_sent} blob(s) new, {transfer.blobs_skipped} already there"


def signed_text(found: Verified | None) -> str:
    """Say who signed the release; empty where nobody asks."""
    return f"by {', '.join(found.signers)}, sequence {found.sequence}" if found else ""


def application_text(started: Started | None) -> str:
    """Say how the device's application started; empty where there is none."""
    if started is None:
        return ""
    how = f"running {started.seconds:.1f} s after the switch" if started.restarted else "already running this release"
    return f"{started.name}, {how}"


def waited_rows(waited: Sequence[Waited]) -> list[tuple[str, str]]:
    """Return the rows of a table that say who was waited for, and how long."""
    return [("waited", f"{one.seconds:.1f} s: {one.owner}") for one in waited]


def _top(top: Sequence[Guess]) -> list[str | Table]:
    if not top:
        return []
    return ["", Table([(f"{guess.score:.4g}", guess.label) for guess in top], ("score", "class"))]


def suite_properties(report: Report) -> dict[str, str]:
    """Return what CI is told of all tests of a report: on what they ran, and what was measured."""
    return {
        "board": report.board,
        "device": report.host,
        "release": f"sha256:{report.bundle_digest}",
        "emulated": str(report.emulated).lower(),
        "median_ms": f"{report.measurement.latency.median:.6g}",
        "waited": waited_text(report.waited),
    }


def waited_text(waited: Sequence[Waited]) -> str:
    """Say in one line who was waited for; `0` if nobody was."""
    return "; ".join(f"{one.seconds:.1f} s: {one.owner}" for one in waited) or "0"


def junit(report: Report) -> bytes:
    """Render a report as JUnit XML with a case for the outputs and one for the benchmark, with the time each took."""
    name = f"{report.board}.{report.model}"
    suite = ET.Element("testsuite", name="toolchain deploy", tests="2", failures="0", errors="0")
    properties = ET.SubElement(suite, "properties")
    for key, value in suite_properties(report).items():
        ET.SubElement(properties, "property", name=key, value=value)
    checked = sum(report.stages.get(stage, 0.0) for stage in ("smoke", "samples"))
    outputs = ET.SubElement(suite, "testcase", classname=name, name="outputs", time=f"{checked:.3f}")
    if report.difference is None:
        ET.SubElement(outputs, "skipped", message="no reference for these inputs")
        suite.set("skipped", "1")
    measured = report.stages.get("bench", 0.0)
    latency = ET.SubElement(suite, "testcase", classname=name, name="latency", time=f"{measured:.3f}")
    ET.SubElement(latency, "system-out").text = table(report)
    return encoded(suite)
