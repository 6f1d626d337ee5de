"""What each of two models of one store loses while the other one runs: paired windows, alone and beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from toolchain import stats
from toolchain.bundle import check_board
from toolchain.device import bench
from toolchain.device.bench import Conditions, Current, Latency
from toolchain.device.connected import ConnectedDevice
from toolchain.device.deploy import Settings
from toolchain.device.installed import Installed, installed_temporarily
from toolchain.device.lock import Owner
from toolchain.device.runner import Plan, Run
from toolchain.device.waiting import Waited
from toolchain.errors import InputError
from toolchain.models import inputs
from toolchain.pipeline import device_programs, steps, variants
from toolchain.pipeline.ab import Turns
from toolchain.progress import Stages, Step
from toolchain.stats import Ratio
from toolchain.tensors import Tensors

# Enough for an interval of 99 % that a single disturbed window does not decide; an even number, so that each order of
# the windows comes as often.
ROUNDS = 12

SCHEMA_VERSION = 1
_MIN_RUNS = 3
_ALONE, _BESIDE = 0, 1
# The windows of a round: which model is measured, and whether the other one runs. The other rounds have them backwards.
_WINDOWS = ((0, _ALONE), (0, _BESIDE), (1, _BESIDE), (1, _ALONE))


@dataclass(frozen=True)
class Side:
    """One of the two models.

    Attributes:
        slot: Its slot; empty for the releases without one.
        model: Its name.
        variant: The measured set of shapes; empty if there is one.
        digest: The digest of its release.
        alone: Statistics of its runs without the other model.
        beside: Statistics of its runs while the other model ran.
        slowdown: How many times as long a run takes beside the other model.
    """

    slot: str
    model: str
    variant: str
    digest: str
    alone: Latency
    beside: Latency
    slowdown: Ratio

    @property
    def label(self) -> str:
        """The slot if there is one, with the model and its variant."""
        name = " ".join(word for word in (self.model, self.variant and f"variant {self.variant}") if word)
        return f"{self.slot} ({name})" if self.slot else name

    @property
    def verdict(self) -> str:
        """`slower` or `faster` if it surely is so beside the other model; else empty."""
        low, high = self.slowdown.ci99 or (0.0, math.inf)
        return "slower" if low > 1 else "faster" if high < 1 else ""

    @property
    def outcome(self) -> str:
        value = f"{self.label} takes {self.slowdown.value:.2f} times as long"
        if self.slowdown.ci99 is None:
            return f"{value}, in too few rounds to be sure"
        low, high = self.slowdown.ci99
        doubt = "" if self.verdict else ": not measurably slower or faster"
        return f"{value}, 99 % within {low:.2f} to {high:.2f}{doubt}"


@dataclass(frozen=True)
class CoRun:
    """A finished measurement of two models beside each other."""

    board: str
    host: str
    emulated: bool  # whether the times are an emulator's
    threads: int  # of each model
    cpus: int  # of the device
    sides: tuple[Side, Side]
    before: Conditions
    after: Conditions
    waited: tuple[Waited, ...] = ()
    board_reason: str = ""
    notes: tuple[str, ...] = ()  # warnings that the command adds

    @property
    def warnings(self) -> tuple[str, ...]:
        emulated = ("emulated: these times say nothing about the real board",) if self.emulated else ()
        return (*emulated, *bench.disturbances(self.before, self.after), *self.notes)

    @property
    def apart(self) -> bool:
        """Whether each model had CPUs of its own."""
        return 2 * self.threads <= self.cpus

    def document(self) -> dict[str, Any]:
        document = asdict(self)
        del document["notes"]  # they are among the warnings
        return {
            "schema_version": SCHEMA_VERSION,
            "bundle_digest": self.sides[0].digest,
            **document,
            "sides": [{**asdict(side), "verdict": side.verdict} for side in self.sides],
            "own_cpus": self.apart,
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class _Model:
    """A current release, with the set of shapes to measure and its inputs."""

    current: Current
    device: ConnectedDevice
    variant: str
    arrays: Tensors  # its inputs

    @classmethod
    def read(cls, device: ConnectedDevice, source: inputs.Source, variant: str) -> _Model:
        """Read the current release of a device's slot, and make its inputs.

        Raises:
            InputError: The inputs or the variant do not fit, or it cannot be measured beside another one.
            VerificationError: It was built for another board.
            DeviceError: There is none.
        """
        current = bench.current(device.store, device.name)
        manifest = current.manifest
        check_board(manifest, device.board, root=device.store.folder)
        if manifest.modelled:
            raise InputError(
                f"{manifest.name} has modelled times, which do not change beside another model",
                hint="--beside is for boards whose times are measured",
            )
        name, *others = variants.chosen(source, manifest, variant)
        if others:
            raise InputError(
                f"--beside is for one of the {len(manifest.variants)} variants of {manifest.name}",
                details="\n".join(map(str, manifest.variants)),
                hint=f"name one of them: --variant {name}",
            )
        return cls(current, device, name, steps.make_inputs(source, manifest.of_variant(name)))


def bench_beside(
    source: inputs.Source,
    device: ConnectedDevice,
    slot: str,
    settings: Settings,
    stages: Stages,
    variant: str = "",
) -> CoRun:
    """Measure the current releases of two slots of a device, each alone and beside the other one, in turns.

    Args:
        source: Inputs of the first model; the other one gets random ones.
        device: The device, with the slot of the first model.
        slot: The slot of the other model.
        settings: How to measure.
        stages: Called with the progress.
        variant: The variant of the first model, if it has several; the other one runs its first one.

    Raises:
        InputError: There is no such slot, or it is the same; the inputs or the variant do not fit.
        VerificationError: A release was built for another board.
        DeviceError: A slot has no release, a model does not run, or the device is lost.
    """
    if slot == device.store.slot:
        raise InputError(
            f"--beside names the slot that is measured: {slot}",
            hint="name two slots: `toolchain bench --slot ONE --beside OTHER`; `toolchain status` lists them",
        )
    owner = Owner.here("bench")
    device.store.settle(owner)
    _read_both(source, device, slot, variant)  # what does not fit is refused before a runner is built
    runner = device_programs.runner(device.triple, stages)
    with device.store.lock(owner):
        models = _read_both(source, device, slot, variant)
        releases = [
            (model.current.release(runner, model.device, settings.threads).of_variant(model.variant), model.arrays)
            for model in models
        ]
        with installed_temporarily(releases, stages.tell) as installed:
            return _measure(installed, settings, stages)


def _read_both(source: inputs.Source, device: ConnectedDevice, slot: str, variant: str) -> list[_Model]:
    other = device.in_slot(slot)
    first_variant = bench.current(other.store, other.name).manifest.variant_names[0]
    return [
        _Model.read(device, source, variant),
        _Model.read(other, inputs.Source(seed=source.seed), first_variant),
    ]


def _measure(installed: Sequence[Installed], settings: Settings, stages: Stages) -> CoRun:
    device = installed[0].release.device
    alone = Plan(settings.budget_s / ROUNDS / len(_WINDOWS), warmup_runs=1, min_runs=_MIN_RUNS, pinned=settings.pinned)
    plans = [(alone, replace(alone, beside=other.as_neighbour)) for other in reversed(installed)]
    runs: dict[tuple[int, int], list[Run]] = {window: [] for window in _WINDOWS}
    before = bench.conditions(device.shell)
    with stages.timed("bench"):
        for number, order in Turns().rounds(ROUNDS):
            stages.tell(Step("measuring in turns", number, ROUNDS, "rounds"))
            for index, company in _WINDOWS if order[0] == 0 else reversed(_WINDOWS):
                runs[index, company].append(installed[index].run(plans[index][company]))
    after = bench.conditions(device.shell)
    first, second = (_side(each, runs[index, _ALONE], runs[index, _BESIDE]) for index, each in enumerate(installed))
    return CoRun(
        board=device.board.name,
        host=device.name,
        emulated=device.emulated,
        threads=runs[_WINDOWS[0]][0].threads,
        cpus=installed[0].release.facts.cpus,
        sides=(first, second),
        before=before,
        after=after,
        waited=device.store.waited,
    )


def _side(installed: Installed, alone: Sequence[Run], beside: Sequence[Run]) -> Side:
    alone_ns, beside_ns = ([run.samples_ns for run in runs] for runs in (alone, beside))
    latencies = [
        bench.statistics([value / 1e6 for window in windows for value in window]) for windows in (alone_ns, beside_ns)
    ]
    release = installed.release
    return Side(
        slot=release.device.store.slot,
        model=release.manifest.name,
        variant=release.variant,
        digest=f"sha256:{release.digest}",
        alone=latencies[_ALONE],
        beside=latencies[_BESIDE],
        slowdown=stats.ratio(beside_ns, alone_ns),
    )
