"""Which board type a device without an entry in a devices.toml gets: chosen as by `board add`, and nothing is written."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.adoption import choice, known, obstacles, probe
from toolchain.adoption.choice import Choice
from toolchain.adoption.probe import Probed
from toolchain.board import Board
from toolchain.shell import Shell


@dataclass(frozen=True)
class Selection:
    """A board type that was chosen by a probe.

    Attributes:
        board: The board type; it may have no file.
        reason: Why it is the one, in words.
        is_new: Whether it has no file, and exists for this command alone.
        emulated: Whether the device shows signs of an emulator.
    """

    board: Board
    reason: str
    is_new: bool
    emulated: bool


def select(shell: Shell) -> Selection:
    """Probe a device and choose its board type.

    Raises:
        ToolchainError: No release would run on it, or its answer is not an answer.
    """
    found = probe.ask(shell, "")
    obstacles.check_system(found, "--root FOLDER")
    chosen = choice.choose(found, "", "")
    return Selection(chosen.board, reason(chosen, found), bool(chosen.text), bool(found.emulation))


def reason(chosen: Choice, found: Probed) -> str:
    """Say why a board type is chosen for a device."""
    target = chosen.board.target
    for level in known.cpus().levels.get(found.machine, ()):
        if (level.mcpu, level.mattr) == (target.mcpu, target.mattr):
            return f"the device's CPU has {level.has}"
    biggest = found.clusters[0].name if found.clusters else ""
    if biggest == target.mcpu:
        return f"the device's CPU is a {biggest}"
    features = ", ".join(target.mattr)
    return f"the device is {found.machine}, and its CPU is unknown here" + (f": it has {features}" if features else "")
