"""Arrays of other shapes than the published one: their kernels bit for bit, and whole networks by the programs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.support import nets
from tests.support.commands import toolchain
from tests.support.paths import ROOT
from tests.support.vta_layers import reference, tensors
from tests.support.vta_nets import Net
from toolchain.backends.vta.codegen import kernels
from toolchain.backends.vta.codegen.layers import Conv2d, Pool
from toolchain.backends.vta.device.native import verify
from toolchain.backends.vta.device.simulator import Policy, Simulator
from toolchain.backends.vta.isa import Revision, disasm
from toolchain.backends.vta.isa.config import MOST_LOG, VtaConfig
from toolchain.backends.vta.isa.stream import Stream

ORDERS = [(Policy.TIMED, 0), (Policy.LOAD_FIRST, 0), (Policy.STORE_FIRST, 0), (Policy.RANDOM, 1), (Policy.RANDOM, 2)]
CONFIGS = [
    VtaConfig(),
    VtaConfig(log_batch=1),
    VtaConfig(log_batch=2),
    VtaConfig(log_block=5),
    VtaConfig(log_batch=2, log_block=5),
    VtaConfig(log_batch=2, log_uop_buff_size=9, log_inp_buff_size=13, log_wgt_buff_size=15, log_acc_buff_size=14),
    VtaConfig(log_batch=3, log_block=3, log_wgt_buff_size=16),
]
SHAPES = ["2x16", "4x16", "1x32", "4x32"]
SAME = {"padding": (1, 1, 1, 1)}
POOL = Pool((3, 3), (2, 2), (1, 1, 0, 0))
LAYERS = {
    "3x3": lambda block: Conv2d(1, 9, 8, 2 * block, 3 * block, (3, 3), shift=9, low=0, **SAME),
    "strided": lambda block: Conv2d(3, 9, 7, 2 * block, block, (3, 3), (2, 2), (0, 1, 1, 1), 9, -100, 90),
    "1x1": lambda block: Conv2d(4, 7, 7, 2 * block, 2 * block, (1, 1), (2, 2), shift=5, bias=False),
    "residual": lambda block: Conv2d(5, 6, 5, block, 2 * block, (3, 3), shift=9, low=0, residual_shift=8, **SAME),
    "apart": lambda block: Conv2d(2, 6, 6, 2 * block, 2 * block, (3, 3), shift=6, alone=True, **SAME),
    "own shifts": lambda block: Conv2d(5, 5, 6, block, 2 * block, (3, 3), shift=3, channel_shifts=True, **SAME),
    "dense": lambda block: Conv2d(5, 1, 1, 4 * block, 3 * block, shift=10),
    "filled": lambda block: Conv2d(3, 6, 5, block, block, (3, 3), (2, 1), shift=8, pad=-128, **SAME),
    "maxima": lambda block: Conv2d(5, 8, 8, block, block, (3, 3), (1, 1), (2, 2, 1, 1), 8, pool=POOL, pad=5),
    "wide padding": lambda block: Conv2d(1, 5, 4, block, block, (5, 1), (2, 3), (2, 0, 3, 1), 19, -7, residual_shift=3),
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_kernels_are_exact(config, kind):
    layer = LAYERS[kind](config.block)
    arguments = tensors(layer, 1, config)
    expected = reference(layer, arguments)
    choices = kernels.candidates(layer, config)
    for revision in Revision:
        simulator = Simulator(config, revision)
        for choice in (choices[0], choices[-1]):
            stream = kernels.stream(layer, choice, config, revision)
            verify(stream.encoded())
            for policy, seed in ORDERS:
                arguments[-1][:] = 77
                simulator.run(stream, arguments, policy=policy, seed=seed)
                np.testing.assert_array_equal(arguments[-1], expected, err_msg=f"{choice} {policy}")


def test_an_element_may_be_larger_than_a_page():
    """One of sums has 8 KiB here, in which addresses count."""
    config = VtaConfig(log_batch=6, log_block=5, log_acc_buff_size=20, log_inp_buff_size=18)
    layer = Conv2d(65, 2, 3, 32, 32, shift=7)
    arguments = tensors(layer, 1, config)
    stream = kernels.stream(layer, kernels.candidates(layer, config)[0], config)
    Simulator(config).run(stream, arguments)
    np.testing.assert_array_equal(arguments[-1], reference(layer, arguments))


@st.composite
def machines(draw) -> VtaConfig:
    """Draw a machine whose memories have no more elements than the published one's."""
    batch, block = draw(st.integers(0, 6)), draw(st.integers(1, 6))
    depth = draw(st.integers(4, min(11, MOST_LOG - batch - block - 2)))  # a sum has four bytes
    return VtaConfig(
        log_batch=batch,
        log_block=block,
        log_uop_buff_size=draw(st.integers(12, 15)),
        log_inp_buff_size=batch + block + depth,
        log_wgt_buff_size=2 * block + draw(st.integers(4, 10)),
        log_acc_buff_size=batch + block + 2 + depth,
    )


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(machines(), st.sampled_from(list(LAYERS)), st.sampled_from(Revision), st.data())
def test_any_array(config, kind, revision, data):
    layer = LAYERS[kind](config.block)
    choices = kernels.candidates(layer, config)
    assume(choices)
    stream = kernels.stream(layer, data.draw(st.sampled_from(choices)), config, revision)
    verify(stream.encoded())
    arguments = tensors(layer, 1, config)
    for policy, seed in ORDERS:
        arguments[-1][:] = 77
        Simulator(config, revision).run(stream, arguments, policy=policy, seed=seed)
        np.testing.assert_array_equal(arguments[-1], reference(layer, arguments))


