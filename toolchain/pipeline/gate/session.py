"""A gate on the device: install both sides, compare their outputs, run them in turns until the verdict is clear."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from toolchain.device import bench, periodic, rounds, runner, tail, verification
from toolchain.device.connected import ConnectedDevice
from toolchain.device.installed import Installed, installed_temporarily
from toolchain.device.lock import Owner
from toolchain.device.probe.facts import DeviceFacts
from toolchain.device.rate import Rate
from toolchain.device.runner import Plan, Run
from toolchain.device.verification import Samples
from toolchain.errors import InputError, ToolchainError, VerificationError
from toolchain.native.programs import Program
from toolchain.pipeline import ab, profile
from toolchain.pipeline.ab import Order, Side, Turns
from toolchain.pipeline.gate.result import (
    LATENCY,
    LOAD_TIME,
    PACKAGE_SIZE,
    PEAK_MEMORY,
    Gate,
    Outputs,
    Quantity,
    Round,
    is_measured,
    metric_of,
)
from toolchain.pipeline.profile import against
from toolchain.progress import Progress, Step, stage
from toolchain.stats import Judgement, Rule, Verdict
from toolchain.tensors import Difference
from toolchain.units import duration

if TYPE_CHECKING:
    from toolchain.pipeline.evaluate.scoring import Scoring
    from toolchain.pipeline.gate.accuracy import Accuracy, AccuracyLimit

_MAX_RUNS = 2000  # of a round: the times of all of them are kept
_MIN_RUNS = 3
_PROFILED_RUNS = 160
_MAX_CULPRITS = 5


@dataclass(frozen=True)
class GateSettings:
    """How to gate."""

    rule: Rule = field(default_factory=Rule)
    round_s: float = 0.12  # seconds of timed runs of each side in a round
    threads: int = 0  # threads of the model; 0 means the board file's number
    pinned: bool = True  # whether each thread has a CPU of its own
    # Limit for the outputs' relative difference, or None for the reference's or the dtype's own
    tolerance: float | None = None
    # Change of the peak memory that a pass excludes: 0.05 is 5 % more; None does not gate it
    peak_memory: float | None = None
    load_time: float | None = None  # the same for the time to load
    package_size: float | None = None  # the same for the size of all files that are sent; no more than that is a pass
    # Whether the new release has other weights, so that the outputs are not compared with each other
    retrained: bool = False
    accuracy: AccuracyLimit | None = None  # what the new release may lose on the user's samples; None does not gate it
    tail: Rate | None = None  # at which the new release runs, with its limit as the deadline; None does not gate p99.9
    allow_emulated: bool = False  # whether an emulated device is allowed, for a rehearsal
    sysfs: str = rounds.SYSFS  # where the device reports its clock and its temperature

    def rules(self) -> dict[str, Rule]:
        """Return the rule of each quantity that is judged by rounds; one with a single limit has it as both limits."""
        limits = {PEAK_MEMORY: self.peak_memory, LOAD_TIME: self.load_time}
        rules = {
            name: replace(self.rule, least=limit, worst=limit) for name, limit in limits.items() if limit is not None
        }
        return {LATENCY: self.rule, **rules}


def check_emulated(is_emulated: bool, name: str, settings: GateSettings) -> None:  # noqa: FBT001 - a fact, no switch
    """Refuse an emulated device, whose times say nothing about a board, unless a rehearsal is allowed.

    Raises:
        InputError: It is emulated.
    """
    if is_emulated and not settings.allow_emulated:
        raise InputError(
            f"{name} is emulated: its times say nothing about a real board",
            hint="use a real device, or --allow-emulated for a rehearsal; its results are marked as emulated",
        )


def gate(
    request: ab.Request,
    settings: GateSettings,
    *,
    emulated: bool,
    warnings: Callable[[ConnectedDevice, DeviceFacts], tuple[str, ...]] = lambda _device, _facts: (),
) -> Gate:
    """Gate two releases as a user names them, the new one first.

    `emulated` is whether the device is, as far as is known before it is contacted. `warnings` returns what else makes
    the result doubtful.

    Raises:
        ToolchainError: As `ab.lock_sides`, and as `run`.
    """
    check_emulated(emulated, request.board.name, settings)
    with ab.lock_sides(request, "gate") as locked:
        new, base = locked.sides
        result = run(new, base, locked.program, locked.device, settings, request.progress)
        return replace(result, notes=warnings(locked.device, result.facts))


def run(
    new: Side,
    base: Side,
    program: Program,
    device: ConnectedDevice,
    settings: GateSettings,
    progress: Progress = lambda _line: None,
) -> Gate:
    """Gate a release against its base on a device; `check_pair` accepts them.

    The device keeps its current release, its lock is held throughout, and everything that was sent is removed.
    A gate that does not pass raises nothing: see `Gate.fault`.

    Raises:
        InputError: The device is emulated, the outputs cannot be verified, or the samples do not fit the releases.
        VerificationError: The device does not fit, or outputs differ from a reference or from each other.
        DeviceError: The device is lost, busy or full, or a side does not run on it.
    """
    check_emulated(device.emulated, device.name, settings)
    samples = _samples(new, base)
    if settings.retrained and samples[0].expected is None:
        raise InputError(
            "the outputs of the new release cannot be verified: it has other weights and no reference here",
            details="with --retrained, its outputs are compared only with its own reference",
            hint="name its package, which has the reference; without --retrained they are compared with the base",
        )
    limit = settings.accuracy
    scorings = [limit.samples.of(side.manifest) for side in (new, base)] if limit else []
    releases = [side.release(program, device, settings.threads) for side in (new, base)]
    with device.store.lock(Owner.here("gate")):
        began = time.monotonic()
        progress(stage(f"sending both releases to {device.name}"))
        pairs = [(release, side_samples.inputs) for release, side_samples in zip(releases, samples, strict=True)]
        with installed_temporarily(pairs, progress) as installed:
            return _Session((new, base), installed, samples, scorings, settings, progress).gate(began)


@dataclass(frozen=True)
class _Session:
    """A gate on a locked device with both releases on it; the new one is first in each sequence."""

    sides: Sequence[Side]
    installed: Sequence[Installed]
    samples: Sequence[Samples]
    scorings: Sequence[Scoring]  # of the user's samples; empty where accuracy is not gated
    settings: GateSettings
    progress: Progress

    def gate(self, began: float) -> Gate:
        new, base = self.sides
        release = self.installed[0].release
        device = release.device
        self.progress(stage("comparing their outputs"))
        outputs = self._outputs()
        compared = self._accuracy()
        before = bench.conditions(device.shell)
        with self.installed[0].scratch() as scratch:
            measuring = _RoundRunner(self, scratch)
            quantities = measuring.judge_all()
        slowest = self._tail()
        after = bench.conditions(device.shell)
        is_slower = quantities[0].verdict is Verdict.REGRESSION
        return Gate(
            new=new,
            base=base,
            board=device.board.name,
            host=device.name,
            emulated=device.emulated,
            facts=release.facts,
            threads=measuring.rounds[-1].new.run.threads,
            outputs=outputs,
            accuracy=compared,
            tail=slowest,
            quantities=(*quantities, *self._size_quantity()),
            rounds=tuple(measuring.rounds),
            hot=measuring.turns.hot,
            before=before,
            after=after,
            waited=device.store.waited,
            slower_layers=self._find_culprits() if is_slower else "",
            seconds=time.monotonic() - began,
        )

    def _find_culprits(self) -> str:
        """Name the layers that became slower. If profiling fails, the gate still reports the slow-down."""
        self.progress(stage("looking for the layers that became slower"))
        request = profile.ProfileRequest(_PROFILED_RUNS, self.settings.threads, self.settings.pinned)
        new, base = self.installed
        try:
            return culprits_text(
                against.profile_installed(self.sides, (new, base.with_inputs_of(new)), request, self.progress)
            )
        except ToolchainError as fault:
            return f"unknown, because profiling failed: {fault.message}"

    def _tail(self) -> tail.Tail | None:
        """Run the new release at the rate of the application, if its p99.9 is gated."""
        if not (rate := self.settings.tail):
            return None
        plan = Plan(self.settings.round_s, 1, _MIN_RUNS, _MAX_RUNS, self.settings.pinned)
        measured = periodic.run(self.installed[0], plan, rate, self.progress).periodic
        return tail.Tail.of(measured) if measured else None

    def _accuracy(self) -> Accuracy | None:
        if not self.settings.accuracy:
            return None
        from toolchain.pipeline.gate import accuracy  # noqa: PLC0415 - a second of statistics, which few gates need

        releases = [installed.release for installed in self.installed]
        return accuracy.measure(self.settings.accuracy, self.scorings, releases, self.progress)

    def _outputs(self) -> Outputs:
        """Run each side on its reference's inputs, and both on the same; a difference ends the gate."""
        new, base = self.installed
        runs = [new.run(runner.SMOKE), base.run(runner.SMOKE)]
        new_difference, base_difference = (self._check_reference(index, run) for index, run in enumerate(runs))
        reference = self.samples[0].runtime or self.samples[1].runtime
        if self.settings.retrained:
            return Outputs(new_difference, base_difference, None, reference)
        if new.folders["inputs"] != base.folders["inputs"]:
            runs[1] = base.with_inputs_of(new).run(runner.SMOKE)
        hint = "use --retrained if the weights were meant to change, or --tolerance for another limit"
        each_other = ab.check_same_outputs(self.sides, runs, self.samples[0], self.settings.tolerance, hint)
        return Outputs(new_difference, base_difference, each_other, reference)

    def _check_reference(self, index: int, run: Run) -> Difference | None:
        side = self.sides[index]
        try:
            return verification.check_outputs(run, self.samples[index], side.manifest, self.settings.tolerance)
        except VerificationError as fault:
            title = ("the new release", "the base")[index]
            raise VerificationError(
                f"{title}, {side.label}: {fault.message}", details=fault.details, hint=fault.hint
            ) from fault

    def _size_quantity(self) -> list[Quantity]:
        limit = self.settings.package_size
        if limit is None:
            return []
        new, base = (side.size for side in self.sides)
        verdict = Verdict.REGRESSION if new > base * (1 + limit) else Verdict.PASS
        return [Quantity(PACKAGE_SIZE, new, base, limit, None, Judgement(verdict))]


