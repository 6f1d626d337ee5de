from __future__ import annotations

import numpy as np
import pytest

from toolchain.models.converters.sequence.recurrence import ACTIVATIONS, Activation, Recurrence, cell_outputs, locate


class Numbers:
    """Writes nothing: computes."""

    exp, log, tanh = np.exp, np.log, np.tanh
    number, keep = float, staticmethod(lambda value: value)

    @staticmethod
    def clipped(x, low, greatest):
        return min(max(x, low), greatest)

    @staticmethod
    def sigmoid(x):
        return 1 / (1 + np.exp(-x))


class Unit:
    keep = staticmethod(lambda value: value)

    def projected(self, gate):
        return 0.1 * (gate + 1)

    def product(self, gate):
        return 0.2 * gate

    def held(self, name):
        return {"hidden": 0.3, "memory": 0.4, "update": 0.75}[name]

    def given(self, name, row=0):
        return {"bias": 0.5, "peepholes": 0.6}[name] + row


def test_a_gru_mixes_the_old_state_and_the_candidate():
    about = Recurrence("gru", 1, 1, 1, (False,), (Activation("sigmoid"), Activation("tanh")))
    outputs = cell_outputs(about, about.phases[1], Numbers(), Unit())
    assert outputs == {"hidden": pytest.approx(0.25 * np.tanh(0.3 + 0.4) + 0.75 * 0.3)}
    gates = cell_outputs(about, about.phases[0], Numbers(), Unit())
    assert gates["damped"] == pytest.approx(0.3 / (1 + np.exp(-0.4)))


def test_all_activation_functions_of_the_standard_are_there():
    assert set(ACTIVATIONS) == {
        *("affine", "elu", "hardsigmoid", "leakyrelu", "relu", "scaledtanh"),
        *("sigmoid", "softplus", "softsign", "tanh", "thresholdedrelu"),
    }


def test_where_a_step_lies():
    about = Recurrence("rnn", 5, 3, 16, (True,), ())
    location = locate(about, 0, 2, 1)
    assert (location.row, location.every, location.inside) == (3 * 3 + 2, 3 * 3 + 2, None)
    first = locate(Recurrence("rnn", 5, 3, 16, (False,), (), batch_first=True), 0, 2, 1)
    assert (first.row, first.every) == (2 * 5 + 1, 2 * 5 + 1)
