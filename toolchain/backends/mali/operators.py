"""Operators whose kernels from TVM are slow or wrong on a Mali, and which operators become one kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, te, tirx

from toolchain.backends.graph import fusion
from toolchain.backends.graph.values import shape_of
from toolchain.backends.mali.rewrite import mutate
from toolchain.errors import InputError
from toolchain.models.converters.sequence.recurrence import RECURRENCE, from_json
from toolchain.models.converters.sequence.recurrence_kernel import generic_kernel

# --- the error function ----------------------------------------------------------------------------------------------

# OpenCL's is as exact as possible and branches at each step, and TVM calls it for one number after the other: by
# Mesa's figures that takes 257 cycles of loads and stores for four numbers of a GELU, as most of it is spilled.

_ENDS = 4.0  # beyond that, the function is 1 in single precision
# Of x^2, such that erf(x) = x above / below; fitted for the least relative difference, which is 2.5e-8 before rounding.
_ABOVE = (
    1.128379139300595,
    0.1935452519322559,
    0.0531017713868342,
    0.0038833523131800636,
    0.00028456612146409566,
    1.986781322157553e-06,
)
_BELOW = (
    1.0,
    0.5048575690938638,
    0.11535007891190929,
    0.015207267686892843,
    0.0011855732272250796,
    3.742017583150551e-05,
)


def replace_erf(module: tvm.IRModule) -> tvm.IRModule:
    """Return a Relax module whose error functions are kernels of plain arithmetic, within 5e-7; NaN stays NaN.

    Args:
        module: Operators as the importer writes them. Those of double precision stay.
    """
    return mutate(module, _ErfMutator(module))


@relax.expr_functor.mutator
class _ErfMutator(relax.PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: relax.Call) -> Any:
        """Return the call, or a call of the kernel that computes the same."""
        call = super().visit_call_(call)
        if not isinstance(call.op, tvm.ir.Op) or call.op.name != "relax.erf":
            return call
        if str(call.args[0].ty.dtype.dtype) not in {"float16", "float32"}:
            return call
        return self.builder_.call_te(_erf, call.args[0], primfunc_name_hint="erf")


def _erf(data: te.Tensor) -> te.Tensor:
    def element(*indices: Any) -> Any:
        x, limit, unity = data(*indices).astype("float32"), tirx.const(_ENDS, "float32"), tirx.const(1.0, "float32")
        quotient = x * _polynomial(_ABOVE, x * x) / _polynomial(_BELOW, x * x)
        # A comparison with NaN is false, so that it goes through the quotient.
        value = tirx.Select(x > limit, unity, tirx.Select(x < -limit, -unity, quotient))
        return value.astype(data.dtype)

    return te.compute(data.shape, element, name="erf")


def _polynomial(factors: Sequence[float], variable: Any) -> Any:
    """Return a polynomial by Horner's rule; the factors begin with that of the power of zero."""
    value = tirx.const(factors[-1], "float32")
    for factor in reversed(factors[:-1]):
        value = value * variable + tirx.const(factor, "float32")
    return value


# --- running sums and products ---------------------------------------------------------------------------------------

# In TVM's kernel for them, work-items read what others of their group have written without waiting for it: it relies
# on processors whose work-items run in step by 32, which those of no Mali do.
#
# A row is cut into blocks of about the square root of its length. Each block is reduced to one element, and so are all
# blocks before each. An element then is the total before its block, joined with that of its block up to it. So nothing
# waits for its neighbour, and each of n elements of a row is read some 2 sqrt(n) times.

_SHORT = 64  # elements of a row that is one block
_PRODUCT = te.comm_reducer(lambda a, b: a * b, lambda dtype: tirx.const(1, dtype), name="product")


@dataclass(frozen=True)
class _Kind:
    """What runs along a row: how two elements become one, and the element that changes no other."""

    reduced: Callable[..., Any]
    joined: Callable[[Any, Any], Any]
    neutral: int


_KINDS = {
    "relax.cumsum": _Kind(te.sum, lambda a, b: a + b, 0),
    "relax.cumprod": _Kind(_PRODUCT, lambda a, b: a * b, 1),
}


