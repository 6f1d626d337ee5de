"""What a tuner may choose from on a board with a VTA, and what choices of another time are worth."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.support import nets
from tests.support.nets import node, value
from toolchain import board
from toolchain.backends.base import CHOICE, LAYER
from toolchain.backends.cpu.backend import Cpu
from toolchain.backends.vta.backend import TEMPLATE, Vta, likely
from toolchain.backends.vta.codegen import kernels
from toolchain.backends.vta.codegen.kernels import Choice
from toolchain.backends.vta.codegen.layers import Conv2d
from toolchain.backends.vta.device.simulator import Simulator
from toolchain.errors import BuildError
from toolchain.models import importer
from toolchain.models import source as model
from toolchain.records import tasks

BOARD = board.load("vta-sim-x86_64").resolved()
TEMPLATES = Vta(BOARD).templates
LAYER_OF = Conv2d(1, 8, 8, 32, 32, (3, 3), (1, 1), (1, 1, 1, 1), shift=9, low=0)
TASK = LAYER_OF.task().to_json()
# All channels of all 28x28 pixels at once: with a residual beside them, they are too many.
LARGE = Conv2d(1, 28, 28, 32, 16, (3, 3), (1, 1), (1, 1, 1, 1), shift=9)
WHOLE = Choice(tile_h=28, tile_w=28, tile_ci=2, tile_co=1)


def document(choice):
    return {"template": TEMPLATE, **choice.document()}


@pytest.fixture
def refused(monkeypatch):
    """Let some choices turn out not to work when their instructions are written; returns the list of them."""
    refused_choices, write_stream = [], kernels.stream

    def stream(layer, choice, *machine):
        if choice in refused_choices:
            raise BuildError("it does not fit after all")
        return write_stream(layer, choice, *machine)

    kernels.stream_of.cache_clear()
    monkeypatch.setattr(kernels, "stream", stream)
    yield refused_choices
    kernels.stream_of.cache_clear()


def test_candidates_are_documents_that_fit():
    candidates = TEMPLATES.candidates(TASK)
    assert len(candidates) > 10
    assert candidates == json.loads(json.dumps(candidates))
    assert {candidate["template"] for candidate in candidates} == {"vta"}
    assert all(TEMPLATES.fits(TASK, candidate) for candidate in candidates)


@pytest.mark.parametrize("residual", [0, 9])
def test_what_is_tuned_without_a_residual_fits_with_one(residual):
    exact = replace(LARGE, residual_shift=residual)
    assert TEMPLATES.fits(LARGE.to_json(), document(WHOLE))
    assert not TEMPLATES.fits(exact.to_json(), document(WHOLE))
    assert all(TEMPLATES.fits(exact.to_json(), candidate) for candidate in TEMPLATES.candidates(exact.task().to_json()))


def test_a_candidates_module_says_what_it_is():
    choice = TEMPLATES.candidates(TASK)[-1]
    function = TEMPLATES.module(TASK, choice)["main"]
    assert str(function.attrs[LAYER]) == TASK
    assert json.loads(str(function.attrs[CHOICE])) == choice


GOOD = document(Choice(tile_h=8, tile_w=8))


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({}, True),
        ({"template": "blocked"}, False),
        ({"tile_h": 3}, False),
        ({"tile_h": 0}, False),
        ({"tile_h": "8"}, False),
        ({"oc_threads": 3}, False),
        ({"speed": 9}, False),
    ],
    ids=str,
)
def test_choices_of_another_time(change, fits):
    choice = {**GOOD, **change}
    assert TEMPLATES.fits(TASK, choice) == fits
    assert (TEMPLATES.module(TASK, choice) is not None) == fits
    chosen = TEMPLATES.choice_for(TASK, choice)
    assert (chosen == Choice(tile_h=8, tile_w=8)) == fits
    assert fits or chosen == likely(Conv2d.from_json(TASK), TEMPLATES.device)


def test_without_a_choice_it_is_the_likely_fastest():
    exact, fastest = LAYER_OF.to_json(), kernels.candidates(LAYER_OF, TEMPLATES.device.config)[0]
    assert TEMPLATES.choice_for(exact, None) == TEMPLATES.choice_for(exact, {}) == fastest


def test_a_choice_that_does_not_fit_a_residual_gives_way():
    assert TEMPLATES.choice_for(LARGE.to_json(), document(WHOLE)) == WHOLE
    exact = replace(LARGE, residual_shift=2)
    assert TEMPLATES.choice_for(exact.to_json(), document(WHOLE)) == likely(exact, TEMPLATES.device) != WHOLE


def test_what_seems_to_fit_and_does_not_is_passed_over(refused):
    first, second, *_ = kernels.candidates(LAYER_OF, TEMPLATES.device.config)
    refused.append(first)
    assert TEMPLATES.module(LAYER_OF.to_json(), document(first)) is None
    assert TEMPLATES.choice_for(LAYER_OF.to_json(), document(first)) == second
    assert likely(LAYER_OF, TEMPLATES.device) == second


def test_a_layer_without_any_tile_is_told():
    huge = Conv2d(1, 64, 64, 16, 16, (64, 64))
    with pytest.raises(BuildError, match="no tile of this convolution fits") as caught:
        TEMPLATES.choice_for(huge.to_json(), None)
    assert "--without vta" in caught.value.hint
    assert caught.value.details == huge.to_json()


def test_names_and_work():
    assert TEMPLATES.operator(TASK) == "vta_conv2d"
    assert TEMPLATES.gflop(TASK) == pytest.approx(2 * 64 * 32 * 32 * 9 / 1e9)


# --- what the CPU computes ---


@pytest.fixture(scope="module")
def layer(tmp_path_factory):
    """The layer of a convolution on floats."""
    proto = nets.model(
        [node("Conv", ["x", "w"], ["y"])],
        [value("x", (1, 8, 9, 9))],
        [value("y", (1, 8, 7, 7))],
        {"w": np.ones((8, 8, 3, 3), np.float32)},
    )
    source = model.load(nets.save(proto, tmp_path_factory.mktemp("conv")))
    lowered = Vta(BOARD).lower(importer.import_model(source).module)
    return next(task.layer for task in tasks.extract(lowered, Vta(BOARD)) if task.operator == "conv2d")


def test_the_cpus_layers_are_the_cpu_backends(layer):
    templates = Cpu(BOARD).templates
    candidates = TEMPLATES.candidates(layer)
    assert candidates == templates.candidates(layer)
    assert TEMPLATES.variants(layer) == templates.variants(layer) != []
    assert TEMPLATES.variants(TASK) == []
    assert TEMPLATES.gflop(layer) == templates.gflop(layer)
    assert TEMPLATES.fits(layer, candidates[0])
    assert not TEMPLATES.fits(layer, GOOD)
    assert (
        TEMPLATES.module(layer, candidates[0])["main"].script()
        == templates.module(layer, candidates[0])["main"].script()
    )


def test_templates_of_the_cpu_can_be_left_out(layer):
    used = TEMPLATES.candidates(layer)[0]["template"]
    assert used not in {candidate["template"] for candidate in Vta(BOARD, [used]).templates.candidates(layer)}


# --- the model of the machine ---


def test_cycles_are_the_simulators():
    machine, choice = Vta(BOARD).machine_model, TEMPLATES.candidates(TASK)[-1]
    result = machine.cycles(TASK, choice)
    settings = {name: number for name, number in choice.items() if name != "template"}
    stream = kernels.stream(LAYER_OF.task(), Choice.of(settings))
    assert result.cycles == Simulator().cycles(stream).cycles
    assert (result.macs, result.macs_per_cycle) == (LAYER_OF.macs(), 256)
    assert result.cycles > result.macs / result.macs_per_cycle


def test_another_choice_takes_other_cycles_and_a_residual_more():
    machine, choices = Vta(BOARD).machine_model, TEMPLATES.candidates(TASK)
    assert machine.cycles(TASK, choices[0]).cycles < machine.cycles(TASK, choices[-1]).cycles
    assert machine.cycles(TASK, None) == machine.cycles(TASK, choices[0])
    with_residual = replace(LAYER_OF, residual_shift=3).to_json()
    assert machine.cycles(with_residual, choices[0]).cycles > machine.cycles(TASK, choices[0]).cycles


def test_the_model_knows_nothing_of_the_cpu(layer):
    assert Vta(BOARD).machine_model.cycles(layer, None) is None


@pytest.mark.parametrize(
    ("name", "model", "mhz"),
    [("vta-sim", "hls-pynq", 100.0), ("pynq-z1", "pynq-z1", 100.0), ("ultra96", "hls-pynq", 333.0)],
)
def test_clock_and_profile_are_the_devices(name, model, mhz):
    machine = Vta(board.load(name).resolved()).machine_model
    assert (machine.name, machine.clock_mhz) == (model, mhz)
    assert machine.calibration.startswith("calibrated on") == (name == "pynq-z1")


def test_tiles_are_chosen_for_the_slow_bus_of_a_pynq():
    layer = Conv2d(1, 14, 14, 256, 512, stride=(2, 2), shift=8, low=0)
    machine, text = Vta(board.load("pynq-z1").resolved()).machine_model, layer.to_json()
    chosen = machine.cycles(text, None).cycles
    other = machine.cycles(text, {"template": "vta", **likely(layer, TEMPLATES.device).document()}).cycles
    assert chosen < 0.99 * other
