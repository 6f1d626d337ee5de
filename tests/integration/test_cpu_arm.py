"""The CPU backend on Arm: its kernels and networks under emulation, and what its compiled loops consist of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from tvm.support import cc

from benchmarks import _arm_code
from tests.integration.test_board_server import KINDS as MACHINES
from tests.integration.test_board_server import built, close
from tests.integration.test_board_server import running as serving
from tests.support import cpu_kernels as kernels
from tests.support import nets, nightly, qdq_nets
from tests.support.commands import toolchain
from tests.support.cpu_kernels import layer_of
from tests.support.nets import node, value
from toolchain import board
from toolchain.backends import backend_of
from toolchain.backends.base import LAYER
from toolchain.backends.cpu import kernels as templates
from toolchain.backends.cpu.layers import Activation, Conv, PostOp, in_float16
from toolchain.backends.cpu.machine import Machine, machine

BOARDS = ("rpi4", "pynq")
LANES = 4


@pytest.fixture(scope="module", params=BOARDS)
def kind(request):
    board_type = board.load(request.param).resolved()
    MACHINES[board_type.machine].require()
    return board_type


def target(kind: board.Board) -> tvm.target.Target:
    return backend_of(kind).target


# --- kernels, one by one ---------------------------------------------------------------------------------------

LAYERS = {
    "direct": layer_of((1, 12, 9, 11), 20, (3, 3), LANES, padding=(1, 1, 1, 1), epilogue=(PostOp("relu"),)),
    "direct, odd channels": layer_of((2, 7, 6, 10), 9, (3, 3), LANES, padding=(1, 0, 1, 2), strides=(2, 2)),
    "direct, dilated": layer_of((1, 8, 9, 9), 8, (3, 3), LANES, padding=(2, 2, 2, 2), dilation=(2, 2)),
    "direct, one row": layer_of((1, 8, 1, 19), 12, (1, 5), LANES, padding=(0, 2, 0, 2), bias=False),
    "first layer": layer_of((1, 3, 15, 17), 16, (7, 7), LANES, strides=(2, 2), padding=(3, 3, 3, 3), plain=True),
    "pointwise": layer_of((1, 24, 7, 7), 32, (1, 1), LANES, epilogue=(PostOp("add"), PostOp("relu"))),
    "grouped": layer_of((1, 12, 8, 8), 18, (3, 3), LANES, padding=(1, 1, 1, 1), groups=3),
    "depthwise": layer_of(
        (1, 10, 9, 13), 10, (3, 3), LANES, padding=(1, 1, 1, 1), groups=10, epilogue=(PostOp("clip", (0, 6)),)
    ),
    "depthwise, strides": layer_of((1, 8, 8, 15), 8, (5, 5), LANES, strides=(2, 2), padding=(2, 2, 2, 2), groups=8),
    "sigmoid": layer_of((1, 8, 5, 5), 8, (1, 1), LANES, epilogue=(PostOp("sigmoid"), PostOp("scale"))),
}


def choices(layer: Conv, kind: board.Board) -> Iterator[templates.Choice]:
    """Yield the cheapest way of each template, and the costliest, which has other tiles."""
    for template in templates.NAMES:
        if choice := only(template, layer, machine(target(kind))):
            yield from dict.fromkeys((choice[0], choice[-1]))


def only(template: str, layer: Conv, processor: Machine) -> list[templates.Choice]:
    """List the choices of one template."""
    # Without Winograd's template its variants are left out, too; it computes none of their layers.
    others = frozenset(templates.NAMES) - {template, "winograd" if template.endswith("winograd") else template}
    return [candidate.choice for candidate in templates.candidates(layer, processor, without=others)]


@pytest.fixture(scope="module")
def session(kind, tmp_path_factory):
    """A session with a board server for the board's machine, under qemu-user."""
    emulated = MACHINES[kind.machine]
    with serving(built(emulated), tmp_path_factory.mktemp("server"), emulator=emulated.emulator) as server:
        opened = server.connect()
        yield opened
        close(opened)


