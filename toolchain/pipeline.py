"""From a model's name to a report: the stages in their order, each of them told and timed."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from toolchain import bench, bundle, cross, deploy, device_runtime, inputs
from toolchain.bench import Measurement
from toolchain.board import Board, Device
from toolchain.bundle import Bundle, Manifest
from toolchain.deploy import Progress, Stages
from toolchain.device_runtime import Program
from toolchain.errors import InputError
from toolchain.inputs import Guess
from toolchain.report import Report
from toolchain.runner import Plan
from toolchain.shell import Shell
from toolchain.store import Store
from toolchain.tensors import Tensors
from toolchain.tuning.records import SHIPPED, Key, RecordFile, Records, default_path

Tell = Callable[[str], None]
"""Called with one line at the start of each stage."""


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


@dataclass(frozen=True)
class Model:
    """What to build, from the command line.

    Attributes:
        source: Zoo name or path of an ONNX file; for a deploy also a package or a bundle.
        shapes: Shapes of inputs that the file leaves open.
        given: What it is run with.
    """

    source: str
    shapes: Mapping[str, tuple[int, ...]]
    given: inputs.Source


@dataclass(frozen=True)
class Settings:
    """How to check and to measure.

    Attributes:
        budget_s: Seconds to measure.
        threads: Threads of the model; 0 means the board file's number.
        pinned: Whether each thread has a CPU of its own.
        tolerance: Limit for the outputs' relative difference, or None for the dtype's own.
        labels: File of class names for a top-5 table.
    """

    budget_s: float = 10.0
    threads: int = 0
    tolerance: float | None = None
    pinned: bool = True
    labels: Path | None = None


@dataclass(frozen=True)
class Pipeline:
    """The stages for one board type.

    Attributes:
        board: The board type, resolved.
        tell: Who is told about each stage.
        toolchain: `container` or `host`, where libraries are linked; empty means as the board file says.
        records: File of tuning records to apply; None means the board's own, if there is one; `shipped` means none but
            those that come with the toolchain.
        tuned: Whether records are applied at all.
        emulated: Whether the records of an emulator are applied, instead of those of a real board.
        without: Names of templates that must not be used.
        stages: The time of each stage so far.
    """

    board: Board
    tell: Tell
    toolchain: str = ""
    records: Path | None = None
    tuned: bool = True
    emulated: bool = False
    without: tuple[str, ...] = ()
    stages: Stages = field(default_factory=Stages)

    def build(self, wanted: Model, folder: Path | None = None) -> Bundle:
        """Import a model, compute its reference and compile it; the bundle goes to build/MODEL-BOARD by default."""
        # TVM and ONNX Runtime take seconds to import, and a deploy of a package does without them.
        from toolchain import compiler, model, reference  # noqa: PLC0415

        compiler_driver = cross.choose(self.board, self.toolchain)
        compiler_driver.describe()  # a missing compiler or image is told before a minute goes into the model
        found = self._records(compiler.record_key(self.board, emulated=self.emulated))
        with self.stages.timed("import"):
            self.tell(f"importing {wanted.source}")
            loaded = model.load(wanted.source, wanted.shapes, wanted.given.seed)
            fed = inputs.make(wanted.given, loaded.inputs)
            loaded = compiler.suited(loaded, self.board, wanted.given, self.without, self.tell)
            imported = model.import_model(loaded)
        with self.stages.timed("reference"):
            exact = compiler.computes_int8(self.board, self.without)
            name = reference.name(to_the_letter=exact)
            self.tell(f"running it with {name}")
            outputs = reference.run(loaded, fed, to_the_letter=exact)
            expected = bundle.Reference(
                name, fed, outputs, reference.tolerance(loaded, float16=self.board.target.float16)
            )
        with self.stages.timed("compile"):
            self.tell(f"compiling for {self.board.name}")
            target = folder or Path("build") / f"{loaded.name}-{self.board.name}"
            command = self._reproducer(loaded.origin, wanted)
            return compiler.build(
                imported,
                self.board,
                compiler_driver,
                target,
                command=command,
                reference=expected,
                records=found,
                shipped=self._shipped(),
                emulated=self.emulated,
                without=self.without,
                tell=self.tell,
            )

    def _records(self, key: Key) -> Records | None:
        """Read the tuning records that are to be applied; None if there are none."""
        path = self.records or default_path(self.board.name)
        only_shipped = str(path) == SHIPPED
        if not self.tuned or only_shipped or (self.records is None and not path.exists()):
            return None
        found = RecordFile(path).read()
        if self.records and key not in found.keys:
            raise InputError(
                f"{path} has no records for {self.board.name}",
                details="\n".join(
                    [f"wanted: {_described(key)}", *(f"found:  {_described(one)}" for one in found.keys)]
                ),
                hint="`toolchain tune MODEL --board BOARD` makes some; --no-records builds without",
            )
        return found

    def _shipped(self) -> Records | None:
        """Read the toolchain's own records; a user who asked for them alone is told where there are none."""
        from toolchain import compiler  # noqa: PLC0415 - as above

        found = compiler.shipped_records(self.board) if self.tuned else None
        if found is None and str(self.records) == SHIPPED:
            self.tell(f"the toolchain has no records of its own that suit {self.board.name}")
        return found

    def _reproducer(self, origin: str, wanted: Model) -> str:
        """Name the command that makes a bundle again, without any path of this machine."""
        words = ["toolchain", "build", origin, "--board", self.board.name]
        if self.toolchain and self.toolchain != self.board.toolchain:
            words += ["--toolchain", self.toolchain]
        for name, shape in sorted(wanted.shapes.items()):
            words += ["--shape", f"{name}:{','.join(map(str, shape))}"]
        words += ["--float16"] if self.board.target.float16 else []
        return " ".join([*words, "--seed", str(wanted.given.seed)])

    def obtain(self, wanted: Model, folder: Path) -> tuple[Bundle, inputs.Source | None]:
        """Open a bundle, unpack a package, or build a model into `folder`.

        Returns:
            The bundle, and the inputs to measure with where they are not those of its reference.
        """
        path, given = Path(wanted.source), wanted.given
        own = given if given.npz or given.image else None
        if is_built(path):
            return (bundle.load(path) if path.is_dir() else bundle.unpack(path, folder)), own
        return self.build(wanted, folder), None

    def runner(self) -> Program:
        """Build the board's runner, or take it from the cache."""
        with self.stages.timed("runner"):
            self.tell(f"preparing the runner for {self.board.triple}")
            return device_runtime.build(self.board.triple, self.board.machine, self.tell).runner

    def deploy(  # noqa: PLR0913, PLR0917 - a deploy has these independent parts
        self,
        made: Bundle,
        given: inputs.Source | None,
        program: Program,
        lab: Lab,
        settings: Settings,
        progress: Progress | None = None,
    ) -> Report:
        """Deploy a bundle, check its outputs on the device, and measure it there."""
        labels = _labels(settings, made.manifest)
        self.tell(f"deploying {made.manifest.name} to {lab.shell.name}")
        done = deploy.deploy(
            made,
            program,
            lab.shell,
            lab.store,
            keep=self.board.keep,
            threads=settings.threads or self.board.threads,
            tolerance=settings.tolerance,
            stages=self.stages,
            progress=progress,
        )
        fed = inputs.make(given, made.manifest.inputs) if given else deploy.samples_of(made).inputs
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
        )

    def bench(self, given: inputs.Source, lab: Lab, settings: Settings) -> Report:
        """Measure the release that a device runs."""
        found = bench.current(lab.store, lab.shell.name)
        labels = _labels(settings, found.manifest)
        fed = inputs.make(given, found.manifest.inputs)
        measured = self._measure(lab, self.runner(), fed, settings)
        return Report(
            board=self.board.name,
            host=lab.shell.name,
            model=found.manifest.name,
            bundle_digest=found.generation.digest,
            emulated=lab.emulated,
            facts=lab.store.facts(),
            stages=self.stages.seconds,
            measurement=measured,
            transfer=measured.transfer,
            top=_top(labels, measured),
            modelled=found.manifest.modelled,
        )

    def _measure(self, lab: Lab, program: Program, fed: Tensors, settings: Settings) -> Measurement:
        self.tell(f"measuring for {settings.budget_s:g} s")
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


def is_built(path: Path) -> bool:
    """Tell whether a path is a bundle or a package, and no model."""
    return (path / bundle.MANIFEST).is_file() or (path.is_file() and tarfile.is_tarfile(path))


def _described(key: Key) -> str:
    return f"{key.target}, TVM {key.tvm}" + (", of an emulator" if key.emulated else "")


def _labels(settings: Settings, manifest: Manifest) -> list[str]:
    """Read the labels before anything is deployed, since they may not fit."""
    return inputs.read_labels(settings.labels, manifest.outputs[0].elements) if settings.labels else []


def _top(labels: list[str], measured: Measurement) -> tuple[Guess, ...]:
    return inputs.top(next(iter(measured.run.outputs.values())), labels) if labels else ()
