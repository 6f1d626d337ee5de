"""A release on a device, with the runner and the inputs for it: what is run there, whatever for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolchain.bundle import Bundle
from toolchain.bundle.manifest import Manifest
from toolchain.device import fit, runner, trust
from toolchain.device.connected import ConnectedDevice
from toolchain.device.runner import Plan, Run
from toolchain.device.shipment import Sent, Shipment, Tell, install, send
from toolchain.device.store import DeviceFacts
from toolchain.device.trust import Verified
from toolchain.native.programs import Program
from toolchain.tensors import Tensors


@dataclass(frozen=True)
class DeviceRelease:
    """A release of a device, or one that can be brought there, and what runs it.

    Attributes:
        device: The device.
        program: The runner for it.
        facts: What the device is.
        manifest: The release's.
        digest: The release's.
        threads: Threads of the model; 0 means every CPU.
        bundle: Its files on this machine; None if the device has them.
    """

    device: ConnectedDevice
    program: Program
    facts: DeviceFacts
    manifest: Manifest
    digest: str
    threads: int = 0
    bundle: Bundle | None = None

    @classmethod
    def of_bundle(cls, bundle: Bundle, program: Program, device: ConnectedDevice, threads: int = 0) -> DeviceRelease:
        """Take a bundle of this machine, if the device can run it.

        Raises:
            MismatchError, VerificationError: It cannot, or does not take it without a signature.
        """
        release = cls(
            device, program, device.store.facts(), bundle.manifest, bundle.digest, device.threads(threads), bundle
        )
        fit.check_fits(bundle.manifest, program, release.facts)
        trust.check_signed(device.name, release.facts, bundle)
        return release

    @classmethod
    def of_device(
        cls, manifest: Manifest, digest: str, program: Program, device: ConnectedDevice, threads: int = 0
    ) -> DeviceRelease:
        """Take a release that the device keeps.

        Raises:
            MismatchError, VerificationError: The runner does not fit the device, or the release.
        """
        release = cls(device, program, device.store.facts(), manifest, digest, device.threads(threads))
        fit.check_fits(manifest, program, release.facts)
        return release

    def install(
        self, inputs: Tensors, work: Path, progress: Tell | None = None, library: Program | None = None
    ) -> Installed:
        """Bring what the device lacks for a run, without activating anything; the caller holds the store's lock.

        Args:
            inputs: Arrays by name.
            work: A folder of this machine for what is sent.
            progress: Called as the files are sent.
            library: What applications are linked with, if it is brought too.

        Raises:
            DeviceError: As `shipment.send`.
            VerificationError: As `shipment.send`; or the device does not take the release.
        """
        shipment = Shipment.of_run(self.program, inputs, work).with_library(library)
        if self.bundle:
            shipment = shipment.with_release(self.bundle, work)
        store = self.device.store
        sent, folders = send(shipment, store, self.facts, progress), install(shipment, store)
        digest, _files = shipment.folders.get("releases", ("", {}))
        verified = trust.take(store, digest, folders["runners"], shipment.signed)
        releases = {"releases": f"{store.root}/releases/{self.digest}"}
        return Installed(self, {**releases, **folders}, sent, verified)


@dataclass(frozen=True)
class Installed:
    """A release that can be run; the caller holds the store's lock.

    Attributes:
        release: The release.
        folders: Folders on the device: its `releases`, its `runners` and its `inputs`.
        sent: What was sent for it.
        verified: What the device found of the release's signatures; None where it asks for none.
    """

    release: DeviceRelease
    folders: Mapping[str, str]
    sent: Sent
    verified: Verified | None = None

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
            plan=plan,
            outputs=manifest.outputs,
            size=runner.weight(manifest),
            environment=environment,
        )

    def with_inputs_of(self, other: Installed) -> Installed:
        """Return the same release, fed with another one's inputs."""
        return dataclasses.replace(self, folders={**self.folders, "inputs": other.folders["inputs"]})
