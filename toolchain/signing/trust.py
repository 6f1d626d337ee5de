"""Whom somebody trusts to sign releases, and whether those have signed one.

A device has the same rules in C++: runtime/trust/. What is refused there is refused here.
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
    """Somebody who may sign: a name, and the public key of 32 bytes."""

    name: str
    key: bytes


@dataclass(frozen=True)
class Trust:
    """Whom to believe."""

    signers: tuple[Signer, ...]  # who may sign, each key once
    revoked: frozenset[bytes] = frozenset()  # keys that count no more
    threshold: int = 1  # how many different keys must have signed

    @classmethod
    def read(cls, trusted: Path, revoked: Path | None = None, threshold: int = 1) -> Trust:
        """Read it from files.

        Args:
            trusted: Lines of OpenSSH's allowed_signers: NAME [namespaces="..."] ssh-ed25519 KEY [COMMENT].
            revoked: The same, or public keys.
            threshold: How many of them must have signed.

        Raises:
            InputError: A file cannot be read, or a line in it is none.
        """
        gone = frozenset(_revoked(words, place) for words, place in _lines(revoked)) if revoked else frozenset()
        by_key: dict[bytes, Signer] = {}
        for words, place in _lines(trusted):
            signer = _signer(words, place)
            by_key.setdefault(signer.key, signer)
        return cls(tuple(signer for key, signer in by_key.items() if key not in gone), gone, threshold)


@dataclass(frozen=True)
class Approval:
    """That a release is to be believed: what was said of it, and who said it."""

    statement: Statement
    signers: tuple[str, ...]


@dataclass(frozen=True)
class Wanted:
    """What a release must be besides: of a board type, and of a sequence no less than this; empty and 0 for any."""

    board: str = ""
    floor: int = 0


def approve(bundle: Bundle, trust: Trust, wanted: Wanted | None = None) -> Approval:
    """See that those who are trusted have signed a bundle, whose files were checked when it was loaded.

    Raises:
        VerificationError: They have not, or it is not what is wanted.
    """
    said, signatures = documents(bundle)
    name = str(bundle.folder)
    signers = _signers(said, signatures, trust, name)
    found = statement.read(said, f"{bundle.folder}'s {bundle.statement.name}" if bundle.statement else name)
    _check_about(found, bundle)
    _check_wanted(found, wanted or Wanted())
    return Approval(found, signers)


def documents(bundle: Bundle) -> tuple[bytes, bytes]:
    """Return a bundle's statement and its signatures, unchecked.

    Raises:
        VerificationError: It has none.
    """
    if bundle.statement is None or bundle.signatures is None:
        raise VerificationError(
            f"{bundle.manifest.name} {bundle.digest[:16]} is not signed",
            hint="sign it: `toolchain sign PACKAGE --key FILE --sequence N`",
        )
    return _read(bundle.statement), _read(bundle.signatures)


def statement_of(bundle: Bundle) -> Statement | None:
    """Return what a bundle's statement says, whoever signed it; None if it has none.

    Raises:
        VerificationError: It is none, or is about another bundle.
    """
    if bundle.statement is None and bundle.signatures is None:
        return None
    said, signatures = documents(bundle)
    sshsig.read(signatures, f"{bundle.manifest.name}'s signature")
    found = statement.read(said, f"{bundle.manifest.name}'s statement")
    _check_about(found, bundle)
    return found


def _check_about(found: Statement, bundle: Bundle) -> None:
    said = (found.bundle, found.model, found.board)
    has = (bundle.digest, bundle.manifest.name, bundle.manifest.board)
    if said != has:
        raise VerificationError(
            "the statement describes another bundle",
            details=f"statement  {' '.join(said)}\nbundle     {' '.join(has)}",
            hint="sign this bundle: `toolchain sign`",
        )


def _check_wanted(found: Statement, wanted: Wanted) -> None:
    if wanted.board and found.board != wanted.board:
        raise VerificationError(
            f"the release is for {found.board}, not for {wanted.board}", hint="use the release for this board"
        )
    if found.sequence < wanted.floor:
        raise VerificationError(
            f"the release has sequence {found.sequence}, and the lowest accepted is {wanted.floor}",
            hint="use a newer release",
        )


def _signers(message: bytes, signatures: bytes, trust: Trust, name: str) -> tuple[str, ...]:
    names, reasons = {}, []
    known = {signer.key: signer.name for signer in trust.signers}
    for one in sshsig.read(signatures, name):
        if one.key in trust.revoked:
            reasons.append(f"{sshsig.fingerprint(one.key)} is revoked")
        elif one.key not in known:
            reasons.append(f"{sshsig.fingerprint(one.key)} is not among the trusted keys")
        elif not sshsig.holds(one, message):
            reasons.append(f"the signature of {known[one.key]} does not match")
        else:
            names[one.key] = known[one.key]
    if len(names) < trust.threshold:
        raise VerificationError(
            f"only {len(names)} of {trust.threshold} required trusted signatures", details="\n".join(reasons),
            hint="add a signature: `toolchain sign`",
        )  # fmt: skip
    return tuple(names.values())


def _read(path: Path) -> bytes:
    return files.read_limited(path, LARGEST_STATEMENT, VerificationError)


def _lines(path: Path) -> Iterator[tuple[list[str], str]]:
    """Yield the words of each line that has any, and where it is."""
    try:
        text = _read(path).decode()
    except (OSError, ValueError) as fault:
        raise InputError(
            f"{path} cannot be read", details=reason(fault), hint="name a file of allowed signers"
        ) from fault
    for number, line in enumerate(text.split("\n"), start=1):
        words = re.findall(r"[^ \t\r]+", line)
        if words and not words[0].startswith("#"):
            yield words, f"{path}:{number}"


def _signer(words: list[str], place: str) -> Signer:
    rest = words[1:]
    if rest and rest[0] != _TYPE and "=" in rest[0]:
        _check_option(rest[0], place)
        rest = rest[1:]
    if len(rest) < 2 or rest[0] != _TYPE:  # noqa: PLR2004 - a type and a key
        raise _wrong_line(place, f"expected a name, {_TYPE}, and the key")
    return Signer(words[0], _key(rest[1], place))


def _check_option(option: str, place: str) -> None:
    """The option of a line that limits what its key is for; a device keeps no other."""
    if not (option.startswith(_NAMESPACES) and option.endswith('"') and len(option) > len(_NAMESPACES)):
        raise _wrong_line(place, f"the option {option} is not supported by devices")
    if sshsig.NAMESPACE.decode() not in option[len(_NAMESPACES) : -1].split(","):
        raise _wrong_line(place, f"the key is not for {sshsig.NAMESPACE.decode()}")


def _revoked(words: list[str], place: str) -> bytes:
    if words[0] == _TYPE and len(words) > 1:
        return _key(words[1], place)
    return _signer(words, place).key


def _key(text: str, place: str) -> bytes:
    try:
        return sshsig.read_public(text, place)
    except VerificationError as fault:
        raise _wrong_line(place, fault.details) from fault


def _wrong_line(place: str, why: str) -> InputError:
    return InputError(
        f"{place} is not a valid line for a signer",
        details=why,
        hint='write NAME namespaces="edge-release" ssh-ed25519 KEY',
    )
