"""Run the release of a device on a user's inputs: its outputs, the time of each run, and the best classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain import arrays, tensors
from toolchain.bundle import check_board
from toolchain.bundle.manifest import Manifest
from toolchain.device import bench, sampling
from toolchain.device.bench import Latency
from toolchain.device.connected import ConnectedDevice
from toolchain.device.installed import DeviceRelease
from toolchain.device.lock import Owner
from toolchain.device.runner import Processor
from toolchain.device.sampling import Sampled
from toolchain.device.shipment import Transfer
from toolchain.device.waiting import Waited
from toolchain.errors import InputError, VerificationError
from toolchain.models import inputs, series, stream
from toolchain.models.inputs import Guess
from toolchain.models.series import Series
from toolchain.models.stream import STANDARD_INPUT
from toolchain.native import pictures as native_pictures
from toolchain.native.pictures import Mask, decoder
from toolchain.native.sounds import Computer, Recording, encode
from toolchain.pictures import MOST_EXTRAS
from toolchain.pipeline import device_programs, variants
from toolchain.pipeline.deploy import read_labels
from toolchain.pipeline.report import waited_rows
from toolchain.progress import Stages
from toolchain.report import Table
from toolchain.sounds import Plan


@dataclass(frozen=True)
class RunRequest:
    """What to run, and where the outputs go."""

    output: Path  # the .npz file for the outputs
    npz: Path | None = None  # inputs as an .npz or .npy file
    pictures: tuple[Path, ...] = ()  # inputs as pictures, or folders of them
    labels: Path | None = None  # file of class names, for the best five of each sample
    threads: int = 0  # 0 means the board file's number
    stream: Path | None = None  # a sound, or the steps of a model with a state: a file, or `-` for standard input
    steps: int = 0  # how many of them; 0 means all, or without a stream that the input is run once
    variant: str = ""  # of a release with several; empty for the one that the arrays fit, or for the first
    sounds: tuple[Path, ...] = ()  # inputs as WAV files, or folders of them
    crops: str = ""  # a slot, whose release runs on each box that is found in the pictures; empty for none

    @property
    def is_sequence(self) -> bool:
        """Whether the samples are steps of a model with a state, or a stream of sound."""
        return self.stream is not None or self.steps > 0

    def check(self) -> None:
        """Check everything that can be checked without the device.

        Raises:
            InputError: There are no inputs, or two kinds of them; a file is missing; the outputs cannot be written.
        """
        given = {"--input": self.npz, "--image": self.pictures, "--sound": self.sounds, "--stream": self.stream}
        options = [option for option, value in given.items() if value]
        if not options:
            raise InputError(
                "there is nothing to run",
                hint="pass inputs with --input FILE.npz, --image FILE, --sound FILE or --stream FILE",
            )
        if len(options) > 1:
            raise InputError(f"{' and '.join(options)} cannot be combined", hint="leave one of them out")
        if self.steps and (self.pictures or self.sounds):
            option = "--image" if self.pictures else "--sound"
            raise InputError(f"--steps cannot be combined with {option}", hint="pass the steps with --stream")
        if self.crops and not self.pictures:
            raise InputError("--crops is for pictures", hint="pass pictures with --image FILE")
        named = (self.npz, self.stream, *self.pictures, *self.sounds, self.labels)
        paths = [path for path in named if path and path != STANDARD_INPUT]
        for path in paths:
            if not path.exists():
                raise InputError(f"there is no file {path}", hint="pass an existing file")
            if path.resolve() == self.output.resolve():
                raise InputError(
                    f"{path} is an input, which --output would overwrite", hint="choose another output file"
                )
        arrays.check_target(self.output)

    def choose(self, manifest: Manifest) -> str:
        """Return the variant of a release that is run; empty for one without variants.

        Raises:
            InputError: There is no such variant, or the arrays fit none.
        """
        if self.variant:
            return variants.chosen(None, manifest, self.variant)[0]
        return variants.of_file(self.npz, manifest) if self.npz else manifest.variant_names[0]

    def series(self, manifest: Manifest) -> Series:
        """Read the inputs.

        Raises:
            InputError: They cannot be read, or do not fit the release.
        """
        sequence = self._sequence(manifest)
        if sequence:
            return sequence
        if self.npz:
            return series.of_file(self.npz, manifest.step_inputs)
        if self.sounds:
            return _sounds(self.sounds, manifest)
        if manifest.sounds:
            raise InputError(f"the steps of {manifest.name} are for sounds", hint="pass a WAV file with --sound FILE")
        if manifest.pictures:
            return series.of_raw_pictures(self.pictures, decoder().decode)
        return series.of_pictures(self.pictures, manifest.step_inputs)

    def _sequence(self, manifest: Manifest) -> Series | None:
        """Read a stream, or the steps of a model with a state; None for other inputs."""
        if self.stream and manifest.sounds:
            return _sound_stream(self.stream, manifest.sounds.plan, self.steps)
        if self.is_sequence and not manifest.states:
            raise InputError(
                f"{manifest.name} has no state, so it runs no sequence",
                hint="pass samples with --input, or build the model with --state INPUT=OUTPUT",
            )
        if self.stream:
            return stream.read(self.stream, manifest.step_inputs, self.steps)
        if self.npz and self.steps:
            return stream.repeat(self.npz, manifest.step_inputs, self.steps)
        return None


def _sounds(paths: Sequence[Path], manifest: Manifest) -> Series:
    if manifest.sounds is None:
        raise InputError(
            f"{manifest.name} has no steps for sounds",
            hint="build it with --pre wav:rate=N, or pass its inputs with --input FILE.npz",
        )
    computer = Computer(manifest.sounds.plan)
    return series.of_raw_sounds(paths, lambda contents: computer.windows(Recording(contents)))


def _sound_stream(path: Path, plan: Plan, steps: int) -> Series:
    """Return a stream as one sound."""
    read = stream.read_sound(path, plan, steps)
    contents = encode(read, plan.rate) if read.dtype == np.int16 else read.view(np.uint8)
    try:
        windows = Computer(plan).windows(Recording(contents))
    except InputError as fault:
        raise InputError(f"{stream.title(path)}: {fault.message}", details=fault.details, hint=fault.hint) from fault
    name = str(path)
    return Series(1, lambda _: {"0": contents}, (name,), single=True, raw_bytes=contents.size, windows=windows)


@dataclass(frozen=True)
class FoundMask:
    """The pixels of an object in its box, row by row: so many are not the object's, then so many are, and so on."""

    left: int
    top: int
    width: int
    height: int
    runs: tuple[int, ...]

    @classmethod
    def of(cls, mask: Mask) -> FoundMask:
        """Count the runs of a mask."""
        flat = np.concatenate([[0], mask.pixels.reshape(-1), [2]])
        ends = np.flatnonzero(flat[1:] != flat[:-1])
        runs = np.diff(ends, prepend=0) if mask.pixels.size else ends[:0]
        return cls(mask.left, mask.top, mask.pixels.shape[1], mask.pixels.shape[0], tuple(map(int, runs)))


