"""Chooses the board type of a device: an existing one that fits, or a new one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit

from toolchain import architecture, temporary
from toolchain import board as boards
from toolchain.adoption.obstacles import LEAST_ANDROID
from toolchain.board import Board
from toolchain.device.probe import DeviceProbe, cores, hardware_tables
from toolchain.device.probe.cores import CpuTarget
from toolchain.errors import InputError, ToolchainError, VerificationError

_CPU = "cpu"
_LONGEST_NAME = 40
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,62}")


@dataclass(frozen=True)
class Choice:
    board: Board
    text: str  # content of the file to write for a new board type; else empty
    accelerated: tuple[str, ...]  # other board types that fit, for the device's accelerators
    notes: tuple[str, ...]  # for the user


def check_named(name: str) -> None:
    """Check the name of a board type that a user names, without contacting a device.

    Raises:
        InputError: Its file is missing or has faults, or a new one cannot have that name.
    """
    if is_there(name):
        boards.load(name)
    elif name and not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} is not a valid name of a board type",
            details="a new one is written to the folder of your board files, by its name",
            hint="write letters, digits, dots, hyphens and underscores; or an existing board file, PATH.toml",
        )


def is_there(name: str) -> bool:
    """Whether a name is an existing board type, or a path to a board file."""
    return name.endswith(".toml") or name in boards.names()


def choose(probed: DeviceProbe, name: str, fallback: str) -> Choice:
    """Choose the board type of a device.

    Args:
        probed: The device.
        name: The board type that the user names, or the name of a new one; empty to choose one.
        fallback: Name for a new one, from the device's name; empty if the user has not named the device.

    Raises:
        InputError: A board file has faults, or a new one cannot have that name.
        VerificationError: Programs for the named board type do not run on this device.
    """
    check_named(name)
    candidates = _ssh_boards()
    chosen = cores.choose(probed.clusters, probed.machine)
    backends = {accelerator.backend for accelerator in probed.accelerators if accelerator.suits}
    accelerated = tuple(
        board.name
        for board in candidates
        if board.backend in backends and not board.emulated and runs(board, probed)
        if board.target.mcpu in {chosen.mcpu, cores.ANY_CPU}
    )
    if is_there(name):
        board = boards.load(name)
        check_runs(board, probed)
        return Choice(board, "", accelerated, _notes(board, chosen, probed))
    fitting = [board for board in candidates if board.backend == _CPU and fits(board, chosen, probed)]
    if fitting and not name:
        # The best one is for this very device, else leaves the fewest features unused, and is for about as many CPUs.
        best = min(
            fitting,
            key=lambda board: (
                not has_names(board),
                len({*chosen.mattr} - {*board.target.mattr}),
                abs(board.cpus - probed.usable_cpus),
                board.name,
            ),
        )
        return Choice(best, "", accelerated, _notes(best, chosen, probed))
    if not name:
        # Dots become hyphens: a name that ended in `.toml` would be read as a path.
        plain = re.sub(r"[^A-Za-z0-9_-]+", "-", fallback).strip("-") or chosen.board or _model_name(probed, chosen)
        numbered = (plain, *(f"{plain}-{count}" for count in range(2, 1000)))
        existing = boards.names()
        name = next(candidate for candidate in numbered if candidate not in existing)
    board, text = _new_board(name, chosen, probed, candidates)
    return Choice(board, text, accelerated, _notes(board, chosen, probed))


def check_runs(board: Board, probed: DeviceProbe) -> str:
    """Return what a board type's programs are for; raise a VerificationError if they do not start on a device."""
    if not runs(board, probed):
        lacking = sorted(set(board.cpu_features) - probed.flags)
        details = f"the device is {probed.machine} with {probed.libc} {probed.libc_version}".rstrip()
        details += f"; its CPU has no {', '.join(lacking)}" if lacking else ""
        raise VerificationError(
            f"{probed.name} is not a {board.name}, which is {board.machine} ({board.triple})",
            details=details,
            hint="leave --board out: then a board type that fits is chosen",
        )
    return f"{board.name}, for {board.target.mcpu}"


def _ssh_boards() -> list[Board]:
    candidates = []
    for name in boards.names():
        try:
            board = boards.load(name)
        except ToolchainError:
            continue  # `board check` explains them
        if board.connection == "ssh":
            candidates.append(board)
    return candidates


def runs(board: Board, probed: DeviceProbe) -> bool:
    """Whether programs for a board type start on a device."""
    if board.connection != "ssh" or board.machine != probed.machine:
        return False
    if probed.libc == "bionic":
        api = architecture.android_api(board.triple)
        suits = api is not None and api <= int(probed.libc_version)
    else:
        suits = board.triple == architecture.of_machine(board.machine).triple
    return suits and set(board.cpu_features) <= probed.flags


def has_names(board: Board) -> bool:
    """Whether a board type is for certain devices only, those that report one of its names."""
    return bool(board.compatible or board.cpu_names)


def is_named(board: Board, probed: DeviceProbe) -> bool:
    """Whether a device reports one of a board type's names."""
    return not {*board.compatible}.isdisjoint(probed.compatible) or _has_cpu_name(board, probed)


