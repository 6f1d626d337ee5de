from __future__ import annotations

import pytest
import tvm
import tvm_ffi

from toolchain import versions


def test_versions_are_those_of_what_is_loaded():
    found = versions.tvm()
    assert set(found) == {"tvm", "tvm_ffi"}
    assert found["tvm"].startswith(tvm.__version__.split("+")[0])
    assert versions.abi(found["tvm_ffi"]) == versions.abi(tvm_ffi.__version__)


@pytest.mark.parametrize("version", ["0.1.14", "0.1.14.post1", "0.1.14rc2", "v0.1.14+abc"])
def test_what_follows_three_numbers_is_no_other_abi(version):
    assert versions.abi(version) == "0.1.14"


def test_an_unknown_version_has_no_abi():
    assert versions.abi("an unknown version") == ""
