"""`toolchain inventory`."""

from __future__ import annotations

import json

from tests.support.commands import done, parsed, toolchain
from toolchain import bundle


def test_a_package_shows_its_parts(tiny, tmp_path):
    bundle.pack(tiny, tmp_path / "tiny.tar")
    for package in (tiny.folder, tmp_path / "tiny.tar"):
        shown = done("inventory", package).out.splitlines()
        assert shown[0].split() == ["NAME", "VERSION", "KIND", "USED", "FOR"]
        assert any(line.startswith("model.so ") and line.endswith("runtime") for line in shown)
        assert any(line.startswith("onnxruntime ") and line.endswith("build only") for line in shown)
    assert parsed("inventory", tiny.folder) == json.loads((tiny.folder / bundle.BILL).read_text())
    statement = (tiny.folder / bundle.PROVENANCE).read_text()
    assert parsed("inventory", tiny.folder, "--provenance") == json.loads(statement)
    assert json.loads(done("inventory", tiny.folder, "--provenance").out) == json.loads(statement)


def test_what_is_no_package_is_told(tmp_path):
    seen = toolchain("inventory", tmp_path)
    assert (seen.code, "is not a bundle" in seen.err) == (2, True)
