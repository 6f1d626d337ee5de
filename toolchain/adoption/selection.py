"""The board type of a device without --board: that of its entry, or one chosen by a probe as in `board add`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from toolchain import board as boards
from toolchain.adoption import choice, obstacles
from toolchain.adoption.choice import Choice
from toolchain.board import Board
from toolchain.device import probe
from toolchain.device.probe import DeviceProbe, hardware_tables
from toolchain.devices import Device
from toolchain.errors import InputError, did_you_mean
from toolchain.shell import Shell


@dataclass(frozen=True)
class Selection:
    board: Board
    reason: str  # for messages
    is_new: bool  # whether it has no file, and exists only for this command
    emulated: bool  # whether the device shows signs of an emulator

    def sentence(self, address: str) -> str:
        unwritten = f"; it has no file, `toolchain board add {address}` writes one" if self.is_new else ""
        emulated = "; it shows signs of an emulator, whose times mean nothing" if self.emulated else ""
        return f"board {self.board.name}: {self.reason}{unwritten}{emulated}"


def listed(device: str, lab: Mapping[str, Device]) -> Board | None:
    """Return the board type of a device by the device lists; None if they do not determine it.

    An address stands for all entries with that address, except those with their own SSH configuration.

    Args:
        device: Its name, or its address.
        lab: The devices by name.

    Raises:
        InputError: There is no board file of that name, or it has faults.
    """
    by_address = {entry.board for entry in lab.values() if entry.host == device and not entry.ssh_config}
    names = [lab[device].board] if device in lab else [*by_address]
    if len(names) != 1:
        return None
    (name,) = names
    if name not in boards.names():
        raise InputError(
            f"device {device} is a {name} in devices.toml, and there is no board file of that name",
            details="known boards: " + ", ".join(boards.names()),
            hint=did_you_mean(name, boards.names()) or f"name its file: --board PATH/{name}.toml",
        )
    return boards.load(name)


def select(shell: Shell) -> Selection:
    """Probe a device and choose its board type.

    Raises:
        ToolchainError: No release would run on it, or its answer is not valid.
    """
    probed = probe.ask(shell, "")
    obstacles.check_system(probed, "--root FOLDER")
    chosen = choice.choose(probed, "", "")
    return Selection(chosen.board, reason(chosen, probed), bool(chosen.text), bool(probed.emulation))


def reason(chosen: Choice, probed: DeviceProbe) -> str:
    target = chosen.board.target
    for level in hardware_tables.cpus().levels.get(probed.machine, ()):
        if (level.mcpu, level.mattr) == (target.mcpu, target.mattr):
            return f"the device's CPU has {level.has}"
    biggest = probed.clusters[0].name if probed.clusters else ""
    if chosen.board.cpu_names and choice.is_named(chosen.board, probed):
        return f"the device's CPU is {biggest}"
    if biggest == target.mcpu:
        return f"the device's CPU is a {biggest}"
    features = ", ".join(target.mattr)
    return f"the device is {probed.machine}, and its CPU is unknown here" + (f": it has {features}" if features else "")
