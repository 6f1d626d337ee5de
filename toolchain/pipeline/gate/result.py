"""The result of a gate: the rounds, the judgement of each quantity, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from toolchain import stats
from toolchain.device.bench import Conditions
from toolchain.device.probe.facts import DeviceFacts
from toolchain.device.rounds import Turn
from toolchain.device.waiting import Waited
from toolchain.errors import InconclusiveError, RegressionError, ToolchainError
from toolchain.pipeline.ab import Side
from toolchain.stats import Estimate, Judgement, Rule, Verdict
from toolchain.tensors import Difference

if TYPE_CHECKING:
    from toolchain.device.tail import Tail
    from toolchain.pipeline.gate.accuracy import Accuracy

SCHEMA_VERSION = 1
LATENCY, PEAK_MEMORY, LOAD_TIME, PACKAGE_SIZE = "latency", "peak memory", "load time", "package size"
ACCURACY = "accuracy"
UNITS = {LATENCY: "ms", PEAK_MEMORY: "KiB", LOAD_TIME: "ms", PACKAGE_SIZE: "bytes"}
_FEW_MODES = 12  # rounds: with fewer, two modes cannot be told from one


@dataclass(frozen=True)
class Round:
    """One run of each side, one right after the other."""

    number: int  # from 1 on, throttled rounds included
    fresh: bool  # whether the round is to confirm a regression
    new_first: bool
    new: Turn
    base: Turn

    @property
    def throttled(self) -> tuple[str, ...]:
        """Signs that the device was slowed down meanwhile; such a round is repeated and does not count."""
        return tuple(sorted({*self.new.throttled, *self.base.throttled}))

    def ratio(self, quantity: str) -> float:
        """Return the logarithm of new over base."""
        return math.log(metric_of(self.new, quantity) / metric_of(self.base, quantity))

    def document(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "fresh": self.fresh,
            "first": "new" if self.new_first else "base",
            "counted": not self.throttled,
            "throttled": list(self.throttled),
            "change": math.expm1(self.ratio(LATENCY)),
            "new": _turn(self.new),
            "base": _turn(self.base),
        }


def metric_of(turn: Turn, quantity: str) -> float:
    """Return a run's value of a quantity, in its unit."""
    # Ratios and their logarithms need a value above 0, which a coarse clock or kernel may report.
    return max(_raw_metric(turn, quantity), 1e-6 if quantity == LATENCY else 1e-3)


def is_measured(turn: Turn, quantity: str) -> bool:
    return _raw_metric(turn, quantity) > 0  # nothing takes no time and no memory: 0 means no answer


def _raw_metric(turn: Turn, quantity: str) -> float:
    if quantity == LATENCY:
        return float(np.median(turn.run.samples_ns)) / 1e6
    return turn.run.load_ms if quantity == LOAD_TIME else float(turn.run.peak_rss_kib)


def _turn(turn: Turn) -> dict[str, Any]:
    run = turn.run
    return {
        "median_ms": metric_of(turn, LATENCY),
        "samples_ms": [value / 1e6 for value in run.samples_ns],
        "load_ms": run.load_ms,
        "peak_rss_kib": run.peak_rss_kib,
        "involuntary_switches": run.involuntary_switches,
        "steal": round(turn.steal, 4),
        "throttled": list(turn.throttled),
        "before": asdict(turn.before),
        "after": asdict(turn.after),
    }


