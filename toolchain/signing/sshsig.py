"""Signatures as OpenSSH writes them, with Ed25519 keys: its PROTOCOL.sshsig, which `ssh-keygen -Y` reads and writes.

The device has its own reader, in runtime/trust/sshsig.cc; both take and refuse the same.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from toolchain.errors import VerificationError

NAMESPACE = b"edge-release"  # what the signatures are for: one of the same bytes for something else does not hold
KEY_BYTES, SIGNATURE_BYTES = 32, 64
KEY_TYPE = b"ssh-ed25519"

_MAGIC, _VERSION = b"SSHSIG", 1
_HASHES = (b"sha512", b"sha256")
HASH = _HASHES[0]  # what messages are hashed with here, as ssh-keygen does it
MOST = 16  # signatures that a release may have
_LINE = 70
# The points of an order of at most 8, and how else they can be written; the highest bit does not matter.
_SMALL_ORDER = frozenset(
    number.to_bytes(32, "little")
    for number in (
        0,
        1,
        0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
        0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,
        2**255 - 20,
        2**255 - 19,
        2**255 - 18,
    )
)
_BEGIN, _END = b"-----BEGIN SSH SIGNATURE-----\n", b"\n-----END SSH SIGNATURE-----"
_ARMOUR = re.compile(_BEGIN + rb"(.*?)" + _END + rb"(?:\n|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Signature:
    """A signature: the public key of 32 bytes, what the message is hashed with, and the 64 bytes themselves."""

    key: bytes
    hash: bytes
    value: bytes


def to_sign(message: bytes, hash_name: bytes = HASH) -> bytes:
    """Return the bytes that a key signs for a message."""
    digest = hashlib.new(hash_name.decode(), message).digest()
    return _MAGIC + b"".join(map(_with_length, (NAMESPACE, b"", hash_name, digest)))


def to_armour(signature: Signature) -> bytes:
    """Return a signature in the form of a file."""
    signature_field = _with_length(KEY_TYPE) + _with_length(signature.value)
    fields = (public_blob(signature.key), NAMESPACE, b"", signature.hash, signature_field)
    blob = _MAGIC + struct.pack(">I", _VERSION) + b"".join(map(_with_length, fields))
    text = base64.b64encode(blob)
    lines = [text[offset : offset + _LINE] for offset in range(0, len(text), _LINE)]
    return _BEGIN + b"\n".join(lines) + _END + b"\n"


def read(text: bytes, where: str) -> tuple[Signature, ...]:
    """Read the signatures of a file, one after the other, without checking them.

    Raises:
        VerificationError: It holds something else, or a signature of another kind.
    """
    signatures: list[Signature] = []
    end = 0
    while end < len(text):
        armour = _ARMOUR.match(text, end)
        if armour is None or len(signatures) == MOST:
            why = "this is not an OpenSSH signature" if armour is None else f"there are more than {MOST}"
            raise _fault(where, why)
        signatures.append(_read_blob(_decode(re.sub(rb"[\r\n]", b"", armour[1]), where), where))
        end = armour.end()
    if not signatures:
        raise _fault(where, "it contains no signature")
    return tuple(signatures)


def is_valid(signature: Signature, message: bytes) -> bool:
    """Whether a signature is valid for a message; one by a weak key never is."""
    # One signature of a key of small order holds for many messages. The library accepts such keys; zig's standard
    # library, on devices, does not.
    if signature.key[:-1] + bytes([signature.key[-1] & 0x7F]) in _SMALL_ORDER:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(signature.key).verify(signature.value, to_sign(message, signature.hash))
    except (InvalidSignature, ValueError):
        return False
    return True


def public_blob(key: bytes) -> bytes:
    """Return a public key as SSH writes it: its type, and 32 bytes."""
    return _with_length(KEY_TYPE) + _with_length(key)


def read_public(text: str, where: str) -> bytes:
    """Return the 32 bytes of a public key in base64, `AAAAC3Nza...`.

    Raises:
        VerificationError: It is not an Ed25519 key.
    """
    return _read_typed(_decode(text.encode(), where), KEY_BYTES, where)


def fingerprint(key: bytes) -> str:
    """Return the fingerprint of a public key, as `ssh-keygen -l` shows it."""
    digest = hashlib.sha256(public_blob(key)).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _read_blob(blob: bytes, where: str) -> Signature:
    values = _Reader(blob, where)
    if values.take(len(_MAGIC)) != _MAGIC or values.number() != _VERSION:
        raise _fault(where, "this is not a signature of version 1")
    key = _read_typed(values.text(), KEY_BYTES, where)
    namespace, reserved, hash_name = values.text(), values.text(), values.text()
    if namespace != NAMESPACE:
        actual = namespace[:_LINE].decode(errors="replace")
        raise _fault(where, f"the signature is for {actual!r}, not for {NAMESPACE.decode()!r}")
    if reserved or hash_name not in _HASHES:
        raise _fault(where, "the signature is of a type that this toolchain does not support")
    value = _read_typed(values.text(), SIGNATURE_BYTES, where)
    values.end()
    return Signature(key, hash_name, value)


def _read_typed(blob: bytes, size: int, where: str) -> bytes:
    """Read a type, which must be Ed25519's, and `size` bytes."""
    values = _Reader(blob, where)
    kind, value = values.text(), values.text()
    values.end()
    if kind != KEY_TYPE:
        raise _fault(where, f"a key or signature has the type {kind[:_LINE].decode(errors='replace')!r}")
    if len(value) != size:
        raise _fault(where, "a key or signature has a wrong length")
    return value


class _Reader:
    """Takes SSH's values from the front of bytes: RFC 4251, section 5."""

    def __init__(self, data: bytes, where: str) -> None:
        self._data, self._where = memoryview(data), where

    def take(self, size: int) -> bytes:
        if size > len(self._data):
            raise _fault(self._where, "a key or signature is cut off")
        front, self._data = self._data[:size], self._data[size:]
        return bytes(front)

    def number(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def text(self) -> bytes:
        return self.take(self.number())

    def end(self) -> None:
        if self._data:
            raise _fault(self._where, "a key or signature has more bytes than it should")


def _with_length(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def _decode(text: bytes, where: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if base64.b64encode(data) != text:  # strict: a second spelling of the same bytes is refused, too
        raise _fault(where, "a key or signature is not valid base64 text")
    return data


def _fault(where: str, why: str) -> VerificationError:
    return VerificationError(
        f"{where} does not contain a valid release signature",
        details=why,
        hint="sign it with an Ed25519 key: `toolchain trust sign PACKAGE`",
    )
