"""Kernels of a network for every size of a dimension, from those for some sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import tirx

from toolchain.backends.base import EXACT, LAYER, Choice
from toolchain.backends.cpu import kernels
from toolchain.backends.cpu.kernels import open as open_kernels
from toolchain.backends.cpu.layers import Attention, Dense, Layer, from_json, task_of, to_json
from toolchain.backends.cpu.machine import Machine
from toolchain.backends.graph.unify import DifferentError, Unified, unify
from toolchain.models.converters.sequence.recurrence import Recurrence

_WRITTEN_OUT = (tirx.ForKind.VECTORIZED, tirx.ForKind.UNROLLED)


@dataclass(frozen=True)
class OpenSettings:
    """How kernels are written.

    Attributes:
        machine: The processor.
        choices: By layer of the greatest size, how its template computes it.
        schedule: Schedules the kernels of a module.
    """

    machine: Machine
    choices: Mapping[str, Choice]
    schedule: Callable[[tvm.IRModule], tvm.IRModule]


def choices(
    kernels_by_size: Sequence[Sequence[tirx.PrimFunc]], machine: Machine, without: frozenset[str]
) -> list[dict[str, Choice]]:
    """Choose how templates compute the layers: in the same way for all sizes, which is that of the greatest.

    Args:
        kernels_by_size: For each kernel, its stand-ins at all sizes, the greatest first.
        machine: The processor.
        without: Names of templates that must not be used.

    Returns:
        For each size, choices by layer.
    """
    chosen: list[dict[str, Choice]] = [{} for _ in kernels_by_size[0]] if kernels_by_size else []
    for stand_ins in kernels_by_size:
        layers = _layers(stand_ins)
        if not layers:
            continue
        ranked = kernels.candidates(layers[0], machine, without=without)
        if _is_open(layers):
            ranked = [candidate for candidate in ranked if candidate.choice.template in open_kernels.NAMES] or ranked
        for own, layer in zip(chosen, layers, strict=True):
            own.setdefault(to_json(task_of(layer)), ranked[0].choice.document())
    return chosen


def kernel(
    lowered: Sequence[tirx.PrimFunc], written: Sequence[tirx.PrimFunc], sizes: Sequence[int], settings: OpenSettings
) -> tirx.PrimFunc:
    """Return a kernel for every size; if it depends on the size, that is its last parameter.

    Args:
        lowered: The kernel before it was written or scheduled, for all sizes, the greatest first.
        written: The kernel for the greatest of them.
        sizes: The sizes.
        settings: How kernels are written.

    Raises:
        DifferentError: There is none.
    """
    layers = _layers(lowered)
    if layers:
        open_kernels.check(layers, sizes)
    if _is_open(layers):
        choice = kernels.choice(dict(settings.choices[to_json(task_of(layers[0]))]))
        if choice is None:
            raise DifferentError("its template is left out")
        return open_kernels.kernel(layers, sizes, settings.machine, choice)
    # What is computed is compared at all sizes, how it is computed at the greatest ones.
    computed = None if layers else unify([_plain(function) for function in lowered], sizes)
    try:
        result = _with_size(unify([_plain(function) for function in written], sizes[: len(written)]))
        _check_loops(result)
    except DifferentError:
        if computed is None:
            raise
        module = tvm.IRModule({"main": _with_size(computed)})
        result = settings.schedule(module)["main"]
    layer = (written[0].attrs or {}).get(LAYER)
    return result if layer is None else result.with_attr(LAYER, str(layer))


def _layers(functions: Sequence[tirx.PrimFunc]) -> list[Layer]:
    """Return the layers that stand-ins stand for; empty for other kernels."""
    return [from_json(str(function.attrs[EXACT])) for function in functions if EXACT in (function.attrs or {})]


def _is_open(layers: Sequence[Layer]) -> bool:
    return len(set(layers)) > 1 and isinstance(layers[0], (Dense, Attention, Recurrence))


def _plain(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a kernel without the layer among its attributes, which has numbers in a text."""
    for name in (LAYER, EXACT):
        if name in (function.attrs or {}):
            function = function.without_attr(name)
    return function


def _check_loops(function: tirx.PrimFunc) -> None:
    """Refuse vectors and copies of code whose number is not known."""
    # An error that a callback raises would be one of another class.
    loops: list[tirx.For] = []
    tvm_ffi.structural_walk(function.body, (tirx.For, loops.append))
    if any(loop.kind in _WRITTEN_OUT and not isinstance(loop.extent, tirx.IntImm) for loop in loops):
        raise DifferentError("a loop is written out for a fixed size")


def _with_size(unified: Unified) -> tirx.PrimFunc:
    function = unified.function
    if not unified.is_open:
        return function
    return tirx.PrimFunc([*function.params, unified.size], function.body, function.ret_type, function.attrs)
