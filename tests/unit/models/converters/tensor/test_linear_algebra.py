"""Einsum and Det against ONNX Runtime."""

from __future__ import annotations

import numpy as np

from tests.support.one_node import One, agree

_EQUATIONS: list[tuple[str, list[tuple[int, ...]]]] = [
    ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
    ("bij,bjk", [(2, 3, 4), (2, 4, 5)]),
    ("...ij,...jk->...ik", [(1, 3, 4), (2, 4, 5)]),
    ("ij->ji", [(3, 4)]),
    ("ij->", [(3, 4)]),
    ("ii->i", [(4, 4)]),
    ("...ii->...i", [(2, 3, 3)]),
    ("i,j->ij", [(3,), (4,)]),
    ("i,i", [(5,), (5,)]),
    (" b i , b -> i ", [(3, 4), (3,)]),
    ("bhqd,bhkd->bhqk", [(1, 2, 3, 4), (1, 2, 5, 4)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]),
    ("bn,anm,bm->ba", [(2, 5), (3, 5, 4), (2, 4)]),
]


def test_equations() -> None:
    random = np.random.default_rng(0)
    cases = [
        (text, [random.standard_normal(sizes).astype(np.float32) for sizes in shapes]) for text, shapes in _EQUATIONS
    ]
    agree([One("Einsum", arrays, {"equation": text}, given=len(arrays)) for text, arrays in cases])


def test_determinants() -> None:
    random = np.random.default_rng(0)
    matrices = [random.standard_normal(shape).astype(np.float32) for shape in ((3, 3), (2, 3, 5, 5), (1, 1))]
    agree(
        [
            One("Det", [matrix])
            for matrix in (*matrices, np.zeros((3, 3), np.float32), np.eye(4, dtype=np.float32)[::-1].copy())
        ]
    )
