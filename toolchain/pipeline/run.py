"""The release of a device on a user's own inputs: what it computes, how long each run took, and the best classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain import arrays, tensors
from toolchain.bundle import check_board
from toolchain.bundle.manifest import Manifest
from toolchain.compile.request import Tell
from toolchain.device import bench, deploy, sampling
from toolchain.device.bench import Current, Latency
from toolchain.device.lock import Owner
from toolchain.device.processor import Processor
from toolchain.device.sampling import Place, Sampled
from toolchain.device.shipment import Transfer
from toolchain.device.waiting import Waited
from toolchain.errors import InputError
from toolchain.models import inputs, series
from toolchain.models.inputs import Guess
from toolchain.models.series import Series
from toolchain.native.programs import Program
from toolchain.pipeline.device import DeviceStages, Lab
from toolchain.pipeline.report import waited_rows
from toolchain.tables import Table


@dataclass(frozen=True)
class Wanted:
    """What is run, and where the outputs go.

    Attributes:
        output: The .npz file for the outputs.
        npz: Inputs as an .npz or .npy file.
        pictures: Inputs as pictures, or folders of them.
        labels: File of class names, for the best five of each sample.
        threads: Threads; 0 means the board file's number.
    """

    output: Path
    npz: Path | None = None
    pictures: tuple[Path, ...] = ()
    labels: Path | None = None
    threads: int = 0

    def check(self) -> None:
        """See what can be seen without the device.

        Raises:
            InputError: There are no inputs, or two kinds of them; a file is missing; the outputs cannot be written.
        """
        if not self.npz and not self.pictures:
            raise InputError("there is nothing to run", hint="pass inputs with --input FILE.npz or --image FILE")
        if self.npz and self.pictures:
            raise InputError("--input and --image cannot be combined", hint="leave one of them out")
        for path in (*((self.npz,) if self.npz else ()), *self.pictures, *((self.labels,) if self.labels else ())):
            if not path.exists():
                raise InputError(f"there is no file {path}", hint="pass an existing file")
            if path.resolve() == self.output.resolve():
                raise InputError(
                    f"{path} is an input, which --output would overwrite", hint="choose another output file"
                )
        arrays.check_target(self.output)

    def series(self, manifest: Manifest) -> Series:
        """Read the inputs.

        Raises:
            InputError: They cannot be read, or do not fit the release.
        """
        if self.npz:
            return series.of_file(self.npz, manifest.inputs)
        return series.of_pictures(self.pictures, manifest.inputs)


@dataclass(frozen=True)
class Ran:
    """What a run on somebody's inputs gave.

    Attributes:
        board: Board type.
        host: Name of the device.
        model: Model name.
        digest: Digest of the release.
        emulated: Whether the times are an emulator's.
        output: The file that was written.
        shapes: Shape and element type of each of its arrays, by name.
        samples: How many samples were run.
        latency: Times of the samples in milliseconds; the first of each process warms up.
        pieces: How many processes ran them.
        load_ms: Time to load the release, in one process.
        threads: Threads the model ran on.
        peak_rss_kib: Largest memory use of a process.
        processor: What the kernels ran on; None for the CPU.
        transfer: What was sent.
        top: For each sample its name and its best five classes, where labels were given.
        waited: Who was at work on the device before, and how long they were waited for.
    """

    board: str
    host: str
    model: str
    digest: str
    emulated: bool
    output: Path
    shapes: Mapping[str, tuple[tuple[int, ...], str]]
    samples: int
    latency: Latency
    pieces: int
    load_ms: float
    threads: int
    peak_rss_kib: int
    processor: Processor | None
    transfer: Transfer
    top: Sequence[tuple[str, tuple[Guess, ...]]] = ()
    waited: tuple[Waited, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return what --json prints; docs/device.md describes it."""
        kept = ("board", "host", "model", "emulated", "samples", "pieces", "load_ms", "threads", "peak_rss_kib")
        return {
            **{name: getattr(self, name) for name in kept},
            "bundle_digest": f"sha256:{self.digest}",
            "output": str(self.output),
            "outputs": {name: {"shape": shape, "dtype": dtype} for name, (shape, dtype) in self.shapes.items()},
            "latency_ms": asdict(self.latency),
            "processor": asdict(self.processor) if self.processor else None,
            "transfer": asdict(self.transfer),
            "waited": [asdict(one) for one in self.waited],
            "top": [{"sample": name, "classes": [_guess(one) for one in guesses]} for name, guesses in self.top],
        }

    def shown(self) -> list[str | Table]:
        """Return what a person is shown."""
        mark = " (emulated)" if self.emulated else ""
        found = ", ".join(f"{name} {_size(shape)} {dtype}" for name, (shape, dtype) in self.shapes.items())
        rows = [
            ("model", self.model),
            ("release", self.digest[:16]),
            ("board", f"{self.board} at {self.host}{mark}"),
            *([("computed on", self.processor.text)] if self.processor else []),
            ("samples", f"{self.samples} in {self.pieces} process(es) on {self.threads} thread(s)"),
            ("latency", f"{self.latency.median:.3g} ms median{mark}, {self.latency.max:.3g} ms max"),
            ("outputs", f"{found} in {self.output}"),
            *waited_rows(self.waited),
        ]
        best = [(name, f"{one.score:.4g}", one.label) for name, guesses in self.top for one in guesses]
        ranked: list[str | Table] = ["", Table(best, ("sample", "score", "class"))] if best else []
        return [Table(rows), *ranked]


