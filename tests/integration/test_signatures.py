"""The device's reader of signatures: against changed ones, and against ssh-keygen and the host's.

TOOLCHAIN_SIGNATURES is the number of changed ones, 10,000 by default; of one in a hundred ssh-keygen is asked, too.
`make signatures` tries a million.
"""

from __future__ import annotations

import base64
import os
import random
import subprocess

import pytest

from tests.support import signers
from tests.support.paths import DATA
from toolchain import files, resources
from toolchain.errors import VerificationError
from toolchain.signing import sshsig

COUNT = int(os.environ.get("TOOLCHAIN_SIGNATURES", "10000"))
AT_ONCE = 500
MESSAGE = b'{"bundle": "a release"}\n'
BEGIN, END = b"-----BEGIN SSH SIGNATURE-----\n", b"\n-----END SSH SIGNATURE-----\n"

pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """The device's reader as a program of this machine.

    This machine's compiler has its C++ library ready, and zig would first compile one: minutes.
    """
    folder, runtime = tmp_path_factory.mktemp("verdicts"), resources.RUNTIME
    zig = resources.package_folder("ziglang") / "zig"
    environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(files.cache_root() / "zig")}
    crypto = [zig, "build-obj", runtime / "crypto" / "crypto.zig", "-O", "ReleaseSmall", "-fPIC"]
    subprocess.run([*crypto, "-femit-bin=crypto.o"], check=True, env=environment, cwd=folder)
    sources = [DATA / "signatures" / "verdicts.cc", runtime / "crypto" / "crypto.cc", runtime / "trust" / "sshsig.cc"]
    command = ["c++", "-std=c++17", "-O2", f"-I{runtime}", *sources, "crypto.o", "-o", "verdicts"]
    subprocess.run(command, check=True, cwd=folder)
    return folder / "verdicts"


@pytest.fixture(scope="module")
def signed_message(tmp_path_factory):
    """A key, what it allows, a message, and a signature of it."""
    folder = tmp_path_factory.mktemp("signed")
    alice = signers.pair(folder, "alice")
    (folder / "allowed").write_text(f"{alice.line}\n")
    (folder / "it").write_bytes(MESSAGE)
    (folder / "it.sig").write_bytes(signers.signature(alice, MESSAGE))
    return folder, alice


def test_no_changed_signature_holds(verdicts, signed_message):
    folder, alice = signed_message
    command = [verdicts, alice.public.split()[1], folder / "it", folder / "it.sig", "fuzz", str(COUNT), "7"]
    completed = subprocess.run(command, check=True, capture_output=True, text=True)
    assert completed.stdout == "0\n"


def changed(signature, stream):
    """Change a signature as somebody might, or write the same one in another way."""
    data = bytearray(base64.b64decode(b"".join(signature.splitlines()[1:-1])))
    change = stream.randrange(8)
    if change == 0:
        return signature
    if change == 1:  # the same bytes in other lines
        text, step = base64.b64encode(data), stream.randrange(1, 200)
        return BEGIN + b"\n".join(text[first : first + step] for first in range(0, len(text), step)) + END
    if change == 2:
        return BEGIN + base64.b64encode(data[: stream.randrange(len(data))]) + END
    if change == 3:
        data.insert(stream.randrange(len(data)), stream.randrange(256))
        return BEGIN + base64.b64encode(data) + END
    for _ in range(stream.randrange(1, 4)):
        data[stream.randrange(len(data))] ^= 1 << stream.randrange(8)
    return BEGIN + base64.b64encode(data) + END


def is_of_version_0(signature):
    return base64.b64decode(b"".join(signature.splitlines()[1:-1])).startswith(b"SSHSIG\0\0\0\0")


def on_host(signature, alice):
    try:
        return any(
            entry.key == alice.key.public and sshsig.is_valid(entry, MESSAGE) for entry in sshsig.read(signature, "it")
        )
    except VerificationError:
        return False


def test_agrees_with_ssh_keygen_and_with_the_host(verdicts, signed_message, tmp_path):
    folder, alice = signed_message
    stream, count = random.Random(11), max(COUNT // 100, 1)  # noqa: S311
    signatures = [(folder / "it.sig").read_bytes(), signers.by_hand(MESSAGE, alice, tmp_path, hashed="sha256")]
    accepted = 0
    for first in range(0, count, AT_ONCE):
        paths = [tmp_path / f"{number}.sig" for number in range(first, min(first + AT_ONCE, count))]
        for path in paths:
            path.write_bytes(changed(stream.choice(signatures), stream))
        command = [verdicts, alice.public.split()[1], folder / "it", "read", *paths]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        for path, verdict in zip(paths, output, strict=True):
            theirs = signers.holds_by_hand(MESSAGE, path, alice, folder / "allowed")
            here, signature = on_host(path.read_bytes(), alice), path.read_bytes()
            if is_of_version_0(signature):  # ssh-keygen takes versions that never were
                assert (here, verdict) == (False, "0")
            else:
                assert {theirs, here} == {verdict == "1"}, signature
            accepted += theirs
            path.unlink()
    assert count // 8 < accepted < count // 2