def culprits_text(comparison: against.Against) -> str:
    """Name the layers that cause a slow-down: the worst first, at most five of them."""
    worst = against.culprits(comparison)
    layers = [f"{layer.name} ({duration(layer.more_ms, signed=True)})" for layer in worst[:_MAX_CULPRITS]]
    more = [f"and {len(worst) - _MAX_CULPRITS} more"] if len(worst) > _MAX_CULPRITS else []
    unmatched = [against.unmatched_text(comparison)] if against.unmatched(comparison) else []
    return "; ".join([*(layers or ["no single layer is measurably slower"]), *more, *unmatched])


def _samples(new: Side, base: Side) -> tuple[Samples, Samples]:
    """Return the inputs for each side: of its own reference, or else of the other's, or random ones."""
    available = [
        verification.samples_of(side.bundle, unchecked=True, variant=side.variant) if side.bundle else None
        for side in (new, base)
    ]
    referenced = [samples if samples and samples.expected is not None else None for samples in available]
    random = Samples(verification.random_inputs(new.manifest), None)
    fallback = next(
        (
            Samples(samples.inputs, None, samples.runtime, samples.tolerance, samples.rankings)
            for samples in referenced
            if samples
        ),
        random,
    )
    return referenced[0] or fallback, referenced[1] or fallback