@pytest.fixture(scope="module")
def loaded(kind, session, tmp_path_factory):
    """The kernels of all layers, in one library on the board: name of the layer to choices, and the library."""
    cpu, functions, names = machine(target(kind)), {}, {}
    for name, layer in LAYERS.items():
        for choice in choices(layer, kind):
            function = f"kernel{len(functions)}"
            functions[function] = templates.kernel(layer, cpu, choice).with_attr("global_symbol", function)
            names.setdefault(name, []).append((choice, function))
    path = tmp_path_factory.mktemp("kernels") / "kernels.so"
    link = cc.cross_compiler(f"{kind.triple}-g++")
    tvm.compile(tvm.IRModule(functions), target=target(kind)).export_library(str(path), fcompile=link)
    session.upload(str(path))
    return names, session.load_module(path.name)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_matches_onnxruntime(name, kind, loaded, session):
    names, library = loaded
    layer, inputs, device = LAYERS[name], kernels.inputs_of(LAYERS[name]), session.cpu(0)
    expected = kernels.expected(layer, inputs)
    for choice, function in names[name]:
        template = templates._TEMPLATES[choice.template]
        arguments = kernels.arguments(template, layer, machine(target(kind)), choice.config, inputs)
        out = tvm.runtime.tensor(np.full(layer.out.shape, np.nan, np.float32), device)
        library[function](*(tvm.runtime.tensor(array, device) for array in arguments), out)
        got = kernels.unblocked(out.numpy(), layer.out)
        np.testing.assert_allclose(got, expected, rtol=5e-5, atol=5e-5, err_msg=str(choice))


@pytest.mark.parametrize("kind", ["rpi4"], indirect=True)
def test_layers_in_half_precision_match_onnxruntime(kind, session, tmp_path):
    """The emulator has more instructions than that board: code for a newer one runs in it, too."""
    newer = backend_of(board.load("rpi5").resolved().with_precision(float16=True))
    functions, calls = {}, []
    for layer in LAYERS.values():
        wide = in_float16(replace(layer, data=wider(layer.data), out=wider(layer.out), epilogue=layer.epilogue[-1:]))
        for template in ("float16", "float16_depthwise", "float16_winograd"):
            for choice in only(template, wide, newer.machine)[:1]:
                name = f"kernel{len(functions)}"
                functions[name] = templates.kernel(wide, newer.machine, choice).with_attr("global_symbol", name)
                calls.append((name, wide, choice))
    path = tmp_path / "halves.so"
    link = cc.cross_compiler(f"{kind.triple}-g++")
    tvm.compile(tvm.IRModule(functions), target=newer.target).export_library(str(path), fcompile=link)
    session.upload(str(path))
    library, device = session.load_module(path.name), session.cpu(0)
    for name, layer, choice in calls:
        inputs = kernels.inputs_of(layer)
        arguments = kernels.arguments(
            templates._TEMPLATES[choice.template], layer, newer.machine, choice.config, inputs
        )
        arguments[0] = arguments[0].astype(layer.data.dtype)
        out = tvm.runtime.tensor(np.zeros(layer.out.shape, np.float16), device)
        library[name](*(tvm.runtime.tensor(array, device) for array in arguments), out)
        got, expected = kernels.unblocked(out.numpy(), layer.out), kernels.expected(layer, inputs)
        assert np.abs(got - expected).max() < 5e-3 * np.abs(expected).max(), (name, choice)
    assert {choice.template for _, _, choice in calls} == {"float16", "float16_depthwise", "float16_winograd"}


def wider(activation: Activation) -> Activation:
    """Return a tensor with blocks of eight channels, or plain as it is."""
    return replace(activation, lanes=8) if activation.lanes > 1 else activation


# --- networks, on virtual boards -------------------------------------------------------------------------------


