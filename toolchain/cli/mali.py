"""The command `inspect kernels`: the cost of kernels on GPUs, estimated without having one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolchain import board as board_files
from toolchain.cli import common, completion, declare
from toolchain.cli.console import Console, Result
from toolchain.cli.gathering import gather, option, record
from toolchain.cli.inspection import inspect
from toolchain.cli.reports import write_reports
from toolchain.errors import InputError

if TYPE_CHECKING:
    from toolchain.backends.mali.cost.network import Launch
    from toolchain.board import Board

_SOURCE = ".cl"
_HINT = "names that end with .cl are files of OpenCL C; name such a file, a model or a package"


@dataclass(frozen=True)
class CostOptions:
    """The options of `inspect kernels`."""

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
    model: common.ModelOptions = record(common.ModelOptions)
    inputs: common.InputFileOptions = record(common.InputFileOptions)
    compiling: common.CompileOptions = record(common.CompileOptions)
    compiler_options: tuple[str, ...] = option(
        "--cl-option", multiple=True, metavar="OPTION", help="Option for the OpenCL compiler; can be repeated."
    )
    html_path: Path | None = common.html()

    def board(self, gpus: Sequence[str]) -> Board | None:
        """Load the board type, resolved; without one, a board that has the first GPU.

        Args:
            gpus: Names of GPUs, as board files have them.

        Raises:
            InputError: There is no such board, or it has no Mali GPU.
        """
        if self.board_name is None:
            boards = (board_files.load(name) for name in board_files.names())
            matching = [candidate for candidate in boards if candidate.gpu and candidate.gpu.name in gpus[:1]]
            return self._with_precision(matching[0]) if matching else None
        board = self._with_precision(board_files.load(self.board_name))
        if board.backend != "mali":
            raise InputError(
                f"board {board.name} has no Mali GPU", hint="`toolchain board list` lists those whose backend is mali"
            )
        return board

    def _with_precision(self, board: Board) -> Board:
        return board.resolved().with_precision(**self.compiling.kernels.precision)


@inspect.command("kernels", reports=common.PAGES)
@click.argument(
    "sources", nargs=-1, required=True, metavar="MODEL|PACKAGE|FILE.cl...", callback=common.explain_name("path")
)
@gather("options", CostOptions)
@declare.json_flag
@click.pass_obj
def inspect_kernels(console: Console, /, sources: tuple[str, ...], options: CostOptions, *, as_json: bool) -> Result:
    """Show the kernels of a model or a package, and their cost on Mali GPUs.

    The cost is estimated from their machine code, without a device. The kernels may also be files of OpenCL C.
    """
    from toolchain.backends.mali import cost
    from toolchain.backends.mali.cost import compiler as compilation
    from toolchain.backends.mali.cost import network

    gpu_names = tuple(dict.fromkeys(cost.gpu(name).name for name in options.gpus))
    board = options.board(gpu_names)
    # Without --gpu, the GPU of the board.
    names = gpu_names or ((board.gpu.name,) if board and board.gpu else ())
    if not names:
        raise InputError("no GPU is named", hint="add --gpu NAME, such as --gpu g610, or --board BOARD")
    compiler_options = compilation.check_options(options.compiler_options)
    unique = list(dict.fromkeys(sources))
    texts = [_read_kernels(source) for source in unique if source.endswith(_SOURCE)]
    models = [source for source in unique if not source.endswith(_SOURCE)]
    if models and board is None:
        raise InputError(f"no board type has a {names[0]} to compile {models[0]} for", hint="add --board BOARD")
    launches = {source: _launches(console, source, board, options) for source in models if board}
    root = cost.root(console.say)
    compilers = [cost.Compiler(root, cost.gpu(name), compiler_options) for name in names]
    costs = []
    for compiler in compilers:
        # The board's own description of the GPU, such as its clock, counts only for that GPU.
        gpu = board.gpu if board and board.gpu and board.gpu.name == compiler.gpu.name else None
        costs += [network.network(Path(name).name, runs, compiler, gpu) for name, runs in launches.items()]
        costs += [network.files("files", texts, compiler)] if texts else []
    result = Result(network.lines(costs), [item.document() for item in costs], as_json, network.refusal(costs))
    return write_reports(result, None, {options.html_path: lambda: network.html(costs).encode()})


def _read_kernels(source: str) -> str:
    from toolchain import files
    from toolchain.backends.mali.cost import kernels

    try:
        text = files.read_limited(Path(source)).decode()
    except OSError as fault:
        raise InputError(f"cannot read {source}: {fault.strerror or fault}", hint=_HINT) from fault
    except UnicodeDecodeError as fault:
        raise InputError(f"{source} is not a text file: {fault}", hint=_HINT) from fault
    try:
        kernel_names = kernels(text)
    except InputError as fault:
        raise InputError(f"{source}: {fault.message}", hint=fault.hint) from fault
    if not kernel_names:
        raise InputError(f"{source} has no kernel", hint="a kernel of OpenCL C begins with __kernel void NAME(")
    return text


def _launches(console: Console, source: str, board: Board, options: CostOptions) -> tuple[Launch, ...]:
    from toolchain.backends import backend_of
    from toolchain.backends.mali.cost import network
    from toolchain.compile import compiler

    path = Path(source)
    if path.is_dir() or (path.is_file() and path.suffix != ".onnx"):
        graph = compiler.load_graph(path, board)
        launches = network.launches(graph, backend_of(board).target)
    else:
        request = options.compiling.request(options.model.plain_model(source, options.inputs), board, console.say, None)
        launches = network.launches(compiler.schedule(request), request.backend.target)
    if not launches:
        raise InputError(f"{source} has no kernel for a GPU", hint="the whole model runs on the CPU, or is constant")
    return launches