@dataclass
class _RoundRunner:
    """Runs rounds of both sides until each quantity is judged, with a folder on the device for their files."""

    session: _Session
    folder: str
    turns: Turns = field(default_factory=Turns)
    rounds: list[Round] = field(default_factory=list)

    def judge_all(self) -> list[Quantity]:
        """Run rounds until every quantity is judged, or until the device is too hot to go on."""
        rules = self.session.settings.rules()
        # Fresh rounds, which confirm a regression, begin only when no quantity needs more of the usual ones.
        for fresh, undecided in ((False, Verdict.GO_ON), (True, Verdict.CONFIRM)):
            for number, order in self.turns.rounds():
                needed = [
                    judgement.needed for judgement in self._judge(rules).values() if judgement.verdict is undecided
                ]
                if not needed:
                    break
                title = "confirming" if fresh else "measuring in turns"
                self.session.progress(Step(title, number, max(needed), "rounds"))
                self.rounds.append(self._run_round(order, fresh=fresh))
                if signs := self.rounds[-1].throttled:
                    self.turns.repeat(signs)
        judgements = self._judge(rules)
        return [self._quantity(name, rule, judgements[name]) for name, rule in rules.items()]

    @property
    def _counted(self) -> list[Round]:
        return [pair for pair in self.rounds if not pair.throttled]

    def _judge(self, rules: Mapping[str, Rule]) -> dict[str, Judgement]:
        counted = self._counted
        usual, fresh = ([pair for pair in counted if pair.fresh is is_fresh] for is_fresh in (False, True))
        return {
            name: rule.follow([pair.ratio(name) for pair in usual], [pair.ratio(name) for pair in fresh])
            for name, rule in rules.items()
        }

    def _run_round(self, order: Order, *, fresh: bool) -> Round:
        settings, installed = self.session.settings, self.session.installed
        plan = Plan(settings.round_s, 1, _MIN_RUNS, _MAX_RUNS, settings.pinned)
        # Both have the inputs of the new release.
        sides = (installed[0], installed[1].with_inputs_of(installed[0]))
        turns = rounds.run([sides[index] for index in order], self.folder, plan, settings.sysfs)
        new, base = (turns[order.index(index)] for index in (0, 1))
        return Round(len(self.rounds) + 1, fresh, order[0] == 0, new, base)

    def _quantity(self, name: str, rule: Rule, judgement: Judgement) -> Quantity:
        counted = self._counted
        new, base = (
            float(np.median([metric_of(getattr(pair, side), name) for pair in counted])) if counted else math.nan
            for side in ("new", "base")
        )
        inconclusive = Judgement(Verdict.INCONCLUSIVE, 0, judgement.estimate, judgement.confirmation)
        # A quantity that some round did not report is never judged.
        is_reported = all(is_measured(turn, name) for pair in counted for turn in (pair.new, pair.base))
        verdict = judgement if judgement.final and is_reported else inconclusive
        return Quantity(name, new, base, rule.worst, rule, verdict)
