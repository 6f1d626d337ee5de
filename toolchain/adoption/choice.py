"""Which board type a device is of: one that there is, or a new one."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit

from toolchain import board as boards
from toolchain import temporary
from toolchain.adoption import cores
from toolchain.adoption.cores import Chosen
from toolchain.adoption.obstacles import TRIPLES
from toolchain.adoption.probe import Probed
from toolchain.board import Board
from toolchain.errors import InputError, ToolchainError, VerificationError

_CPU = "cpu"
_ANDROID = re.compile(r"aarch64-linux-android([0-9]+)")
_NEW_ANDROID = "aarch64-linux-android24"
_LONGEST_NAME = 40
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,62}")


@dataclass(frozen=True)
class Choice:
    """The board type of a device."""

    board: Board  # the board type
    text: str  # its file, where it has none yet; else empty
    accelerated: tuple[str, ...]  # other board types that suit it, for what computes there beside the CPU
    notes: tuple[str, ...]  # what a person should know of it


def check_named(named: str) -> None:
    """See that a board type that the user names is one, or may be the name of a new one; nothing is asked of a device.

    Raises:
        InputError: Its file is missing or has faults, or a new one cannot have that name.
    """
    if is_there(named):
        boards.load(named)
    elif named and not _NAME.fullmatch(named):
        raise InputError(
            f"{named!r} is not a valid name of a board type",
            details="a new one is written to the folder of your board files, by its name",
            hint="write letters, digits, dots, hyphens and underscores; or a board file that there is, PATH.toml",
        )


def is_there(named: str) -> bool:
    """Whether a name is that of a board type that there is, or is a path to its file."""
    return named.endswith(".toml") or named in boards.names()


def choose(found: Probed, named: str, fallback: str) -> Choice:
    """Choose the board type of a device.

    Args:
        found: What the device is.
        named: The board type that the user wants, or the name of a new one; empty if they leave it to us.
        fallback: What a new one is called if the user has named the device; empty if they have not.

    Raises:
        InputError: A board file has faults, or a new one cannot have that name.
        VerificationError: The named board type is not that of this device.
    """
    check_named(named)
    known = _known()
    chosen = cores.choose(found.clusters, found.machine)
    accelerated = _accelerated(found, chosen, known)
    if is_there(named):
        board = boards.load(named)
        _check_runs(board, found)
        return Choice(board, "", accelerated, _notes(board, chosen, found))
    fitting = [one for one in known if one.backend == _CPU and fits(one, chosen, found)]
    if fitting and not named:
        best = min(fitting, key=lambda board: _distance(board, chosen, found))
        return Choice(best, "", accelerated, _notes(best, chosen, found))
    name = named or _free(_plain(fallback) or chosen.board or _called(found, chosen), boards.names())
    board, text = _new(name, chosen, found, known)
    return Choice(board, text, accelerated, _notes(board, chosen, found))


def _known() -> list[Board]:
    """Return the board types of devices; one with faults is none of them."""
    found = []
    for name in boards.names():
        try:
            one = boards.load(name)
        except ToolchainError:
            continue  # `boards check` explains them
        if one.connection == "ssh":
            found.append(one)
    return found


def runs(board: Board, found: Probed) -> bool:
    """Whether programs for a board type start on a device."""
    if board.connection != "ssh" or board.machine != found.machine:
        return False
    android = _ANDROID.fullmatch(board.triple)
    if found.libc == "bionic":
        suits = bool(android and int(android[1]) <= int(found.libc_version))
    else:
        suits = board.triple == TRIPLES.get(found.machine)
    return suits and set(board.cpu_features) <= found.flags


def fits(board: Board, chosen: Chosen, found: Probed) -> bool:
    """Whether a board type is that of a device: the same machine, triple, CPU and features."""
    wanted, has = set(chosen.mattr), set(board.target.mattr)
    return (
        runs(board, found)
        and board.target.mcpu == chosen.mcpu
        and {one for one in wanted if one.startswith("-")} <= has
        and (chosen.known or wanted == has)
        and all(cores.has(one[1:], found.flags) for one in has if one.startswith("+"))
    )


def _distance(board: Board, chosen: Chosen, found: Probed) -> tuple[int, int, str]:
    """Return how far a board type that fits is from a device: by features that it leaves unused, then by CPUs."""
    unused = {*chosen.mattr} - {*board.target.mattr}
    return len(unused), abs(board.cores - found.usable_cpus), board.name


def _check_runs(board: Board, found: Probed) -> None:
    if not runs(board, found):
        lacking = sorted(set(board.cpu_features) - found.flags)
        details = f"the device is {found.machine} with {found.libc} {found.libc_version}".rstrip()
        details += f"; its CPU has no {', '.join(lacking)}" if lacking else ""
        raise VerificationError(
            f"{found.name} is no {board.name}, which is {board.machine} ({board.triple})",
            details=details,
            hint="leave --board out: the board type that fits is found",
        )


def _accelerated(found: Probed, chosen: Chosen, known: Sequence[Board]) -> tuple[str, ...]:
    """Name the board types with the same CPU, or for any, that compute with what there is beside it."""
    backends = {one.backend for one in found.accelerators if one.suits}
    mine = [one for one in known if one.backend in backends and not one.emulated and runs(one, found)]
    return tuple(one.name for one in mine if one.target.mcpu in {chosen.mcpu, cores.ANY_CPU})


def _notes(board: Board, chosen: Chosen, found: Probed) -> tuple[str, ...]:
    notes = []
    if not chosen.known:
        shown = ", ".join(filter(None, found.clusters[0].part)) if found.clusters else ""
        notes.append(f"its CPU is not known ({shown or 'it names none'}): {chosen.mcpu} and its features are used")
    if board.target.mcpu != chosen.mcpu:
        notes.append(f"board {board.name} compiles for {board.target.mcpu}, and the device is a {chosen.mcpu}")
    if board.cores and board.cores != found.usable_cpus:
        notes.append(
            f"kernels are scheduled for {board.cores} CPUs, as its board file says; it has {found.usable_cpus}"
        )
    if len(found.clusters) > 1:
        big = found.clusters[0]
        notes.append(f"--threads {big.count} keeps a model to its {big.count} {big.name}, or `threads` in a board file")
    return tuple(notes)


def _called(found: Probed, chosen: Chosen) -> str:
    """Make a name for a board type of the device's model, or of its CPU."""
    bits = "-armv7" if found.machine != found.kernel_machine else ""
    model = re.sub(r"(?i)\brev(ision)? .*$|[,(].*$", "", found.model)
    for text in (model, f"{found.machine}-{chosen.mcpu}"):
        name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:_LONGEST_NAME].strip("-")
        if name and text:
            return name + bits
    return found.machine


