"""OpenSSH's host certificates: host keys that an authority has signed (PROTOCOL.certkeys)."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import paramiko

SUFFIX = "-cert-v01@openssh.com"  # of the type of a certificate
_HOST = 2
# The number of fields of the key itself in a certificate, by its type.
_FIELDS = {"ssh-ed25519": 1, "ssh-rsa": 2, "ecdsa-sha2-nistp256": 2, "ecdsa-sha2-nistp384": 2, "ecdsa-sha2-nistp521": 2}
_FOREVER = (1 << 64) - 1


@dataclass(frozen=True)
class Certificate:
    """An authority's signed statement about a key."""

    kind: int  # 1 for a user's key, 2 for a host's
    principals: tuple[str, ...]  # names for which it is valid
    begin: int  # start of its validity, in seconds since 1970
    end: int  # end of its validity
    critical: bytes  # options that a reader must refuse if it does not support them
    authority: bytes
    signed: bytes  # the bytes that the authority has signed
    signature: bytes

    def fault(self, host: str, now: float | None = None) -> str:
        """Return why it does not prove that its key is a host's; empty if it does, given a trusted authority."""
        now = time.time() if now is None else now
        if self.kind != _HOST:
            return "it is for a user, not for a host"
        if not any(fnmatch.fnmatchcase(host, principal.lower().replace("[", "[[]")) for principal in self.principals):
            return f"it is for {', '.join(self.principals) or 'no name'}, not for {host}"
        if now < self.begin:
            return "it is not valid yet; check the clock of this host"
        if self.end != _FOREVER and now >= self.end:
            return "it has expired"
        if self.critical:
            return "it has a critical option, which is not supported here"
        return "" if self._is_signed() else "its signature is wrong"

    def _is_signed(self) -> bool:
        try:
            key = paramiko.PKey.from_type_string(_type_of(self.authority), self.authority)
            return bool(key.verify_ssh_sig(self.signed, paramiko.Message(self.signature)))
        except (paramiko.SSHException, paramiko.UnknownKeyType, ValueError):
            return False


def read(blob: bytes) -> Certificate:
    """Parse a certificate, or raise a ValueError."""
    message = paramiko.Message(blob)
    kind = _type_of(blob)
    message.get_binary()
    message.get_binary()  # a nonce
    fields = _FIELDS.get(kind.removesuffix(SUFFIX))
    if not kind.endswith(SUFFIX) or fields is None:
        raise ValueError(f"{kind} is not a type of certificate that is supported here")
    for _ in range(fields):
        message.get_binary()
    message.get_int64()  # a serial number
    use = message.get_int()
    message.get_binary()  # a free text about the owner
    names, principals = paramiko.Message(message.get_binary()), []
    while names.get_remainder():
        principals.append(names.get_binary().decode(errors="replace"))
    begin, end = message.get_int64(), message.get_int64()
    critical, _extensions, _reserved, authority = (message.get_binary() for _ in range(4))
    signed = blob[: len(blob) - len(message.get_remainder())]
    return Certificate(use, tuple(principals), begin, end, critical, authority, signed, message.get_binary())


def of(key: Any) -> Certificate | None:
    """Return the certificate that a server sent with its key, if any, or raise a ValueError."""
    blob = getattr(key, "public_blob", None)
    return read(blob.key_blob) if blob is not None and blob.key_type.endswith(SUFFIX) else None


def types(offered: Sequence[str], supported: Sequence[str]) -> list[str]:
    """Return the types of certificates that paramiko supports, for the key types that we accept."""
    return [kind + SUFFIX for kind in offered if kind + SUFFIX in supported]


def _type_of(blob: bytes) -> str:
    return str(paramiko.Message(blob).get_binary(), "ascii", "replace")
