"""What is profiled: a bundle that is brought to the device for it, or a release that the device keeps."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolchain import bundle as bundles
from toolchain import files
from toolchain.bundle import Bundle, Manifest, kernels
from toolchain.bundle.kernels import Kernel
from toolchain.device.store import Generation
from toolchain.errors import DeviceError, InputError, VerificationError
from toolchain.pipeline.device import Lab

_LEAST_DIGITS = 6
_WORD = re.compile(rf"(?:sha256:)?([0-9a-f]{{{_LEAST_DIGITS},64}})")
_LARGEST_GRAPH = 256 << 20


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


def of_bundle(made: Bundle) -> Side:
    """Take a bundle of this machine, whose files were checked when it was opened."""
    text = (made.folder / bundles.GRAPH_TEXT).read_text(encoding="utf-8")
    return Side(made.manifest, made.digest, kernels.read(text), made)


def of_release(lab: Lab, word: str = "current") -> Side:
    """Take a release that a device keeps; its manifest and graph are held against their digests.

    Args:
        lab: The device.
        word: `current`, the number of an activation, or the beginning of a digest.

    Raises:
        InputError: The device keeps no such release.
        DeviceError: Nothing was deployed there.
        VerificationError: What lies there is not what its digest says.
    """
    digest, where = named(lab.store.generations(), word, lab.shell.name).digest, f"the release on {lab.shell.name}"
    manifest = bundles.read_manifest(lab.store.read(f"releases/{digest}/{bundles.MANIFEST}"), where)
    record = manifest.files[bundles.GRAPH_TEXT]
    if files.sha256_bytes(bundles.oci_manifest(manifest)) != digest or record.size > _LARGEST_GRAPH:
        raise _damaged(where)
    with tempfile.TemporaryDirectory(prefix="toolchain-") as folder:
        path = Path(folder) / bundles.GRAPH_TEXT
        lab.shell.pull(f"{lab.store.root}/releases/{digest}/{bundles.GRAPH_TEXT}", path, most=record.size)
        if files.sha256_file(path) != record.sha256:
            raise _damaged(where)
        return Side(manifest, digest, kernels.read(path.read_text(encoding="utf-8")))


def named(kept: tuple[Generation, ...], word: str, name: str) -> Generation:
    """Return the activation that a word means.

    Raises:
        InputError: There is none, or there are several.
        DeviceError: Nothing was ever deployed.
    """
    if not kept:
        raise DeviceError(f"nothing is deployed on {name}", hint="`toolchain deploy MODEL` deploys something")
    digits = _WORD.fullmatch(word)
    fitting = [
        one
        for one in kept
        if (word == "current" and one.current)
        or word == str(one.number)
        or (digits is not None and one.digest.startswith(digits[1]))
    ]
    if len({one.digest for one in fitting}) != 1:
        raise InputError(
            f"{'several releases' if fitting else 'no release'} on {name} is called {word!r}",
            details="`current`, the number of an activation, or the first digits of a digest",
            hint="`toolchain releases` lists them",
        )
    return fitting[-1]


def _damaged(where: str) -> VerificationError:
    return VerificationError(f"{where} is not what its digest says", hint="deploy it again")
