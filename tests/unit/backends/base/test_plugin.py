"""Runtimes for Python: how one is built; what they do is the business of test_opencl and test_vta_device."""

from __future__ import annotations

import pytest

from tests.support.commands import toolchain
from toolchain import tvm_plugins
from toolchain.backends.base import build_plugin
from toolchain.errors import BuildError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))


def test_it_is_put_where_tvm_looks_and_stays_where_a_compiler_refuses_the_next(monkeypatch):
    messages = []
    path = build_plugin("opencl", messages.append)
    before = path.read_bytes()
    assert path.parent == tvm_plugins.folder()
    assert before[:4] == b"\x7fELF"
    assert messages == [f"building {path.name}"]
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(BuildError):
        build_plugin("opencl", lambda _line: None)
    (plugin,) = tvm_plugins.folder().iterdir()
    assert plugin.read_bytes() == before


def test_no_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    outcome = toolchain("python-runtime", "--board", "opencl-local")
    assert outcome.code == 3
    assert "no-such-compiler" in outcome.err
    assert not tvm_plugins.folder().exists() or list(tvm_plugins.folder().iterdir()) == []


def test_boards_that_need_none():
    outcome = toolchain("python-runtime", "--board", "local")
    assert outcome.code == 2
    assert "TVM runs CPU kernels without an additional library" in outcome.err
