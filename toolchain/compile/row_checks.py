"""Whether a network for any number of rows may be computed row by row, by the network of one row.

The networks of all sizes that are compared must be the same graph with the same constants, but for shapes. And in some
of them, each row must be computed on its own (`independence`).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import prim

from toolchain.backends.graph.independence import Rows, check_rows
from toolchain.backends.graph.unify import DifferentError, unify
from toolchain.compile import open_size
from toolchain.compile.executable import ENTRY
from toolchain.models.converters.sequence.recurrence import RECURRENCE, from_json
from toolchain.models.importer import ImportedModel
from toolchain.tensors import TensorSpec

_LEAST = 2
"""Least sizes whose networks are read kernel by kernel, besides the greatest: the comparison covers the others."""


def rows_of(
    one: ImportedModel, networks: Sequence[ImportedModel], sizes: Sequence[int]
) -> tuple[list[Rows | None], list[Rows | None]]:
    """Return where the inputs and the results of a network have the rows; None for what the rows share.

    Args:
        one: The network of one row.
        networks: The network at other sizes, the greatest first.
        sizes: These sizes.

    Raises:
        InputError: Its rows are not computed each on its own, or the networks differ in more than shapes.
    """
    name = one.source.name
    with open_size.refusals(name, networks[0].module, reason="differs between sizes"):
        _check_equal([network.module for network in networks], sizes)
        inputs = [_rows_of_input(number, one, networks, sizes) for number in range(len(one.source.inputs))]
        if not any(rows and rows.inner == 1 for rows in inputs):
            raise DifferentError("no input has the size itself as an extent")
    results: list[list[Rows | None]] = []
    for network, size in _read(networks, sizes):
        kernels = relax.transform.LegalizeOps()(network.module)
        with open_size.refusals(name, kernels, reason="mixes rows"):
            results.append(check_rows(kernels, inputs, size))
            for rows, own, spec in zip(results[-1], one.outputs, network.outputs, strict=True):
                _check_shape(rows, own, spec, size)
            if results[-1] != results[0]:
                raise DifferentError("the rows of a result lie on other axes at other sizes")
    return inputs, results[0]


def _read(networks: Sequence[ImportedModel], sizes: Sequence[int]) -> list[tuple[ImportedModel, int]]:
    """Return the networks that are read kernel by kernel: the greatest, and the least ones."""
    pairs = sorted(zip(sizes, networks, strict=True), key=operator.itemgetter(0))
    return [(network, size) for size, network in (pairs[-1], *pairs[:_LEAST])]


def _rows_of_input(
    number: int, one: ImportedModel, networks: Sequence[ImportedModel], sizes: Sequence[int]
) -> Rows | None:
    """Return where an input has the rows; None if they share it."""
    own, greatest = one.source.inputs[number], networks[0].source.inputs[number]
    axes = [axis for axis, pair in enumerate(zip(own.shape, greatest.shape, strict=True)) if pair[0] != pair[1]]
    rows = Rows(axes[0], own.shape[axes[0]]) if axes else None
    for network, size in zip(networks, sizes, strict=True):
        _check_shape(rows, own, network.source.inputs[number], size)
    return rows


def _check_shape(rows: Rows | None, own: TensorSpec, spec: TensorSpec, size: int) -> None:
    """Check that a tensor of some rows has the shape of one row, but for the axis of the rows."""
    shape = [extent * (size if rows and axis == rows.axis else 1) for axis, extent in enumerate(own.shape)]
    if tuple(shape) != spec.shape:
        raise DifferentError(f"{own} for one row, and {spec} for {size}")


def _check_equal(modules: Sequence[tvm.IRModule], sizes: Sequence[int]) -> None:
    """Check that networks are the same but for shapes: their graphs, their constants, and the importer's kernels."""
    collectors = [_ConstantCollector() for _ in modules]
    mains = [each.without_constants(module[ENTRY]) for each, module in zip(collectors, modules, strict=True)]
    unified = unify(mains, sizes, floats=False)
    for values in zip(*(each.values for each in collectors), strict=True):
        if not all(_is_repeated(value, values[0]) for value in values):
            shape = "x".join(map(str, values[0].shape))
            raise DifferentError(f"a constant of {shape} has other values at other sizes")
    # Sizes are parts of shapes: a number that an operator takes would be another one for one row.
    if any(_numbers(main) != _numbers(mains[0]) for main in mains):
        raise DifferentError("an operator takes other numbers at other sizes")
    for names in unified.called.values():
        kernels = [module[name] for module, name in zip(modules, names, strict=True)]
        if RECURRENCE not in (kernels[0].attrs or {}):
            unify(kernels, sizes, floats=False)
        elif len({replace(from_json(str(kernel.attrs[RECURRENCE])), batch=0) for kernel in kernels}) > 1:
            raise DifferentError("a recurrence of other steps at other sizes")


def _numbers(function: relax.Function) -> list[int]:
    """Return the integers that operators take, which are no parts of shapes."""
    values = [binding.value for block in function.body.blocks for binding in block.bindings]
    return [number for value in values if isinstance(value, relax.Call) for number in _integers(list(value.args))]


def _integers(arguments: Sequence[Any]) -> list[int]:
    found: list[int] = []
    for argument in arguments:
        if isinstance(argument, relax.Tuple):
            found += _integers(list(argument.fields))
        elif isinstance(argument, prim.IntImm):
            found.append(int(argument))
    return found


def _is_repeated(value: NDArray[Any], whole: NDArray[Any]) -> bool:
    """Whether constants are equal, but for how often they repeat one index of an axis."""
    if value.shape == whole.shape:
        return np.array_equal(value, whole)
    if value.ndim != whole.ndim:
        return False
    for axis, extents in enumerate(zip(value.shape, whole.shape, strict=True)):
        if extents[0] != extents[1]:
            first = value.take([0], axis), whole.take([0], axis)
            if not (np.all(value == first[0]) and np.all(whole == first[1])):
                return False
            value, whole = first
    return np.array_equal(value, whole)


@relax.expr_functor.mutator
class _ConstantCollector(relax.PyExprMutator):  # type: ignore[misc]
    """Replaces each constant by a variable, and remembers its value."""

    def __init__(self) -> None:
        super().__init__(None)
        self.values: list[NDArray[Any]] = []
        self._variables: list[relax.Var] = []

    def without_constants(self, function: relax.Function) -> relax.Function:
        body = self.visit_expr(function.body)
        return relax.Function([*function.params, *self._variables], body, function.ret_ty, attrs=function.attrs)

    def visit_generic_const_(self, op: tvm.ir.GenericConst) -> tvm.ir.Expr:
        if not hasattr(op.value, "numpy"):
            return op
        self.values.append(op.value.numpy())
        shape, dtype = self.values[-1].shape, str(self.values[-1].dtype)
        self._variables.append(relax.Var(f"p{len(self.values)}", relax.TensorType(shape, dtype)))
        return self._variables[-1]
