"""Sizes of 2 GiB and 4 GiB, one less and one more, in every place that says how large something is.

The host's readers, and those of devices of 64 and of 32 bits. No gigabyte is written, and none is read: files are
sparse, and a program that hashes one runs out of its seconds.
"""

from __future__ import annotations

import base64
import json
import shutil
import struct
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import bundles, every_byte, signers
from tests.support.parts import require
from toolchain import board, bundle, files, tensors
from toolchain.bundle import Bundle, archive
from toolchain.device import verification
from toolchain.device.shipment import SIGNED
from toolchain.errors import ToolchainError
from toolchain.native import programs
from toolchain.signing import sshsig
from toolchain.signing.trust import Trust, documents

EDGES = tuple(limit + more for limit in (1 << 31, 1 << 32) for more in (-1, 0, 1))
WRAPPED = tuple(1 << bits for bits in (31, 32))
"""What a number of 31 or of 32 bits takes for nothing."""
FEW_SECONDS = ("prlimit", "--cpu=5", "--")
INPUT, UNTRUSTED = 3, 7


@dataclass(frozen=True)
class Machine:
    """A kind of device.

    Attributes:
        start: What its programs are started with here.
        runner: Its runner.
        bundle: A bundle for it.
    """

    start: tuple[str, ...]
    runner: Path
    bundle: Bundle

    def verify(self, release: Path, trusted: Path) -> str:
        """Return what the runner says of a release that it refuses as not trusted."""
        return self._refusal([self.runner, "--verify", release, "--trust", trusted], UNTRUSTED)

    def load(self, release: Path, work: Path, *more: str | Path, code: int = INPUT) -> str:
        """Return what the runner says of a release that it does not load."""
        tensors.save(work / "inputs", verification.samples_of(self.bundle).inputs)
        command = [self.runner, "--release", release, "--inputs", work / "inputs", "--outputs", work / "outputs"]
        return self._refusal([*command, "--report", work / "report", "--max-runs", "0", *more], code)

    def _refusal(self, command: list[str | Path], code: int) -> str:
        command = [*FEW_SECONDS, *self.start, *command]
        completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert completed.returncode == code, (completed.returncode, completed.stderr)
        return completed.stderr


@pytest.fixture(scope="module")
def signed(tiny, alice, tmp_path_factory):
    return signers.signed(tiny, tmp_path_factory.mktemp("signed") / "bundle", [alice], sequence=5)


@pytest.fixture(scope="module")
def trust(alice, tmp_path_factory):
    return signers.trusting(tmp_path_factory.mktemp("trust") / "trust", [alice])


@pytest.fixture(scope="module", params=["x86_64", "armv7l"])
def machine(request, tiny, program, tmp_path_factory) -> Machine:
    if request.param == "x86_64":
        return Machine((), program.path, tiny)
    emulator, libraries = "qemu-arm-static", Path("/usr/arm-linux-gnueabihf")
    require(emulator, "qemu-user-static, g++-arm-linux-gnueabihf", bool(shutil.which(emulator)) and libraries.is_dir())
    runner = programs.build(programs.RUNNER, "arm-linux-gnueabihf", "armv7l").path
    release = bundles.build(tmp_path_factory.mktemp("armv7l"), 8, 4, board.load("pynq").resolved())
    return Machine((emulator, "-L", str(libraries)), runner, release)


@pytest.fixture
def release(machine, alice, tmp_path) -> Path:
    """A signed release of that machine."""
    release = signers.signed(machine.bundle, tmp_path / "signed", [alice], sequence=5)
    return signers.released(release, tmp_path)


def lengthened(path: Path, *more: int) -> Iterator[int]:
    """Give a file each of the sizes, and its own size with 2 GiB and 4 GiB more, by zeros at its end."""
    size = path.stat().st_size
    for other in (*EDGES, *(size + wrapped for wrapped in WRAPPED), *more):
        with path.open("r+b") as stream:
            stream.truncate(other)
        yield other


# --- the host --------------------------------------------------------------------------------------------------------


