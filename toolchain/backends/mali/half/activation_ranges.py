"""Layers whose inputs are small read them times a power of two, by which their weights are divided.

Half precision has 11 bits down to 2^-14 and loses them one by one below that, where products of small activations with
weights lie. The inputs of a layer are measured with several samples, and rescaled only if all of them make these small.
The products stay the same numbers, as both factors change by the same power of two; sums in half precision are then far
from either end of its range. Numbers that other inputs make too great are limited, and stay finite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from toolchain.backends.graph.values import shape_of
from toolchain.backends.mali.rewrite import MAIN, with_blocks
from toolchain.tensors import Tensors

_LAYERS = ("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d", "relax.matmul")
_DENSE, _TRANSPOSE, _MATRIX = "relax.matmul", "relax.permute_dims", 2
_SINGLE = "float32"
_SMALL = 2.0**-5  # layers whose inputs are not above that are rescaled
_GOAL = 2.0**4  # the greatest input then: half precision ends at 4094 times that
_GREATEST = 65504.0  # of half precision
_MAX_POWER = 15  # the greatest power of two that half precision has


@dataclass(frozen=True, eq=False)
class _Layer:
    """A layer whose weights are constant.

    Attributes:
        data: The variable that it reads.
        weights: Its weights.
        transposed: The call that transposes them; None if they are used as they are.
        operator: What it is called.
    """

    data: Any
    weights: NDArray[Any]
    transposed: Any
    operator: str

    def __str__(self) -> str:
        return f"{self.operator}, weights {'x'.join(map(str, self.weights.shape))}"


@dataclass(frozen=True)
class RescaledLayer:
    """A layer that is given greater numbers.

    Attributes:
        name: Which it is, for people: its place among the layers, its operator, and its weights.
        measured: The greatest magnitude that it reads with any of the inputs at hand.
        limit: The greatest that it may read: what is beyond is taken for that.
    """

    name: str
    measured: float
    limit: float

    def __str__(self) -> str:
        span = f"it reads at most {self.measured:.2g}, of the possible {self.limit:.4g}"
        return f"{self.name}: input scaled up for half precision: {span}"


def rescale_layers(module: tvm.IRModule, samples: Sequence[Tensors]) -> tuple[tvm.IRModule, tuple[RescaledLayer, ...]]:
    """Return a module in which layers with small inputs read greater ones, and these layers.

    It computes the same, but for what is below single precision, as long as inputs stay below the limits.

    Args:
        module: Operators as the importer writes them.
        samples: Inputs of the model by name, in the order of its signature. Layers have to read small
            numbers with each.
    """
    layers = _layers(module)
    greatest = _greatest(module, list(dict.fromkeys(layer.data for layer in layers.values())), samples)
    powers = {variable: _power(magnitude) for variable, magnitude in greatest.items()}
    small = {variable: layer for variable, layer in layers.items() if powers[layer.data]}
    if not small:
        return module, ()
    writer = _Rescaler(small, powers)
    names = {variable: f"layer {number}" for number, variable in enumerate(layers, 1)}
    reports = tuple(
        RescaledLayer(f"{names[variable]} ({layer})", greatest[layer.data], math.ldexp(_GREATEST, -powers[layer.data]))
        for variable, layer in small.items()
    )
    blocks = [writer.block(block) for block in module[MAIN].body.blocks]
    return relax.transform.Normalize()(with_blocks(module, blocks)), reports


def _power(magnitude: float) -> int:
    """Return the power of two for a layer that reads numbers up to a magnitude; 0 if that is great enough, or NaN."""
    if not math.isfinite(magnitude) or not 0 < magnitude <= _SMALL:
        return 0
    return min(_MAX_POWER, math.floor(math.log2(_GOAL / magnitude)))


def _layers(module: tvm.IRModule) -> dict[Any, _Layer]:
    """Return by variable the layers on floats of dataflow blocks that multiply with constants."""
    layers: dict[Any, _Layer] = {}
    for block in module[MAIN].body.blocks:
        values = {binding.var: binding.value for binding in block.bindings}
        for binding in block.bindings if isinstance(block, relax.DataflowBlock) else ():
            layer = _layer(binding.value, values)
            if layer is not None:
                layers[binding.var] = layer
    return layers


def _layer(call: Any, values: Mapping[Any, Any]) -> _Layer | None:
    if not isinstance(call, relax.Call) or getattr(call.op, "name", "") not in _LAYERS:
        return None
    data, weights = call.args
    maker = values.get(weights) if isinstance(weights, relax.Var) else None
    transposed = maker if isinstance(maker, relax.Call) and getattr(maker.op, "name", "") == _TRANSPOSE else None
    constant = transposed.args[0] if transposed is not None else weights
    if not isinstance(constant, tvm.ir.GenericConst) or not isinstance(data, relax.Var):
        return None
    array, shape = constant.value.numpy(), shape_of(data.ty)
    is_float32 = shape is not None and math.prod(shape) > 0 and str(data.ty.dtype) == str(array.dtype) == _SINGLE
    if not is_float32 or (call.op.name == _DENSE and array.ndim != _MATRIX):
        return None
    return _Layer(data, array, transposed, call.op.name.rpartition(".")[2])


def _greatest(module: tvm.IRModule, variables: Sequence[Any], samples: Sequence[Tensors]) -> dict[Any, float]:
    """Return the greatest magnitudes that variables have, by computing the network on this machine; NaN if any is."""
    if not variables:
        return {}
    results = [relax.Var(f"greatest{number}", relax.TensorType([], _SINGLE)) for number, _ in enumerate(variables)]
    measures = dict(zip(variables, results, strict=True))

    def measure(variable: Any) -> list[Any]:
        result = measures.get(variable)
        return [] if result is None else [relax.VarBinding(result, relax.op.max(relax.op.abs(variable)))]

    main = module[MAIN]
    blocks = [relax.BindingBlock([binding for parameter in main.params for binding in measure(parameter)])]
    blocks += [
        type(block)([each for binding in block.bindings for each in (binding, *measure(binding.var))])
        for block in main.body.blocks
    ]
    measuring = relax.transform.Normalize()(with_blocks(module, blocks, relax.Tuple(results)))
    needed = relax.transform.DeadCodeElimination()(measuring)  # up to the last layer that is measured
    machine = relax.VirtualMachine(tvm.compile(needed, target=tvm.target.Target("llvm")), tvm.cpu())
    magnitudes = np.array(
        [
            [tensor.numpy() for tensor in machine[MAIN](*(tvm.runtime.tensor(tensor) for tensor in inputs.values()))]
            for inputs in samples
        ]
    )
    return dict(zip(variables, map(float, np.max(magnitudes, axis=0)), strict=True))


class _Rescaler:
    """Writes blocks anew, in which some layers read greater numbers."""

    def __init__(self, layers: Mapping[Any, _Layer], powers: Mapping[Any, int]) -> None:
        self._layers = layers
        self._powers = powers

    def block(self, block: Any) -> Any:
        scaled: dict[Any, Any] = {}
        bindings: list[Any] = []
        for binding in block.bindings:
            layer = self._layers.get(binding.var)
            bindings += [binding] if layer is None else self._bindings(binding, layer, scaled)
        return type(block)(bindings)

    def _bindings(self, binding: Any, layer: _Layer, scaled: dict[Any, Any]) -> list[Any]:
        call, power = binding.value, self._powers[layer.data]
        bindings: list[Any] = []
        if layer.data not in scaled:
            scaled[layer.data] = relax.DataflowVar(f"{layer.data.name}_more", layer.data.ty, layer.data.span)
            bindings.append(relax.VarBinding(scaled[layer.data], _more(layer.data, power)))
        weights: Any = relax.const(np.ldexp(layer.weights, -power))
        if layer.transposed is not None:
            fewer = relax.DataflowVar(f"{binding.var.name}_weights", call.args[1].ty)
            bindings.append(relax.VarBinding(fewer, relax.op.permute_dims(weights, layer.transposed.attrs.axes)))
            weights = fewer
        value = relax.Call(call.op, [scaled[layer.data], weights], call.attrs, call.ty_args)
        return [*bindings, relax.VarBinding(binding.var, value)]


def _more(data: Any, power: int) -> Any:
    """Return a tensor times a power of two, within what half precision holds.

    Minimum and maximum make a number of NaN on some devices, so `data - data` is added: it is 0 for finite numbers, and
    NaN for NaN and for infinity, which the limit would hide too.
    """

    def constant(number: float) -> Any:
        # A tensor and not a scalar: as an argument, it leaves the kernel the same whatever the power is.
        return relax.const(np.full([1] * len(data.ty.shape.values), number, np.float32))

    op, limit = relax.op, math.ldexp(_GREATEST, -power)
    within = op.maximum(op.minimum(data, constant(limit)), constant(-limit))
    return op.add(op.multiply(within, constant(2.0**power)), op.subtract(data, data))
