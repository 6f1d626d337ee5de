"""Run a release on many inputs, in pieces that fit a device with little memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain import files, temporary, tensors
from toolchain.device import pictures as device_pictures
from toolchain.device.installed import DeviceRelease
from toolchain.device.runner import SMOKE, Processor, Run
from toolchain.device.shipment import Sent, Tell
from toolchain.device.store import Store
from toolchain.errors import DeviceError, VerificationError
from toolchain.models.series import Series
from toolchain.progress import Step
from toolchain.tensors import Tensors, TensorSpec

PIECE_BYTES = 64 << 20
_PIECE_SAMPLES = 4096  # the report of a run has the time of each sample


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
        objects: For raw pictures, the objects of each.
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


def run_all(release: DeviceRelease, series: Series, progress: Tell | None = None) -> Sampled:
    """Run a release of a device on samples; the caller holds the lock.

    Args:
        release: The release, installed on the device.
        series: The samples, which fit its signature.
        progress: Called with progress.

    Raises:
        DeviceError: The device is full or lost, or the model does not run on it.
        VerificationError: The outputs do not have the model's signature.
    """
    release = replace(release, bundle=None)  # the device has its files: each piece sends inputs alone
    specs = release.manifest.outputs
    outputs = {spec.name: np.empty((series.count, *spec.shape), spec.dtype) for spec in specs}
    given = [TensorSpec("0", (series.picture_bytes,), "uint8")] if series.picture_bytes else release.manifest.inputs
    ranges = pieces(series.count, [*given, *specs])
    runs, sent = [], []
    objects: list[NDArray[Any]] = []
    for piece in ranges:
        if progress:
            progress(Step("running the samples", piece.start, series.count, "samples"))
        run, transfer = run_piece(release, series.take(piece), len(piece), pictures=series.picture_bytes > 0)
        if run.objects is not None and release.manifest.pictures:
            objects += device_pictures.read_objects(run.objects, release.manifest.pictures.plan, len(piece))
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
    )


def pieces(count: int, specs: Sequence[TensorSpec]) -> list[range]:
    """Divide samples into ranges whose inputs and outputs have at most 64 MiB, but at least one sample.

    `specs` are the inputs and outputs of a sample.
    """
    sample_bytes = max(1, sum(spec.bytes for spec in specs))
    step = min(max(1, PIECE_BYTES // sample_bytes), _PIECE_SAMPLES)
    return [range(start, min(start + step, count)) for start in range(0, count, step)]


def run_piece(
    release: DeviceRelease, inputs: Tensors, count: int, *, pictures: bool = False, keep_input: bool = False
) -> tuple[Run, Sent]:
    """Run samples in one process, and remove their inputs afterwards.

    Args:
        release: The release, whose files are on the device.
        inputs: Inputs by name, each (samples, ...); or pictures with the names 0, 1 and so on.
        count: Number of samples.
        pictures: Whether they are pictures.
        keep_input: For pictures, whether to fetch the input of the last one.

    Raises:
        DeviceError, VerificationError: As `run_all`.
    """
    plan = replace(SMOKE, samples=count)
    if pictures:
        limit = device_pictures.most_bytes(release.manifest, count, keep_input=keep_input)
        plan = replace(plan, objects=limit, keep_input=keep_input)
    digest = files.sha256_bytes(tensors.encode(inputs))
    with temporary.folder() as work, _drop_afterwards(release.device.store, digest):
        installed = release.install(inputs, Path(work))
        run = installed.run(plan)
    faults = tensors.check_signature(run.outputs, [spec.stacked(count) for spec in release.manifest.outputs])
    if faults or len(run.each_ns) != count:
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
