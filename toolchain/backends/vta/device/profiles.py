"""The models of how long instructions take: what each is called, and what it rests on."""

from __future__ import annotations

from enum import IntEnum

from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig

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
        """What it was calibrated on, and how near it comes; empty where nothing was."""
        return _CALIBRATED if self is Profile.PYNQ_Z1 else ""

    def holds_for(self, config: VtaConfig) -> bool:
        """Whether it may be told of a machine: what was calibrated says nothing of arrays of another shape."""
        return not self.calibration or (config.batch, config.block) == (DEFAULT.batch, DEFAULT.block)


def profiles_for(config: VtaConfig) -> tuple[Profile, ...]:
    """Return the models that may be told of a machine."""
    return tuple(one for one in Profile if one.holds_for(config))
