"""What a gate found: the rounds, what is judged of them, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from toolchain import stats
from toolchain.device.bench import Conditions
from toolchain.device.rounds import Turn
from toolchain.device.store import DeviceFacts
from toolchain.device.waiting import Waited
from toolchain.errors import InconclusiveError, RegressionError, ToolchainError
from toolchain.pipeline.sides import Side
from toolchain.stats import Estimate, Judgement, Rule, Verdict
from toolchain.tensors import Difference

SCHEMA_VERSION = 1
LATENCY, PEAK_MEMORY, LOAD_TIME, PACKAGE_SIZE = "latency", "peak memory", "load time", "package size"
UNITS = {LATENCY: "ms", PEAK_MEMORY: "KiB", LOAD_TIME: "ms", PACKAGE_SIZE: "bytes"}
_FEW_MODES = 12  # rounds; of fewer nobody can tell two modes from one


@dataclass(frozen=True)
class Round:
    """One run of each side, one right after the other.

    Attributes:
        number: Its place among all rounds, from 1 on.
        fresh: Whether it is to confirm a regression.
        new_first: Whether the new release went first.
        new: The run of the new release.
        base: The run of its base.
    """

    number: int
    fresh: bool
    new_first: bool
    new: Turn
    base: Turn

    @property
    def throttled(self) -> tuple[str, ...]:
        """Signs that the device was slowed down meanwhile: such a round is repeated, and does not count."""
        return tuple(sorted({*self.new.throttled, *self.base.throttled}))

    def ratio(self, quantity: str) -> float:
        """Return the logarithm of the ratio of new to base."""
        return math.log(of_turn(self.new, quantity) / of_turn(self.base, quantity))

    def document(self) -> dict[str, Any]:
        """Return it as JSON's types."""
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


def of_turn(turn: Turn, quantity: str) -> float:
    """Return what a run says of a quantity, in its unit; a clock or a kernel that says 0 says a thousandth."""
    return max(_told(turn, quantity), 1e-6 if quantity == LATENCY else 1e-3)


def _told(turn: Turn, quantity: str) -> float:
    if quantity == LATENCY:
        return float(np.median(turn.run.samples_ns)) / 1e6
    return turn.run.load_ms if quantity == LOAD_TIME else float(turn.run.peak_rss_kib)


def is_told(turn: Turn, quantity: str) -> bool:
    """Whether a run says anything of a quantity: nothing takes no time and no memory, and 0 is as good as no answer."""
    return _told(turn, quantity) > 0


