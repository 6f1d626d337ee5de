"""A network for every size of one dimension: compiled for some sizes, and joined to one module with a variable.

Each step of the compiler sees fixed shapes. The networks of all sizes must be the same graph of the same kernels, but
for numbers that follow from the size (`unify`): that is checked before any kernel is scheduled. Then the kernels of
some sizes are scheduled. Those that are the same but for such numbers are one kernel; others are scheduled once
more with the variable, or written for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax, te, tirx

from toolchain.backends.base import Backend
from toolchain.backends.graph.unify import SIZE, DifferentError, unify
from toolchain.compile.executable import ENTRY, Compiled, lift_constants
from toolchain.errors import InputError
from toolchain.models import origins
from toolchain.tensors import TensorSpec
from toolchain.variants import Dynamic

_EMITTED = 5
"""Sizes whose kernels are written: more than decide a polynomial (`unify`)."""

_UPPER_BOUND = "tir_var_upper_bound"
"""The attribute by which TVM plans memory for the greatest size."""

_USE_VARIANTS = "list the sizes instead, such as --dim NAME=64,128,256: each is compiled as a variant"
_CALLS = ("relax.call_tir", "relax.call_tir_inplace")
_PART = "constant_part"
"""The name of kernels that copy a part of a constant."""


def sizes_to_compare(least: int, greatest: int) -> tuple[int, ...]:
    """Return the sizes whose networks are compared: the greatest first, then those whose kernels are written too.

    These lie apart. So the number of tiles of a loop, which is rounded up, is no polynomial of them. Size 1 is left
    out: axes of one element are where exporters and TVM take short cuts. Its results are compared.
    """
    range_ = greatest - least
    apart = (range_ * 2 // 3, range_ // 2 - 1, range_ // 3, range_ // 5, range_ // 8, 2, 1)
    sizes = [greatest, greatest - 1, *(least + distance for distance in apart)]
    few = range(greatest, least, -1) if len(set(sizes)) < _EMITTED + 2 else ()
    return tuple(size for size in dict.fromkeys((*sizes, *few)) if size > 1)


def check_outputs(dynamic: Dynamic, outputs: Mapping[int, Sequence[TensorSpec]], name: str) -> None:
    """Refuse outputs whose shapes are not in proportion to the size, as a device computes them.

    Args:
        dynamic: The sizes.
        outputs: The outputs at some sizes, from the least to the greatest.
        name: The model's name, for the error.
    """
    least, greatest = outputs[dynamic.least], outputs[dynamic.greatest]
    for size, own in outputs.items():
        for low, high, spec in zip(least, greatest, own, strict=True):
            if not dynamic.is_proportional(low, high) or dynamic.resize(low, high, size).shape != spec.shape:
                raise InputError(
                    f"output {spec.name} of {name} has a shape that is not in proportion to {dynamic.dimension}",
                    details=f"{low} for {dynamic.least}, {spec} for {size}, {high} for {dynamic.greatest}",
                    hint=_USE_VARIANTS,
                )


def join(modules: Sequence[tvm.IRModule], sizes: Sequence[int], backend: Backend, name: str) -> Compiled:
    """Return the module of every size from the lowered modules of some.

    Args:
        modules: What the backend's `lower` returned for each size.
        sizes: The greatest first, then at least four others, and others that are compared alone.
        backend: The board's backend.
        name: The model's name, for errors.

    Raises:
        InputError: The networks differ in more than numbers that follow from the size.
    """
    modules = _with_equal_constants(modules)
    lowered = _Joined.of(modules, sizes, name)
    choices = backend.open_choices(list(lowered.functions.values()))
    written = [backend.apply_choices(module, choices[number]) for number, module in enumerate(modules[:_EMITTED])]
    scheduled = _Joined.of(written, sizes[:_EMITTED], name)
    kernels: dict[str, tirx.PrimFunc] = {}
    for number, (before, after) in enumerate(zip(lowered.calls, scheduled.calls, strict=True)):
        if after and after not in kernels:
            with refusals(name, modules[0], number):
                kernels[after] = backend.open_kernel(
                    lowered.functions[before], scheduled.functions[after], sizes, choices[0]
                )
    return Compiled(scheduled.module(kernels, sizes[0]), scheduled.params)


@dataclass(frozen=True)
class _Joined:
    """The function `main` of all sizes in one.

    Attributes:
        main: The function, whose weights are arguments.
        size: The variable in it.
        functions: The functions that it calls, for each size, by their common names.
        names: Readable names of them.
        params: The weights.
    """

    main: relax.Function
    size: tirx.Var
    functions: Mapping[str, tuple[tirx.PrimFunc, ...]]
    names: Mapping[str, str]
    params: dict[str, NDArray[Any]]

    @classmethod
    def of(cls, modules: Sequence[tvm.IRModule], sizes: Sequence[int], name: str) -> _Joined:
        lifted = [lift_constants(module) for module in modules]
        with refusals(name, modules[0]):
            unified = unify([each.module[ENTRY] for each in lifted], sizes)
            for param in lifted[0].params:
                _check_equal([each.params[param] for each in lifted])
        functions = {
            common: tuple(each.module[own] for each, own in zip(lifted, names, strict=True))
            for common, names in unified.called.items()
        }
        names = {common: own[0] for common, own in unified.called.items()}
        return cls(unified.function, unified.size, functions, names, lifted[0].params)

    @property
    def calls(self) -> list[str]:
        """The name of the function that each binding calls; empty for others."""
        return [_called(binding.value) for binding in self._bindings]

    @property
    def _bindings(self) -> list[Any]:
        return [binding for block in self.main.body.blocks for binding in block.bindings]

    def module(self, kernels: Mapping[str, tirx.PrimFunc], greatest: int) -> tvm.IRModule:
        """Return the module with its kernels."""
        builder = relax.BlockBuilder(tvm.IRModule({}))
        arguments = {_called(binding.value): len(_fields(binding.value)) for binding in self._bindings}
        added = {
            common: builder.add_func(_size_after(kernel, arguments[common]), self.names[common])
            for common, kernel in kernels.items()
        }

        def binding(old: Any) -> Any:
            common = _called(old.value)
            if not common:
                return old
            more = [self.size] if _takes_size(kernels[common]) else []
            operands = [added[common], relax.Tuple([*_fields(old.value), *more])]
            return relax.VarBinding(old.var, relax.Call(old.value.op, operands, old.value.attrs, old.value.ty_args))

        blocks = [type(block)([binding(old) for old in block.bindings]) for block in self.main.body.blocks]
        body = relax.SeqExpr(blocks, self.main.body.body)
        main = relax.Function(self.main.params, body, self.main.ret_ty, self.main.is_pure, self.main.attrs)
        main = main.with_attr(_UPPER_BOUND, {SIZE: greatest}).with_attr("global_symbol", ENTRY)
        builder.add_func(main, ENTRY)
        module: tvm.IRModule = relax.transform.Normalize()(builder.get())
        return module


def _called(value: Any) -> str:
    is_call = isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op) and value.op.name in _CALLS
    return str(value.args[0].name_hint) if is_call else ""


def _takes_size(kernel: tirx.PrimFunc) -> bool:
    last = kernel.params[-1]
    return not tirx.is_buffer_var(last) and str(last.name) == SIZE


def _size_after(kernel: tirx.PrimFunc, arguments: int) -> tirx.PrimFunc:
    """Return a kernel whose parameter for the size comes after some others, and before the results."""
    kernel = kernel.without_attr("global_symbol")
    if not _takes_size(kernel):
        return kernel
    *others, size = kernel.params
    params = [*others[:arguments], size, *others[arguments:]]
    return tirx.PrimFunc(params, kernel.body, kernel.ret_type, kernel.attrs)


@contextlib.contextmanager
def refusals(
    name: str, module: tvm.IRModule, binding: int = -1, reason: str = "has no kernel for that"
) -> Iterator[None]:
    """Raise what differs between sizes as an error that names the node."""
    try:
        yield
    except DifferentError as fault:
        number = max(binding, fault.binding)
        origin = origins.of(list(origins.bindings(module))[number].var) if number >= 0 else None
        node = f"{origin.operator} node {origin.name!r}" if origin else "its graph"
        raise InputError(
            f"{name} cannot be compiled for every size: {node} {reason}",
            details=str(fault),
            hint=_USE_VARIANTS,
        ) from fault


# --- constants -------------------------------------------------------------------------------------------------------


def _check_equal(values: Sequence[NDArray[Any]]) -> None:
    if not all(np.array_equal(value, values[0]) for value in values):
        raise DifferentError(f"a constant of {'x'.join(map(str, values[0].shape))} has other values at other sizes")


def _with_equal_constants(modules: Sequence[tvm.IRModule]) -> list[tvm.IRModule]:
    """Return modules that read a part of the greatest size's constant where their own has another shape.

    Such are the embeddings of positions up to the size.

    Args:
        modules: The modules, that of the greatest size first.
    """
    constants = [[constant.value.numpy() for constant in _constants(module)] for module in modules]
    if len({len(own) for own in constants}) > 1:
        return list(modules)
    wholes = {
        number: values[0]
        for number, values in enumerate(zip(*constants, strict=True))
        if len({value.shape for value in values}) > 1 and all(_is_part(value, values[0]) for value in values)
    }
    return [_with_parts(module, wholes) for module in modules] if wholes else list(modules)


def _is_part(value: NDArray[Any], whole: NDArray[Any]) -> bool:
    return value.ndim == whole.ndim and np.array_equal(value, whole[tuple(map(slice, value.shape))])


def _constants(module: tvm.IRModule) -> list[Any]:
    """Return the constants that kernels read, in order."""
    return [field for binding in origins.bindings(module) for field in _fields(binding.value) if _is_constant(field)]


def _fields(value: Any) -> Sequence[Any]:
    return value.args[1].fields if _called(value) and isinstance(value.args[1], relax.Tuple) else ()


def _is_constant(field: Any) -> bool:
    return isinstance(field, tvm.ir.GenericConst) and field.value.numpy().ndim > 0


def _with_parts(module: tvm.IRModule, wholes: Mapping[int, NDArray[Any]]) -> tvm.IRModule:
    """Return a module with kernels that copy parts of constants, by their numbers in `_constants`."""
    builder = relax.BlockBuilder(module)
    parts: dict[tuple[Any, ...], Any] = {}
    number = -1

    def part(constant: Any, whole: NDArray[Any]) -> relax.Call:
        shape = constant.value.shape
        key = (whole.shape, tuple(shape), str(whole.dtype))
        if key not in parts:
            parts[key] = builder.add_func(_part_kernel(*key), _PART)
        kind = relax.TensorType(shape, str(whole.dtype))
        return relax.op.call_tir(parts[key], relax.Tuple([relax.const(whole, str(whole.dtype))]), kind)

    def rewritten(block: Any) -> Any:
        nonlocal number
        bindings: list[Any] = []
        for binding in block.bindings:
            fields = list(_fields(binding.value))
            for position, field in enumerate(fields):
                number += _is_constant(field)
                if _is_constant(field) and number in wholes:
                    call = part(field, wholes[number])
                    variable = relax.DataflowVar(_PART, call.ty_args[0], binding.var.span)
                    bindings.append(relax.VarBinding(variable, call))
                    fields[position] = variable
            bindings.append(relax.VarBinding(binding.var, _with_fields(binding.value, fields)) if fields else binding)
        return type(block)(bindings)

    main = module[ENTRY]
    body = relax.SeqExpr([rewritten(block) for block in main.body.blocks], main.body.body)
    changed = builder.get()
    changed.update_func(
        changed.get_global_var(ENTRY), relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    )
    result: tvm.IRModule = relax.transform.Normalize()(changed)
    return result


def _with_fields(call: relax.Call, fields: Sequence[Any]) -> relax.Call:
    return relax.Call(call.op, [call.args[0], relax.Tuple(fields), *call.args[2:]], call.attrs, call.ty_args)


def _part_kernel(whole: Sequence[int], shape: Sequence[int], dtype: str) -> tirx.PrimFunc:
    data = te.placeholder(whole, dtype, "whole")
    part = te.compute(shape, lambda *indices: data[indices], "part")
    return te.create_prim_func([data, part]).without_attr("global_symbol")
