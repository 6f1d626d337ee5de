"""Which of the releases that a device keeps a word means, wherever a user names one."""

from __future__ import annotations

import re

from toolchain import bundle, files
from toolchain.bundle.manifest import Manifest
from toolchain.device.store import Generation, Store
from toolchain.errors import InputError, VerificationError

CURRENT = "current"
_SHOWN = 200
_NUMBER = re.compile(r"[0-9]{1,7}")
_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{8,64})")  # from eight digits on, so that no number is one


def is_release_name(text: str) -> bool:
    """Tell whether a word may name one: `current`, the number of an activation, eight digits of a digest or more."""
    return text == CURRENT or bool(_NUMBER.fullmatch(text) or _DIGEST.fullmatch(text))


def find_release(store: Store, text: str) -> Generation:
    """Return the activation that a word means; of a release with several the last.

    Raises:
        InputError: The device has no such release, or several.
        DeviceError: It is lost.
    """
    generations = store.generations()
    matching = [generation for generation in generations if _is_named(generation, text)]
    if len({generation.digest for generation in matching}) != 1:
        listing = [f"{generation.number}  {generation.digest[:16]}  {generation.name}" for generation in generations]
        problem = "several releases that match" if matching else "no such release"
        raise InputError(
            f"{store.name} has {problem}: {text[:_SHOWN]}",
            details="\n".join(["its releases:", *listing]) if listing else "the device has no releases",
            hint="write `current`, a number from `toolchain releases`, eight or more digits of a digest, or a package",
        )
    return matching[-1]


def _is_named(generation: Generation, text: str) -> bool:
    if text == CURRENT:
        return generation.current
    if _NUMBER.fullmatch(text):
        return generation.number == int(text)
    digits = _DIGEST.fullmatch(text)
    return digits is not None and generation.digest.startswith(digits[1])


def read_manifest(store: Store, digest: str) -> Manifest:
    """Read the manifest of a release that a device keeps.

    Raises:
        VerificationError: It is not what the release's digest says.
        DeviceError: It cannot be read.
    """
    where = f"release {digest[:16]} on {store.name}"
    content = bundle.read_manifest(store.read(f"releases/{digest}/{bundle.MANIFEST}"), where)
    if files.sha256_bytes(bundle.oci_manifest(content)) != digest:
        raise damaged(store, digest)
    return content


def damaged(store: Store, digest: str) -> VerificationError:
    """Return the error of a release whose files are others than its digest says."""
    return VerificationError(
        f"release {digest[:16]} on {store.name} does not match its digest",
        hint="deploy it again, or pass the package itself",
    )
