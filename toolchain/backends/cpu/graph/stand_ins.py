"""The kernels that the layers of a network call: stand-ins at first, then those of the chosen templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.base import EXACT, LAYER
from toolchain.backends.cpu import kernels
from toolchain.backends.cpu.graph.rewriting import ENTRY
from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Argument
from toolchain.backends.cpu.layers import (
    Attention,
    Conv,
    Dense,
    Layer,
    Pool,
    WithResult,
    in_float16,
    precision_of,
    task_of,
    to_json,
)
from toolchain.backends.graph.kernels import as_opaque, in_root_block
from toolchain.backends.graph.values import shape_of
from toolchain.models.converters.sequence.recurrence import RECURRENCE, Recurrence, from_json


class StandIns:
    """The stand-ins of a module: one for all layers that are the same.

    Args:
        builder: What collects the module's functions.
        float16: Whether tensors in blocks are in float16.
    """

    def __init__(self, builder: relax.BlockBuilder, *, float16: bool = False) -> None:
        self._builder, self._float16 = builder, float16
        self._known: dict[str, Any] = {}

    def of(self, layer: WithResult, arguments: Sequence[Any]) -> Any:
        """Return the global variable of a layer's stand-in.

        Args:
            arguments: What it is called with, without the result. Weights are as they are in the network; all have the
                same shapes in each call.
        """
        exact = to_json(layer)
        if exact not in self._known:
            attributes = {LAYER: to_json(task_of(layer)), EXACT: exact}
            declared = [
                Argument(f"given{number}", shape_of(argument.ty) or (), str(argument.ty.dtype))
                for number, argument in enumerate(arguments)
            ]
            function = emit.kernel([*declared, _result(layer)], lambda *_: T.evaluate(0), {})
            # MetaSchedule's passes over a module expect blocks; the empty body only stands for the layer.
            function = function.with_body(in_root_block(function.body))
            self._known[exact] = self._builder.add_func(as_opaque(function, attributes), name(layer))
        return self._known[exact]

    def call(self, layer: WithResult, arguments: Sequence[Any], buffer: Any = None) -> Any:
        """Return a call of a layer's stand-in.

        Args:
            arguments: As for `of`.
            buffer: What it writes into; by default it makes a new tensor.
        """
        layer = in_float16(layer) if self._float16 else layer
        stand_in, result = self.of(layer, arguments), _result(layer)
        kind = relax.TensorType(result.shape, result.dtype)
        if buffer is None:
            return relax.op.call_tir(stand_in, relax.Tuple(list(arguments)), kind)
        return relax.op.call_tir_inplace(stand_in, relax.Tuple([*arguments, buffer]), len(arguments), kind)


def name(layer: Layer) -> str:
    """Name the function of a layer; no name ends in a digit, since TVM appends a number to those of the same name."""
    if isinstance(layer, Recurrence):
        return f"{layer.cell}_kernel"
    precision = precision_of(layer)
    prefix = f"{precision}_" if precision else ""
    if isinstance(layer, (Attention, Dense)):
        return prefix + type(layer).__name__.lower()
    if isinstance(layer, Conv):
        size = "x".join(str(extent) for extent in layer.kernel)
        return f"{prefix}{'depthwise' if layer.is_depthwise else 'conv'}_{size}_kernel"
    if isinstance(layer, Pool):
        return f"{prefix}{layer.reduce}_pool"
    if layer.data.lanes != layer.out.lanes and not prefix:
        return "to_blocks" if layer.data.lanes == 1 else "from_blocks"
    return f"{prefix}{'shuffle' if layer.shuffle else 'map'}"


def _result(layer: WithResult) -> Argument:
    if isinstance(layer, Dense):
        return Argument("out", (layer.rows, layer.outputs))
    if isinstance(layer, Attention):
        return Argument("out", layer.out.shape)
    return Argument("out", layer.out.shape, layer.out.stored_dtype)


# --- recurrences -----------------------------------------------------------------------------------------------------

# Recurrences, whose kernel for any processor stands in until the template's is put in its place.

_WEIGHTS = 1  # number of the argument


def mark_recurrences(module: tvm.IRModule, without: frozenset[str] = frozenset()) -> tvm.IRModule:
    """Return a module in which the kernels of recurrences that a template computes have `LAYER` and `EXACT`.

    A recurrence whose weights are inputs of the network stays as it is: weights are packed ahead of time.

    Args:
        module: A Relax module whose weights are constants.
        without: Names of templates that must not be used.
    """
    open_weights = _with_open_weights(module)
    changed = module.clone()
    for variable, function in module.functions_items():
        if not isinstance(function, tirx.PrimFunc) or RECURRENCE not in (function.attrs or {}):
            continue
        layer = from_json(str(function.attrs[RECURRENCE]))
        if variable not in open_weights and kernels.is_covered(layer, without):
            attributes = {LAYER: to_json(task_of(layer)), EXACT: to_json(layer)}
            changed.update_func(variable, function.with_attrs(attributes))
    return changed


def _with_open_weights(module: tvm.IRModule) -> set[Any]:
    """Return the kernels that are called with weights that are not constants."""
    kernels_with_open_weights = set()
    for block in module[ENTRY].body.blocks:
        for binding in block.bindings:
            call = binding.value
            if not isinstance(call, relax.Call) or not isinstance(call.op, tvm.ir.Op):
                continue
            if call.op.name != "relax.call_tir" or len(call.args[1].fields) <= _WEIGHTS:
                continue
            if not isinstance(call.args[1].fields[_WEIGHTS], tvm.ir.GenericConst):
                kernels_with_open_weights.add(call.args[0])
    return kernels_with_open_weights
