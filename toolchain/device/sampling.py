"""Runs the release of a device on many inputs: piece by piece, so that a device with little memory survives it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain import temporary, tensors
from toolchain.bundle.manifest import Manifest
from toolchain.device import runner
from toolchain.device.processor import Processor
from toolchain.device.runner import SMOKE, Run
from toolchain.device.shipment import Sent, Shipment, Tell, install, send
from toolchain.device.store import DeviceFacts, Store
from toolchain.errors import DeviceError, VerificationError
from toolchain.models.series import Series
from toolchain.native.programs import Program
from toolchain.progress import Step
from toolchain.shell import Shell
from toolchain.tensors import Tensors, TensorSpec

PIECE_BYTES = 64 << 20
_PIECE_SAMPLES = 4096  # the report of a run names the time of each


@dataclass(frozen=True)
class Place:
    """A release on a device, and what runs it there.

    Attributes:
        shell: The device.
        store: Its store, whose lock the caller holds.
        program: The runner.
        facts: What the device is.
        manifest: The release's.
        digest: The release's.
        threads: Threads; 0 means every CPU.
    """

    shell: Shell
    store: Store
    program: Program
    facts: DeviceFacts
    manifest: Manifest
    digest: str
    threads: int = 0


@dataclass(frozen=True)
class Sampled:
    """What many runs gave.

    Attributes:
        outputs: Outputs by name, with an axis of samples in front, as the release gives them.
        each_ns: Duration of each sample's run in nanoseconds.
        pieces: How many processes there were; the first run of each warms up.
        load_ms: Time to load library and params, the last time.
        threads: Threads the model ran on.
        peak_rss_kib: Largest memory use of a process.
        processor: What the kernels ran on; None for the CPU.
        sent: What was pushed.
    """

    outputs: Mapping[str, NDArray[Any]]
    each_ns: tuple[int, ...]
    pieces: int
    load_ms: float
    threads: int
    peak_rss_kib: int
    processor: Processor | None
    sent: Sent


def run_all(place: Place, series: Series, tell: Tell | None = None) -> Sampled:
    """Run a release on samples; the caller holds the lock.

    Args:
        place: The release on its device.
        series: The samples, which fit it.
        tell: Called with progress.

    Raises:
        DeviceError: The device is full or lost, or the model does not run on it.
        VerificationError: The outputs do not have the model's signature.
    """
    specs = place.manifest.outputs
    outputs = {spec.name: np.empty((series.count, *spec.shape), spec.dtype) for spec in specs}
    parts = pieces(series.count, [*place.manifest.inputs, *specs])
    runs, sent = [], []
    for part in parts:
        if tell:
            tell(Step("running the samples", part.start, series.count, "samples"))
        run, pushed = _run_piece(place, series.take(part), len(part))
        for name, value in run.outputs.items():
            outputs[name][part.start : part.stop] = value
        runs.append(run)
        sent.append(pushed)
    return Sampled(
        outputs=outputs,
        each_ns=tuple(value for run in runs for value in run.each_ns),
        pieces=len(parts),
        load_ms=runs[-1].load_ms,
        threads=runs[-1].threads,
        peak_rss_kib=max(run.peak_rss_kib for run in runs),
        processor=runs[-1].processor,
        sent=_sum(sent),
    )


def pieces(count: int, specs: Sequence[TensorSpec]) -> list[range]:
    """Cut samples into parts whose inputs and outputs have 64 MiB together, or that are one sample.

    Args:
        count: How many samples there are.
        specs: Inputs and outputs of one.
    """
    each = max(1, sum(spec.bytes for spec in specs))
    step = min(max(1, PIECE_BYTES // each), _PIECE_SAMPLES)
    return [range(start, min(start + step, count)) for start in range(0, count, step)]


def _run_piece(place: Place, given: Tensors, count: int) -> tuple[Run, Sent]:
    with temporary.folder() as work:
        shipment = Shipment.of_run(place.program, given, Path(work))
        with _dropped(place.store, shipment.folders["inputs"][0]):
            sent = send(shipment, place.store, place.facts)
            folders = install(shipment, place.store)
            release = f"{place.store.root}/releases/{place.digest}"
            plan = replace(SMOKE, samples=count)
            run = runner.call(
                place.shell,
                place.store.root,
                folders,
                release=release,
                threads=place.threads,
                plan=plan,
                outputs=place.manifest.outputs,
                size=runner.weight(place.manifest),
            )
    faults = tensors.check_signature(run.outputs, [spec.stacked(count) for spec in place.manifest.outputs])
    if faults or len(run.each_ns) != count:
        raise VerificationError("the device's outputs do not have the model's signature", details="\n".join(faults))
    return run, sent


@contextlib.contextmanager
def _dropped(store: Store, digest: str) -> Iterator[None]:
    """Remove inputs from the device after a block, be it as it may; what ended the block is what is told."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(DeviceError):
            store.drop_inputs(digest)
        raise
    store.drop_inputs(digest)


def _sum(sent: Sequence[Sent]) -> Sent:
    return Sent(*(sum(values) for values in zip(*((one.count, one.skipped, one.seconds) for one in sent), strict=True)))
