"""The devices that board files name, and what is known of each before it is reached."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.backends.vta.device.profiles import Profile
from toolchain.backends.vta.isa import Revision
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig
from toolchain.board import Board
from toolchain.errors import InputError, did_you_mean

_SHAPES = (VtaConfig(log_batch=1), VtaConfig(log_batch=2), VtaConfig(log_block=5), VtaConfig(log_batch=2, log_block=5))
"""Of arrays that no bitstream was published for; `configs/` has each as a file."""


@dataclass(frozen=True)
class Device:
    """One kind of VTA.

    Attributes:
        name: What the program on the board calls it.
        clock_mhz: Clock of the array.
        config: Its configuration.
        revision: Revision of its instructions.
        profile: What is known about its latencies.
    """

    name: str
    clock_mhz: float
    config: VtaConfig = DEFAULT
    revision: Revision = Revision.V2020_12
    profile: Profile = Profile.HLS_PYNQ


DEVICES = {
    "vta-sim": Device("sim", 100.0),
    **{f"vta-sim-{one.batch}x{one.block}": Device("sim", 100.0, one) for one in _SHAPES},
    "vta-pynq-z1": Device("pynq-z1", 100.0, profile=Profile.PYNQ_Z1),
    "vta-pynq-z1-2020-07": Device("pynq-z1", 100.0, revision=Revision.V2020_07, profile=Profile.PYNQ_Z1),
    "vta-ultra96": Device("ultra96", 333.0),
    "vta-ultra96-2020-07": Device("ultra96", 333.0, revision=Revision.V2020_07),
}
"""By what a board file's `target.device` says."""


def device(board: Board) -> Device:
    """Return the device of a board.

    Raises:
        InputError: Its file names none that is known.
    """
    named = board.target.device
    if named not in DEVICES:
        raise InputError(
            f"board {board.name} sets the device {named!r}, which is not a VTA",
            details="known devices: " + ", ".join(DEVICES),
            hint=did_you_mean(named, DEVICES) or f"set target.device in boards/{board.name}.toml",
        )
    return DEVICES[named]
