"""Each byte of a small signed release and of its package: a change is refused, or no check covers that byte.

CI changes some hundred bytes; `make nightly` changes all of them.
"""

from __future__ import annotations

import base64
import struct
import tarfile

import pytest

from tests.support import every_byte, signers
from tests.support.every_byte import MAY_BE_MISSING, NOT_COVERED
from tests.support.nightly import left
from tests.support.paths import ROOT
from toolchain import bundle, tensors
from toolchain.bundle import archive
from toolchain.device.shipment import SIGNED
from toolchain.errors import ToolchainError
from toolchain.signing import sshsig
from toolchain.signing.trust import Trust, documents

pytestmark = pytest.mark.timeout(7200)

FILES = (*bundle.LAYERS, bundle.MANIFEST, "oci.json", SIGNED)
EDGES = tuple(limit + more for limit in (1 << 31, 1 << 32) for more in (-1, 0, 1))
WRAPPED = tuple(1 << bits for bits in (31, 32))
"""What a number of 31 or of 32 bits takes for nothing."""


@pytest.fixture(scope="module")
def signed(tiny, alice, tmp_path_factory):
    return signers.signed(tiny, tmp_path_factory.mktemp("signed") / "bundle", [alice], sequence=5)


@pytest.fixture(scope="module")
def trust(alice, tmp_path_factory):
    return signers.trusting(tmp_path_factory.mktemp("trust") / "trust", [alice])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("which", ["some", left("all")])
def test_each_byte_of_a_release_counts(name, which, signed, program, trust, tmp_path):
    release = signers.released(signed, tmp_path)
    data = (release / name).read_bytes()
    step = 1 if which == "all" else max(1, len(data) // 12)
    survivors = []
    for position, changed in every_byte.changes(data, step):
        (release / name).write_bytes(changed)
        if not every_byte.refused_by_device(program.path, release, trust):
            survivors.append(position)
    assert survivors == []


@pytest.mark.parametrize("which", ["some", left("all")])
def test_each_byte_of_a_package_counts_or_is_listed(which, signed, trust, tmp_path):
    package, changed_package = tmp_path / "package.tar", tmp_path / "changed.tar"
    bundle.pack(signed, package)
    data, region, known = package.read_bytes(), every_byte.regions(package), Trust.read(trust / "trusted")
    whole = every_byte.accepted(package, known, tmp_path / "out")
    assert whole
    wrong, survived = [], set()
    for position, changed in every_byte.changes(data, 1 if which == "all" else 1021):
        changed_package.write_bytes(changed)
        found = every_byte.accepted(changed_package, known, tmp_path / "out")
        if found is None:
            continue
        survived.add(region(position))
        others = {name for name in whole.keys() | found.keys() if found.get(name) != whole.get(name)}
        if region(position) not in NOT_COVERED or not others <= MAY_BE_MISSING or others & found.keys():
            wrong.append((position, region(position), sorted(others)))
    assert wrong == []
    assert survived == set(NOT_COVERED) - {"checksum"} if which == "all" else survived


def test_the_manual_lists_what_is_not_covered():
    text = (ROOT / "docs" / "security.md").read_text()
    begin = text.index("| bytes of a package |")
    rows = text[begin:].partition("\n\n")[0].splitlines()[2:]
    assert [row.split(" | ")[0].strip("| ") for row in rows] == list(NOT_COVERED)


# --- sizes -----------------------------------------------------------------------------------------------------------


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
    made = signers.copied(signed, tmp_path / "copy")
    path = made.folder / name
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size + more)
    with pytest.raises(ToolchainError):
        documents(bundle.load(made.folder))


@pytest.mark.parametrize("name", ["oci.json", SIGNED])
@pytest.mark.parametrize("size", [1 << 31, 1 << 32])
def test_a_device_refuses_documents_of_that_size(name, size, signed, program, trust, tmp_path):
    release = signers.released(signed, tmp_path)
    for more in (-1, 0, 1, (release / name).stat().st_size):
        with (release / name).open("r+b") as stream:
            stream.truncate(size + more)
        assert every_byte.refused_by_device(program.path, release, trust), more


@pytest.mark.parametrize("size", EDGES)
def test_a_manifest_with_that_size_of_a_file_is_refused(size, signed, tmp_path):
    """A size of the manifest that is right but for a number of 32 bits more, or that is one of the edges."""
    made = signers.copied(signed, tmp_path / "copy")
    path = made.folder / bundle.MANIFEST
    real = made.manifest.files[bundle.PARAMS].size
    for wrong in (size, real + (1 << 32), real - (1 << 32)):
        text = signed.manifest.encoded().replace(f'"size": {real}'.encode(), f'"size": {wrong}'.encode())
        assert text != signed.manifest.encoded()
        path.write_bytes(text)
        with pytest.raises(ToolchainError):
            bundle.load(made.folder)


@pytest.mark.parametrize("size", EDGES)
def test_params_that_claim_that_size_are_refused(size, tiny, program, tmp_path):
    """The length of their header, and where their last tensor ends."""
    path = tmp_path / bundle.PARAMS
    data = (tiny.folder / bundle.PARAMS).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    for wrong in (size, length + (1 << 32), length + (1 << 63)):
        path.write_bytes(struct.pack("<Q", wrong) + data[8:])
        with pytest.raises(ToolchainError):
            tensors.load(path)
    end = len(data) - 8 - length
    text = data[8 : 8 + length]
    for wrong in (size, end + (1 << 32)):
        changed = text.rstrip().replace(f",{end}]".encode(), f",{wrong}]".encode())
        path.write_bytes(struct.pack("<Q", len(changed)) + changed + data[8 + length :])
        with pytest.raises(ToolchainError):
            tensors.load(path)


@pytest.mark.parametrize("length", [size for size in EDGES if size < 1 << 32])
def test_a_signature_that_claims_that_length_is_refused(length, signed, program, trust, tmp_path):
    """Each of its five strings has a length of 32 bits in front."""
    blob = sshsig._decode(b"".join(signed.signatures.read_bytes().splitlines()[1:-1]), "it")
    position, release = 10, signers.released(signed, tmp_path)
    for _ in range(5):
        (real,) = struct.unpack(">I", blob[position : position + 4])
        wrong = blob[:position] + struct.pack(">I", length) + blob[position + 4 :]
        text = sshsig._BEGIN + base64.b64encode(wrong) + sshsig._END
        (release / SIGNED).write_bytes(signed.statement.read_bytes() + text)
        assert every_byte.refused_by_device(program.path, release, trust)
        with pytest.raises(ToolchainError):
            sshsig.read(text, "it")
        position += 4 + real
    assert position == len(blob)