def _guess(one: Guess) -> dict[str, Any]:
    return {**asdict(one), "score": one.score if np.isfinite(one.score) else None}


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def run(stages: DeviceStages, lab: Lab, wanted: Wanted) -> Ran:
    """Run the release that a device runs on inputs, and write its outputs to a file.

    Args:
        stages: The stages of the device's board type.
        lab: The device.
        wanted: What to run; it was checked.

    Raises:
        InputError: The inputs do not fit the release, or the file cannot be written.
        DeviceError: Nothing was deployed there; the device is busy, full or lost; the model does not run on it.
        VerificationError: The device or the board type does not fit the release, or the outputs are not what it says.
    """
    owner = Owner.here("run")
    lab.store.settle(owner)
    seen = bench.current(lab.store, lab.shell.name)
    # What does not fit is refused before the runner is built.
    given, labels = _fitting(wanted, seen.manifest, stages, lab.store.root)
    program = stages.runner()
    with lab.store.lock(owner):
        found = bench.current(lab.store, lab.shell.name)
        if found.generation.digest != seen.generation.digest:  # a deploy that was waited for has changed it
            given, labels = _fitting(wanted, found.manifest, stages, lab.store.root)
        threads = wanted.threads or stages.board.threads
        sampled = _run_current(found, program, lab, given, threads, stages.tell)
    kept = _outputs(sampled, given, found.manifest)
    arrays.save(wanted.output, kept, f"sha256:{found.generation.digest}")
    return Ran(
        board=stages.board.name,
        host=lab.shell.name,
        model=found.manifest.name,
        digest=found.generation.digest,
        emulated=lab.emulated,
        output=wanted.output,
        shapes={name: (tuple(value.shape), str(value.dtype)) for name, value in kept.items()},
        samples=given.count,
        latency=bench.statistics([value / 1e6 for value in sampled.each_ns]),
        pieces=sampled.pieces,
        load_ms=sampled.load_ms,
        threads=sampled.threads,
        peak_rss_kib=sampled.peak_rss_kib,
        processor=sampled.processor,
        transfer=Transfer.of(sampled.sent, lab.shell),
        top=_top(sampled, given, labels, found.manifest) if labels else (),
        waited=lab.store.waited,
    )


def _fitting(wanted: Wanted, manifest: Manifest, stages: DeviceStages, root: str) -> tuple[Series, list[str]]:
    """Return the samples and the labels for a release.

    Raises:
        InputError: They do not fit it.
        VerificationError: It was built for another board.
    """
    check_board(manifest, stages.board, root=root)
    given = wanted.series(manifest)
    return given, inputs.read_labels(wanted.labels, manifest.outputs[0].elements) if wanted.labels else []


def _run_current(  # noqa: PLR0913, PLR0917 - these are independent
    found: Current, program: Program, lab: Lab, given: Series, threads: int, tell: Tell
) -> Sampled:
    """Run samples on a device's current release; its lock is held."""
    facts = lab.store.facts()
    deploy.check_fits(found.manifest, program, facts)
    place = Place(lab.shell, lab.store, program, facts, found.manifest, found.generation.digest, threads)
    return sampling.run_all(place, given, tell)


def _outputs(sampled: Sampled, given: Series, manifest: Manifest) -> dict[str, NDArray[Any]]:
    if given.single:
        return tensors.cut({name: value[0] for name, value in sampled.outputs.items()}, manifest.outputs)
    return tensors.cut_stacked(sampled.outputs, manifest.outputs)


def _top(
    sampled: Sampled, given: Series, labels: list[str], manifest: Manifest
) -> tuple[tuple[str, tuple[Guess, ...]], ...]:
    scores = sampled.outputs[manifest.outputs[0].name]
    names = given.names or tuple(map(str, range(given.count)))
    return tuple((name, inputs.top(one, labels)) for name, one in zip(names, scores, strict=True))
