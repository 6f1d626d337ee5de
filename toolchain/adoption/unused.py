"""Warns of instructions that a device's CPU has and a board type leaves unused."""

from __future__ import annotations

from toolchain.adoption import choice
from toolchain.board import Board
from toolchain.device import probe
from toolchain.device.probe import cores, hardware_tables
from toolchain.device.probe.facts import DeviceFacts
from toolchain.device.probe.hardware_tables import Level
from toolchain.errors import ToolchainError
from toolchain.shell import Shell

_CPU = "cpu"
_LEAST_GAIN = 1.1
_WHOLE_FROM = 3  # from this factor on, a second digit would be noise


def warning(board: Board, facts: DeviceFacts, shell: Shell, *, listed: str = "") -> str:
    """Return a warning of instructions that a board type leaves unused on a device; empty if there are none.

    Args:
        board: The board type, resolved.
        facts: The device.
        shell: The device, which is probed for a better board type only if there may be one.
        listed: The device list that names the board type; empty if the command line does.
    """
    able = instructions(board, facts)
    if not able:
        return ""
    start = f"board {board.name} leaves unused what the device's CPU has: {able}"
    try:
        better = choice.choose(probe.ask(shell, board.root), "", "")
    except ToolchainError as fault:
        return f"{start}; no better board type can be named: {fault.message}"
    if instructions(better.board, facts):  # users may have their own board files
        return f"{start}; there is no board type that uses it"
    faster = gain(board, better.board) or "uses it (how much faster that is was not measured)"
    if better.text:
        return f"{start}; `toolchain board add {shell.name}` writes a board type that {faster}"
    name = better.board.name
    use = f'board = "{name}" in {listed}' if listed else f"--board {name}"
    return f"{start}; board {name} {faster}: {use}"


def instructions(board: Board, facts: DeviceFacts) -> str:
    """Name the instructions that a device has and that code for a board type does not use, although it could.

    Empty for a CPU that is not in `backends/cpus.toml`: its name may imply them.
    """
    if board.backend != _CPU or board.machine != facts.machine:
        return ""
    if hardware_tables.cpus().levels.get(board.machine):
        levels, flags = hardware_tables.cpus().levels[board.machine], {*facts.cpu_features}
        used, best = _level_of(board), next((level for level in levels if flags and {*level.flags} <= flags), None)
        if used is None or best is None:
            return ""
        return best.has if any(best.speed[dtype] >= _LEAST_GAIN * used.speed[dtype] for dtype in used.speed) else ""
    if board.target.mcpu == cores.ANY_CPU:
        implied = set[str]()
    else:
        same_name = [core for core in hardware_tables.cpus().parts.values() if core.mcpu == board.target.mcpu]
        if not same_name:
            return ""
        implied = set(same_name[0].uses)
    used_now = implied | {name[1:] for name in board.target.mattr if name.startswith("+")}
    used_now -= {name[1:] for name in board.target.mattr if name.startswith("-")}
    able = hardware_tables.cpus().used.get(board.machine, {})
    return ", ".join(
        title for name, title in able.items() if cores.has(name, facts.cpu_features) and name not in used_now
    )


def gain(board: Board, better: Board) -> str:
    """Describe how much faster networks run with another board type; empty if that was not measured."""
    used, best = _level_of(board), _level_of(better)
    if used is None or best is None:
        return ""
    factors = {dtype: best.speed[dtype] / used.speed[dtype] for dtype in used.speed}
    texts = [
        f"{dtype} networks about {factor:.{0 if factor >= _WHOLE_FROM else 1}f} times"
        for dtype, factor in factors.items()
        if factor >= _LEAST_GAIN
    ]
    return f"runs {' and '.join(texts)} as fast" if texts else ""


def _level_of(board: Board) -> Level | None:
    """Return the level that a board type compiles for; None for another CPU."""
    levels = hardware_tables.cpus().levels.get(board.machine, ())
    fitting = [level for level in levels if level.mcpu == board.target.mcpu and {*level.mattr} <= {*board.target.mattr}]
    return fitting[0] if fitting else None
