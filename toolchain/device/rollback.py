"""The way back to the release before the current one."""

from __future__ import annotations

from collections.abc import Callable

from toolchain.device import application, trust
from toolchain.device.application import Started
from toolchain.device.connected import ConnectedDevice
from toolchain.device.store import Generation


def roll_back(device: ConnectedDevice, progress: Callable[[str], None]) -> tuple[Generation, Started | None]:
    """Make the release before the current one current again; the caller holds the lock.

    Returns:
        What is current now, and how the device's application started on it; None without an application.

    Raises:
        VerificationError: The device does not take that release any more; or the application is not healthy on it.
        DeviceError: There is none, or the device is lost.
    """
    device.store.sweep()
    trust.verify_previous(device.store)
    if device.entry.run:
        return application.roll_back(device.store, device.entry.run, progress)
    return device.store.roll_back(), None
