"""Candidates timed by a model: what is recorded of each, and what a model that fails leaves."""

from __future__ import annotations

import json

import pytest
import tvm
from tvm import tirx

from toolchain.backends.base import CHOICE, LAYER, Cycles
from toolchain.errors import BuildError
from toolchain.tuning.measure import Event
from toolchain.tuning.measure.estimated import Modelled
from toolchain.tuning.trials import Built, Trial


class Clockwork:
    """Takes a thousand cycles for each tile of a choice; knows nothing of layers called `cpu`."""

    name = "clockwork"
    clock_mhz = 100.0

    def cycles(self, layer, choice):
        if layer == "cpu":
            return None
        if choice["tile"] > 8:
            raise BuildError("the tile does not fit", details=layer)
        return Cycles(1000 * choice["tile"], 64, 256)


def module(layer, tile):
    buffer = tirx.decl_buffer((4,), "int8", name="x")
    function = tirx.PrimFunc([buffer], tirx.Evaluate(0))
    return tvm.IRModule({"main": function.with_attrs({LAYER: layer, CHOICE: json.dumps({"tile": tile})})})


def trial(built):
    return Trial(built.library, ())


def test_a_kernel_takes_its_cycles_at_the_clock():
    machine = Modelled(Clockwork(), [].append)
    slow, fast = machine.build([module("conv", 4), module("conv", 1)])
    results = [machine.submit(trial(candidate)).result() for candidate in (slow, fast)]
    assert [result.samples_s for result in results] == [(pytest.approx(40e-6),), (pytest.approx(10e-6),)]
    assert {result.board for result in results} == {"clockwork"}


def test_each_trial_is_reported_as_a_board_does():
    events = []
    machine = Modelled(Clockwork(), events.append)
    (built,) = machine.build([module("conv", 1)])
    assert events == []
    measured = machine.submit(trial(built)).result()
    assert events == [Event("ended", "clockwork", trial=trial(built), measured=measured)]


def test_candidates_of_several_rounds_are_told_apart():
    machine = Modelled(Clockwork(), [].append)
    built = [*machine.build([module("conv", 2)]), *machine.build([module("conv", 3)])]
    assert [machine.submit(trial(candidate)).result().samples_s[0] for candidate in built] == pytest.approx(
        [20e-6, 30e-6]
    )


@pytest.mark.parametrize(
    ("layer", "tile", "message"), [("conv", 9, "the tile does not fit"), ("cpu", 1, "knows nothing of this kernel")]
)
def test_what_the_model_cannot_tell_has_failed(layer, tile, message):
    (built,) = Modelled(Clockwork(), [].append).build([module(layer, tile)])
    assert built.library is None
    assert message in built.error


def test_a_discarded_candidate_is_forgotten():
    machine = Modelled(Clockwork(), [].append)
    (built,) = machine.build([module("conv", 1)])
    machine.discard(built)
    with pytest.raises(KeyError):
        machine.submit(trial(built))
    machine.discard(Built(None, "no", 0.0))
