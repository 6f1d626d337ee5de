"""The VTA accelerator: convolutions of int8 as streams of its instructions, made ahead of time; the rest on the CPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import tvm
from tvm import relax

from toolchain.backends import cpu
from toolchain.backends._attributes import EXACT, LAYER
from toolchain.backends.cpu._graph.kernels import called
from toolchain.backends.vta._devices import device
from toolchain.backends.vta._functions import kernel
from toolchain.backends.vta._offers import TEMPLATE, Model, Offers
from toolchain.backends.vta._plugin import build as python_runtime
from toolchain.backends.vta.layers import Conv2d, is_layer
from toolchain.backends.vta.partition import partitioned
from toolchain.board import Board
from toolchain.errors import InputError

__all__ = [
    "INT8",
    "TEMPLATES",
    "cpu_features",
    "finished",
    "left_out",
    "lowered",
    "machine_model",
    "python_runtime",
    "shipped",
    "space",
    "target",
    "templates",
]

TEMPLATES = (TEMPLATE, *cpu.TEMPLATES)
"""Names of the templates."""

INT8 = True
"""The array multiplies int8 alone."""

space = cpu.space
cpu_features = cpu.cpu_features


def target(board: Board) -> tvm.target.Target:
    """Return the LLVM target of the board's CPU, with the name of its accelerator.

    Raises:
        InputError: LLVM does not know the CPU, the board file names no accelerator, or half precision is asked for.
    """
    device(board)
    if board.target.float16:
        raise InputError(
            f"the accelerator of {board.name} computes in int8, and its CPU in float32 or int8",
            hint="leave --float16 out",
        )
    return tvm.target.Target({**cpu.target(board).export(), "device": board.target.device})


def templates(board: Board, without: Collection[str] = ()) -> Offers:
    """Return the kernels that are written here, but for those of some templates."""
    return Offers(device(board), cpu.templates(board, without))


def lowered(module: tvm.IRModule, board: Board, without: Collection[str] = ()) -> tvm.IRModule:
    """Rewrite an imported Relax module into calls of kernels: quantized convolutions are the array's.

    What comes before and after them is computed in floats, which hold a quantized network's integers exactly.
    """
    if TEMPLATE in without:
        return cpu.lowered(module, board, without)
    return cpu.lowered_floats(partitioned(module, device(board).config).module, board, without)


def left_out(module: tvm.IRModule, board: Board, without: Collection[str] = ()) -> tuple[str, ...]:
    """Name the convolutions that the CPU computes, each with the cause."""
    if TEMPLATE in without:
        return ()
    return tuple(f"{one.layer}: {one.cause}" for one in partitioned(module, device(board).config).refused)


def finished(
    module: tvm.IRModule,
    board: Board,
    choices: Mapping[str, Mapping[str, Any]],
    without: Collection[str] = (),
) -> tvm.IRModule:
    """Write the kernels of a lowered module.

    Args:
        module: What `lowered` returned.
        board: The board type.
        choices: By layer, how to compute it; where nothing fits, in the way that is likely the fastest.
        without: Names of templates that must not be used.
    """
    offers = templates(board, without)
    streams = {variable: _realized(function, offers, choices) for variable, function in module.functions_items()}
    return cpu.finished(tvm.IRModule(streams, module.attrs, module.global_infos), board, choices, without)


def _realized(function: Any, offers: Offers, choices: Mapping[str, Mapping[str, Any]]) -> Any:
    layer = "" if isinstance(function, relax.Function) else str((function.attrs or {}).get(LAYER, ""))
    if not is_layer(layer):
        return function
    exact = str(function.attrs[EXACT])
    choice = offers.chosen(exact, choices.get(layer))
    made = kernel(Conv2d.from_json(exact), choice, offers.device)
    return called(made, {LAYER: layer})


def machine_model(board: Board) -> Model:
    """Return the simulator's count of cycles."""
    return Model(templates(board))


def shipped(board: Board) -> str:  # noqa: ARG001 - the protocol's
    """Return nothing: no records for VTA come with the toolchain."""
    return ""
