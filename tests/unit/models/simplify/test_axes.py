"""Axes that are a single number."""

from __future__ import annotations

import numpy as np

from tests.support import nets
from tests.support.nets import node, value
from tests.support.one_node import agree_model


def test_one_axis():
    nodes = [node("Unsqueeze", ["x", "axis"], ["y"])]
    proto = nets.model(nodes, [value("x", (3, 4))], [value("y", (1, 3, 4))], {"axis": np.array(0)}, 13)
    agree_model(proto, [np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)])
