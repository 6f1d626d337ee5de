"""What a device has and lacks of what a board type computes with beside the CPU, and what brings it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toolchain.adoption import known
from toolchain.adoption.known import Accelerator
from toolchain.adoption.probe import Probed, Seen
from toolchain.board import Board
from toolchain.errors import DeviceError

_EMULATED = "emulated"
_LIBRARY = "library of"


@dataclass(frozen=True)
class Need:
    """One thing that a device is to have."""

    what: str  # what it is
    found: str  # what is there; empty if it is missing, or not for this login
    remedy: str  # what brings it


def of(board: Board, found: Probed) -> tuple[Need, ...]:
    """Hold what a device says of itself against what its board type computes with; nothing for a CPU.

    Args:
        board: The board type.
        found: What the device says.
    """
    emulated = board.emulated or (bool(found.emulation) and not found.unsure)
    return tuple(need for one in _computing(board) for need in _of(one, found, emulated=emulated))


def any_of(board: Board) -> bool:
    """Tell whether a board type computes with anything beside the CPU."""
    return bool(_computing(board))


def check_library(board: Board, found: Probed | None) -> None:
    """Refuse a device without the library of what its board type computes with, or without a driver for it.

    Args:
        board: The board type.
        found: What the device says; None if it was not asked.

    Raises:
        DeviceError: One is missing; of several the first.
    """
    if found is None:
        return
    emulated = board.emulated or (bool(found.emulation) and not found.unsure)
    for need in of(board, found):
        # A device file may be one that is not known here; without a library nothing runs.
        if not need.found and (emulated or need.what.startswith(_LIBRARY)):
            raise DeviceError(
                f"{found.name} lacks the {need.what}, which kernels of board {board.name} need",
                hint=need.remedy or "use --board with another type: `toolchain boards` lists them",
            )


def _computing(board: Board) -> list[Accelerator]:
    """Return what a board's kernels run on; one that runs on a simulator of ours wants nothing."""
    known_of = [one for one in known.accelerators() if one.backend == board.backend]
    return [one for one in known_of if not board.emulated or _EMULATED in one.remedies]


def _of(one: Accelerator, found: Probed, *, emulated: bool) -> list[Need]:
    none = Seen(one.name, one.title, one.backend, libraries=(), devices=(), suits=False)
    there = next((each for each in found.accelerators if each.name == one.name), none)
    by_hand = _EMULATED if emulated and _EMULATED in one.remedies else ""
    brings = {kind: _remedy(one, by_hand or kind, android=found.libc == "bionic") for kind in ("library", "device")}
    needs = [Need(f"{_LIBRARY} {one.title}", *_library(one, there, brings["library"]))] if one.libraries else []
    # Where it is emulated there is no file of a device: the library computes, or a driver that it loads.
    device = (
        (_driver(there), _for_driver(one, there, brings["device"])) if by_hand else _device(there, brings["device"])
    )
    choice = (
        f", of which {one.choice} takes only those with {there.choice!r} in their names (see `toolchain hardware`)"
        if there.choice
        else ""
    )
    return [*needs, Need(f"device of {one.title}", device[0] and device[0] + choice, device[1])]


def _remedy(one: Accelerator, kind: str, *, android: bool) -> str:
    return one.remedies.get(f"android_{kind}" if android else kind) or one.remedies.get(kind, "")


def _driver(there: Seen) -> str:
    """Return what a library computes with: a driver, or itself."""
    whole = [library for library in there.libraries[:1] if library not in there.loaders]
    return next(iter((*whole, *there.drivers[:1])), "") if there.libraries else ""


def _for_driver(one: Accelerator, there: Seen, remedy: str) -> str:
    """Return what brings a driver, where no variable is in its way."""
    if there.named and not there.libraries:
        return _no_library(one, there)
    if there.drivers_named:
        return (
            f"on the device: {one.drivers_variable} is {there.drivers_named}, where no driver is: unset or correct it"
        )
    return remedy


def _no_library(one: Accelerator, there: Seen) -> str:
    return f"on the device: {one.variable} is {there.named}, which is not a library of {one.title}: unset or correct it"


def _library(one: Accelerator, there: Seen, remedy: str) -> tuple[str, str]:
    """Return the library that is used, and what to do where there is none: one that only loads drivers needs one."""
    if there.named and not there.libraries:
        return "", _no_library(one, there)
    if not there.libraries or _driver(there) or remedy == one.remedies.get(_EMULATED):  # then the device is missing
        return ", ".join(there.libraries[:1]), remedy
    others = [library for library in there.libraries if library not in there.loaders]
    loader = f"{there.libraries[0]} only loads drivers, and finds none"
    if others:
        return "", f"on the device: {loader}: {one.variable}={others[0]}"
    return "", f"{loader}: {remedy}"


def _device(there: Seen, remedy: str) -> tuple[str, str]:
    """Return the device file that is used, and what brings or opens it to this login.

    Its own file counts where it has one; any other accelerator may have one of the rest.
    """
    own = [each for each in there.devices if each[0] in there.own]
    fitting = own or (there.devices if there.own else ())
    usable = [path for path, rights, _group in fitting if "w" in rights]
    if usable or not fitting:
        return ", ".join(usable[:1]), remedy
    return "", _opened(replace(there, devices=tuple(fitting)), remedy)


def _opened(there: Seen, remedy: str) -> str:
    """Say how a device file is opened to this login."""
    if remedy.startswith("Android"):
        return remedy
    if there.missing_groups:
        return f"on the device: sudo usermod -aG {','.join(there.missing_groups)} LOGIN, then log in again"
    path = there.devices[0][0]
    rule = f'KERNEL=="{path.rpartition("/")[2]}", GROUP="video", MODE="0660"'
    return f"on the device, as root: chmod a+rw {path}; for good, a rule of udev: {rule}"
