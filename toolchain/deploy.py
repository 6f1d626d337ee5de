"""Bring a bundle to a device: push what is missing, verify, run it once, compare, and only then switch."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from toolchain import bundle as bundles
from toolchain import elf, files, inputs, runner, tensors
from toolchain.bundle import Bundle, Manifest
from toolchain.device_runtime import RUNNER, Program
from toolchain.errors import DeviceError, VerificationError
from toolchain.runner import Run
from toolchain.shell import Shell
from toolchain.store import BlobState, DeviceFacts, Store
from toolchain.tensors import Difference, Tensors

Progress = Callable[[str, int, int], None]
"""Called with what is sent, its bytes in all, and the bytes done."""

_SPARE_KIB = 1024  # links, folders and a run's outputs need room too
_INPUTS = runner.INPUTS


@dataclass(frozen=True)
class Transfer:
    """What went over the wire.

    Attributes:
        bytes_sent: Bytes sent since the connection was made, its key exchange included.
        bytes_received: Bytes received.
        blobs_sent: Number of blobs (library, graph, params, inputs and the runner) that the device lacked.
        blobs_skipped: Number that it had.
        seconds: Time spent pushing.
    """

    bytes_sent: int
    bytes_received: int
    blobs_sent: int
    blobs_skipped: int
    seconds: float

    @classmethod
    def of(cls, sent: Sent, shell: Shell) -> Transfer:
        """Add what a shell has counted to what was pushed through it."""
        return cls(shell.bytes_sent, shell.bytes_received, sent.count, sent.skipped, sent.seconds)


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
    """

    digest: str
    changed: bool
    facts: DeviceFacts
    transfer: Transfer
    difference: Difference | None
    reference: str
    run: Run


@dataclass
class Stages:
    """Wall-clock seconds by stage, in order, for the report."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the time of a block to a stage."""
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
        tolerance: The reference's own limit for the relative difference, if it has one.
    """

    inputs: Tensors
    expected: Tensors | None
    runtime: str = ""
    tolerance: float | None = None


def samples_of(bundle: Bundle) -> Samples:
    """Read a bundle's reference; without one, draw inputs and expect nothing in particular."""
    if bundle.reference is None:
        return Samples(inputs.random(bundle.manifest.inputs, seed=0), None)
    reference = bundles.Reference.read(bundle.reference)
    faults = tensors.check_signature(reference.inputs, bundle.manifest.inputs)
    if faults:
        raise VerificationError("the bundle's reference does not fit its model", details="\n".join(faults))
    return Samples(reference.inputs, reference.outputs, reference.runtime, reference.tolerance)


def check_fits(manifest: Manifest, program: Program, facts: DeviceFacts) -> None:
    """Refuse a device that cannot run the bundle, before anything is sent.

    Raises:
        VerificationError: The machine, the C library or the CPU is another one, or the runner is made of another TVM
            than the bundle was compiled with.
        DeviceError: The device lacks programs that the store needs.
    """
    if facts.machine != manifest.machine:
        raise VerificationError(
            f"the bundle is for {manifest.machine}, and the device is {facts.machine}",
            hint="build for the board type of this device: `toolchain boards` lists them",
        )
    _check_versions(manifest, program)
    if facts.lacks:
        raise DeviceError(
            f"the device lacks {', '.join(facts.lacks)}", hint="install coreutils, findutils and util-linux, or busybox"
        )
    missing = [flag for flag in manifest.cpu_features if flag not in facts.cpu_features]
    if missing:
        raise VerificationError(
            f"the device's CPU has no {', '.join(missing)}",
            details=f"the bundle was built for {manifest.target.get('mcpu')}; the device is a {facts.cpu}",
            hint="build for a board type with a plainer target.mcpu",
        )
    _check_glibc(manifest.glibc, facts, "the library")
    check_runs(program, facts)


def _check_versions(manifest: Manifest, program: Program) -> None:
    for what, theirs, ours in (
        ("TVM", manifest.versions.get("tvm", ""), program.versions["tvm"]),
        # Post releases and the like mend the package and leave the ABI alone.
        ("TVM-FFI", _abi(manifest.versions.get("tvm_ffi", "")), _abi(program.versions["tvm_ffi"])),
    ):
        if theirs != ours:
            raise VerificationError(
                f"the bundle was compiled with {what} {theirs or '(unknown)'}, and the runner has {what} {ours}",
                hint="build it again with this toolchain",
            )


