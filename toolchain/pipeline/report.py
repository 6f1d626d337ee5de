"""The report of a deploy or a benchmark: as JSON, as a table, and as JUnit XML."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from toolchain.bundle.manifest import InHalf, InInt8, Modelled
from toolchain.device.application import Started
from toolchain.device.bench import Measurement
from toolchain.device.energy import Energy
from toolchain.device.fidelity import Fidelity
from toolchain.device.shipment import Transfer
from toolchain.device.store import DeviceFacts
from toolchain.device.trust import Verified
from toolchain.device.waiting import Waited
from toolchain.models.inputs import Guess
from toolchain.progress import size_text
from toolchain.report import Table, plain
from toolchain.report.junit import Case, Suite
from toolchain.tensors import ROUNDING, Difference

SCHEMA_VERSION = 1
MACHINE_FACTS = ("machine", "kernel", "glibc", "cpu", "cpus", "memory_kib")


@dataclass(frozen=True)
class Report:
    """The results of a deploy or a benchmark."""

    board: str
    host: str
    model: str
    bundle_digest: str  # digest of the release
    emulated: bool  # whether the times are an emulator's
    facts: DeviceFacts
    stages: Mapping[str, float]  # seconds by stage
    measurement: Measurement
    transfer: Transfer
    reference: str = ""  # what the outputs were compared with; empty if they were not
    difference: Difference | None = None
    # Doubts about the result besides the measurement's own warnings
    warnings: tuple[str, ...] = field(default=())
    top: tuple[Guess, ...] = ()  # top-5 classes, if labels were given
    modelled: Modelled | None = None  # times of an accelerator by a model of it
    application: Started | None = None  # how the device's application started on the release
    fidelity: Fidelity | None = None  # the comparison of many inputs; None if one was compared
    unchecked: bool = False  # whether the release was deployed without a reference, so that its outputs may be wrong
    verified: Verified | None = None  # the signatures that the device verified; None if it requires none
    energy: Energy | None = None  # joules of an inference, or why there are none; None if not requested
    waited: tuple[Waited, ...] = ()  # who was at work on the device meanwhile, and how long they were waited for
    # Difference of half precision from the reference, computed by the machine that built the bundle
    half: InHalf | None = None
    int8: InInt8 | None = None  # difference of a quantized network from the user's own, computed by that machine
    board_reason: str = ""  # why a probe of the device chose this board type; empty if the user named it
    can_roll_back: bool = False  # whether the device keeps an earlier release

    def document(self) -> dict[str, Any]:
        """Return the report as JSON's types; docs/report.md describes every field."""
        measured, fidelity, modelled = self.measurement, None, None
        if self.fidelity:
            fields = ("samples", "seed", "worst", "beyond", "flips", "rows")
            fidelity = {name: getattr(self.fidelity, name) for name in fields} | _difference(self.fidelity.difference)
        if accelerator := self.modelled:
            derived = {"ms": accelerator.milliseconds, "gops": accelerator.gops, "utilisation": accelerator.utilisation}
            modelled = asdict(accelerator) | {name: round(value, 4) for name, value in derived.items()}
        return {
            "schema_version": SCHEMA_VERSION,
            "board": self.board,
            "board_reason": self.board_reason or None,
            "host": {"name": self.host, **{name: getattr(self.facts, name) for name in MACHINE_FACTS}},
            "model": self.model,
            "bundle_digest": f"sha256:{self.bundle_digest}",
            "emulated": self.emulated,
            "outputs": self._outputs(),
            "unchecked": self.unchecked,
            "fidelity": fidelity,
            "latency_ms": asdict(measured.latency),
            "warmup_ms": [value / 1e6 for value in measured.run.warmup_ns],
            "modelled": modelled,
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
            "waited": [asdict(wait) for wait in self.waited],
            "stages_s": {name: round(value, 4) for name, value in self.stages.items()},
            "top": [{**asdict(guess), "score": _finite(guess.score)} for guess in self.top],
        }

    def _outputs(self) -> dict[str, Any]:
        if self.difference is None:
            return {"reference": None, "max_abs_diff": None, "max_rel_diff": None, "tolerance": None, "ok": None}
        outputs = [
            {
                "name": output.name,
                "max_abs_diff": _finite(output.max_abs),
                "max_rel_diff": _finite(output.max_rel),
                "tolerance": _finite(output.limit.value),
                "reason": output.limit.reason,
                "ok": output.ok,
            }
            for output in self.difference.outputs
        ]
        return {"reference": self.reference, **_difference(self.difference), "each": outputs}


