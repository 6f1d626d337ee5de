"""Split a quantized network: convolutions of int8 tensors become calls of VTA's kernels, the rest stays as it is.

Between two kernels tensors stay packed, in int8. Where something else reads or writes them, they change layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm import relax, tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.base.attributes import EXACT, LAYER
from toolchain.backends.cpu.kernels.emit import Argument, kernel
from toolchain.backends.graph import fold
from toolchain.backends.graph.kernels import as_opaque, in_root_block
from toolchain.backends.graph.values import Block, Value, read, shape_of
from toolchain.backends.vta.codegen.layers import FILLING, Conv2d
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig
from toolchain.backends.vta.network import packing
from toolchain.backends.vta.network.averages import Average, average
from toolchain.backends.vta.network.folding import Folding
from toolchain.backends.vta.network.means import Mean, mean
from toolchain.backends.vta.network.moves import Move, move, written
from toolchain.backends.vta.network.patterns import Match, Refusal, find
from toolchain.backends.vta.network.staying import with_staying

__all__ = ["Partitioned", "Refusal", "partitioned"]

_ENTRY = "main"


@dataclass(frozen=True)
class Partitioned:
    """A network that was split.

    Attributes:
        module: The Relax module. Each kernel of VTA is a function without a body whose attribute `EXACT` says what it
            computes, `LAYER` as what it is tuned, and `STAYS` which tensors may stay in the array's memory;
            `layers.Conv2d` says what these are.
        refused: The layers that stay on the CPU although others like them do not.
    """

    module: tvm.IRModule
    refused: tuple[Refusal, ...]


def partitioned(module: tvm.IRModule, config: VtaConfig = DEFAULT) -> Partitioned:
    """Split an imported network.

    Args:
        module: A Relax module whose weights are constants; only its function `main` is rewritten.
        config: The machine.
    """
    transform = relax.transform
    first = [transform.DecomposeOpsForInference(), transform.CanonicalizeBindings()]
    module = _folded(tvm.transform.Sequential(first)(module))
    builder = relax.BlockBuilder(module)
    blocks, refused = list[Any](), list[Refusal]()
    for block in module[_ENTRY].body.blocks:
        blocks.append(block)
        if isinstance(block, relax.DataflowBlock):
            values = read(block, module)
            matches, others = find(values, config)
            if matches:
                blocks[-1] = _Writer(values, matches, builder, config).run()
            refused += others
    main = _with_body(module[_ENTRY], relax.SeqExpr(blocks, module[_ENTRY].body.body))
    last = [transform.Normalize(), transform.DeadCodeElimination()]
    split = tvm.transform.Sequential(last)(_with_main(builder.get(), main))
    return Partitioned(with_staying(split), tuple(refused))


def _folded(module: tvm.IRModule) -> tvm.IRModule:
    """Compute ahead of time what follows from constants, but not from int8 weights: they are parameters meanwhile."""
    main, held = module[_ENTRY], dict[Any, Any]()

    def hidden(constant: Any) -> Any:
        if str(constant.ty.dtype) != "int8" or not shape_of(constant.ty):
            return constant
        if constant not in held:
            held[constant] = relax.Var(f"held{len(held)}", constant.ty)
        return held[constant]

    body = tvm_ffi.structural_map(main.body, (tvm.ir.GenericConst, hidden))
    if not held:
        return fold.fold_constants(module)
    opened = _with_body(main, body, [*main.params, *held.values()])
    folded = fold.fold_constants(_with_main(module, opened))
    weights = {variable: constant.value for constant, variable in held.items()}
    bound: tvm.IRModule = relax.transform.BindParams(_ENTRY, weights)(folded)
    return bound


def _with_body(main: relax.Function, body: Any, params: Sequence[Any] | None = None) -> relax.Function:
    params = list(main.params) if params is None else params
    return relax.Function(params, body, main.ret_ty, main.is_pure, main.attrs)


def _with_main(module: tvm.IRModule, main: relax.Function) -> tvm.IRModule:
    functions = {**dict(module.functions_items()), module.get_global_var(_ENTRY): main}
    return tvm.IRModule(functions, module.attrs, module.global_infos)


def _kernel(layer: Conv2d, config: VtaConfig) -> tirx.PrimFunc:
    """Return a layer's kernel, without a body."""
    tensors = enumerate(layer.arguments(config))
    function = kernel([Argument(f"tensor{at}", *one) for at, one in tensors], lambda *_: T.evaluate(0), {})
    return as_opaque(function.with_body(in_root_block(function.body)), {LAYER: layer.task().to_json(), EXACT: layer.to_json()})


