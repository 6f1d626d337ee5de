"""What a device has and lacks of what a board type computes with beside the CPU, and what brings it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolchain.adoption import known
from toolchain.adoption.known import Accelerator
from toolchain.adoption.probe import Probed, Seen
from toolchain.board import Board

_EMULATED = "emulated"


@dataclass(frozen=True)
class Need:
    """One thing that a device is to have.

    Attributes:
        what: What it is.
        found: What is there; empty if it is missing, or not for this login.
        remedy: What brings it.
    """

    what: str
    found: str
    remedy: str


def of(board: Board, found: Probed) -> tuple[Need, ...]:
    """Hold what a device says of itself against what its board type computes with; nothing for a CPU.

    Args:
        board: The board type.
        found: What the device says.
    """
    emulated = board.emulated or (bool(found.emulation) and not found.unsure)
    return tuple(need for one in _computing(board) for need in _of(one, found.accelerators, emulated=emulated))


def any_of(board: Board) -> bool:
    """Tell whether a board type computes with anything beside the CPU."""
    return bool(_computing(board))


def _computing(board: Board) -> list[Accelerator]:
    """Return what a board's kernels run on; one that runs on a simulator of ours wants nothing."""
    known_of = [one for one in known.accelerators() if one.backend == board.backend]
    return [one for one in known_of if not board.emulated or _EMULATED in one.remedies]


def _of(one: Accelerator, seen: Sequence[Seen], *, emulated: bool) -> list[Need]:
    none = Seen(one.name, one.title, one.backend, libraries=(), devices=(), suits=False)
    there = next((each for each in seen if each.name == one.name), none)
    needs = []
    if one.libraries:
        remedy = one.remedies[_EMULATED if emulated else "library"]
        needs.append(Need(f"library of {one.title}", ", ".join(there.libraries[:1]), remedy))
    if emulated and _EMULATED in one.remedies:  # there is no file of a device
        needs.append(Need(f"device of {one.title}", ", ".join(there.drivers[:1]), one.remedies[_EMULATED]))
    else:
        usable = [path for path, rights, _group in there.devices if "w" in rights]
        needs.append(Need(f"device of {one.title}", ", ".join(usable[:1]), _for_device(one, there)))
    return needs


def _for_device(one: Accelerator, there: Seen) -> str:
    """Return what brings a device file, or opens it to this login."""
    if not there.devices:
        return one.remedies["device"]
    if there.missing_groups:
        return f"on the device: sudo usermod -aG {','.join(there.missing_groups)} LOGIN, then log in again"
    return f"on the device, as root: chmod a+rw {there.devices[0][0]}"
