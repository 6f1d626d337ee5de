"""Releases that a user names: `current`, the number of an activation, or the beginning of a digest."""

from __future__ import annotations

import re

from toolchain import bundle, files
from toolchain.bundle.manifest import Manifest
from toolchain.device.store import Generation, Store
from toolchain.errors import InputError, VerificationError

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
        raise damaged(store, digest)
    return content


def damaged(store: Store, digest: str) -> VerificationError:
    """Return the error for a release whose files do not match its digest."""
    return VerificationError(
        f"release {digest[:16]} on {store.name} does not match its digest",
        hint="deploy it again, or pass the package itself",
    )
