"""Channels last: convolutions and what is between them read and write vectors of neighbouring channels.

ONNX has images as NCHW. Mali GPUs load and compute with vectors of four, and channels are what convolutions have in
fours, so images are transposed to NHWC (3-D ones to NDHWC, and so on) where the first convolution reads them, and back
where an operation reads them that is not known here. Weights are transposed when the model is built.

TVM's own pass, ConvertLayout, fails for half of the networks: it knows no tuples, and no views of other rank.
"""

from __future__ import annotations

import re

import tvm
from tvm import relax

from toolchain.backends.mali.images import MARK
from toolchain.backends.mali.layout import convolutions, elements, kernels, shapes
from toolchain.backends.mali.layout.writer import BINARY, RANKS, Rule, Writer
from toolchain.backends.mali.rewrite import MAIN, substitute, with_blocks

_UNARY = ("nn.relu", "nn.silu", "nn.gelu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "erf", "abs", "negative")
_UNARY_WITH_NUMBERS = ("clip", "nn.leakyrelu", "astype")
_REDUCTIONS = ("mean", "sum", "max", "min")
_C_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


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
        "image.resize2d": elements.resize,
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
            rules[f"nn.{kind}_pool{len(spatial)}d"] = elements.pool
            rules[f"nn.adaptive_{kind}_pool{len(spatial)}d"] = elements.adaptive_pool
    return rules


def use_c_names(module: tvm.IRModule) -> tvm.IRModule:
    """Return a Relax module whose inputs have names that C allows: arguments of kernels get them."""
    renamed = {
        parameter: relax.Var(f"input{number}", parameter.ty)
        for number, parameter in enumerate(module[MAIN].params)
        if not _C_NAME.fullmatch(str(parameter.name)) or MARK in str(parameter.name)
    }
    if not renamed:
        return module
    main = module[MAIN]
    parameters = [renamed.get(parameter, parameter) for parameter in main.params]
    body = substitute(main.body, renamed, relax.Var)
    functions = dict(module.functions_items())
    functions[module.get_global_var(MAIN)] = relax.Function(parameters, body, main.ret_ty, main.is_pure, main.attrs)
    return tvm.IRModule(functions, module.attrs, module.global_infos)
