"""CPUs through LLVM: x86-64 and Arm."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from toolchain.backends.cpu import _fallback, _graph, _templates
from toolchain.backends.cpu._graph import fold, int8
from toolchain.backends.cpu._layers import Layer, task_of, to_json
from toolchain.backends.cpu._machine import Machine, machine
from toolchain.backends.cpu._offers import Offers
from toolchain.backends.cpu._target import cpu_features, target
from toolchain.board import Board
from toolchain.errors import InputError

__all__ = [
    "INT8",
    "TEMPLATES",
    "cpu_features",
    "finished",
    "left_out",
    "lowered",
    "lowered_floats",
    "machine_model",
    "python_runtime",
    "shipped",
    "space",
    "target",
    "templates",
]

TEMPLATES = _templates.NAMES
"""Names of the templates."""

INT8 = False
"""It computes float32 too."""

_ARM_TRIPLES = ("aarch64", "arm")
_SHIPPED = {16: "x86-64-v4", 8: "x86-64-v3"}


def templates(board: Board, without: Collection[str] = ()) -> Offers:
    """Return the kernels that are written here, but for those of some templates."""
    own = target(board)
    return Offers(own, machine(own), frozenset(without))


def space(meta_schedule: Any) -> Any:
    """Return the generator of design spaces: TVM's own for CPUs, by name, as those of the target import intrinsics."""
    return meta_schedule.space_generator.PostOrderApply(sch_rules="llvm", postprocs="llvm", mutator_probs="llvm")


def lowered(module: tvm.IRModule, board: Board, without: Collection[str] = ()) -> tvm.IRModule:
    """Rewrite an imported Relax module into calls of kernels, which can be tuned one by one.

    Layers that a template computes become kernels without a body; the rest becomes fused TIR. Weights stay constants,
    and each fused kernel says which of its arguments they are, so that a schedule may choose their layout. Templates
    that are named in `without` count as not there.

    Raises:
        InputError: Half precision is asked for.
    """
    if board.target.float16:
        raise InputError(
            f"board {board.name} computes with its CPU, and kernels for CPUs do so in float32 or int8",
            hint="leave --float16 out; a network that is quantized in its file runs in int8",
        )
    own, left_out = target(board), frozenset(without)
    # Before constants are folded, which turns the bytes of a quantized network's weights into floats.
    return _in_kernels(int8.quantized(_prepared(module, own), machine(own), left_out), own, left_out)


def lowered_floats(module: tvm.IRModule, board: Board, without: Collection[str] = ()) -> tvm.IRModule:
    """Rewrite a module as `lowered` does, but compute in floats what its file has quantized.

    Floats hold the integers of a quantized network exactly: results are those of the file, to the bit.
    """
    own = target(board)
    return _in_kernels(_prepared(module, own), own, frozenset(without))


def _prepared(module: tvm.IRModule, own: tvm.target.Target) -> tvm.IRModule:
    transform = relax.transform
    with own:
        prepared: tvm.IRModule = tvm.transform.Sequential(
            [transform.DecomposeOpsForInference(), transform.CanonicalizeBindings()]
        )(module)
    return prepared


def _in_kernels(module: tvm.IRModule, own: tvm.target.Target, without: frozenset[str]) -> tvm.IRModule:
    with own:
        blocked = _graph.blocked(fold.folded(module), machine(own), without)
        rewritten: tvm.IRModule = tvm.transform.Sequential(
            [relax.get_pipeline("zero"), relax.transform.AttachAttrLayoutFreeBuffers()]
        )(blocked)
    return rewritten


def left_out(module: tvm.IRModule, board: Board, without: Collection[str] = ()) -> tuple[str, ...]:  # noqa: ARG001
    """Return nothing: the CPU computes everything."""
    return ()


def finished(
    module: tvm.IRModule,
    board: Board,
    choices: Mapping[str, Mapping[str, Any]],
    without: Collection[str] = (),
) -> tvm.IRModule:
    """Write the kernels of a lowered module, pack the weights as they want them, and schedule the rest.

    Args:
        module: What `lowered` returned; fused kernels may have got a schedule since.
        board: The board type.
        choices: By layer, how to compute it; where nothing fits, in the way that is likely the fastest.
        without: Names of templates that must not be used.
    """
    own = target(board)
    processor, left_out = machine(own), frozenset(without)

    def choose(layer: Layer) -> _templates.Choice:
        return _chosen(layer, processor, choices, left_out)

    return _fallback.schedule(_graph.realized(module, processor, choose), own, processor.lanes)


def _chosen(
    layer: Layer, processor: Machine, choices: Mapping[str, Mapping[str, Any]], without: frozenset[str]
) -> _templates.Choice:
    wanted = choices.get(to_json(task_of(layer)))
    known = _templates.choice(dict(wanted)) if wanted else None
    if known is not None and known.template not in without and _templates.fits(layer, known):
        return known
    return _templates.default(layer, processor, without=without)


def python_runtime(tell: Callable[[str], None]) -> Path:  # noqa: ARG001 - the protocol's
    """Refuse: TVM's wheel runs kernels for CPUs.

    Raises:
        InputError: Always.
    """
    raise InputError("TVM runs kernels for CPUs as it is", hint="name a board with an accelerator")


def machine_model(board: Board) -> None:
    """Return none: kernels for CPUs are measured."""


def shipped(board: Board) -> str:
    """Name the tuning records that come with the toolchain: those of the same vector instructions."""
    own = target(board)
    if str(own.attrs.get("mtriple", "")).startswith(_ARM_TRIPLES):
        return ""
    return _SHIPPED.get(machine(own).lanes, "")
