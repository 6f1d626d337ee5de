"""The page of a deploy or a benchmark."""

from __future__ import annotations

from toolchain import page
from toolchain.device.energy import Energy, Rail
from toolchain.device.shipment import Transfer
from toolchain.models.inputs import Guess
from toolchain.page import number
from toolchain.pipeline import report as reports
from toolchain.pipeline.built import half_section
from toolchain.pipeline.pages import common
from toolchain.pipeline.report import Report
from toolchain.tensors import ROUNDING, Difference

_FIRST_RUNS = 10
_RAILS_HEAD = ("Rail", "Idle (W)", "Running (W)", "Counted")


def html(report: Report, command: str = "deploy") -> str:
    """Render a report.

    Args:
        report: The report.
        command: The command that made it.
    """
    named = [("", report.measurement.latency)]
    sections = [
        page.Section("Latency (ms)", [common.latencies([("this release", report.measurement.latency)])]),
        page.Section("Outputs", [page.Facts(_outputs(report)), *_top(report)]),
        page.Section("Runs", [*common.runs(named), page.Facts(_runs(report))]),
        page.Section("Energy", _energy(report.energy)),
        page.Section("Half precision when it was built, emulated", _half(report)),
        page.Section("Modelled, not measured", [page.Facts(_modelled(report))]),
        page.Section("Warnings", [page.Notes(_warnings(report))]),
        page.Section("Conditions", [common.conditions(report.measurement.before, report.measurement.after)]),
        page.Section("Seconds by stage", [_stages(report)]),
        page.Section("Transfer", [page.Facts(_transfer(report.transfer)), common.waiting(report.waited)]),
        page.Section("Device", [page.Facts(_device(report))]),
        common.provenance([("release", f"sha256:{report.bundle_digest}"), ("reference", report.reference)]),
    ]
    title = f"{report.model} on {report.board} at {report.host}"
    marks = [*common.marks(emulated=report.emulated), *([page.MODELLED] if report.modelled else [])]
    return page.Page(title, command, _verdict(report), sections, marks).html()


def _verdict(report: Report) -> page.Verdict:
    latency = report.measurement.latency
    mark = " (emulated)" if report.emulated else ""
    low, high = latency.median_ci95
    told = f"{number(latency.median)} ms median{mark}, 95 % within {number(low)} to {number(high)} ms"
    doubts = f"\n{len(_warnings(report))} warning(s), listed below" if _warnings(report) else ""
    return page.Verdict(f"{told}\nOutputs {reports.outputs_text(report)}{doubts}", _tone(report))


def _tone(report: Report) -> page.Tone:
    if report.difference and not report.difference.ok:
        return "bad"
    sure = report.difference and not report.unchecked and not report.emulated
    return "good" if sure else "doubt"


def _warnings(report: Report) -> list[str]:
    return [*report.warnings, *report.measurement.warnings]


def _outputs(report: Report) -> list[tuple[str, str]]:
    rows = [("outputs", reports.outputs_text(report)), *_difference(report.difference)]
    found = report.fidelity
    if found is None:
        return rows
    beyond = f"{found.beyond} of {found.samples} beyond their limits; the first has seed {found.seed}"
    return [
        *rows,
        ("samples", reports.fidelity_text(found)),
        ("of them", beyond),
        *((f"worst sample's {name}", text) for name, text in _difference(found.difference)),
    ]


def _difference(found: Difference | None) -> list[tuple[str, str]]:
    if found is None:
        return []
    values = (
        ("largest absolute difference", found.max_abs),
        ("largest relative difference", found.max_rel),
        ("limit of the relative difference", found.tolerance),
    )
    wider = [one for one in found.outputs if one.limit.reason == ROUNDING]
    return [
        *((name, f"{value:.4g}") for name, value in values),
        *((f"limit of {one.name}", f"{one.limit.value:.4g}: these inputs amplify rounding") for one in wider),
    ]


def _top(report: Report) -> list[page.Part]:
    if not report.top:
        return []
    rows = [_guess(guess) for guess in report.top]
    return [page.Table(("Class", "Index", "Score"), rows, (1, 2), "largest outputs")]


def _guess(guess: Guess) -> tuple[str, ...]:
    return guess.label, str(guess.index), f"{guess.score:.4g}"


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


def _half(report: Report) -> list[page.Part]:
    return [half_section(report.half)] if report.half else []


def _modelled(report: Report) -> list[tuple[str, str]]:
    found = report.modelled
    if found is None:
        return []
    return [
        ("accelerator", reports.modelled_text(found)),
        ("time", f"{number(found.milliseconds)} ms, {found.cycles} cycles"),
        ("speed", f"{number(found.gops)} GOPS, {found.utilisation:.2%} of the peak"),
        ("work", f"{found.macs} multiply-adds, at most {found.macs_per_cycle} in a cycle"),
    ]


def _energy(found: Energy | None) -> list[page.Part]:
    if found is None or found.joules is None:
        return [page.Text(reports.energy_text(found))]
    joules = found.joules
    rows = [
        ("an inference", reports.energy_text(found)),
        ("power", f"{number(joules.run_w)} W, idle {number(joules.idle_w)} W"),
        ("all that flowed", _interval(joules.gross_j, joules.gross_ci95)),
        ("beyond idleness", _interval(joules.net_j, joules.net_ci95)),
        ("readings", f"{joules.samples} at {number(joules.hz)} Hz, {joules.idle_samples} while it was idle"),
        ("inferences", str(joules.inferences)),
    ]
    return [page.Facts(rows), page.Table(_RAILS_HEAD, [_rail(one) for one in joules.rails], (1, 2), "rails")]


def _rail(one: Rail) -> tuple[str, ...]:
    return one.name, number(one.idle_w), number(one.run_w), "yes" if one.counted else "no, a part of another"


def _interval(value: float, ends: tuple[float, float]) -> str:
    return f"{value:.4g} J, 95 % within {ends[0]:.4g} to {ends[1]:.4g}"


def _stages(report: Report) -> page.Part:
    bars = [page.Bar(name, seconds, f"{number(float(seconds))} s") for name, seconds in report.stages.items()]
    return page.Bars("What took the time", "seconds", bars)


def _transfer(transfer: Transfer) -> list[tuple[str, str]]:
    return [
        ("sent", f"{transfer.bytes_sent} bytes in {number(transfer.seconds)} s"),
        ("received", f"{transfer.bytes_received} bytes"),
        ("files", f"{transfer.blobs_sent} new, {transfer.blobs_skipped} already there"),
    ]


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
