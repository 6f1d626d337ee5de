"""The options of a build in one record, from the command line to the bundle."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from toolchain.board import Board
from toolchain.models.request import Model
from toolchain.pictures import Pictures
from toolchain.progress import Progress
from toolchain.records import SHIPPED
from toolchain.sounds import Sounds
from toolchain.texts import Texts

if TYPE_CHECKING:
    from toolchain.backends.base import Backend


@dataclass(frozen=True)
class BuildRequest:
    """A model and its board, the tuning records to apply and the templates to leave out."""

    model: Model  # the model and its inputs
    board: Board  # the board type, resolved
    progress: Progress = lambda _line: None  # called with a line about each stage
    toolchain: str = ""  # `container` or `host`, where libraries are linked; empty for the choice of the board file
    # File of tuning records to apply; None means the user's file for the board, if there is one; `shipped` means
    # only those that come with the toolchain
    records: Path | None = None
    tuned: bool = True  # whether any records are applied
    emulated: bool = False  # whether the records of an emulator are applied, instead of those of a real board
    modelled: bool = False  # whether the records of the board's cost model are applied, instead of either
    without: tuple[str, ...] = ()  # names of templates that must not be used
    threads: int = 0  # number of threads for which kernels are chosen; 0 for the number in the board file
    max_memory: int = 0  # bytes that a process which runs the network may take; 0 for any number
    pipeline: Pictures | Sounds | Texts | None = None  # the steps, checked against the model
    supported_until: str = ""  # the last day of the publisher's support, for the manifest; empty for none

    @cached_property
    def backend(self) -> Backend:
        """The board's backend for so many threads, without these templates."""
        from toolchain.backends import backend_of  # noqa: PLC0415 - TVM takes seconds, and not every command needs it

        return backend_of(self.board, self.without, self.threads)

    @property
    def is_reduced(self) -> bool:
        """Whether the board computes in a reduced precision, or has weights of few bits."""
        return bool(self.board.target.reduced_precision)

    @property
    def modelled_as(self) -> str:
        """The cost model whose records are applied; empty for measured records."""
        return self.backend.cost_model_name if self.modelled else ""

    @property
    def only_shipped(self) -> bool:
        """Whether only the records that come with the toolchain are applied."""
        return str(self.records) == SHIPPED

    def _variant_arguments(self) -> list[str]:
        """Return the options that make the variants again."""
        variants = self.model.variants
        if range_ := self.model.range:
            return ["--dim", shlex.quote(f"{range_.name}={range_.least}..{range_.greatest}")]
        arguments: list[str] = []
        for name in variants[0].dims if variants else ():
            sizes = dict.fromkeys(str(variant.dims[name]) for variant in variants)
            arguments += ["--dim", shlex.quote(f"{name}={','.join(sizes)}")]
        for variant in variants:
            for name, shape in sorted(variant.shapes.items()):
                text = f"{variant.name}={name}:{','.join(map(str, shape))}"
                arguments += ["--shape", shlex.quote(text)]
        return arguments

    def command(self, origin: str) -> str:
        """Return the command that builds the bundle again, without options about records and without local folders.

        `origin` is the file or name that the model was read from.
        """
        arguments = ["toolchain", "build", origin, "--board", self.board.name]
        if self.toolchain and self.toolchain != self.board.toolchain:
            arguments += ["--toolchain", self.toolchain]
        for name, shape in sorted(self.model.shapes.items()):
            arguments += ["--shape", f"{name}:{','.join(map(str, shape))}"]
        for name, size in sorted(self.model.dims.items()):
            arguments += ["--dim", shlex.quote(f"{name}={size}")]
        arguments += self._variant_arguments()
        for name, result in self.model.states.items():
            arguments += ["--state", shlex.quote(f"{name}={result}")]
        arguments += ["--state", "auto"] if self.model.detection == "use" else []
        for name, value in sorted(self.model.fixed.items()):
            arguments += ["--fix", f"{name}={value}"]
        input_source = self.model.given
        # The name is enough: the bundle's reference has the numbers for users without that file.
        for option, path in input_source.options:
            arguments += [option, shlex.quote(path.name)]
        arguments += [shlex.quote(text) for text in self.pipeline.steps.arguments] if self.pipeline else []
        arguments += ["--supported-until", self.supported_until] if self.supported_until else []
        return " ".join([*arguments, *precision_options(self.board), "--seed", str(input_source.seed)])


def precision_options(board: Board) -> list[str]:
    """Return the option of a build that selects a reduced precision; empty for none."""
    if board.target.weights:
        return ["--weights", board.target.weights]
    if not board.target.float16:
        return ["--bfloat16"] if board.target.bfloat16 else []
    return ["--half-sums" if board.target.half_sums else "--float16"]
