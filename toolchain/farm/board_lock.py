"""The lock of a served device, which the daemon holds for as long as somebody has the device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from toolchain.device.lock import Owner
from toolchain.device.store import Store


@dataclass(frozen=True)
class Claim:
    """What a device is wanted for.

    Attributes:
        owner: In whose name its lock is held; None if it is not held.
        key: The key that its board server gives sessions for; None if it gives none. It is a secret.
        within: The token of those who may work inside of the lock.
    """

    owner: Owner | None = None
    key: str | None = field(default=None, repr=False)
    within: str = ""


class BoardLock:
    """The lock of one device, on one connection.

    Args:
        store: The device's store.
        lost: Called by another thread when the lock is lost.

    Attributes:
        owner: In whose name it is held; None if it is not held.
        is_lost: Whether its holder on the device has ended before `free`.
    """

    def __init__(self, store: Store, lost: Callable[[], None]) -> None:
        self.owner: Owner | None = None
        self.is_lost = False
        self._store = store
        self._tell = lost
        self._held = contextlib.ExitStack()

    def take(self, claim: Claim) -> None:
        """Take it, unless the claim has no owner.

        Raises:
            BusyError: Somebody else holds it.
            DeviceError: It cannot be taken, or the device is lost.
        """
        if claim.owner is not None:
            self._held.enter_context(self._store.lock(claim.owner, within=claim.within, lost=self._lose))
            self.owner = claim.owner

    def free(self) -> None:
        """Let go of it."""
        self._held.close()
        self.owner, self.is_lost = None, False

    def _lose(self) -> None:
        self.is_lost = True
        self._tell()
