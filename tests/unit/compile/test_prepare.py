"""What is done to a model for its board: quantized where the accelerator computes int8 alone."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import nets, qdq_nets
from toolchain import board, quantize
from toolchain.backends import backend_of
from toolchain.compile import prepare
from toolchain.compile.request import BuildRequest
from toolchain.models import inputs
from toolchain.models import source as model
from toolchain.models.request import Model

VTA = board.load("vta-sim").resolved()
GIVEN = inputs.Source(seed=3)


def prepared(proto, folder, kind=VTA, without=(), data=GIVEN):
    """Return a model as it was and as it is for a board, and what was told."""
    path, messages = nets.save(proto, folder), []
    source = model.load(path)
    request = BuildRequest(Model(path, {}, data), kind, messages.append, without=without)
    return source, prepare.quantize_if_needed(source, request).source, messages


def test_a_network_of_floats_is_quantized_for_such_a_board(tmp_path):
    source, quantized, messages = prepared(qdq_nets.two_convolutions(), tmp_path)
    assert quantize.is_quantized(quantized)
    assert not quantize.is_quantized(source)
    assert (quantized.inputs, quantized.output_names, quantized.origin) == (
        source.inputs,
        source.output_names,
        source.origin,
    )
    first, second = messages
    assert "8 samples" in first
    assert "toolchain quantize" in first
    assert second.endswith("dB signal over noise against floats, with 8 random inputs")


def test_it_is_calibrated_with_what_it_is_run_with(tmp_path):
    np.savez(tmp_path / "wide.npz", x=np.full((1, 16, 6, 6), 1e4, np.float32))
    _, usual, _ = prepared(qdq_nets.two_convolutions(), tmp_path)
    _, same, _ = prepared(qdq_nets.two_convolutions(), tmp_path)
    _, wide, _ = prepared(qdq_nets.two_convolutions(), tmp_path, data=inputs.Source(npz=tmp_path / "wide.npz", seed=3))
    assert usual.sha256 == same.sha256 != wide.sha256


@pytest.mark.parametrize("activation", ["uint8", "int8"])
def test_another_quantized_network_keeps_its_ranges(tmp_path, activation):
    """No data of the user's is at hand: random numbers decide nothing but the figures that are told."""
    proto = qdq_nets.quantized(qdq_nets.residual(), tmp_path, activation)
    source = model.load(nets.save(proto, tmp_path))
    messages = []
    results = [
        prepare.quantize_if_needed(
            source, BuildRequest(Model(source.origin, {}, inputs.Source(seed=seed)), VTA, messages.append)
        )
        for seed in (3, 4)
    ]
    assert results[0].source.sha256 == results[1].source.sha256
    report = results[0].quantized
    assert (report.against, report.method, report.samples, report.random) == ("its own results", "file", 8, 8)
    assert report.snr_db > 15
    assert "within its ranges" in messages[0]
    assert report.lines()[0] in messages


def test_a_quantized_network_stays_as_it_is(tmp_path):
    _, quantized, _ = prepared(qdq_nets.two_convolutions(), tmp_path)
    _, again, messages = prepared(quantized.proto, tmp_path)
    assert again.sha256 == quantized.sha256
    assert messages == []


def test_a_quantized_network_is_compared_with_what_its_file_says_on_every_board(tmp_path):
    source, quantized, _ = prepared(qdq_nets.two_convolutions(), tmp_path)
    local = board.load("local").resolved()
    assert prepare.is_compared_unoptimized(quantized, backend_of(local))
    assert not prepare.is_compared_unoptimized(source, backend_of(local))
    assert prepare.is_compared_unoptimized(source, backend_of(VTA))


@pytest.mark.parametrize(("name", "without"), [("local", ()), ("rk3399", ()), ("vta-sim", ("vta",))])
def test_elsewhere_a_network_stays_on_floats(tmp_path, name, without):
    kind = board.load(name).resolved()
    source, quantized, messages = prepared(qdq_nets.two_convolutions(), tmp_path, kind, without)
    assert quantized is source
    assert messages == []
    assert not backend_of(kind, without).computes_int8


def test_a_network_without_a_convolution_to_quantize_is_the_cpus(tmp_path):
    source, quantized, messages = prepared(nets.relu(), tmp_path)
    assert quantized is source
    assert messages == ["net has no convolution that can be quantized: the whole model runs on the CPU"]


def test_a_network_that_computes_with_integers_itself_is_the_cpus(tmp_path):
    bytes_ = {"w": np.ones((4, 4), np.uint8)}
    nodes = [
        nets.node("DynamicQuantizeLinear", ["x"], ["b", "s", "z"]),
        nets.node("MatMulInteger", ["b", "w"], ["i"]),
        nets.node("Cast", ["i"], ["y"], to=1),
    ]
    proto = nets.model(nodes, [nets.value("x", (4, 4))], [nets.value("y", (4, 4))], bytes_)
    source, quantized, messages = prepared(proto, tmp_path)
    assert quantized is source
    assert len(messages) == 1
    assert "compute with integers" in messages[0]
    assert messages[0].endswith(": the whole model runs on the CPU")
