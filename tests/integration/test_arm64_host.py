"""A host with a 64-bit Arm CPU: the lock file has wheels for it, and it builds what an x86-64 host builds.

Only the library is another one: docs/containers.md says why.
"""

from __future__ import annotations

import json

import pytest

from tests.support import arm64_host
from tests.support.commands import done
from toolchain import bundle
from toolchain.native import elf

# The packages are 450 MB, and TVM's compiler and zig run under emulation.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]


def test_a_build_is_that_of_another_host(tmp_path):
    words = ["build", "mlp", "--board", "rpi4", "--toolchain", "zig", "--output"]
    done(*words, tmp_path / "here")
    built = arm64_host.obtain().toolchain(*words, tmp_path / "there", home=tmp_path)
    assert built.returncode == 0, built.stderr
    here, there = (bundle.load(tmp_path / name) for name in ("here", "there"))
    assert elf.minimum_glibc(there.folder / "model.so") == here.manifest.glibc
    assert (there.folder / "model.so").stat().st_size == (here.folder / "model.so").stat().st_size
    assert shared(there) == shared(here)


def shared(built):
    """Return a manifest without the library, which TVM's wheel for another CPU writes in another order."""
    document = json.loads((built.folder / "manifest.json").read_text())
    del document["files"]["model.so"]
    return document