def _has_cpu_name(board: Board, probed: DeviceProbe) -> bool:
    return any(cluster.name.startswith(board.cpu_names) for cluster in probed.clusters)


def _has_levels(probed: DeviceProbe) -> bool:
    return probed.machine in hardware_tables.cpus().levels


def fits(board: Board, chosen: CpuTarget, probed: DeviceProbe) -> bool:
    """Whether a board type has the machine, triple, CPU and features of a device, and its name if it has names."""
    if has_names(board) and not is_named(board, probed):
        return False
    if has_names(board) and _has_levels(probed):  # `chosen` is one of them, and has no name of a CPU
        return runs(board, probed)
    expected, features = set(chosen.mattr), set(board.target.mattr)
    return (
        runs(board, probed)
        and board.target.mcpu == chosen.mcpu
        and {feature for feature in expected if feature.startswith("-")} <= features
        # `generic` implies no features, so code must use exactly those that the device has.
        and (chosen.has_name or expected == features)
        and all(cores.has(feature[1:], probed.flags) for feature in features if feature.startswith("+"))
    )


def _notes(board: Board, chosen: CpuTarget, probed: DeviceProbe) -> tuple[str, ...]:
    notes = []
    if not chosen.has_name:
        cpu_id = ", ".join(filter(None, probed.clusters[0].part)) if probed.clusters else ""
        notes.append(f"its CPU is not known ({cpu_id or 'it names none'}): {chosen.mcpu} and its features are used")
    if board.target.mcpu != chosen.mcpu and not (is_named(board, probed) and _has_levels(probed)):
        notes.append(f"board {board.name} compiles for {board.target.mcpu}, and the device is a {chosen.mcpu}")
    if board.cpus and board.cpus != probed.usable_cpus:
        notes.append(f"kernels are scheduled for the {board.cores} CPUs of its board file; it has {probed.usable_cpus}")
    if board.core_kinds:
        kinds, big = " and ".join(f"{kind.cores} {kind.name}" for kind in board.core_kinds), board.core_kinds[0]
        used = (
            f"{board.threads} threads, on the fastest; --threads N changes that"
            if board.threads
            else f"a thread on each; --threads {big.cores} keeps it to the {big.cores} {big.name}"
        )
        notes.append(f"board {board.name} has {kinds}: a model runs with {used}")
    elif len(probed.clusters) > 1:
        first = probed.clusters[0]
        notes.append(
            f"--threads {first.count} keeps a model to its {first.count} {first.name}, or `threads` in a board file"
        )
    return tuple(notes)


def _model_name(probed: DeviceProbe, chosen: CpuTarget) -> str:
    """Return a name for a board type, from the device's model or its CPU."""
    bits = f"-{architecture.of_machine(probed.machine).label}" if probed.machine != probed.kernel_machine else ""
    model = re.sub(r"(?i)\brev(ision)? .*$|[,(].*$", "", probed.model)
    for text in (model, f"{probed.machine}-{chosen.mcpu}"):
        name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:_LONGEST_NAME].strip("-")
        if name and text:
            return name + bits
    return probed.machine


def _new_board(name: str, chosen: CpuTarget, probed: DeviceProbe, candidates: Sequence[Board]) -> tuple[Board, str]:
    """Return a new board type, and its file."""
    own = architecture.of_machine(probed.machine)
    triple = f"{own.android}{LEAST_ANDROID}" if probed.libc == "bionic" else own.triple
    like = next((board for board in candidates if board.triple == triple and board.backend == _CPU), None)
    cpus = " and ".join(f"{cluster.count} {cluster.name}" for cluster in probed.clusters[:4])
    bits = ", 32-bit programs" if probed.machine != probed.kernel_machine else ""
    values: dict[str, Any] = {
        "description": f"{probed.model or probed.machine}: {cpus or probed.machine}{bits}"[:120],
        "connection": "ssh",
        "machine": probed.machine,
        "triple": triple,
        **({"toolchain": like.toolchain, "image": like.image} if like else {}),
        **({"root": like.root} if like and probed.libc == "bionic" else {}),
        "cores": probed.usable_cpus,
        **({"cpu_features": list(chosen.cpu_features)} if chosen.cpu_features else {}),
        "target": {"kind": "llvm", "mcpu": chosen.mcpu, **({"mattr": list(chosen.mattr)} if chosen.mattr else {})},
    }
    text = f"# Written by `toolchain board add`, from what a device reported.\n{tomlkit.dumps(values)}"
    return _check_board(name, text), text


def _check_board(name: str, text: str) -> Board:
    """Check a new board file as `board check` does."""
    from toolchain import backends  # noqa: PLC0415 - TVM loads in two seconds, and most devices need no new file

    with temporary.folder() as folder:
        path = Path(folder) / f"{name}.toml"
        path.write_text(text, encoding="utf-8")
        board, faults = boards.check(path)
    faults = faults or (backends.faults(board.resolved()) if board else [])
    if board is None or faults:
        raise InputError(
            f"no board file can be made for this device: {len(faults)} fault(s)",
            details="\n".join(map(str, faults)),
            hint=f"write one by hand, then name it with --board; docs: adding-a-board\n{text}",
        )
    return board
