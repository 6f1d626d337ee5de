"""A comparison of a new release with an old one: both run on the device in turns until the verdict is clear.

`gate` takes what a user names, and `run` two `Side`s on a connected device. They return a report; `Gate.fault` is the
error that a command ends with.
"""

from toolchain.pipeline.gate.result import Gate, Quantity, Round
from toolchain.pipeline.gate.session import GateSettings, gate, run

__all__ = ["Gate", "GateSettings", "Quantity", "Round", "gate", "run"]
