"""Two releases on one device, compared by alternating turns: `compare`, `gate` and `profile --against` use it.

`lock_sides` opens the releases that a user names, checks that they can be compared, and locks the device.
`device.installed.installed_temporarily` sends them, and `Turns` says which one runs when.
"""

from toolchain.pipeline.ab.outputs import check_same_outputs
from toolchain.pipeline.ab.request import LockedSides, Request, lock_sides
from toolchain.pipeline.ab.sides import Side, SideOpener, check_pair, on_device, read_digest_file
from toolchain.pipeline.ab.turns import Order, Turns

__all__ = [
    "LockedSides",
    "Order",
    "Request",
    "Side",
    "SideOpener",
    "Turns",
    "check_pair",
    "check_same_outputs",
    "lock_sides",
    "on_device",
    "read_digest_file",
]
