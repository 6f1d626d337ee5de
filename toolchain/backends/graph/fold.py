"""Compute ahead of time what follows from constants alone, where NumPy does it at once.

TVM's own FoldConstant builds and runs a kernel for each such operation: seconds for a network in which each limit of a
Clip is an expression. It only gets what is not listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from toolchain.backends.graph.values import shape_of

_ENTRY = "main"
_PREFIX = "relax."
_BAND = 16

Array = NDArray[Any]


def _reshaped(call: Any, out: tuple[int, ...], arrays: Sequence[Array]) -> Array:  # noqa: ARG001 - one signature for all
    return arrays[0].reshape(out)


def _permuted(call: Any, out: tuple[int, ...], arrays: Sequence[Array]) -> Array:  # noqa: ARG001
    axes = call.attrs.axes
    return arrays[0].transpose(None if axes is None else [int(axis) for axis in axes])


def _joined(call: Any, out: tuple[int, ...], arrays: Sequence[Array]) -> Array:  # noqa: ARG001
    axis = call.attrs.axis
    return np.concatenate([one.reshape(-1) for one in arrays] if axis is None else arrays, int(axis or 0))


def _sliced(call: Any, out: tuple[int, ...], arrays: Sequence[Array]) -> Array:  # noqa: ARG001
    axes, begins, ends, *rest = ([int(number) for number in one.fields] for one in call.args[1:])
    parts = [slice(None)] * arrays[0].ndim
    for axis, begin, end, step in zip(axes, begins, ends, rest[0] if rest else [1] * len(axes), strict=True):
        parts[axis] = slice(begin, end, step)
    return arrays[0][tuple(parts)]


def _plain(function: Callable[..., Array]) -> Callable[[Any, tuple[int, ...], Sequence[Array]], Array]:
    return lambda _call, _out, arrays: function(*arrays)


_FUNCTIONS: dict[str, Callable[[Any, tuple[int, ...], Sequence[Array]], Array]] = {
    **dict.fromkeys(("reshape", "expand_dims", "squeeze"), _reshaped),
    "permute_dims": _permuted,
    "concat": _joined,
    "strided_slice": _sliced,
    "isnan": _plain(np.isnan),
    "where": _plain(np.where),
    "add": _plain(np.add),
    "subtract": _plain(np.subtract),
    "multiply": _plain(np.multiply),
    "negative": _plain(np.negative),
    "sqrt": _plain(np.sqrt),
}


def fold_constants(module: tvm.IRModule) -> tvm.IRModule:
    """Return a Relax module without the operations of `main` that follow from constants alone.

    The transpose of a matrix stays, since fully connected layers take either.
    """
    main = module[_ENTRY]
    folder = _Folder()
    blocks = [folder.block(block) if isinstance(block, relax.DataflowBlock) else block for block in main.body.blocks]
    functions = dict(module.functions_items())
    body = relax.SeqExpr(blocks, main.body.body)
    functions[module.get_global_var(_ENTRY)] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    done: tvm.IRModule = relax.transform.Normalize()(tvm.IRModule(functions, module.attrs, module.global_infos))
    return relax.transform.FoldConstant()(done) if folder.missed else done


def contiguous(array: Array) -> Array:
    """Return an array in the usual order of elements; a transposed matrix in bands that stay in the caches."""
    if array.ndim != 2 or array.flags.c_contiguous:  # noqa: PLR2004 - a matrix
        return np.ascontiguousarray(array).reshape(array.shape)
    copied = np.empty(array.shape, array.dtype)
    for start in range(0, array.shape[1], _BAND):
        copied[:, start : start + _BAND] = array[:, start : start + _BAND]
    return copied


class _Folder:
    """Goes through the blocks in order; knows the variables that are constants."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}
        self.missed = False  # whether something that follows from constants is left

    def block(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        """Return a block without the operations that are done here."""
        kept = []
        for binding in block.bindings:
            changed = self._binding(binding)
            if isinstance(changed.value, tvm.ir.GenericConst) and isinstance(changed.var, relax.DataflowVar):
                self._known[changed.var] = changed.value
            else:
                kept.append(changed)
        return relax.DataflowBlock(kept)

    def _binding(self, binding: Any) -> Any:
        changed = self._replaced(binding)
        call = changed.value
        if not isinstance(call, relax.Call) or not isinstance(call.op, tvm.ir.Op) or _free(call):
            return changed
        tensors = [one for argument in call.args for one in _fields(argument) if isinstance(one, tvm.ir.GenericConst)]
        name, shape = str(call.op.name).removeprefix(_PREFIX), shape_of(binding.var.ty)
        if name == "permute_dims" and len(shape or ()) == 2:  # noqa: PLR2004 - a matrix
            return changed
        if name not in _FUNCTIONS or shape is None or not tensors:
            self.missed = self.missed or bool(tensors) or name == "call_tir"
            return changed
        dtype = str(binding.var.ty.dtype)
        array = _FUNCTIONS[name](call, shape, [one.value.numpy() for one in tensors]).astype(dtype, copy=False)
        return relax.VarBinding(binding.var, relax.const(contiguous(array), dtype))

    def _replaced(self, binding: Any) -> Any:
        """Return a binding with the constants in place of their variables."""
        needed = {one: self._known[one] for one in relax.analysis.free_vars(binding.value) if one in self._known}
        if not needed:
            return binding
        value = _substituted(binding.value, needed)
        if isinstance(binding, relax.MatchCast):
            return relax.MatchCast(binding.var, value, binding.ty)
        return relax.VarBinding(binding.var, value)


def _fields(expression: Any) -> list[Any]:
    return list(expression.fields) if isinstance(expression, relax.Tuple) else [expression]


def _free(expression: Any) -> bool:
    return bool(relax.analysis.free_vars(expression))


def _substituted(expression: Any, known: dict[Any, Any]) -> Any:
    if isinstance(expression, relax.Var):
        return known.get(expression, expression)
    if isinstance(expression, relax.Tuple):
        return relax.Tuple([_substituted(one, known) for one in expression.fields])
    if isinstance(expression, relax.TupleGetItem):
        return relax.TupleGetItem(_substituted(expression.tuple_value, known), expression.index)
    if isinstance(expression, relax.Call):
        arguments = [_substituted(one, known) for one in expression.args]
        return relax.Call(expression.op, arguments, expression.attrs, expression.ty_args)
    return expression
