"""Constant folding by NumPy.

TVM's own FoldConstant builds and runs a kernel for each such operation: seconds for a network in which each limit of a
Clip is an expression. It only gets the operations that are not listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from toolchain.backends.graph.kernels import packed_weights
from toolchain.backends.graph.values import shape_of

_ENTRY = "main"
_PREFIX = "relax."
_BAND = 16

Array = NDArray[Any]


def _reshape(call: Any, out: tuple[int, ...], arrays: Sequence[Array]) -> Array:  # noqa: ARG001 - one signature for all
    return arrays[0].reshape(out)


def _permute(call: Any, out: tuple[int, ...], arrays: Sequence[Array]) -> Array:  # noqa: ARG001
    axes = call.attrs.axes
    return arrays[0].transpose(None if axes is None else [int(axis) for axis in axes])


def _join(call: Any, out: tuple[int, ...], arrays: Sequence[Array]) -> Array:  # noqa: ARG001
    axis = call.attrs.axis
    return np.concatenate([array.reshape(-1) for array in arrays] if axis is None else arrays, int(axis or 0))


def _slice(call: Any, out: tuple[int, ...], arrays: Sequence[Array]) -> Array:  # noqa: ARG001
    axes, begins, ends, *rest = ([int(number) for number in one.fields] for one in call.args[1:])
    slices = [slice(None)] * arrays[0].ndim
    for axis, begin, end, step in zip(axes, begins, ends, rest[0] if rest else [1] * len(axes), strict=True):
        slices[axis] = slice(begin, end, step)
    return arrays[0][tuple(slices)]


def _of_arrays(function: Callable[..., Array]) -> Callable[[Any, tuple[int, ...], Sequence[Array]], Array]:
    return lambda _call, _out, arrays: function(*arrays)


_FUNCTIONS: dict[str, Callable[[Any, tuple[int, ...], Sequence[Array]], Array]] = {
    **dict.fromkeys(("reshape", "expand_dims", "squeeze"), _reshape),
    "permute_dims": _permute,
    "concat": _join,
    "strided_slice": _slice,
    "isnan": _of_arrays(np.isnan),
    "where": _of_arrays(np.where),
    "add": _of_arrays(np.add),
    "subtract": _of_arrays(np.subtract),
    "multiply": _of_arrays(np.multiply),
    "negative": _of_arrays(np.negative),
    "sqrt": _of_arrays(np.sqrt),
}


def fold_constants(module: tvm.IRModule) -> tvm.IRModule:
    """Return a Relax module without the operations of `main` that follow from constants alone.

    The transpose of a matrix stays, since fully connected layers take either.
    """
    main = module[_ENTRY]
    folder = _ConstantFolder(module)
    blocks = [folder.block(block) if isinstance(block, relax.DataflowBlock) else block for block in main.body.blocks]
    functions = dict(module.functions_items())
    body = relax.SeqExpr(blocks, main.body.body)
    functions[module.get_global_var(_ENTRY)] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    normalized: tvm.IRModule = relax.transform.Normalize()(tvm.IRModule(functions, module.attrs, module.global_infos))
    return relax.transform.FoldConstant()(normalized) if folder.missed else normalized


def contiguous(array: Array) -> Array:
    """Return an array in the usual order of elements; a transposed matrix in bands that stay in the caches."""
    if array.ndim != 2 or array.flags.c_contiguous:  # noqa: PLR2004 - a matrix
        return np.ascontiguousarray(array).reshape(array.shape)
    copied = np.empty(array.shape, array.dtype)
    for start in range(0, array.shape[1], _BAND):
        copied[:, start : start + _BAND] = array[:, start : start + _BAND]
    return copied


class _ConstantFolder:
    """Goes through the blocks in order; knows the variables that are constants."""

    def __init__(self, module: tvm.IRModule) -> None:
        self._module = module
        self._known: dict[Any, Any] = {}
        self.missed = False  # whether something that follows from constants is left

    def block(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        """Return a block without the operations that are done here."""
        bindings = []
        for binding in block.bindings:
            changed = self._fold_binding(binding)
            if isinstance(changed.value, tvm.ir.GenericConst) and isinstance(changed.var, relax.DataflowVar):
                self._known[changed.var] = changed.value
            else:
                bindings.append(changed)
        return relax.DataflowBlock(bindings)

    def _fold_binding(self, binding: Any) -> Any:
        changed = self._with_constants(binding)
        call = changed.value
        if (
            not isinstance(call, relax.Call)
            or not isinstance(call.op, tvm.ir.Op)
            or bool(relax.analysis.free_vars(call))
        ):
            return changed
        tensors = [
            field
            for argument in call.args
            for field in (list(argument.fields) if isinstance(argument, relax.Tuple) else [argument])
            if isinstance(field, tvm.ir.GenericConst)
        ]
        packed = packed_weights(call, self._module)
        if packed is not None:
            return relax.VarBinding(binding.var, relax.const(packed.unpacked(), "float32"))
        name, shape = str(call.op.name).removeprefix(_PREFIX), shape_of(binding.var.ty)
        # Fully connected layers take weights in either order.
        if name == "permute_dims" and len(shape or ()) == 2:  # noqa: PLR2004 - a matrix
            return changed
        if name not in _FUNCTIONS or shape is None or not tensors:
            self.missed = self.missed or bool(tensors) or name == "call_tir"
            return changed
        dtype = str(binding.var.ty.dtype)
        # NumPy may compute in a wider type than Relax.
        array = _FUNCTIONS[name](call, shape, [field.value.numpy() for field in tensors]).astype(dtype, copy=False)
        return relax.VarBinding(binding.var, relax.const(contiguous(array), dtype))

    def _with_constants(self, binding: Any) -> Any:
        """Return a binding with the constants in place of their variables."""
        needed = {
            variable: self._known[variable]
            for variable in relax.analysis.free_vars(binding.value)
            if variable in self._known
        }
        if not needed:
            return binding
        value = _substitute(binding.value, needed)
        if isinstance(binding, relax.MatchCast):
            return relax.MatchCast(binding.var, value, binding.ty)
        return relax.VarBinding(binding.var, value)


def _substitute(expression: Any, constants: dict[Any, Any]) -> Any:
    if isinstance(expression, relax.Var):
        return constants.get(expression, expression)
    if isinstance(expression, relax.Tuple):
        return relax.Tuple([_substitute(item, constants) for item in expression.fields])
    if isinstance(expression, relax.TupleGetItem):
        return relax.TupleGetItem(_substitute(expression.tuple_value, constants), expression.index)
    if isinstance(expression, relax.Call):
        arguments = [_substitute(item, constants) for item in expression.args]
        return relax.Call(expression.op, arguments, expression.attrs, expression.ty_args)
    return expression