def test_rows_without_an_image_take_no_time_of_others():
    """Four images take the cycles of one, and five those of eight."""
    config = VtaConfig(log_batch=2)
    simulator, cycles = Simulator(config), {}
    for batch in (1, 4, 5, 8):
        layer = Conv2d(batch, 14, 14, 64, 64, (3, 3), shift=8, padding=(1, 1, 1, 1))
        cycles[batch] = simulator.cycles(kernels.stream(layer, kernels.candidates(layer, config)[0], config)).cycles
    assert cycles[1] == cycles[4] < cycles[5] == cycles[8]


def network(batch: int) -> Net:
    """Return a network of a layer with steps, a residual, one of each channel by itself, maxima, and a dense layer."""
    net = Net(20, (9, 8), batch)
    first = net.layer(net.rounded("x", 4), 20, 40, 3, stride=2)
    inner = net.conv(net.layer(first, 40, 40, 3), 40, 40, 3, pads=[1] * 4)
    block = net.rounded(net.add("Relu", [net.add("Add", [inner, first])]), 4)
    apart = net.layer(block, 1, 40, 3, group=40)
    pooled = net.rounded(net.add("MaxPool", [apart], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), 4)
    flat = net.add("Flatten", [net.layer(pooled, 40, 8)])
    dense = net.add("MatMul", [net.rounded(flat, 4), net.weights(8 * 3 * 2, 10)])
    net.last = net.rounded(net.add("Add", [dense, net.bias(10)]), 3)
    return net


@pytest.fixture
def board_of(tmp_path):
    """Returns a board file for this machine with a simulated array of some shape."""

    def write(shape: str) -> str:
        text = (ROOT / "boards" / "vta-sim.toml").read_text()
        path = tmp_path / f"vta-{shape}.toml"
        path.write_text(text.replace('device = "vta-sim"', f'device = "vta-sim-{shape}"'))
        return str(path)

    return write


@pytest.mark.parametrize("shape", SHAPES)
def test_networks_are_those_of_onnx_runtime(shape, board_of, tmp_path):
    net = network({"4x16": 1, "4x32": 5}.get(shape, 3))
    path, report = nets.save(net.proto(net.last), tmp_path), tmp_path / "report.json"
    options = ["--board", board_of(shape), "--root", tmp_path / "device", "--budget", 0, "--json", report]
    outcome = toolchain("deploy", path, *options)
    assert outcome.code == 0, outcome.err
    document = json.loads(report.read_text())
    assert document["outputs"]["max_abs_diff"] == 0
    assert document["outputs"]["reference"].endswith("without optimisations")
    rows, block = map(int, shape.split("x"))
    assert (document["modelled"]["kernels"], document["modelled"]["macs_per_cycle"]) == (6, rows * block * block)


def test_the_commands_know_the_array_of_a_board(board_of, tmp_path):
    net = network(2)
    path, streams = nets.save(net.proto(net.last), tmp_path), tmp_path / "streams"
    kind = board_of("4x16")
    outcome = toolchain("vta", "kernels", path, "--board", kind, "-o", streams, "--json")
    assert outcome.code == 0, outcome.err
    report = json.loads(outcome.out)
    name = "4x16_i8w8a32_15_15_18_17"
    assert (report["config"], set(report["modelled_ms"])) == (name, {"ideal", "hls-pynq"})
    first = min(streams.iterdir())
    assert Stream.decode(first.read_bytes()).config == VtaConfig(log_batch=2)
    outcome = toolchain("vta", "disasm", first)
    assert outcome.out.startswith(f"{name}, revision 2020-12")
    assert disasm.listing(Stream.decode(first.read_bytes()), with_uops=False) == outcome.out.rstrip("\n")
    outcome = toolchain("vta", "disasm", first, "--config", ROOT / "toolchain/backends/vta/configs" / f"{name}.json")
    assert outcome.code == 0, outcome.err
    outcome = toolchain("vta", "self-test", "--board", kind, "--json")
    assert outcome.code == 0, outcome.err
    (tested,) = json.loads(outcome.out).values()
    assert (tested["configuration"], tested["passed"][0]) == (name, "revision")
    assert len(tested["passed"]) == 4


def test_records_are_those_of_one_array(board_of, tmp_path):
    net = network(1)
    path, records = nets.save(net.proto(net.last), tmp_path), tmp_path / "records.jsonl"
    wide, usual = board_of("4x16"), "vta-sim"
    outcome = toolchain("tune", path, "--board", wide, "--trials", 6, "--records", records, "--json")
    assert outcome.code == 0, outcome.err
    tuned = {}
    for kind in (wide, usual):
        outcome = toolchain("vta", "kernels", path, "--board", kind, "--records", records, "--json")
        tuned[kind] = any(kernel["tuned"] for kernel in json.loads(outcome.out)["kernels"])
    assert tuned == {wide: True, usual: False}
    outcome = toolchain("build", path, "--board", usual, "--records", records, "-o", tmp_path / "built")
    assert (outcome.code, "has no records for vta-sim" in outcome.err) == (2, True), outcome.err
    assert '"vta-sim-4x16"' in outcome.err