@dataclass(frozen=True)
class FoundObject:
    """A class of a picture, or a box in its pixels; or a class or a label that was heard."""

    number: int  # of the class
    label: str  # empty if the release has none
    score: float
    box: tuple[float, ...]  # left, top, right, bottom; empty for a class
    seconds: tuple[float, ...] = ()  # of a sound: from, to
    points: tuple[tuple[float, ...], ...] = ()  # key points: x, y, score
    mask: FoundMask | None = None
    crops: tuple[FoundObject, ...] = ()  # what a second model found in the box
    text: str = ""  # and what it reads there; empty if its release reads no text

    @property
    def cells(self) -> tuple[str, ...]:
        """The texts of a table's row."""
        return (
            f"{self.score:.4g}",
            self.label or str(self.number),
            *(f"{side:.1f}" for side in self.box),
            *(f"{time:.2f}" for time in self.seconds),
        )

    @property
    def inner(self) -> str:
        """What a second model found in it."""
        return self.text or ", ".join(f"{crop.label or crop.number} {crop.score:.4g}" for crop in self.crops)


@dataclass(frozen=True)
class SecondModel:
    """The model that ran on each box of the pictures."""

    slot: str
    model: str
    digest: str  # digest of its release


@dataclass(frozen=True)
class RunReport:
    """The results of a run on a user's inputs."""

    board: str
    host: str
    model: str
    digest: str  # digest of the release
    emulated: bool  # whether the times are an emulator's
    output: Path
    # Shape and element type of each array of the output file, by name
    shapes: Mapping[str, tuple[tuple[int, ...], str]]
    samples: int
    latency: Latency  # times of the samples in milliseconds; the first of each process warms up
    is_sequence: bool  # whether the samples are steps of a model with a state
    pieces: int  # how many processes ran the samples
    load_ms: float  # time to load the release, in one process
    threads: int
    peak_rss_kib: int  # largest memory use of a process
    processor: Processor | None  # on which the kernels ran; None for the CPU
    transfer: Transfer
    slot: str = ""  # the slot of the device's store; empty for the store's own releases
    second: SecondModel | None = None
    variant: str = ""  # which of several sets of shapes ran; empty for a release with one
    # For each sample its name and its best five classes, if labels were given
    top: Sequence[tuple[str, tuple[Guess, ...]]] = ()
    # For each picture or sound its name and what the release's own steps found in it
    objects: Sequence[tuple[str, tuple[FoundObject, ...]]] = ()
    texts: Sequence[tuple[str, str]] = ()  # for each picture or sound its name, and the text that was read
    waited: tuple[Waited, ...] = ()  # who was at work on the device before, and how long they were waited for

    def document(self) -> dict[str, Any]:
        """Return what --json prints; docs/device.md describes it."""
        names = "board host model variant slot emulated samples is_sequence pieces load_ms threads peak_rss_kib"
        return {
            **{name: getattr(self, name) for name in names.split()},
            "bundle_digest": f"sha256:{self.digest}",
            "output": str(self.output),
            "outputs": {name: {"shape": shape, "dtype": dtype} for name, (shape, dtype) in self.shapes.items()},
            "latency_ms": asdict(self.latency),
            "processor": asdict(self.processor) if self.processor else None,
            "second": {**asdict(self.second), "digest": f"sha256:{self.second.digest}"} if self.second else None,
            "transfer": asdict(self.transfer),
            "waited": [asdict(waited) for waited in self.waited],
            "top": [
                {
                    "sample": name,
                    "classes": [
                        {**asdict(guess), "score": guess.score if np.isfinite(guess.score) else None}
                        for guess in guesses
                    ],
                }
                for name, guesses in self.top
            ],
            "objects": [
                {"sample": name, "objects": [asdict(item) for item in objects]} for name, objects in self.objects
            ],
            "texts": [{"sample": name, "text": text} for name, text in self.texts],
        }

    def render_text(self) -> list[str | Table]:
        mark, second = " (emulated)" if self.emulated else "", self.second
        outputs = ", ".join(
            f"{name} {'x'.join(map(str, shape)) or 'scalar'} {dtype}" for name, (shape, dtype) in self.shapes.items()
        )
        rows = [
            ("model", self.model),
            *([("variant", self.variant)] if self.variant else []),
            ("release", self.digest[:16]),
            *([("slot", self.slot)] if self.slot else []),
            *([("in each box", f"{second.model} of slot {second.slot}, {second.digest[:16]}")] if second else []),
            ("board", f"{self.board} at {self.host}{mark}"),
            *([("computed on", self.processor.text)] if self.processor else []),
            (
                "steps" if self.is_sequence else "samples",
                f"{self.samples} in {self.pieces} process(es) on {self.threads} thread(s)",
            ),
            ("latency", f"{self.latency.median:.3g} ms median{mark}, {self.latency.max:.3g} ms max"),
            ("outputs", f"{outputs} in {self.output}"),
            *waited_rows(self.waited),
        ]
        best = [(name, f"{guess.score:.4g}", guess.label) for name, guesses in self.top for guess in guesses]
        ranked: list[str | Table] = ["", Table(best, ("sample", "score", "class"))] if best else []
        if self.texts:
            return [Table(rows), *ranked, "", Table(self.texts, ("sample", "text"))]
        items = [(name, item) for name, objects in self.objects for item in objects]
        if not items:
            return [Table(rows), *ranked]
        first = items[0][1]
        places = ("left", "top", "right", "bottom") if first.box else ("from s", "to s") if first.seconds else ()
        found = [(name, *item.cells, *([item.inner] if second else [])) for name, item in items]
        head = ("sample", "score", "class", *places, *(["in the box"] if second else []))
        return [Table(rows), *ranked, "", Table(found, head)]


