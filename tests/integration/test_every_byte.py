"""Each byte of a small signed release, and of all that brings it: a change is refused, or no check covers that byte.

CI changes some hundred bytes; `make nightly` changes all of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import pytest

from tests.support import bundles, every_byte, signers, updates
from tests.support.every_byte import AT_A_LOAD, IN_A_FOLDER, IN_A_PACKAGE, IN_AN_UPDATE, MAY_BE_MISSING
from tests.support.nightly import left
from tests.support.paths import ROOT
from toolchain import bundle
from toolchain.device.shipment import SIGNED
from toolchain.signing.trust import Trust

pytestmark = pytest.mark.timeout(7200)

FILES = (*bundle.LAYERS, bundle.MANIFEST, "oci.json", SIGNED)
FEW_BYTES = 4096


@pytest.fixture(scope="module")
def signed(tiny, alice, tmp_path_factory):
    return signers.signed(tiny, tmp_path_factory.mktemp("signed") / "bundle", [alice], sequence=5)


@pytest.fixture(scope="module")
def trust(alice, tmp_path_factory):
    return signers.trusting(tmp_path_factory.mktemp("trust") / "trust", [alice])


def places_of(data: bytes, which: str | int, count: int) -> Sequence[int]:
    """Return some positions, all, or those of one of four quarters."""
    if isinstance(which, int):
        return range(len(data) * which // 4, len(data) * (which + 1) // 4)
    return every_byte.some(len(data), count) if which == "some" else range(len(data))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("which", ["some", left("all")])
def test_each_byte_of_a_release_counts(name, which, signed, program, trust, tmp_path):
    """In `make nightly` each bit of what is small, and one bit of each byte of the others."""
    release = signers.released(signed, tmp_path)
    data = (release / name).read_bytes()
    ways = every_byte.each_bit if which == "all" and len(data) < FEW_BYTES else every_byte.changes
    survivors = []
    for position, changed in ways(data, places_of(data, which, 12)):
        (release / name).write_bytes(changed)
        if not every_byte.refused_by_device(program.path, release, trust):
            survivors.append(position)
    assert survivors == []


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("count", [4, left(256)])
def test_each_byte_counts_at_a_load_or_its_file_is_listed(name, count, signed, program, trust, tmp_path):
    """Of the release that is current already."""
    release = signers.released(signed, tmp_path)
    assert not every_byte.refused_at_a_load(program.path, release, trust, signed, tmp_path)
    data = (release / name).read_bytes()
    refused = set()
    for _position, changed in every_byte.changes(data, every_byte.some(len(data), count)):
        (release / name).write_bytes(changed)
        refused.add(every_byte.refused_at_a_load(program.path, release, trust, signed, tmp_path))
    assert refused == {name not in AT_A_LOAD}


@pytest.mark.parametrize("which", ["some", *(left(quarter) for quarter in range(4))])
def test_each_byte_of_a_package_counts_or_is_listed(which, signed, trust, tmp_path):
    package, changed_package = tmp_path / "package.tar", tmp_path / "changed.tar"
    bundle.pack(signed, package)
    data, region, trusted = package.read_bytes(), every_byte.regions(package), Trust.read(trust / "trusted")
    accepted = every_byte.accepted(package, trusted, tmp_path / "out")
    assert accepted
    wrong = []
    for position, changed in every_byte.changes(data, places_of(data, which, 110)):
        changed_package.write_bytes(changed)
        result = every_byte.accepted(changed_package, trusted, tmp_path / "out")
        if result is None:
            continue
        others = {name for name in accepted.keys() | result.keys() if result.get(name) != accepted.get(name)}
        if region(position) not in IN_A_PACKAGE or not others <= MAY_BE_MISSING or others & result.keys():
            wrong.append((position, region(position), sorted(others)))
    assert wrong == []


def test_each_byte_of_the_empty_configuration_counts(signed, trust, tmp_path):
    """It has two bytes, which a sample of the positions seldom meets."""
    package, changed_package = tmp_path / "package.tar", tmp_path / "changed.tar"
    bundle.pack(signed, package)
    data, trusted = package.read_bytes(), Trust.read(trust / "trusted")
    start = data.index(b"{}\0")
    for _position, changed in every_byte.each_bit(data, (start, start + 1)):
        changed_package.write_bytes(changed)
        assert every_byte.accepted(changed_package, trusted, tmp_path / "out") is None


def test_what_is_listed_of_a_package_is_not_covered(signed, trust, tmp_path):
    package, changed_package = tmp_path / "package.tar", tmp_path / "changed.tar"
    bundle.pack(signed, package)
    data, region, trusted = package.read_bytes(), every_byte.regions(package), Trust.read(trust / "trusted")
    uncovered = set()
    for name in IN_A_PACKAGE:
        positions = (position for position in range(len(data)) if region(position) == name)
        for _position, changed in every_byte.changes(data, positions):
            changed_package.write_bytes(changed)
            if every_byte.accepted(changed_package, trusted, tmp_path / "out") is not None:
                uncovered.add(name)
                break
    assert uncovered == set(IN_A_PACKAGE)


@pytest.mark.parametrize("which", ["some", left("all")])
def test_each_byte_of_a_bundles_folder_counts_or_its_file_is_listed(which, signed, trust, tmp_path):
    copy, trusted = signers.copied(signed, tmp_path / "copy"), Trust.read(trust / "trusted")
    for path in copy.folder.iterdir():
        data, survivors = path.read_bytes(), []
        for position, changed in every_byte.changes(data, places_of(data, which, 12)):
            path.write_bytes(changed)
            if every_byte.approved(copy.folder, trusted):
                survivors.append(position)
        path.write_bytes(data)
        assert bool(survivors) == (path.name in IN_A_FOLDER), (path.name, survivors)


@pytest.fixture(scope="module")
def small_program(program, tmp_path_factory):
    return every_byte.small(program, tmp_path_factory.mktemp("program") / "runner")


@pytest.mark.parametrize("which", ["some", *(left(quarter) for quarter in range(4))])
def test_each_byte_of_an_update_counts_or_is_among_its_first_lines(which, signed, small_program, tmp_path):
    script = updates.written(signed, small_program, tmp_path / "update.run").path
    data, root = script.read_bytes(), tmp_path / "device"
    assert not every_byte.refused_by_update(script, "--check", "--root", root)
    lines, accepted_positions = every_byte.first_lines(data), []
    for position, changed in every_byte.changes(data, places_of(data, which, 30)):
        script.write_bytes(changed)
        if not every_byte.refused_by_update(script, "--check", "--root", root):
            accepted_positions.append(position)
        assert not root.exists()
    assert [position for position in accepted_positions if position >= lines] == []


@pytest.mark.parametrize("which", ["some", left("all")])
def test_the_first_lines_of_an_update_never_install_anything_else(which, signed, small_program, tmp_path):
    """They may change without a refusal: where they do, the device has the whole release, or nothing."""
    script = updates.written(signed, small_program, tmp_path / "update.run").path
    data, roots = script.read_bytes(), set()
    lines = data[: every_byte.first_lines(data)]
    for position, changed in every_byte.changes(lines, places_of(lines, which, 12)):
        script.write_bytes(changed + data[len(lines) :])
        root = tmp_path / f"device-{position}"
        if every_byte.refused_by_update(script, "--root", root):
            assert not root.exists()
        else:
            roots.add(bundles.whole_release(root))
            shutil.rmtree(root)
    assert roots == {signed.digest}


@pytest.mark.parametrize("which", ["some", left("all")])
def test_each_byte_of_an_updates_folder_counts(which, signed, small_program, tmp_path):
    script = updates.written(signed, small_program, tmp_path / "folder", folder=True).path
    assert not every_byte.refused_by_update(script, "--check", "--root", tmp_path / "device")
    for path in (script.parent / "blobs").iterdir():
        data = path.read_bytes()
        for position, changed in every_byte.changes(data, places_of(data, which, 2)):
            path.write_bytes(changed)
            assert every_byte.refused_by_update(script, "--check", "--root", tmp_path / "device"), (path.name, position)
        path.write_bytes(data)


@pytest.mark.parametrize(
    ("head", "listed"),
    {
        "files of a release": AT_A_LOAD,
        "bytes of a package": IN_A_PACKAGE,
        "files of a bundle": IN_A_FOLDER,
        "bytes of an update": IN_AN_UPDATE,
    }.items(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_manual_lists_what_is_not_covered(head, listed):
    text = (ROOT / "docs" / "security.md").read_text()
    begin = text.index(f"| {head} | why |")
    rows = text[begin:].partition("\n\n")[0].splitlines()[2:]
    assert [row.split(" | ")[0].strip("|` ") for row in rows] == list(listed)