def header(name: str, size: int) -> bytes:
    """Return a header as GNU tar writes it, which counts sizes of 8 GiB and more in another way."""
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("size", EDGES)
def test_a_member_of_that_size_is_found_whole_or_refused(size, signed, tmp_path):
    package, first = tmp_path / "package.tar", f"blobs/sha256/{'a' * 64}"
    after = 512 + -(-size // 512) * 512
    with package.open("wb") as stream:
        stream.write(header(first, size))
        stream.seek(after)
        stream.write(header("oci-layout", 3) + b"abc")
        stream.truncate(after + 4 * 512)
    with archive.open_archive(package) as opened:
        assert opened.members == {first: (512, size), "oci-layout": (after + 512, 3)}
    with package.open("r+b") as stream:
        stream.truncate(511 + size)
    with pytest.raises(ToolchainError, match="is damaged"), archive.open_archive(package):
        pass


@pytest.mark.parametrize("more", WRAPPED)
def test_a_member_that_is_longer_by_a_round_number_is_refused(more, signed, trust, tmp_path):
    """All of the package is there, and the size in the header of its last file is too large."""
    package = tmp_path / "package.tar"
    bundle.pack(signed, package)
    data = package.read_bytes()
    position = data.rindex(b"oci-layout")
    with package.open("r+b") as stream:
        stream.seek(position)
        stream.write(header("oci-layout", 36 + more))
        stream.flush()
        assert every_byte.accepted(package, Trust.read(trust / "trusted"), tmp_path / "out") is None
        stream.truncate(len(data) + more)
    assert every_byte.accepted(package, Trust.read(trust / "trusted"), tmp_path / "out") is not None


@pytest.mark.parametrize("name", [bundle.MANIFEST, bundle.PARAMS, bundle.STATEMENT, bundle.SIGNATURES])
@pytest.mark.parametrize("more", WRAPPED)
def test_a_file_that_is_longer_by_a_round_number_is_refused(name, more, signed, tmp_path):
    release = signers.copied(signed, tmp_path / "copy")
    path = release.folder / name
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size + more)
    with pytest.raises(ToolchainError):
        documents(bundle.load(release.folder))


@pytest.mark.parametrize("size", EDGES)
def test_a_manifest_with_that_size_of_a_file_is_refused(size, signed, tmp_path):
    """A size of the manifest that is right but for a number of 32 bits more, or that is one of the edges."""
    release = signers.copied(signed, tmp_path / "copy")
    path = release.folder / bundle.MANIFEST
    real = release.manifest.files[bundle.PARAMS].size
    for wrong in (size, real + (1 << 32), real - (1 << 32)):
        text = signed.manifest.encoded().replace(f'"size": {real}'.encode(), f'"size": {wrong}'.encode())
        assert text != signed.manifest.encoded()
        path.write_bytes(text)
        with pytest.raises(ToolchainError):
            bundle.load(release.folder)


def wrong_params(data: bytes, size: int) -> Iterator[bytes]:
    """Yield params that claim a size: that of their header, and where their last tensor ends."""
    (length,) = struct.unpack("<Q", data[:8])
    for wrong in (size, length + (1 << 32), length + (1 << 63)):
        yield struct.pack("<Q", wrong) + data[8:]
    end, text = len(data) - 8 - length, data[8 : 8 + length]
    for wrong in (size, end + (1 << 32), end + (1 << 63), end + (1 << 64)):
        changed = text.rstrip().replace(f",{end}]".encode(), f",{wrong}]".encode())
        yield struct.pack("<Q", len(changed)) + changed + data[8 + length :]


@pytest.mark.parametrize("size", EDGES)
def test_params_that_claim_that_size_are_refused(size, tiny, tmp_path):
    """The length of their header, and where their last tensor ends."""
    path = tmp_path / bundle.PARAMS
    for text in wrong_params((tiny.folder / bundle.PARAMS).read_bytes(), size):
        path.write_bytes(text)
        with pytest.raises(ToolchainError):
            tensors.load(path)


