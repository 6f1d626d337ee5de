"""Whether a bundle is one for a board: what was built for another is refused, however alike the machines are."""

from __future__ import annotations

from toolchain.board import Board
from toolchain.bundle.manifest import Manifest
from toolchain.errors import VerificationError


def check_board(manifest: Manifest, board: Board, named: str = "", root: str = "") -> None:
    """Refuse a bundle that was built for another board type, or for another target of one of that name.

    A library for the CPU alone runs on every board of its machine, but it is not what that board's name promises: a
    report would call it the GPU's, and its records, threads and tolerance are another's.

    Args:
        manifest: The bundle's.
        board: The board type that it is to run as, resolved.
        named: What the user named, where that says more than the model's name: a folder or a file here.
        root: The store that it is in, where it is a release.

    Raises:
        VerificationError: It was built for something else.
    """
    if manifest.board != board.name:
        raise VerificationError(
            f"{named or manifest.name} was built for board {manifest.board}, not for board {board.name}",
            details=f"it is for {_what(manifest)}",
            hint=_other_board(manifest, board, root),
        )
    wanted = (board.machine, board.triple, board.target.kind)
    if (manifest.machine, manifest.triple, manifest.target.get("kind")) != wanted:
        raise VerificationError(
            f"{manifest.name} was built for a different board that is also named {board.name}",
            details=f"its target is {_what(manifest)}; this one is {', '.join(wanted)}",
            hint=_build(manifest, board),
        )


def _other_board(manifest: Manifest, board: Board, root: str) -> str:
    """Name the options that suit a bundle or a release; board types of one machine may have stores of their own."""
    if not root:
        return f"use --board {manifest.board} or its board file; or run {_build(manifest, board)}"
    elsewhere = f" --root {root}" if board.connection == "local" else ""
    deploy = f"`toolchain deploy {manifest.model.get('origin', 'MODEL')} --board {board.name}`"
    return f"--board {manifest.board}{elsewhere}, or its file, uses this release; {deploy} replaces it"


def _what(manifest: Manifest) -> str:
    return f"{manifest.machine}, {manifest.triple}, {manifest.target.get('kind')}"


def _build(manifest: Manifest, board: Board) -> str:
    return f"`toolchain build {manifest.model.get('origin', 'MODEL')} --board {board.name}`"
