"""The same network on several OpenCLs, of which Intel's computes in half precision, too."""

from __future__ import annotations

import json

import pytest

from tests.support import opencl_runtimes
from tests.support.commands import toolchain


@pytest.mark.parametrize(
    ("name", "options", "most"),
    [
        *((one, [], 1e-5) for one in opencl_runtimes.NAMES),
        *((one, ["--float16"], 2e-2) for one in opencl_runtimes.HALF),
    ],
)
def test_a_network_is_right_on_each(name, options, most, tmp_path, monkeypatch):
    opencl_runtimes.require_one(name)
    log = tmp_path / "faults"
    for variable, value in opencl_runtimes.environment(name, opencl_runtimes.Checks(log)).items():
        monkeypatch.setenv(variable, value)
    words = ["--board", "opencl-local", "--root", tmp_path / "root", "--budget", 0, "--json", "-"]
    seen = toolchain("deploy", "mlp", *words, *options)
    assert seen.code == 0, seen.err
    difference = json.loads(seen.out)["outputs"]["max_rel_diff"]
    assert difference <= most
    assert (difference > 1e-5) == bool(options)  # half precision is none that is as good as single
    assert not log.exists() or not log.read_text()
