"""The OpenCL runtime for Python: how it is built; what it does is test_opencl's business."""

from __future__ import annotations

import pytest

from tests.commands import toolchain
from toolchain import tvm_plugins
from toolchain.backends.mali import _plugin
from toolchain.errors import BuildError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))


def test_it_is_put_where_tvm_looks():
    told = []
    path = _plugin.build(told.append)
    assert path.parent == tvm_plugins.folder()
    assert path.read_bytes()[:4] == b"\x7fELF"
    assert told == [f"building {path.name}"]


def test_a_compiler_that_refuses_leaves_what_was_there(tmp_path, monkeypatch):
    before = _plugin.build(lambda _line: None).read_bytes()
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(BuildError):
        _plugin.build(lambda _line: None)
    (kept,) = tvm_plugins.folder().iterdir()
    assert kept.read_bytes() == before


def test_no_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    seen = toolchain("python-runtime", "--board", "opencl-local")
    assert seen.code == 3
    assert "no-such-compiler" in seen.err
    assert not tvm_plugins.folder().exists() or list(tvm_plugins.folder().iterdir()) == []


def test_boards_that_need_none():
    seen = toolchain("python-runtime", "--board", "local")
    assert seen.code == 2
    assert "TVM runs kernels for CPUs as it is" in seen.err
