"""The errors for clients that get no board, or whose lease ends."""

from __future__ import annotations

from collections.abc import Sequence

from toolchain.errors import BusyError, DeviceError, ToolchainError
from toolchain.farm.grants import Slot
from toolchain.farm.protocol import EXPIRE_S


def not_now(slot: Slot) -> ToolchainError:
    """Return the error for a board that another client or user has."""
    name = slot.name
    if slot.board.is_busy and slot.board.fault:
        return slot.board.fault
    if slot.grant:
        return BusyError(f"{name} is {slot.grant}", hint=f"toolchain farm release {name}", owner=slot.grant.client.who)
    if slot.board.occupied:
        return slot.board.occupied
    return BusyError(f"the last session on {name} has not ended yet", hint="toolchain farm status")


def none_free(kind: str, names: Sequence[str], others: Sequence[Slot]) -> ToolchainError:
    """Return the error for boards of which none can be leased; `others` are those requested that are not free."""
    if len(others) == 1 and others[0].board.is_busy:
        return not_now(others[0])
    if not others:
        return DeviceError(f"the farm has no {kind or 'board'}", hint="toolchain farm up")
    reasons, owners, is_busy = [], [], False
    for slot in others:
        board = slot.board
        # A user of the device itself, who is not a client of the farm.
        fault = board.fault if board.is_busy else board.occupied
        user = fault if isinstance(fault, BusyError) else None
        is_busy |= bool(slot.grant or user)
        owners.append(slot.grant.client.who if slot.grant else user.owner if user else "")
        if board.state != "ready" or board.is_busy:
            why = board.fault.message if board.fault else "the farm is still connecting to it"
            reasons.append(f"{slot.name}: {why}")
        else:
            reasons.append(not_now(slot).message)
    details = "\n".join(reasons)
    subject = ", ".join(names) if names else f"no {kind or 'board'}"
    verb = ("are not" if len(names) > 1 else "is not") if names else "is"
    message, hint = f"{subject} {verb} free", "toolchain farm status"
    if is_busy:
        return BusyError(message, details=details, hint=hint, owner="; ".join(dict.fromkeys(filter(None, owners))))
    return DeviceError(message, details=details, hint=hint)


def reserved(kind: str, names: Sequence[str], who: str) -> BusyError:
    """Return the error for boards that are free, but assigned to an earlier request."""
    subject = ", ".join(names) or kind or "every board"
    return BusyError(f"{subject} is reserved for {who}, who asked first", hint="toolchain farm status", owner=who)


def expired() -> BusyError:
    return BusyError(
        f"the lease is over: its client gave no sign of life for {EXPIRE_S:g} s",
        details="the client was stopped, or this machine was overloaded; earlier measurements are kept",
        hint="run the command again: a tuning continues where it stopped",
    )


def released(name: str) -> BusyError:
    return BusyError(
        f"the lease of {name} was ended by its owner",
        details="`toolchain farm release` was run",
        hint="lease the board again; `toolchain farm status` shows who uses it",
    )


def no_longer_served(name: str) -> BusyError:
    return BusyError(
        f"the farm no longer serves {name}",
        details="`toolchain farm down` was run",
        hint=f"serve it again: `toolchain farm up {name}`",
    )


def taken_back() -> BusyError:
    """Return the error for a lease whose boards were all taken back before its client got them."""
    return BusyError("the boards were taken back before the lease began", hint="run the command again")
