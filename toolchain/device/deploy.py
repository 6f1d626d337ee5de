"""Bring a bundle to a device: push what is missing, verify, run it once, compare, and only then switch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from toolchain import bundle as bundles
from toolchain import interrupts, rankings, temporary, tensors
from toolchain.bundle import Bundle
from toolchain.bundle.manifest import Manifest
from toolchain.device import application as applications
from toolchain.device import fidelity, runner, trust
from toolchain.device.application import Started
from toolchain.device.fidelity import Fidelity
from toolchain.device.lock import Owner
from toolchain.device.runner import Run
from toolchain.device.sampling import Place
from toolchain.device.shipment import Sent, Shipment, Tell, Transfer, install, send
from toolchain.device.store import DeviceFacts, Store
from toolchain.device.trust import Verified
from toolchain.errors import DeviceError, MismatchError, OutputError, VerificationError
from toolchain.models import inputs
from toolchain.native import elf
from toolchain.native.programs import Program
from toolchain.rankings import Ranking
from toolchain.shell import Shell
from toolchain.tensors import Difference, Tensors, Tolerance
from toolchain.versions import abi

if TYPE_CHECKING:
    from toolchain.devices import Application


@dataclass(frozen=True)
class Deployment:
    """A finished deploy.

    Attributes:
        digest: The bundle's digest, now the device's current release.
        changed: False if the device already ran it.
        facts: What the device is.
        transfer: What was sent.
        difference: Outputs on the device against the reference; None if the package carried no reference.
        reference: What computed the reference.
        run: The smoke run.
        application: How the device's application started; None where none is known.
        fidelity: What more samples showed; None where one was enough.
        verified: What the device found of the release's signatures; None where it asks for none.
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


@dataclass
class Stages:
    """Wall-clock seconds by stage, in order, for the report."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the time of a block to a stage, which does not begin once the command is to end."""
        interrupts.check()
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@dataclass(frozen=True)
class Samples:
    """What a smoke run is fed with, and what should come out.

    Attributes:
        inputs: Inputs by name.
        expected: Reference outputs by name, or None if there is no reference.
        runtime: What computed the reference.
        tolerance: The reference's own limits for the relative difference, if it has some.
        rankings: Which outputs have rows in an order of scores.
    """

    inputs: Tensors
    expected: Tensors | None
    runtime: str = ""
    tolerance: Tolerance | None = None
    rankings: tuple[Ranking, ...] = ()


def check_referenced(bundle: Bundle, *, unchecked: bool) -> None:
    """Refuse a bundle without its reference, unless the user wants it all the same.

    Raises:
        VerificationError: Nothing would tell whether a device computes it right.
    """
    if bundle.reference is None and not unchecked:
        named = bundle.manifest.reference
        raise VerificationError(
            f"{bundle.manifest.name} has no reference outputs, so its results cannot be verified",
            details=f"the reference has sha256 {named.sha256}" if named else "it was built without one",
            hint="use a package from `toolchain pull` or `toolchain package`, or skip the check with --unchecked",
        )


def samples_of(bundle: Bundle, *, unchecked: bool = False) -> Samples:
    """Read a bundle's reference; without one, if that is wanted, draw inputs and expect nothing in particular.

    Raises:
        VerificationError: As `check_referenced`; or the reference is none that anything can be compared with.
    """
    check_referenced(bundle, unchecked=unchecked)
    if bundle.reference is None:
        return Samples(inputs.random(bundle.manifest.inputs, seed=0), None)
    reference = bundles.Reference.read(bundle.reference)
    reference.check(bundle.manifest)
    reference.check_comparable()
    return Samples(reference.inputs, reference.outputs, reference.runtime, reference.tolerance, reference.rankings)


def check_fits(manifest: Manifest, program: Program, facts: DeviceFacts) -> None:
    """Refuse a device that cannot run the bundle, before anything is sent.

    Raises:
        VerificationError: The machine, the C library or the CPU is another one, or the runner is made of another TVM
            than the bundle was compiled with.
        DeviceError: The device lacks programs that the store needs.
    """
    check_suits(manifest, program.versions, facts)
    check_runs(program, facts)