def _abi(version: str) -> str:
    """Return the first three numbers of a version, which name the ABI."""
    return ".".join(version.split(".")[:3])


def check_runs(program: Program, facts: DeviceFacts) -> None:
    """Refuse a device that a program of ours does not start on.

    Raises:
        VerificationError: The machine or the C library is another one.
    """
    if facts.machine != program.machine:
        raise VerificationError(
            f"{program.path.name} is for {program.machine}, and the device is {facts.machine}",
            hint="name the board type of this device: `toolchain boards` lists them",
        )
    _check_glibc(program.glibc, facts, program.path.name)


def _check_glibc(needed: str, facts: DeviceFacts, what: str) -> None:
    if facts.glibc and needed and elf.version_key(facts.glibc) < elf.version_key(needed):
        raise VerificationError(
            f"the device has glibc {facts.glibc}, and glibc {needed} is needed",
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
    stages: Stages | None = None,
    progress: Progress | None = None,
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
        stages: Where the time of each stage is added.
        progress: Called during uploads.

    Raises:
        VerificationError: The device does not fit, stored other bytes, or computed other outputs. It keeps the
            release that it had.
        DeviceError: The device is lost, busy or full, or the model does not run on it.
    """
    stages = stages or Stages()
    samples = samples_of(bundle)
    with stages.timed("deploy"):
        facts = store.facts()
        check_fits(bundle.manifest, program, facts)
    with tempfile.TemporaryDirectory(prefix="toolchain-") as work, store.lock(owner()):
        with stages.timed("deploy"):
            shipment = Shipment.of_run(program, samples.inputs, Path(work)).with_release(bundle, Path(work))
            sent = send(shipment, store, facts, progress)
            places = install(shipment, store)
        with stages.timed("smoke"):
            run = runner.call(shell, store.root, places, release=places["releases"], threads=threads, plan=runner.SMOKE)
            difference = check_outputs(run, samples, bundle.manifest, tolerance)
        with stages.timed("deploy"):
            changed = store.activate(bundle.digest)
            store.prune(keep)
    return Deployment(bundle.digest, changed, facts, Transfer.of(sent, shell), difference, samples.runtime, run)


def owner() -> str:
    """Say who holds the lock, for whoever finds it taken."""
    try:
        return f"{getpass.getuser()}@{platform.node()}"
    except (KeyError, OSError):  # a container's user may have no name
        return platform.node()


@dataclass(frozen=True)
class Shipment:
    """What must be on a device for a run.

    Attributes:
        blobs: Path on this machine of every blob, by digest.
        folders: For `releases`, `runners` and `inputs` the folder's digest and its files' digests by name.
        programs: Digests of the blobs that are executable.
        documents: Digests of the blobs that only describe others: a release's two manifests.
    """

    blobs: Mapping[str, Path]
    folders: Mapping[str, tuple[str, Mapping[str, str]]]
    programs: tuple[str, ...]
    documents: frozenset[str] = frozenset()

    @classmethod
    def of_run(cls, program: Program, given: Tensors, work: Path) -> Shipment:
        """Ship a runner and inputs, which are written into the folder `work`."""
        path = work / _INPUTS
        tensors.save(path, given)
        digest = files.sha256_file(path)
        return cls(
            blobs={program.sha256: program.path, digest: path},
            folders={"runners": (program.sha256, {RUNNER: program.sha256}), "inputs": (digest, {_INPUTS: digest})},
            programs=(program.sha256,),
        )

    def with_release(self, bundle: Bundle, work: Path) -> Shipment:
        """Add a bundle, whose two manifests are written into the folder `work`."""
        release = {name: record.sha256 for name, record in bundle.manifest.files.items()}
        blobs = {digest: bundle.folder / name for name, digest in release.items()}
        documents = {bundles.MANIFEST: bundle.manifest.encoded(), "oci.json": bundles.oci_manifest(bundle.manifest)}
        for name, content in documents.items():
            (work / name).write_bytes(content)
            release[name] = files.sha256_bytes(content)
            blobs[release[name]] = work / name
        folders = {**self.folders, "releases": (bundle.digest, release)}
        described = frozenset(release[name] for name in documents)
        return dataclasses.replace(self, blobs={**blobs, **self.blobs}, folders=folders, documents=described)


@dataclass(frozen=True)
class Sent:
    """How many blobs were sent, how many the device had (documents not counted), and how many seconds it took."""

    count: int
    skipped: int
    seconds: float


def send(shipment: Shipment, store: Store, facts: DeviceFacts, progress: Progress | None = None) -> Sent:
    """Push the blobs that a device lacks and have it check them; the caller holds the store's lock.

    Raises:
        DeviceError: There is not enough space, or the device is lost.
        VerificationError: The device stored other bytes than were sent, twice.
    """
    start = time.perf_counter()
    store.sweep()
    states = store.examine(shipment.blobs)
    missing = {digest: state for digest, state in states.items() if state.state != "have"}
    _check_space(shipment, missing, facts)
    _push(shipment, missing, store, progress)
    if damaged := store.publish(missing, executable=shipment.programs):
        # What was resumed may have been cut in the middle of a write: once more, from the start.
        _push(shipment, dict.fromkeys(damaged, BlobState("missing", 0)), store, progress)
        damaged = store.publish(missing, executable=shipment.programs)
    if damaged:
        raise VerificationError(
            f"{len(damaged)} uploaded blob(s) have another digest on the device",
            details="\n".join(damaged),
            hint="run the command again; if it happens again, check the device's storage",
        )
    count = len(missing.keys() - shipment.documents)
    skipped = len(states.keys() - missing.keys() - shipment.documents)
    return Sent(count, skipped, time.perf_counter() - start)


def _check_space(shipment: Shipment, missing: Mapping[str, BlobState], facts: DeviceFacts) -> None:
    needed = sum(shipment.blobs[digest].stat().st_size - state.size for digest, state in missing.items()) // 1024
    if missing and needed + _SPARE_KIB > facts.free_kib:
        free, wanted = facts.free_kib / 1024, (needed + _SPARE_KIB) / 1024
        raise DeviceError(
            f"the device has {free:.1f} MiB free, and {wanted:.1f} MiB are needed",
            hint="free some space there, or keep fewer releases (`keep` in the board file)",
        )


def _push(shipment: Shipment, missing: Mapping[str, BlobState], store: Store, progress: Progress | None) -> None:
    """Upload blobs, continuing what an earlier deploy began."""
    for digest, state in missing.items():
        path = shipment.blobs[digest]
        size = path.stat().st_size
        report = partial(progress, path.name, size) if progress else None
        # An upload longer than its blob is not one of this blob: the check on the device will say so.
        store.push(path, digest, min(state.size, size), report)


def install(shipment: Shipment, store: Store) -> dict[str, str]:
    """Make the folders of a shipment on the device; return their paths by kind."""
    return {kind: store.install(kind, digest, content) for kind, (digest, content) in shipment.folders.items()}


def check_outputs(run: Run, samples: Samples, manifest: Manifest, tolerance: float | None) -> Difference | None:
    """Compare a run's outputs with the reference.

    Raises:
        VerificationError: They differ by more than the tolerance, or do not have the model's signature.
    """
    faults = tensors.check_signature(run.outputs, manifest.outputs)
    if faults:
        raise VerificationError("the device's outputs do not have the model's signature", details="\n".join(faults))
    if samples.expected is None:
        return None
    limit = samples.tolerance if tolerance is None else tolerance
    difference = tensors.compare(run.outputs, samples.expected, limit)
    if not difference.ok:
        raise VerificationError(
            f"the device computes something else than the reference for {manifest.name}",
            details=f"largest relative difference {difference.max_rel:.3g}, tolerance {difference.tolerance:.3g}; "
            f"largest absolute difference {difference.max_abs:.3g}",
            hint="the device keeps the release that it had; --tolerance sets another limit",
        )
    return difference
