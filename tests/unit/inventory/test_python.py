"""The Python packages that took part."""

from __future__ import annotations

import re

from tests.support.paths import ROOT
from toolchain import inventory


def test_they_are_what_the_lock_file_pins():
    lines = (ROOT / "requirements.lock").read_text()
    pinned = set(re.findall(r"^([\w.-]+)==(\S+)", lines, re.MULTILINE))  # some twice: for older Pythons, too
    found = {(one.name, one.version) for one in inventory.python_packages() if one.name != "edge-toolchain"}
    assert len(found) > 20
    assert found <= pinned


def test_each_names_what_it_needs_by_its_package_url():
    found = {one.name: one for one in inventory.python_packages(frozenset({"apache-tvm"}))}
    assert found["apache-tvm"].required
    assert not found["numpy"].required
    assert found["numpy"].purl == f"pkg:pypi/numpy@{found['numpy'].version}"
    assert found["numpy"].purl in found["onnxruntime"].needs
    known = {one.purl for one in found.values()}
    assert all(known.issuperset(one.needs) for one in found.values())
