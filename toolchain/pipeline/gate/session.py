"""A gate's work on the device: both sides are brought there, compared, and run in turns until the rule knows enough."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from toolchain import rankings, temporary, tensors
from toolchain.device import bench, deploy, rounds, runner, trust
from toolchain.device.deploy import Samples
from toolchain.device.lock import Owner
from toolchain.device.runner import Plan, Run
from toolchain.device.shipment import Shipment
from toolchain.device.store import DeviceFacts
from toolchain.errors import InputError, ToolchainError, VerificationError
from toolchain.models import inputs
from toolchain.native.programs import Program
from toolchain.pipeline import profile
from toolchain.pipeline.device import Lab
from toolchain.pipeline.gate.result import (
    LATENCY,
    LOAD_TIME,
    PACKAGE_SIZE,
    PEAK_MEMORY,
    Gate,
    Outputs,
    Quantity,
    Round,
    is_told,
    of_turn,
)
from toolchain.pipeline.gate.sides import Side, check_pair
from toolchain.pipeline.profile import against
from toolchain.progress import Step, stage
from toolchain.stats import Judgement, Rule, Verdict
from toolchain.tensors import Difference
from toolchain.units import duration

_MOST_RUNS = 2000  # of a round: each is kept
_LEAST_RUNS = 3
_REPEATS = 8
"""Rounds of a gate that may be repeated since the device was throttled."""
_COOLING_S = 1.0
_PROFILED_RUNS = 160
_NAMED = 5


@dataclass(frozen=True)
class GateSettings:
    """How to gate.

    Attributes:
        rule: When the rounds are enough, and for what.
        round_s: Seconds of timed runs of each side in a round.
        threads: Threads of the model; 0 means the board file's number.
        pinned: Whether each thread has a CPU of its own.
        tolerance: Limit for the outputs' relative difference, or None for the reference's or the dtype's own.
        peak_memory: Change of the peak memory that a pass excludes: 0.05 is 5 % more; None does not gate it.
        load_time: The same for the time to load.
        package_size: The same for the size of all files that travel; at most so much is a pass.
        retrained: Whether the new release has other weights, so that the outputs are not compared with each other.
        allow_emulated: Whether an emulated device will do, for a rehearsal.
        sysfs: Where the device tells of its clock and its heat.
    """

    rule: Rule = field(default_factory=Rule)
    round_s: float = 0.12
    threads: int = 0
    pinned: bool = True
    tolerance: float | None = None
    peak_memory: float | None = None
    load_time: float | None = None
    package_size: float | None = None
    retrained: bool = False
    allow_emulated: bool = False
    sysfs: str = rounds.SYSFS

    def rules(self) -> dict[str, Rule]:
        """Return the rule for each quantity that rounds decide; those with one limit have it on both sides."""
        limits = {PEAK_MEMORY: self.peak_memory, LOAD_TIME: self.load_time}
        own = {name: self._with(limit) for name, limit in limits.items() if limit is not None}
        return {LATENCY: self.rule, **own}

    def _with(self, limit: float) -> Rule:
        rule = self.rule
        return Rule(limit, limit, rule.confidence, rule.looks, rule.confirming, rule.confirming_confidence)


def check_emulated(lab_emulated: bool, name: str, settings: GateSettings) -> None:  # noqa: FBT001 - a fact, no switch
    """Refuse an emulated device, whose times say nothing about a board, unless a rehearsal is wanted.

    Raises:
        InputError: It is emulated.
    """
    if lab_emulated and not settings.allow_emulated:
        raise InputError(
            f"{name} is emulated: its times say nothing about a real board",
            hint="use a real device, or --allow-emulated for a rehearsal; its results are marked as emulated",
        )


def run(  # noqa: PLR0913, PLR0917 - two sides, and what runs them where
    new: Side,
    base: Side,
    program: Program,
    lab: Lab,
    settings: GateSettings,
    tell: Callable[[str], None] = lambda _line: None,
) -> Gate:
    """Gate a release against its base on a device, which keeps the release that it has; what the gate brought goes.

    The device's lock is held throughout. A gate that does not pass is no error here: see `Gate.fault`.

    Args:
        new: What is judged.
        base: What it is held against.
        program: The runner for the device.
        lab: The device.
        settings: How to gate.
        tell: Who is told about each stage.

    Raises:
        InputError: The pair is none, or the device is emulated.
        VerificationError: The device does not fit, or outputs differ from a reference or from each other.
        DeviceError: The device is lost, busy or full, or a side does not run on it.
    """
    check_emulated(lab.emulated, lab.shell.name, settings)
    check_pair(new, base, lab.board)
    given = _given(new, base)
    _check_comparable(given, settings)
    facts = lab.store.facts()
    for side in (new, base):
        deploy.check_fits(side.manifest, program, facts)
        if side.bundle:
            trust.check_signed(lab.shell.name, facts, side.bundle)
    with temporary.folder() as work, lab.store.lock(Owner.here("gate")):
        began = time.monotonic()
        try:
            at_work = _Session(new, base, program, lab, settings, facts, Path(work), tell)
            return at_work.gate(given, began)
        finally:
            lab.store.prune(lab.board.keep)


@dataclass(frozen=True)
class _Session:
    """A gate at work, within the lock."""

    new: Side
    base: Side
    program: Program
    lab: Lab
    settings: GateSettings
    facts: DeviceFacts
    work: Path
    tell: Callable[[str], None]

    @property
    def threads(self) -> int:
        return self.settings.threads or self.lab.board.threads

    def gate(self, given: Sequence[Samples], began: float) -> Gate:
        self.tell(stage(f"sending both releases to {self.lab.shell.name}"))
        places = [self._brought(side, given[place]) for place, side in enumerate((self.new, self.base))]
        self.tell(stage("comparing their outputs"))
        outputs = self._outputs(given, places)
        before = bench.conditions(self.lab.shell)
        with runner.scratch(self.lab.shell, self.lab.store.root) as folder:
            taking = _Taking(self, folder, places)
            judged = taking.judge_all()
        after = bench.conditions(self.lab.shell)
        quantities = (*judged, *self._exact())
        slower = quantities[0].verdict is Verdict.REGRESSION
        return Gate(
            new=self.new,
            base=self.base,
            board=self.lab.board.name,
            host=self.lab.shell.name,
            emulated=self.lab.emulated,
            facts=self.facts,
            threads=taking.threads,
            outputs=outputs,
            quantities=quantities,
            rounds=tuple(taking.taken),
            hot=taking.hot,
            before=before,
            after=after,
            waited=self.lab.store.waited,
            carrier=self._carrier(places) if slower else "",
            seconds=time.monotonic() - began,
        )

    def _carrier(self, places: Sequence[dict[str, str]]) -> str:
        """Say which layers carry a slow-down; that nobody knows does not make it less of one."""
        self.tell(stage("looking for the layers that became slower"))
        alike = [places[0], {**places[1], "inputs": places[0]["inputs"]}]
        wanted = profile.Wanted(_PROFILED_RUNS, self.threads, self.settings.pinned)
        try:
            new, base = (self._profiled(side) for side in (self.new, self.base))
            return carried(against.turns(new, base, alike, self.lab, wanted, self.tell))
        except ToolchainError as fault:
            return f"unknown, because profiling failed: {fault.message}"

    def _profiled(self, side: Side) -> profile.Side:
        return profile.of_bundle(side.bundle) if side.bundle else profile.of_release(self.lab, side.digest)

    def _brought(self, side: Side, given: Samples) -> dict[str, str]:
        """Install a side without activating it; of one that the device keeps, only what it is run with."""
        folder = self.work / side.digest
        folder.mkdir()
        shipment = Shipment.of_run(self.program, given.inputs, folder)
        store = self.lab.store
        if side.bundle:
            return deploy.bring(shipment.with_release(side.bundle, folder), store, self.facts, self.tell)[1]
        _sent, places, _verified = deploy.bring(shipment, store, self.facts, self.tell)
        return {**places, "releases": f"{store.root}/releases/{side.digest}"}

    def _outputs(self, given: Sequence[Samples], places: Sequence[dict[str, str]]) -> Outputs:
        """Run each side on its own reference's inputs, and both on the same; what differs ends the gate."""
        found = []
        for side, samples, place in zip((self.new, self.base), given, places, strict=True):
            ran = self._smoke(side, place, place["inputs"])
            found.append((ran, self._checked(side, ran, samples)))
        (first, new), (second, base) = found
        reference = given[0].runtime or given[1].runtime
        if self.settings.retrained:
            return Outputs(new, base, None, reference)
        if places[0]["inputs"] != places[1]["inputs"]:
            second = self._smoke(self.base, places[1], places[0]["inputs"])
        return Outputs(new, base, self._alike(first, second, given[0]), reference)

    def _smoke(self, side: Side, place: Mapping[str, str], fed: str) -> Run:
        return runner.call(
            self.lab.shell,
            self.lab.store.root,
            {**place, "inputs": fed},
            release=place["releases"],
            threads=self.threads,
            plan=runner.SMOKE,
            outputs=side.manifest.outputs,
            size=runner.weight(side.manifest),
        )

    def _checked(self, side: Side, ran: Run, samples: Samples) -> Difference | None:
        try:
            return deploy.check_outputs(ran, samples, side.manifest, self.settings.tolerance)
        except VerificationError as fault:
            which = "the new release" if side is self.new else "the base"
            raise VerificationError(
                f"{which}, {side.named}: {fault.message}", details=fault.details, hint=fault.hint
            ) from fault

    def _alike(self, first: Run, second: Run, samples: Samples) -> Difference:
        limit = samples.tolerance if self.settings.tolerance is None else self.settings.tolerance
        specs = self.new.manifest.outputs
        one, other = (tensors.cut(ran.outputs, specs) for ran in (first, second))
        found = rankings.compare(one, other, samples.rankings, limit)
        if not found.ok:
            raise VerificationError(
                f"{self.new.named} and {self.base.named} compute different outputs",
                details=f"largest relative difference {found.max_rel:.3g}, tolerance {found.tolerance:.3g}; "
                f"largest absolute difference {found.max_abs:.3g}",
                hint="use --retrained if the weights were meant to change, or --tolerance for another limit",
            )
        return found

    def _exact(self) -> list[Quantity]:
        limit = self.settings.package_size
        if limit is None:
            return []
        more = self.new.size > self.base.size * (1 + limit)
        verdict = Verdict.REGRESSION if more else Verdict.PASS
        return [Quantity(PACKAGE_SIZE, self.new.size, self.base.size, limit, None, Judgement(verdict))]


