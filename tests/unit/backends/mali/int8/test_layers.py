"""Which layers of quantised networks compute on bytes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import nets, qdq_nets
from tests.support.nets import node
from toolchain import board
from toolchain.backends.mali.backend import Mali
from toolchain.models import importer, source

KIND = board.load("rk3588").resolved()


def lowered(proto, folder, kind=KIND) -> list[str]:
    """Return the names of a network's kernels."""
    module = Mali(kind).lower(importer.import_model(source.load(nets.save(proto, folder))).module)
    return [str(variable.name_hint) for variable in module.get_global_vars()]


def layers(proto, folder, **options) -> int:
    names = lowered(qdq_nets.quantized(proto, folder, **options), folder)
    return sum("conv2d_int8" in name for name in names)


@pytest.mark.parametrize("activation", ["int8", "uint8"])
def test_convolutions_and_dense_layers_are_on_bytes(activation, tmp_path):
    assert layers(qdq_nets.residual(), tmp_path, activation=activation) == 4


def test_layers_in_groups_and_half_precision_stay_on_floats(tmp_path):
    initializers = {"w": qdq_nets.weights(16, 4, 3, 3)}
    proto = qdq_nets.floating([node("Conv", ["x", "w"], ["y"], group=4)], (1, 16, 6, 6), initializers)
    assert layers(proto, tmp_path) == 0
    half = lowered(qdq_nets.quantized(qdq_nets.residual(), tmp_path), tmp_path, KIND.with_precision(float16=True))
    assert not [name for name in half if "int8" in name]


def test_channels_by_themselves_are_on_bytes(tmp_path):
    initializers = {"w": qdq_nets.weights(16, 1, 3, 3)}
    proto = qdq_nets.floating([node("Conv", ["x", "w"], ["y"], group=16)], (1, 16, 6, 6), initializers)
    names = lowered(qdq_nets.quantized(proto, tmp_path), tmp_path)
    assert [name for name in names if "depthwise_int8" in name] == ["depthwise_int8_requantized"]


def dense(folder, size, scale=1.0) -> list[str]:
    """Return the kernels of a dense layer whose bytes and weights are the farthest from their zeros."""
    initializers = {
        "scale": np.array(scale, np.float32),
        "zero": np.array(0, np.uint8),
        "w": np.full((size, 4), -128, np.int8),
        "none": np.array(0, np.int8),
    }
    nodes = [
        node("DequantizeLinear", ["x", "scale", "zero"], ["a"]),
        node("DequantizeLinear", ["w", "scale", "none"], ["b"]),
        node("MatMul", ["a", "b"], ["y"]),
    ]
    return lowered(
        nets.model(nodes, [nets.value("x", (1, size), "uint8")], [nets.value("y", (1, 4))], initializers), folder
    )


@pytest.mark.parametrize(
    ("size", "scale", "is_on_bytes"),
    [
        (65793, 1.0, True),  # 255 * 128 * 65793 is 2 ** 31 - 4,128 or so
        (65794, 1.0, False),
        (8, 1e-20, False),  # the product of both scales is no normal number of single precision
        (8, 1e-18, True),
        (8, 1e20, False),
    ],
)
def test_what_could_leave_int32_or_single_precision_stays_on_floats(size, scale, is_on_bytes, tmp_path):
    assert any("int8" in name for name in dense(tmp_path, size, scale)) == is_on_bytes


def test_a_network_on_floats_has_none(tmp_path):
    proto = qdq_nets.residual()
    assert not [
        name
        for name in lowered(
            nets.model(
                [*proto.graph.node],
                [*proto.graph.input],
                [nets.value("y", (1, 10))],
                {initializer.name: nets_array(initializer) for initializer in proto.graph.initializer},
            ),
            tmp_path,
        )
        if "int8" in name
    ]


def nets_array(tensor):
    from onnx import numpy_helper

    return numpy_helper.to_array(tensor)
