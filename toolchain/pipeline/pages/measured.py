"""The result of a deploy or a benchmark: a page, and JUnit XML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from toolchain import states
from toolchain.bundle.manifest import Modelled
from toolchain.device.application import Started
from toolchain.device.energy import Energy
from toolchain.device.trust import Verified
from toolchain.device.verification import Fidelity
from toolchain.pipeline.built import half_section
from toolchain.pipeline.pages import common, periodic
from toolchain.pipeline.report import Report, suite_properties, waited_rows
from toolchain.progress import size_text
from toolchain.report import (
    MODELLED,
    Bar,
    Bars,
    Facts,
    Headline,
    Notes,
    Page,
    Part,
    Section,
    Table,
    Tone,
    number,
    plain,
)
from toolchain.report.junit import Case, Suite
from toolchain.tensors import ROUNDING, Difference

_FIRST_RUNS = 10
_RAILS_HEAD = ("Rail", "Idle (W)", "Running (W)", "Counted")
_MAX_LIMITS = 3  # of outputs that a line names


def page(report: Report, command: str = "deploy") -> Page:
    measurement = report.measurement
    warnings = report.all_warnings
    stages = [Bar(name, seconds, f"{number(float(seconds))} s") for name, seconds in report.stages.items()]
    classes = [(guess.label, str(guess.index), f"{guess.score:.4g}") for guess in report.top]
    top = [Table(classes, ("Class", "Index", "Score"), (1, 2), name="largest outputs")] if classes else []
    half = [half_section(report.half)] if report.half else []
    latencies = [(result.name, result.measurement.latency) for result in report.variants]
    latencies = latencies or [("this release", measurement.latency)]
    sections = [
        Section("Result", [Facts(_result(report))], on_terminal=True),
        Section("Warnings", [Notes(warnings)], on_terminal=True),
        Section("Largest outputs", top, on_terminal=True),
        Section("Variants", _variants(report), on_terminal=True),
        Section("Latency (ms)", [common.latencies(latencies)]),
        Section("Runs", common.runs([("" if len(latencies) == 1 else name, value) for name, value in latencies])),
        Section("At the rate of the application", periodic.parts(measurement.run.periodic)),
        Section("Energy", _energy(report.energy)),
        Section(f"{report.half.title if report.half else 'Precision'} when it was built, emulated", half),
        Section("Details", [Facts(_details(report))]),
        Section("Conditions", [common.conditions(measurement.before, measurement.after)]),
        Section("Seconds by stage", [Bars("What took the time", "seconds", stages)]),
        common.provenance([("release", f"sha256:{report.bundle_digest}"), ("reference", report.reference)]),
    ]
    title = f"{report.model} on {report.board} at {report.host}"
    marks = [*common.marks(emulated=report.emulated), *([MODELLED] if report.modelled else [])]
    return Page(title, command, _headline(report, warnings), sections, marks)


def _variants(report: Report) -> list[Part]:
    """Return the table of a release with several sets of shapes."""
    rows = [
        (
            result.name,
            ", ".join(f"{spec.name} {'x'.join(map(str, spec.shape)) or 'scalar'}" for spec in result.inputs),
            number(result.measurement.latency.median),
            " to ".join(map(number, result.measurement.latency.median_ci95)),
            "not compared" if result.difference is None else f"{result.difference.max_rel:.1e}",
            "" if result.difference is None else f"{result.difference.tolerance:.0e}",
        )
        for result in report.variants
    ]
    head = ("Variant", "Inputs", "Median (ms)", "95 % within (ms)", "Largest relative difference", "Limit")
    return [Table(rows, head, (2, 3, 4, 5), name="sets of shapes, each with inputs of its own")] if rows else []


def _headline(report: Report, warnings: list[str]) -> Headline:
    latency, difference = report.measurement.latency, report.difference
    mark = " (emulated)" if report.emulated else ""
    low, high = latency.median_ci95
    times = f"{number(latency.median)} ms median{mark}, 95 % within {number(low)} to {number(high)} ms"
    doubts = f"\n{len(warnings)} warning(s), listed below" if warnings else ""
    tone: Tone = "good" if difference and not report.unchecked and not report.emulated else "doubt"
    if difference and not difference.ok:
        tone = "bad"
    of_first = f"Variant {report.variants[0].name}: " if report.variants else ""
    return Headline(f"{of_first}{times}\nOutputs {_outputs_text(report)}{doubts}", tone)


def _result(report: Report) -> list[tuple[str, str]]:
    measurement, facts, transfer = report.measurement, report.facts, report.transfer
    latency, run = measurement.latency, measurement.run
    low, high = latency.median_ci95
    sent = f"{size_text(transfer.bytes_sent)} sent in {number(transfer.seconds)} s"
    spread = f"{_ms(latency.mean)} mean, {_ms(latency.min)} min, {_ms(latency.max)} max, {_ms(latency.std)} std"
    tails = [("p90", latency.p90), ("p99", latency.p99)]
    percentiles = "".join(f", {name} {_ms(value)}" for name, value in tails if value is not None)
    mark = " (emulated)" if report.emulated else ""
    return [
        ("model", report.model),
        ("release", report.bundle_digest[:16]),
        ("variant", _first_variant(report)),
        *([("slot", report.slot)] if report.slot else []),
        ("board", f"{report.board} at {report.host}{mark}"),
        ("device", f"{facts.cpu or facts.machine}, {facts.cpus} CPUs, {facts.kernel}"),
        ("computed on", run.processor.text if run.processor else ""),
        ("state", f"{states.describe(report.states)}, in {report.steps} steps" if report.states else ""),
        ("outputs", _outputs_text(report)),
        ("steps", str(report.raw or "")),
        ("samples", _fidelity_text(report.fidelity)),
        ("int8 file", _quantized_text(report.quantized)),
        ("evaluation", report.evaluation.sentence if report.evaluation else ""),
        ("latency", f"{_ms(latency.median)} median{mark}, 95 % within {_ms(low)} to {_ms(high)}"),
        ("", f"{spread}{mark}"),
        ("runs", f"{len(latency.samples)} timed on {run.threads} thread(s){percentiles}{mark}"),
        *periodic.rows(run.periodic, latency.median),
        ("modelled", _modelled_text(report.modelled)),
        ("energy", _energy_text(report.energy)),
        ("copied", run.copies.text if run.copies else ""),
        *(("when built", line) for change in (report.half, report.int8) if change for line in change.lines()),
        ("sparse", str(report.sparse or "")),
        ("transfer", f"{sent}, {transfer.blobs_sent} blob(s) new, {transfer.blobs_skipped} already there"),
        ("signed", _signed_text(report.verified)),
        ("application", _application_text(report.application)),
        ("stages", ", ".join(f"{name} {seconds:.1f} s" for name, seconds in report.stages.items())),
        *waited_rows(report.waited),
    ]


def _first_variant(report: Report) -> str:
    """Say which of several sets of shapes the lines below it are of; empty for a release with one."""
    if not report.variants:
        return ""
    first, *others = report.variants
    return f"{first.name}, as are the lines below; {len(others)} more in the table" if others else first.name


def _quantized_text(result: Mapping[str, Any] | None) -> str:
    if not result:
        return ""
    kept, ratio = len(result.get("kept", ())), result["output_snr_db"]
    floats = f", {kept} more in floats" if kept else ""
    near = "the same as floats" if ratio is None else f"{number(ratio)} dB signal over noise against floats"
    metric = result.get("metric")
    lost = f", {metric['loss']['value']:.3g} {metric['unit']} of {metric['metric']} lost" if metric else ""
    return f"{result['file']}: {len(result['layers'])} layers{floats}; {near}{lost}"


def _details(report: Report) -> list[tuple[str, str]]:
    """Return the facts that only a page has."""
    facts, verified, run, fidelity = report.facts, report.verified, report.measurement.run, report.fidelity
    first = [number(value / 1e6) for value in run.warmup_ns]
    more = f" and {len(first) - _FIRST_RUNS} more" if len(first) > _FIRST_RUNS else ""
    rows = _difference(report.difference)
    if fidelity:
        beyond = f"{fidelity.beyond} of {fidelity.samples} beyond their limits; the first has seed {fidelity.seed}"
        rows += [("samples", beyond)]
        rows += [(f"worst sample's {name}", text) for name, text in _difference(fidelity.difference)]
    if modelled := report.modelled:
        work = f"{modelled.cycles} cycles, {modelled.macs} multiply-adds, at most {modelled.macs_per_cycle} in a cycle"
        rows += [("modelled work", work)]
    return [
        *rows,
        ("warm-up runs, not counted", f"{', '.join(first[:_FIRST_RUNS])} ms{more}" if first else ""),
        ("loading", f"{number(run.load_ms)} ms"),
        ("peak memory", f"{number(run.peak_rss_kib / 1024)} MiB"),
        ("received", f"{report.transfer.bytes_received} bytes"),
        ("machine", facts.machine),
        ("memory", f"{number(facts.memory_kib / 1024)} MiB"),
        *([("musl", facts.musl_version)] if facts.musl else [("glibc", facts.glibc)]),
        ("sequences", f"none below {verified.floor} is taken, {verified.minimum} from now on" if verified else ""),
    ]


def _difference(difference: Difference | None) -> list[tuple[str, str]]:
    if difference is None:
        return []
    values = (
        ("largest absolute difference", difference.max_abs),
        ("largest relative difference", difference.max_rel),
        ("limit of the relative difference", difference.tolerance),
    )
    wider = [output for output in difference.outputs if output.limit.reason == ROUNDING]
    return [
        *((name, f"{value:.4g}") for name, value in values),
        *((f"limit of {output.name}", f"{output.limit.value:.4g}: these inputs amplify rounding") for output in wider),
    ]


def _energy(energy: Energy | None) -> list[Part]:
    if energy is None or energy.joules is None:
        return []
    joules = energy.joules
    rows = [
        ("power", f"{number(joules.run_w)} W, idle {number(joules.idle_w)} W"),
        ("all that flowed", _interval(joules.gross_j, joules.gross_ci95)),
        ("beyond idleness", _interval(joules.net_j, joules.net_ci95)),
        ("readings", f"{joules.samples} at {number(joules.hz)} Hz, {joules.idle_samples} while it was idle"),
        ("inferences", str(joules.inferences)),
    ]
    rails = [
        (rail.name, number(rail.idle_w), number(rail.run_w), "yes" if rail.counted else "no, a part of another")
        for rail in joules.rails
    ]
    return [Facts(rows), Table(rails, _RAILS_HEAD, (1, 2), name="rails")]


def _interval(value: float, ends: tuple[float, float]) -> str:
    return f"{value:.4g} J, 95 % within {ends[0]:.4g} to {ends[1]:.4g}"


def _ms(value: float) -> str:
    return f"{value:.3g} ms" if value < 1 else f"{value:.2f} ms"


def _outputs_text(report: Report) -> str:
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


def _fidelity_text(fidelity: Fidelity | None) -> str:
    """Describe the comparison of many inputs; empty without one."""
    if fidelity is None:
        return ""
    flips = "" if fidelity.flips is None else f", a different class in {fidelity.flips} of {fidelity.rows}"
    return (
        f"{fidelity.samples} random inputs match, largest relative difference {fidelity.difference.max_rel:.1e}"
        f" (sample {fidelity.worst}, limit {fidelity.difference.tolerance:.0e}){flips}"
    )


def _modelled_text(modelled: Modelled | None) -> str:
    """Describe the times of an accelerator by a model of it; empty without one."""
    if modelled is None:
        return ""
    basis = modelled.calibration or "not measured"
    return (
        f"{_ms(modelled.milliseconds)} at {modelled.clock_mhz:g} MHz in {modelled.kernels} kernels of the accelerator,"
        f" {modelled.gops:.1f} GOPS, {modelled.utilisation:.0%} of its peak (model {modelled.model}, {basis})"
    )


def _energy_text(energy: Energy | None) -> str:
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


def _signed_text(verified: Verified | None) -> str:
    """Name the signers of the release; empty if the device requires none."""
    return f"by {', '.join(verified.signers)}, sequence {verified.sequence}" if verified else ""


def _application_text(started: Started | None) -> str:
    """Describe how the device's application started; empty without one."""
    if started is None:
        return ""
    how = f"running {started.seconds:.1f} s after the switch" if started.restarted else "already running this release"
    return f"{started.name}, {how}"


def junit(report: Report) -> bytes:
    """Render a report as JUnit XML with a case for the outputs and one for the latency."""
    checked = sum(report.stages.get(stage, 0.0) for stage in ("smoke", "samples"))
    outputs = Case("outputs", seconds=checked)
    if report.difference is None:
        outputs = replace(outputs, outcome="skipped", message="no reference for these inputs")
    latency = Case("latency", output=plain(page(report).printed()), seconds=report.stages.get("bench", 0.0))
    name = f"{report.board}.{report.model}"
    return Suite("toolchain deploy", name, [outputs, latency], suite_properties(report)).xml()
