"""Rotary embeddings of the standard and of ONNX Runtime, compiled, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.one_node import One, agree

_RNG = np.random.default_rng(9)


def _numbers(*shape: int) -> Any:
    return _RNG.standard_normal(shape).astype(np.float32)


_ROWS, _HEADS = _numbers(2, 5, 24), _numbers(2, 3, 5, 8)
_PLACES = _RNG.integers(0, 9, (2, 5))


@pytest.mark.long
def test_the_standards() -> None:
    nodes = []
    for pairs in (4, 2):
        more = {} if pairs == 4 else {"rotary_embedding_dim": 4}
        tables, each = [_numbers(9, pairs), _numbers(9, pairs)], [_numbers(2, 5, pairs), _numbers(2, 5, pairs)]
        for interleaved in (0, 1):
            attributes = {"interleaved": interleaved, **more}
            nodes += [
                One("RotaryEmbedding", [_HEADS, *tables, _PLACES], attributes),
                One("RotaryEmbedding", [_HEADS, *each], attributes, 3),
                One("RotaryEmbedding", [_ROWS, *tables, _PLACES], {**attributes, "num_heads": 3}, 4),
            ]
    agree(nodes, 23)


def test_onnx_runtimes() -> None:
    tables = [_numbers(9, 4), _numbers(9, 4)]
    nodes = [
        One("RotaryEmbedding", [data, positions, *tables], {"interleaved": interleaved}, 2, domain="com.microsoft")
        for data in (_ROWS, _HEADS)
        for positions in (_PLACES, np.array([3]))
        for interleaved in (0, 1)
    ]
    agree(nodes)
