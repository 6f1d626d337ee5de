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
_HINT = "names that end with .cl are files of OpenCL C; name such a file, a model or a package"


@dataclass(frozen=True)
class CostOptions:
    """The options of `mali-cost`."""

    board_name: str | None = option(
        "--board",
        metavar="BOARD",
        shell_complete=completion.boards,
        help="Board type, or a board file (.toml), to compile for.",
    )
    gpus: tuple[str, ...] = option(
        "--gpu",
        multiple=True,
        metavar="NAME",
        help="GPU to compile for, such as g610; can be repeated. Default: that of the board.",
    )
    model: options.ModelOptions = record(options.ModelOptions)
    inputs: options.GivenOptions = record(options.GivenOptions)
    compiling: options.CompileOptions = record(options.CompileOptions)
    compiler_options: tuple[str, ...] = option(
        "--cl-option", multiple=True, metavar="OPTION", help="Option for the OpenCL compiler; can be repeated."
    )
    html_path: Path | None = options.html()

    def board(self, gpus: Sequence[str]) -> Board | None:
        """Load the board type, resolved; without one, a board that has the first GPU.

        Args:
            gpus: Names of GPUs, as board files have them.

        Raises:
            InputError: There is no such board, or it has no GPU that there is a model of.
        """
        if self.board_name is None:
            boards = (board.load(name) for name in board.names())
            having = [one for one in boards if one.gpu and one.gpu.name in gpus[:1]]
            return self._half(having[0]) if having else None
        found = self._half(board.load(self.board_name))
        if found.backend != "mali":
            raise InputError(
                f"board {found.name} has no Mali GPU", hint="`toolchain boards` lists those whose backend is mali"
            )
        return found

    def _half(self, kind: Board) -> Board:
        kind = kind.resolved()
        wanted = self.compiling.kernels.precision
        return kind.in_float16(half_sums=wanted["half_sums"]) if wanted["float16"] else kind


@click.command("mali-cost", cls=ReportingCommand, reports=options.PAGES)
@click.argument(
    "sources", nargs=-1, required=True, metavar="MODEL|PACKAGE|FILE.cl...", callback=options.telling("path")
)
@gathered("asked", CostOptions)
@options.json_flag
@click.pass_obj
def mali_cost(console: Console, /, sources: tuple[str, ...], asked: CostOptions, *, as_json: bool) -> Result:
    """Estimate the cost of kernels on Mali GPUs.

    The kernels are those of models, packages or files of OpenCL C. The estimate is made from their machine code; no
    device is needed.
    """
    from toolchain.backends.mali import cost
    from toolchain.backends.mali.cost import language, shown

    named = tuple(dict.fromkeys(cost.gpu(name).name for name in asked.gpus))
    kind = asked.board(named)
    names = named or ((kind.gpu.name,) if kind and kind.gpu else ())
    if not names:
        raise InputError("no GPU is named", hint="add --gpu NAME, such as --gpu g610, or --board BOARD")
    words = language.checked(asked.compiler_options)
    each = list(dict.fromkeys(sources))
    texts = [_text(source) for source in each if source.endswith(_SOURCE)]
    models = [source for source in each if not source.endswith(_SOURCE)]
    if models and kind is None:
        raise InputError(f"no board type has a {names[0]} to compile {models[0]} for", hint="add --board BOARD")
    launches = {source: _launches(console, source, kind, asked) for source in models if kind}
    root = cost.root(console.say)
    compilers = [cost.Compiler(root, cost.gpu(name), words) for name in names]
    every = [one for compiler in compilers for one in _every(compiler, texts, launches, kind)]
    result = Result(shown.lines(every), [one.document() for one in every], as_json, shown.refusal(every))
    return written(result, None, {asked.html_path: lambda: shown.html(every).encode()})


def _every(
    compiler: Compiler, texts: Sequence[str], launches: dict[str, tuple[Launch, ...]], kind: Board | None
) -> list[Costs]:
    from toolchain.backends.mali.cost import network

    own = kind.gpu if kind and kind.gpu and kind.gpu.name == compiler.gpu.name else None
    every = [network.network(Path(source).name, one, compiler, own) for source, one in launches.items()]
    return [*every, network.files("files", texts, compiler)] if texts else every


def _text(source: str) -> str:
    from toolchain import files
    from toolchain.backends.mali.cost import kernels

    try:
        text = files.read_limited(Path(source)).decode()
    except OSError as fault:
        raise InputError(f"cannot read {source}: {fault.strerror or fault}", hint=_HINT) from fault
    except UnicodeDecodeError as fault:
        raise InputError(f"{source} is not a text file: {fault}", hint=_HINT) from fault
    try:
        found = kernels(text)
    except InputError as fault:
        raise InputError(f"{source}: {fault.message}", hint=fault.hint) from fault
    if not found:
        raise InputError(f"{source} has no kernel", hint="a kernel of OpenCL C begins with __kernel void NAME(")
    return text


def _launches(console: Console, source: str, kind: Board, asked: CostOptions) -> tuple[Launch, ...]:
    from toolchain.backends import backend_of
    from toolchain.backends.mali.cost import network
    from toolchain.compile import compiler

    path = Path(source)
    if path.is_dir() or (path.is_file() and path.suffix != ".onnx"):
        made = compiler.load_graph(path, kind)
        found = network.launches(made, backend_of(kind).target)
    else:
        request = asked.compiling.request(asked.model.model(source, asked.inputs), kind, console.say, None)
        found = network.launches(compiler.schedule(request), request.backend.target)
    if not found:
        raise InputError(f"{source} has no kernel for a GPU", hint="the whole model runs on the CPU, or is constant")
    return found
