"""What changes the places of elements, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support import nets
from tests.support.nets import node, value
from tests.support.one_node import One, agree, agree_model, refusal


def _array(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_space_and_depth() -> None:
    image = _array(1, 8, 2, 6)
    agree(
        [One("SpaceToDepth", [image], {"blocksize": 2})]
        + [One("DepthToSpace", [image], {"blocksize": 2, "mode": mode}) for mode in ("DCR", "CRD")]
    )


@pytest.mark.parametrize(("shape", "how"), [((9, 8, 3), {}), ((11, 2), {"axes": [1, 0]}), ((4, 5), {"axes": [-1, -2]})])
def test_the_middle(shape: tuple[int, ...], how: dict[str, Any]) -> None:
    agree([One("CenterCropPad", [_array(10, 7, 3), np.array(shape)], how)])


def test_a_single_part() -> None:
    agree(
        [
            One("Split", [_array(2, 3), np.array([3])], {"axis": 1}),
            One("Split", [_array(2, 7), np.array([3, 4])], {"axis": -1}, outputs=(True, True)),
            One("Split", [_array(6, 2)], outputs=(True, True, True)),
        ],
        opset=13,
    )


@pytest.mark.parametrize(
    ("node_case", "reason"),
    [
        (One("Split", [_array(2, 3), np.array([1])], {"axis": 1}), "splits 3 elements into 1 parts of [1]"),
        (One("Split", [_array(5, 2), np.array([3, 4])], outputs=(True, True)), "into 2 parts of [3, 4]"),
        (One("Tile", [_array(2, 3), np.array([2, -1])]), "repeats its input [2, -1] times"),
    ],
)
def test_sizes_that_cannot_be(node_case: One, reason: str) -> None:
    assert reason in refusal(node_case).details


def test_padding_with_a_computed_value() -> None:
    inputs = [value("x", (2, 2)), value("by", ())]
    pads = {"pads": np.array([1, 0, 2, 1])}
    proto = nets.model([node("Pad", ["x", "pads", "by"], ["y"])], inputs, [value("y", (5, 3))], pads)
    agree_model(proto, [_array(2, 2), np.array(7, np.float32)])


@pytest.fixture(params=["constant", "edge", "reflect", "wrap"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_crops_before_it_pads(mode: str) -> None:
    def pads(*amounts: int) -> One:
        return One("Pad", [_array(5, 6), np.array(amounts)], {"mode": mode})

    agree([pads(-1, 2, 2, -1), pads(1, 1, 1, 1), pads(0, -2, -1, -1)], opset=19)


def test_padding_along_named_axes(mode: str) -> None:
    agree([One("Pad", [_array(4, 5, 6), np.array([1, 2]), None, np.array([-2])], {"mode": mode})], opset=19)
