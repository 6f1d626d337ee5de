"""Likely causes of a loss on the device: what ONNX Runtime computes if the input, or the output, has a common fault.

The device's outputs for a few samples are compared with those of the same model with each fault. A fault is named only
if it explains nearly all of the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from toolchain import interrupts
from toolchain.errors import InputError
from toolchain.tensors import Tensors

Call = Callable[[Tensors], Tensors]
"""Computes outputs by name, as ONNX Runtime does."""

Change = Callable[[NDArray[Any]], NDArray[Any]]

MOST_SAMPLES = 4
_LEAST_DIFFERENCE = 1e-3  # of the outputs' length: below, there is nothing to explain
_UNEXPLAINED = 0.1  # share of the difference that a named fault may leave
_LEAST_LENGTH = 1e-30  # of outputs: they may be zeros
_PICTURE = 4  # axes
_TRIALS = 80  # of a scale and an offset
_HOPELESS = 1e6  # instead of infinity, which no search gets away from


@dataclass(frozen=True)
class Case:
    """The inputs of a sample, and the outputs that the device computed."""

    inputs: Tensors
    outputs: Tensors


def name_cause(call: Call, cases: Sequence[Case]) -> str:
    """Return a sentence about the fault that explains what the device computes; empty if none does.

    Args:
        call: The model, as it should be computed.
        cases: At most `MOST_SAMPLES` samples.
    """
    exact = [call(case.inputs) for case in cases]
    actual = [case.outputs for case in cases]
    difference = _distance(exact, actual)
    if not _LEAST_DIFFERENCE < difference < np.inf:
        return ""
    if _distance([_clipped(*pair) for pair in zip(exact, actual, strict=True)], actual) < _UNEXPLAINED * difference:
        return "the device's outputs are those of the reference cut off at their largest or least value: saturation"
    names = [name for name, value in cases[0].inputs.items() if value.dtype.kind == "f"]
    if len(names) != 1:
        return ""

    def unexplained(change: Change) -> float:
        """Return the share of the difference that is left if the input is changed so."""
        interrupts.check()
        changed = [{**case.inputs, names[0]: _changed(case.inputs[names[0]], change)} for case in cases]
        try:
            return _distance([call(inputs) for inputs in changed], actual) / difference
        except InputError:  # the model refuses such inputs
            return np.inf

    return _fault_of_input(unexplained, is_picture=cases[0].inputs[names[0]].ndim == _PICTURE)


def _fault_of_input(unexplained: Callable[[Change], float], *, is_picture: bool) -> str:
    for text, change in _LAYOUTS.items() if is_picture else ():
        if unexplained(change) < _UNEXPLAINED:
            return f"the device computes what the reference does if the input {text}"
    fit = optimize.minimize(
        lambda pair: min(unexplained(lambda value: pair[0] * value + pair[1]), _HOPELESS),
        (1.0, 0.0),
        method="Nelder-Mead",
        options={"maxfev": _TRIALS, "initial_simplex": [(1.0, 0.0), (0.5, 0.0), (1.0, 0.5)]},
    )
    if fit.fun >= _UNEXPLAINED:
        return ""
    scale, offset = fit.x
    formula = f"multiplied by {scale:.3g} and {offset:.3g} is added"
    return f"the device computes what the reference does if the input is {formula}: a wrong mean or scale"


def _changed(value: NDArray[Any], change: Change) -> NDArray[Any]:
    return np.ascontiguousarray(change(value)).astype(value.dtype)


def _bytes_as_channels_last(value: NDArray[Any]) -> NDArray[Any]:
    batch, channels, height, width = value.shape
    return value.reshape(batch, height, width, channels).transpose(0, 3, 1, 2)


def _bytes_as_channels_first(value: NDArray[Any]) -> NDArray[Any]:
    return value.transpose(0, 2, 3, 1).reshape(value.shape)


_LAYOUTS: Mapping[str, Change] = {
    "is read with the channels last: a wrong layout": _bytes_as_channels_last,
    "is stored with the channels last, and read with the channels first: a wrong layout": _bytes_as_channels_first,
    "has its channels in reverse: red and blue are exchanged": lambda value: value[:, ::-1],
    "has rows and columns exchanged: a wrong layout": lambda value: value.transpose(0, 1, 3, 2).reshape(value.shape),
}


def _clipped(exact: Tensors, actual: Tensors) -> dict[str, NDArray[Any]]:
    limits = {name: (value.min(), value.max()) for name, value in actual.items() if value.size}
    return {name: np.clip(value, *limits[name]) if name in limits else value for name, value in exact.items()}


def _distance(first: Sequence[Tensors], second: Sequence[Tensors]) -> float:
    """Return the relative difference of outputs, over all samples; infinite if their shapes differ, 0 of nothing."""
    length = error = 0.0
    for expected, actual in zip(first, second, strict=True):
        if {name: value.shape for name, value in expected.items()} != {key: arr.shape for key, arr in actual.items()}:
            return np.inf
        for name, value in expected.items():
            exact = value.astype(np.float64)
            length += float(np.square(exact).sum())
            error += float(np.square(exact - actual[name]).sum())
    ratio = float(np.sqrt(error / max(length, _LEAST_LENGTH)))
    return ratio if np.isfinite(ratio) else np.inf
