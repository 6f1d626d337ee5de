"""A host with a 64-bit Arm CPU: the lock file has a wheel for it of every package, by its digest."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.paths import ROOT
from toolchain.architecture import AARCH64

_SECONDS = 1800
_PYTHON = "3.11"
_TAGS = ("2014", "_2_17", "_2_24", "_2_26", "_2_27", "_2_28")


@pytest.mark.nightly  # 410 MB, which take minutes
@pytest.mark.timeout(_SECONDS)
def test_the_lock_file_installs(tmp_path):
    """pip fetches all of them, compares each with the lock file, and takes no source."""
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    words += ["--only-binary", ":all:", "--python-version", _PYTHON, "--implementation", "cp"]
    words += ["--abi", "cp311", "--abi", "abi3", "--abi", "none"]
    words += [word for tag in _TAGS for word in ("--platform", f"manylinux{tag}_{AARCH64.machine}")]
    command = [*words, "--requirement", ROOT / "requirements.lock", "--dest", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    assert done.returncode == 0, done.stderr[-2000:]
    fetched = {path.name.partition("-")[0] for path in tmp_path.glob("*.whl")}
    assert {"apache_tvm", "apache_tvm_ffi", "onnxruntime", "ziglang"} <= fetched
