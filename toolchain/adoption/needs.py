"""What a device has and lacks of what a board type computes with beside the CPU, and what brings it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toolchain.adoption import hardware_tables
from toolchain.adoption.hardware_tables import Accelerator
from toolchain.adoption.probe import AcceleratorProbe, Probed
from toolchain.board import Board
from toolchain.errors import DeviceError

_EMULATED = "emulated"
_LIBRARY = "library of"


@dataclass(frozen=True)
class Need:
    """One thing that a device must have for a board type."""

    what: str
    found: str  # the file; empty if it is missing, or not accessible to this login
    remedy: str  # what brings it


def of(board: Board, probed: Probed) -> tuple[Need, ...]:
    """Compare what a device has with what its board type computes with; nothing for a CPU."""
    emulated = board.emulated or (bool(probed.emulation) and not probed.unsure)
    return tuple(
        need for accelerator in _accelerators(board) for need in _needs_of(accelerator, probed, emulated=emulated)
    )


def any_of(board: Board) -> bool:
    """Whether a board type computes with anything beside the CPU."""
    return bool(_accelerators(board))


def check_library(board: Board, probed: Probed | None) -> None:
    """Refuse a device without the library or driver that its board type needs.

    Args:
        board: The board type.
        probed: The device; None if it was not probed.

    Raises:
        DeviceError: The first that is missing.
    """
    if probed is None:
        return
    emulated = board.emulated or (bool(probed.emulation) and not probed.unsure)
    for need in of(board, probed):
        # A missing device file may have another name on this device; without the library nothing runs.
        if not need.found and (emulated or need.what.startswith(_LIBRARY)):
            raise DeviceError(
                f"{probed.name} lacks the {need.what}, which kernels of board {board.name} need",
                hint=need.remedy or "use --board with another type: `toolchain boards` lists them",
            )


def _accelerators(board: Board) -> list[Accelerator]:
    """Return what a board's kernels run on; nothing for our own simulator."""
    return [
        accelerator
        for accelerator in hardware_tables.accelerators()
        if accelerator.backend == board.backend and (not board.emulated or _EMULATED in accelerator.remedies)
    ]


def _needs_of(accelerator: Accelerator, probed: Probed, *, emulated: bool) -> list[Need]:
    name, title = accelerator.name, accelerator.title
    none = AcceleratorProbe(name, title, accelerator.backend, libraries=(), devices=(), suits=False)
    probe = next((candidate for candidate in probed.accelerators if candidate.name == name), none)
    by_hand = _EMULATED if emulated and _EMULATED in accelerator.remedies else ""

    def remedy(kind: str) -> str:
        android = accelerator.remedies.get(f"android_{kind}", "") if probed.libc == "bionic" else ""
        return android or accelerator.remedies.get(kind, "")

    library, device = remedy(by_hand or "library"), remedy(by_hand or "device")
    needs = [Need(f"{_LIBRARY} {title}", *_library(accelerator, probe, library))] if accelerator.libraries else []
    # An emulated accelerator has no device file: the library computes, or a driver that it loads.
    if by_hand:
        file, device = _driver(probe), _driver_remedy(accelerator, probe, device)
    else:
        file, device = _device(probe, device)
    if file and probe.choice:
        file += f", of which {accelerator.choice} takes only those with {probe.choice!r} in their names"
        file += " (see `toolchain hardware`)"
    return [*needs, Need(f"device of {title}", file, device)]


def _driver(probe: AcceleratorProbe) -> str:
    """Return what computes: the library itself, or the first driver of a library that only loads drivers."""
    libraries = [library for library in probe.libraries[:1] if library not in probe.loaders]
    return next(iter((*libraries, *probe.drivers[:1])), "") if probe.libraries else ""


def _driver_remedy(accelerator: Accelerator, probe: AcceleratorProbe, remedy: str) -> str:
    """Return what brings a driver, or what to do with a variable that hides it."""
    if probe.named and not probe.libraries:
        return _no_library(accelerator, probe)
    if probe.drivers_named:
        variable = f"{accelerator.drivers_variable} is {probe.drivers_named}"
        return f"on the device: {variable}, where no driver is: unset or correct it"
    return remedy


def _no_library(accelerator: Accelerator, probe: AcceleratorProbe) -> str:
    variable = f"{accelerator.variable} is {probe.named}"
    return f"on the device: {variable}, which is not a library of {accelerator.title}: unset or correct it"


def _library(accelerator: Accelerator, probe: AcceleratorProbe, remedy: str) -> tuple[str, str]:
    """Return the library that is used, and the remedy where there is none."""
    if probe.named and not probe.libraries:
        return "", _no_library(accelerator, probe)
    # If the library is there but does not emulate, the device is missing.
    if not probe.libraries or _driver(probe) or remedy == accelerator.remedies.get(_EMULATED):
        return ", ".join(probe.libraries[:1]), remedy
    others = [library for library in probe.libraries if library not in probe.loaders]
    loader = f"{probe.libraries[0]} only loads drivers, and finds none"
    if others:
        return "", f"on the device: {loader}: {accelerator.variable}={others[0]}"
    return "", f"{loader}: {remedy}"


def _device(probe: AcceleratorProbe, remedy: str) -> tuple[str, str]:
    """Return the device file that is used, and what brings or opens it to this login."""
    # Only a file that identifies the accelerator counts, if there is one: the others may belong to another accelerator.
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
