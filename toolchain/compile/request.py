"""What is built: the one record that a build is asked for by, from the command line to the bundle."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from toolchain.board import Board
from toolchain.models.request import Model
from toolchain.records import SHIPPED

if TYPE_CHECKING:
    from toolchain.backends.base import Backend

Tell = Callable[[str], None]
"""Called with one line at the start of each stage."""


@dataclass(frozen=True)
class BuildRequest:
    """A model, for which board, with which tuning records and without which templates.

    Attributes:
        model: The model, and what it is run with.
        board: The board type, resolved.
        tell: Who is told about each stage.
        toolchain: `container` or `host`, where libraries are linked; empty means as the board file says.
        records: File of tuning records to apply; None means the board's own, if there is one; `shipped` means none but
            those that come with the toolchain.
        tuned: Whether records are applied at all.
        emulated: Whether the records of an emulator are applied, instead of those of a real board.
        modelled: Whether those of the board's model are, instead of either.
        without: Names of templates that must not be used.
        threads: Threads that it is to run on, whose records are applied; 0 for as many as the board file says.
    """

    model: Model
    board: Board
    tell: Tell = lambda _line: None
    toolchain: str = ""
    records: Path | None = None
    tuned: bool = True
    emulated: bool = False
    modelled: bool = False
    without: tuple[str, ...] = ()
    threads: int = 0

    @cached_property
    def backend(self) -> Backend:
        """The board's backend, without these templates."""
        from toolchain.backends import backend_of  # noqa: PLC0415 - TVM takes seconds, and not all who ask need it

        return backend_of(self.board, self.without)

    @property
    def modelled_as(self) -> str:
        """What the records that are applied were computed for by a model; empty where they are none of a model's."""
        return self.backend.cost_model_name if self.modelled else ""

    @property
    def only_shipped(self) -> bool:
        """Whether no records are applied but those that come with the toolchain."""
        return str(self.records) == SHIPPED

    def command(self, origin: str) -> str:
        """Name the command that makes the bundle again, but for the options about records, without any path of here.

        Args:
            origin: What the model was read from.
        """
        words = ["toolchain", "build", origin, "--board", self.board.name]
        if self.toolchain and self.toolchain != self.board.toolchain:
            words += ["--toolchain", self.toolchain]
        for name, shape in sorted(self.model.shapes.items()):
            words += ["--shape", f"{name}:{','.join(map(str, shape))}"]
        for name, value in sorted(self.model.fixed.items()):
            words += ["--fix", f"{name}={value}"]
        given = self.model.given  # its numbers are in the bundle's reference, if somebody has no file of that name
        for option, path in (("--input", given.npz), ("--image", given.image)):
            words += [option, shlex.quote(path.name)] if path else []
        return " ".join([*words, *precision(self.board), "--seed", str(given.seed)])


def precision(kind: Board) -> list[str]:
    """Return the option of a build by which a board computes in half precision; empty for single."""
    if not kind.target.float16:
        return []
    return ["--half-sums" if kind.target.half_sums else "--float16"]