class _Writer:
    """Writes one block. What nobody reads any more stays: that is dead code, as are changes of layout without reader.

    Args:
        block: The operations.
        matches: The layers that VTA computes.
        builder: What collects the module's functions.
        config: The machine.
    """

    def __init__(self, block: Block, matches: Sequence[Match], builder: relax.BlockBuilder, config: VtaConfig) -> None:
        self._block, self._builder, self._config = block, builder, config
        self._matches = {match.out.variable: match for match in matches}
        moves = (move(operation, config.block) for operation in block.operations)
        self._moves = {one.out.variable: one for one in moves if one is not None}
        sums = (mean(operation, config) or average(operation, config) for operation in block.operations)
        self._sums = {one.out.variable: one for one in sums if one is not None}
        self._packed: dict[Value, Any] = {}
        self._bindings: list[Any] = []

    def run(self) -> relax.DataflowBlock:
        """Return the new block."""
        for variable, binding in self._block.origins.items():
            match, moved = self._matches.get(variable), self._moves.get(variable)
            if match is not None:
                self._write(match)
            elif moved is not None:
                self._move(moved)
            elif not self._sum(self._sums.get(variable)):
                self._bindings.append(binding)
        return relax.DataflowBlock(self._bindings)

    def _write(self, match: Match) -> None:
        out = match.out
        shape = packing.packed_shape(out.shape or (), self._config)
        arguments, kind = relax.Tuple(self._arguments(match)), relax.TensorType(shape, "int8")
        # One function for all layers that are the same: the builder knows what it has.
        name = "vta_{}_{}x{}_kernel".format("depthwise" if match.layer.alone else "conv", *match.layer.kernel)
        function = self._builder.add_func(_kernel(match.layer, self._config), name)
        call = relax.op.call_tir(function, arguments, kind)
        self._packed[out] = self._new(out.variable, "_packed", shape, call)
        self._bind(out.variable, packing.unpacked(self._packed[out], out.shape or ()))

    def _move(self, moved: Move) -> None:
        out = moved.out
        self._packed[out] = written(moved.source, self._config, self._in_blocks, self._new)
        self._bind(out.variable, packing.unpacked(self._packed[out], out.shape or ()))

    def _sum(self, found: Mean | Average | None) -> bool:
        """Write a mean or averages of what is in blocks already; return whether that was one."""
        if found is None or found.source not in self._packed:
            return False
        out, data = found.out, relax.Tuple([self._packed[found.source]])
        if isinstance(found, Mean):
            kind = relax.TensorType(out.shape or (), "float32")
            function = self._builder.add_func(found.kernel(), "mean_of_bytes")
            self._bind(out.variable, relax.op.call_tir(function, data, kind))
            return True
        function = self._builder.add_func(found.kernel(), "average_of_bytes")
        call = relax.op.call_tir(function, data, relax.TensorType(found.made, "int8"))
        self._packed[out] = self._new(out.variable, "_packed", found.made, call)
        self._bind(out.variable, packing.unpacked(self._packed[out], out.shape or ()))
        return True

    def _arguments(self, match: Match) -> list[Any]:
        """Return what the layer's kernel is called with."""
        config, shift = self._config, match.layer.residual_shift
        data = self._in_blocks(match.data, match.folding)
        arguments = [data, _constant(packing.packed_weights(match.weights, config.block))]
        if match.layer.bias:
            arguments.append(_constant(packing.packed_bias(match.bias, config)))
        if match.channel_shifts is not None:
            arguments.append(_constant(packing.packed_bias(match.channel_shifts, config)))
        if match.residual is not None and shift is not None:
            held = packing.residual_weights(shift, config.block)
            arguments += [self._in_blocks(match.residual), _constant(held)]
        if match.layer.is_filled:
            held = np.full((FILLING, config.batch, config.block), match.layer.pad, np.int8)
            arguments.append(_constant(held))
        return arguments

    def _in_blocks(self, value: Value, folding: Folding | None = None) -> Any:
        """Return the variable that holds a tensor in blocks, its pixels folded into channels before."""
        if folding is not None:
            return self._packing(self._folded(value, folding), folding.shape(value.shape or ()))
        if value not in self._packed:
            self._packed[value] = self._packing(value.variable, value.shape or ())
        return self._packed[value]

    def _packing(self, plain: Any, shape: Sequence[int]) -> Any:
        whole = packing.packed_shape(tuple(shape), self._config)
        return self._new(plain, "_packed", whole, packing.packed(plain, self._config))

    def _folded(self, value: Value, folding: Folding) -> Any:
        plain = value.variable
        return self._new(plain, "_folded", folding.shape(value.shape or ()), folding.image(plain))

    def _bind(self, variable: Any, expression: Any) -> Any:
        self._bindings.append(relax.VarBinding(variable, expression))
        return variable

    def _new(self, like: Any, suffix: str, shape: Sequence[int], expression: Any) -> Any:
        """Bind a new variable of bytes that come from the same node as what another variable holds."""
        kind = relax.TensorType(shape, "int8")
        return self._bind(relax.DataflowVar(f"{like.name}{suffix}", kind, like.span), expression)


def _constant(array: NDArray[Any]) -> Any:
    return relax.const(array, str(array.dtype))
