"""The kernels that the layers of a network call: stand-ins at first, then those of the chosen templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax, s_tir, tirx
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends._attributes import EXACT, LAYER
from toolchain.backends.cpu._graph.values import shape_of
from toolchain.backends.cpu._layers import Conv, Dense, Layer, Map, Pool, QuantizedConv, task_of, to_json
from toolchain.backends.cpu._templates import emit
from toolchain.backends.cpu._templates.emit import Argument

_ONE_INPUT = 2  # parameters: the result too
_OPAQUE = 8  # TVM's kind of operation that no other is fused with


class StandIns:
    """The stand-ins of a module: one for all layers that are the same.

    Args:
        builder: What collects the module's functions.
    """

    def __init__(self, builder: relax.BlockBuilder) -> None:
        self._builder = builder
        self._known: dict[str, Any] = {}

    def of(self, layer: Layer, given: Sequence[Any]) -> Any:
        """Return the global variable of a layer's stand-in.

        Args:
            layer: The layer.
            given: What it is called with, without the result. Weights are as they are in the network; they and all else
                have the same shapes in each call.
        """
        exact = to_json(layer)
        if exact not in self._known:
            attributes = {LAYER: to_json(task_of(layer)), EXACT: exact}
            arguments = [_argument(number, one.ty) for number, one in enumerate(given)]
            function = emit.kernel([*arguments, _result(layer)], lambda *_: T.evaluate(0), {})
            function = function.with_body(rooted(function.body))
            self._known[exact] = self._builder.add_func(called(function, attributes), name(layer))
        return self._known[exact]


def rooted(body: tirx.Stmt) -> tirx.Stmt:
    """Return statements as MetaSchedule's passes over a whole module expect the body of any kernel: blocks."""
    for name_of_block in ("layer", "root"):
        block = s_tir.SBlock([], [], [], name_of_block, body)
        body = s_tir.SBlockRealize([], True, block)  # noqa: FBT003 - TVM has no name for it
    return body


def called(function: tirx.PrimFunc, attributes: Mapping[str, str]) -> tirx.PrimFunc:
    """Return a kernel as a module's function with some attributes, which passes leave alone."""
    # A pass that looks for reshapes wants a block in each kernel that has one input.
    if len(function.params) == _ONE_INPUT and not isinstance(function.body, s_tir.SBlockRealize):
        block = s_tir.SBlock([], [], [], "root", function.body)
        function = function.with_body(s_tir.SBlockRealize([], True, block))  # noqa: FBT003 - its signature
    return function.without_attr("global_symbol").with_attrs({**attributes, "op_pattern": _OPAQUE})


def name(layer: Layer) -> str:
    """Name the function of a layer; no name ends in a digit, since TVM appends a number to those of the same name."""
    if isinstance(layer, (Conv, QuantizedConv)):
        size = "x".join(str(extent) for extent in layer.kernel)
        prefix = "" if isinstance(layer, Conv) else "int8_"
        return f"{prefix}{'depthwise' if layer.is_depthwise else 'conv'}_{size}_kernel"
    if isinstance(layer, Pool):
        return f"{layer.reduce}_pool"
    if isinstance(layer, Map):
        if layer.data.lanes != layer.out.lanes:
            return "to_blocks" if layer.data.lanes == 1 else "from_blocks"
        return "shuffle" if layer.shuffle else "map"
    return type(layer).__name__.lower()


def _result(layer: Layer) -> Argument:
    if isinstance(layer, Dense):
        return Argument("out", (layer.rows, layer.outputs))
    return Argument("out", layer.out.shape, layer.out.dtype)


def _argument(number: int, kind: Any) -> Argument:
    return Argument(f"given{number}", shape_of(kind) or (), str(kind.dtype))
