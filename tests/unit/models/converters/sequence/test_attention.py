"""Attention of the standard and of ONNX Runtime, compiled, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.one_node import One, agree
from toolchain.errors import InputError

_RNG = np.random.default_rng(7)
_BATCH, _HEADS, _LENGTH, _SIZE = 2, 3, 5, 16
_HIDDEN = _HEADS * _SIZE


def _numbers(*shape: int) -> Any:
    return _RNG.standard_normal(shape).astype(np.float32)


def _mine(operator: str, *inputs: Any, input_count: int, outputs: Any = (True,), **attributes: Any) -> One:
    return One(operator, inputs, attributes, input_count, outputs, "com.microsoft")


_ROWS = [_numbers(_BATCH, _LENGTH, _HIDDEN) for _ in range(3)]
_IN_HEADS = [_numbers(_BATCH, _HEADS, _LENGTH, _SIZE) for _ in range(3)]
_PAST = [_numbers(_BATCH, _HEADS, 4, _SIZE) for _ in range(2)]
_MASK = (_RNG.random((_BATCH, _LENGTH)) < 0.7).astype(np.int32) | np.eye(_BATCH, _LENGTH, dtype=np.int32)


def _attention(*more: Any, input_count: int = 3, outputs: Any = (True,), **attributes: Any) -> One:
    return One("Attention", [*_IN_HEADS, *more], attributes, input_count, outputs)


def test_masks_known_and_computed() -> None:
    allowed = _RNG.random((_LENGTH, _LENGTH)) < 0.6
    allowed[2] = False  # a query without a key
    numbers = _numbers(_BATCH, 1, _LENGTH, _LENGTH)
    agree(
        [
            _attention(mask, input_count=input_count, is_causal=causal)
            for mask in (allowed, numbers)
            for input_count in (3, 4)
            for causal in (0, 1)
        ],
        23,
    )


def test_scores_that_are_results() -> None:
    outputs = (True, False, False, True)
    agree(
        [_attention(outputs=outputs, softcap=0.7, qk_matmul_output_mode=mode, is_causal=1) for mode in (0, 3)],
        23,
    )


def test_a_past_and_shared_heads() -> None:
    q = _numbers(_BATCH, _LENGTH, 2 * _HIDDEN)
    heads = {"q_num_heads": 2 * _HEADS, "kv_num_heads": _HEADS}
    agree(
        [
            _attention(None, *_PAST, input_count=6, outputs=(True, True, True), is_causal=1),
            One("Attention", [q, *_ROWS[1:]], {**heads, "scale": 0.2}, 3),
        ],
        23,
    )


def test_the_attention_of_encoders() -> None:
    weights, bias = _numbers(_HIDDEN, 3 * _HIDDEN) / 4, _numbers(3 * _HIDDEN)
    lengths = np.array([3, 5], np.int32)
    square_mask = np.tile(_MASK[:, None, :], (1, _LENGTH, 1))
    extra = _numbers(_BATCH, _HEADS, _LENGTH, _LENGTH)
    past = np.stack(_PAST)
    two_outputs = (True, True)

    def one(*more: Any, **attributes: Any) -> One:
        return _mine("Attention", _ROWS[0], weights, bias, *more, input_count=1, num_heads=_HEADS, **attributes)

    agree(
        [
            one(),
            one(_MASK),
            one(lengths),
            one(square_mask, unidirectional=1),
            one(None, past, unidirectional=1, outputs=two_outputs),
            one(None, None, extra, scale=0.3),
            one(_MASK, mask_filter_value=-5.0),
        ]
    )


def test_the_attention_of_several_heads() -> None:
    bias, extra = _numbers(3 * _HIDDEN), _numbers(1, _HEADS, _LENGTH, _LENGTH)
    three = (True, True, True)

    def one(*inputs: Any, input_count: int, **attributes: Any) -> One:
        return _mine("MultiHeadAttention", *inputs, input_count=input_count, num_heads=_HEADS, **attributes)

    agree(
        [
            one(*_ROWS, input_count=3),
            one(*_ROWS, bias, _MASK, input_count=3),
            one(*_ROWS, None, None, extra, input_count=3, unidirectional=1),
            one(*_ROWS, None, None, None, *_PAST, input_count=8, outputs=three),
            one(_ROWS[0], *_IN_HEADS[1:], input_count=3),
        ]
    )


def test_the_attention_of_decoders() -> None:
    q = _numbers(_BATCH, _LENGTH, 2 * _HIDDEN)
    packed = _numbers(_BATCH, _LENGTH, 4 * _HIDDEN)
    last_indices = np.full(_BATCH, _LENGTH - 1, np.int32)
    total = np.array(_LENGTH, np.int32)
    angles = _numbers(16, _SIZE // 2)
    tables = [np.cos(angles), np.sin(angles)]
    three = (True, True, True)

    def one(*inputs: Any, input_count: int, **attributes: Any) -> One:
        heads = {"num_heads": 2 * _HEADS, "kv_num_heads": _HEADS}
        return _mine("GroupQueryAttention", *inputs, input_count=input_count, outputs=three, **heads, **attributes)

    agree(
        [
            one(q, *_ROWS[1:], None, None, last_indices, total, input_count=3),
            one(q, *_ROWS[1:], None, None, last_indices, total, input_count=3, local_window_size=2, softcap=2.0),
            one(packed, None, None, None, None, last_indices, total, *tables, input_count=1, do_rotary=1),
            one(
                q,
                *_ROWS[1:],
                None,
                None,
                last_indices,
                total,
                *tables,
                input_count=3,
                do_rotary=1,
                rotary_interleaved=1,
            ),
        ]
    )


def test_a_decoders_next_token() -> None:
    q, k, v = (_numbers(_BATCH, 1, _HIDDEN) for _ in range(3))
    valid, total = np.full(_BATCH, 4, np.int32), np.array(5, np.int32)
    node = _mine(
        "GroupQueryAttention",
        *(q, k, v, *_PAST, valid, total),
        input_count=5,
        outputs=(True, True, True),
        num_heads=_HEADS,
        kv_num_heads=_HEADS,
    )
    agree([node])


def test_a_past_of_unknown_length_is_refused() -> None:
    node = _mine(
        "GroupQueryAttention",
        *(*(_numbers(_BATCH, 1, _HIDDEN) for _ in range(3)), *_PAST, np.full(_BATCH, 4, np.int32)),
        np.array(5, np.int32),
        input_count=6,
        num_heads=_HEADS,
        kv_num_heads=_HEADS,
    )
    with pytest.raises(InputError, match="GroupQueryAttention node 'n0' cannot be compiled") as caught:
        agree([node])
    assert "how much of the past is valid" in caught.value.details