def _plain(name: str) -> str:
    """Make a board type's name of a device's: one that ends in `.toml` would be a path."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")


def _free(name: str, taken: Collection[str]) -> str:
    return next(one for one in (name, *(f"{name}-{count}" for count in range(2, 1000))) if one not in taken)


def _new(name: str, chosen: Chosen, found: Probed, known: Sequence[Board]) -> tuple[Board, str]:
    """Return a new board type, and its file."""
    triple = _NEW_ANDROID if found.libc == "bionic" else TRIPLES[found.machine]
    like = next((one for one in known if one.triple == triple and one.backend == _CPU), None)
    values: dict[str, Any] = {
        "description": _description(found),
        "connection": "ssh",
        "machine": found.machine,
        "triple": triple,
        **({"toolchain": like.toolchain, "image": like.image} if like else {}),
        **({"root": like.root} if like and found.libc == "bionic" else {}),
        "cores": found.usable_cpus,
        **({"cpu_features": list(chosen.cpu_features)} if chosen.cpu_features else {}),
        "target": {"kind": "llvm", "mcpu": chosen.mcpu, **({"mattr": list(chosen.mattr)} if chosen.mattr else {})},
    }
    text = f"# Written by `toolchain board add`, from what a device said of itself.\n{tomlkit.dumps(values)}"
    return _checked(name, text), text


def _description(found: Probed) -> str:
    cpus = " and ".join(f"{one.count} {one.name}" for one in found.clusters[:4])
    bits = ", 32-bit programs" if found.machine != found.kernel_machine else ""
    return f"{found.model or found.machine}: {cpus or found.machine}{bits}"[:120]


def _checked(name: str, text: str) -> Board:
    """Check a new board file as `boards check` does.

    Raises:
        InputError: It has faults.
    """
    from toolchain import backends  # noqa: PLC0415 - TVM takes two seconds, which most devices need not

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
