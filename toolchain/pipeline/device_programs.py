"""Our programs for a board: built when they are first needed, and then cached."""

from __future__ import annotations

import contextlib

from toolchain.board import Board
from toolchain.native import programs
from toolchain.native.programs import Program
from toolchain.progress import Stages, stage


def building_runner(board: Board) -> contextlib.AbstractContextManager[None]:
    """Build the runner in the background during a block, in which `runner` waits for it.

    Raises:
        BuildError: There is none for the board's triple.
    """
    return programs.building(programs.RUNNER, board.triple, board.machine)


def runner(board: Board, stages: Stages) -> Program:
    return _program(programs.RUNNER, "runner", board, stages)


def library(board: Board, stages: Stages) -> Program:
    """Build the library that applications link, or take it from the cache."""
    return _program(programs.LIBRARY, "library", board, stages)


def _program(name: str, title: str, board: Board, stages: Stages) -> Program:
    with stages.timed("runner"):
        stages.tell(stage(f"preparing the {title} for {board.triple}"))
        return programs.build(name, board.triple, board.machine, stages.tell)
