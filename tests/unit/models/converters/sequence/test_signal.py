"""Fourier transforms and windows against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.one_node import One, agree

_RANDOM = np.random.default_rng(0)


def _array(*shape: int) -> Any:
    return _RANDOM.standard_normal(shape).astype(np.float32)


_ANY = One("Identity", [_array(1)])  # a model has an input


def _number(value: float, dtype: str = "int64") -> Any:
    return np.array(value, dtype)


@pytest.mark.parametrize("inverse", [0, 1])
def test_transforms(inverse: int) -> None:
    attributes = {"inverse": inverse}
    real, complex_ = _array(2, 15, 4, 1), _array(2, 15, 4, 2)
    lengths = [None, _number(12), _number(20)]
    agree(
        [One("DFT", [signal, length], attributes) for signal in (real, complex_) for length in lengths], 17, atol=1e-4
    )
    agree(
        [One("DFT", [signal, None, _number(axis)], attributes) for signal in (real, complex_) for axis in (1, -2)],
        20,
        atol=1e-4,
    )


def test_half_of_a_spectrum() -> None:
    agree([One("DFT", [_array(2, 15, 4, 1), length], {"onesided": 1}) for length in (None, _number(16))], 17)


def test_frames() -> None:
    signal, window = _array(2, 64, 1), np.hanning(16).astype(np.float32)
    agree(
        [
            One("STFT", [signal, _number(8), window], {"onesided": 1}),
            One("STFT", [signal, _number(8), window, _number(16)], {"onesided": 0}),
            One("STFT", [signal, _number(5), None, _number(12)], {"onesided": 1}),
            One("STFT", [_array(1, 64, 2), _number(8), window], {"onesided": 0}),
        ],
        17,
    )


@pytest.mark.parametrize("name", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_windows(name: str) -> None:
    agree([_ANY, *(One(name, [_number(9)], {"periodic": periodic}, given=0) for periodic in (0, 1))], 17)


def test_mel() -> None:
    numbers = [_number(40), _number(512), _number(16000), _number(20, "float32"), _number(7600, "float32")]
    agree([_ANY, One("MelWeightMatrix", numbers, given=0)], 17)
