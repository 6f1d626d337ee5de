"""What is profiled: a bundle that is brought to the device for it, or a release that the device keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolchain import bundle as bundles
from toolchain import files, temporary
from toolchain.bundle import Bundle, Manifest, kernels
from toolchain.bundle.kernels import Kernel
from toolchain.bundle.manifest import LARGEST_GRAPH
from toolchain.device import released
from toolchain.device.connected import ConnectedDevice
from toolchain.device.installed import DeviceRelease
from toolchain.native.programs import Program


@dataclass(frozen=True)
class Side:
    """A release that is profiled.

    Attributes:
        manifest: Its manifest.
        digest: Its digest.
        kernels: The kernels of its graph, by name.
        bundle: What is brought to the device; None for a release that is there.
    """

    manifest: Manifest
    digest: str
    kernels: Mapping[str, Kernel]
    bundle: Bundle | None = None

    def release(self, program: Program, device: ConnectedDevice, threads: int) -> DeviceRelease:
        """Return it as a release of a device that can run it.

        Raises:
            MismatchError, VerificationError: As `DeviceRelease.of_bundle`.
        """
        if self.bundle:
            return DeviceRelease.of_bundle(self.bundle, program, device, threads)
        return DeviceRelease.of_device(self.manifest, self.digest, program, device, threads)


def of_bundle(made: Bundle) -> Side:
    """Take a bundle of this machine, whose files were checked when it was opened."""
    text = files.read_limited(made.folder / bundles.GRAPH_TEXT, LARGEST_GRAPH).decode()
    return Side(made.manifest, made.digest, kernels.read(text), made)


def of_release(device: ConnectedDevice, word: str = released.CURRENT) -> Side:
    """Take a release that a device keeps; its manifest and graph are held against their digests.

    Args:
        device: The device.
        word: What `released.named` knows one by.

    Raises:
        InputError: The device keeps no such release.
        DeviceError: It is lost.
        VerificationError: What lies there is not what its digest says.
    """
    digest = released.named(device.store, word).digest
    manifest = released.manifest(device.store, digest)
    record = manifest.files[bundles.GRAPH_TEXT]
    if record.size > LARGEST_GRAPH:
        raise released.damaged(device.store, digest)
    with temporary.folder() as folder:
        path = Path(folder) / bundles.GRAPH_TEXT
        device.shell.pull(f"{device.store.root}/releases/{digest}/{bundles.GRAPH_TEXT}", path, most=record.size)
        if files.sha256_file(path) != record.sha256:
            raise released.damaged(device.store, digest)
        return Side(manifest, digest, kernels.read(path.read_text(encoding="utf-8")))
