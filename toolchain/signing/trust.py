"""The signers that a user trusts, and the check that they have signed a release.

A device has the same rules in C++: runtime/trust/. Both accept and refuse the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from toolchain import files
from toolchain.bundle import Bundle
from toolchain.bundle.manifest import LARGEST_STATEMENT
from toolchain.errors import InputError, VerificationError, reason
from toolchain.signing import sshsig, statement
from toolchain.signing.statement import Statement

_TYPE = sshsig.KEY_TYPE.decode()
_NAMESPACES = 'namespaces="'


@dataclass(frozen=True)
class Signer:
    """A person or machine that may sign."""

    name: str
    key: bytes  # the public key, 32 bytes


@dataclass(frozen=True)
class Trust:
    signers: tuple[Signer, ...]  # each key once
    revoked: frozenset[bytes] = frozenset()
    threshold: int = 1  # how many different keys must have signed

    @classmethod
    def read(cls, trusted: Path, revoked: Path | None = None, threshold: int = 1) -> Trust:
        """Read the trusted signers.

        Args:
            trusted: Lines of OpenSSH's allowed_signers: NAME [namespaces="..."] ssh-ed25519 KEY [COMMENT].
            revoked: The same, or public keys.
            threshold: How many of them must have signed.

        Raises:
            InputError: A file cannot be read, or a line in it is not valid.
        """
        revoked_keys = (
            frozenset(_revoked_key(fields, where) for fields, where in _lines(revoked)) if revoked else frozenset()
        )
        by_key: dict[bytes, Signer] = {}  # a key under two names is one signer
        for fields, where in _lines(trusted):
            signer = _signer(fields, where)
            by_key.setdefault(signer.key, signer)
        return cls(tuple(signer for key, signer in by_key.items() if key not in revoked_keys), revoked_keys, threshold)


@dataclass(frozen=True)
class Approval:
    """The statement of a trusted release, and the names of its signers."""

    statement: Statement
    signers: tuple[str, ...]


@dataclass(frozen=True)
class Requirement:
    """Further requirements of a release: its board, if that is named, and the lowest sequence."""

    board: str = ""
    floor: int = 0


def approve(bundle: Bundle, trust: Trust, requirement: Requirement | None = None) -> Approval:
    """Check that trusted signers have signed a bundle, whose files were checked when it was loaded.

    Raises:
        VerificationError: Too few have signed, or the requirement is not met.
    """
    text, signatures = documents(bundle)
    name = str(bundle.folder)
    signers = _check_signatures(text, signatures, trust, name)
    release = statement.read(text, f"{bundle.folder}'s {bundle.statement.name}" if bundle.statement else name)
    _check_about(release, bundle)  # a valid statement of another release must not approve this one
    required = requirement or Requirement()
    if required.board and release.board != required.board:
        raise VerificationError(
            f"the release is for {release.board}, not for {required.board}", hint="use the release for this board"
        )
    if release.sequence < required.floor:
        raise VerificationError(
            f"the release has sequence {release.sequence}, and the lowest accepted is {required.floor}",
            hint="use a newer release",
        )
    return Approval(release, signers)


def documents(bundle: Bundle) -> tuple[bytes, bytes]:
    """Return a bundle's statement and its signatures, unchecked.

    Raises:
        VerificationError: It is not signed.
    """
    if bundle.statement is None or bundle.signatures is None:
        raise VerificationError(
            f"{bundle.manifest.name} {bundle.digest[:16]} is not signed",
            hint="sign it: `toolchain trust sign PACKAGE --key FILE --sequence N`",
        )
    return _read(bundle.statement), _read(bundle.signatures)


def statement_of(bundle: Bundle) -> Statement | None:
    """Return a bundle's statement without checking its signer; None if it is not signed.

    Raises:
        VerificationError: It is not valid, or is about another bundle.
    """
    if bundle.statement is None and bundle.signatures is None:
        return None
    text, signatures = documents(bundle)
    sshsig.read(signatures, f"{bundle.manifest.name}'s signature")
    release = statement.read(text, f"{bundle.manifest.name}'s statement")
    _check_about(release, bundle)
    return release


def _check_about(release: Statement, bundle: Bundle) -> None:
    described = (release.bundle, release.model, release.board)
    has = (bundle.digest, bundle.manifest.name, bundle.manifest.board)
    if described != has:
        raise VerificationError(
            "the statement describes another bundle",
            details=f"statement  {' '.join(described)}\nbundle     {' '.join(has)}",
            hint="sign this bundle: `toolchain trust sign`",
        )


def _check_signatures(message: bytes, signatures: bytes, trust: Trust, name: str) -> tuple[str, ...]:
    names, reasons = {}, []
    trusted = {signer.key: signer.name for signer in trust.signers}
    # By key and not by signature: a key that signed twice counts once towards the threshold.
    for signature in sshsig.read(signatures, name):
        if signature.key in trust.revoked:
            reasons.append(f"{sshsig.fingerprint(signature.key)} is revoked")
        elif signature.key not in trusted:
            reasons.append(f"{sshsig.fingerprint(signature.key)} is not among the trusted keys")
        elif not sshsig.is_valid(signature, message):
            reasons.append(f"the signature of {trusted[signature.key]} does not match")
        else:
            names[signature.key] = trusted[signature.key]
    if len(names) < trust.threshold:
        raise VerificationError(
            f"only {len(names)} of {trust.threshold} required trusted signatures", details="\n".join(reasons),
            hint="add a signature: `toolchain trust sign`",
        )  # fmt: skip
    return tuple(names.values())


def _read(path: Path) -> bytes:
    return files.read_limited(path, LARGEST_STATEMENT, VerificationError)


def _lines(path: Path) -> Iterator[tuple[list[str], str]]:
    """Yield the fields of each line that is not empty or a comment, and its file and number."""
    try:
        text = _read(path).decode()
    except (OSError, ValueError) as fault:
        raise InputError(
            f"{path} cannot be read", details=reason(fault), hint="name a file of allowed signers"
        ) from fault
    for number, line in enumerate(text.split("\n"), start=1):
        fields = re.findall(r"[^ \t\r]+", line)
        if fields and not fields[0].startswith("#"):
            yield fields, f"{path}:{number}"


def _signer(fields: list[str], where: str) -> Signer:
    name, *rest = fields
    if rest and rest[0] != _TYPE and "=" in rest[0]:
        option, *rest = rest
        # The one option that limits what a key is for; a device supports no other.
        if not (option.startswith(_NAMESPACES) and option.endswith('"') and len(option) > len(_NAMESPACES)):
            raise _wrong_line(where, f"the option {option} is not supported by devices")
        if sshsig.NAMESPACE.decode() not in option[len(_NAMESPACES) : -1].split(","):
            raise _wrong_line(where, f"the key is not for {sshsig.NAMESPACE.decode()}")
    if len(rest) < 2 or rest[0] != _TYPE:  # noqa: PLR2004 - a type and a key
        raise _wrong_line(where, f"expected a name, {_TYPE}, and the key")
    return Signer(name, _key(rest[1], where))


def _revoked_key(fields: list[str], where: str) -> bytes:
    if fields[0] == _TYPE and len(fields) > 1:
        return _key(fields[1], where)
    return _signer(fields, where).key


def _key(text: str, where: str) -> bytes:
    try:
        return sshsig.read_public(text, where)
    except VerificationError as fault:
        raise _wrong_line(where, fault.details) from fault


def _wrong_line(where: str, why: str) -> InputError:
    return InputError(
        f"{where} is not a valid line for a signer",
        details=why,
        hint='write NAME namespaces="edge-release" ssh-ed25519 KEY',
    )
