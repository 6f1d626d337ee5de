"""Signs a bundle: writes a statement about it beside its files, and the signatures of that statement."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain import files
from toolchain.bundle import SIGNATURES, STATEMENT, Bundle
from toolchain.errors import InputError
from toolchain.signing import sshsig, statement, trust
from toolchain.signing.keys import Key
from toolchain.signing.sshsig import Signature
from toolchain.signing.statement import Order, Statement


@dataclass(frozen=True)
class Signed:
    """The statement, and the fingerprints of all the keys that have signed it by now."""

    statement: Statement
    keys: tuple[str, ...]


def sign(bundle: Bundle, key: Key, order: Order | None, *, replace: bool = False) -> Signed:
    """Sign a bundle, and write the statement and the signature into its folder.

    Args:
        bundle: The bundle.
        key: The key.
        order: The position of the release; None signs the statement that it has.
        replace: Whether a different statement is discarded, with its signatures.

    Raises:
        InputError: The order is missing, or another one was signed before.
        VerificationError: What was signed before is damaged.
    """
    before = None if replace else trust.statement_of(bundle)
    new_statement = _statement_for(bundle, before, order)
    message = new_statement.encoded()
    others: tuple[Signature, ...] = ()
    if before is not None:
        signed_text, signatures = trust.documents(bundle)
        if signed_text != message:  # two readers might understand other bytes differently
            raise InputError(
                "the statement of this package does not have the form that this toolchain writes",
                hint="use --sequence N --replace to write it again; this removes its signatures",
            )
        others = tuple(signature for signature in sshsig.read(signatures, SIGNATURES) if signature.key != key.public)
    if len(others) >= sshsig.MOST:
        raise InputError(f"this package has {sshsig.MOST} signatures, and devices accept no more", hint="use --replace")
    signed = (*others, Signature(key.public, sshsig.HASH, key.sign(sshsig.to_sign(message))))
    files.write_atomic(bundle.folder / STATEMENT, message)
    files.write_atomic(bundle.folder / SIGNATURES, b"".join(map(sshsig.to_armour, signed)))
    return Signed(new_statement, tuple(sshsig.fingerprint(signature.key) for signature in signed))


def _statement_for(bundle: Bundle, before: Statement | None, order: Order | None) -> Statement:
    """Return the statement that the bundle has, or a new one."""
    if order is None:
        if before is None:
            raise InputError(
                "this package has no statement yet",
                hint="use --sequence N to set the position of this release among the releases of its model",
            )
        return before
    new = statement.about(bundle.manifest, bundle.digest, order)
    if before is not None and before != new:
        raise InputError(
            f"this package is signed with sequence {before.sequence} and minimum {before.minimum or 'none'}",
            hint="leave --sequence out to sign that statement, too; use --replace to discard it and its signatures",
        )
    return new
