"""A comparison of a new release with an old one: both run on the device in turns until the verdict is clear.

`run` gates two `Side`s, which `Side.of` makes from bundles, and `SideOpener` and `on_device` from what a user names. It
returns a report; `Gate.fault` is the error that a command ends with.
"""

from toolchain.pipeline.gate.result import Gate, Quantity, Round
from toolchain.pipeline.gate.session import GateSettings, check_emulated, run
from toolchain.pipeline.sides import Side, SideOpener, check_pair, on_device, resolve_sides

__all__ = [
    "Gate",
    "GateSettings",
    "Quantity",
    "Round",
    "Side",
    "SideOpener",
    "check_emulated",
    "check_pair",
    "on_device",
    "resolve_sides",
    "run",
]
