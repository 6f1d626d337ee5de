"""Sequences inside of a network, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.operator_cases import Case, computed
from toolchain.errors import InputError
from toolchain.models.ort import onnxruntime

_X = np.arange(35, dtype=np.float32).reshape(5, 7)


def _case(nodes: list[Any], constants: dict[str, Any]) -> Case:
    """Return a network from `x` to `y`."""
    initializers = [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in constants.items()]
    graph_input = helper.make_tensor_value_info("x", TensorProto.FLOAT, _X.shape)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(
        [helper.make_node(*node[:3], **node[3]) for node in nodes], "s", [graph_input], [result], initializers
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return Case("sequences", proto, [_X], [], 1e-6, 0.0)


def _agree(nodes: list[Any], **constants: Any) -> None:
    case = _case(nodes, constants)
    session = onnxruntime.InferenceSession(case.proto.SerializeToString(), providers=["CPUExecutionProvider"])
    [expected] = session.run(None, {"x": _X})
    np.testing.assert_array_equal(computed(case)[0], expected)


def _split(*inputs: str, **how: Any) -> tuple[Any, ...]:
    return ("SplitToSequence", ["x", *inputs], ["s"], how)


@pytest.mark.parametrize(("size", "position"), [(2, -1), ([1, 4], 1), (5, 0), (3, -2)])
def test_parts_of_any_size(size: Any, position: int) -> None:
    _agree([_split("size", axis=0), ("SequenceAt", ["s", "at"], ["y"], {})], size=size, at=position)


@pytest.mark.parametrize("keepdims", [0, 1])
def test_single_rows(keepdims: int) -> None:
    _agree([_split(axis=-1, keepdims=keepdims), ("SequenceAt", ["s", "at"], ["y"], {})], at=-3)


@pytest.mark.parametrize("position", [0, -1, 2, 3])
def test_a_tensor_more(position: int) -> None:
    put = ("SequenceInsert", ["s", "x", "at"], ["t"], {})
    _agree([_split("size"), put, ("ConcatFromSequence", ["t"], ["y"], {"axis": 0})], size=2, at=position)


def test_a_tensor_more_at_the_end_and_one_less() -> None:
    put = ("SequenceInsert", ["s", "x"], ["t"], {})
    less = ("SequenceErase", ["t", "at"], ["u"], {})
    _agree([_split("size"), put, less, ("ConcatFromSequence", ["u"], ["y"], {"axis": 0})], size=2, at=-3)


def test_a_new_axis_and_a_length() -> None:
    pile = ("SequenceConstruct", ["x", "x", "x"], ["s"], {})
    count = ("SequenceLength", ["s"], ["n"], {})
    joined = ("ConcatFromSequence", ["s"], ["z"], {"axis": -1, "new_axis": 1})
    _agree([pile, count, joined, ("Cast", ["n"], ["m"], {"to": 1}), ("Mul", ["z", "m"], ["y"], {})])


@pytest.mark.parametrize(
    ("nodes", "constants", "reason"),
    [
        (
            [_split("size", axis=0), ("SequenceAt", ["s", "at"], ["y"], {})],
            {"size": 2, "at": 3},
            "position 3 is outside",
        ),
        (
            [
                ("SequenceEmpty", [], ["s"], {}),
                ("SequenceErase", ["s"], ["t"], {}),
                ("SequenceInsert", ["t", "x"], ["u"], {}),
                ("ConcatFromSequence", ["u"], ["y"], {"axis": 0}),
            ],
            {},
            "position -1 is outside",
        ),
        ([_split("size", axis=2), ("SequenceAt", ["s", "at"], ["y"], {})], {"size": 2, "at": 0}, "splits axis 2"),
    ],
)
def test_what_cannot_be_is_refused(nodes: list[Any], constants: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError) as fault:
        computed(_case(nodes, constants))
    assert reason in f"{fault.value.message} {fault.value.details}"
