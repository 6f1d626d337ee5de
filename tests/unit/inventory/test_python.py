"""The Python packages that took part."""

from __future__ import annotations

import re

from tests.support.paths import ROOT
from toolchain import inventory


def test_they_are_what_the_lock_file_pins():
    lines = (ROOT / "requirements.lock").read_text()
    pinned = set(re.findall(r"^([\w.-]+)==(\S+)", lines, re.MULTILINE))  # some twice: for older Pythons, too
    packages = {
        (package.name, package.version) for package in inventory.python_packages() if package.name != "edge-toolchain"
    }
    assert len(packages) > 20
    assert packages <= pinned


def test_each_names_what_it_needs_by_its_package_url():
    packages = {package.name: package for package in inventory.python_packages(frozenset({"apache-tvm"}))}
    assert packages["apache-tvm"].required
    assert not packages["numpy"].required
    assert packages["numpy"].purl == f"pkg:pypi/numpy@{packages['numpy'].version}"
    assert packages["numpy"].purl in packages["onnxruntime"].needs
    purls = {package.purl for package in packages.values()}
    assert all(purls.issuperset(package.needs) for package in packages.values())