def run(request: RunRequest, device: ConnectedDevice, stages: Stages) -> RunReport:
    """Run the current release of a device on inputs, and write its outputs to a file; the request was checked.

    Raises:
        InputError: The inputs do not fit the release, or the file cannot be written.
        DeviceError: Nothing was deployed there; the device is busy, full or lost; the model does not run on it.
        VerificationError: The device or the board type does not fit the release, or the outputs are not what it says.
    """
    store, owner = device.store, Owner.here("run")
    store.settle(owner)
    expected = bench.current(store, device.name)
    # Inputs that do not fit are refused before the runner is built.
    variant, samples, labels = _read_inputs(request, expected.manifest, device)
    _read_second(request, expected.manifest, device)
    if expected.manifest.states and samples.count > 1 and not (request.is_sequence or samples.raw_bytes):
        stages.tell("each sample begins with a state of zeros; --stream runs them as the steps of a sequence")
    runner = device_programs.runner(device.triple, stages)
    is_sequence = request.is_sequence and not samples.raw_bytes  # a sound is one sample
    with store.lock(owner):
        current = bench.current(store, device.name)
        manifest, digest = current.manifest, current.generation.digest
        if digest != expected.generation.digest:  # a deploy that was waited for has changed it
            variant, samples, labels = _read_inputs(request, manifest, device)
        release = DeviceRelease.of_device(manifest, digest, runner, device, request.threads).of_variant(variant)
        manifest = release.manifest
        if second := _read_second(request, manifest, device):
            other = device.in_slot(request.crops)
            release = replace(release, second=DeviceRelease.of_device(*second, runner, other, request.threads))
        sampled = sampling.run_all(release, samples, stages.tell, is_sequence=is_sequence)
    outputs = _cut(sampled.outputs, manifest, samples)
    names = samples.names or tuple(map(str, range(samples.count)))
    arrays.save(request.output, outputs, f"sha256:{digest}")
    return RunReport(
        board=device.board.name,
        host=device.name,
        model=manifest.name,
        variant=variant,
        digest=digest,
        emulated=device.emulated,
        output=request.output,
        shapes={name: (tuple(value.shape), str(value.dtype)) for name, value in outputs.items()},
        samples=samples.count,
        is_sequence=is_sequence,
        latency=bench.statistics([value / 1e6 for value in sampled.each_ns]),
        pieces=sampled.pieces,
        load_ms=sampled.load_ms,
        threads=sampled.threads,
        peak_rss_kib=sampled.peak_rss_kib,
        processor=sampled.processor,
        transfer=Transfer.of(sampled.sent, device.shell),
        top=_top(names, sampled.outputs[manifest.step_outputs[0].name], labels),
        objects=_found(names, samples, sampled, manifest, second[0] if second else None),
        texts=_texts(names, sampled.objects, manifest) or _token_texts(names, sampled, manifest),
        waited=store.waited,
        slot=store.slot,
        second=SecondModel(request.crops, second[0].name, second[1]) if second else None,
    )