@dataclass(frozen=True)
class Quantity:
    """A quantity that is gated, and its judgement."""

    name: str  # such as `latency`
    new: float  # the new release's value: the median over the rounds, or the size
    base: float
    worst: float  # change that a pass excludes: 0.05 is 5 % more
    rule: Rule | None  # how its rounds are judged; None for a quantity that is known exactly
    judgement: Judgement  # its estimates are of logarithms

    @property
    def verdict(self) -> Verdict:
        return self.judgement.verdict

    @property
    def change(self) -> Estimate:
        """How much more the new release takes; both ends equal the value if it is known exactly."""
        if self.judgement.estimate:
            return self.judgement.estimate.change()
        value = self.new / self.base - 1 if self.base else 0.0
        return Estimate(value, -1.0, math.inf, 0.0, 0) if self.rule else Estimate(value, value, value, 1.0, 0)

    @property
    def has_change(self) -> bool:
        """Whether there is a change at all: there is none if every round was throttled."""
        return self.rule is None or self.change.rounds > 0

    def sentence(self) -> str:
        verbs = {
            Verdict.PASS: "passes",
            Verdict.REGRESSION: "is a REGRESSION",
            Verdict.INCONCLUSIVE: "is inconclusive",
        }
        return f"{self.name} {verbs.get(self.verdict, str(self.verdict))}: {self.change_text()}"

    def change_text(self) -> str:
        """Describe the change and its confidence."""
        change = self.change
        text = f"{change.value:+.1%}"
        if self.rule is None:
            return f"{text}, from {self.base:.0f} to {self.new:.0f} {UNITS[self.name]}, limit {self.worst:+.1%}"
        if not self.has_change:
            return "no round counted"
        if not math.isfinite(change.high):
            return f"{text}, but {change.rounds} round(s) are too few for a verdict"
        within = f"{change.confidence * 100:.6g} % within {change.low:+.1%} to {change.high:+.1%}"
        better = ", an improvement" if self.verdict is Verdict.PASS and change.high < 0 else ""
        return f"{text}{better}, {within} in {change.rounds} rounds"

    def document(self) -> dict[str, Any]:
        """Infinite ends are null."""
        change = self.change
        confirmed = self.judgement.confirmation
        return {
            "name": self.name,
            "verdict": str(self.verdict),
            "new": _finite(self.new),
            "base": _finite(self.base),
            "unit": UNITS[self.name],
            "least": self.rule.least if self.rule else self.worst,
            "worst": self.worst,
            "change": _estimate(change),
            "confirmation": _estimate(confirmed.change()) if confirmed else None,
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _estimate(change: Estimate) -> dict[str, Any]:
    low, high = (change.low, change.high) if math.isfinite(change.high) else (None, None)
    return {
        "value": _finite(change.value),
        "low": low,
        "high": high,
        "confidence": change.confidence,
        "rounds": change.rounds,
    }


@dataclass(frozen=True)
class Outputs:
    """How far outputs are from their reference and from each other; None where there is nothing to compare with."""

    new: Difference | None
    base: Difference | None
    each_other: Difference | None
    reference: str = ""


@dataclass(frozen=True)
class Gate:
    """A finished gate."""

    new: Side  # what was judged
    base: Side
    board: str
    host: str
    emulated: bool  # whether the times are an emulator's: the verdict then says nothing about a board
    facts: DeviceFacts
    threads: int  # threads of both
    outputs: Outputs
    quantities: tuple[Quantity, ...]  # latency first
    rounds: tuple[Round, ...]  # every round in order, the throttled ones too
    hot: str  # why the gate gave up before there were enough rounds; empty if it did not
    before: Conditions
    after: Conditions
    seconds: float  # duration from the lock on
    waited: tuple[Waited, ...] = ()  # who was at work on the device before, and how long they were waited for
    slower_layers: str = ""  # the layers that cause a regression; empty if unknown
    notes: tuple[str, ...] = ()  # further warnings, from the caller
    accuracy: Accuracy | None = None  # on the user's samples; None where it is not gated
    tail: Tail | None = None  # the new release at the application's rate; None where its p99.9 is not gated

    @property
    def judged(self) -> tuple[Quantity | Accuracy | Tail, ...]:
        """Everything that has a verdict."""
        return (*self.quantities, *(other for other in (self.accuracy, self.tail) if other))

    @property
    def verdict(self) -> Verdict:
        """A regression if one quantity has one; else inconclusive if one is; else a pass."""
        verdicts = {quantity.verdict for quantity in self.judged}
        if Verdict.REGRESSION in verdicts:
            return Verdict.REGRESSION
        return Verdict.PASS if verdicts == {Verdict.PASS} else Verdict.INCONCLUSIVE

    @property
    def counted(self) -> tuple[Round, ...]:
        """The rounds that count: those in which nothing was throttled."""
        return tuple(pair for pair in self.rounds if not pair.throttled)

    @property
    def sentence(self) -> str:
        sentences = [quantity.sentence() for quantity in self.judged if quantity.verdict is self.verdict]
        mark = "emulated, which says nothing about a board: " if self.emulated else ""
        return mark + "; ".join(sentences) + (f"; {self.hot}" if self.hot else "")

    def fault(self) -> ToolchainError | None:
        """Return the error that the gate ends with; None if it passes."""
        if self.verdict is Verdict.PASS:
            return None
        message = f"{self.new.label} against {self.base.label}: {self.sentence}"
        others = [quantity.sentence() for quantity in self.judged if quantity.verdict is not self.verdict]
        details = "\n".join([*others, *([f"slower layers: {self.slower_layers}"] if self.slower_layers else [])])
        if self.verdict is Verdict.REGRESSION:
            return RegressionError(message, details=details, hint=self._next_command())
        undecided = [quantity for quantity in self.judged if quantity.verdict is Verdict.INCONCLUSIVE]
        if undecided == [self.accuracy]:
            return InconclusiveError(message, details=details, hint="use more samples")
        if undecided == [self.tail]:
            return InconclusiveError(message, details=details, hint="measure for longer: --for")
        hint = (
            "let the device cool down"
            if self.hot
            else "run it again while nothing else uses the device, or allow more --rounds"
        )
        return InconclusiveError(message, details=details, hint=hint)

    def _next_command(self) -> str:
        slower = {quantity.name for quantity in self.quantities if quantity.verdict is Verdict.REGRESSION}
        if LATENCY in slower:
            return "" if self.slower_layers else "`toolchain profile` shows where the time goes"
        if not slower and self.tail and self.tail.verdict is Verdict.REGRESSION:
            return "`toolchain bench --period` shows the slowest runs, and what else the device did meanwhile"
        if not slower:
            return "the report names the samples that changed: --json FILE; `toolchain evaluate --html` shows them"
        if PACKAGE_SIZE in slower:
            return "manifest.json in each package lists the size of each file"
        return "the report lists the values of each round: --json FILE or --html FILE"

    def warnings(self) -> list[str]:
        """Describe what makes the numbers doubtful."""
        counted = self.counted
        sides = {"the new release": [pair.new for pair in counted], "the base": [pair.base for pair in counted]}
        switched = sum(any(turn.run.involuntary_switches for turn in (pair.new, pair.base)) for pair in counted)
        stolen = max((turn.steal for turns in sides.values() for turn in turns), default=0.0)
        throttled = [pair for pair in self.rounds if pair.throttled]
        signs = ", ".join(sorted({sign for pair in throttled for sign in pair.throttled}))
        unmeasured = [
            quantity.name
            for quantity in self.quantities
            if quantity.rule and not all(is_measured(turn, quantity.name) for turns in sides.values() for turn in turns)
        ]
        medians = {name: [metric_of(turn, LATENCY) * 1e6 for turn in turns] for name, turns in sides.items()}
        bimodal = [name for name, ns in medians.items() if len(ns) >= _FEW_MODES and stats.modes(ns) > 1]
        checks = [
            (self.emulated, "emulated: these times say nothing about the real board"),
            (bool(throttled), f"{len(throttled)} round(s) were throttled and are not counted: {signs}"),
            (switched, f"other processes interrupted the runs in {switched} of {len(counted)} rounds"),
            (stolen > 0.01, f"the hypervisor gave up to {stolen:.0%} of the CPU time to other machines"),  # noqa: PLR2004
            *((True, f"the device reports a {name} of 0, which is not possible") for name in unmeasured),
            (
                self.outputs.new is None and self.outputs.each_other is not None,
                "no reference: the outputs were compared only with each other",
            ),
            (self.outputs.each_other is None, "retrained: the outputs were not compared with each other"),
            *((True, f"bimodal: the rounds of {name} form two groups") for name in bimodal),
            (_clocks_differ(*sides.values()), "the clock differed between the two sides by more than 5 %"),
        ]
        return [*(text for doubtful, text in checks if doubtful), *self.notes]

    def document(self) -> dict[str, Any]:
        """Return the report as JSON's types; docs/gate.md describes every field."""
        return {
            "schema_version": SCHEMA_VERSION,
            "verdict": str(self.verdict),
            "sentence": self.sentence,
            "model": self.new.manifest.name,
            "board": self.board,
            "host": {
                "name": self.host,
                "machine": self.facts.machine,
                "kernel": self.facts.kernel,
                "cpu": self.facts.cpu,
                "cpus": self.facts.cpus,
            },
            "emulated": self.emulated,
            **{
                name: {
                    "named": side.label,
                    "bundle_digest": f"sha256:{side.digest}",
                    "bytes": side.size,
                    "variant": side.variant,
                }
                for name, side in (("new", self.new), ("base", self.base))
            },
            "threads": self.threads,
            "outputs": {name: _difference(getattr(self.outputs, name)) for name in ("new", "base", "each_other")}
            | {"reference": self.outputs.reference or None},
            "quantities": [quantity.document() for quantity in self.quantities],
            "accuracy": self.accuracy.document() if self.accuracy else None,
            "p999": self.tail.document() if self.tail else None,
            "carrier": self.slower_layers or None,
            "throttled": sum(bool(pair.throttled) for pair in self.rounds),
            "warnings": self.warnings(),
            "conditions": {"before": asdict(self.before), "after": asdict(self.after)},
            "waited": [asdict(wait) for wait in self.waited],
            "seconds": round(self.seconds, 3),
            "rounds": [pair.document() for pair in self.rounds],
        }


def _difference(difference: Difference | None) -> dict[str, Any] | None:
    if difference is None:
        return None
    values = {"max_abs_diff": difference.max_abs, "max_rel_diff": difference.max_rel, "tolerance": difference.tolerance}
    return {**{name: _finite(value) for name, value in values.items()}, "ok": difference.ok}


def _clocks_differ(new: Sequence[Turn], base: Sequence[Turn]) -> bool:
    clocks = [[turn.after.mhz for turn in turns if turn.after.mhz] for turns in (new, base)]
    if not all(clocks):
        return False
    new_mhz, base_mhz = (float(np.median(np.asarray(mhz, dtype=np.float64))) for mhz in clocks)
    return abs(new_mhz / base_mhz - 1) > 0.05  # noqa: PLR2004 - as bench says of a clock
