"""The stages on a device: its programs, a deploy with its check, and a measurement."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from toolchain import temporary
from toolchain.board import Board
from toolchain.bundle import Bundle, check_board
from toolchain.bundle.manifest import Manifest
from toolchain.compile.request import Tell
from toolchain.device import application, bench, deploy, energy, trust
from toolchain.device.application import Started
from toolchain.device.bench import Current, Measurement
from toolchain.device.deploy import Stages
from toolchain.device.energy import Energy
from toolchain.device.lock import Owner
from toolchain.device.runner import Plan
from toolchain.device.shipment import Shipment, install
from toolchain.device.store import Generation, Store
from toolchain.device.waiting import Patience
from toolchain.devices import Device
from toolchain.models import inputs
from toolchain.models.inputs import Guess
from toolchain.native import programs
from toolchain.native.programs import Program
from toolchain.pipeline.report import Report
from toolchain.progress import stage
from toolchain.shell import Shell, SshOptions, open_shell
from toolchain.tensors import Tensors


@dataclass(frozen=True)
class Lab:
    """One opened device: its type, its entry in the lab, the connection, and its store."""

    board: Board
    device: Device
    shell: Shell
    store: Store

    @property
    def emulated(self) -> bool:
        """Whether its times are an emulator's."""
        return self.board.emulated or self.device.emulated


@contextlib.contextmanager
def opened(  # noqa: PLR0913, PLR0917 - these are independent
    board: Board,
    device: Device,
    ssh: SshOptions,
    root: str = "",
    tell: Tell = lambda _line: None,
    patience: Patience | None = None,
) -> Iterator[Lab]:
    """Connect to a device.

    Args:
        board: Its type.
        device: Where it is.
        ssh: How the user wants it to be reached; the device's own SSH configuration stands behind the user's.
        root: Folder on it; empty for the device's own, or its board type's.
        tell: Told what was put right on the device on the way.
        patience: How long others may be at work on it; not at all by default.

    Raises:
        DeviceError: It cannot be reached.
    """
    options = ssh.before(device.ssh_config)
    address = None if board.connection == "local" else device.host
    with open_shell(address, config=options) as shell:
        yield Lab(board, device, shell, Store(shell, root or device.root or board.root, tell, patience))


@dataclass(frozen=True)
class Settings:
    """How to check and to measure.

    Attributes:
        budget_s: Seconds to measure.
        threads: Threads of the model; 0 means the board file's number.
        pinned: Whether each thread has a CPU of its own.
        tolerance: Limit for the outputs' relative difference, or None for the dtype's own.
        labels: File of class names for a top-5 table.
        samples: How many inputs a deploy compares with the reference.
        library: Whether a deploy brings the library that applications are linked with.
        unchecked: Whether a deploy takes a bundle without its reference, too.
        energy: Whether a benchmark measures energy as well.
    """

    budget_s: float = 10.0
    threads: int = 0
    tolerance: float | None = None
    pinned: bool = True
    labels: Path | None = None
    samples: int = 1
    library: bool = False
    unchecked: bool = False
    energy: bool = False