def _cut(outputs: Mapping[str, NDArray[Any]], manifest: Manifest, samples: Series) -> Mapping[str, NDArray[Any]]:
    """Return the outputs of all samples, or of a single one, without what is beyond their counts."""
    if samples.single:
        return tensors.cut({name: value[0] for name, value in outputs.items()}, manifest.outputs)
    return tensors.cut_stacked(outputs, manifest.outputs)


def _top(
    names: Sequence[str], scores: NDArray[Any], labels: Sequence[str]
) -> tuple[tuple[str, tuple[Guess, ...]], ...]:
    """Return the best classes of each sample; none without labels."""
    return tuple((name, inputs.top(row, labels)) for name, row in zip(names, scores, strict=True)) if labels else ()


def _read_second(request: RunRequest, first: Manifest, device: ConnectedDevice) -> tuple[Manifest, str] | None:
    """Return the manifest and the digest of the release that runs on each box; None if none does.

    Raises:
        InputError: There is no such slot, or one of both releases does not fit.
        VerificationError: It was built for another board.
    """
    if not request.crops:
        return None
    if request.crops == device.store.slot:
        raise InputError(f"--crops names the slot that finds the boxes: {request.crops}", hint="name another slot")
    other = device.in_slot(request.crops)
    current = bench.current(other.store, other.name)
    check_board(current.manifest, device.board, root=other.store.folder)
    if first.pictures is None or not first.pictures.plan.finds_boxes:
        raise InputError(f"{first.name} finds no boxes in a picture", hint="build it with steps that find boxes")
    second = current.manifest.pictures
    if second is None or second.plan.output < 0:
        raise InputError(
            f"{current.manifest.name} finds nothing in a picture", hint="build it with --pre, and a last step as --post"
        )
    if second.plan.mask_output >= 0:
        raise InputError(
            f"{current.manifest.name} has masks, which --crops does not find in boxes",
            hint="build it without masks=, or crop the boxes in an application (docs/pictures.md)",
        )
    points = first.pictures.plan.most * second.plan.most * second.plan.points
    if points > MOST_EXTRAS:
        raise InputError(
            f"{current.manifest.name} may find {points:,} key points in all boxes, and {MOST_EXTRAS:,} are possible",
            hint="build one of both releases with a smaller max, such as yolo:max=20",
        )
    return current.manifest, current.generation.digest


