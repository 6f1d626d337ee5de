"""Split a quantized network: convolutions of int8 tensors become calls of VTA's kernels, the rest stays as it is.

Between two kernels tensors stay packed, in int8. Where something else reads or writes them, they change layout.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm import relax, tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.base import EXACT, LAYER
from toolchain.backends.cpu.kernels.emit import Argument, kernel
from toolchain.backends.graph import fold
from toolchain.backends.graph.kernels import as_opaque, in_root_block
from toolchain.backends.graph.values import Block, Value, read, shape_of
from toolchain.backends.vta.codegen.layers import FILLING, Conv2d
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig
from toolchain.backends.vta.network import packing
from toolchain.backends.vta.network.cpu_ops import Average, Mean, average, emit_move, mean, move
from toolchain.backends.vta.network.packing import Folding
from toolchain.backends.vta.network.patterns import Match, Refusal, find

__all__ = ["Partition", "Refusal", "partition"]

_ENTRY = "main"


@dataclass(frozen=True)
class Partition:
    """A network that was split.

    Attributes:
        module: The Relax module. Each kernel of VTA is a function without a body. Its attribute `EXACT` holds its
            layer (a `layers.Conv2d`), `LAYER` the layer as which it is tuned, and `RESIDENT` a bit for each tensor
            that may stay in the array's memory.
        refused: The convolutions and dense layers that stay on the CPU.
    """

    module: tvm.IRModule
    refused: tuple[Refusal, ...]


def partition(module: tvm.IRModule, config: VtaConfig = DEFAULT) -> Partition:
    """Split an imported network.

    Args:
        module: A Relax module whose weights are constants; only its function `main` is rewritten.
        config: The machine.
    """
    transform = relax.transform
    first = [transform.DecomposeOpsForInference(), transform.CanonicalizeBindings()]
    module = _fold_constants(tvm.transform.Sequential(first)(module))
    builder = relax.BlockBuilder(module)
    blocks, refused = list[Any](), list[Refusal]()
    for block in module[_ENTRY].body.blocks:
        blocks.append(block)
        if isinstance(block, relax.DataflowBlock):
            values = read(block, module)
            matches, others = find(values, config)
            if matches:
                blocks[-1] = _BlockWriter(values, matches, builder, config).run()
            refused += others
    main = _with_body(module[_ENTRY], relax.SeqExpr(blocks, module[_ENTRY].body.body))
    last = [transform.Normalize(), transform.DeadCodeElimination()]
    split = tvm.transform.Sequential(last)(_with_main(builder.get(), main))
    return Partition(mark_resident(split), tuple(refused))


def _fold_constants(module: tvm.IRModule) -> tvm.IRModule:
    """Fold constants, but not int8 weights."""
    main, parameters = module[_ENTRY], dict[Any, Any]()

    # Folding would make floats of the weights' bytes, so they are parameters meanwhile.
    def replace(constant: Any) -> Any:
        if str(constant.ty.dtype) != "int8" or not shape_of(constant.ty):
            return constant
        if constant not in parameters:
            parameters[constant] = relax.Var(f"held{len(parameters)}", constant.ty)
        return parameters[constant]

    body = tvm_ffi.structural_map(main.body, (tvm.ir.GenericConst, replace))
    if not parameters:
        return fold.fold_constants(module)
    opened = _with_body(main, body, [*main.params, *parameters.values()])
    folded = fold.fold_constants(_with_main(module, opened))
    weights = {variable: constant.value for constant, variable in parameters.items()}
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
    function = kernel(
        [Argument(f"tensor{number}", *tensor) for number, tensor in tensors], lambda *_: T.evaluate(0), {}
    )
    return as_opaque(
        function.with_body(in_root_block(function.body)), {LAYER: layer.task().to_json(), EXACT: layer.to_json()}
    )


class _BlockWriter:
    """Writes one block. Operations that lost their readers stay, as do unused changes of layout: that is dead code."""

    def __init__(self, block: Block, matches: Sequence[Match], builder: relax.BlockBuilder, config: VtaConfig) -> None:
        self._block, self._builder, self._config = block, builder, config
        self._matches = {match.out.variable: match for match in matches}
        moves = (move(operation, config.block) for operation in block.operations)
        self._moves = {item.out.variable: item for item in moves if item is not None}
        poolings = (mean(operation, config) or average(operation, config) for operation in block.operations)
        self._poolings = {item.out.variable: item for item in poolings if item is not None}
        self._packed: dict[Value, Any] = {}
        self._bindings: list[Any] = []

    def run(self) -> relax.DataflowBlock:
        for variable, binding in self._block.origins.items():
            # Each operation that ends a pattern replaces it; those before become dead code.
            match, moved = self._matches.get(variable), self._moves.get(variable)
            pooling = self._poolings.get(variable)
            if match is not None:
                self._write_layer(match)
            elif moved is not None:
                self._set_packed(moved.out, emit_move(moved.source, self._config, self._in_blocks, self._new))
            elif pooling is not None and pooling.source in self._packed:
                self._write_pooling(pooling)
            else:
                self._bindings.append(binding)
        return relax.DataflowBlock(self._bindings)

    def _write_layer(self, match: Match) -> None:
        out = match.out
        shape = packing.packed_shape(out.shape or (), self._config)
        arguments, kind = relax.Tuple(self._arguments(match)), relax.TensorType(shape, "int8")
        # The builder has one function for all layers that are equal.
        name = "vta_{}_{}x{}_kernel".format("depthwise" if match.layer.alone else "conv", *match.layer.kernel)
        function = self._builder.add_func(_kernel(match.layer, self._config), name)
        self._set_packed(out, self._new(out.variable, "_packed", shape, relax.op.call_tir(function, arguments, kind)))

    def _write_pooling(self, pooling: Mean | Average) -> None:
        out, data = pooling.out, relax.Tuple([self._packed[pooling.source]])
        if isinstance(pooling, Mean):
            kind = relax.TensorType(out.shape or (), "float32")
            function = self._builder.add_func(pooling.kernel(), "mean_of_bytes")
            self._bind(out.variable, relax.op.call_tir(function, data, kind))
            return
        function = self._builder.add_func(pooling.kernel(), "average_of_bytes")
        call = relax.op.call_tir(function, data, relax.TensorType(pooling.out_shape, "int8"))
        self._set_packed(out, self._new(out.variable, "_packed", pooling.out_shape, call))

    def _set_packed(self, value: Value, variable: Any) -> None:
        """Remember the variable that holds a tensor in blocks; the tensor's own gets what other operations read."""
        self._packed[value] = variable
        self._bind(value.variable, packing.unpack(variable, value.shape or ()))

    def _arguments(self, match: Match) -> list[Any]:
        """Return the arguments of the layer's kernel."""
        config, shift = self._config, match.layer.residual_shift
        data = self._in_blocks(match.data, match.folding)
        arguments = [data, _constant(packing.pack_weights(match.weights, config.block))]
        if match.layer.bias:
            arguments.append(_constant(packing.pack_vector(match.bias, config)))
        if match.channel_shifts is not None:
            arguments.append(_constant(packing.pack_vector(match.channel_shifts, config)))
        if match.residual is not None and shift is not None:
            content = packing.residual_weights(shift, config.block)
            arguments += [self._in_blocks(match.residual), _constant(content)]
        if match.layer.is_filled:
            content = np.full((FILLING, config.batch, config.block), match.layer.pad, np.int8)
            arguments.append(_constant(content))
        return arguments

    def _in_blocks(self, value: Value, folding: Folding | None = None) -> Any:
        """Return the variable that holds a tensor in blocks, its pixels folded into channels before."""
        if folding is not None:
            shape, plain = folding.shape(value.shape or ()), value.variable
            return self._pack(self._new(plain, "_folded", shape, folding.image(plain)), shape)
        if value not in self._packed:
            self._packed[value] = self._pack(value.variable, value.shape or ())
        return self._packed[value]

    def _pack(self, plain: Any, shape: Sequence[int]) -> Any:
        packed_shape = packing.packed_shape(tuple(shape), self._config)
        return self._new(plain, "_packed", packed_shape, packing.pack(plain, self._config))

    def _bind(self, variable: Any, expression: Any) -> Any:
        self._bindings.append(relax.VarBinding(variable, expression))
        return variable

    def _new(self, like: Any, suffix: str, shape: Sequence[int], expression: Any) -> Any:
        """Bind a new variable of bytes that come from the same node as what another variable holds."""
        kind = relax.TensorType(shape, "int8")
        return self._bind(relax.DataflowVar(f"{like.name}{suffix}", kind, like.span), expression)


