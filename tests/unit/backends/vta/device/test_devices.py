"""The devices of board files, and the models of their latencies."""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from statistics import median

import pytest

from tests.support.paths import ROOT
from tests.support.vta_published import Published, published, total
from toolchain import board
from toolchain.backends.vta.codegen.kernels import candidates, stream
from toolchain.backends.vta.codegen.layers import Conv2d
from toolchain.backends.vta.device.devices import DEVICES, Profile, device, profiles_for
from toolchain.backends.vta.device.simulator import Simulator
from toolchain.backends.vta.isa import Revision
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig, load
from toolchain.errors import InputError

BOARDS = {
    "vta-sim": ("sim", 100.0),
    "vta-sim-x86_64": ("sim", 100.0),
    "vta-sim-aarch64": ("sim", 100.0),
    "vta-sim-armv7": ("sim", 100.0),
    "pynq-z1": ("pynq-z1", 100.0),
    "ultra96": ("ultra96", 333.0),
}


@pytest.mark.parametrize("name", BOARDS)
def test_each_board_has_a_device(name):
    result = device(board.load(name))
    assert (result.name, result.clock_mhz) == BOARDS[name]
    assert (result.config, result.revision) == (DEFAULT, Revision.V2020_12)


def test_every_vta_board_is_among_them():
    shipped = [kind for kind in map(board.load, board.names()) if kind.backend == "vta"]
    assert {kind.name for kind in shipped} == set(BOARDS)
    assert {kind.target.device for kind in shipped} < set(DEVICES)


def test_a_bitstream_of_an_older_revision():
    old = DEVICES["vta-pynq-z1-2020-07"]
    assert dataclasses.replace(old, revision=Revision.V2020_12) == DEVICES["vta-pynq-z1"]
    assert old.revision is Revision.V2020_07


@pytest.mark.parametrize("name", ["vta-sim-2x16", "vta-sim-4x16", "vta-sim-1x32", "vta-sim-4x32"])
def test_a_simulator_of_another_array(name):
    result = DEVICES[name]
    assert name.endswith(f"-{result.config.batch}x{result.config.block}")
    assert (result.name, result.profile) == ("sim", Profile.HLS_PYNQ)


def test_each_machine_has_its_file():
    """The commands that take `--config` read them."""
    folder = ROOT / "toolchain" / "backends" / "vta" / "configs"
    assert {path.stem: load(path) for path in folder.iterdir()} == {
        entry.config.name: entry.config for entry in DEVICES.values()
    }


def test_no_device_has_a_model_that_does_not_hold_for_it():
    assert all(entry.profile.holds_for(entry.config) for entry in DEVICES.values())


@pytest.mark.parametrize(
    ("device_name", "hint"),
    [("vta-sim-16x4", "vta-sim-4x16"), ("vta-pynq", "vta-pynq-z1"), ("", "boards/pynq-z1.toml")],
)
def test_an_unknown_device_is_refused(device_name, hint):
    kind = board.load("pynq-z1")
    wrong = dataclasses.replace(kind, target=dataclasses.replace(kind.target, device=device_name))
    with pytest.raises(InputError, match=f"pynq-z1 sets the device {device_name!r}") as caught:
        device(wrong)
    assert hint in caught.value.hint
    assert all(name in caught.value.details for name in DEVICES)


UNEXPLAINED = 80
"""Cycles for each 16 results by which the networks of August 2019 are slower than those of July and of later."""


@cache
def ratios(network: str) -> list[tuple[Published, float]]:
    """Return a network's layers, each with modelled over measured time."""
    return [(layer, layer.modelled_ms() / layer.ms) for layer in published() if layer.network == network]


def test_the_layers_of_the_calibration_are_near():
    layers = ratios("ResNet-18")
    assert len(layers) == 10
    assert all(0.92 < ratio < 1.08 for _, ratio in layers)
    assert sum(0.98 < ratio < 1.05 for _, ratio in layers) == 8


def test_the_text_of_reports_tells_the_figures():
    layers = ratios("ResNet-18")
    over = total([(layer, layer.ms * ratio) for layer, ratio in layers]) - 1
    worst = math.ceil(100 * max(abs(ratio - 1) for _, ratio in layers))
    text = f"total {100 * over:.1f} % above those of ResNet-18's 19 calls, each of its ten layers within {worst} %"
    assert Profile.PYNQ_Z1.calibration == f"calibrated on published measurements of 2019: {text}"
    assert sum(layer.calls for layer, _ in layers) == 19


def test_what_was_not_calibrated_says_so():
    assert [profile.label for profile in Profile if profile.calibration] == ["pynq-z1"]
    rows = [(layer, layer.modelled_ms(Profile.HLS_PYNQ)) for layer, _ in ratios("ResNet-18")]
    assert total(rows) < 0.87


def test_what_was_calibrated_says_nothing_of_arrays_of_another_shape():
    assert profiles_for(VtaConfig(log_inp_buff_size=14)) == tuple(Profile)
    wide = VtaConfig(log_batch=2)
    assert profiles_for(wide) == (Profile.IDEAL, Profile.HLS_PYNQ)
    layer = Conv2d(4, 4, 4, 16, 16)
    program = stream(layer, candidates(layer, wide)[0], wide)
    assert Simulator(wide).cycles(program).cycles
    with pytest.raises(InputError, match=f"pynq-z1 was calibrated on arrays of 1 by 16, and this is {wide.name}"):
        Simulator(wide).cycles(program, Profile.PYNQ_Z1)


@pytest.mark.parametrize(
    ("network", "layers", "lowest", "highest"),
    [("DCGAN", 3, 0.97, 1.01), ("LSTM cell", 1, 0.98, 1.0), ("MobileNet-G", 9, 0.4, 0.9),
     ("ResNet-50", 22, 0.13, 0.91), ("AlexNet", 4, 0.59, 0.74), ("VGG", 7, 0.52, 0.8)],
)  # fmt: skip
def test_layers_that_were_held_out(network, layers, lowest, highest):
    results = [ratio for _, ratio in ratios(network)]
    assert len(results) == layers
    assert lowest < min(results) <= max(results) < highest


def test_one_number_explains_the_networks_of_august():
    rows = [row for network in ("ResNet-50", "AlexNet", "VGG") for row in ratios(network)]
    errors = [abs(ratio + UNEXPLAINED * layer.vectors / 1e5 / layer.ms - 1) for layer, ratio in rows]
    assert len(errors) == 33
    assert median(errors) < 0.05
    assert max(errors) < 0.22