_MAX_LIMITS = 3  # of outputs that a line names


def _difference(difference: Difference) -> dict[str, Any]:
    # JSON has no infinity: the difference of an output that is not finite is null.
    return {
        "max_abs_diff": _finite(difference.max_abs),
        "max_rel_diff": _finite(difference.max_rel),
        "tolerance": _finite(difference.tolerance),
        "ok": difference.ok,
        "reordered": list(difference.reordered),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def render_text(report: Report) -> list[str | Table]:
    measurement, facts, transfer = report.measurement, report.facts, report.transfer
    latency, run = measurement.latency, measurement.run
    low, high = latency.median_ci95
    sent = f"{size_text(transfer.bytes_sent)} sent in {transfer.seconds:.1f} s"
    spread = f"{_ms(latency.mean)} mean, {_ms(latency.min)} min, {_ms(latency.max)} max, {_ms(latency.std)} std"
    tails = [("p90", latency.p90), ("p99", latency.p99)]
    percentiles = "".join(f", {name} {_ms(value)}" for name, value in tails if value is not None)
    mark = " (emulated)" if report.emulated else ""
    rows = [
        ("model", report.model),
        ("release", report.bundle_digest[:16]),
        ("board", f"{report.board} at {report.host}{mark}"),
        ("device", f"{facts.cpu or facts.machine}, {facts.cpus} CPUs, {facts.kernel}"),
        ("computed on", run.processor.text if run.processor else ""),
        ("outputs", outputs_text(report)),
        ("samples", fidelity_text(report.fidelity)),
        ("latency", f"{_ms(latency.median)} median{mark}, 95 % within {_ms(low)} to {_ms(high)}"),
        ("", f"{spread}{mark}"),
        ("runs", f"{len(latency.samples)} timed on {run.threads} thread(s){percentiles}{mark}"),
        ("modelled", modelled_text(report.modelled)),
        ("copied", run.copies.text if run.copies else ""),
        *(("when built", line) for change in (report.half, report.int8) if change for line in change.lines()),
        ("transfer", f"{sent}, {transfer.blobs_sent} blob(s) new, {transfer.blobs_skipped} already there"),
        ("signed", signed_text(report.verified)),
        ("application", application_text(report.application)),
        ("stages", ", ".join(f"{name} {seconds:.1f} s" for name, seconds in report.stages.items())),
        *waited_rows(report.waited),
        *(("warning", text) for text in (*report.warnings, *measurement.warnings)),
    ]
    classes = [(f"{guess.score:.4g}", guess.label) for guess in report.top]
    top: list[str | Table] = ["", Table(classes, ("score", "class"))] if classes else []
    return [Table([row for row in rows if row[1]]), *top]


def table(report: Report) -> str:
    return plain(render_text(report))


def _ms(value: float) -> str:
    return f"{value:.3g} ms" if value < 1 else f"{value:.2f} ms"


def outputs_text(report: Report) -> str:
    """Describe how the outputs compare with their reference."""
    if report.unchecked:
        return "UNCHECKED: the release was deployed without its reference"
    if report.difference is None:
        return "not compared: no reference for these inputs"
    verdict = "match" if report.difference.ok else "DIFFER FROM"
    names = ", ".join(report.difference.reordered)
    order = f"; rows of {names} with nearly equal scores are in another order" if names else ""
    wider = [output for output in report.difference.outputs if output.limit.reason == ROUNDING]
    limits = "".join(
        f"; limit of {output.name} {output.limit.value:.0e}: these inputs amplify rounding"
        for output in wider[:_MAX_LIMITS]
    )
    return (
        f"{verdict} {report.reference}, largest relative difference {report.difference.max_rel:.1e}"
        f" (limit {report.difference.tolerance:.0e}){order}{limits}"
    )


def fidelity_text(fidelity: Fidelity | None) -> str:
    """Describe the comparison of many inputs; empty without one."""
    if fidelity is None:
        return ""
    flips = "" if fidelity.flips is None else f", a different class in {fidelity.flips} of {fidelity.rows}"
    return (
        f"{fidelity.samples} random inputs match, largest relative difference {fidelity.difference.max_rel:.1e}"
        f" (sample {fidelity.worst}, limit {fidelity.difference.tolerance:.0e}){flips}"
    )


def modelled_text(modelled: Modelled | None) -> str:
    """Describe the times of an accelerator by a model of it; empty without one."""
    if modelled is None:
        return ""
    basis = modelled.calibration or "not measured"
    return (
        f"{_ms(modelled.milliseconds)} at {modelled.clock_mhz:g} MHz in {modelled.kernels} kernels of the accelerator,"
        f" {modelled.gops:.1f} GOPS, {modelled.utilisation:.0%} of its peak (model {modelled.model}, {basis})"
    )


def energy_text(energy: Energy | None) -> str:
    """Describe the energy of an inference, or why it is unknown; empty if not requested."""
    if energy is None:
        return ""
    if energy.joules is None:
        return f"no figure: {energy.reason}"
    joules = energy.joules
    gross, low, high, net = map(_joules_text, (joules.gross_j, *joules.gross_ci95, joules.net_j))
    beyond = " to ".join(map(_joules_text, joules.net_ci95))
    return (
        f"{gross} an inference, 95 % within {low} to {high}; beyond idleness {net}, within {beyond};"
        f" {joules.run_w:.2f} W, idle {joules.idle_w:.2f} W ({joules.method})"
        + "".join(f"; not counted: {text}" for text in joules.warnings)
    )


def _joules_text(value: float) -> str:
    return f"{value * 1e3:.3g} mJ" if abs(value) < 1 else f"{value:.3g} J"


def signed_text(verified: Verified | None) -> str:
    """Name the signers of the release; empty if the device requires none."""
    return f"by {', '.join(verified.signers)}, sequence {verified.sequence}" if verified else ""


def application_text(started: Started | None) -> str:
    """Describe how the device's application started; empty without one."""
    if started is None:
        return ""
    how = f"running {started.seconds:.1f} s after the switch" if started.restarted else "already running this release"
    return f"{started.name}, {how}"


def waited_rows(waited: Sequence[Waited]) -> list[tuple[str, str]]:
    """Return rows of a table: who used the device before, and how long that was waited for."""
    return [("waited", f"{wait.seconds:.1f} s: {wait.owner}") for wait in waited]


def suite_properties(report: Report) -> dict[str, str]:
    """Return the properties that CI records for all tests of a report."""
    return {
        "board": report.board,
        "device": report.host,
        "release": f"sha256:{report.bundle_digest}",
        "emulated": str(report.emulated).lower(),
        "median_ms": f"{report.measurement.latency.median:.6g}",
        "waited": waited_text(report.waited),
    }


def waited_text(waited: Sequence[Waited]) -> str:
    """Describe the waits in one line; `0` without any."""
    return "; ".join(f"{wait.seconds:.1f} s: {wait.owner}" for wait in waited) or "0"


def junit(report: Report) -> bytes:
    """Render a report as JUnit XML with a case for the outputs and one for the latency."""
    checked = sum(report.stages.get(stage, 0.0) for stage in ("smoke", "samples"))
    outputs = Case("outputs", seconds=checked)
    if report.difference is None:
        outputs = replace(outputs, outcome="skipped", message="no reference for these inputs")
    latency = Case("latency", output=table(report), seconds=report.stages.get("bench", 0.0))
    name = f"{report.board}.{report.model}"
    return Suite("toolchain deploy", name, [outputs, latency], suite_properties(report)).xml()