def carried(found: against.Against) -> str:
    """Name the layers that carry a slow-down, the worst first, and of many the first five."""
    worst = against.carriers(found)
    named = [f"{one.name} ({duration(one.more_ms, signed=True)})" for one in worst[:_NAMED]]
    more = [f"and {len(worst) - _NAMED} more"] if len(worst) > _NAMED else []
    alone = [against.unmatched_text(found)] if against.unmatched(found) else []
    return "; ".join([*(named or ["no single layer is measurably slower"]), *more, *alone])


def _given(new: Side, base: Side) -> tuple[Samples, Samples]:
    """Return what each side is compared on: its own reference's inputs, or else the other's, or random ones."""
    own = [deploy.samples_of(side.bundle, unchecked=True) if side.bundle else None for side in (new, base)]
    known = [one if one and one.expected is not None else None for one in own]
    drawn = Samples(inputs.random(new.manifest.inputs, seed=0), None)
    other = next((Samples(one.inputs, None, one.runtime, one.tolerance, one.rankings) for one in known if one), drawn)
    return known[0] or other, known[1] or other


def _check_comparable(given: tuple[Samples, Samples], settings: GateSettings) -> None:
    """Refuse a new release whose outputs nothing would be held against.

    Raises:
        InputError: Its weights are others, and it has no reference of its own.
    """
    if settings.retrained and given[0].expected is None:
        raise InputError(
            "the outputs of the new release cannot be verified: it has other weights and no reference here",
            details="with --retrained, its outputs are compared only with its own reference",
            hint="name its package, which has the reference; without --retrained they are compared with the base",
        )


