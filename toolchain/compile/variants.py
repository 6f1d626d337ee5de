"""The variants of a network in one module: kernels that are equal are there once, and so are weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm import relax, tirx

from toolchain import files
from toolchain.backends.base import Backend, Choice
from toolchain.compile.executable import ENTRY, Compiled
from toolchain.models import origins
from toolchain.records.tasks import layer_of


@dataclass(frozen=True)
class Merged:
    """Several compiled networks in one.

    Attributes:
        parts: Each network with its function `main` alone, and the kernels under their common names.
        entries: The name of each network's function in the common module.
        orders: The names of each network's params, in the order of its arguments.
        params: The params of all networks.
    """

    parts: tuple[tvm.IRModule, ...]
    entries: tuple[str, ...]
    orders: tuple[tuple[str, ...], ...]
    params: Mapping[str, NDArray[Any]]

    @property
    def module(self) -> tvm.IRModule:
        """All networks and their kernels."""
        return self.join(self.parts) if len(self.parts) > 1 else self.parts[0]

    def join(self, parts: Sequence[tvm.IRModule]) -> tvm.IRModule:
        """Return one module of the networks' modules, or of what was made of each."""
        functions: dict[str, tuple[Any, Any]] = {}  # by name: the parts have their kernels in common
        for part, entry in zip(parts, self.entries, strict=True):
            for variable, function in part.functions_items():
                if variable.name_hint == ENTRY and entry != ENTRY:
                    functions[entry] = tvm.ir.GlobalVar(entry), function.with_attr("global_symbol", entry)
                else:
                    functions[str(variable.name_hint)] = variable, function
        return tvm.IRModule(dict(functions.values()))


def merge(compiled: Sequence[Compiled]) -> Merged:
    """Join networks that were compiled one by one; a single one stays as it is."""
    if len(compiled) == 1:
        (only,) = compiled
        return Merged((only.module,), (ENTRY,), (tuple(only.params),), only.params)
    kernels = _Kernels()
    weights = _Weights()
    parts = [kernels.renamed(part.module) for part in compiled]
    orders = [weights.add(part.params) for part in compiled]
    entries = (ENTRY, *(f"{ENTRY}_{number}" for number in range(1, len(compiled))))
    return Merged(tuple(parts), entries, tuple(orders), weights.params)


def common_choices(modules: Sequence[tvm.IRModule], backend: Backend) -> list[dict[str, Choice]]:
    """Choose for layers of several networks with equal weights so that these are packed in the same way.

    Args:
        modules: The lowered networks, whose weights are still as in the file.
        backend: The board's backend.

    Returns:
        Choices by layer, for each network.
    """
    layers = [_layers_by_weights(module) for module in modules]
    shared = [weights for weights in layers[0] if all(weights in others for others in layers[1:])]
    chosen: list[dict[str, Choice]] = [{} for _ in modules]
    for group in dict.fromkeys(tuple(of_network[weights] for of_network in layers) for weights in shared):
        # One choice for each layer: another group may have decided for some of them.
        if any(layer in choices for layer, choices in zip(group, chosen, strict=True)):
            continue
        for layer, choices, choice in zip(group, chosen, backend.common_choices(group) or (), strict=False):
            choices[layer] = choice
    return chosen


def _layers_by_weights(module: tvm.IRModule) -> dict[str, str]:
    """Return the layers of templates, as JSON, by the digests of their weights."""
    layers: dict[str, str] = {}
    for binding in origins.bindings(module):
        call = binding.value
        if not isinstance(call, relax.Call) or len(call.args) < 2 or not isinstance(call.args[0], tvm.ir.GlobalVar):  # noqa: PLR2004 - a kernel and its arguments
            continue
        layer = layer_of(module[call.args[0]])
        for argument in call.args[1].fields if layer and isinstance(call.args[1], relax.Tuple) else ():
            if hasattr(argument, "value") and hasattr(argument.value, "numpy"):
                value = argument.value.numpy()
                if value.ndim > 1:  # biases are not packed
                    layers.setdefault(_digest(value), layer)
                    break
    return layers


def _digest(value: NDArray[Any]) -> str:
    head = f"{value.dtype} {value.shape} "
    return files.sha256_bytes(head.encode() + np.ascontiguousarray(value).tobytes())


class _Weights:
    """The params of networks; equal ones once, unless one network has them twice."""

    def __init__(self) -> None:
        self.params: dict[str, NDArray[Any]] = {}
        self._names: dict[str, list[str]] = {}  # by the digests of values

    def add(self, params: Mapping[str, NDArray[Any]]) -> tuple[str, ...]:
        """Add the params of a network; return their names in order."""
        order: list[str] = []
        for value in params.values():
            names = self._names.setdefault(_digest(value), [])
            # The arguments of a function are different params.
            name = next((name for name in names if name not in order), "")
            if not name:
                name = f"p{len(self.params)}"
                names.append(name)
                self.params[name] = value
            order.append(name)
        return tuple(order)


class _Kernels:
    """The kernels of networks, equal ones once, under names that no two of them share."""

    def __init__(self) -> None:
        self._builder = relax.BlockBuilder(tvm.IRModule({}))

    def renamed(self, module: tvm.IRModule) -> tvm.IRModule:
        """Return a network that calls its kernels by their common names."""
        functions = dict(module.functions_items())
        kernels = {
            variable: self._builder.add_func(function, variable.name_hint)
            for variable, function in functions.items()
            if isinstance(function, tirx.PrimFunc)
        }
        names = {str(old.name_hint): new for old, new in kernels.items()}
        # What is no kernel is a network.
        mapped = {
            variable: tvm_ffi.structural_map(
                function, (tvm.ir.GlobalVar, lambda called: names.get(str(called.name_hint), called))
            )
            for variable, function in functions.items()
            if variable not in kernels
        }
        common = self._builder.get()
        return tvm.IRModule({name: common[name] for name in names.values()} | mapped)
