"""Pages as commands write them, of reports that are made up; tests/integration/test_pages.py looks at each.

A new kind of page is a line in `PAGES`.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.support import gates
from tests.support.rollouts import NEW, OLD, PLAN
from toolchain import stats
from toolchain.bundle.manifest import Modelled
from toolchain.cli import reports
from toolchain.device import bench
from toolchain.device.application import Started
from toolchain.device.bench import Conditions, Measurement
from toolchain.device.energy import Energy, Joules, Rail
from toolchain.device.probe.facts import DeviceFacts
from toolchain.device.roofline import Peak
from toolchain.device.runner import Processor, Run
from toolchain.device.shipment import Transfer
from toolchain.device.trust import Verified
from toolchain.device.verification import Fidelity
from toolchain.device.waiting import Waited
from toolchain.devices import Device
from toolchain.errors import DeviceError
from toolchain.failure import Failure
from toolchain.models.inputs import Guess
from toolchain.pipeline.beside import CoRun, Side
from toolchain.pipeline.compare import Comparison
from toolchain.pipeline.gate import page as gate
from toolchain.pipeline.gate.result import Quantity, Round
from toolchain.pipeline.pages import beside, compared, measured, surveyed
from toolchain.pipeline.profile import MACHINE, Profile, Row
from toolchain.pipeline.profile import pages as profiles
from toolchain.pipeline.profile.against import Against, Layer
from toolchain.pipeline.report import Report
from toolchain.pipeline.rollout import Rollout, Thresholds
from toolchain.pipeline.rollout import report as rollout
from toolchain.pipeline.rollout.state import Record
from toolchain.pipeline.survey import Outcome, Survey
from toolchain.report import (
    EMULATED,
    INCONCLUSIVE,
    MODELLED,
    Bar,
    Bars,
    Cell,
    Dots,
    Facts,
    Group,
    Headline,
    Histogram,
    Level,
    Mark,
    Notes,
    Page,
    Plot,
    Section,
    Steps,
    Strokes,
    Table,
    Text,
    Value,
    samples,
)
from toolchain.tensors import Difference
from toolchain.tuning import report as tuning
from toolchain.tuning.report import BoardRow, Point, TaskRow, TuneReport

LONG = "fused_conv2d_add_relu_" * 5
FOREIGN = "<script>alert(1)</script>\x1b[31m\u202e& \"so\" 'on' \u7db2\u8def"


@dataclass(frozen=True)
class Made:
    """A page, and what it is a page of.

    Attributes:
        html: The page.
        document: The report as JSON has it.
        unseen: Names of the numbers in it that are not shown, with wildcards; lists are named without brackets.
    """

    html: str
    document: Any = field(default_factory=dict)
    unseen: Sequence[str] = ()


# --- the kit -----------------------------------------------------------------------------------------------------


def _kit(values: Sequence[float]) -> Made:
    """Every kind of part, with the same values."""
    dots = [Value(number, value, FOREIGN, 0.9 * value, 1.2 * value) for number, value in enumerate(values[:300])]
    bars = [Bar(f"{LONG}{number}", value, f"{value:.3g} ms") for number, value in enumerate(values[:30])]
    levels = [Level("least, 1.01", 1.01), Level("worst, 1.05", 1.05), Level("", 1.0)]
    sides = values[: len(values) // 2], values[len(values) // 2 :]
    ends = {"low": -1.0, "high": 1.5}
    cells = [(f"{LONG}{number}", Cell(f"{value:.2%}", value), FOREIGN) for number, value in enumerate(values[:5])]
    strokes = [Strokes(samples(sides[0]), "base"), Strokes(samples(sides[1]), "new")]
    dotted = [Dots(dots[::2], "test"), Dots(dots[1::2], "confirmation")]
    plots = [
        Plot("Steps", "minutes", "ms", [Steps([Value(*pair) for pair in enumerate(values[:300])])], levels, 5.0),
        Plot("Dots", "round", "ratio", dotted, levels),
        Plot("Series", "run", "ms", strokes, levels[:1]),
        Histogram("Histogram", "ms", [Group("base", sides[0]), Group(LONG * 2, sides[1])]),
        Bars("Bars", "ms", bars),
        Bars("Differences", "ms", [dataclasses.replace(bar, value=1 - bar.value, **ends) for bar in bars]),
    ]  # fmt: skip
    sections = [
        Section("Texts", [Text(FOREIGN, "bad"), Notes([FOREIGN, LONG]), Facts([(LONG, FOREIGN)])]),
        Section("Nothing", [Notes([]), Facts([("none", "")])]),
        Section("Table", [Table(cells, ("Name", "Share", "Said"), [1])]),
        Section("Plots", plots),
    ]
    marks = [EMULATED, MODELLED, INCONCLUSIVE, Mark("passed", "good"), Mark(FOREIGN, "bad")]
    return Made(Page(f"{LONG} {FOREIGN}", "kit", Headline(f"{LONG}\n{FOREIGN}", "bad"), sections, marks).html())


def spread(number: int, seed: int = 1) -> list[float]:
    """Draw numbers around one, some far beyond the others."""
    stream = random.Random(seed)  # noqa: S311 - nothing secret
    return [math.exp(stream.gauss(0, 0.02)) * (8 if stream.random() < 0.01 else 1) for _ in range(number)]


# --- tuning ------------------------------------------------------------------------------------------------------

TASKS = (
    TaskRow(0, "fused_conv2d_add_relu", "conv2d_nchw", "1x3x8x8 -> 1x4x8x8", 1, 0.0426, 64, 3, 0.00123, done=False),
    TaskRow(1, "fused_" + "matmul_" * 6, "matmul", "8x8, 8x8 -> 8x8", 2, 0.0063, 32, 30, 0.00016, done=True),
    TaskRow(7, "softmax<&>", "softmax", "1x10 -> 1x10", 1, 4e-6, 4, 0, 0.0000021, done=False),
)
POINTS = (Point(30.0, 16, 0.0093), Point(90.0, 48, 0.0042), Point(240.0, 80, 0.0015521))


def tune_report(**values: Any) -> TuneReport:
    """Return a report of a tuning run."""
    defaults = {
        "model": "squeezenet", "board": "rpi4", "emulated": True,
        "target": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+fp16", "+aes"]},
        "tuner": "evolutionary-xgb", "seed": 3, "options": {"number": 3, "timeout_s": 10.0},
        "trials": 100, "resumed": 16, "causes": {"ok": 67, "timeout": 32, "build": 1, "crash": 0},
        "seconds": 600.0, "shares": {"search": 200.0, "build": 100.0, "run": 270.0}, "tasks": TASKS,
        "points": POINTS, "boards": (BoardRow("rpi4-1", 60, 20, 1), BoardRow("rpi4-2", 40, 13, 0)),
    }  # fmt: skip
    return TuneReport(**{**defaults, **values})


def _tune(**values: Any) -> Made:
    tuned = tune_report(**values)
    # Of the points, the plot shows where they are; a task's own work is in its GFLOPS.
    return Made(tuning.page(tuned).html(), tuned.document(), ("schema_version", "points.*", "tasks.gflop"))


def _many_tasks() -> Made:
    rows = [
        dataclasses.replace(TASKS[0], id=number, name=LONG, untuned_s=0.1234, best_s=0.001 * 1.05**-number)
        for number in range(40)
    ]
    return _tune(tasks=tuple(rows), emulated=False, model=FOREIGN)


# --- measurements ------------------------------------------------------------------------------------------------

FACTS = DeviceFacts(
    machine="aarch64", kernel="Linux 6.1.0", glibc="2.36", cpu="Cortex-A53", cpu_features=("fp",), cpus=4,
    memory_kib=948_304, free_kib=1 << 20, lacks=(),
)  # fmt: skip
BEFORE = Conditions(load=0.37, busy=0.041, governors=("ondemand", "performance"), mhz=1200.4, celsius=48.3)
AFTER = Conditions(load=1.42, busy=0.233, governors=(), mhz=1187.5, celsius=None)
WAITED = (Waited(12.75, "ann@build-7, pid 4711: tune, since 13:05"),)


def report(samples: Sequence[float], warnings: tuple[str, ...] = (), **values: Any) -> Report:
    """Return a report of a deploy with these samples."""
    run = Run(
        outputs={"y": np.zeros(1)}, samples_ns=tuple(round(value * 1e6) for value in samples),
        warmup_ns=(23_400_000, 11_300_000), load_ms=31.54, threads=3, peak_rss_kib=41_234,
        processor=Processor("Mali-T860", "1.2-r14p0", "OpenCL 1.2 v1.r14p0-01rel0", 4),
    )  # fmt: skip
    sent = Transfer(2_048_117, 10_367, 3, 4, 0.2514)
    defaults = {
        "board": "rpi3", "host": "pi@10.0.0.5:22", "model": "mobilenet", "bundle_digest": "ab12" * 16,
        "emulated": False, "facts": FACTS, "stages": {"import": 0.1235, "compile": 17.31, "deploy": 1.526},
        "measurement": Measurement(bench.statistics(samples), run, BEFORE, AFTER, warnings, sent),
        "reference": "onnxruntime 1.22", "difference": Difference(1.7e-6, 2.9e-6, 1e-4, ok=True),
        "transfer": sent, "waited": WAITED,
    }  # fmt: skip
    return Report(**{**defaults, **values})


JOULES = Joules(
    rails=(Rail("ina219 VDD_IN", 2.137, 6.213, counted=True), Rail(LONG, 0.513, 1.871, counted=False)),
    idle_w=2.137, run_w=6.213, gross_j=0.07641, gross_ci95=(0.07523, 0.07713), net_j=0.05013,
    net_ci95=(0.04987, 0.05117), hz=47.3, samples=513, idle_samples=471, inferences=817, method="a sensor of the board",
    warnings=("powercap package-0, energy_uj: it could not be read",),
)  # fmt: skip


def _full_report() -> Report:
    fidelity = Fidelity(256, 11, 17, Difference(0.51, 2.3e-3, 1.5e-2, ok=True), beyond=0, flips=13, rows=251)
    return report(
        [12.3 * value for value in spread(3400)],
        warnings=("emulated: these times say nothing about the real board", LONG, FOREIGN),
        emulated=True,
        host=f"{LONG}@{LONG}:22",
        model=LONG,
        fidelity=fidelity,
        modelled=Modelled("vta-tlpp", 142.8, 21, 18_123_456, 812_345_678, 256),
        application=Started("detector.service", restarted=True, seconds=2.253),
        verified=Verified("ab" * 32, "mobilenet", "rpi3", 48, 37, 29, ("ann", FOREIGN)),
        energy=Energy(JOULES),
        top=(Guess(281, "tabby, tabby cat", 0.7312), Guess(7, FOREIGN, 0.1293)),
    )


def _measured(found: Report, *unseen: str) -> Made:
    return Made(measured.page(found).html(), found.document(), ("schema_version", "latency_ms.samples", *unseen))


def comparison(first: Sequence[float], second: Sequence[float], rounds: int = 12, **values: Any) -> Comparison:
    """Return a comparison of these samples, in milliseconds."""
    sides = [[list(chunk) for chunk in np.array_split(np.array(samples), rounds)] for samples in (first, second)]
    defaults = {
        "model": "mobilenet", "board": "rpi3", "host": "pi@10.0.0.5:22", "emulated": False,
        "first": bench.statistics(first), "second": bench.statistics(second), "ratio": stats.ratio(*sides),
        "difference": Difference(1.7e-6, 2.9e-6, 1e-4, ok=True), "reference": Difference(1.3e-5, 3.1e-6, 2e-4, ok=True),
        "before": BEFORE, "after": AFTER, "threads": 3, "tasks": 27, "tuned": 19, "shipped": 14, "waited": WAITED,
        "digests": ("sha256:" + "ab12" * 16, "sha256:" + "cd34" * 16),
    }  # fmt: skip
    return Comparison(**{**defaults, **values})


def _compared(found: Comparison) -> Made:
    return Made(
        compared.html(found), found.document(), ("schema_version", "*.samples", "ratio.rounds", "ratio.ci95", "verdict")
    )


def co_run(rounds: int = 12, **values: Any) -> CoRun:
    """Return a measurement of two models beside each other."""
    sides = []
    for slot, factor in (("detector", 1.9), ("", 1.02)):
        separate, beside = (
            [list(chunk) for chunk in np.array_split(np.array(samples), rounds)]
            for samples in (spread(360, 3), [factor * value for value in spread(360, 4)])
        )
        latencies = [bench.statistics([value for chunk in chunks for value in chunk]) for chunks in (separate, beside)]
        sides.append(Side(slot, "mobilenet", "", "sha256:" + "ab12" * 16, *latencies, stats.ratio(beside, separate)))
    defaults = {
        "board": "rpi3", "host": "pi@10.0.0.5:22", "emulated": False, "threads": 3, "cpus": 4, "before": BEFORE,
        "after": AFTER, "waited": WAITED, "notes": (FOREIGN,),
    }  # fmt: skip
    return CoRun(**{**defaults, "sides": tuple(sides), **values})


def _beside(found: CoRun) -> Made:
    unseen = ("schema_version", "*.samples", "sides.slowdown.rounds", "sides.slowdown.ci95")
    return Made(beside.page(found).html(), found.document(), unseen)


def _survey(**values: Any) -> Survey:
    fault = DeviceError("the board went away\nin the middle of a run", details=f"{FOREIGN}\n{LONG}")
    deployed = {
        "median_ms": 12.345, "p90_ms": 13.37, "min_ms": 11.91, "runs": 814, "first_run_ms": 47.11, "load_ms": 31.54,
        "peak_rss_mib": 40.27, "max_rel_diff": 2.9e-6, "tolerance": 1e-4, "threads": 3, "build_s": 17.43,
        "warnings": f"busy: other work used 23%; {FOREIGN}",
    }  # fmt: skip
    outcomes = [
        Outcome("device", "", 1.37, {"machine": "aarch64", "cpus": 4, "cpu": None, "memory_kib": 948_304}),
        Outcome("hardware", "", 2.21, {"float16": True, "notes": None}),
        *(Outcome("deploy", name, 31.4, deployed) for name in ("mlp", "squeezenet_v1.1", "mobilenet", LONG)),
        Outcome("deploy", "resnet-18", 3.61, {}, fault),
        Outcome("tune", "mlp", 61.72, {"gain": 1.734, "trials": 32}),
    ]
    fields = {"board": "rk3399", "emulated": False, "versions": {"toolchain": "1.2.3", "tvm": "0.27.0"}}
    return Survey(**{**fields, "outcomes": tuple(outcomes), **values})


def _surveyed(found: Survey) -> Made:
    return Made(surveyed.html(found), found.document(), ("schema_version",))


# --- profiles ----------------------------------------------------------------------------------------------------

SHAPE = "1x512x14x14, 512x512x3x3, 512x1x1 -> 1x512x14x14"


def _rows(number: int) -> tuple[Row, ...]:
    rows = [
        Row(
            number, f"fused_conv2d_add_relu{number}", "conv2d", SHAPE, 2, 1.2345 / number, 0.187 / number, 1.2 / number,
            1.31 / number, 0.23117, 23.71 * number, 0.473, 0.00213, 1.731, "compute",
            nodes=(f"block{number}.conv", f"block{number}.relu")[: number % 3],
        )
        for number in range(1, number + 1)
    ]  # fmt: skip
    odd = Row(number + 1, LONG, FOREIGN, "", 1, 0.3127, 0.0471, 0.2913, 0.4711, nodes=(FOREIGN, LONG))
    return (*rows, odd, MACHINE_ROW)


MACHINE_ROW = Row(0, "", MACHINE, "", 91, 0.0531, 0.0083, 0.0417, 0.0611)


def profile(number: int = 27, **values: Any) -> Profile:
    """Return a profile of so many kernels, and one more."""
    defaults = {
        "model": "mobilenet", "board": "rpi3", "host": "pi@10.0.0.5:22", "bundle_digest": "ab12" * 16,
        "emulated": False, "threads": 3, "runs": 53, "other_runs": 0, "plain_ms": 6.6317, "watched_ms": 6.6713,
        "sum_ms": 6.5101, "waits": False, "rows": _rows(number), "peak": Peak("NEON", 3, 50.13, 5.37, 65536, 1_400_000),
        "no_peak": "", "before": BEFORE, "after": AFTER, "waited": WAITED, "warnings": (), "typical": (),
    }  # fmt: skip
    return Profile(**{**defaults, **values})


def _profiled(profiled: Profile) -> Made:
    unseen = ("schema_version", "other_runs", "peak.max_khz")
    return Made(profiles.profile_page(profiled).html(), profiled.document(), unseen)


def _doubtful_profile() -> Profile:
    rows = tuple(
        dataclasses.replace(row, modelled_ms=2.1253, of_peak=None, gflop=None, gflops=None, bound="")
        for row in _rows(2)
    )
    warnings = ("emulated: these times say nothing about the real board", FOREIGN)
    return profile(emulated=True, rows=rows, peak=None, no_peak="it is an emulator", warnings=warnings, model=LONG)


def against(number: int = 20, **values: Any) -> Against:
    """Return two profiles held against each other, of so many layers; the third is slower."""
    layers = [
        Layer(f"{number} conv2d {SHAPE}", f"new_{number}", f"base_{number}", 1.31 if number == 3 else 1.01, 1.02, SAME)
        for number in range(1, number + 1)
    ]
    layers[2] = dataclasses.replace(layers[2], change=SLOWER)
    separate = Layer(LONG, "", FOREIGN, 0.0, 0.2317, None)
    together = Layer(f"4 {LONG} + 5 relu {SHAPE} + 6 more", f"{LONG}, relu", ", ".join([LONG] * 8), 3.137, 3.119, SAME)
    defaults = {
        "model": "mobilenet", "board": "rpi3", "host": "pi@10.0.0.5:22", "emulated": False, "new_digest": "ab12" * 16,
        "base_digest": "cd34" * 16, "rounds": 16, "new_ms": 21.317, "base_ms": 20.911, "change": SLOWER,
        "layers": (*layers, together, separate),
    }  # fmt: skip
    return Against(**{**defaults, **values})


SAME = stats.Estimate(-0.0132, -0.0217, 0.0191, 0.99, 16)
SLOWER = stats.Estimate(0.2843, 0.2417, 0.3119, 0.99, 16)


def _held(comparison: Against) -> Made:
    return Made(
        profiles.comparison_page(comparison).decode(),
        comparison.document(),
        ("schema_version", "*confidence", "*rounds"),
    )


def _gated(rounds: Sequence[Round], *more: Quantity, **values: Any) -> Made:
    found = gates.gate(None, rounds, *more, **values)
    unseen = ("schema_version", "rounds.*.samples_ms", "rounds.*.before.*", "rounds.*.after.*")
    return Made(gate.page(found), found.document(), unseen)


def _slower() -> Made:
    """A gate that finds a regression, with a throttled round and one outlier."""
    changes = [math.log(value) + 0.083 for value in spread(16, 4)]
    rounds = gates.rounds_of(
        [*changes[:8], 6.5, *changes[8:15]], fresh=[0.07 + change / 10 for change in changes], base_ms=11.7
    )
    hot = gates.one_round(gates.turn(21.1, throttles=4, mhz=611.0), gates.turn(11.9, switches=432), number=33)
    return _gated(
        [*rounds, hot], gates.memory(rounds), gates.size(1_834_567, 1_790_001, 0.02), slower_layers=f"slower: {LONG}"
    )


def _rolled_out() -> Made:
    records = {
        "good": Record(1, "done", OLD, NEW, latency_ms=2.345678, seconds=3.25),
        "slow": Record(2, "failed", OLD, OLD, "slow", 6, f"too slow {FOREIGN}", FOREIGN, LONG, 99.0, emulated=True),
        LONG: Record(2, "returning", "", None, "unreachable", 4, FOREIGN),
        "left": Record(2),
    }
    hosts = {name: Device("x86_64", f"me@{name}") for name in records}
    plan = dataclasses.replace(PLAN, model=FOREIGN)
    found = Rollout(plan, records, hosts, Thresholds(), FOREIGN, Path(LONG), 12.5, 3)
    unseen = ("schema_version", "devices.exit_code", "success_threshold")
    return Made(rollout.page(found).html(), found.document(), unseen)


PAGES: dict[str, Callable[[], Made]] = {
    "kit": lambda: _kit(spread(300)),
    "kit-none": lambda: _kit([]),
    "kit-one": lambda: _kit([1.234]),
    "kit-same": lambda: _kit([1.0] * 20),
    "kit-many": lambda: _kit(spread(12_000)),
    "kit-wild": lambda: _kit([1e-9, 1e9, 0.0, 5.0, -3.0, math.inf, math.nan, 1e300] * 3),
    "deploy": lambda: _measured(report([12.3 * value for value in spread(814)])),
    "deploy-full": lambda: _measured(_full_report()),
    "deploy-one": lambda: _measured(report([0.00123], difference=None, unchecked=True, stages={}, waited=())),
    "compare": lambda: _compared(comparison([2.1 * value for value in spread(400, 2)], spread(800, 3))),
    "compare-few": lambda: _compared(comparison([1.0, 1.2], [1.1, 1.3], rounds=2, emulated=True, reference=None)),
    "beside": lambda: _beside(co_run()),
    "beside-few": lambda: _beside(co_run(rounds=2, emulated=True, threads=1, waited=())),
    "survey": lambda: _surveyed(_survey()),
    "survey-begun": lambda: _surveyed(_survey(outcomes=(), emulated=True)),
    "failed": lambda: Made(
        reports.PAGE.failed(Failure(FOREIGN, f"{LONG}\nmore", FOREIGN, 4), reports.Run("deploy", LONG)).decode()
    ),
    "profile": lambda: _profiled(profile()),
    "profile-many": lambda: _profiled(profile(140)),
    "profile-doubtful": lambda: _profiled(_doubtful_profile()),
    "profile-against": lambda: _held(against()),
    "gate": lambda: _gated(gates.rounds_of([math.log(value) for value in spread(8, 5)])),
    "gate-slower": _slower,
    "gate-open": lambda: _gated(gates.rounds_of([0.9, -0.4] * 32), emulated=True),
    "gate-nothing": lambda: _gated([], hot=f"the device throttled: {FOREIGN}"),
    "rollout": _rolled_out,
    "tune": _tune,
    "tune-untuned": lambda: _tune(
        tasks=tuple(dataclasses.replace(task, untuned_s=2.5 * task.best_s) for task in TASKS)
    ),
    "tune-many": _many_tasks,
    "tune-nothing": lambda: _tune(tasks=(dataclasses.replace(TASKS[0], best_s=None),), points=(), boards=()),
}