def _objects(found: NDArray[Any], manifest: Manifest) -> tuple[FoundObject, ...]:
    """Return the objects of a picture or sound with their labels."""
    pipeline = manifest.pipeline
    if pipeline is None:
        return ()
    sides: tuple[str, ...] = ("left", "top", "right", "bottom")
    if manifest.sounds or pipeline.plan.head in {"classes", "labels"}:
        sides = ()
    times = ("left", "right") if manifest.sounds else ()
    return tuple(
        FoundObject(
            number := int(item["label"]),
            pipeline.labels[number] if pipeline.labels else "",
            float(item["score"]),
            tuple(float(item[side]) for side in sides),
            tuple(float(item[side]) for side in times),
        )
        for item in found
    )


def _found(
    names: Sequence[str], samples: Series, sampled: Sampled, manifest: Manifest, second: Manifest | None
) -> tuple[tuple[str, tuple[FoundObject, ...]], ...]:
    """Return the objects of each picture or sound, with their key points or masks, and what a second model found."""
    rows = [_objects(found, manifest) for found in sampled.objects]
    for number, points in enumerate(sampled.points):
        rows[number] = _with_points(rows[number], points)
    if manifest.pictures and manifest.pictures.plan.mask_output >= 0:
        rows = [_with_masks(row, number, samples, sampled, manifest) for number, row in enumerate(rows)]
    if second:
        rows = [_with_crops(row, crops, second) for row, crops in zip(rows, sampled.crops, strict=True)]
    return tuple(zip(names, rows, strict=False))


