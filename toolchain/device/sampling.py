"""Run a release on many inputs, in pieces that fit a device with little memory."""

from __future__ import annotations

import contextlib
import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain import files, temporary, tensors
from toolchain.device import objects as found_objects
from toolchain.device.installed import DeviceRelease, Installed
from toolchain.device.runner import SMOKE, Plan, Processor, Run, Second
from toolchain.device.shipment import Sent, Tell
from toolchain.device.store import Store
from toolchain.errors import DeviceError, VerificationError
from toolchain.models.series import Series
from toolchain.progress import Step
from toolchain.states import stacked
from toolchain.tensors import Tensors, TensorSpec

PIECE_BYTES = 64 << 20
_STATE_SPARE = 1 << 20  # bytes of the header of a saved state
_PIECE_SAMPLES = 4096  # the report of a run has the time of each sample


@dataclass(frozen=True)
class Crop:
    """What a second model found in a box; the key points of each object if it has any."""

    objects: NDArray[Any]
    points: NDArray[np.float32] | None


@dataclass(frozen=True)
class Sampled:
    """The result of many runs.

    Attributes:
        outputs: Outputs by name, (samples, ...).
        each_ns: Duration of each sample's run in nanoseconds.
        pieces: Number of processes; the first run of each is slower.
        load_ms: Time to load library and params in the last process.
        threads: Threads the model ran on.
        peak_rss_kib: Largest memory use of a process.
        processor: The accelerator of the kernels; None for the CPU.
        sent: The blobs sent.
        objects: For raw pictures or sounds, the objects of each.
        points: For pictures whose objects have key points, those of each, (objects, points, 3).
        crops: For pictures, what a second model found in each of their objects.
    """

    outputs: Mapping[str, NDArray[Any]]
    each_ns: tuple[int, ...]
    pieces: int
    load_ms: float
    threads: int
    peak_rss_kib: int
    processor: Processor | None
    sent: Sent
    objects: tuple[NDArray[Any], ...] = ()
    points: tuple[NDArray[np.float32], ...] = ()
    crops: tuple[tuple[Crop, ...], ...] = ()


def run_all(
    release: DeviceRelease, series: Series, progress: Tell | None = None, *, is_sequence: bool = False
) -> Sampled:
    """Run a release of a device on samples; the caller holds the lock.

    A model with a state begins each sample with zeros, unless they are the steps of a sequence.

    Args:
        release: The release, installed on the device.
        series: The samples, which fit its signature.
        progress: Called with progress.
        is_sequence: Whether the state of each sample is that of the one before.

    Raises:
        DeviceError: The device is full or lost, or the model does not run on it.
        VerificationError: The outputs do not have the model's signature.
    """
    release = replace(release, bundle=None)  # the device has its files: each piece sends inputs alone
    specs = release.manifest.step_outputs
    outputs = {spec.name: np.empty((series.count, *spec.shape), spec.dtype) for spec in specs}
    given = [TensorSpec("0", (series.raw_bytes,), "uint8")] if series.raw_bytes else release.manifest.step_inputs
    ranges = pieces(series.count, [*given, *specs])
    runs, sent = [], []
    objects: list[NDArray[Any]] = []
    points: list[NDArray[np.float32]] = []
    crops: list[tuple[Crop, ...]] = []
    with temporary.folder() as folder:
        sequence = _Sequence(Path(folder) / "state", len(ranges) - 1) if is_sequence else None
        for number, piece in enumerate(ranges):
            if progress:
                progress(Step("running the samples", piece.start, series.count, "samples"))
            if series.raw_bytes:
                run, transfer = run_raw(release, series.take(piece), len(piece), series.windows)
            else:
                plan = replace(SMOKE, samples=len(piece), sequence=is_sequence)
                run, transfer = _run_piece(release, series.take(piece), plan, number, sequence)
            if run.objects is not None:
                found = found_objects.read_objects(run.objects, release.manifest, len(piece), series.windows)
                objects += found
                if release.manifest.pictures and release.manifest.pictures.plan.points:
                    points += found_objects.read_points(run.objects, release.manifest.pictures.plan, found)
                crops += _read_crops(run.objects, release.second, found) if release.second else []
            for name, value in run.outputs.items():
                outputs[name][piece.start : piece.stop] = value
            runs.append(run)
            sent.append(transfer)
    return Sampled(
        outputs=outputs,
        each_ns=tuple(value for run in runs for value in run.each_ns),
        pieces=len(ranges),
        load_ms=runs[-1].load_ms,
        threads=runs[-1].threads,
        peak_rss_kib=max(run.peak_rss_kib for run in runs),
        processor=runs[-1].processor,
        sent=Sent(sum(s.count for s in sent), sum(s.skipped for s in sent), sum(s.seconds for s in sent)),
        objects=tuple(objects),
        points=tuple(points),
        crops=tuple(crops),
    )


