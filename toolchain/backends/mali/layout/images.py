"""Transposes the images of a module: which operators are written with their channels last, and by what."""

from __future__ import annotations

import tvm
from tvm import relax

from toolchain.backends.mali.layout import convolutions, elements, kernels, pooling, resizing, shapes
from toolchain.backends.mali.layout.axes import RANKS
from toolchain.backends.mali.layout.writer import BINARY, Rule, Writer
from toolchain.backends.mali.rewrite import MAIN, with_blocks

_UNARY = ("nn.relu", "nn.silu", "nn.gelu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "erf", "abs", "negative")
_UNARY_WITH_NUMBERS = ("clip", "nn.leakyrelu", "astype")
_REDUCTIONS = ("mean", "sum", "max", "min")


def channels_last(module: tvm.IRModule, *, half: bool = False, tiled: bool = False) -> tvm.IRModule:
    """Return a Relax module whose convolutions have their channels last; its inputs and outputs stay as they are.

    Args:
        module: Operators as the importer writes them, with weights as constants.
        half: Whether layers are to compute in half precision later, which only operators of Relax can be made to.
        tiled: Whether 3x3 convolutions may be computed by Winograd's algorithm, for which half precision is too coarse.
    """
    main = module[MAIN]
    writer = Writer(module, _rules(), half=half, tiled=tiled and not half)
    blocks = [writer.block(block) if isinstance(block, relax.DataflowBlock) else block for block in main.body.blocks]
    transform = relax.transform
    steps = [transform.Normalize(), transform.CanonicalizeBindings(), transform.DeadCodeElimination()]
    result: tvm.IRModule = tvm.transform.Sequential(steps)(with_blocks(writer.module, blocks))
    return result


def _rules() -> dict[str, Rule]:
    """Return by operator what writes it with its channels last, if that is of use."""
    rules: dict[str, Rule] = {
        "concat": shapes.concat,
        "stack": shapes.stack,
        "reshape": shapes.reshape,
        "expand_dims": shapes.expand,
        "squeeze": shapes.squeeze,
        "permute_dims": shapes.permute,
        "call_tir": kernels.kernel,
        "image.resize2d": resizing.resize,
        "nn.softmax": elements.softmax,
        "nn.pad": shapes.pad,
    }
    rules.update(
        dict.fromkeys(_UNARY, elements.elementwise), **dict.fromkeys(_UNARY_WITH_NUMBERS, elements.elementwise)
    )
    rules.update(dict.fromkeys(BINARY, elements.elementwise))
    rules.update(dict.fromkeys(_REDUCTIONS, elements.reduction))
    for rank, spatial in RANKS.items():
        rules[f"nn.conv{rank - 2}d"] = convolutions.conv
        for kind in ("max", "avg"):
            rules[f"nn.{kind}_pool{len(spatial)}d"] = pooling.pool
            rules[f"nn.adaptive_{kind}_pool{len(spatial)}d"] = pooling.adaptive_pool
    return rules
