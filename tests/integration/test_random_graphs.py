"""Random small graphs on tensors of any rank, whose sizes lie around the ends of vectors: as ONNX Runtime has them.

48 graphs by default, of which each kind of CPU has a half, and OpenCL, which is slow on a CPU, one in eight;
TOOLCHAIN_GRAPHS is how many, for each processor then.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from tests.support import nets, processors, random_graphs
from tests.support.processors import AVX2, AVX512, OPENCL

GRAPHS = int(os.environ.get("TOOLCHAIN_GRAPHS", "48"))
ALL = "TOOLCHAIN_GRAPHS" in os.environ
OPERATORS = 4
AT_ONCE = 25  # graphs of a network
LIMIT = 1e-3
"""Of the largest difference relative to the largest number of an output."""

SEEDS = {AVX512: range(0, GRAPHS, 1 if ALL else 2), AVX2: range(0 if ALL else 1, GRAPHS, 1 if ALL else 2)}
SEEDS[OPENCL] = range(0, GRAPHS, 1 if ALL else 8)

pytestmark = pytest.mark.timeout(24 * 3600 if ALL else 600)


def wrong(name, seeds, folder):
    """Return the seeds of the graphs that a processor computes wrong, or that cannot be built, and what is wrong."""
    proto = random_graphs.merged(random_graphs.build_any(seed, OPERATORS) for seed in seeds)
    feeds = inputs(proto)
    expected = nets.run(proto, feeds)
    try:
        outputs = processors.computed(name, proto, feeds, folder)
    except Exception as fault:  # noqa: BLE001 - whatever it is, the graph that it is about is looked for
        if len(seeds) == 1:
            return [(seeds[0], f"{type(fault).__name__}: {fault}")]
        return [fault for seed in seeds for fault in wrong(name, [seed], folder / str(seed))]
    numbers = [int(value.name[1:].partition("_")[0]) for value in proto.graph.output]
    gaps = map(processors.difference, outputs, expected)
    return [(seeds[number], gap) for number, gap in zip(numbers, gaps, strict=True) if gap > LIMIT]


def inputs(proto):
    stream = np.random.default_rng(0)
    shapes = {
        value.name: [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
        for value in proto.graph.input
    }
    return {name: stream.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("name", SEEDS)
def test_all_are_right(name, tmp_path):
    processors.require_one(name)
    seeds = list(SEEDS[name])
    chunks = [seeds[first : first + AT_ONCE] for first in range(0, len(seeds), AT_ONCE)]
    assert [fault for chunk in chunks for fault in wrong(name, chunk, tmp_path / str(chunk[0]))] == []
