"""The kernels that the layers of a network call: stand-ins at first, then those of the chosen templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.base import EXACT, LAYER
from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Argument
from toolchain.backends.cpu.layers import Attention, Conv, Dense, Layer, Pool, WithResult, task_of, to_json
from toolchain.backends.graph.kernels import as_opaque, in_root_block
from toolchain.backends.graph.values import shape_of
from toolchain.models.converters.sequence.recurrence import Recurrence


class StandIns:
    """The stand-ins of a module: one for all layers that are the same.

    Args:
        builder: What collects the module's functions.
    """

    def __init__(self, builder: relax.BlockBuilder) -> None:
        self._builder = builder
        self._known: dict[str, Any] = {}

    def of(self, layer: WithResult, arguments: Sequence[Any]) -> Any:
        """Return the global variable of a layer's stand-in.

        Args:
            layer: The layer.
            arguments: What it is called with, without the result. Weights are as they are in the network; all have the
                same shapes in each call.
        """
        exact = to_json(layer)
        if exact not in self._known:
            attributes = {LAYER: to_json(task_of(layer)), EXACT: exact}
            declared = [
                Argument(f"given{number}", shape_of(argument.ty) or (), str(argument.ty.dtype))
                for number, argument in enumerate(arguments)
            ]
            function = emit.kernel([*declared, _result(layer)], lambda *_: T.evaluate(0), {})
            # MetaSchedule's passes over a module expect blocks; the empty body only stands for the layer.
            function = function.with_body(in_root_block(function.body))
            self._known[exact] = self._builder.add_func(as_opaque(function, attributes), name(layer))
        return self._known[exact]

    def call(self, layer: WithResult, arguments: Sequence[Any], buffer: Any = None) -> Any:
        """Return a call of a layer's stand-in.

        Args:
            layer: The layer.
            arguments: As for `of`.
            buffer: What it writes into; by default it makes a new tensor.
        """
        stand_in, result = self.of(layer, arguments), _result(layer)
        kind = relax.TensorType(result.shape, result.dtype)
        if buffer is None:
            return relax.op.call_tir(stand_in, relax.Tuple(list(arguments)), kind)
        return relax.op.call_tir_inplace(stand_in, relax.Tuple([*arguments, buffer]), len(arguments), kind)


def name(layer: Layer) -> str:
    """Name the function of a layer; no name ends in a digit, since TVM appends a number to those of the same name."""
    if isinstance(layer, Recurrence):
        return f"{layer.cell}_kernel"
    if isinstance(layer, (Attention, Dense)):
        return type(layer).__name__.lower()
    prefix = "int8_" if layer.is_quantized else ""
    if isinstance(layer, Conv):
        size = "x".join(str(extent) for extent in layer.kernel)
        return f"{prefix}{'depthwise' if layer.is_depthwise else 'conv'}_{size}_kernel"
    if isinstance(layer, Pool):
        return f"{prefix}{layer.reduce}_pool"
    if layer.data.lanes != layer.out.lanes and not prefix:
        return "to_blocks" if layer.data.lanes == 1 else "from_blocks"
    return f"{prefix}{'shuffle' if layer.shuffle else 'map'}"


def _result(layer: WithResult) -> Argument:
    if isinstance(layer, Dense):
        return Argument("out", (layer.rows, layer.outputs))
    if isinstance(layer, Attention):
        return Argument("out", layer.out.shape)
    return Argument("out", layer.out.shape, layer.out.dtype)
