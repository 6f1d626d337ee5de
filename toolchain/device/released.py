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


def is_word(word: str) -> bool:
    """Tell whether a word may name one: `current`, the number of an activation, eight digits of a digest or more."""
    return word == CURRENT or bool(_NUMBER.fullmatch(word) or _DIGEST.fullmatch(word))


def named(store: Store, word: str) -> Generation:
    """Return the activation that a word means; of a release with several the last.

    Raises:
        InputError: The device has no such release, or several.
        DeviceError: It is lost.
    """
    kept = store.generations()
    fitting = [one for one in kept if _is_named(one, word)]
    if len({one.digest for one in fitting}) != 1:
        known = [f"{one.number}  {one.digest[:16]}  {one.name}" for one in kept]
        what = "several releases that match" if fitting else "no such release"
        raise InputError(
            f"{store.name} has {what}: {word[:_SHOWN]}",
            details="\n".join(["its releases:", *known]) if known else "the device has no releases",
            hint="write `current`, a number from `toolchain releases`, eight or more digits of a digest, or a package",
        )
    return fitting[-1]


def _is_named(one: Generation, word: str) -> bool:
    if word == CURRENT:
        return one.current
    if _NUMBER.fullmatch(word):
        return one.number == int(word)
    digits = _DIGEST.fullmatch(word)
    return digits is not None and one.digest.startswith(digits[1])


def manifest(store: Store, digest: str) -> Manifest:
    """Read the manifest of a release that a device keeps.

    Raises:
        VerificationError: It is not what the release's digest says.
        DeviceError: It cannot be read.
    """
    where = f"release {digest[:16]} on {store.name}"
    found = bundle.read_manifest(store.read(f"releases/{digest}/{bundle.MANIFEST}"), where)
    if files.sha256_bytes(bundle.oci_manifest(found)) != digest:
        raise damaged(store, digest)
    return found


def damaged(store: Store, digest: str) -> VerificationError:
    """Return the error of a release whose files are others than its digest says."""
    return VerificationError(
        f"release {digest[:16]} on {store.name} does not match its digest",
        hint="deploy it again, or pass the package itself",
    )