@dataclass
class _Taking:
    """The rounds as they are taken."""

    session: _Session
    folder: str
    places: Sequence[dict[str, str]]
    taken: list[Round] = field(default_factory=list)
    hot: str = ""
    threads: int = 0

    def judge_all(self) -> list[Quantity]:
        """Take rounds until every quantity is judged, or until the device is too hot to go on."""
        rules = self.session.settings.rules()
        found = self._judged(rules)
        while not self.hot and not all(one.final for one in found.values()):
            going_on = any(one.verdict is Verdict.GO_ON for one in found.values())
            needed = max(
                one.needed for one in found.values() if (one.verdict is Verdict.GO_ON) == going_on and not one.final
            )
            self._take(fresh=not going_on, needed=needed)
            found = self._judged(rules)
        return [self._quantity(name, rule, found[name]) for name, rule in rules.items()]

    def _judged(self, rules: Mapping[str, Rule]) -> dict[str, Judgement]:
        counted = [one for one in self.taken if not one.throttled]
        return {name: self._of(counted, name, rule) for name, rule in rules.items()}

    @staticmethod
    def _of(counted: Sequence[Round], name: str, rule: Rule) -> Judgement:
        logs, fresh = ([one.ratio(name) for one in counted if one.fresh is which] for which in (False, True))
        return rule.follow(logs, fresh)

    def _take(self, *, fresh: bool, needed: int) -> None:
        """Take one more round that counts."""
        done = sum(not one.throttled and one.fresh is fresh for one in self.taken)
        what = "confirming" if fresh else "measuring in turns"
        self.session.tell(Step(what, done, needed, "rounds"))
        while (one := self._round(fresh=fresh)).throttled:
            if sum(bool(each.throttled) for each in self.taken) > _REPEATS:
                self.hot = f"the device throttled in {_REPEATS + 1} rounds: {', '.join(one.throttled)}"
                return
            time.sleep(_COOLING_S)

    def _round(self, *, fresh: bool) -> Round:
        number = len(self.taken) + 1
        # A repeat goes in the order of the round that it is in place of: heat may come with one order alone.
        counted = sum(not one.throttled and one.fresh is fresh for one in self.taken)
        first = (1, 0) if counted % 2 else (0, 1)
        settings, lab = self.session.settings, self.session.lab
        turns = rounds.run(
            lab.shell,
            self.folder,
            self.places[0],
            [self.places[which]["releases"] for which in first],
            threads=self.session.threads,
            plan=Plan(settings.round_s, 1, _LEAST_RUNS, _MOST_RUNS, settings.pinned),
            sysfs=settings.sysfs,
        )
        self.threads = turns[0].run.threads
        new, base = (turns[first.index(which)] for which in (0, 1))
        self.taken.append(Round(number, fresh, first[0] == 0, new, base))
        return self.taken[-1]

    def _quantity(self, name: str, rule: Rule, judged: Judgement) -> Quantity:
        counted = [one for one in self.taken if not one.throttled]
        new, base = (
            float(np.median([of_turn(getattr(one, side), name) for one in counted])) if counted else math.nan
            for side in ("new", "base")
        )
        given_up = Judgement(Verdict.INCONCLUSIVE, 0, judged.estimate, judged.confirmation)
        told = all(is_told(turn, name) for one in counted for turn in (one.new, one.base))
        return Quantity(name, new, base, rule.worst, rule, judged if judged.final and told else given_up)
