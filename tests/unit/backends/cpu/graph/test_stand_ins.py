"""Stand-ins for the kernels of layers, and those of recurrences."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.support import cpu_kernels
from tests.support.one_node import One, model
from toolchain import board
from toolchain.backends import backend_of
from toolchain.backends.base import EXACT, LAYER
from toolchain.backends.cpu.graph.stand_ins import StandIns, name
from toolchain.backends.cpu.layers import Activation, Conv, Dense, Map, Pool, from_json, task_of
from toolchain.models import importer, source

PLACE, PART, PLAIN = Activation(1, 16, 4, 4, 8), Activation(1, 16, 4, 4, 8, 1, 4), Activation(1, 16, 4, 4, 1)


def variable(*shape):
    return relax.Var("x", relax.TensorType(shape, "float32"))


def shapes(function):
    return [[int(size) for size in parameter.ty.shape] for parameter in function.params]


def test_one_stand_in_for_all_layers_that_are_the_same():
    builder = relax.BlockBuilder()
    kernels = StandIns(builder)
    inputs = [variable(*PLACE.shape)]
    first, second = (kernels.of(Map(PLACE, PLACE), inputs) for _ in range(2))
    other = kernels.of(Map(PLACE, PART), inputs)
    assert first.same_as(second)
    assert not first.same_as(other)
    assert len(builder.get().get_global_vars()) == 2


def test_a_stand_in_tells_its_layer_and_takes_its_arguments():
    builder = relax.BlockBuilder()
    layer = Conv(PLACE, PART, (3, 3), bias=True)
    weights = relax.const(np.zeros((16, 16, 3, 3), np.float32))
    actual = StandIns(builder).of(layer, [variable(*PLACE.shape), weights, variable(2, 8)])
    function = builder.get()[actual]
    assert from_json(str(function.attrs[EXACT])) == layer
    assert from_json(str(function.attrs[LAYER])) == task_of(layer)
    assert shapes(function) == [[1, 2, 4, 4, 8], [16, 16, 3, 3], [2, 8], [1, 4, 4, 4, 8]]


def test_the_result_of_a_dense_layer_is_rows():
    builder = relax.BlockBuilder()
    inputs = [variable(2, 3), variable(5, 3)]
    actual = StandIns(builder).of(Dense(2, 3, 5), inputs)
    assert shapes(builder.get()[actual])[-1] == [2, 5]


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (Conv(PLACE, PLACE, (3, 1)), "conv_3x1_kernel"),
        (Conv(PLACE, PLACE, (3, 3), groups=16), "depthwise_3x3_kernel"),
        (Pool(PLACE, PLACE, "max", (2, 2)), "max_pool"),
        (Pool(PLACE, PLACE, "mean", (2, 2)), "mean_pool"),
        (Map(PLAIN, PLACE), "to_blocks"),
        (Map(PLACE, PLAIN), "from_blocks"),
        (Map(PLACE, PLACE, shuffle=4), "shuffle"),
        (Map(PLACE, PART), "map"),
        (Dense(1, 2, 3), "dense"),
    ],
)
def test_names(layer, expected):
    assert name(layer) == expected


# --- recurrences -----------------------------------------------------------------------------------------------------


def lowered(tmp_path, inputs=1, without=(), dtype=np.float32):
    weights = [cpu_kernels.random(shape).astype(dtype) for shape in ((3, 1, 4), (1, 16, 4), (1, 16, 4))]
    proto, _ = model([One("LSTM", weights, {"hidden_size": 4}, inputs)], 14)
    path = tmp_path / "lstm.onnx"
    path.write_bytes(proto.SerializeToString())
    imported = importer.import_model(source.load(str(path)))
    module = backend_of(board.load("local").resolved(), without=without).lower(imported.module)
    return [str(item.attrs[LAYER]) for _, item in module.functions_items() if item.attrs and LAYER in item.attrs]


def test_a_recurrence_is_a_layer_that_can_be_tuned(tmp_path):
    assert any('"kind":"recurrence"' in layer for layer in lowered(tmp_path))


def test_what_the_template_does_not_compute_keeps_its_kernel(tmp_path):
    for more in ({"inputs": 3}, {"without": ("recurrent",)}, {"dtype": np.float64}):
        assert not any('"kind":"recurrence"' in layer for layer in lowered(tmp_path, **more))
