"""A measurement of the release that a device runs."""

from __future__ import annotations

from pathlib import Path

from toolchain import temporary
from toolchain.bundle import check_board
from toolchain.bundle.manifest import Manifest
from toolchain.device import bench, energy
from toolchain.device.bench import Measurement
from toolchain.device.connected import ConnectedDevice
from toolchain.device.deploy import Settings
from toolchain.device.energy import Energy
from toolchain.device.installed import DeviceRelease
from toolchain.device.lock import Owner
from toolchain.models import inputs
from toolchain.pipeline import device_programs, steps, variants
from toolchain.pipeline.deploy import read_labels, top_classes
from toolchain.pipeline.report import Report
from toolchain.progress import Stages, stage
from toolchain.tensors import Tensors


def bench_current(
    source: inputs.Source, device: ConnectedDevice, settings: Settings, stages: Stages, variant: str = ""
) -> Report:
    """Measure the current release of a device: each of its variants, or the named one.

    Raises:
        InputError: Inputs, labels or the variant do not fit it.
        VerificationError: It was built for another board.
    """
    store, owner = device.store, Owner.here("bench")
    store.settle(owner)
    expected = bench.current(store, device.name)
    # Inputs that do not fit are refused before a runner is built.
    arrays, labels = _read_inputs(source, expected.manifest, device, settings, variant)
    runner = device_programs.runner(device.triple, stages)
    with store.lock(owner):
        current = bench.current(store, device.name)
        if current.generation.digest != expected.generation.digest:  # a deploy that was waited for has changed it
            arrays, labels = _read_inputs(source, current.manifest, device, settings, variant)
        measured = variants.measure(runner, device, arrays, settings, stages)
        (name, measurement), *_ = measured.items()
        joules = None
        if settings.energy:
            release = current.release(runner, device, settings.threads).of_variant(name)
            joules = _energy(release, measurement, arrays[name], settings, stages)
    manifest, digest = current.manifest, current.generation.digest
    return Report(
        board=device.board.name,
        host=device.name,
        model=manifest.name,
        energy=joules,
        bundle_digest=digest,
        emulated=device.emulated,
        facts=store.facts(),
        stages=stages.seconds,
        measurement=measurement,
        variants=variants.results(manifest, measured),
        transfer=measurement.transfer,
        top=top_classes(labels, measurement, manifest.of_shapes(name)),
        modelled=manifest.modelled,
        half=manifest.half,
        int8=manifest.int8,
        sparse=manifest.sparse,
        states=manifest.states,
        unchecked=store.releases.is_unchecked(digest),
        waited=store.waited,
        slot=store.slot,
    )


def _read_inputs(
    source: inputs.Source, manifest: Manifest, device: ConnectedDevice, settings: Settings, variant: str
) -> tuple[dict[str, Tensors], list[str]]:
    """Return the inputs of each variant and the labels that fit a release of this board, or refuse them."""
    check_board(manifest, device.board, root=device.store.folder)
    names = variants.chosen(source, manifest, variant)
    variants.check_options(manifest, names, settings)
    arrays: dict[str, Tensors]
    arrays = {name: steps.make_inputs(source, manifest.of_shapes(name)) for name in names}
    return arrays, read_labels(settings.labels, manifest.of_shapes(names[0]))


def _energy(
    release: DeviceRelease, latency: Measurement, arrays: Tensors, settings: Settings, stages: Stages
) -> Energy:
    """Measure the energy of a release whose latency was just measured, on a device whose lock is held."""
    device, times = release.device, latency.run.samples_ns
    if device.emulated:
        return Energy(None, "an emulator does not have the board's power consumption")
    stages.tell(stage(f"measuring energy for {energy.IDLE_S + energy.RUN_S:g} s or more"))
    with stages.timed("energy"), temporary.folder() as work:
        installed = release.install(arrays, Path(work))  # it is there, from the latency before
        method = energy.Method(meter=device.entry.power.command if device.entry.power else "")
        return energy.measure(installed, method, sum(times) / len(times) / 1e9, pinned=settings.pinned)
