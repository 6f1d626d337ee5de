"""The `export` command: what it says of the update that it writes."""

from __future__ import annotations

import shutil

import pytest

from tests.support.commands import parsed, toolchain
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
    words = ["export", source, "-o", tmp_path / "update.run", *([] if referenced else ["--unchecked"])]
    assert parsed(*words)["unchecked"] is not referenced
    seen = toolchain(*words)
    assert seen.code == 0, seen.err
    assert ("UNCHECKED" in seen.out) is not referenced


def test_a_bundle_whose_folder_is_gone_is_not_one_without_a_reference(tiny, tmp_path):
    package = tmp_path / "tiny.oci.tar"
    bundle.pack(tiny, package)
    with bundle.at_hand(package) as made:
        assert made.reference
    with pytest.raises(FileNotFoundError, match="is read within the block that opens it"):
        _ = made.reference
