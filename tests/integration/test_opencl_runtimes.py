"""The same network on several OpenCLs, of which Intel's computes in half precision, too."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

from tests.support import nets, nightly, opencl, opencl_runtimes, qdq_nets
from tests.support.commands import toolchain
from tests.support.nets import node, value


@pytest.mark.parametrize(
    ("name", "options", "maximum"),
    [
        *(
            (name, [], 1e-5) if name == opencl_runtimes.OCLGRIND else nightly.left(name, [], 1e-5)
            for name in opencl_runtimes.NAMES
        ),
        *((opencl_runtimes.INTEL, [option], 2e-2) for option in ("--float16", "--half-sums")),
    ],
)
def test_a_network_is_right_on_each(name, options, maximum, tmp_path, monkeypatch):
    opencl_runtimes.require_one(name)
    log = tmp_path / "faults"
    environment = opencl_runtimes.environment(name, opencl_runtimes.Checks(log))
    if name == opencl_runtimes.INTEL:  # it keeps the smallest halves, and does not say so
        environment |= opencl.Shim(tmp_path / "shim").env(small_halves=1)
    for variable, text in environment.items():
        monkeypatch.setenv(variable, text)
    command_options = ["--board", "opencl-local", "--root", tmp_path / "root", "--budget", 0, "--json", "-"]
    outcome = toolchain("deploy", "mlp", *command_options, *options)
    assert outcome.code == 0, outcome.err
    difference = json.loads(outcome.out)["outputs"]["max_rel_diff"]
    assert difference <= maximum
    assert (difference > 1e-5) == bool(options)  # half precision is none that is as good as single
    assert not log.exists() or not log.read_text()


@pytest.fixture
def intel(tmp_path, monkeypatch):
    """Return a function that deploys a network there; the driver does not say that it keeps the smallest halves."""
    opencl_runtimes.require_one(opencl_runtimes.INTEL)
    shim = opencl.Shim(tmp_path / "shim")

    def deployed(proto, option, **counts: int):
        for variable, text in (opencl_runtimes.environment(opencl_runtimes.INTEL) | shim.env(**counts)).items():
            monkeypatch.setenv(variable, text)
        options = ["--board", "opencl-local", "--root", tmp_path / "root", "--budget", 0, "--json", "-", option]
        return toolchain("deploy", nets.save(proto, tmp_path), *options)

    return deployed


def _large_sums():
    """Half of the channels sum up to 100000, the others take most of that away; 65504 is the greatest half."""
    once, kernel = np.eye(16, dtype=np.float32), np.repeat(np.array([16384, -12000], np.float32), 16)
    twice = np.concatenate([once, once]).reshape(32, 16, 1, 1)
    nodes = [
        node("Conv", ["x", "twice"], ["a"]),
        node("Sigmoid", ["a"], ["b"]),
        node("Conv", ["b", "held"], ["y"]),
    ]
    weights = {"twice": twice, "held": np.tile(kernel.reshape(1, 32, 1, 1), (8, 1, 1, 1))}
    return nets.model(nodes, [value("x", (1, 16, 6, 6))], [value("y", (1, 8, 6, 6))], weights)


def _small_inputs(scale):
    """A layer that reads what is far below one: half precision has fewer digits below 2^-14."""
    kernel = np.random.default_rng(0).standard_normal((16, 16, 3, 3)).astype(np.float32)
    nodes = [node("Mul", ["x", "small"], ["a"]), node("Conv", ["a", "held"], ["y"], pads=[1, 1, 1, 1])]
    weights = {"small": np.float32(scale), "held": kernel}
    return nets.model(nodes, [value("x", (1, 16, 6, 6))], [value("y", (1, 16, 6, 6))], weights)


def _small_between(scale):
    """A layer that reads what another one passes on to it: in half precision, before it is made greater."""
    random = np.random.default_rng(0)
    nodes = [
        node("Conv", ["x", "small"], ["a"], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "held"], ["y"], pads=[1, 1, 1, 1]),
    ]
    weights = {
        "small": random.standard_normal((16, 16, 3, 3)).astype(np.float32) * np.float32(scale / 12),
        "held": random.standard_normal((16, 16, 3, 3)).astype(np.float32),
    }
    return nets.model(nodes, [value("x", (1, 16, 6, 6))], [value("y", (1, 16, 6, 6))], weights)


@pytest.mark.parametrize(
    ("proto", "option", "maximum"),
    [
        (_large_sums(), "--float16", 1e-2),
        (_large_sums(), "--half-sums", 1e-2),
        (_small_inputs(1e-4), "--float16", 2e-3),
        nightly.left(_small_inputs(1e-4), "--half-sums", 2e-3),
        (_small_inputs(1e-5), "--half-sums", 2e-3),
        (_small_between(1e-4), "--half-sums", 2e-3),
    ],
    ids=["large-in-single", "large-in-half", "small", "small-in-half", "smaller-in-half", "small-between"],
)
def test_sums_that_half_precision_could_not_hold_are_right(intel, proto, option, maximum):
    outcome = intel(proto, option, small_halves=1)
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["outputs"]["max_rel_diff"] <= maximum


def test_half_sums_need_a_device_that_keeps_the_smallest_halves(intel):
    outcome = intel(_large_sums(), "--half-sums")
    assert outcome.code == 4
    assert "has no CL_FP_DENORM for halves, so it takes numbers below 2^-14 for zero" in outcome.err
    assert "build with --float16 instead of --half-sums" in outcome.err
    assert "importing" not in outcome.err


@pytest.mark.parametrize(("name", "activation"), [(opencl_runtimes.POCL, "uint8"), (opencl_runtimes.INTEL, "int8")])
def test_layers_on_bytes_are_as_good_as_single_precision(name, activation, tmp_path, monkeypatch):
    opencl_runtimes.require_one(name)
    path = tmp_path / "net.onnx"
    # Weights in 7 bits: ONNX Runtime, the reference, limits sums of two products to 16 bits on processors without VNNI.
    onnx.save(qdq_nets.quantized(qdq_nets.residual(), tmp_path, activation, reduce_range=True), path)
    for variable, text in opencl_runtimes.environment(name).items():
        monkeypatch.setenv(variable, text)
    options = ["--board", "opencl-local", "--root", tmp_path / "root", "--budget", 0, "--json", "-"]
    outcome = toolchain("deploy", path, *options)
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["outputs"]["max_rel_diff"] <= 1e-6
