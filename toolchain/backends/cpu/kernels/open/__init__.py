"""Kernels for every size of a dimension: the size is a parameter, and loops end where it says.

The sizes of buffers and the way the work is cut are those of the greatest size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

from tvm import tirx

from toolchain.backends.base import LAYER
from toolchain.backends.cpu.kernels import Choice
from toolchain.backends.cpu.kernels.open import attention, dense, recurrent
from toolchain.backends.cpu.layers import Layer, from_document, task_of, to_json
from toolchain.backends.cpu.machine import Machine
from toolchain.backends.cpu.numerics import with_nan
from toolchain.backends.graph.unify import DifferentError, Polynomial, Size, polynomial_of
from toolchain.models.converters.sequence.recurrence import Recurrence

_TEMPLATES: dict[str, ModuleType] = {module.NAME: module for module in (dense, attention, recurrent)}

NAMES = frozenset(_TEMPLATES)
"""Names of the templates that have such kernels."""


def kernel(layers: Sequence[Layer], sizes: Sequence[int], machine: Machine, chosen: Choice) -> tirx.PrimFunc:
    """Write the kernel of a layer for every size; the size is its last parameter.

    Args:
        layers: The layer at some sizes, the greatest first.
        sizes: Those sizes.
        machine: The processor.
        chosen: The choice for the greatest size.

    Raises:
        DifferentError: Nothing is written for the way in which the layers differ.
    """
    template = _TEMPLATES.get(chosen.template)
    if template is None:
        raise DifferentError(f"the template {chosen.template} computes a fixed size alone")
    size = Size.new()
    shaped = _with_expressions(layers, sizes, size.expression)
    indexed = _with_expressions(layers, sizes, size.index)
    function = template.kernel(layers[0], shaped, indexed, machine, chosen.config, size.variable)
    return with_nan(function, machine).with_attr(LAYER, to_json(task_of(layers[0])))


def check(layers: Sequence[Layer], sizes: Sequence[int]) -> None:
    """Check that each number of a layer follows from the size.

    Raises:
        DifferentError: One does not.
    """
    _joined([json.loads(to_json(layer)) for layer in layers], sizes, lambda polynomial: polynomial)


def _with_expressions(layers: Sequence[Layer], sizes: Sequence[int], expression: Callable[[Polynomial], Any]) -> Layer:
    """Return a layer whose numbers are expressions of the size where they differ."""
    recurrences = [layer for layer in layers if isinstance(layer, Recurrence)]
    if recurrences:
        numbers = [{"steps": each.steps, "batch": each.batch} for each in recurrences]
        return replace(recurrences[0], **_joined(numbers, sizes, expression))
    return from_document(_joined([json.loads(to_json(layer)) for layer in layers], sizes, expression))


def _joined(values: Sequence[Any], sizes: Sequence[int], expression: Callable[[Polynomial], Any]) -> Any:
    first = values[0]
    if all(value == first for value in values):
        return first
    if isinstance(first, dict):
        return {name: _joined([value[name] for value in values], sizes, expression) for name in first}
    if isinstance(first, list) and len({len(value) for value in values}) == 1:
        return [_joined(members, sizes, expression) for members in zip(*values, strict=True)]
    polynomial = polynomial_of(values, sizes) if all(type(value) is int for value in values) else None
    if polynomial is None:
        raise DifferentError(f"{first} and {values[-1]} do not follow from the size")
    return expression(polynomial)
