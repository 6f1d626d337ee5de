"""Deploy a bundle: send missing files, verify, run once, compare, and only then switch; or roll back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from toolchain import temporary
from toolchain.bundle import Bundle
from toolchain.bundle.reference import RandomSamples
from toolchain.device import application, pictures, runner, sampling, sounds, trust, verification
from toolchain.device.application import Started
from toolchain.device.connected import ConnectedDevice
from toolchain.device.installed import DeviceRelease, Installed
from toolchain.device.pictures import PicturesChecked
from toolchain.device.probe.facts import DeviceFacts
from toolchain.device.rate import Rate
from toolchain.device.runner import Run
from toolchain.device.shipment import Transfer
from toolchain.device.sounds import SoundsChecked
from toolchain.device.store import Generation
from toolchain.device.trust import Verified
from toolchain.device.verification import Fidelity, Samples
from toolchain.errors import DeviceError, OutputError
from toolchain.native.pictures import pixels_of
from toolchain.native.programs import Program
from toolchain.progress import Stages, stage
from toolchain.tensors import Difference


@dataclass(frozen=True)
class Settings:
    """How to check and to measure a release.

    Attributes:
        budget_s: Seconds to measure.
        threads: Threads of the model; 0 means the board file's number.
        tolerance: Limit for the outputs' relative difference; None for that of each output.
        pinned: Whether each thread is pinned to one CPU.
        labels: File of class names for a top-5 table.
        samples: How many inputs a deploy compares with the reference.
        library: Whether a deploy also installs the library for applications.
        unchecked: Whether a deploy accepts a bundle without its reference; the device marks the release.
        accept: Called when the outputs are verified and before the release becomes current; it raises to refuse it.
        energy: Whether a benchmark measures energy as well.
        rate: The rate that a benchmark also runs at; None for back to back only.
    """

    budget_s: float = 10.0
    threads: int = 0
    tolerance: float | None = None
    pinned: bool = True
    labels: Path | None = None
    samples: int = 1
    library: bool = False
    unchecked: bool = False
    accept: Callable[[DeviceRelease], None] | None = None
    energy: bool = False
    rate: Rate | None = None


@dataclass(frozen=True)
class VariantChecked:
    """A variant of a release whose outputs on the device were compared; fields as of `Deployment`."""

    name: str
    difference: Difference | None
    fidelity: Fidelity | None


@dataclass(frozen=True)
class Deployment:
    """A finished deploy.

    Attributes:
        digest: The bundle's digest, now the device's current release.
        changed: False if the device already ran it.
        facts: What the device is.
        transfer: What was sent.
        difference: Outputs on the device against the reference; None if the package has no reference.
        reference: What computed the reference.
        run: The smoke run.
        application: How the device's application started; None if it has none.
        fidelity: The comparison of many samples; None if there was only one.
        verified: The device's check of the signatures; None if it accepts unsigned releases.
        raw: The check of the release's steps for pictures or sounds; None if it has none, or no reference.
        variants: The comparisons of all variants, the first one's being those above; none without variants.
    """

    digest: str
    changed: bool
    facts: DeviceFacts
    transfer: Transfer
    difference: Difference | None
    reference: str
    run: Run
    application: Started | None = None
    fidelity: Fidelity | None = None
    verified: Verified | None = None
    raw: PicturesChecked | SoundsChecked | None = None
    variants: tuple[VariantChecked, ...] = ()


def deploy(
    bundle: Bundle,
    program: Program,
    device: ConnectedDevice,
    settings: Settings,
    stages: Stages,
    library: Program | None = None,
) -> Deployment:
    """Deploy a bundle; the caller holds the lock of the device's store.

    The device's application is restarted on the new release; if it is not healthy, the device returns to the old one.

    Args:
        bundle: The bundle.
        program: The runner for the device.
        device: The device.
        settings: How to check the outputs.
        stages: Reports progress, and records the time of each stage.
        library: The library for applications, to install as `lib/` in the store.

    Raises:
        InputError: The bundle's reference has fewer samples than the settings ask for.
        VerificationError: The bundle has no reference; the device does not fit it, stored other bytes or computed other
            outputs, or its application is not healthy. It keeps the previous release.
        DeviceError: The device is lost, busy or full, or the model does not run on it.
    """
    first, *others = bundle.manifest.variant_names
    samples = verification.samples_of(bundle, unchecked=settings.unchecked, variant=first)
    random = verification.random_reference(bundle, settings.samples, first)
    with stages.timed("deploy"):
        release = DeviceRelease.of_bundle(bundle, program, device, settings.threads)
        if device.entry.run:
            application.check_tools(device.store)
    with temporary.folder() as work:
        with stages.timed("deploy"):
            installed = release.of_variant(first).install(samples.inputs, Path(work), stages.tell, library)
        run, checked = _check_outputs(installed, samples, random, settings, stages)
        with stages.timed("smoke"):
            of_raw = _check_steps(release, samples, settings.tolerance)
        of_others = [_check_variant(release.of_variant(name), settings, stages) for name in others]
        if settings.accept:
            settings.accept(release)
        # Only here does the new release become current: all checks before leave the device as it was.
        device.store.releases.mark(bundle.digest, unchecked=checked.difference is None)
        changed, started, verified = _make_current(installed, library, stages)
    return Deployment(
        digest=bundle.digest,
        changed=changed,
        facts=release.facts,
        transfer=Transfer.of(installed.sent, device.shell),
        difference=checked.difference,
        reference=samples.runtime,
        run=run,
        application=started,
        fidelity=checked.fidelity,
        verified=verified,
        raw=of_raw,
        variants=(checked, *of_others) if others else (),
    )


def _check_outputs(
    installed: Installed, samples: Samples, random: RandomSamples | None, settings: Settings, stages: Stages
) -> tuple[Run, VariantChecked]:
    """Run a release once, and on random samples if there are any, and compare its outputs."""
    release = installed.release
    try:
        with stages.timed("smoke"):
            run = installed.run(runner.SMOKE)
            difference = verification.check_outputs(run, samples, release.manifest, settings.tolerance)
        fidelity = None
        if random:
            with stages.timed("samples"):
                fidelity = verification.check_samples(release, random, settings.tolerance, stages.tell)
    except OutputError as fault:
        if not release.variant:
            raise
        message = f"variant {release.variant}: {fault.message}"
        raise OutputError(message, details=fault.details, hint=fault.hint) from fault
    return run, VariantChecked(release.variant, difference, fidelity)


def _check_variant(release: DeviceRelease, settings: Settings, stages: Stages) -> VariantChecked:
    """Compare the outputs of a variant with its own reference; the files of the release are on the device."""
    bundle, name = release.bundle, release.variant
    if bundle is None:
        raise ValueError("only a bundle on this machine has a reference")
    samples = verification.samples_of(bundle, unchecked=settings.unchecked, variant=name)
    random = verification.random_reference(bundle, settings.samples, name)
    stages.tell(stage(f"checking variant {name}"))
    with temporary.folder() as work:
        installed = replace(release, bundle=None).install(samples.inputs, Path(work))
        _, checked = _check_outputs(installed, samples, random, settings, stages)
    return checked


def _check_steps(
    release: DeviceRelease, samples: Samples, tolerance: float | None
) -> PicturesChecked | SoundsChecked | None:
    """Run the reference's picture or sound through all steps on the device; its files are there."""
    manifest, raw = release.manifest, samples.picture if samples.sound is None else samples.sound
    if raw is None:
        return None
    windows = sounds.windows_of(raw, manifest) if manifest.sounds else 1
    sent, raw = _run_raw(replace(release, bundle=None), raw, windows)
    run = replace(sent, outputs={name: value[0] for name, value in sent.outputs.items()})
    checked: PicturesChecked | SoundsChecked
    checked = sounds.check(run, raw, manifest) if manifest.sounds else pictures.check(run, raw, manifest)
    if manifest.states:  # the last window, which shows what the steps before it left
        run, samples = sent, samples.last_step
    values = [value[0] if manifest.states else value for value in samples.inputs.values()]
    if run.objects and all(np.array_equal(run.objects["input"], value) for value in values):
        verification.check_outputs(run, samples, manifest, tolerance)
    return checked


