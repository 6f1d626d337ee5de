"""Attributes of random decision trees, as ai.onnx.ml writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
FEATURES = 4


def normal(draws: np.random.Generator) -> float:
    return float(np.float32(draws.standard_normal()))


def positive(draws: np.random.Generator) -> float:
    return float(np.float32(draws.uniform(0.02, 0.3)))


def forest(
    prefix: str,
    targets: Sequence[int],
    modes: Sequence[str] = ("BRANCH_LEQ",),
    weight: Callable[[np.random.Generator], float] = normal,
    *,
    depth: int = 3,
    missing: bool = False,
) -> dict[str, Any]:
    """Return five full trees of a depth, whose leaves have a weight for each of some targets.

    Args:
        prefix: `class` or `target`.
        targets: Which classes or targets have weights.
        modes: What nodes compare with.
        weight: Draws a weight.
        depth: Of each tree.
        missing: Whether NaN takes the true branch at some nodes.
    """
    draws = np.random.default_rng(len(targets))
    nodes: dict[str, list[Any]] = {f"nodes_{name}": [] for name in _NODES}
    leaves: dict[str, list[Any]] = {f"{prefix}_{name}": [] for name in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(5):
        for number in range(2 ** (depth + 1) - 1):
            is_leaf = number >= 2**depth - 1
            fields = (0, 0.0, "LEAF", 0, 0, 0) if is_leaf else _inner(draws, number, modes)
            for name, value in zip(nodes, (tree, number, *fields), strict=True):
                nodes[name].append(value)
            for target in targets if is_leaf else ():
                for name, value in zip(leaves, (tree, number, target, weight(draws)), strict=True):
                    leaves[name].append(value)
    if not missing:
        del nodes["nodes_missing_value_tracks_true"]
    return nodes | leaves


_NODES = (
    "treeids",
    "nodeids",
    "featureids",
    "values",
    "modes",
    "truenodeids",
    "falsenodeids",
    "missing_value_tracks_true",
)


def _inner(draws: np.random.Generator, number: int, modes: Sequence[str]) -> tuple[Any, ...]:
    feature, mode = int(draws.integers(FEATURES)), modes[int(draws.integers(len(modes)))]
    threshold = float(draws.integers(-1, 2)) / 2  # the rows have such values too: equality matters
    return feature, threshold, mode, 2 * number + 1, 2 * number + 2, int(draws.integers(2))


def rows(count: int = 9) -> np.ndarray:
    """Return rows of features that often equal a threshold, and some of which are missing."""
    draws = np.random.default_rng(1)
    values = np.round(draws.standard_normal((count, FEATURES)) * 2) / 2
    values[draws.random(values.shape) < 0.15] = np.nan
    return values.astype(np.float32)
