"""The devices that board files name, and the models of how long their instructions take."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from toolchain.backends.vta.isa import Revision
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig
from toolchain.board import Board
from toolchain.errors import InputError, did_you_mean

_CALIBRATED = (
    "calibrated on published measurements of 2019: total 0.7 % above those of ResNet-18's 19 calls,"
    " each of its ten layers within 8 %"
)


class Profile(IntEnum):
    """A model of cycles: `runtime/vta/cycles.h` says what each counts."""

    IDEAL = 0
    HLS_PYNQ = 1
    PYNQ_Z1 = 2

    @property
    def label(self) -> str:
        """Its name in reports and records."""
        return self.name.lower().replace("_", "-")

    @property
    def calibration(self) -> str:
        """What the model was calibrated on, and how near it comes; empty for a model of the design alone."""
        return _CALIBRATED if self is Profile.PYNQ_Z1 else ""

    def holds_for(self, config: VtaConfig) -> bool:
        """Whether the model applies to a machine: a calibration holds for arrays of its own shape alone."""
        return not self.calibration or (config.batch, config.block) == (DEFAULT.batch, DEFAULT.block)


def profiles_for(config: VtaConfig) -> tuple[Profile, ...]:
    """Return the models that apply to a machine."""
    return tuple(profile for profile in Profile if profile.holds_for(config))


_SHAPES = (VtaConfig(log_batch=1), VtaConfig(log_batch=2), VtaConfig(log_block=5), VtaConfig(log_batch=2, log_block=5))
"""Of arrays that no bitstream was published for; `configs/` has each as a file."""


@dataclass(frozen=True)
class Device:
    """One kind of VTA.

    Attributes:
        name: Its name in the program on the board.
        clock_mhz: Clock of the array.
        config: Its configuration.
        revision: Revision of its instructions.
        profile: The model of its latencies.
    """

    name: str
    clock_mhz: float
    config: VtaConfig = DEFAULT
    revision: Revision = Revision.V2020_12
    profile: Profile = Profile.HLS_PYNQ


DEVICES = {
    "vta-sim": Device("sim", 100.0),
    **{f"vta-sim-{shape.batch}x{shape.block}": Device("sim", 100.0, shape) for shape in _SHAPES},
    "vta-pynq-z1": Device("pynq-z1", 100.0, profile=Profile.PYNQ_Z1),
    "vta-pynq-z1-2020-07": Device("pynq-z1", 100.0, revision=Revision.V2020_07, profile=Profile.PYNQ_Z1),
    "vta-ultra96": Device("ultra96", 333.0),
    "vta-ultra96-2020-07": Device("ultra96", 333.0, revision=Revision.V2020_07),
}
"""The devices by `target.device` of board files."""


def device(board: Board) -> Device:
    """Return the device of a board.

    Raises:
        InputError: The board file names no VTA.
    """
    name = board.target.device
    if name not in DEVICES:
        raise InputError(
            f"board {board.name} sets the device {name!r}, which is not a VTA",
            details="known devices: " + ", ".join(DEVICES),
            hint=did_you_mean(name, DEVICES) or f"set target.device in boards/{board.name}.toml",
        )
    return DEVICES[name]
