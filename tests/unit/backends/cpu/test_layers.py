"""Descriptions of layers: shapes, work, their text in records, and what of them is tuned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from toolchain.backends.cpu.layers import (
    Activation,
    Conv,
    Dense,
    Map,
    Pool,
    PostOp,
    from_json,
    task_of,
    to_json,
)

IMAGE = Activation(1, 20, 6, 5, 8)
PART = Activation(1, 20, 6, 5, 8, first=1, held=7)
BYTES = replace(IMAGE, dtype="uint8")
CLIP, RELU, ADD = PostOp("clip", (0.0, 6.0)), PostOp("relu"), PostOp("add", other=PART)
LAYERS = [
    Conv(IMAGE, PART, (3, 3), padding=(1, 1, 1, 1), bias=True, epilogue=(ADD, CLIP)),
    Dense(2, 16, 10, bias=True, epilogue=(RELU,)),
    Pool(IMAGE, PART, "max", (2, 2), (2, 2)),
    Map(PART, IMAGE, (ADD, RELU), shuffle=4),
    Conv(BYTES, BYTES, (1, 1), epilogue=(PostOp("quantize"),)),
    Pool(BYTES, BYTES, "mean", (6, 5)),
    Map(BYTES, IMAGE),
    Conv(IMAGE, PART, (1, 1), bfloat16=True),
    Dense(2, 16, 10, bfloat16=True),
]


def test_a_blocked_tensor_has_room_for_whole_blocks():
    assert IMAGE.blocks == 3
    assert IMAGE.shape == (1, 3, 6, 5, 8)
    assert Activation(1, 20, 6, 5, 1).shape == (1, 20, 6, 5)


def test_a_part_of_a_buffer_has_the_buffers_shape():
    assert PART.is_slice
    assert PART.shape == (1, 7, 6, 5, 8)
    assert not IMAGE.is_slice
    assert PART.standalone() == IMAGE


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_a_layer_comes_back_from_its_text(layer):
    assert from_json(to_json(layer)) == layer


def test_the_text_of_a_layer_is_what_records_of_earlier_versions_hold():
    assert to_json(Dense(1, 2, 3)) == '{"bias":false,"inputs":2,"kind":"dense","outputs":3,"rows":1,"steps":[]}'
    activation = Activation(1, 8, 2, 2, 8, dtype="uint8")
    activation_text = '{"batch":1,"channels":8,"dtype":"uint8","first":0,"height":2,"held":0,"lanes":8,"width":2}'
    assert (
        to_json(Map(activation, activation))
        == f'{{"data":{activation_text},"kind":"quantized_map","out":{activation_text},"steps":[]}}'
    )


@pytest.mark.parametrize(
    ("layer", "flops"),
    [
        (Conv(IMAGE, IMAGE, (3, 3)), 2 * 20 * 6 * 5 * 20 * 9),
        (Conv(IMAGE, IMAGE, (3, 3), groups=20), 2 * 20 * 6 * 5 * 9),
        (Dense(2, 16, 10), 2 * 2 * 16 * 10),
        (Pool(IMAGE, IMAGE, "max", (2, 2)), 20 * 6 * 5 * 4),
        (Pool(BYTES, BYTES, "max", (2, 2)), 20 * 6 * 5 * 4),
        (Map(IMAGE, IMAGE, (ADD, RELU)), 2 * 20 * 6 * 5),
        (Map(BYTES, IMAGE, (RELU,)), 2 * 20 * 6 * 5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_work_of_a_layer(layer, flops):
    assert layer.flops == flops


def test_weights_before_packing():
    assert Conv(IMAGE, IMAGE, (3, 1), groups=4).weights_shape == (20, 5, 3, 1)
    assert Dense(2, 16, 10).weights_shape == (10, 16)
    assert Conv(IMAGE, IMAGE, (3, 3), groups=20).is_depthwise
    assert not Conv(IMAGE, IMAGE, (3, 3), groups=4).is_depthwise


def test_where_tensors_lie_is_not_tuned_and_neither_is_an_activation_function_after_products():
    task = task_of(LAYERS[0])
    assert task.out == IMAGE
    assert task.epilogue == (PostOp("add", other=IMAGE),)
    assert task_of(LAYERS[1]).epilogue == ()


def test_the_steps_of_a_map_are_its_work_and_stay():
    assert [op.kind for op in task_of(LAYERS[3]).epilogue] == ["add", "relu"]


def test_steps_with_an_argument():
    assert [PostOp(kind).takes_argument for kind in ("add", "mul", "scale", "shift", "relu", "quantize")] == [
        True
    ] * 4 + [False] * 2
