"""Gates: is a release slower than its base on this device, or wrong? Both are run there in turns, until that is known.

`run` gates two `Side`s, which `Side.of` makes of bundles and `Finding` and `on_device` of what a user names; the `Gate`
that it returns is a report, and its `fault` what a command ends with. `texts` and `page` write it for people and CI.
"""

from toolchain.pipeline.gate.result import Gate, Quantity, Round
from toolchain.pipeline.gate.session import GateSettings, check_emulated, run
from toolchain.pipeline.sides import Finding, Side, both, check_pair, on_device

__all__ = [
    "Finding",
    "Gate",
    "GateSettings",
    "Quantity",
    "Round",
    "Side",
    "both",
    "check_emulated",
    "check_pair",
    "on_device",
    "run",
]
