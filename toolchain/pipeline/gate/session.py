"""A gate on the device: install both sides, compare their outputs, run them in turns until the verdict is clear."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from toolchain import rankings, temporary, tensors
from toolchain.device import bench, rounds, runner, verification
from toolchain.device.connected import ConnectedDevice
from toolchain.device.installed import DeviceRelease, Installed
from toolchain.device.lock import Owner
from toolchain.device.runner import Plan, Run
from toolchain.device.verification import Samples
from toolchain.errors import InputError, ToolchainError, VerificationError
from toolchain.models import inputs
from toolchain.native.programs import Program
from toolchain.pipeline import profile
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
from toolchain.pipeline.sides import Side, check_pair, turn_order
from toolchain.progress import Progress, Step, stage
from toolchain.stats import Judgement, Rule, Verdict
from toolchain.tables import duration
from toolchain.tensors import Difference

_MAX_RUNS = 2000  # of a round: the times of all of them are kept
_MIN_RUNS = 3
_MAX_REPEATS = 8  # of rounds in which the device was throttled
_COOLING_S = 1.0
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


def run(
    new: Side,
    base: Side,
    program: Program,
    device: ConnectedDevice,
    settings: GateSettings,
    progress: Progress = lambda _line: None,
) -> Gate:
    """Gate a release against its base on a device.

    The device keeps its current release, its lock is held throughout, and everything that was sent is removed.
    A gate that does not pass raises nothing: see `Gate.fault`.

    Raises:
        InputError: The pair cannot be compared, or the device is emulated.
        VerificationError: The device does not fit, or outputs differ from a reference or from each other.
        DeviceError: The device is lost, busy or full, or a side does not run on it.
    """
    check_emulated(device.emulated, device.name, settings)
    check_pair(new, base, device.board)
    samples = _samples(new, base)
    if settings.retrained and samples[0].expected is None:
        raise InputError(
            "the outputs of the new release cannot be verified: it has other weights and no reference here",
            details="with --retrained, its outputs are compared only with its own reference",
            hint="name its package, which has the reference; without --retrained they are compared with the base",
        )
    releases = [side.release(program, device, settings.threads) for side in (new, base)]
    with temporary.folder() as work, device.store.lock(Owner.here("gate")):
        began = time.monotonic()
        try:
            session = _Session(new, base, releases, settings, Path(work), progress)
            return session.gate(samples, began)
        finally:
            device.store.releases.prune(device.board.keep)


@dataclass(frozen=True)
class _Session:
    """A gate on a locked device; `releases` are those of both sides, the new one first."""

    new: Side
    base: Side
    releases: Sequence[DeviceRelease]
    settings: GateSettings
    work: Path
    progress: Progress

    @property
    def device(self) -> ConnectedDevice:
        return self.releases[0].device

    def gate(self, samples: Sequence[Samples], began: float) -> Gate:
        device = self.device
        self.progress(stage(f"sending both releases to {device.name}"))
        sides = []
        for release, side_samples in zip(self.releases, samples, strict=True):
            folder = self.work / release.digest
            folder.mkdir()
            sides.append(release.install(side_samples.inputs, folder, self.progress))
        new, base = sides
        self.progress(stage("comparing their outputs"))
        outputs = self._outputs(samples, new, base)
        before = bench.conditions(device.shell)
        with runner.scratch(device.shell, device.store.root) as scratch:
            measuring = _RoundRunner(self, scratch, (new, base))
            quantities = measuring.judge_all()
        after = bench.conditions(device.shell)
        is_slower = quantities[0].verdict is Verdict.REGRESSION
        return Gate(
            new=self.new,
            base=self.base,
            board=device.board.name,
            host=device.name,
            emulated=device.emulated,
            facts=self.releases[0].facts,
            threads=measuring.threads,
            outputs=outputs,
            quantities=(*quantities, *self._size_quantity()),
            rounds=tuple(measuring.rounds),
            hot=measuring.hot,
            before=before,
            after=after,
            waited=device.store.waited,
            slower_layers=self._find_culprits(new, base) if is_slower else "",
            seconds=time.monotonic() - began,
        )

    def _find_culprits(self, new: Installed, base: Installed) -> str:
        """Name the layers that became slower. If profiling fails, the gate still reports the slow-down."""
        self.progress(stage("looking for the layers that became slower"))
        request = profile.ProfileRequest(_PROFILED_RUNS, self.settings.threads, self.settings.pinned)
        try:
            sides = (self.new, self.base)
            return culprits_text(
                against.profile_installed(sides, (new, base.with_inputs_of(new)), request, self.progress)
            )
        except ToolchainError as fault:
            return f"unknown, because profiling failed: {fault.message}"

    def _outputs(self, samples: Sequence[Samples], new: Installed, base: Installed) -> Outputs:
        """Run each side on its reference's inputs, and both on the same; a difference ends the gate."""
        first, second = new.run(runner.SMOKE), base.run(runner.SMOKE)
        new_difference = self._check_reference(self.new, first, samples[0])
        base_difference = self._check_reference(self.base, second, samples[1])
        reference = samples[0].runtime or samples[1].runtime
        if self.settings.retrained:
            return Outputs(new_difference, base_difference, None, reference)
        if new.folders["inputs"] != base.folders["inputs"]:
            second = base.with_inputs_of(new).run(runner.SMOKE)
        return Outputs(new_difference, base_difference, self._compare_sides(first, second, samples[0]), reference)

    def _check_reference(self, side: Side, run: Run, samples: Samples) -> Difference | None:
        try:
            return verification.check_outputs(run, samples, side.manifest, self.settings.tolerance)
        except VerificationError as fault:
            which = "the new release" if side is self.new else "the base"
            raise VerificationError(
                f"{which}, {side.label}: {fault.message}", details=fault.details, hint=fault.hint
            ) from fault

    def _compare_sides(self, first: Run, second: Run, samples: Samples) -> Difference:
        limit = samples.tolerance if self.settings.tolerance is None else self.settings.tolerance
        specs = self.new.manifest.outputs
        new, base = (tensors.cut(run.outputs, specs) for run in (first, second))
        difference = rankings.compare(new, base, samples.rankings, limit)
        if not difference.ok:
            raise VerificationError(
                f"{self.new.label} and {self.base.label} compute different outputs",
                details=f"largest relative difference {difference.max_rel:.3g}, tolerance {difference.tolerance:.3g}; "
                f"largest absolute difference {difference.max_abs:.3g}",
                hint="use --retrained if the weights were meant to change, or --tolerance for another limit",
            )
        return difference

    def _size_quantity(self) -> list[Quantity]:
        limit = self.settings.package_size
        if limit is None:
            return []
        more = self.new.size > self.base.size * (1 + limit)
        verdict = Verdict.REGRESSION if more else Verdict.PASS
        return [Quantity(PACKAGE_SIZE, self.new.size, self.base.size, limit, None, Judgement(verdict))]


