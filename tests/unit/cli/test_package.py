"""`toolchain package`: archives, updates, and the options of each."""

from __future__ import annotations

import shutil

import pytest

from tests.support.commands import done, parsed, toolchain
from toolchain import bundle


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "package"])
@pytest.mark.parametrize("referenced", [True, False], ids=["with reference", "without"])
@pytest.mark.usefixtures("program")
def test_an_update_is_unchecked_where_the_package_has_no_reference(tiny, tmp_path, packed, referenced):
    folder = shutil.copytree(tiny.folder, tmp_path / "bundle")
    if not referenced:
        (folder / bundle.REFERENCE).unlink()
    source = folder
    if packed:
        source = tmp_path / "tiny.oci.tar"
        bundle.pack(bundle.load(folder), source)
    arguments = ["package", source, "-o", tmp_path / "update.run", *([] if referenced else ["--unchecked"])]
    assert parsed(*arguments)["unchecked"] is not referenced
    result = toolchain(*arguments)
    assert result.code == 0, result.err
    assert ("UNCHECKED" in result.out) is not referenced


def test_a_bundle_whose_folder_is_gone_is_not_one_without_a_reference(tiny, tmp_path):
    package = tmp_path / "tiny.oci.tar"
    bundle.pack(tiny, package)
    with bundle.at_hand(package) as opened:
        assert opened.reference
    with pytest.raises(FileNotFoundError, match="is read within the block that opens it"):
        _ = opened.reference


def test_a_package_is_unpacked_into_the_bundle_that_was_packed(tiny, tmp_path):
    done("package", tiny.folder, "-o", tmp_path / "tiny.tar")
    unpacked = parsed("package", "--unpack", tmp_path / "tiny.tar", "-o", tmp_path / "bundle")
    assert unpacked == {"bundle": str(tmp_path / "bundle"), "digest": f"sha256:{tiny.digest}"}
    again = done("package", "--unpack", tmp_path / "tiny.tar", "-o", tmp_path / "bundle").out
    assert again == f"{tmp_path / 'bundle'}: {tiny.manifest.name} for local, sha256:{tiny.digest}\n"
    travelling = {path.name: path.read_bytes() for path in tiny.folder.iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "bundle").iterdir()} == travelling


def test_an_unpacked_package_does_not_replace_other_files(tiny, tmp_path):
    done("package", tiny.folder, "-o", tmp_path / "tiny.tar")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    result = toolchain("package", "--unpack", tmp_path / "tiny.tar", "-o", tmp_path / "mine")
    assert result.code == 2
    assert "thesis.txt" in result.err
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "mine"


def test_a_package_does_not_replace_other_files(tiny, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    result = toolchain("package", tiny.folder, "-o", tmp_path / "thesis.txt")
    assert (result.code, "something other than a package" in result.err) == (2, True)
    assert (tmp_path / "thesis.txt").read_text() == "mine"
    for _ in range(2):
        done("package", tiny.folder, "-o", tmp_path / "a.tar")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--unpack --as rauc -o x", "--unpack and --as cannot be combined"),
        ("--host cam -o x.tar", "--host is only for updates"),
        ("--unchecked --unpack -o x", "--unchecked is only for updates"),
        ("--compatible pi -o x.tar", "--compatible is only for Mender and RAUC"),
        ("--compatible pi -o x.run", "--compatible is only for Mender and RAUC"),
        ("--compatible [slot] -o x.mender", "'[slot]' is not a valid name"),
        ("--host cam -o x.run", "devices.toml has no device 'cam'"),
    ],
)
def test_an_option_that_does_not_fit_is_refused(tiny, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    result = toolchain("package", tiny.folder, *arguments.split())
    assert (result.code, message in result.err) == (2, True), result.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("program")
@pytest.mark.parametrize(("output", "kind"), [("x.run", "offline"), ("x.mender", "mender")])
def test_the_name_decides_the_form_of_an_update(tiny, tmp_path, output, kind):
    assert parsed("package", tiny.folder, "-o", tmp_path / output)["kind"] == kind