def check_suits(manifest: Manifest, versions: Mapping[str, str], facts: DeviceFacts) -> None:
    """Refuse a device that cannot run the bundle; no program of ours is needed to know that.

    Args:
        manifest: The bundle's.
        versions: What our programs are made of.
        facts: What the device says of itself.

    Raises:
        VerificationError: As `check_fits`.
        DeviceError: As `check_fits`.
    """
    if facts.machine != manifest.machine:
        raise MismatchError(
            f"the bundle is for {manifest.machine}, but the device is {facts.machine}",
            hint="build for the board type of this device: `toolchain boards` lists the types",
        )
    check_versions(manifest, versions)
    check_tools(facts)
    missing = [flag for flag in manifest.cpu_features if flag not in facts.cpu_features]
    if missing:
        raise MismatchError(
            f"the device's CPU does not support {', '.join(missing)}",
            details=f"the bundle was built for {manifest.target.get('mcpu')}; the device is a {facts.cpu}",
            hint="build for a board type with a more basic target.mcpu",
        )
    _check_glibc(manifest.glibc, facts, "the library")


def check_tools(facts: DeviceFacts) -> None:
    """Refuse a device without the programs that the store is made with.

    Raises:
        DeviceError: Some are missing.
    """
    if facts.lacks:
        raise DeviceError(
            f"the device lacks {', '.join(facts.lacks)}", hint="install coreutils, findutils and util-linux, or busybox"
        )


def check_versions(manifest: Manifest, versions: Mapping[str, str]) -> None:
    """Refuse programs that are made of another TVM than a bundle was compiled with.

    Raises:
        VerificationError: They are.
    """
    for what, theirs, ours in (
        ("TVM", manifest.versions.get("tvm", ""), versions["tvm"]),
        ("TVM-FFI", abi(manifest.versions.get("tvm_ffi", "")), abi(versions["tvm_ffi"])),
    ):
        if theirs != ours:
            raise VerificationError(
                f"the bundle was compiled with {what} {theirs or '(unknown)'}, but the runner has {what} {ours}",
                hint="build it again with this toolchain",
            )


def check_runs(program: Program, facts: DeviceFacts) -> None:
    """Refuse a device that a program of ours does not start on.

    Raises:
        MismatchError: The machine or the C library is another one.
    """
    if facts.machine != program.machine:
        raise MismatchError(
            f"{program.path.name} is for {program.machine}, but the device is {facts.machine}",
            hint="pass the board type of this device with --board: `toolchain boards` lists the types",
        )
    _check_glibc(program.glibc, facts, program.path.name)


def _check_glibc(needed: str, facts: DeviceFacts, what: str) -> None:
    if facts.glibc and needed and elf.version_key(facts.glibc) < elf.version_key(needed):
        raise MismatchError(
            f"the device has glibc {facts.glibc}, but glibc {needed} or newer is needed",
            details=f"by {what}",
            hint="build on a system as old as the device, or update the device",
        )


