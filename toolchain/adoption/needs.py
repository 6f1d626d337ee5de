"""Checks a device for the libraries and device files that a board type's accelerator needs."""

from __future__ import annotations

from dataclasses import replace

from toolchain.board import Board
from toolchain.checks import Check
from toolchain.device.probe import AcceleratorProbe, DeviceProbe, hardware_tables
from toolchain.device.probe.hardware_tables import Accelerator
from toolchain.errors import DeviceError

_EMULATED = "emulated"
_LIBRARY = "library of"


def of(board: Board, probed: DeviceProbe) -> tuple[Check[str], ...]:
    """Return the checks for what a board type needs on a device: each finds a file; none for a CPU."""
    checks: list[Check[str]] = []
    for accelerator in _accelerators(board):
        name, title = accelerator.name, accelerator.title
        missing = AcceleratorProbe(name, title, accelerator.backend, libraries=(), devices=(), suits=False)
        probe = next((candidate for candidate in probed.accelerators if candidate.name == name), missing)
        emulates = _is_emulated(board, probed) and _EMULATED in accelerator.remedies
        library = _remedy(accelerator, probed, _EMULATED if emulates else "library")
        device = _remedy(accelerator, probed, _EMULATED if emulates else "device")
        if accelerator.libraries:
            checks.append(_check(board, probed, f"{_LIBRARY} {title}", *_library(accelerator, probe, library)))
        # An emulated accelerator has no device file: the library computes, or a driver that it loads.
        if emulates:
            file, device = _driver(probe), _driver_remedy(accelerator, probe, device)
        else:
            file, device = _device(probe, device)
        if file and probe.choice:
            file += f", of which {accelerator.choice} takes only those with {probe.choice!r} in their names"
            file += " (see `toolchain hardware`)"
        checks.append(_check(board, probed, f"device of {title}", file, device))
    return tuple(checks)


def _check(board: Board, probed: DeviceProbe, name: str, file: str, remedy: str) -> Check[str]:
    """Return the check for a file; an empty one is missing, or not accessible to this login."""

    def probe() -> str:
        if not file:
            raise DeviceError(
                f"{probed.name} lacks the {name}, which kernels of board {board.name} need",
                hint=remedy or "use --board with another type: `toolchain board list` lists them",
            )
        return file

    return Check(name, probe, remedy, board.name)


def any_of(board: Board) -> bool:
    """Whether a board type needs an accelerator."""
    return bool(_accelerators(board))


def _is_emulated(board: Board, probed: DeviceProbe) -> bool:
    return board.emulated or (bool(probed.emulation) and not probed.unsure)


def _remedy(accelerator: Accelerator, probed: DeviceProbe, kind: str) -> str:
    android = accelerator.remedies.get(f"android_{kind}", "") if probed.libc == "bionic" else ""
    return android or accelerator.remedies.get(kind, "")


def check_library(board: Board, probed: DeviceProbe | None) -> None:
    """Raise a DeviceError for the first library or driver that a board type needs and a device lacks.

    Nothing is checked for None, a device that was not probed.
    """
    if probed is None:
        return
    for check in of(board, probed):
        # A missing device file may have another name on this device; without the library nothing runs.
        if _is_emulated(board, probed) or check.name.startswith(_LIBRARY):
            check.probe()


def _accelerators(board: Board) -> list[Accelerator]:
    """Return the accelerators that a board's kernels run on; none for our own simulator."""
    return [
        accelerator
        for accelerator in hardware_tables.accelerators()
        if accelerator.backend == board.backend and (not board.emulated or _EMULATED in accelerator.remedies)
    ]


def _driver(probe: AcceleratorProbe) -> str:
    """Return the file that computes: the library itself, or the first driver of a library that only loads drivers."""
    libraries = [library for library in probe.libraries[:1] if library not in probe.loaders]
    return next(iter((*libraries, *probe.drivers[:1])), "") if probe.libraries else ""


def _driver_remedy(accelerator: Accelerator, probe: AcceleratorProbe, remedy: str) -> str:
    """Return how to get a driver, or how to correct a variable that hides it."""
    if probe.named and not probe.libraries:
        return _no_library(accelerator, probe)
    if probe.drivers_named:
        variable = f"{accelerator.drivers_variable} is {probe.drivers_named}"
        return f"on the device: {variable}, which has no driver: unset or correct it"
    return remedy


def _no_library(accelerator: Accelerator, probe: AcceleratorProbe) -> str:
    variable = f"{accelerator.variable} is {probe.named}"
    return f"on the device: {variable}, which is not a library of {accelerator.title}: unset or correct it"


def _library(accelerator: Accelerator, probe: AcceleratorProbe, remedy: str) -> tuple[str, str]:
    """Return the library that is used, and the remedy if there is none."""
    if probe.named and not probe.libraries:
        return "", _no_library(accelerator, probe)
    # An emulator without a driver still has its library: then the need for the device reports the driver.
    if not probe.libraries or _driver(probe) or remedy == accelerator.remedies.get(_EMULATED):
        return ", ".join(probe.libraries[:1]), remedy
    others = [library for library in probe.libraries if library not in probe.loaders]
    loader = f"{probe.libraries[0]} only loads drivers, and finds none"
    if others:
        return "", f"on the device: {loader}: {accelerator.variable}={others[0]}"
    return "", f"{loader}: {remedy}"


def _device(probe: AcceleratorProbe, remedy: str) -> tuple[str, str]:
    """Return the device file that is used, and the remedy if it is missing or not accessible to this login."""
    # If some files identify the accelerator, only those count: the others may belong to another accelerator.
    matching = [file for file in probe.devices if file[0] in probe.own]
    fitting = matching or (probe.devices if probe.own else ())
    usable = [path for path, rights, _group in fitting if "w" in rights]
    if usable or not fitting:
        return ", ".join(usable[:1]), remedy
    if remedy.startswith("Android"):
        return "", remedy
    if groups := replace(probe, devices=tuple(fitting)).missing_groups:
        return "", f"on the device: sudo usermod -aG {','.join(groups)} LOGIN, then log in again"
    path = fitting[0][0]
    rule = f'KERNEL=="{path.rpartition("/")[2]}", GROUP="video", MODE="0660"'
    return "", f"on the device, as root: chmod a+rw {path}; for good, a rule of udev: {rule}"