@dataclass(frozen=True)
class DeviceStages:
    """The stages on devices of one board type.

    Attributes:
        board: The board type, resolved.
        tell: Who is told about each stage.
        stages: The time of each stage so far.
    """

    board: Board
    tell: Tell
    stages: Stages = field(default_factory=Stages)

    def building_runner(self) -> contextlib.AbstractContextManager[None]:
        """Build the board's runner in the background for the time of a block, where `runner` asks for it.

        Raises:
            BuildError: There is none for the board's triple.
        """
        return programs.building(programs.RUNNER, self.board.triple, self.board.machine)

    def runner(self) -> Program:
        """Build the board's runner, or take it from the cache."""
        with self.stages.timed("runner"):
            self.tell(stage(f"preparing the runner for {self.board.triple}"))
            return programs.build(programs.RUNNER, self.board.triple, self.board.machine, self.tell)

    def library(self) -> Program:
        """Build the library that applications for the board are linked with, or take it from the cache."""
        with self.stages.timed("runner"):
            self.tell(stage(f"preparing the library for {self.board.triple}"))
            return programs.build(programs.LIBRARY, self.board.triple, self.board.machine, self.tell)

    def deploy(
        self,
        made: Bundle,
        given: inputs.Source | None,
        program: Program,
        lab: Lab,
        settings: Settings,
    ) -> Report:
        """Deploy a bundle, check its outputs on the device, and measure it there.

        Raises:
            VerificationError: It was built for another board; and as `deploy.deploy`.
        """
        check_board(made.manifest, self.board)
        labels = _labels(settings, made.manifest)
        library = self.library() if settings.library else None
        fed = inputs.make(given, made.manifest.inputs) if given else deploy.samples_of(made, unchecked=True).inputs
        self.tell(stage(f"deploying {made.manifest.name} to {lab.shell.name}"))
        with lab.store.lock(Owner.here(f"deploy {made.manifest.name}")):
            done = deploy.deploy(
                made,
                program,
                lab.shell,
                lab.store,
                keep=self.board.keep,
                threads=settings.threads or self.board.threads,
                tolerance=settings.tolerance,
                count=settings.samples,
                stages=self.stages,
                tell=self.tell,
                application=lab.device.run,
                library=library,
                unchecked=settings.unchecked,
            )
            bench.check_current(lab.store, made.digest, lab.shell.name)
            measured = self._measure(lab, program, fed, settings)
        return Report(
            board=self.board.name,
            host=lab.shell.name,
            model=made.manifest.name,
            bundle_digest=made.digest,
            emulated=lab.emulated,
            facts=done.facts,
            stages=self.stages.seconds,
            measurement=measured,
            reference=done.reference,
            difference=done.difference,
            transfer=done.transfer,
            top=_top(labels, measured),
            modelled=made.manifest.modelled,
            half=made.manifest.half,
            int8=made.manifest.int8,
            application=done.application,
            fidelity=done.fidelity,
            unchecked=done.difference is None,
            verified=done.verified,
            waited=lab.store.waited,
        )

    def bench(self, given: inputs.Source, lab: Lab, settings: Settings) -> Report:
        """Measure the release that a device runs.

        Raises:
            VerificationError: It was built for another board, whose name the report would not say.
        """
        owner = Owner.here("bench")
        lab.store.settle(owner)
        seen = bench.current(lab.store, lab.shell.name)
        root = lab.store.root
        # What does not fit is refused before a runner is built.
        fed, labels = self._fitting(given, seen.manifest, settings, root)
        program = self.runner()
        with lab.store.lock(owner):
            found = bench.current(lab.store, lab.shell.name)
            if found.generation.digest != seen.generation.digest:  # a deploy that was waited for has changed it
                fed, labels = self._fitting(given, found.manifest, settings, root)
            measured = self._measure(lab, program, fed, settings)
            spent = self._energy(lab, program, fed, (found, measured), settings) if settings.energy else None
        return Report(
            board=self.board.name,
            host=lab.shell.name,
            model=found.manifest.name,
            energy=spent,
            bundle_digest=found.generation.digest,
            emulated=lab.emulated,
            facts=lab.store.facts(),
            stages=self.stages.seconds,
            measurement=measured,
            transfer=measured.transfer,
            top=_top(labels, measured),
            modelled=found.manifest.modelled,
            half=found.manifest.half,
            int8=found.manifest.int8,
            unchecked=lab.store.is_unchecked(found.generation.digest),
            waited=lab.store.waited,
        )

    def _fitting(
        self, given: inputs.Source, manifest: Manifest, settings: Settings, root: str
    ) -> tuple[Tensors, list[str]]:
        """Return inputs and labels for a release, or refuse those that do not fit it, and one of another board."""
        check_board(manifest, self.board, root=root)
        return inputs.make(given, manifest.inputs), _labels(settings, manifest)

    def _energy(
        self, lab: Lab, program: Program, fed: Tensors, measured: tuple[Current, Measurement], settings: Settings
    ) -> Energy:
        """Measure the energy of what was just measured for its latency, on a device whose lock is held."""
        found, latency = measured
        times = latency.run.samples_ns
        if lab.emulated:
            return Energy(None, "an emulator does not have the board's power consumption")
        self.tell(stage(f"measuring energy for {energy.IDLE_S + energy.RUN_S:g} s or more"))
        with self.stages.timed("energy"), temporary.folder() as work:
            shipment = Shipment.of_run(program, fed, Path(work))  # it is there, from the latency before
            return energy.measure(
                lab.shell,
                lab.store.root,
                install(shipment, lab.store),
                release=f"{lab.store.root}/releases/{found.generation.digest}",
                threads=settings.threads or self.board.threads,
                method=energy.Method(meter=lab.device.power.command if lab.device.power else ""),
                inference_s=sum(times) / len(times) / 1e9,
                pinned=settings.pinned,
            )

    def _measure(self, lab: Lab, program: Program, fed: Tensors, settings: Settings) -> Measurement:
        self.tell(stage(f"measuring for {settings.budget_s:g} s"))
        with self.stages.timed("bench"):
            return bench.measure(
                bench.current(lab.store, lab.shell.name),
                program,
                lab.shell,
                lab.store,
                given=fed,
                threads=settings.threads or self.board.threads,
                plan=Plan(settings.budget_s, pinned=settings.pinned),
                emulated=lab.emulated,
            )


def roll_back(lab: Lab, tell: Tell) -> tuple[Generation, Started | None]:
    """Make the release before the current one current again; the caller holds the lock.

    Returns:
        What is current now, and how the device's application started on it; None where none is known.

    Raises:
        VerificationError: The device does not take that release any more; or the application is not well on it.
        DeviceError: There is none, or the device is lost.
    """
    lab.store.sweep()
    trust.verify_previous(lab.store)
    if lab.device.run:
        return application.roll_back(lab.store, lab.device.run, tell)
    return lab.store.roll_back(), None


def _labels(settings: Settings, manifest: Manifest) -> list[str]:
    """Read the labels before anything is deployed, since they may not fit."""
    return inputs.read_labels(settings.labels, manifest.outputs[0].elements) if settings.labels else []


def _top(labels: list[str], measured: Measurement) -> tuple[Guess, ...]:
    return inputs.top(next(iter(measured.run.outputs.values())), labels) if labels else ()
