"""What `rauc bundle` is given; tests/integration/test_ota.py gives it to RAUC."""

from __future__ import annotations

import configparser
import os

import pytest

from tests.support import bundles, updates
from toolchain.errors import InputError


def test_the_manifest_names_the_handler(tiny, program, tmp_path):
    evil = bundles.renamed(tiny, "a name\n[handler]\nfilename=evil")
    folder = updates.written(evil, program, tmp_path / "rauc", folder=True, kind="rauc").path.parent
    manifest = configparser.ConfigParser()
    manifest.read(folder / "manifest.raucm")
    assert manifest["update"]["compatible"] == "local"
    assert manifest["update"]["version"] == evil.digest[:16]
    assert manifest["handler"]["filename"] == "handler.sh"
    assert os.access(folder / "handler.sh", os.X_OK)


def test_a_file_is_not_for_us_to_sign(tiny, program, tmp_path):
    with pytest.raises(InputError, match="makes the RAUC bundle") as caught:
        updates.written(tiny, program, tmp_path / "x.raucb", kind="rauc")
    assert "x.raucb/" in caught.value.hint


def test_only_an_older_folder_gives_way(tiny, program, tmp_path):
    first = updates.written(tiny, program, tmp_path / "rauc", folder=True, kind="rauc")
    assert updates.written(tiny, program, tmp_path / "rauc", folder=True, kind="rauc") == first
    (tmp_path / "rauc" / "key.pem").touch()
    with pytest.raises(InputError, match="is not replaced"):
        updates.written(tiny, program, tmp_path / "rauc", folder=True, kind="rauc")
