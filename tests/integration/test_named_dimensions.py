"""A model whose open dimensions are set by name, from the command line to the device."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.support import nets, networks
from tests.support.commands import done, parsed, toolchain
from toolchain.models.request import Model


@pytest.mark.parametrize("past", [0, 3])
def test_a_step_of_a_decoder_runs_with_an_empty_and_with_a_filled_cache(past, native, program, tmp_path):
    path = nets.save(nets.cached_step(), tmp_path)
    sizes = {"past": past, "new": 2}
    deployment = networks.deployed(Model(path, dims=sizes), native, program, tmp_path)
    assert deployment.changed
    assert deployment.difference.max_rel < 1e-5
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    shapes = {spec["name"]: tuple(spec["shape"]) for spec in (*manifest["inputs"], *manifest["outputs"])}
    cache = {"past": (1, 2, past, 4)} if past else {}
    assert shapes == {**cache, "x": (1, 2, 2, 4), "mask": (1, past + 2), "present": (1, 2, past + 2, 4), "y": (1, 2, 4)}


def test_a_release_of_an_empty_cache_runs_without_its_array(tmp_path):
    path = nets.save(nets.cached_step(), tmp_path)
    options = ("--root", tmp_path / "device")
    done("deploy", path, "--dim", "past=0", "--dim", "new=1", "--dim", "batch=2", *options, "--budget", 0)
    arrays = {"x": np.ones((2, 2, 1, 4), np.float32), "mask": np.full((2, 1), 3, np.float32)}
    np.savez(tmp_path / "in.npz", **arrays)
    done("run", *options, "--input", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as outputs:
        np.testing.assert_array_equal(outputs["y"], np.full((2, 2, 4), 3))
    np.savez(tmp_path / "in.npz", **arrays, past=np.zeros((2, 2, 0, 4), np.float32))
    refused = toolchain("run", *options, "--input", tmp_path / "in.npz", "-o", tmp_path / "other.npz")
    assert (refused.code, "past: the model has no such input" in refused.err) == (2, True), refused.err
    assert not (tmp_path / "other.npz").exists()


def test_the_manifest_has_the_command_with_the_names(tmp_path):
    path = nets.save(nets.relu(("batch", "wide one")), tmp_path)
    built = parsed("build", path, "--dim", "wide one=4", "-o", tmp_path / "out")
    assert "--dim 'wide one=4'" in built["manifest"]["command"]
    assert built["manifest"]["inputs"][0]["shape"] == [1, 4]


@pytest.mark.parametrize("command", [("tasks",), ("inspect", "model"), ("build",), ("deploy",)])
def test_every_command_names_the_open_dimensions(command, tmp_path):
    path = nets.save(nets.cached_step(), tmp_path)
    result = toolchain(*command, path, "--dim", "new=1")
    assert (result.code, result.out) == (2, ""), result.err
    assert "dimension past of past, mask" in result.err
    assert "--dim past=64" in result.err