def replace_running_sums(module: tvm.IRModule) -> tvm.IRModule:
    """Return a Relax module whose running sums and products are calls of kernels.

    Args:
        module: Operators as the importer writes them, with constant shapes.
    """
    return mutate(module, _RunningMutator(module))


@relax.expr_functor.mutator
class _RunningMutator(relax.PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: relax.Call) -> Any:
        """Return the call, or a call of the kernels that compute the same."""
        call = super().visit_call_(call)
        kind = _KINDS.get(call.op.name) if isinstance(call.op, tvm.ir.Op) else None
        if kind is None:
            return call
        data, attrs = call.args[0], call.attrs
        row = _Row(kind, int(attrs.axis), bool(attrs.exclusive), str(call.ty.dtype.dtype))
        shape = [int(extent) for extent in data.ty.shape]
        if shape[row.axis] <= _SHORT:
            return self.builder_.call_te(row.short, data, primfunc_name_hint="running")
        size = math.isqrt(shape[row.axis])
        each = self.builder_.emit_te(row.blocks, data, size, primfunc_name_hint="running_blocks")
        before = self.builder_.emit_te(row.before, each, primfunc_name_hint="running_before")
        return self.builder_.call_te(row.long, data, before, size, primfunc_name_hint="running")


@dataclass(frozen=True)
class _Row:
    """A running reduction along one axis of a tensor.

    Attributes:
        kind: What is reduced.
        axis: The axis; none of its elements depends on those of other rows.
        exclusive: Whether an element counts only what comes before it.
        dtype: The element type that it is computed in.
    """

    kind: _Kind
    axis: int
    exclusive: bool
    dtype: str

    def short(self, data: te.Tensor) -> te.Tensor:
        """Reduce all elements up to each one of a row."""
        return self._up_to(data, lambda _position: 0, int(data.shape[self.axis]))

    def blocks(self, data: te.Tensor, size: int) -> te.Tensor:
        """Reduce each block of so many elements to one; the last may have fewer."""
        length = int(data.shape[self.axis])
        step = te.reduce_axis((0, size), "step")

        def block(*indices: Any) -> Any:
            position = indices[self.axis] * size + step
            return self.kind.reduced(self._read(data, indices, position, position < length), axis=step)

        return te.compute(self._replaced(data.shape, -(-length // size)), block, "blocks")

    def before(self, each: te.Tensor) -> te.Tensor:
        """Reduce all blocks before each."""
        other = te.reduce_axis((0, int(each.shape[self.axis])), "block")

        def total(*indices: Any) -> Any:
            return self.kind.reduced(self._read(each, indices, other, other < indices[self.axis]), axis=other)

        return te.compute(each.shape, total, "before")

    def long(self, data: te.Tensor, before: te.Tensor, size: int) -> te.Tensor:
        """Join the total before a block and that of the block up to each of its elements."""
        within = self._up_to(data, lambda position: position - position % size, size)

        def element(*indices: Any) -> Any:
            block = indices[self.axis] // size
            return self.kind.joined(before(*self._replaced(indices, block)), within(*indices))

        return te.compute(data.shape, element, "running")

    def _up_to(self, data: te.Tensor, start: Callable[[Any], Any], limit: int) -> te.Tensor:
        """Reduce for each element those from a start up to it, at most `limit` of them."""
        step = te.reduce_axis((0, limit), "step")

        def total(*indices: Any) -> Any:
            position = start(indices[self.axis]) + step
            counts = position < indices[self.axis] if self.exclusive else position <= indices[self.axis]
            return self.kind.reduced(self._read(data, indices, position, counts), axis=step)

        return te.compute(data.shape, total, "within")

    def _read(self, data: te.Tensor, indices: Sequence[Any], position: Any, condition: Any) -> Any:
        """Return the element at a position of the row where a condition holds, and else the neutral one."""
        value = data(*self._replaced(indices, position)).astype(self.dtype)
        return tirx.if_then_else(condition, value, tirx.const(self.kind.neutral, self.dtype))

    def _replaced(self, values: Sequence[Any], value: Any) -> list[Any]:
        """Return indices or extents with another one along the row."""
        return [*values[: self.axis], value, *values[self.axis + 1 :]]


# --- recurrences -----------------------------------------------------------------------------------------------------

# Recurrences on a GPU: one block for each direction and sequence, whose threads share the units of each time step.

_BYTES = {"float32": 4, "float64": 8}
_USUAL_THREADS, _USUAL_BYTES = 256, 32768


def use_gpu_kernels(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Return a module in which the kernels of recurrences are those for GPUs.

    Args:
        module: A lowered Relax module.
        target: The GPU.

    Raises:
        InputError: The state of a sequence does not fit into the memory that the threads of a block share.
    """
    threads = int(target.attrs.get("max_threads_per_block", _USUAL_THREADS))
    shared = int(target.attrs.get("max_shared_memory_per_block", _USUAL_BYTES))
    changed = module.clone()
    for variable, function in module.functions_items():
        if not isinstance(function, tirx.PrimFunc) or RECURRENCE not in (function.attrs or {}):
            continue
        about = from_json(str(function.attrs[RECURRENCE]))
        if (len(about.kept) + 2) * about.held * _BYTES[about.dtype] > shared:
            raise InputError(
                f"a recurrence of {about.units} units is too large for this GPU",
                details=f"its state does not fit into the {shared} bytes that the threads of a block share",
                hint="deploy it on the CPU: a board of the same machine with the `cpu` backend",
            )
        changed.update_func(variable, generic_kernel(about, threads))
    return changed


# --- fused operators -------------------------------------------------------------------------------------------------

# The gate of a squeeze-and-excitation block is one number for each channel. Fused with the product that scales the
# image by it, its layer would be computed anew for each pixel.

_PATTERN = "op_pattern"
_INJECTIVE = 2  # TVM's number for what is no epilogue of a layer, and still becomes one kernel with what is like it


def fuse_operators(module: tvm.IRModule) -> tvm.IRModule:
    """Return a Relax module of operators as calls of fused kernels."""
    transform = relax.transform
    legal = tvm.transform.Sequential([transform.LegalizeOps(), transform.AnnotateTIROpPattern()])(module)
    return fusion.fuse(transform.FoldConstant()(_set_apart(legal)))


def _set_apart(module: tvm.IRModule) -> tvm.IRModule:
    """Give calls that spread what another kernel made a kernel of their own, which is not fused with that."""
    builder = relax.BlockBuilder(module)
    separate: dict[Any, Any] = {}

    def changed(call: Any) -> Any:
        if not isinstance(call.op, tvm.ir.Op) or call.op.name != "relax.call_tir" or not _spreads(call):
            return call
        name, *others = call.args
        kernel = module[name]
        if int((kernel.attrs or {}).get(_PATTERN, _INJECTIVE)) >= _INJECTIVE:
            return call
        if name not in separate:
            separate[name] = builder.add_func(kernel.with_attr(_PATTERN, _INJECTIVE), name.name_hint)
        return relax.Call(call.op, [separate[name], *others], call.attrs, call.ty_args)

    functions = {
        name: relax.Function(
            function.params,
            tvm_ffi.structural_map(function.body, (relax.Call, changed)),
            function.ret_ty,
            function.is_pure,
            function.attrs,
        )
        for name, function in module.functions_items()
        if isinstance(function, relax.Function)
    }
    if not separate:
        return module
    rebuilt = builder.get()
    for name, function in functions.items():
        rebuilt.update_func(rebuilt.get_global_var(name.name_hint), function)
    cleaned: tvm.IRModule = relax.transform.DeadCodeElimination()(rebuilt)
    return cleaned


def _spreads(call: Any) -> bool:
    """Whether a kernel reads a variable that has fewer elements than its result, and more than one."""
    fields = list(call.args[1].fields) if isinstance(call.args[1], relax.Tuple) else []
    result = shape_of(call.ty_args[0])
    if result is None:
        return False
    sizes = [
        math.prod(shape) for field in fields if isinstance(field, relax.DataflowVar) and (shape := shape_of(field.ty))
    ]
    return any(1 < size < math.prod(result) for size in sizes)
