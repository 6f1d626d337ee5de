"""Between numbers and bytes, bit for bit as ONNX Runtime has it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.support import nets
from tests.support.nets import node, value
from tests.support.one_node import One, agree
from toolchain.errors import InputError
from toolchain.models import importer, source

HALVES = np.array([-0.5, 0.5, 1.5, 2.5, -1.5, 3.4e38, -3.4e38, np.inf, -np.inf, 1e9, 0, 127.5], np.float32)
TYPES = ("int8", "uint8", "int16", "uint16")


def numbers(*shape, seed=0, dtype="float32"):
    return np.asarray(np.random.default_rng(seed).standard_normal(shape) * 30, dtype)


def whole(*shape, dtype="uint8", seed=0):
    limits = np.iinfo(dtype)
    return np.asarray(np.random.default_rng(seed).integers(limits.min, limits.max, shape, dtype, endpoint=True))


def scales(*shape, seed=1, dtype="float32"):
    return np.asarray(np.random.default_rng(seed).uniform(0.01, 2, shape), dtype)


def test_halves_are_rounded_to_even_and_limited():
    unit = np.array(1, "float32")
    agree([One("QuantizeLinear", [HALVES, unit, np.array(3, kind)], given=1) for kind in TYPES], 21, rtol=0, atol=0)


@pytest.mark.parametrize("input_count", [1, 3])
def test_quantize_one_scale_each_channel_and_blocks(input_count):
    tables = [
        One("QuantizeLinear", [numbers(3, 4), np.array(0.37, "float32"), np.array(7, "uint8")], given=input_count),
        One("QuantizeLinear", [numbers(3, 4), scales(1), whole(1, dtype="int8")], given=input_count),
        One("QuantizeLinear", [numbers(), scales(), whole(dtype="int8")], given=input_count),
        One("QuantizeLinear", [numbers(2, 5, 3), scales(5), whole(5)], given=input_count),
        One("QuantizeLinear", [numbers(2, 5, 3), scales(3), whole(3, dtype="int16")], {"axis": -1}, given=input_count),
        One("QuantizeLinear", [numbers(2, 5, 3), scales(2), whole(2, dtype="uint16")], {"axis": 0}, given=input_count),
        One("QuantizeLinear", [numbers(2, 6), scales(2, 3), whole(2, 3)], {"block_size": 2}, given=input_count),
        One(
            "QuantizeLinear",
            [numbers(5, 2), scales(2, 2), whole(2, 2)],
            {"block_size": 3, "axis": 0},
            given=input_count,
        ),
        One(
            "QuantizeLinear",
            [numbers(3, 4, dtype="float16"), np.array(0.37, "float16"), np.array(7, "uint8")],
            given=input_count,
        ),
        One("QuantizeLinear", [numbers(3, 4), scales()], given=min(input_count, 2)),
    ]
    agree(tables, 21, rtol=0, atol=0)


@pytest.mark.parametrize("input_count", [1, 3])
def test_dequantize_each_type_and_kind_of_grid(input_count):
    tables = [
        *(
            One("DequantizeLinear", [whole(3, 4, dtype=kind), scales(), whole(dtype=kind)], given=input_count)
            for kind in TYPES
        ),
        One("DequantizeLinear", [whole(3, 4, dtype="int32"), scales()], given=min(input_count, 2)),
        One("DequantizeLinear", [whole(), scales(), whole()], given=input_count),
        One("DequantizeLinear", [whole(2, 5, 3), scales(5), whole(5)], {"axis": -2}, given=input_count),
        One("DequantizeLinear", [whole(5), scales(5), whole(5)], {"axis": 0}, given=input_count),
        One("DequantizeLinear", [whole(2, 6), scales(2, 3), whole(2, 3)], {"block_size": 2}, given=input_count),
        One("DequantizeLinear", [whole(3, 4), scales(dtype="float16"), whole()], given=input_count),
    ]
    agree(tables, 21, rtol=1e-6, atol=2e-5)


@pytest.mark.parametrize("opset", [10, 13, 19])
def test_older_versions(opset):
    tables = [
        One("QuantizeLinear", [numbers(3, 4), np.array(0.37, "float32"), np.array(7, "uint8")]),
        One("DequantizeLinear", [whole(3, 4), np.array(0.37, "float32"), np.array(7, "uint8")]),
    ]
    agree(tables, opset, rtol=0, atol=0)


def test_a_grid_that_fits_its_numbers():
    fitted = (True, True, True)
    tables = [
        One("DynamicQuantizeLinear", [data.astype(np.float32)], outputs=fitted)
        for data in (numbers(7, 50), np.zeros(5), np.full((3, 3), 2.5), np.full(4, -2.5), np.array(1.5))
    ]
    agree(tables, 13, rtol=0, atol=0)


def test_a_type_without_a_kernel_is_named(tmp_path):
    proto = nets.model(
        [node("QuantizeLinear", ["x", "s"], ["y"], "narrow", output_dtype=TensorProto.INT4)],
        [value("x", (2, 3))],
        [onnx.helper.make_tensor_value_info("y", TensorProto.INT4, (2, 3))],
        {"s": np.array(1, "float32")},
        23,
    )
    with pytest.raises(InputError) as caught:
        importer.import_model(source.load(nets.save(proto, tmp_path)))
    assert "narrow" in f"{caught.value.message} {caught.value.details}"
    assert "int4" in str(caught.value.details)