def _turn(turn: Turn) -> dict[str, Any]:
    run = turn.run
    return {
        "median_ms": of_turn(turn, LATENCY),
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
    """What is gated, and what was found of it.

    Attributes:
        name: Such as `latency`.
        new: The new release's value: the median over the rounds, or the size.
        base: Its base's.
        worst: Change that a pass excludes: 0.05 is 5 % more.
        rule: How its rounds are judged; None for what is exact.
        judgement: What came of it; the estimates are of logarithms.
    """

    name: str
    new: float
    base: float
    worst: float
    rule: Rule | None
    judgement: Judgement

    @property
    def verdict(self) -> Verdict:
        """What it comes to."""
        return self.judgement.verdict

    @property
    def change(self) -> Estimate:
        """How much more the new release takes; of what is exact both ends are the value."""
        if self.judgement.estimate:
            return self.judgement.estimate.change()
        value = self.new / self.base - 1 if self.base else 0.0
        found = Estimate(value, -1.0, math.inf, 0.0, 0)
        return found if self.rule else Estimate(value, value, value, 1.0, 0)

    @property
    def known(self) -> bool:
        """Whether there is a change at all: nothing counts of rounds that all were throttled."""
        return self.rule is None or self.change.rounds > 0

    def sentence(self) -> str:
        """Say what was found, in one sentence."""
        words = {
            Verdict.PASS: "passes",
            Verdict.REGRESSION: "is a REGRESSION",
            Verdict.INCONCLUSIVE: "is inconclusive",
        }
        return f"{self.name} {words.get(self.verdict, str(self.verdict))}: {self.changed()}"

    def changed(self) -> str:
        """Say how much it changed, and how sure that is."""
        found = self.change
        text = f"{found.value:+.1%}"
        if self.rule is None:
            return f"{text}, from {self.base:.0f} to {self.new:.0f} {UNITS[self.name]}, limit {self.worst:+.1%}"
        if not self.known:
            return "no round counted"
        if not math.isfinite(found.high):
            return f"{text}, but {found.rounds} round(s) are too few for a verdict"
        sure = f"{found.confidence * 100:.6g} % within {found.low:+.1%} to {found.high:+.1%}"
        better = ", an improvement" if self.verdict is Verdict.PASS and found.high < 0 else ""
        return f"{text}{better}, {sure} in {found.rounds} rounds"

    def document(self) -> dict[str, Any]:
        """Return it as JSON's types; an end that is infinite is null."""
        found = self.change
        confirmed = self.judgement.confirmation
        return {
            "name": self.name,
            "verdict": str(self.verdict),
            "new": _finite(self.new),
            "base": _finite(self.base),
            "unit": UNITS[self.name],
            "least": self.rule.least if self.rule else self.worst,
            "worst": self.worst,
            "change": _estimate(found),
            "confirmation": _estimate(confirmed.change()) if confirmed else None,
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _estimate(found: Estimate) -> dict[str, Any]:
    low, high = (found.low, found.high) if math.isfinite(found.high) else (None, None)
    return {
        "value": _finite(found.value),
        "low": low,
        "high": high,
        "confidence": found.confidence,
        "rounds": found.rounds,
    }


@dataclass(frozen=True)
class Outputs:
    """How far outputs lie from what they are compared with; None where there is nothing to compare with."""

    new: Difference | None
    base: Difference | None
    each_other: Difference | None
    reference: str = ""


@dataclass(frozen=True)
class Gate:
    """A finished gate.

    Attributes:
        new: What was judged.
        base: What it was held against.
        board: Board type.
        host: Name of the device.
        emulated: Whether the times are an emulator's, and the verdict is none about a board.
        facts: The device.
        threads: Threads of both.
        outputs: How far the outputs are from the references, and from each other.
        quantities: What is gated; latency first.
        rounds: Every round in order, those that were throttled among them.
        hot: Why the rounds were given up before they were enough; empty if they were not.
        before: The device before the first round.
        after: The device after the last.
        seconds: How long it took, from the lock on.
        waited: Who was at work on the device before, and how long they were waited for.
        carrier: What carries a regression, layer by layer; empty where that is not known.
        notes: Further warnings, of whoever ran the gate.
    """

    new: Side
    base: Side
    board: str
    host: str
    emulated: bool
    facts: DeviceFacts
    threads: int
    outputs: Outputs
    quantities: tuple[Quantity, ...]
    rounds: tuple[Round, ...]
    hot: str
    before: Conditions
    after: Conditions
    seconds: float
    waited: tuple[Waited, ...] = ()
    carrier: str = ""
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """A regression if one quantity has one; else inconclusive if one is; else a pass."""
        found = {one.verdict for one in self.quantities}
        if Verdict.REGRESSION in found:
            return Verdict.REGRESSION
        return Verdict.PASS if found == {Verdict.PASS} else Verdict.INCONCLUSIVE

    @property
    def counted(self) -> tuple[Round, ...]:
        """The rounds that count: those in which nothing was throttled."""
        return tuple(one for one in self.rounds if not one.throttled)

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        told = [one.sentence() for one in self.quantities if one.verdict is self.verdict]
        mark = "emulated, which says nothing about a board: " if self.emulated else ""
        return mark + "; ".join(told) + (f"; {self.hot}" if self.hot else "")

    def fault(self) -> ToolchainError | None:
        """Return the error that the gate ends with; None if it passes."""
        if self.verdict is Verdict.PASS:
            return None
        others = [one.sentence() for one in self.quantities if one.verdict is not self.verdict]  # the message has these
        details = "\n".join([*others, *([f"slower layers: {self.carrier}"] if self.carrier else [])])
        if self.verdict is Verdict.REGRESSION:
            return RegressionError(
                f"{self.new.named} against {self.base.named}: {self.sentence}", details=details, hint=self._where()
            )
        hint = (
            "let the device cool down"
            if self.hot
            else "run it again while nothing else uses the device, or allow more --rounds"
        )
        return InconclusiveError(
            f"{self.new.named} against {self.base.named}: {self.sentence}", details=details, hint=hint
        )

    def _where(self) -> str:
        """Name the command that shows more of a regression."""
        slower = {one.name for one in self.quantities if one.verdict is Verdict.REGRESSION}
        if LATENCY in slower:
            return "" if self.carrier else "`toolchain profile` shows where the time goes"
        if PACKAGE_SIZE in slower:
            return "manifest.json in each package lists the size of each file"
        return "the report lists the values of each round: --json FILE or --html FILE"

    def warnings(self) -> list[str]:
        """Say in plain words what makes the numbers doubtful."""
        sides = {"the new release": [one.new for one in self.counted], "the base": [one.base for one in self.counted]}
        switched = sum(any(turn.run.involuntary_switches for turn in (one.new, one.base)) for one in self.counted)
        stolen = max((turn.steal for turns in sides.values() for turn in turns), default=0.0)
        throttled = [one for one in self.rounds if one.throttled]
        signs = ", ".join(sorted({sign for one in throttled for sign in one.throttled}))
        checks = [
            (self.emulated, "emulated: these times say nothing about the real board"),
            (bool(throttled), f"{len(throttled)} round(s) were throttled and are not counted: {signs}"),
            (switched, f"other processes interrupted the runs in {switched} of {len(self.counted)} rounds"),
            (stolen > 0.01, f"the hypervisor gave up to {stolen:.0%} of the CPU time to other machines"),  # noqa: PLR2004
            *((True, f"the device reports a {name} of 0, which is not possible") for name in self._untold()),
            (
                self.outputs.new is None and self.outputs.each_other is not None,
                "no reference: the outputs were compared only with each other",
            ),
            (self.outputs.each_other is None, "retrained: the outputs were not compared with each other"),
            *((_bimodal(turns), f"bimodal: the rounds of {name} form two groups") for name, turns in sides.items()),
            (_clocks_differ(*sides.values()), "the clock differed between the two sides by more than 5 %"),
        ]
        return [*(text for doubtful, text in checks if doubtful), *self.notes]

    def _untold(self) -> list[str]:
        """Name the quantities of which some round says nothing."""
        turns = [turn for one in self.counted for turn in (one.new, one.base)]
        return [one.name for one in self.quantities if one.rule and not all(is_told(turn, one.name) for turn in turns)]

    def document(self) -> dict[str, Any]:
        """Return the report as JSON has it; docs/gate.md describes every field."""
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
            "new": _side(self.new),
            "base": _side(self.base),
            "threads": self.threads,
            "outputs": {name: _difference(getattr(self.outputs, name)) for name in ("new", "base", "each_other")}
            | {"reference": self.outputs.reference or None},
            "quantities": [one.document() for one in self.quantities],
            "carrier": self.carrier or None,
            "throttled": sum(bool(one.throttled) for one in self.rounds),
            "warnings": self.warnings(),
            "conditions": {"before": asdict(self.before), "after": asdict(self.after)},
            "waited": [asdict(one) for one in self.waited],
            "seconds": round(self.seconds, 3),
            "rounds": [one.document() for one in self.rounds],
        }


def _side(side: Side) -> dict[str, Any]:
    return {"named": side.named, "bundle_digest": f"sha256:{side.digest}", "bytes": side.size}


def _difference(found: Difference | None) -> dict[str, Any] | None:
    if found is None:
        return None
    values = {"max_abs_diff": found.max_abs, "max_rel_diff": found.max_rel, "tolerance": found.tolerance}
    return {**{name: _finite(value) for name, value in values.items()}, "ok": found.ok}


def _bimodal(turns: Sequence[Turn]) -> bool:
    medians = [of_turn(turn, LATENCY) * 1e6 for turn in turns]
    return len(medians) >= _FEW_MODES and stats.modes(medians) > 1


def _clocks_differ(new: Sequence[Turn], base: Sequence[Turn]) -> bool:
    clocks = [[turn.after.mhz for turn in turns if turn.after.mhz] for turns in (new, base)]
    if not all(clocks):
        return False
    one, other = (float(np.median(np.asarray(found, dtype=np.float64))) for found in clocks)
    return abs(one / other - 1) > 0.05  # noqa: PLR2004 - as bench says of a clock