def deploy(  # noqa: PLR0913 - a deploy has these independent parts
    bundle: Bundle,
    program: Program,
    shell: Shell,
    store: Store,
    *,
    keep: int,
    threads: int,
    tolerance: float | None = None,
    count: int = 1,
    stages: Stages | None = None,
    tell: Tell | None = None,
    application: Application | None = None,
    library: Program | None = None,
    unchecked: bool = False,
) -> Deployment:
    """Deploy a bundle.

    Args:
        bundle: What to deploy.
        program: The runner for the device.
        shell: The device.
        store: The device's store.
        keep: Activations to keep for a roll-back.
        threads: Threads of the smoke run; 0 means every CPU.
        tolerance: Limit for the outputs' relative difference; by default it follows from the dtype.
        count: How many inputs are compared; the bundle's reference carries so many.
        stages: Where the time of each stage is added.
        tell: Called during uploads, and while the application is waited for.
        application: What runs the device's releases: it is restarted, and a release on which it is not well goes.
        library: What applications are linked with, to be found as `lib/` in the store.
        unchecked: Whether a bundle without its reference is deployed, too; the device then says so.

    Raises:
        InputError: The bundle's reference carries fewer samples.
        VerificationError: The bundle has no reference; the device does not fit, stored or computed something else, or
            its application is not well. It keeps the release that it had.
        DeviceError: The device is lost, busy or full, or the model does not run on it.
    """
    samples = samples_of(bundle, unchecked=unchecked)
    stages, drawn = stages or Stages(), fidelity.carried(bundle, count)
    with stages.timed("deploy"):
        facts = _fitting(bundle, program, store, application)
    with temporary.folder() as work, store.lock(Owner.here("deploy")):
        with stages.timed("deploy"):
            shipment = Shipment.of_run(program, samples.inputs, Path(work)).with_library(library)
            sent, places, verified = bring(shipment.with_release(bundle, Path(work)), store, facts, tell)
        with stages.timed("smoke"):
            place = Place(shell, store, program, facts, bundle.manifest, bundle.digest, threads)
            run, difference = _smoke(place, places, samples, tolerance)
        with stages.timed("samples" if drawn else "smoke"):
            found = fidelity.check(place, drawn, tolerance, tell) if drawn else None
        with stages.timed("application" if application else "deploy"):
            store.mark(bundle.digest, unchecked=difference is None)
            changed, started = _activated(store, bundle.digest, application, library, tell)
        with stages.timed("deploy"):
            verified = trust.note_minimum(store, verified, places["runners"])
            store.prune(keep)
    sums = Transfer.of(sent, shell)
    return Deployment(bundle.digest, changed, facts, sums, difference, samples.runtime, run, started, found, verified)


def bring(
    shipment: Shipment, store: Store, facts: DeviceFacts, tell: Tell | None = None
) -> tuple[Sent, dict[str, str], Verified | None]:
    """Send what a device lacks of a shipment and install it, without activating anything; the caller holds the lock.

    Returns:
        What was sent, the folders on the device by kind, and what the device found of the release's signatures.

    Raises:
        DeviceError: As `send`.
        VerificationError: As `send`; or the device does not take the release.
    """
    sent, places = send(shipment, store, facts, tell), install(shipment, store)
    digest, _files = shipment.folders.get("releases", ("", {}))
    return sent, places, trust.take(store, digest, places["runners"], shipment.signed)


def _smoke(
    place: Place, places: Mapping[str, str], samples: Samples, tolerance: float | None
) -> tuple[Run, Difference | None]:
    run = runner.call(
        place.shell,
        place.store.root,
        places,
        release=places["releases"],
        threads=place.threads,
        plan=runner.SMOKE,
        outputs=place.manifest.outputs,
        size=runner.weight(place.manifest),
    )
    return run, check_outputs(run, samples, place.manifest, tolerance)


def _fitting(bundle: Bundle, program: Program, store: Store, application: Application | None) -> DeviceFacts:
    facts = store.facts()
    check_fits(bundle.manifest, program, facts)
    trust.check_signed(store.name, facts, bundle)
    if application:
        applications.check_tools(store)
    return facts


def _activated(
    store: Store, digest: str, application: Application | None, library: Program | None, tell: Tell | None
) -> tuple[bool, Started | None]:
    if library:
        store.offer(library.sha256)
    if application is None:
        return store.activate(digest), None
    return applications.activate(store, digest, application, tell or (lambda _line: None))


def check_outputs(run: Run, samples: Samples, manifest: Manifest, tolerance: float | None) -> Difference | None:
    """Compare a run's outputs with the reference.

    Raises:
        OutputError: They differ by more than the tolerance, or do not have the model's signature.
    """
    faults = tensors.check_signature(run.outputs, manifest.outputs)
    if faults:
        raise OutputError("the device's outputs do not have the model's signature", details="\n".join(faults))
    if samples.expected is None:
        return None
    limit = samples.tolerance if tolerance is None else tolerance
    outputs = tensors.cut(run.outputs, manifest.outputs)
    difference = rankings.compare(outputs, samples.expected, samples.rankings, limit)
    if tolerance is not None:
        difference = tensors.as_option(difference)
    if not difference.ok:
        raise OutputError(
            f"the device's outputs differ from the reference for {manifest.name}",
            details=f"largest relative difference {difference.max_rel:.3g}, tolerance {difference.tolerance:.3g}; "
            f"largest absolute difference {difference.max_abs:.3g}",
            hint="the device keeps its previous release; use --tolerance to set another limit",
        )
    return difference
