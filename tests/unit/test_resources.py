"""Where a checkout's files are; tests/integration/test_wheel.py looks for those of an installed package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from toolchain import resources
from toolchain.errors import BuildError


def test_a_checkout_has_its_files_at_the_top():
    assert ROOT == resources.ROOT == resources.PACKAGE.parent
    assert (resources.RUNTIME / "CMakeLists.txt").is_file()


def test_hints_name_pages_that_there_are():
    calls = [
        call
        for path in resources.PACKAGE.rglob("*.py")
        for call in re.findall(r"resources\.manual\((.*?)\)", path.read_text(encoding="utf-8"))
    ]
    pages = {call.strip("\"'") for call in calls}
    assert pages >= {"android", "containers"}
    assert all((ROOT / resources.manual(page)).is_file() for page in pages)


def test_a_package_is_found_without_its_import():
    assert (resources.package_folder("tvm_ffi") / "include").is_dir()
    assert resources.package_folder("toolchain") == Path(resources.PACKAGE)


def test_a_package_that_is_missing():
    with pytest.raises(BuildError, match="no_such_package is not installed") as caught:
        resources.package_folder("no_such_package")
    assert caught.value.hint == "make setup"
