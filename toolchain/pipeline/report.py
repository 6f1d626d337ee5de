"""The report of a deploy or a benchmark, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from toolchain.bundle.manifest import InHalf, InInt8, Modelled, Sparse
from toolchain.device.application import Started
from toolchain.device.bench import Measurement
from toolchain.device.energy import Energy
from toolchain.device.pictures import PicturesChecked
from toolchain.device.probe.facts import DeviceFacts
from toolchain.device.shipment import Transfer
from toolchain.device.sounds import SoundsChecked
from toolchain.device.trust import Verified
from toolchain.device.verification import Fidelity
from toolchain.device.waiting import Waited
from toolchain.models.inputs import Guess
from toolchain.pipeline import periodic
from toolchain.pipeline.variants import VariantResult
from toolchain.states import StatePair
from toolchain.tensors import Difference

if TYPE_CHECKING:
    from toolchain.pipeline.evaluate.result import Evaluation

SCHEMA_VERSION = 1
MACHINE_FACTS = ("machine", "kernel", "glibc", "musl_version", "cpu", "cpus", "memory_kib")


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
    evaluation: Evaluation | None = None  # of the user's samples, which the release had to pass; None without them
    quantized: Mapping[str, Any] | None = None  # the int8 file that --int8 wrote, as `quantize --json` has it
    fidelity: Fidelity | None = None  # the comparison of many inputs; None if one was compared
    unchecked: bool = False  # whether the release was deployed without a reference, so that its outputs may be wrong
    verified: Verified | None = None  # the signatures that the device verified; None if it requires none
    energy: Energy | None = None  # joules of an inference, or why there are none; None if not requested
    waited: tuple[Waited, ...] = ()  # who was at work on the device meanwhile, and how long they were waited for
    # Difference of half precision from the reference, computed by the machine that built the bundle
    half: InHalf | None = None
    int8: InInt8 | None = None  # difference of a quantized network from the user's own, computed by that machine
    sparse: Sparse | None = None  # the zeros in the weights, where kernels leave them out
    states: tuple[StatePair, ...] = ()  # outputs that stayed on the device as inputs of the next step
    board_reason: str = ""  # why a probe of the device chose this board type; empty if the user named it
    slot: str = ""  # the slot of the device's store; empty for the store's own releases
    raw: PicturesChecked | SoundsChecked | None = None  # the check of the release's steps; None if it has none
    variants: tuple[VariantResult, ...] = ()  # of a release with several sets of shapes, each that was measured
    can_roll_back: bool = False  # whether the device keeps an earlier release

    @property
    def steps(self) -> int:
        """Steps of the sequence that was measured again and again; 0 for a model without a state."""
        return len(self.measurement.run.each_ns) if self.states else 0

    @property
    def all_warnings(self) -> list[str]:
        """Every doubt about the result."""
        measured = self.measurement
        of_variants = [
            f"variant {result.name}: {warning}" for result in self.variants for warning in result.measurement.warnings
        ]
        own = of_variants if len(self.variants) > 1 else measured.warnings
        return [*self.warnings, *periodic.warnings(measured.run.periodic), *own]

    def document(self) -> dict[str, Any]:
        """Return the report as JSON's types; docs/report.md describes every field."""
        measured, fidelity, modelled = self.measurement, _fidelity(self.fidelity), None
        if accelerator := self.modelled:
            derived = {"ms": accelerator.milliseconds, "gops": accelerator.gops, "utilisation": accelerator.utilisation}
            modelled = asdict(accelerator) | {name: round(value, 4) for name, value in derived.items()}
        return {
            "schema_version": SCHEMA_VERSION,
            "board": self.board,
            "board_reason": self.board_reason or None,
            "host": {"name": self.host, **{name: getattr(self.facts, name) for name in MACHINE_FACTS}},
            "model": self.model,
            "slot": self.slot,
            "bundle_digest": f"sha256:{self.bundle_digest}",
            "emulated": self.emulated,
            "state": {"pairs": [asdict(pair) for pair in self.states], "steps": self.steps} if self.states else None,
            "outputs": _outputs(self.difference, self.reference),
            "unchecked": self.unchecked,
            "fidelity": fidelity,
            "variants": [self._variant(result) for result in self.variants],
            "pictures": asdict(self.raw) if isinstance(self.raw, PicturesChecked) else None,
            "sounds": asdict(self.raw) if isinstance(self.raw, SoundsChecked) else None,
            "evaluation": self.evaluation.summary() if self.evaluation else None,
            "quantized": self.quantized,
            "latency_ms": asdict(measured.latency),
            "periodic": periodic.document(measured.run.periodic, measured.latency.median)
            if measured.run.periodic
            else None,
            "warmup_ms": [value / 1e6 for value in measured.run.warmup_ns],
            "modelled": modelled,
            "half_precision": asdict(self.half) if self.half else None,
            "int8": asdict(self.int8) if self.int8 else None,
            "sparse": asdict(self.sparse) if self.sparse else None,
            "threads": measured.run.threads,
            "load_ms": measured.run.load_ms,
            "peak_rss_kib": measured.run.peak_rss_kib,
            "weights": measured.run.weights,
            "processor": asdict(measured.run.processor) if measured.run.processor else None,
            "copies": asdict(measured.run.copies) if measured.run.copies else None,
            "conditions": {"before": asdict(measured.before), "after": asdict(measured.after)},
            "warnings": self.all_warnings,
            "transfer": asdict(self.transfer),
            "application": asdict(self.application) if self.application else None,
            "verified": asdict(self.verified) if self.verified else None,
            "energy": asdict(self.energy) if self.energy else None,
            "waited": [asdict(wait) for wait in self.waited],
            "stages_s": {name: round(value, 4) for name, value in self.stages.items()},
            "top": [{**asdict(guess), "score": _finite(guess.score)} for guess in self.top],
        }

    def _variant(self, result: VariantResult) -> dict[str, Any]:
        measured = result.measurement
        return {
            "name": result.name,
            "inputs": [{"name": spec.name, "shape": spec.shape, "dtype": spec.dtype} for spec in result.inputs],
            "outputs": _outputs(result.difference, self.reference),
            "fidelity": _fidelity(result.fidelity),
            "latency_ms": asdict(measured.latency),
            "peak_rss_kib": measured.run.peak_rss_kib,
            "warnings": measured.warnings,
        }


def _fidelity(fidelity: Fidelity | None) -> dict[str, Any] | None:
    if fidelity is None:
        return None
    fields = ("samples", "seed", "worst", "beyond", "flips", "rows")
    return {name: getattr(fidelity, name) for name in fields} | _difference(fidelity.difference)


def _outputs(difference: Difference | None, reference: str) -> dict[str, Any]:
    if difference is None:
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
        for output in difference.outputs
    ]
    return {"reference": reference, **_difference(difference), "each": outputs}


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
