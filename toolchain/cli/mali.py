"""The command `mali-cost`: what kernels cost on GPUs that are not here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolchain import board
from toolchain.cli import completion, options
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gathered, option, record
from toolchain.cli.reports import ReportingCommand, written
from toolchain.errors import InputError

if TYPE_CHECKING:
    from toolchain.backends.mali.cost import Compiler
    from toolchain.backends.mali.cost.network import Costs, Launch
    from toolchain.board import Board

_SOURCE = ".cl"


@dataclass(frozen=True)
class CostOptions:
    """The options of `mali-cost`."""

    board_name: str | None = option(
        "--board", shell_complete=completion.boards, help="Board type, or its .toml: kernels are written for it."
    )
    gpus: tuple[str, ...] = option(
        "--gpu", multiple=True, metavar="NAME", help="GPU to compile for, such as g610; by default the board's."
    )
    model: options.ModelOptions = record(options.ModelOptions)
    compiling: options.CompileOptions = record(options.CompileOptions)
    compiler_options: tuple[str, ...] = option(
        "--cl-option", multiple=True, metavar="OPTION", help="Give the OpenCL compiler an option."
    )
    html_path: Path | None = options.html()

    def board(self) -> Board | None:
        """Load the board type, resolved; without one, a board that has the first GPU.

        Raises:
            InputError: There is no such board, or it has no GPU that there is a model of.
        """
        if self.board_name is None:
            boards = (board.load(name) for name in board.names())
            having = [one for one in boards if one.gpu and one.gpu.name in self.gpus[:1]]
            return self._half(having[0]) if having else None
        found = self._half(board.load(self.board_name))
        if found.backend != "mali":
            raise InputError(
                f"board {found.name} has no Mali GPU", hint="`toolchain boards` lists those whose backend is mali"
            )
        return found

    def _half(self, kind: Board) -> Board:
        kind = kind.resolved()
        return kind.in_float16() if self.compiling.kernels.float16 else kind


@click.command("mali-cost", cls=ReportingCommand, reports=options.PAGES)
@click.argument("sources", nargs=-1, required=True, metavar="MODEL|PACKAGE|FILE.cl...")
@gathered("asked", CostOptions)
@options.json_flag
@click.pass_obj
def mali_cost(console: Console, /, sources: tuple[str, ...], asked: CostOptions, *, as_json: bool) -> Result:
    """Say what the kernels of models, packages or files of OpenCL C cost on Mali GPUs, by their machine code."""
    from toolchain.backends.mali import cost
    from toolchain.backends.mali.cost import shown

    kind = asked.board()
    names = asked.gpus or ((kind.gpu.name,) if kind and kind.gpu else ())
    if not names:
        raise InputError("which GPU is not said", hint="name one with --gpu, such as --gpu g610, or its --board")
    for name in names:
        cost.gpu(name)
    texts = [_text(source) for source in sources if source.endswith(_SOURCE)]
    models = [source for source in sources if not source.endswith(_SOURCE)]
    if models and kind is None:
        raise InputError(
            f"no board with a {names[0]} is known, which {models[0]} could be compiled for", hint="name a --board"
        )
    launches = {source: _launches(console, source, kind, asked) for source in models if kind}
    root = cost.root(console.say)
    compilers = [cost.Compiler(root, cost.gpu(name), asked.compiler_options) for name in names]
    every = [one for compiler in compilers for one in _every(compiler, texts, launches, kind)]
    result = Result(shown.lines(every), [one.document() for one in every], as_json)
    return written(result, None, {asked.html_path: lambda: shown.html(every).encode()})


def _every(
    compiler: Compiler, texts: Sequence[str], launches: dict[str, tuple[Launch, ...]], kind: Board | None
) -> list[Costs]:
    from toolchain.backends.mali.cost import network

    own = kind.gpu if kind and kind.gpu and kind.gpu.name == compiler.gpu.name else None
    every = [network.network(Path(source).name, one, compiler, own) for source, one in launches.items()]
    return [*every, network.files("files", texts, compiler)] if texts else every


def _text(source: str) -> str:
    from toolchain.backends.mali.cost import kernels

    try:
        text = Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise InputError(f"cannot read {source}: {fault}") from fault
    if not kernels(text):
        raise InputError(f"{source} has no kernel", hint="a kernel of OpenCL C begins with __kernel void NAME(")
    return text


def _launches(console: Console, source: str, kind: Board, asked: CostOptions) -> tuple[Launch, ...]:
    from toolchain.backends import backend_of
    from toolchain.backends.mali.cost import network
    from toolchain.compile import compiler

    path = Path(source)
    if path.is_dir() or (path.is_file() and path.suffix != ".onnx"):
        return network.launches(compiler.graph_of(path), backend_of(kind).target)
    request = asked.compiling.request(asked.model.model(source), kind, console.say, None)
    return network.launches(compiler.scheduled(request), request.backend.target)