def _run_raw(release: DeviceRelease, raw: NDArray[np.uint8], windows: int) -> tuple[Run, NDArray[np.uint8]]:
    """Run a picture or a sound; return what was sent: the pixels of a file if the device cannot decode it."""
    has_masks = release.manifest.pictures and release.manifest.pictures.plan.mask_output >= 0
    area = pixels_of(raw).size if has_masks else 0
    try:
        return sampling.run_raw(release, {"0": raw}, 1, windows, keep_input=True, pixels=area)[0], raw
    except DeviceError as fault:
        if not pictures.lacks_decoder(fault):
            raise
    pixels = pixels_of(raw)
    return sampling.run_raw(release, {"0": pixels}, 1, keep_input=True, pixels=area)[0], pixels


def _make_current(
    installed: Installed, library: Program | None, stages: Stages
) -> tuple[bool, Started | None, Verified | None]:
    """Make it current; return whether it was not so before, how the application started, and its signatures."""
    device, digest = installed.release.device, installed.release.digest
    store, run_table, started = device.store, device.entry.run, None
    with stages.timed("application" if run_table else "deploy"):
        if library:
            store.blobs.offer(library.sha256)
        if run_table:
            changed, started = application.activate(store, digest, run_table, stages.tell)
        else:
            changed = store.releases.activate(digest)
    with stages.timed("deploy"):
        # After the activation: a release that is not healthy must not keep the device from going back.
        verified = trust.note_minimum(store, installed.verified, installed.folders["runners"])
        store.releases.prune(device.board.keep)
    return changed, started, verified


def remove(device: ConnectedDevice, progress: Callable[[str], None]) -> None:
    """Remove the slot of a device, and stop its application, if there is one; the caller holds the lock.

    Raises:
        DeviceError: The device is lost, or its disk fails.
    """
    run = device.entry.run
    stop = application.stop_script(run) if run else ":"
    if "not stopped" in device.store.remove_slot(stop).splitlines():
        progress(f"the release is removed, but {run.name if run else 'the application'} could not be stopped")


def roll_back(device: ConnectedDevice, progress: Callable[[str], None]) -> tuple[Generation, Started | None]:
    """Make the release before the current one current again; the caller holds the lock.

    Returns:
        The generation that is current now, and how the application started on it; None without an application.

    Raises:
        VerificationError: The device does not accept that release any more, or the application is not healthy on it.
        DeviceError: There is no earlier release, or the device is lost.
    """
    device.store.blobs.sweep()
    trust.verify_previous(device.store)
    if device.entry.run:
        return application.roll_back(device.store, device.entry.run, progress)
    return device.store.releases.roll_back(), None
