"""Keys that sign: in a file, or held by an SSH agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from toolchain import files
from toolchain.errors import InputError, reason
from toolchain.signing import sshsig

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