def wrong_signatures(signatures: bytes, length: int) -> Iterator[bytes]:
    """Yield a signature with each of its strings, which have a length of 32 bits in front, claiming that length."""
    blob = base64.b64decode(b"".join(signatures.splitlines()[1:-1]))
    position = 10
    while position < len(blob):
        (real,) = struct.unpack(">I", blob[position : position + 4])
        wrong = blob[:position] + struct.pack(">I", length) + blob[position + 4 :]
        yield sshsig._BEGIN + base64.b64encode(wrong) + sshsig._END
        position += 4 + real


@pytest.mark.parametrize("length", [size for size in EDGES if size < 1 << 32])
def test_a_signature_that_claims_that_length_is_refused(length, signed):
    wrong = list(wrong_signatures(signed.signatures.read_bytes(), length))
    assert len(wrong) == 5
    for text in wrong:
        with pytest.raises(ToolchainError):
            sshsig.read(text, "it")


# --- devices ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["oci.json", SIGNED])
def test_a_device_refuses_documents_of_that_size(name, machine, release, trust):
    for size in lengthened(release / name):
        assert "at most 1 MiB" in machine.verify(release, trust), size


@pytest.mark.parametrize("name", [*bundle.LAYERS, bundle.MANIFEST])
def test_a_device_refuses_a_signed_file_of_that_size_unread(name, machine, release, trust):
    real = (release / name).stat().st_size
    for size in lengthened(release / name):
        assert f"has {size} bytes, and was signed with {real}" in machine.verify(release, trust)


@pytest.mark.parametrize("name", [bundle.LIBRARY, bundle.PARAMS, bundle.MANIFEST])
def test_a_device_loads_no_signed_file_of_that_size(name, machine, release, trust, tmp_path):
    for size in lengthened(release / name):
        message = machine.load(release, tmp_path, "--trust", trust, code=UNTRUSTED)
        assert "is not the one that was signed" in message, (size, message)


@pytest.mark.parametrize("size", [*EDGES, -1, 1 << 53, (1 << 63) - 1, 1 << 63, 1 << 64])
def test_a_device_refuses_a_signed_size_that_is_wrong(size, machine, release, trust, alice):
    """The signer has signed it: the size of a file in oci.json."""
    document = json.loads((release / "oci.json").read_bytes())
    document["layers"][-1]["size"] = size
    text = json.dumps(document).encode()
    statement = json.loads((release / SIGNED).read_bytes().partition(b"-----")[0])
    stated = json.dumps({**statement, "bundle": files.sha256_bytes(text)}).encode()
    folder = release.rename(release.parent / files.sha256_bytes(text))
    (folder / "oci.json").write_bytes(text)
    (folder / SIGNED).write_bytes(stated + signers.signature(alice, stated))
    message = machine.verify(folder, trust)
    assert "was signed with" in message or '"size" in entry' in message, message


@pytest.mark.parametrize("length", [size for size in EDGES if size < 1 << 32])
def test_a_device_refuses_a_signature_that_claims_that_length(length, machine, release, trust):
    statement, mark, signatures = (release / SIGNED).read_bytes().partition(b"-----BEGIN")
    for text in wrong_signatures(mark + signatures, length):
        (release / SIGNED).write_bytes(statement + text)
        assert "cut off" in machine.verify(release, trust)


@pytest.mark.parametrize("size", EDGES)
def test_a_device_refuses_params_that_claim_that_size(size, machine, tmp_path):
    """Of a release that nobody has signed."""
    folder = signers.released(machine.bundle, tmp_path)
    for text in wrong_params((machine.bundle.folder / bundle.PARAMS).read_bytes(), size):
        (folder / bundle.PARAMS).write_bytes(text)
        assert bundle.PARAMS in machine.load(folder, tmp_path)


@pytest.mark.parametrize("name", [bundle.PARAMS, bundle.MANIFEST])
def test_a_device_refuses_a_file_of_that_size(name, machine, tmp_path):
    """Of a release that nobody has signed; 32 bits would keep of some of these sizes the right one."""
    folder = signers.released(machine.bundle, tmp_path)
    for size in lengthened(folder / name):
        assert name in machine.load(folder, tmp_path), size