def culprits_text(comparison: against.Against) -> str:
    """Name the layers that cause a slow-down: the worst first, at most five of them."""
    worst = against.culprits(comparison)
    layers = [f"{layer.name} ({duration(layer.more_ms, signed=True)})" for layer in worst[:_MAX_CULPRITS]]
    more = [f"and {len(worst) - _MAX_CULPRITS} more"] if len(worst) > _MAX_CULPRITS else []
    unmatched = [against.unmatched_text(comparison)] if against.unmatched(comparison) else []
    return "; ".join([*(layers or ["no single layer is measurably slower"]), *more, *unmatched])


def _samples(new: Side, base: Side) -> tuple[Samples, Samples]:
    """Return the inputs for each side: of its own reference, or else of the other's, or random ones."""
    available = [verification.samples_of(side.bundle, unchecked=True) if side.bundle else None for side in (new, base)]
    referenced = [samples if samples and samples.expected is not None else None for samples in available]
    random = Samples(inputs.random(new.manifest.inputs, seed=0), None)
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
    """Runs rounds of both sides until each quantity is judged; `sides` are the new release and the base."""

    session: _Session
    folder: str
    sides: tuple[Installed, Installed]
    rounds: list[Round] = field(default_factory=list)
    hot: str = ""
    threads: int = 0

    def judge_all(self) -> list[Quantity]:
        """Run rounds until every quantity is judged, or until the device is too hot to go on."""
        rules = self.session.settings.rules()
        judgements = self._judge(rules)
        while not self.hot and not all(judgement.final for judgement in judgements.values()):
            pending = [judgement for judgement in judgements.values() if not judgement.final]
            undecided = [judgement for judgement in pending if judgement.verdict is Verdict.GO_ON]
            # Fresh rounds, which confirm a regression, begin only when no quantity needs more of the usual ones.
            needed = max(judgement.needed for judgement in undecided or pending)
            self._run_round(fresh=not undecided, needed=needed)
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

    def _run_round(self, *, fresh: bool, needed: int) -> None:
        """Run one more round that counts: throttled rounds are repeated after a pause."""
        finished = sum(pair.fresh is fresh for pair in self._counted)
        self.session.progress(Step("confirming" if fresh else "measuring in turns", finished, needed, "rounds"))
        while (latest := self._run_any_round(fresh=fresh)).throttled:
            if sum(bool(pair.throttled) for pair in self.rounds) > _MAX_REPEATS:
                self.hot = f"the device throttled in {_MAX_REPEATS + 1} rounds: {', '.join(latest.throttled)}"
                return
            time.sleep(_COOLING_S)

    def _run_any_round(self, *, fresh: bool) -> Round:
        number = len(self.rounds) + 1
        # A repeat has the order of the round that it replaces: perhaps only that order heats the device.
        order = turn_order(sum(pair.fresh is fresh for pair in self._counted))
        settings, device = self.session.settings, self.session.device
        turns = rounds.run(
            device.shell,
            self.folder,
            self.sides[0].folders,
            [self.sides[index].folders["releases"] for index in order],
            threads=self.session.releases[0].threads,
            plan=Plan(settings.round_s, 1, _MIN_RUNS, _MAX_RUNS, settings.pinned),
            sysfs=settings.sysfs,
        )
        self.threads = turns[0].run.threads
        new, base = (turns[order.index(index)] for index in (0, 1))
        self.rounds.append(Round(number, fresh, order[0] == 0, new, base))
        return self.rounds[-1]

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
