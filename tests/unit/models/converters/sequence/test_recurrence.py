from __future__ import annotations

import pytest

from toolchain.models.converters.sequence.recurrence import Activation, Phase, Recurrence, from_json

LSTM = Recurrence(
    "lstm", 7, 2, 20, (False, True), (Activation("sigmoid"), Activation("tanh"), Activation("elu", 0.5)), peepholes=True
)
GRU = Recurrence("gru_reset", 7, 2, 16, (True,), (Activation("relu"), Activation("tanh")), 0.5, batch_first=True)


@pytest.mark.parametrize("about", [LSTM, GRU])
def test_it_comes_back_from_json(about):
    assert from_json(about.to_json()) == about


def test_shapes():
    assert LSTM.held == 32
    assert LSTM.arguments == {
        "projected": (14, 2 * 4 * 32),
        "weights": (2, 20, 4 * 32),
        "peepholes": (2, 3, 32),
        "hidden": (2, 2, 32),
        "memory": (2, 2, 32),
    }
    assert LSTM.results == {"every": (7, 2, 2, 32), "last": (2, 2, 32), "memory_last": (2, 2, 32)}
    assert GRU.results == {"every": (2, 7, 1, 16), "last": (1, 2, 16)}


def test_phases():
    assert [phase.gates for phase in LSTM.phases] == [(0, 1, 2, 3)]
    assert Recurrence("gru", 1, 1, 1, (False,), ()).phases == (Phase((0, 1)), Phase((2,), "damped"))
    assert Recurrence("gru", 1, 1, 1, (False,), ()).gates == 3
