"""The lock of a served device, which the daemon holds for as long as a client has the device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from toolchain.device.lock import Owner
from toolchain.device.store import Store


@dataclass(frozen=True)
class Claim:
    """In whose name a device is locked, and which key its board server accepts; neither for a free device."""

    owner: Owner | None = None
    key: str | None = field(default=None, repr=False)  # secret
    within: str = ""  # the token of those who may work inside of the lock


class BoardLock:
    """The lock of one device, on one connection.

    Attributes:
        owner: None if it is not held.
        is_lost: Whether its holder on the device has ended before `free`.
    """

    def __init__(self, store: Store, on_lost: Callable[[], None]) -> None:
        self.owner: Owner | None = None
        self.is_lost = False
        self._store = store
        self._on_lost = on_lost  # called by another thread
        self._stack = contextlib.ExitStack()

    def take(self, claim: Claim) -> None:
        """Take it, unless the claim has no owner.

        Raises:
            BusyError: Somebody else holds it.
            DeviceError: It cannot be taken, or the device is lost.
        """
        if claim.owner is not None:
            self._stack.enter_context(self._store.lock(claim.owner, within=claim.within, lost=self._lose))
            self.owner = claim.owner

    def free(self) -> None:
        self._stack.close()
        self.owner, self.is_lost = None, False

    def _lose(self) -> None:
        self.is_lost = True
        self._on_lost()
