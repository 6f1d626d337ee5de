"""The steps of a model with a state: raw numbers from a file or a pipe, and arrays."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest

from toolchain.errors import InputError
from toolchain.models import inputs, stream
from toolchain.tensors import TensorSpec

X, G = TensorSpec("x", (1, 3), "float32"), TensorSpec("gain", (), "float32")
P = TensorSpec("position", (1,), "int64")
DATA = np.arange(20, dtype=np.float32).reshape(5, 4)


def raw(folder: Path, data: bytes = DATA.tobytes()) -> Path:
    (folder / "x.raw").write_bytes(data)
    return folder / "x.raw"


def test_raw_numbers_are_the_inputs_of_one_step_after_the_other(tmp_path):
    series = stream.read(raw(tmp_path), [X, G])
    samples = series.take(range(1, 4))
    assert (series.count, series.single) == (5, False)
    np.testing.assert_array_equal(samples["x"], DATA[1:4, None, :3])
    np.testing.assert_array_equal(samples["gain"], DATA[1:4, 3])
    assert stream.read(raw(tmp_path), [X, G], 2).count == 2


def test_a_pipe_is_read_to_its_end(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(DATA.tobytes())))
    np.testing.assert_array_equal(stream.read(stream.STANDARD_INPUT, [X, G]).take(range(5))["gain"], DATA[:, 3])


def test_arrays_have_an_axis_of_steps(tmp_path):
    np.savez(tmp_path / "x.npz", x=DATA[:, None, :3], position=np.arange(5).reshape(5, 1))
    series = stream.read(tmp_path / "x.npz", [X, P], 4)
    assert series.count == 4
    np.testing.assert_array_equal(series.take(range(3, 4))["position"], [[3]])


def test_an_input_is_repeated(tmp_path):
    np.savez(tmp_path / "x.npz", x=DATA[:1, :3])
    series = stream.repeat(tmp_path / "x.npz", [X], 100)
    assert series.count == 100
    np.testing.assert_array_equal(series.take(range(97, 99))["x"], np.stack([DATA[:1, :3]] * 2))


@pytest.mark.parametrize(
    ("data", "specs", "steps", "message"),
    [
        (DATA.tobytes()[:-1], [X, G], 0, "x.raw ends within a step: 79 bytes, but a step has 16"),
        (DATA.tobytes()[:-4], [X, G], 0, "ends within a step"),
        (DATA.tobytes(), [X, G], 6, "has 5 steps, fewer than --steps 6"),
        (b"", [X], 0, "x.raw has no steps"),
        (DATA.tobytes(), [X, P], 0, "float32 numbers, but the model has the input position 1 int64"),
    ],
)
def test_a_stream_that_does_not_fit_is_refused(data, specs, steps, message, tmp_path):
    with pytest.raises(InputError, match=message):
        stream.read(raw(tmp_path, data), specs, steps)


@pytest.mark.parametrize(
    ("arrays", "details"),
    [
        ({"x": DATA[:, None, :2]}, "x: has"),
        ({"x": DATA[:, None, :3], "h": np.zeros((5, 3), np.float32)}, "h: the model has no such input"),
        ({"x": np.float32(1)}, "an axis of steps is missing"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays, details, tmp_path):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(InputError, match="do not fit the steps of the model") as caught:
        stream.read(tmp_path / "x.npz", [X])
    assert details in caught.value.details


def test_a_stream_beyond_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "available_bytes", lambda: 100)
    with pytest.raises(InputError, match="all that fits into this machine"):
        stream.read(raw(tmp_path), [X, G])
