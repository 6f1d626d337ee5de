"""The page of a deploy or a benchmark."""

from __future__ import annotations

from toolchain.device.energy import Energy
from toolchain.pipeline import report as reports
from toolchain.pipeline.built import half_section
from toolchain.pipeline.pages import common
from toolchain.pipeline.report import Report
from toolchain.report import MODELLED, Bar, Bars, Facts, Headline, Notes, Page, Part, Section, Table, Text, Tone, number
from toolchain.tensors import ROUNDING, Difference

_FIRST_RUNS = 10
_RAILS_HEAD = ("Rail", "Idle (W)", "Running (W)", "Counted")


def html(report: Report, command: str = "deploy") -> str:
    measurement = report.measurement
    warnings = [*report.warnings, *measurement.warnings]
    stages = [Bar(name, seconds, f"{number(float(seconds))} s") for name, seconds in report.stages.items()]
    transfer = report.transfer
    transferred = [
        ("sent", f"{transfer.bytes_sent} bytes in {number(transfer.seconds)} s"),
        ("received", f"{transfer.bytes_received} bytes"),
        ("files", f"{transfer.blobs_sent} new, {transfer.blobs_skipped} already there"),
    ]
    classes = [(guess.label, str(guess.index), f"{guess.score:.4g}") for guess in report.top]
    top = [Table(classes, ("Class", "Index", "Score"), (1, 2), name="largest outputs")] if classes else []
    sections = [
        Section("Latency (ms)", [common.latencies([("this release", measurement.latency)])]),
        Section("Outputs", [Facts(_outputs(report)), *top]),
        Section("Runs", [*common.runs([("", measurement.latency)]), Facts(_runs(report))]),
        Section("Energy", _energy(report.energy)),
        Section("Half precision when it was built, emulated", [half_section(report.half)] if report.half else []),
        Section("Modelled, not measured", [Facts(_modelled(report))]),
        Section("Warnings", [Notes(warnings)]),
        Section("Conditions", [common.conditions(measurement.before, measurement.after)]),
        Section("Seconds by stage", [Bars("What took the time", "seconds", stages)]),
        Section("Transfer", [Facts(transferred), common.waiting(report.waited)]),
        Section("Device", [Facts(_device(report))]),
        common.provenance([("release", f"sha256:{report.bundle_digest}"), ("reference", report.reference)]),
    ]
    title = f"{report.model} on {report.board} at {report.host}"
    marks = [*common.marks(emulated=report.emulated), *([MODELLED] if report.modelled else [])]
    return Page(title, command, _verdict(report, warnings), sections, marks).html()


def _verdict(report: Report, warnings: list[str]) -> Headline:
    latency, difference = report.measurement.latency, report.difference
    mark = " (emulated)" if report.emulated else ""
    low, high = latency.median_ci95
    times = f"{number(latency.median)} ms median{mark}, 95 % within {number(low)} to {number(high)} ms"
    doubts = f"\n{len(warnings)} warning(s), listed below" if warnings else ""
    tone: Tone = "good" if difference and not report.unchecked and not report.emulated else "doubt"
    if difference and not difference.ok:
        tone = "bad"
    return Headline(f"{times}\nOutputs {reports.outputs_text(report)}{doubts}", tone)


def _outputs(report: Report) -> list[tuple[str, str]]:
    rows = [("outputs", reports.outputs_text(report)), *_difference(report.difference)]
    fidelity = report.fidelity
    if fidelity is None:
        return rows
    beyond = f"{fidelity.beyond} of {fidelity.samples} beyond their limits; the first has seed {fidelity.seed}"
    return [
        *rows,
        ("samples", reports.fidelity_text(fidelity)),
        ("of them", beyond),
        *((f"worst sample's {name}", text) for name, text in _difference(fidelity.difference)),
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


def _runs(report: Report) -> list[tuple[str, str]]:
    run = report.measurement.run
    first = [number(value / 1e6) for value in run.warmup_ns]
    more = f" and {len(first) - _FIRST_RUNS} more" if len(first) > _FIRST_RUNS else ""
    return [
        ("warm-up runs, not counted", f"{', '.join(first[:_FIRST_RUNS])} ms{more}" if first else ""),
        ("threads", str(run.threads)),
        ("loading", f"{number(run.load_ms)} ms"),
        ("peak memory", f"{number(run.peak_rss_kib / 1024)} MiB"),
        *([("copied", run.copies.text)] if run.copies else []),
    ]


def _modelled(report: Report) -> list[tuple[str, str]]:
    modelled = report.modelled
    if modelled is None:
        return []
    return [
        ("accelerator", reports.modelled_text(modelled)),
        ("time", f"{number(modelled.milliseconds)} ms, {modelled.cycles} cycles"),
        ("speed", f"{number(modelled.gops)} GOPS, {modelled.utilisation:.2%} of the peak"),
        ("work", f"{modelled.macs} multiply-adds, at most {modelled.macs_per_cycle} in a cycle"),
    ]


def _energy(energy: Energy | None) -> list[Part]:
    if energy is None or energy.joules is None:
        return [Text(reports.energy_text(energy))]
    joules = energy.joules
    rows = [
        ("an inference", reports.energy_text(energy)),
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


def _device(report: Report) -> list[tuple[str, str]]:
    facts, verified, computed_on = report.facts, report.verified, report.measurement.run.processor
    floors = f"none below {verified.floor} is taken, {verified.minimum} from now on" if verified else ""
    return [
        ("host", report.host),
        ("processor", f"{facts.cpu or facts.machine}, {facts.cpus} CPUs"),
        ("computed on", computed_on.text if computed_on else ""),
        ("machine", facts.machine),
        ("memory", f"{number(facts.memory_kib / 1024)} MiB"),
        ("kernel", facts.kernel),
        ("glibc", facts.glibc),
        ("signed", reports.signed_text(verified)),
        ("sequences", floors),
        ("application", reports.application_text(report.application)),
    ]