def _with_masks(
    objects: tuple[FoundObject, ...], number: int, samples: Series, sampled: Sampled, manifest: Manifest
) -> tuple[FoundObject, ...]:
    """Return the objects of a picture with the masks that the device's outputs have.

    Raises:
        VerificationError: These outputs have other objects.
    """
    if manifest.pictures is None:
        return objects
    plan, pixels = manifest.pictures.plan, samples.take(range(number, number + 1))["0"]
    outputs = [sampled.outputs[spec.name][number] for spec in manifest.outputs]
    computer = native_pictures.Computer(plan)
    if len(computer.find(pixels.shape[1], pixels.shape[0], outputs)) != len(objects):
        raise VerificationError("the device sent objects that its outputs do not have", hint="deploy the release again")
    masks = (computer.mask(index, outputs[plan.mask_output]) for index in range(len(objects)))
    return tuple(replace(item, mask=FoundMask.of(mask)) for item, mask in zip(objects, masks, strict=True))


def _with_crops(
    objects: tuple[FoundObject, ...], crops: Sequence[sampling.Crop], second: Manifest
) -> tuple[FoundObject, ...]:
    """Return the objects of a picture with what a second model found in each."""
    texts = (text for _, text in _texts([""] * len(crops), [crop.objects for crop in crops], second))
    return tuple(
        replace(item, crops=_with_points(_objects(crop.objects, second), crop.points), text=next(texts, ""))
        for item, crop in zip(objects, crops, strict=True)
    )


def _with_points(objects: tuple[FoundObject, ...], points: NDArray[np.float32] | None) -> tuple[FoundObject, ...]:
    if points is None:
        return objects
    pairs = zip(objects, points.tolist(), strict=True)
    return tuple(replace(item, points=tuple(map(tuple, own))) for item, own in pairs)


def _texts(names: Sequence[str], objects: Sequence[NDArray[Any]], manifest: Manifest) -> tuple[tuple[str, str], ...]:
    """Return the text of each picture or sound; none if the release reads no text."""
    pipeline = manifest.pipeline
    if pipeline is None or pipeline.plan.head != "labels":
        return ()
    return tuple(
        (name, pipeline.text([int(label) for label in found["label"]]))
        for name, found in zip(names, objects, strict=True)
    )


def _token_texts(names: Sequence[str], sampled: Sampled, manifest: Manifest) -> tuple[tuple[str, str], ...]:
    """Return the text of each sample's tokens: the output has their numbers, or a row of scores for each.

    Raises:
        VerificationError: A number is not that of a token.
    """
    if manifest.texts is None:
        return ()
    values = sampled.outputs[manifest.outputs[manifest.texts.plan.output].name]
    numbers = values.argmax(axis=-1) if values.dtype == np.float32 else values
    rows = numbers.reshape(len(values), -1)
    if ((rows < 0) | (rows >= len(manifest.texts.labels))).any():
        raise VerificationError("the device sent numbers that are not those of tokens", hint="check the vocabulary")
    return tuple((name, manifest.texts.text(row.tolist())) for name, row in zip(names, rows, strict=True))


def _read_inputs(request: RunRequest, manifest: Manifest, device: ConnectedDevice) -> tuple[str, Series, list[str]]:
    """Return the variant, the samples and the labels for a release.

    Raises:
        InputError: They do not fit it.
        VerificationError: It was built for another board.
    """
    check_board(manifest, device.board, root=device.store.folder)
    variant = request.choose(manifest)
    manifest = manifest.of_shapes(variant)
    return variant, request.series(manifest), read_labels(request.labels, manifest)
