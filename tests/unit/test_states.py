"""Pairs of an output and the input of the next step, and the sequences that they make."""

from __future__ import annotations

import numpy as np
import pytest

from toolchain import states
from toolchain.states import StatePair
from toolchain.tensors import Bound, TensorSpec

X, H, C = TensorSpec("x", (1, 2), "float32"), TensorSpec("h", (3,), "float32"), TensorSpec("c", (3,), "float32")
Y, HN, CN = TensorSpec("y", (4,), "float32"), TensorSpec("hn", (3,), "float32"), TensorSpec("cn", (3,), "float32")
PAIR = StatePair("h", "hn")


def test_a_step_has_the_other_tensors():
    assert states.of_step((X, H), ["h"]) == (X,)
    assert states.stacked((X,), 5) == (TensorSpec("x", (5, 1, 2), "float32"),)
    assert states.stacked((X,), 0) == (X,)
    assert not states.faults((X, H), (Y, HN), [PAIR])
    assert not states.faults((X,), (), [])


@pytest.mark.parametrize(
    ("inputs", "outputs", "pairs", "fault"),
    [
        ((X, H), (Y, HN), [StatePair("g", "hn")], "there is no input g; inputs: x, h"),
        ((X, H), (Y, HN), [StatePair("h", "gn")], "there is no output gn; outputs: y, hn"),
        ((X, H), (Y, HN), [StatePair("h", "y")], "h=y: the input is h 3 float32, but the output is y 4 float32"),
        ((X, TensorSpec("h", (3,), "float16")), (Y, HN), [PAIR], "the input is h 3 float16"),
        ((X, H, C), (Y, HN), [PAIR, StatePair("c", "hn")], "output hn is in two states"),
        ((X, H), (Y, HN, CN), [PAIR, StatePair("h", "cn")], "input h is in two states"),
        ((H,), (Y, HN), [PAIR], "no input is left"),
        ((X, H), (HN,), [PAIR], "no output is left"),
        ((X, H), (TensorSpec("y", (4,), "float32", Bound(0, "n")), HN), [PAIR], "the size of output y depends"),
    ],
)
def test_pairs_that_are_no_state(inputs, outputs, pairs, fault):
    assert any(fault in text for text in states.faults(inputs, outputs, pairs))


def test_a_sequence_begins_with_zeros_and_feeds_the_state_back():
    def call(arrays):
        total = arrays["h"] + arrays["x"].sum()
        return {"y": total * 2, "hn": total}

    run = states.sequence(call, (X, H), [PAIR])
    assert states.count_steps({"x": np.ones((4, 1, 2))}) == 4
    assert states.count_steps({"x": np.ones(())}) == 0
    for _ in range(2):
        outputs = run({"x": np.ones((4, 1, 2), np.float32)})
        assert set(outputs) == {"y"}
        np.testing.assert_array_equal(outputs["y"][:, 0], [4, 8, 12, 16])
