from __future__ import annotations

import pytest
import tvm
import tvm_ffi

from toolchain import versions


def test_versions_are_those_of_what_is_loaded():
    tvm_versions = versions.tvm()
    assert set(tvm_versions) == {"tvm", "tvm_ffi"}
    assert tvm_versions["tvm"].startswith(tvm.__version__.split("+")[0])
    assert versions.abi(tvm_versions["tvm_ffi"]) == versions.abi(tvm_ffi.__version__)


@pytest.mark.parametrize("version", ["0.1.14", "0.1.14.post1", "0.1.14rc2", "v0.1.14+abc"])
def test_what_follows_three_numbers_is_no_other_abi(version):
    assert versions.abi(version) == "0.1.14"


def test_an_unknown_version_has_no_abi():
    assert versions.abi("an unknown version") == ""