def _read_crops(
    contents: Mapping[str, NDArray[Any]], second: DeviceRelease, objects: Sequence[NDArray[Any]]
) -> list[tuple[Crop, ...]]:
    """Read what a second model found in each object of each picture."""
    boxes = [len(found) for found in objects]
    found = found_objects.read_objects(contents, second.manifest, sum(boxes), names=found_objects.CROPS)
    points: Sequence[NDArray[np.float32] | None] = [None] * len(found)
    if found and second.manifest.pictures and (plan := second.manifest.pictures.plan).points:
        points = found_objects.read_points(contents, plan, found, found_objects.CROP_POINTS)
    crops = map(Crop, found, points)
    return [tuple(itertools.islice(crops, count)) for count in boxes]


@dataclass(frozen=True)
class _Sequence:
    """The pieces of a sequence: a file on this machine takes the state from one to the next."""

    file: Path
    last: int  # number of the last piece

    def run(self, installed: Installed, plan: Plan, number: int) -> Run:
        """Run a piece with the state of the one before; an installation has removed what that left on the device."""
        shell = installed.shell
        with installed.scratch() as folder:
            shell.run(f"umask 022; mkdir -p {shlex.quote(folder)}")
            state = f"{folder}/state"
            if number:
                shell.push(self.file, state)
            is_last = number == self.last
            run = installed.run(replace(plan, state_in=state if number else "", state_out="" if is_last else state))
            if not is_last:
                limit = _STATE_SPARE + sum(spec.bytes for spec in installed.release.manifest.inputs)
                shell.pull(state, self.file, max_bytes=limit)
        return run


def pieces(count: int, specs: Sequence[TensorSpec]) -> list[range]:
    """Divide samples into ranges whose inputs and outputs have at most 64 MiB, but at least one sample.

    `specs` are the inputs and outputs of a sample.
    """
    sample_bytes = max(1, sum(spec.bytes for spec in specs))
    step = min(max(1, PIECE_BYTES // sample_bytes), _PIECE_SAMPLES)
    return [range(start, min(start + step, count)) for start in range(0, count, step)]


def run_raw(
    release: DeviceRelease, raw: Tensors, count: int, windows: int = 1, *, keep_input: bool = False, pixels: int = 0
) -> tuple[Run, Sent]:
    """Run pictures or sounds in one process, and remove them afterwards.

    Args:
        release: The release, whose files are on the device.
        raw: RGB pixels, or the bytes of JPEG, PNG or WAV files, with the names 0, 1 and so on.
        count: How many there are.
        windows: Most windows of a sound.
        keep_input: Whether to fetch the input that was made of the last one, and the masks of its first objects.
        pixels: Of a picture whose objects have masks.

    Raises:
        DeviceError, VerificationError: As `run_all`.
    """
    limit = found_objects.most_bytes(release.manifest, count, windows, keep_input=keep_input, pixels=pixels)
    plan = replace(SMOKE, samples=count, objects=limit, keep_input=keep_input)
    second, pictures = release.second, release.manifest.pictures
    if second and pictures:
        boxes = pictures.plan.most
        limit += found_objects.most_bytes(second.manifest, count * boxes, 1, keep_input=False)
        folder = f"{second.device.store.root}/releases/{second.digest}"
        plan = replace(plan, objects=limit, second=Second(folder, boxes))
    return _run_piece(release, raw, plan, 0, None)


def _run_piece(
    release: DeviceRelease, inputs: Tensors, plan: Plan, number: int, sequence: _Sequence | None
) -> tuple[Run, Sent]:
    digest = files.sha256_bytes(tensors.encode(inputs))
    with temporary.folder() as work, _drop_afterwards(release.device.store, digest):
        installed = release.install(inputs, Path(work))
        run = sequence.run(installed, plan, number) if sequence else installed.run(plan)
    faults = tensors.check_signature(run.outputs, stacked(release.manifest.step_outputs, plan.samples))
    if faults or len(run.each_ns) != plan.samples:
        raise VerificationError("the device's outputs do not have the model's signature", details="\n".join(faults))
    return run, installed.sent


@contextlib.contextmanager
def _drop_afterwards(store: Store, digest: str) -> Iterator[None]:
    """Remove inputs from the device after a block; if the block failed, only its error is reported."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(DeviceError):
            store.blobs.drop_inputs(digest)
        raise
    store.blobs.drop_inputs(digest)
