"""A model that cannot be held in memory is refused before a byte of its tensors is asked for."""

from __future__ import annotations

import resource

import numpy as np
import pytest

from tests.support import nets
from tests.support.commands import toolchain
from toolchain.errors import InputError
from toolchain.models import inputs
from toolchain.models import source as model

OPEN = nets.relu(("rows", "columns"))
# A small input that a convolution makes a large output of.
WIDE = nets.model(
    [nets.node("Expand", ["x", "shape"], ["y"])],
    [nets.value("x", (1, 1))],
    [nets.value("y", (1 << 21, 1 << 21))],
    {"shape": np.array([1 << 21, 1 << 21])},
)


@pytest.fixture
def source(tmp_path):
    return nets.save(OPEN, tmp_path)


def test_what_a_run_needs_at_least():
    assert inputs.least_bytes(nets.relu((2, 3))) == 2 * (2 * 3 * 4)


def test_what_a_machine_has():
    assert 1 << 20 < inputs.available_bytes() < 1 << 50


def test_the_limit_of_a_process_counts():
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 40, before[1]))
    try:
        assert inputs.available_bytes() <= 1 << 40
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_an_input_that_is_too_large(source):
    inputs.check_memory(model.load(source, {"x": (1 << 10, 3)}).proto)
    with pytest.raises(InputError, match=r"one run needs \d+\.\d GiB or more, but this machine has") as caught:
        inputs.check_memory(model.load(source, {"x": (1 << 30, 1 << 12)}).proto)
    assert "--shape" in caught.value.hint


def test_a_tensor_on_the_way_that_is_too_large():
    with pytest.raises(InputError, match=r"needs 16384\.0 GiB"):
        inputs.check_memory(WIDE)


def test_a_build_is_refused_before_the_inputs_are_drawn(source, tmp_path, monkeypatch):
    monkeypatch.setattr("toolchain.models.inputs.make", lambda *_: pytest.fail("drawn"))
    process = toolchain("build", source, "--shape", "x:2147483647,2147483647", "-o", tmp_path / "out")
    assert process.code == 2
    assert "GiB or more" in process.err


def test_a_size_that_no_tensor_can_have(source, tmp_path):
    process = toolchain("build", source, "--shape", f"x:{10**30},3", "-o", tmp_path / "out")
    assert process.code == 2
    assert "is not of the form NAME:1,3,224,224" in process.err
