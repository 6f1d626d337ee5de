"""Every convolution of whole networks, bit for bit, in whatever order the stages get their turns.

Those of ResNet-18 at night; `make exact` tries more networks, with one slot and with two. Small networks with zero
points, as ONNX Runtime's quantizer makes them, are run as wholes: each int8 tensor is the one that it computes.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import onnx
import pytest
from tvm import tirx
from tvm.relax.frontend.onnx import from_onnx

from tests.support import nets, nightly, qdq_nets, vta_nets
from tests.support.nets import node
from tests.support.vta_layers import reference, tensors
from toolchain import board, quantize
from toolchain.backends.base import EXACT
from toolchain.backends.vta.codegen import kernels
from toolchain.backends.vta.codegen.layers import Conv2d
from toolchain.backends.vta.device.native import verify
from toolchain.backends.vta.device.simulator import Policy, Simulator
from toolchain.backends.vta.isa.config import DEFAULT
from toolchain.backends.vta.network.partition import partition
from toolchain.compile import prepare
from toolchain.compile.request import BuildRequest
from toolchain.models import importer, source
from toolchain.models.request import Model
from toolchain.quantize import Settings, samples

# A minute for the smallest one; in CI, test_vta_kernels.py has layers of these shapes.
ALL = os.environ.get("TOOLCHAIN_EXACT")
NETWORKS = ALL.split(",") if ALL else [nightly.left("resnet-18")]
KERNELS = {"resnet-18": 20, "resnet-34": 36, "resnet-50": 53, "mobilenet": 27}
"""How many convolutions VTA computes: all."""
RUNS = [*((policy, 0) for policy in Policy), (Policy.RANDOM, 1)]


def layers_of(network):
    """Return the convolutions of a network that VTA computes, in order."""
    kind = board.load("vta-sim").resolved()
    request = BuildRequest(Model(network), kind)
    quantized = prepare.quantize_if_needed(source.load(network), request).source
    module = partition(importer.import_model(quantized).module, DEFAULT).module
    kernels_by_name = {
        variable: Conv2d.from_json(str(function.attrs[EXACT]))
        for variable, function in module.functions_items()
        if isinstance(function, tirx.PrimFunc) and EXACT in (function.attrs or {})
    }
    values = [binding.value for block in module["main"].body.blocks for binding in block.bindings]
    return [kernels_by_name[value.args[0]] for value in values if len(getattr(value, "args", ())) and
            value.args[0] in kernels_by_name]  # fmt: skip


@pytest.mark.parametrize("network", NETWORKS)
def test_every_convolution_is_exact(network):
    layers = layers_of(network)
    assert len(layers) == KERNELS[network]
    simulator = Simulator()
    for number, layer in enumerate(dict.fromkeys(layers)):
        arguments = tensors(layer, number)
        expected = reference(layer, arguments)
        best = kernels.candidates(layer)[0]
        # Where two slots were best, there is room for one.
        for choice in dict.fromkeys((best, replace(best, oc_threads=1, h_threads=1))):
            stream = kernels.stream(layer, choice)
            verify(stream.encoded())
            for policy, seed in RUNS:
                arguments[-1][:] = 77
                simulator.run(stream, arguments, policy=policy, seed=seed)
                np.testing.assert_array_equal(arguments[-1], expected, err_msg=f"{layer} {choice} {policy}")


def mobile() -> onnx.ModelProto:
    """A network with what MobileNet has: a folded stem, channels by themselves, a concatenation, and SiLU's range."""
    constants = {
        "w0": qdq_nets.weights(16, 3, 3, 3, seed=1),
        "w1": qdq_nets.weights(16, 1, 3, 3, seed=2),
        "w2": qdq_nets.weights(32, 16, 1, 1, seed=3),
        "w3": qdq_nets.weights(24, 48, 3, 3, seed=4),
        "w4": qdq_nets.weights(10, 24, 1, 1, seed=5),
        "b": qdq_nets.random((24,), 6),
        "0": np.float32(0),
        "6": np.float32(6),
    }
    around = {"pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", ["x", "w0"], ["c0"], strides=[2, 2], **around),
        node("Clip", ["c0", "0", "6"], ["r0"]),
        node("Conv", ["r0", "w1"], ["c1"], group=16, **around),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2"], ["c2"]),
        node("Relu", ["c2"], ["r2"]),
        node("Concat", ["r1", "r2"], ["j"], axis=1),
        node("Conv", ["j", "w3", "b"], ["c3"], **around),
        node("Sigmoid", ["c3"], ["s"]),
        node("Mul", ["c3", "s"], ["m"]),
        node("Conv", ["m", "w4"], ["c4"]),
        node("GlobalAveragePool", ["c4"], ["y"]),
    ]
    return qdq_nets.floating(nodes, (1, 3, 16, 16), constants)


def with_bytes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a network with its int8 activations among its results."""
    edited = onnx.ModelProto()
    edited.CopyFrom(proto)
    names = [graph_node.output[0] for graph_node in edited.graph.node if graph_node.op_type == "QuantizeLinear"]
    edited.graph.output.extend(nets.value(name, None, "int8") for name in names)
    return onnx.shape_inference.infer_shapes(edited)


def simulated(layer: Conv2d, *arrays: np.ndarray) -> np.ndarray:
    """Return what the simulator makes of a layer."""
    stream = kernels.stream(layer, kernels.candidates(layer)[0])
    verify(stream.encoded())
    shape, dtype = layer.arguments()[-1]
    out = np.zeros(shape, dtype)
    Simulator().run(stream, [*map(np.ascontiguousarray, arrays), out])
    return out


@pytest.mark.parametrize("activation", ["uint8", "int8"])
@pytest.mark.parametrize("network", [qdq_nets.residual, mobile])
def test_networks_with_zero_points_are_onnx_runtimes_byte_for_byte(network, activation, tmp_path):
    options = {"ActivationSymmetric": False, "WeightSymmetric": True}
    float_model = source.load(
        nets.save(qdq_nets.quantized(network(), tmp_path, activation, extra_options=options), tmp_path, "own.onnx")
    )
    quantized_network = quantize.quantized(float_model, samples.random(float_model.inputs, 4), Settings(random=True))
    zeros = {zero for layer in quantized_network.layers for zero in (layer.input_zero, layer.output_zero)}
    assert -128 in zeros
    assert quantized_network.output_snr_db > 15
    proto = with_bytes(quantized_network.source.proto)
    split = partition(from_onnx(proto), DEFAULT)
    assert not split.refused
    layers = vta_nets.layers(split.module)
    assert len(layers) == len(quantized_network.layers)
    assert -128 in {layer.pad for layer in layers}
    for sample in samples.random(float_model.inputs, 2, 50):
        (data,) = sample.values()
        outputs, expected = vta_nets.run(split.module, data, simulated), vta_nets.reference(proto, data)
        for mine, its in zip(outputs[1:], expected[1:], strict=True):
            assert np.unique(its).size > 8
            np.testing.assert_array_equal(mine, its)
        np.testing.assert_allclose(outputs[0], expected[0], rtol=1e-5, atol=1e-5)
