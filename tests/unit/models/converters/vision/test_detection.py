"""NonMaxSuppression against ONNX Runtime: at the end of a network it has room for all that can remain."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.one_node import One, agree
from toolchain.errors import InputError

_RANDOM = np.random.default_rng(0)
_BOXES, _SCORES = (_RANDOM.random(shape).astype(np.float32) for shape in ((2, 40, 4), (2, 3, 40)))


def _node(max_boxes: int, overlap: float, *score: float, by_centre: int = 0) -> One:
    numbers = [np.array([max_boxes], np.int64), *(np.array([number], np.float32) for number in (overlap, *score))]
    return One("NonMaxSuppression", [_BOXES, _SCORES, *numbers], {"center_point_box": by_centre}, given=2)


def test_boxes_remain() -> None:
    agree([_node(10, 0.3, 0.4), _node(100, 0.5), _node(5, 0.2, 0.2, by_centre=1)])


def test_one_box_at_a_fixed_place_is_refused() -> None:
    import onnx
    from onnx import helper

    from tests.support.one_node import model
    from tests.support.operator_cases import Case, computed

    proto, values = model([_node(10, 0.3)], 18)
    proto.graph.initializer.append(helper.make_tensor("first", onnx.TensorProto.INT64, [], [0]))
    proto.graph.node.append(helper.make_node("Gather", [proto.graph.output[0].name, "first"], ["z"]))
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("z", onnx.TensorProto.INT64, None))
    with pytest.raises(InputError, match="NonMaxSuppression"):
        computed(Case("nodes", proto, values, (), 0, 0))
