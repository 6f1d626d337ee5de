"""A release on a device, with its runner and inputs; deploys, benchmarks, gates and profiles all run one.

A user names a release as `current`, by the number of an activation, or by the beginning of a digest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolchain import bundle, files, temporary
from toolchain.bundle import Bundle
from toolchain.bundle.manifest import LARGEST_GRAPH, Manifest
from toolchain.device import fit, runner, trust
from toolchain.device.connected import ConnectedDevice
from toolchain.device.probe.facts import DeviceFacts
from toolchain.device.runner import Neighbour, Plan, Run
from toolchain.device.shipment import Sent, Shipment, Tell, install, send
from toolchain.device.store import Generation, Store
from toolchain.device.trust import Verified
from toolchain.errors import InputError, VerificationError
from toolchain.native.programs import Program
from toolchain.shell import Shell
from toolchain.tensors import Tensors

CURRENT = "current"
_SHOWN = 200
_NUMBER = re.compile(r"[0-9]{1,7}")
_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{8,64})")  # eight digits or more: a number of an activation has seven


def is_release_name(text: str) -> bool:
    """Return whether a text can name a release."""
    return text == CURRENT or bool(_NUMBER.fullmatch(text) or _DIGEST.fullmatch(text))


def find_release(store: Store, text: str) -> Generation:
    """Return the activation that a text names; the last one of a release that was activated several times.

    Raises:
        InputError: The device has no such release, or several match.
        DeviceError: The device is lost.
    """
    generations = store.releases.generations()
    if text == CURRENT:
        matching = [generation for generation in generations if generation.current]
    elif _NUMBER.fullmatch(text):
        matching = [generation for generation in generations if generation.number == int(text)]
    else:
        digits = _DIGEST.fullmatch(text)
        matching = [generation for generation in generations if digits and generation.digest.startswith(digits[1])]
    if len({generation.digest for generation in matching}) != 1:
        listing = [f"{generation.number}  {generation.digest[:16]}  {generation.name}" for generation in generations]
        problem = "several releases that match" if matching else "no such release"
        raise InputError(
            f"{store.name} has {problem}: {text[:_SHOWN]}",
            details="\n".join(["its releases:", *listing]) if listing else "the device has no releases",
            hint="write `current`, a number of `toolchain status --releases`, 8 digits of a digest, or a package",
        )
    return matching[-1]


def read_manifest(store: Store, digest: str) -> Manifest:
    """Read the manifest of a release on a device.

    Raises:
        VerificationError: It does not match the digest.
        DeviceError: It cannot be read.
    """
    where = f"release {digest[:16]} on {store.name}"
    content = bundle.read_manifest(store.read(f"releases/{digest}/{bundle.MANIFEST}"), where)
    if files.sha256_bytes(bundle.oci_manifest(content)) != digest:
        raise _damaged(store, digest)
    return content


def read_graph(device: ConnectedDevice, manifest: Manifest, digest: str) -> str:
    """Read the text of the graph of a release on a device.

    Raises:
        VerificationError: It does not match the digest.
        DeviceError: It cannot be read.
    """
    record = manifest.files[bundle.GRAPH_TEXT]
    if record.size > LARGEST_GRAPH:
        raise _damaged(device.store, digest)
    with temporary.folder() as folder:
        path = Path(folder) / bundle.GRAPH_TEXT
        source = f"{device.store.root}/releases/{digest}/{bundle.GRAPH_TEXT}"
        device.shell.pull(source, path, max_bytes=record.size)
        if files.sha256_file(path) != record.sha256:
            raise _damaged(device.store, digest)
        return path.read_text(encoding="utf-8")


def _damaged(store: Store, digest: str) -> VerificationError:
    """Return the error for a release whose files do not match its digest."""
    return VerificationError(
        f"release {digest[:16]} on {store.name} does not match its digest",
        hint="deploy it again, or pass the package itself",
    )


@dataclass(frozen=True)
class DeviceRelease:
    """A release that is on a device, or can be installed there, and its runner.

    Attributes:
        device: The device.
        program: The runner.
        facts: The facts of the device.
        manifest: The manifest of the release.
        digest: The digest of the release.
        threads: Threads of the model; 0 means every CPU.
        bundle: Its files on this machine; None if the device has them.
        variant: The set of shapes that is run, whose manifest this is; empty if there is one, or for the first.
        second: A release of another slot, which runs on each box that this one finds in a picture; None for none.
    """

    device: ConnectedDevice
    program: Program
    facts: DeviceFacts
    manifest: Manifest
    digest: str
    threads: int = 0
    bundle: Bundle | None = None
    variant: str = ""
    second: DeviceRelease | None = None

    def of_variant(self, name: str) -> DeviceRelease:
        """Return the release with one of its sets of shapes; with an empty name, as it is.

        Raises:
            InputError: It has no such variant.
        """
        return dataclasses.replace(self, manifest=self.manifest.of_variant(name), variant=name) if name else self

    @classmethod
    def of_bundle(cls, bundle: Bundle, program: Program, device: ConnectedDevice, threads: int = 0) -> DeviceRelease:
        """Return the release of a bundle on this machine, if the device can run it.

        Raises:
            MismatchError, VerificationError: The device cannot run it, or requires a signature.
        """
        facts = device.store.facts()
        count = device.threads(threads, facts.cpus)
        release = cls(device, program, facts, bundle.manifest, bundle.digest, count, bundle)
        fit.check_fits(bundle.manifest, program, release.facts)
        fit.check_library(bundle, release.facts)
        trust.check_signed(device.name, release.facts, bundle)
        return release

    @classmethod
    def of_device(
        cls, manifest: Manifest, digest: str, program: Program, device: ConnectedDevice, threads: int = 0
    ) -> DeviceRelease:
        """Return a release that the device has.

        Raises:
            MismatchError, VerificationError: The runner does not fit the device, or the release.
        """
        facts = device.store.facts()
        release = cls(device, program, facts, manifest, digest, device.threads(threads, facts.cpus))
        fit.check_fits(manifest, program, release.facts)
        return release

    def install(
        self, inputs: Tensors, work: Path, progress: Tell | None = None, library: Program | None = None
    ) -> Installed:
        """Send what the device lacks for a run, without activating anything; the caller holds the store's lock.

        Args:
            inputs: Arrays by name; of a model with a state, those of a sequence.
            work: A folder on this machine for the files to send.
            progress: Called as the files are sent.
            library: The library for applications, if it is to be installed, too.

        Raises:
            DeviceError: As `shipment.send`.
            VerificationError: As `shipment.send`; or the device does not accept the release.
        """
        shipment = Shipment.of_run(self.program, inputs, work).with_library(library)
        if self.bundle:
            shipment = shipment.with_release(self.bundle, work)
        store = self.device.store
        sent, folders = send(shipment, store, self.facts, progress), install(shipment, store)
        digest, _files = shipment.folders.get("releases", ("", {}))
        verified = trust.take(store, digest, folders["runners"], shipment.signed)
        releases = {"releases": f"{store.root}/releases/{self.digest}"}
        return Installed(self, {**releases, **folders}, sent, verified, self.manifest.steps(inputs))


@dataclass(frozen=True)
class Installed:
    """A release that is ready to run; the caller holds the store's lock.

    Attributes:
        release: The release.
        folders: Folders on the device: its `releases`, its `runners` and its `inputs`.
        sent: The blobs sent for it.
        verified: The device's check of the signatures; None if it accepts unsigned releases.
        steps: Steps of its inputs; 0 for a model without a state.
    """

    release: DeviceRelease
    folders: Mapping[str, str]
    sent: Sent
    verified: Verified | None = None
    steps: int = 0

    def complete(self, plan: Plan) -> Plan:
        """Return a plan for its variant; it runs the inputs as a sequence if there is a state and no samples."""
        plan = dataclasses.replace(plan, variant=self.release.variant)
        return dataclasses.replace(plan, samples=self.steps, sequence=True) if self.steps and not plan.samples else plan

    def run(self, plan: Plan, environment: Mapping[str, str] | None = None) -> Run:
        """Run it.

        Raises:
            DeviceError, VerificationError: As `runner.call`.
        """
        device, manifest = self.release.device, self.release.manifest
        return runner.call(
            device.shell,
            device.store.root,
            self.folders,
            release=self.folders["releases"],
            threads=self.release.threads,
            plan=self.complete(plan),
            outputs=manifest.step_outputs,
            size=runner.weight(manifest),
            environment=environment,
        )

    @property
    def shell(self) -> Shell:
        return self.release.device.shell

    def scratch(self) -> contextlib.AbstractContextManager[str]:
        """Make a folder on the device for the files of runs, for the time of a block."""
        return runner.scratch(self.shell, self.release.device.store.root)

    def command(self, folder: str, plan: Plan) -> list[str]:
        """Return the command line of its runner, which writes its report and its outputs into a folder."""
        return runner.command(self.folders, self.folders["releases"], folder, self.complete(plan), self.release.threads)

    @property
    def as_neighbour(self) -> Neighbour:
        """This release as one that runs beside another."""
        return Neighbour(self.folders["releases"], self.folders["inputs"], self.steps, self.release.variant)

    def with_inputs_of(self, other: Installed) -> Installed:
        """Return the same release with the inputs of another one."""
        folders = {**self.folders, "inputs": other.folders["inputs"]}
        return dataclasses.replace(self, folders=folders, steps=other.steps)


@contextlib.contextmanager
def installed_temporarily(
    releases: Sequence[tuple[DeviceRelease, Tensors]], progress: Tell | None = None
) -> Iterator[list[Installed]]:
    """Install releases of one device, each with its inputs, and remove them after a block; the caller holds the lock.

    Raises:
        DeviceError, VerificationError: As `DeviceRelease.install`.
    """
    device = releases[0][0].device
    with temporary.folder() as work:
        try:
            installed = []
            for number, (release, inputs) in enumerate(releases):
                folder = work / str(number)
                folder.mkdir()
                installed.append(release.install(inputs, folder, progress))
            yield installed
        finally:
            if any(release.bundle for release, _ in releases):  # others are the device's own, however many it keeps
                device.store.releases.prune(device.board.keep)
