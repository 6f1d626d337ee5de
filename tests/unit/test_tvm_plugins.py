"""Plug-ins that TVM's import loads: which, from where, and what a broken one does."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points, version

import pytest

from toolchain import tvm_plugins


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path))
    monkeypatch.delenv(tvm_plugins.VARIABLE, raising=False)


def library(path):
    """Make a library that leaves a file beside itself where it is loaded."""
    path.parent.mkdir(parents=True, exist_ok=True)
    source = path.with_suffix(".c")
    source.write_text(
        "#include <stdio.h>\n__attribute__((constructor)) static void loaded(void)\n"
        f'{{ FILE *f = fopen("{path}.loaded", "w"); if (f) fclose(f); }}\n'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(path), str(source)], check=True)
    return path


def was_loaded(path):
    return path.with_name(f"{path.name}.loaded").exists()


def import_tvm(**env):
    """Import TVM in a process of its own, as everybody does."""
    argv = [sys.executable, "-W", "always", "-c", "import tvm; print(tvm.__version__)"]
    completed = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    return completed


def test_tvm_knows_of_them():
    (plugin,) = [entry for entry in entry_points(group="tvm.backends") if entry.name == "edge_toolchain"]
    assert plugin.load() is tvm_plugins.load


def test_each_version_of_tvm_has_its_own():
    assert tvm_plugins.folder().name == f"{version('apache-tvm')}-{version('apache-tvm-ffi')}"


def test_nothing_is_loaded_where_nothing_was_built():
    tvm_plugins.load()


def test_an_import_of_tvm_loads_what_was_built():
    built = library(tvm_plugins.folder() / "libone.so")
    import_tvm()
    assert was_loaded(built)


def test_a_library_of_the_users_own_is_loaded_instead(tmp_path):
    built, foreign = library(tvm_plugins.folder() / "libone.so"), library(tmp_path / "own" / "libtheirs.so")
    import_tvm(**{tvm_plugins.VARIABLE: str(foreign)})
    assert was_loaded(foreign)
    assert not was_loaded(built)


def test_one_that_cannot_be_loaded_is_named_and_tvm_works_without(tmp_path):
    completed = import_tvm(**{tvm_plugins.VARIABLE: str(tmp_path / "missing.so")})
    assert "missing.so" in completed.stderr
    with pytest.raises(OSError, match=r"missing\.so"):
        load_named(tmp_path / "missing.so")


def load_named(path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(tvm_plugins.VARIABLE, str(path))
        tvm_plugins.load()


CALLBACK = """
import tvm

@tvm.ir.transform.module_pass(opt_level=0)
def interrupted(module, context):
    raise KeyboardInterrupt("SIGTERM")

try:
    tvm.transform.Sequential([tvm.relax.transform.Normalize(), interrupted])(tvm.IRModule())
except BaseException as fault:
    print(type(fault).__name__, *fault.args)
"""


def test_an_interrupt_stays_one_on_its_way_through_the_compiler():
    completed = subprocess.run([sys.executable, "-c", CALLBACK], capture_output=True, text=True, check=True)
    assert completed.stdout == "KeyboardInterrupt SIGTERM\n"
