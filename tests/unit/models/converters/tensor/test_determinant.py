"""Det against ONNX Runtime."""

from __future__ import annotations

import numpy as np

from tests.support.one_node import One, agree


def test_determinants() -> None:
    random = np.random.default_rng(0)
    matrices = [random.standard_normal(shape).astype(np.float32) for shape in ((3, 3), (2, 3, 5, 5), (1, 1))]
    agree(
        [
            One("Det", [one])
            for one in (*matrices, np.zeros((3, 3), np.float32), np.eye(4, dtype=np.float32)[::-1].copy())
        ]
    )
