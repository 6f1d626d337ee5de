"""Resize and Upsample against ONNX Runtime."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.support.one_node import One, agree, model
from toolchain.errors import InputError
from toolchain.models import importer, source

_IMAGE = np.random.default_rng(0).standard_normal((1, 3, 7, 9)).astype(np.float32)
_COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
_SCALES = ((2, 2), (0.61, 0.5), (1.3, 2.7), (0.33, 1))


def _resize(data: Any, scales: Any = None, sizes: Any = None, roi: Any = None, **attributes: Any) -> One:
    numbers = None if scales is None else np.asarray(scales, np.float32)
    lengths = None if sizes is None else np.asarray(sizes, np.int64)
    edges = None if roi is None else np.asarray(roi, np.float32)
    return One("Resize", [data, edges, numbers, *([] if sizes is None else [lengths])], attributes)


@pytest.mark.parametrize("scales", _SCALES)
def test_nearest_rounds_as_asked(scales: tuple[float, float]) -> None:
    roundings = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    agree(
        [
            _resize(_IMAGE, (1, 1, *scales), nearest_mode=rounding, coordinate_transformation_mode=how)
            for how, rounding in itertools.product(_COORDINATES, roundings)
        ],
        19,
    )


@pytest.mark.parametrize("scales", _SCALES)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_weights_are_those_of_the_coordinates(mode: str, scales: tuple[float, float]) -> None:
    agree(
        [
            _resize(_IMAGE, (1, 1, *scales), mode=mode, coordinate_transformation_mode=how, **more)
            for how in _COORDINATES
            for more in ({}, {"antialias": 1}, {"exclude_outside": 1, "cubic_coeff_a": -0.5})
            if mode == "cubic" or "exclude_outside" not in more
        ],
        19,
    )


@pytest.mark.parametrize("rank", [1, 2, 3, 5])
def test_other_ranks(rank: int) -> None:
    shape = (2, 3, 4, 5, 6)[-rank:]
    data = np.random.default_rng(rank).standard_normal(shape).astype(np.float32)
    ends = (1.5, 2.25, 0.75)[: max(1, rank - 2)]
    scales = (1,) * (rank - len(ends)) + ends
    modes = ("nearest", "linear") if rank > 1 else ("nearest",)
    agree([_resize(data, scales, mode=mode) for mode in modes], 18)


def test_axes_and_policies() -> None:
    agree(
        [
            _resize(_IMAGE, sizes=(5, 12), axes=[2, 3], keep_aspect_ratio_policy=policy, mode=mode)
            for policy in ("stretch", "not_larger", "not_smaller")
            for mode in ("nearest", "linear")
        ]
        + [_resize(_IMAGE, sizes=(13, 4), axes=[3, 2]), _resize(_IMAGE, scales=(2, 2), axes=[-2, -1], mode="linear")]
        + [_resize(_IMAGE.transpose(0, 2, 3, 1).copy(), (1, 2.5, 1.5, 1), mode=mode) for mode in ("nearest", "linear")],
        18,
    )


def test_a_crop_reaches_beyond_the_edges() -> None:
    roi = (0, 0, -0.2, 0.4, 1, 1, 0.6, 1.3)
    how = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.5}
    agree(
        [_resize(_IMAGE, sizes=(1, 3, 6, 8), roi=roi, mode=mode, **how) for mode in ("nearest", "linear", "cubic")]
        + [_resize(_IMAGE, sizes=(6, 8), roi=(-0.2, 0.4, 0.6, 1.3), axes=[2, 3], mode="linear", **how)],
        18,
    )


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "float16"])
def test_element_types(dtype: str) -> None:
    data = (np.random.default_rng(1).random((1, 2, 6, 5)) * 120).astype(dtype)
    modes = ["nearest"] if dtype == "float16" else ["nearest", "linear"]
    agree([_resize(data, (1, 1, 1.7, 0.8), mode=mode) for mode in modes], 18)


def test_before_opset_11_there_was_no_choice() -> None:
    larger, smaller = (1.0, 1.0, 2.0, 3.0), (1.0, 1.0, 0.61, 0.4)
    agree(
        [One("Resize", [_IMAGE, np.float32(scales)], {"mode": mode}) for mode, scales in _simple(larger, smaller)], 10
    )
    agree([One("Upsample", [_IMAGE, np.float32(scales)], {"mode": mode}) for mode, scales in _simple(larger)], 9)
    agree([One("Upsample", [_IMAGE], {"mode": mode, "scales": scales}) for mode, scales in _simple(larger)], 7)


def _simple(*scales: tuple[float, ...]) -> list[tuple[str, tuple[float, ...]]]:
    return [*itertools.product(("nearest", "linear"), scales), ("nearest", (2.0, 1.0, 1.4, 2.5))]


@pytest.mark.parametrize("opset", [11, 13])
def test_older_opsets(opset: int) -> None:
    nothing = np.zeros(0, np.float32)
    agree([_resize(_IMAGE, (1, 1, 1.5, 2), roi=nothing, mode=mode) for mode in ("nearest", "linear", "cubic")], opset)
    if opset == 11:
        how = "tf_half_pixel_for_nn"
        agree([_resize(_IMAGE, (1, 1, 1.5, 2), roi=nothing, coordinate_transformation_mode=how)], opset)


def test_scales_that_the_network_computes_are_refused(tmp_path: Any) -> None:
    import onnx

    proto, _ = model([One("Resize", [_IMAGE, None, np.ones(4, np.float32)], given=3)], 18)
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    onnx.save(proto, tmp_path / "model.onnx")
    with pytest.raises(InputError, match="Resize node 'n0'"):
        importer.import_model(source.load(str(tmp_path / "model.onnx")))


def test_positions_half_way_between_two_elements() -> None:
    row = np.arange(5, dtype=np.float32).reshape(1, 1, 1, 5)
    how = {"coordinate_transformation_mode": "half_pixel_symmetric", "nearest_mode": "floor"}
    agree([_resize(row, (1, 1, 1, scale), **how) for scale in (1.5, 1.3, 2.3, 0.7)], opset=19)
    agree([_resize(row, (1, 1, 1, scale), **how | {"nearest_mode": "ceil"}) for scale in (2.5, 0.6)], opset=19)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_a_scale_that_changes_no_length_moves_nothing(mode: str) -> None:
    row = np.random.default_rng(0).standard_normal((1, 2, 1, 4)).astype(np.float32)
    agree([_resize(row, (1, 1, 1, 1.2), mode=mode), _resize(row, (1, 1, 1.5, 1.2), mode=mode)], opset=19)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_corners_of_an_axis_of_one(mode: str) -> None:
    row = np.random.default_rng(0).standard_normal((1, 5, 1, 11)).astype(np.float32)
    how = {"coordinate_transformation_mode": "align_corners", "mode": mode}
    agree([_resize(row, sizes=sizes, **how) for sizes in ((1, 5, 1, 22), (1, 5, 3, 22), (1, 5, 1, 5))], opset=19)
