"""Common faults are named by what a device computes; others are not."""

from __future__ import annotations

import numpy as np
import pytest

from toolchain.pipeline.evaluate.causes import Case, name_cause

STREAM = np.random.default_rng(0)
FILTERS = STREAM.normal(size=(6, 3, 8, 8))
PICTURES = [STREAM.normal(size=(1, 3, 8, 8)).astype(np.float32) for _ in range(4)]


def network(inputs):
    """Compute a layer with an activation that is not linear."""
    return {"y": np.tanh(np.tensordot(inputs["x"], FILTERS, ([1, 2, 3], [1, 2, 3])) / 8)}


def cause(change=lambda x: x, result=lambda y: y):
    return name_cause(
        network,
        [Case({"x": picture}, {"y": result(network({"x": change(picture)})["y"])}) for picture in PICTURES],
    )


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda x: x.reshape(1, 8, 8, 3).transpose(0, 3, 1, 2), "is read with the channels last"),
        (lambda x: x.transpose(0, 2, 3, 1).reshape(1, 3, 8, 8), "is stored with the channels last"),
        (lambda x: x[:, ::-1], "red and blue are exchanged"),
        (lambda x: x.transpose(0, 1, 3, 2), "rows and columns exchanged"),
        (lambda x: 0.229 * x + 0.485, "multiplied by 0.229 and 0.485 is added: a wrong mean or scale"),
        (lambda x: x + 0.5, "a wrong mean or scale"),
    ],
)
def test_a_fault_of_the_input(change, fault):
    assert fault in cause(change)


def test_a_range_that_is_too_small():
    assert "saturation" in cause(result=lambda y: np.clip(y, -0.3, 0.3))


@pytest.mark.parametrize(
    "result", [lambda y: y, lambda y: y + 1e-5, lambda y: y[:, ::-1], lambda y: y + np.sin(9 * y), lambda y: y * np.nan]
)
def test_what_no_fault_explains_is_not_named(result):
    assert cause(result=result) == ""
    assert name_cause(network, []) == ""