def _constant(array: NDArray[Any]) -> Any:
    return relax.const(array, str(array.dtype))


# --- tensors that stay in the array's memory -------------------------------------------------------------------------

# Tensors that only the array's kernels write and read need not leave its memory; each call names them.

RESIDENT = "vta_stays"
"""Attribute of a kernel's function: a bit for each of its tensors, in order, that may stay in the array's memory."""

_CALL = "relax.call_tir"


def mark_resident(module: tvm.IRModule) -> tvm.IRModule:
    """Return a split network whose kernels say which of their tensors may stay in the array's memory.

    Args:
        module: The network, without dead code: a change of layout that nobody reads would count as a reader.
    """
    main = module[_ENTRY]
    resident = _resident_variables(module)
    if not resident:
        return module
    builder = relax.BlockBuilder(module)

    def mark(binding: Any) -> Any:
        if not _is_kernel(module, binding.value):
            return binding
        call = binding.value
        tensors = (*call.args[1].fields, binding.var)
        bits = sum(1 << position for position, tensor in enumerate(tensors) if tensor in resident)
        if not bits:
            return relax.VarBinding(binding.var, call)
        marked = module[call.args[0]].with_attr(RESIDENT, str(bits))
        function = builder.add_func(marked, str(call.args[0].name_hint))
        return relax.VarBinding(binding.var, relax.op.call_tir(function, call.args[1], call.ty_args[0]))

    blocks = [type(block)([mark(binding) for binding in block.bindings]) for block in main.body.blocks]
    body = relax.SeqExpr(blocks, main.body.body)
    built = builder.get()
    functions = dict(built.functions_items())
    functions[built.get_global_var(_ENTRY)] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    marked = tvm.IRModule(functions, module.attrs, module.global_infos)
    return tvm.transform.Sequential([relax.transform.Normalize(), relax.transform.DeadCodeElimination()])(marked)


def _is_kernel(module: tvm.IRModule, call: Any) -> bool:
    """Whether a value is a call of one of the array's kernels."""
    if getattr(getattr(call, "op", None), "name", "") != _CALL:
        return False
    return EXACT in (module[call.args[0]].attrs or {})


def _resident_variables(module: tvm.IRModule) -> frozenset[Any]:
    """Return the variables that kernels write, and that only kernels read."""
    written, readers = set[Any](), defaultdict[Any, list[bool]](list)
    for block in module[_ENTRY].body.blocks:
        for binding in block.bindings:
            kernel = _is_kernel(module, binding.value)
            if kernel:
                written.add(binding.var)
            for variable in relax.analysis.free_vars(binding.value):
                readers[variable].append(kernel)
    # What the function returns has to be in DRAM at the end.
    results = set(relax.analysis.free_vars(module[_ENTRY].body.body))
    # A variable that is no DataflowVar may be read outside of its block.
    return frozenset(
        variable for variable in written - results if isinstance(variable, relax.DataflowVar) and all(readers[variable])
    )


def resident_bits(attributes: Mapping[str, Any] | None) -> int:
    """Return the bits of a function's attribute; 0 without one."""
    return int(str((attributes or {}).get(RESIDENT, "0")))
