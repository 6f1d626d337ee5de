"""What is known of the accelerators that board files name."""

from __future__ import annotations

import dataclasses

import pytest

from toolchain import board
from toolchain.backends.vta.device.devices import DEVICES, device
from toolchain.backends.vta.isa import Revision
from toolchain.backends.vta.isa.config import DEFAULT
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


@pytest.mark.parametrize(("named", "hint"), [("vta-pynq", "vta-pynq-z1"), ("", "boards/pynq-z1.toml")])
def test_an_unknown_device_is_refused(named, hint):
    kind = board.load("pynq-z1")
    wrong = dataclasses.replace(kind, target=dataclasses.replace(kind.target, device=named))
    with pytest.raises(InputError, match=f"pynq-z1 names the device {named!r}") as caught:
        device(wrong)
    assert hint in caught.value.hint
    assert all(name in caught.value.details for name in DEVICES)