class Net:
    """A network in the making; weights are drawn so that values neither grow nor vanish."""

    def __init__(self, *shape: int) -> None:
        self._shape = shape
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, np.ndarray] = {}
        self._random = np.random.default_rng(5)

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(self._nodes)}"
        self._nodes.append(node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, array: Any, dtype: str = "float32") -> str:
        name = f"w{len(self._weights)}"
        self._weights[name] = np.asarray(array, dtype)
        return name

    def weight(self, *shape: int) -> str:
        spread = np.sqrt(2 / max(1, np.prod(shape[1:])))
        return self.constant(self._random.standard_normal(shape) * spread)

    def conv(self, x: str, inputs: int, outputs: int, size: int, **attributes: Any) -> str:
        taps = self.weight(outputs, inputs // attributes.get("group", 1), size, size)
        return self.add("Conv", x, taps, self.weight(outputs), **attributes)

    def shaped(self, x: str, *shape: int) -> str:
        return self.add("Reshape", x, self.constant(shape, "int64"))

    def model(self, out: str, *shape: int) -> onnx.ModelProto:
        last = node("Identity", [out], ["y"])
        return nets.model([*self._nodes, last], [value("x", self._shape)], [value("y", shape)], self._weights)


def residual() -> onnx.ModelProto:
    """First layer, 3x3 layers with a residual sum, strides, all poolings, a dense layer, softmax."""
    net, ones = Net(1, 3, 33, 29), [1, 1, 1, 1]
    stem = net.add("Relu", net.conv("x", 3, 16, 7, strides=[2, 2], pads=[3, 3, 3, 3]))
    pooled = net.add("MaxPool", stem, kernel_shape=[3, 3], strides=[2, 2], pads=ones)
    inner = net.add("Relu", net.conv(pooled, 16, 16, 3, pads=ones))
    summed = net.add("Relu", net.add("Add", net.conv(inner, 16, 16, 3, pads=ones), pooled))
    narrow = net.add("Relu", net.conv(summed, 16, 24, 3, strides=[2, 2], pads=ones))
    halved = net.add("AveragePool", summed, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
    total = net.add("Add", narrow, net.conv(halved, 16, 24, 1))
    flat = net.add("Flatten", net.add("GlobalAveragePool", total))
    dense = net.add("Gemm", flat, net.weight(24, 11), net.weight(11))
    return net.model(net.add("Softmax", dense, axis=1), 1, 11)


def mobile() -> onnx.ModelProto:
    """Odd numbers of channels, depthwise and grouped layers, activations, a gate, joined and shuffled channels."""
    net, ones, two = Net(2, 3, 17, 20), [1, 1, 1, 1], [2, 2, 2, 2]
    stem = net.add("HardSwish", net.conv("x", 3, 10, 3, strides=[2, 2], pads=ones))
    wide = net.add("Clip", net.conv(stem, 10, 18, 1), net.constant(0.0), net.constant(6.0))
    deep = net.add("LeakyRelu", net.conv(wide, 18, 18, 3, pads=ones, group=18), alpha=0.1)
    gate = net.add("Sigmoid", net.conv(net.add("GlobalAveragePool", deep), 18, 18, 1))
    gated = net.conv(net.add("Mul", deep, gate), 18, 10, 1)
    joined = net.add("Concat", net.add("Add", gated, stem), stem, axis=1)
    grouped = net.add("Tanh", net.conv(joined, 20, 12, 3, pads=two, dilations=[2, 2], group=2))
    transposed = net.add("Transpose", net.shaped(grouped, 2, 2, 6, 9, 10), perm=[0, 2, 1, 3, 4])
    last = net.conv(net.shaped(transposed, 2, 12, 9, 10), 12, 7, 5, pads=two)
    return net.model(net.add("ReduceMean", last, axes=[2, 3], keepdims=0), 2, 7)


@pytest.mark.parametrize(
    ("kind", "net"),
    [("rpi4", residual), nightly.left("rpi4", mobile), *(nightly.left("pynq", net) for net in (residual, mobile))],
    indirect=["kind"],
)
def test_a_network_matches_onnxruntime_on_a_virtual_board(net, kind, virtual_boards, tmp_path):
    path = nets.save(net(), tmp_path)
    outcome = toolchain("build", path, "--board", kind.name, "--toolchain", "host", "-o", tmp_path / "bundle")
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "bundle" / "graph.txt").read_text().count(LAYER) >= 8, "templates compute it"
    options = ["--board", kind.name, "--host", virtual_boards.name(kind.name), "--devices", virtual_boards.devices]
    outcome = toolchain("deploy", tmp_path / "bundle", *options, "--threads", 2, "--budget", 0, "--json", "-")
    assert outcome.code == 0, outcome.err
    report = json.loads(outcome.out)
    assert (report["outputs"]["ok"], report["emulated"]) == (True, True)
    assert report["outputs"]["max_rel_diff"] <= 1e-4


@pytest.mark.parametrize("kind", ["pynq", nightly.left("rpi4")], indirect=True)
def test_a_quantized_network_runs_in_int8_on_a_virtual_board(kind, virtual_boards, tmp_path):
    """Neither board has dot products."""
    path = nets.save(qdq_nets.quantized(residual(), tmp_path), tmp_path)
    outcome = toolchain("build", path, "--board", kind.name, "--toolchain", "host", "-o", tmp_path / "bundle")
    assert outcome.code == 0, outcome.err
    graph = (tmp_path / "bundle" / "graph.txt").read_text()
    assert graph.count("quantized_conv") >= 6
    assert '\\"kind\\":\\"conv' not in graph, "no convolution is left in floats"
    options = ["--board", kind.name, "--host", virtual_boards.name(kind.name), "--devices", virtual_boards.devices]
    outcome = toolchain("deploy", tmp_path / "bundle", *options, "--threads", 2, "--budget", 0, "--json", "-")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["outputs"]["ok"]


# --- the code --------------------------------------------------------------------------------------------------

CODE = """
	b	.LBB0_3
.LBB0_1:
	ldp	q0, q1, [x1], #32
.LBB0_2:
	ldr	q2, [sp, #16]
	fmla	v4.4s, v0.4s, v2.s[1]
	fmla	v5.4s, v1.4s, v2.4s
	subs	x3, x3, #1
	b.ne	.LBB0_2
	str	q4, [x2], #16
	cbnz	x4, .LBB0_1
.LBB0_3:
	cbz	x5, .LBB0_1
	ret
"""

CODE_OF_32_BITS = """
.LBB1_1:
	add	lr, sp, #48
	vld1.32	{d0, d1}, [r1:128]!
	vldmia	lr, {d16, d17}
	vmla.f32	q8, q4, d0[1]
	ldr	lr, [sp, #4]
	vst1.32	{d16, d17}, [lr]
	vmul.f32	q9, q4, q5
	blo	.LBB1_1
"""


def test_loops_are_counted():
    inner, *others = _arm_code.product_loops(CODE)
    assert inner == _arm_code.Loop(instructions=5, multiply_adds=2, by_element=1, loads=1, spills=1)
    assert (others, inner.share) == ([], 2 / 5)
    (loop,) = _arm_code.product_loops(CODE_OF_32_BITS)
    expected = {"multiply_adds": 1, "by_element": 1, "multiplies": 1, "loads": 3, "stores": 1, "spills": 1}
    assert loop == _arm_code.Loop(instructions=8, **expected)


LOOPS = {
    "pointwise": (layer_of((1, 1024, 14, 14), 256, (1, 1), LANES), "direct", 0.75),
    "3x3": (layer_of((1, 512, 7, 7), 512, (3, 3), LANES, padding=(1, 1, 1, 1)), "direct", 0.75),
    "Winograd": (layer_of((1, 512, 7, 7), 512, (3, 3), LANES, padding=(1, 1, 1, 1)), "winograd", 0.75),
}


@pytest.mark.parametrize("name", LOOPS)
def test_inner_loops_are_products_by_element_without_spills(name):
    layer, template, minimum = LOOPS[name]
    choice = only(template, layer, machine(kernels.AARCH64))[0]
    function = templates.kernel(layer, machine(kernels.AARCH64), choice)
    loop, *_ = _arm_code.product_loops(kernels.assembly(function, kernels.AARCH64))
    assert loop.share >= minimum
    assert (loop.by_element, loop.spills) == (loop.multiply_adds, 0)


@pytest.mark.parametrize("name", LOOPS)
def test_inner_loops_in_half_precision_are_products_by_element_without_spills(name):
    newer = backend_of(board.load("rpi5").resolved().with_precision(float16=True))
    layer, template, minimum = LOOPS[name]
    half = in_float16(replace(layer, data=wider(layer.data), out=wider(layer.out)))
    choice = only("float16_winograd" if template == "winograd" else "float16", half, newer.machine)[0]
    function = templates.kernel(half, newer.machine, choice)
    loop = max(
        _arm_code.product_loops(kernels.assembly(function, newer.target)), key=lambda candidate: candidate.multiply_adds
    )
    assert loop.share >= minimum
    assert (loop.by_element, loop.spills) == (loop.multiply_adds, 0)


CORES = pytest.mark.parametrize("core", [kernels.AARCH64, kernels.ARMV7], ids=["64 bits", "32 bits"])
LONG = {
    "pointwise": (layer_of((1, 512, 14, 14), 512, (1, 1), LANES, epilogue=(PostOp("relu"),)), "direct"),
    "depthwise": (
        layer_of((1, 256, 28, 28), 256, (3, 3), LANES, padding=(1, 1, 1, 1), groups=256, epilogue=(PostOp("relu"),)),
        "depthwise",
    ),
}


@CORES
@pytest.mark.parametrize("name", LONG)
def test_inner_loops_multiply_and_add_in_one_instruction_and_keep_to_the_registers(name, core):
    layer, template = LONG[name]
    choice = only(template, layer, machine(core))[0]
    loops = _arm_code.product_loops(kernels.assembly(templates.kernel(layer, machine(core), choice), core))
    assert loops
    assert all((loop.multiplies, loop.spills) == (0, 0) and loop.multiply_adds for loop in loops)
