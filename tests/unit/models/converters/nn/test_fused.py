"""Operators that ONNX Runtime's optimizer and exporters write, compiled, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.one_node import One, agree

_RNG = np.random.default_rng(5)
_SMALL = 1e-12


def _numbers(*shape: int) -> Any:
    return (_RNG.standard_normal(shape) * 0.5).astype(np.float32)


def _fused(operator: str, *inputs: Any, given: int = 1, outputs: Any = (True,), **attributes: Any) -> One:
    return One(operator, inputs, attributes, given, outputs, "com.microsoft")


_IMAGE, _ROWS, _OTHER = _numbers(1, 3, 7, 6), _numbers(2, 5, 16), _numbers(2, 5, 16)
_WEIGHTS, _BIAS, _LINE = _numbers(4, 3, 3, 3), _numbers(4), _numbers(16)


def test_activations() -> None:
    agree(
        [
            _fused("Gelu", _ROWS),
            _fused("FastGelu", _ROWS, _LINE),
            _fused("FastGelu", _ROWS),
            _fused("BiasGelu", _ROWS, _LINE),
            _fused("QuickGelu", _ROWS),
            _fused("QuickGelu", _ROWS, alpha=1.0),
        ]
    )


def test_convolutions_with_their_activation() -> None:
    agree(
        [
            _fused("FusedConv", _IMAGE, _WEIGHTS, _BIAS, activation="Relu", pads=[1, 1, 1, 1]),
            _fused("FusedConv", _IMAGE, _WEIGHTS, _BIAS, _numbers(1, 4, 5, 4), activation="Relu"),
            _fused("FusedConv", _IMAGE, _WEIGHTS, activation="Clip", activation_params=[-0.5, 0.7], strides=[2, 2]),
            _fused("FusedConv", _IMAGE, _WEIGHTS, activation="LeakyRelu", activation_params=[0.2]),
            _fused("FusedConv", _IMAGE, _WEIGHTS, activation="HardSigmoid", activation_params=[0.3, 0.4]),
            _fused("FusedConv", _IMAGE, _WEIGHTS, activation="Tanh"),
        ]
    )


def test_products_with_what_is_around_them() -> None:
    agree(
        [
            _fused("FusedGemm", _ROWS[0], _numbers(4, 16), _BIAS, transB=1, alpha=0.5, activation="Relu"),
            _fused("FusedGemm", _ROWS[0], _numbers(16, 4), _BIAS, activation="LeakyRelu", activation_alpha=0.3),
            _fused("FusedMatMul", _ROWS, _numbers(2, 7, 16), given=2, transB=1, alpha=0.125),
            _fused("FusedMatMul", _numbers(2, 16, 5), _numbers(2, 16, 7), given=2, transA=1),
            _fused(
                "FusedMatMul",
                _numbers(5, 2, 3, 16),
                _numbers(7, 2, 3, 16),
                given=2,
                transBatchA=1,
                transBatchB=1,
                transB=1,
            ),
        ]
    )


def test_normalizations_of_sums() -> None:
    last = (True, False, False, True)
    agree(
        [
            _fused("SkipLayerNormalization", _ROWS, _OTHER, _LINE, _LINE, given=2, epsilon=_SMALL),
            _fused("SkipLayerNormalization", _ROWS, _OTHER, _LINE, None, _LINE, given=2, outputs=last, epsilon=1e-5),
            _fused("SkipLayerNormalization", _ROWS, _OTHER[:1], _LINE, _LINE, given=2),
            _fused("SkipSimplifiedLayerNormalization", _ROWS, _OTHER, _LINE, given=2, outputs=last, epsilon=1e-6),
        ]
    )


def test_embeddings_of_an_encoder() -> None:
    ids = _RNG.integers(0, 9, (2, 5)).astype(np.int32)
    tokens, positions, segments = _numbers(9, 16), _numbers(5, 16), _numbers(2, 16)
    norm = (_LINE, _numbers(16))
    all_outputs = (True, True)
    agree(
        [
            _fused(
                "EmbedLayerNormalization",
                ids,
                ids % 2,
                tokens,
                positions,
                segments,
                *norm,
                given=2,
                outputs=(True, False),
            ),
            _fused(
                "EmbedLayerNormalization",
                ids,
                None,
                tokens,
                positions,
                None,
                *norm,
                (ids % 2).astype(np.int32),
                outputs=all_outputs,
            ),
            _fused(
                "EmbedLayerNormalization",
                ids,
                None,
                tokens,
                positions,
                None,
                *norm,
                None,
                ids % 5,
                outputs=(True, False),
            ),
        ]
    )


def test_what_the_standard_has_by_now() -> None:
    filler = np.array([0.5], np.float32)
    agree(
        [
            _fused("Pad", _ROWS, np.array([0, 1, 0, 0, 0, 2]), filler, mode="constant"),
            _fused("Trilu", _ROWS, np.array(1), upper=0),
            _fused("GridSample", _IMAGE, _numbers(1, 4, 5, 2), given=2, mode="bilinear"),
        ]
    )


def test_the_root_of_the_mean_square_over_any_axes() -> None:
    data = _numbers(2, 3, 4)
    agree(
        [
            One("RMSNormalization", [data, _numbers(*data.shape[axis:])], {"axis": axis, "epsilon": 1e-3})
            for axis in (0, 1, -2, -1)
        ],
        23,
    )
