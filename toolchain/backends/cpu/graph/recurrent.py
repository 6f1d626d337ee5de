"""Recurrences, whose kernel for any processor stands in until the template's is put in its place."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx

from toolchain.backends.base import EXACT, LAYER
from toolchain.backends.cpu import kernels
from toolchain.backends.cpu.graph.rewriting import ENTRY
from toolchain.backends.cpu.layers import task_of, to_json
from toolchain.models.converters.sequence.recurrence import RECURRENCE, from_json

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
