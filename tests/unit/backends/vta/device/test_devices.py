"""What is known of the accelerators that board files name."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.paths import ROOT
from toolchain import board
from toolchain.backends.vta.device.devices import DEVICES, device
from toolchain.backends.vta.device.profiles import Profile
from toolchain.backends.vta.isa import Revision
from toolchain.backends.vta.isa.config import DEFAULT, load
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
    found = device(board.load(name))
    assert (found.name, found.clock_mhz) == BOARDS[name]
    assert (found.config, found.revision) == (DEFAULT, Revision.V2020_12)


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
    found = DEVICES[name]
    assert name.endswith(f"-{found.config.batch}x{found.config.block}")
    assert (found.name, found.profile) == ("sim", Profile.HLS_PYNQ)


def test_each_machine_has_its_file():
    """The commands that take `--config` read them."""
    folder = ROOT / "toolchain" / "backends" / "vta" / "configs"
    assert {path.stem: load(path) for path in folder.iterdir()} == {
        one.config.name: one.config for one in DEVICES.values()
    }


def test_no_device_has_a_model_that_does_not_hold_for_it():
    assert all(one.profile.holds_for(one.config) for one in DEVICES.values())


@pytest.mark.parametrize(
    ("named", "hint"), [("vta-sim-16x4", "vta-sim-4x16"), ("vta-pynq", "vta-pynq-z1"), ("", "boards/pynq-z1.toml")]
)
def test_an_unknown_device_is_refused(named, hint):
    kind = board.load("pynq-z1")
    wrong = dataclasses.replace(kind, target=dataclasses.replace(kind.target, device=named))
    with pytest.raises(InputError, match=f"pynq-z1 sets the device {named!r}") as caught:
        device(wrong)
    assert hint in caught.value.hint
    assert all(name in caught.value.details for name in DEVICES)
