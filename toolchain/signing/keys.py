"""Keys that sign, in a file or held by an SSH agent, and the signing of a bundle.

The statement about a bundle, and the signatures of that statement, are written beside its files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from toolchain import files
from toolchain.bundle import SIGNATURES, STATEMENT, Bundle
from toolchain.errors import InputError, reason
from toolchain.signing import sshsig, statement, trust
from toolchain.signing.sshsig import Signature
from toolchain.signing.statement import Order, Statement

_LARGEST = 1 << 16
_MAKE = "run `ssh-keygen -t ed25519 -f release_key` to create one"


class Key(Protocol):
    @property
    def public(self) -> bytes:
        """The public key, 32 bytes."""

    def sign(self, data: bytes) -> bytes:
        """Return the signature of some bytes, 64 bytes."""


@dataclass(frozen=True)
class FileKey:
    private: Ed25519PrivateKey

    @property
    def public(self) -> bytes:
        return self.private.public_key().public_bytes_raw()

    def sign(self, data: bytes) -> bytes:
        return self.private.sign(data)


@dataclass(frozen=True)
class AgentKey:
    """A key that an SSH agent holds, which may ask its user to confirm each signature."""

    public: bytes

    def sign(self, data: bytes) -> bytes:
        from paramiko import Agent, Message, SSHException  # noqa: PLC0415 - slow to import

        agent = Agent()
        try:
            agent_key = next(
                (key for key in agent.get_keys() if key.asbytes() == sshsig.public_blob(self.public)), None
            )
            if agent_key is None:
                raise InputError(
                    f"no SSH agent has the key {sshsig.fingerprint(self.public)}",
                    hint="`ssh-add -l` lists what it has; `ssh-add FILE` adds a key",
                )
            answer = Message(agent_key.sign_ssh_data(data))
        except SSHException as fault:
            raise InputError(
                "the SSH agent did not sign", details=reason(fault), hint="does it ask somewhere?"
            ) from fault
        finally:
            agent.close()
        if answer.get_binary() != sshsig.KEY_TYPE:
            raise InputError("the SSH agent signed with a different type of key")
        return bytes(answer.get_binary())


def load(path: Path, ask: Callable[[], str]) -> Key:
    """Read a private key, or a public one, whose private half an SSH agent holds.

    Args:
        path: The file, as ssh-keygen writes it.
        ask: Asks for the passphrase, where the file has one.

    Raises:
        InputError: It is not an Ed25519 key, or the passphrase is wrong.
    """
    try:
        data = files.read_limited(path, _LARGEST)
    except OSError as fault:
        raise InputError(f"{path} cannot be read", details=reason(fault), hint=_MAKE) from fault
    if data.startswith(b"-----BEGIN"):
        try:
            private = _decrypt(path, data, ask)
        except (ValueError, UnsupportedAlgorithm) as fault:
            raise InputError(f"{path} cannot be used to sign", details=reason(fault), hint=_MAKE) from fault
        if not isinstance(private, Ed25519PrivateKey):
            raise _other_kind(path)
        return FileKey(private)
    try:
        public = load_ssh_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as fault:
        raise InputError(f"{path} holds no key of OpenSSH", details=reason(fault), hint=_MAKE) from fault
    if not isinstance(public, Ed25519PublicKey):
        raise _other_kind(path)
    return AgentKey(public.public_bytes_raw())


def _decrypt(path: Path, data: bytes, ask: Callable[[], str]) -> object:
    try:
        return load_ssh_private_key(data, None)
    except TypeError:  # it has a passphrase
        pass
    try:
        return load_ssh_private_key(data, ask().encode())
    except (ValueError, TypeError, InvalidTag) as fault:  # of ciphers without and with authentication
        raise InputError(
            f"that is not the passphrase of {path}", details=reason(fault), hint="run the command again"
        ) from fault


def _other_kind(path: Path) -> InputError:
    return InputError(f"{path} is not an Ed25519 key", details="devices accept no other type of key", hint=_MAKE)


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
