"""Signatures compared with those of ssh-keygen, and data that is no signature."""

from __future__ import annotations

import base64
import random
import struct
import subprocess

import pytest

from tests.support import signers
from toolchain.errors import VerificationError
from toolchain.signing import sshsig
from toolchain.signing.sshsig import Signature

MESSAGE = b'{"bundle": "..."}\n'
ORDER = 2**252 + 27742317777372353535851937790883648493  # of the curve's group: RFC 8032


def signature_by(signer, message=MESSAGE):
    return Signature(signer.key.public, sshsig.HASH, signer.key.sign(sshsig.to_sign(message)))


def test_is_byte_for_byte_that_of_ssh_keygen(alice, tmp_path):
    assert sshsig.to_armour(signature_by(alice)) == signers.by_hand(MESSAGE, alice, tmp_path)


@pytest.mark.parametrize("hashed", ["sha256", "sha512"])
def test_reads_what_ssh_keygen_writes(alice, tmp_path, hashed):
    (signature,) = sshsig.read(signers.by_hand(MESSAGE, alice, tmp_path, hashed=hashed), "it")
    assert signature.hash == hashed.encode()
    assert sshsig.is_valid(signature, MESSAGE)
    assert not sshsig.is_valid(signature, MESSAGE + b" ")


def test_reads_several_one_after_the_other(alice, bob):
    signatures = (signature_by(alice), signature_by(bob))
    assert sshsig.read(b"".join(map(sshsig.to_armour, signatures)), "they") == signatures


def test_shows_the_fingerprint_of_ssh_keygen(alice):
    output = subprocess.run(["ssh-keygen", "-l", "-f", alice.path], check=True, capture_output=True, text=True).stdout
    assert sshsig.fingerprint(alice.key.public) == output.split()[1]


def blob(**changes):
    """A signature that ssh-keygen would refuse to write."""
    fields = {
        "magic": b"SSHSIG",
        "version": struct.pack(">I", 1),
        "key": sshsig.public_blob(bytes(32)),
        "namespace": b"edge-release",
        "reserved": b"",
        "hash": b"sha512",
        "value": struct.pack(">I", 11) + b"ssh-ed25519" + struct.pack(">I", 64) + bytes(64),
        "rest": b"",
    } | changes
    texts = ("key", "namespace", "reserved", "hash", "value")
    body = b"".join(struct.pack(">I", len(fields[name])) + fields[name] for name in texts)
    return armour(fields["magic"] + fields["version"] + body + fields["rest"])


def armour(data):
    return b"-----BEGIN SSH SIGNATURE-----\n" + base64.b64encode(data) + b"\n-----END SSH SIGNATURE-----\n"


WRONG = {
    "empty": (b"", "it contains no signature"),
    "text": (b"hello\n", "not an OpenSSH signature"),
    "no end": (b"-----BEGIN SSH SIGNATURE-----\nAAAA\n", "not an OpenSSH signature"),
    "no base64": (armour(b"x").replace(b"eA==", b"e*=="), "not valid base64"),
    "cut base64": (armour(b"x").replace(b"eA==", b"eA="), "not valid base64"),
    "bits of no byte": (armour(b"SSHSIG" + bytes(4)).replace(b"AA==", b"AB=="), "not valid base64"),
    "nothing in it": (armour(b""), "cut off"),
    "other magic": (blob(magic=b"SSHSIX"), "version 1"),
    "version 2": (blob(version=struct.pack(">I", 2)), "version 1"),
    "another namespace": (blob(namespace=b"git"), "the signature is for 'git'"),
    "reserved": (blob(reserved=b"x"), "does not support"),
    "another hash": (blob(hash=b"md5"), "does not support"),
    "a short key": (blob(key=struct.pack(">I", 11) + b"ssh-ed25519" + struct.pack(">I", 31) + bytes(31)), "length"),
    "rsa": (blob(key=struct.pack(">I", 7) + b"ssh-rsa" + struct.pack(">I", 3) + b"abc"), "'ssh-rsa'"),
    "more bytes": (blob(rest=b"x"), "more bytes"),
    "a length beyond": (armour(b"SSHSIG" + struct.pack(">II", 1, 2**32 - 1)), "cut off"),
    "seventeen": (blob() * 17, "more than 16"),
    "something after it": (blob() + b"more", "not an OpenSSH signature"),
}


@pytest.mark.parametrize("name", WRONG)
def test_refuses(name):
    data, why = WRONG[name]
    with pytest.raises(VerificationError) as caught:
        sshsig.read(data, "it")
    assert why in caught.value.details


def test_another_form_of_the_same_signature_does_not_hold(alice):
    signature = signature_by(alice)
    scalar = int.from_bytes(signature.value[32:], "little") + ORDER
    other = signature.value[:32] + scalar.to_bytes(32, "little")
    assert not sshsig.is_valid(Signature(signature.key, signature.hash, other), MESSAGE)


@pytest.mark.parametrize("key", sorted(sshsig._SMALL_ORDER), ids=lambda key: key.hex()[:8])
@pytest.mark.parametrize("bit", [0, 0x80])
def test_a_weak_key_signs_nothing(key, bit):
    """With the neutral element as the key, one signature would hold for every message."""
    neutral = (1).to_bytes(32, "little")
    weak = key[:-1] + bytes([key[-1] | bit])
    for message in range(16):  # one in eight would hold
        assert not sshsig.is_valid(Signature(weak, b"sha512", neutral + bytes(32)), bytes([message]))


def test_no_change_of_a_byte_holds(alice):
    stream = random.Random(1)  # noqa: S311
    data = base64.b64decode(b"".join(sshsig.to_armour(signature_by(alice)).splitlines()[1:-1]))
    for _ in range(500):
        changed = bytearray(data)
        changed[stream.randrange(len(data))] ^= 1 << stream.randrange(8)
        try:
            (signature,) = sshsig.read(armour(bytes(changed)), "it")
        except VerificationError:
            continue
        assert signature.key != alice.key.public or not sshsig.is_valid(signature, MESSAGE)
