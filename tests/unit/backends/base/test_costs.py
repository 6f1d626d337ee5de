"""Of which boards a model says what kernels cost, and that the others are refused by name."""

from __future__ import annotations

import pytest

from toolchain import board
from toolchain.backends import backend_of
from toolchain.backends.base import Estimate
from toolchain.errors import InputError

BOARDS = {name: board.load(name).resolved() for name in board.names()}


def test_there_is_a_model_where_the_board_file_names_a_gpu() -> None:
    modelled = {name for name, kind in BOARDS.items() if backend_of(kind).cost_model_name}
    assert modelled == {name for name, kind in BOARDS.items() if kind.backend == "mali" and kind.gpu}
    assert {"rk3588", "odroid-n2"} <= modelled < BOARDS.keys()


@pytest.mark.parametrize("name", ["local", "opencl-local", "vta-sim", "rpi4"])
def test_the_others_are_refused_by_name(name: str) -> None:
    with pytest.raises(InputError, match=name) as caught:
        backend_of(BOARDS[name]).cost_model(print)
    assert caught.value.hint


def test_nothing_is_known_of_what_nobody_said_anything() -> None:
    assert (Estimate().ms, Estimate().spills, Estimate().fault) == (None, 0, "")
