"""From a model file to a Relax module: simplified, then read by TVM's importer with our converters."""

from __future__ import annotations

import contextlib
import io
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import onnx

from toolchain.errors import InputError
from toolchain.models import batchnorm, protos, state_pairs, tails
from toolchain.models.signature import supported_dtype
from toolchain.models.source import SourceModel
from toolchain.tensors import Bound, TensorSpec

if TYPE_CHECKING:
    import tvm

_RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)


@dataclass(frozen=True)
class ImportedModel:
    """A model as a Relax module whose weights are still constants.

    The inputs of its function `main` are in order, and its variables name the node of the file that they come from
    (`origins`).
    """

    source: SourceModel
    module: tvm.IRModule
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class UnsupportedNode:
    operator: str
    node: str
    index: int

    def __str__(self) -> str:
        return f"{self.operator} at node {self.index} {self.node!r}"


def import_model(source: SourceModel) -> ImportedModel:
    """Import a model into Relax; an InputError names the nodes that cannot be converted."""
    # Two seconds that `inspect` and tests can save.
    from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter  # noqa: PLC0415

    from toolchain.models import converters, origins  # noqa: PLC0415 - as above

    proto, bounds = tails.with_counts(as_imported(source), converters.names())
    if unsupported := unsupported_nodes(proto):
        raise InputError(
            f"{source.name} has {len(unsupported)} node(s) that TVM cannot import",
            details="\n".join(map(str, unsupported[:20])),
            hint=_advice(unsupported),
        )
    _check_constants(source, proto)
    for node in proto.graph.node:  # so that errors can name them
        node.name = node.name or next(iter(node.output), "")
    try:
        # It warns of renamed inputs (our signature keeps the file's names) and prints on the results' stream.
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), converters.registered() as imported:
            warnings.simplefilter("ignore")
            folded = batchnorm.fold(proto)
            with converters.blocks_ended():
                # TVM's `from_onnx` checks the whole model first, and ignores the result; ours was checked when read.
                module = ONNXGraphImporter({}, "float32").from_onnx(folded.graph, protos.opset(folded))
            module = origins.mark_origins(module, folded.graph.node, imported.values)
    except InputError:
        raise
    except Exception as fault:  # the converters raise whatever they trip over, of any class
        raise InputError(
            f"TVM cannot import {source.name}: {type(fault).__name__} at {_failing_node(fault)}",
            details=str(fault).strip()[-2000:],
            hint="export the model without that node; `toolchain inspect model` shows the nodes",
        ) from fault
    outputs = _output_specs(module, source, proto, bounds)
    state_pairs.refuse(source.inputs, outputs, source.states)
    return ImportedModel(source, module, outputs)


def as_imported(source: SourceModel) -> onnx.ModelProto:
    """Return a model as the importer reads it, with constants computed and loops unrolled."""
    from toolchain.models import converters, simplify  # noqa: PLC0415 - as above

    return simplify.simplified(source, converters.names())


def unsupported_nodes(proto: onnx.ModelProto) -> list[UnsupportedNode]:
    """List the nodes of the result of `as_imported` whose operator has no converter."""
    from toolchain.models import converters  # noqa: PLC0415 - as above

    convertible = converters.names()
    return [
        UnsupportedNode(node.op_type, node.name or (node.output[0] if node.output else ""), index)
        for index, node in enumerate(proto.graph.node)
        if node.op_type not in convertible
    ]


def _check_constants(source: SourceModel, proto: onnx.ModelProto) -> None:
    """Refuse a model with a constant of text that a node reads; both are named."""
    texts = {tensor.name for tensor in proto.graph.initializer if tensor.data_type == onnx.TensorProto.STRING}
    for node in proto.graph.node:
        if constants := texts.intersection(node.input):
            raise InputError(
                f"{source.name} computes with text, which no board does",
                details=f"{node.op_type} node {node.name or node.output[0]!r} reads the constant {min(constants)}",
                hint="encode text as numbers before it goes into the model, and export the model without this node",
            )


def _advice(unsupported: Sequence[UnsupportedNode]) -> str:
    if any(node.operator in _RANDOM for node in unsupported):
        return (
            "a compiled model draws no random numbers: export it in inference mode (in PyTorch, model.eval()), or make "
            "the output of this node an input of the model, and supply the numbers; `toolchain inspect model` lists "
            "the nodes"
        )
    return "export the model without these operators; list them with `toolchain inspect model`"


# The importer's exceptions do not name the node, but its frames have it.
def _failing_node(fault: BaseException) -> str:
    for frame, _ in traceback.walk_tb(fault.__traceback__):
        node = frame.f_locals.get("node")
        if isinstance(node, onnx.NodeProto):
            return f"{node.op_type} node {node.name or node.output[0]!r}"
    return "the graph's signature"


def _output_specs(
    module: tvm.IRModule, source: SourceModel, proto: onnx.ModelProto, bounds: Mapping[str, Bound]
) -> tuple[TensorSpec, ...]:
    result = module["main"].ret_ty
    types = list(result.fields) if hasattr(result, "fields") else [result]
    if not all(hasattr(kind, "shape") and hasattr(kind, "dtype") for kind in types):
        raise InputError(f"an output of {source.name} is not a tensor", details=str(result))
    try:
        shapes = [tuple(int(size) for size in kind.shape) for kind in types]
    except TypeError as fault:
        raise InputError(
            f"the output shapes of {source.name} depend on its data",
            details=_first_node_of_unknown_shape(proto) or str(result),
            hint="make the input that determines them constant (--fix NAME=VALUE), or export the model without them",
        ) from fault
    if any(0 in shape for shape in shapes):
        raise InputError(f"an output of {source.name} has no elements", details=str(result))
    if any(min(shape, default=0) < 0 for shape in shapes):
        raise InputError(f"an output of {source.name} has a negative size", details=str(result))
    # Counts come behind the outputs, and several outputs may share one.
    names = [*source.output_names, *dict.fromkeys(bound.count for bound in bounds.values())]
    return tuple(
        TensorSpec(
            name,
            shape,
            supported_dtype(name, str(kind.dtype)),
            # A file may count the axis from the last one.
            replace(bound, axis=bound.axis % len(shape)) if (bound := bounds.get(name)) else None,
        )
        for name, shape, kind in zip(names, shapes, types, strict=True)
    )


def _first_node_of_unknown_shape(proto: onnx.ModelProto) -> str:
    """Name the first node of the standard whose inputs have known shapes, and whose outputs have not."""
    graph = onnx.shape_inference.infer_shapes(protos.without_weights(proto), data_prop=True).graph
    closed = {tensor.name for tensor in graph.initializer} | {""}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            closed.add(value.name)
    for index, node in enumerate(graph.node):
        if onnx.defs.has(node.op_type) and closed.issuperset(node.input) and not closed.issuperset(node.output):
            return f"{node.op_type} at node {index} {node.name or node.output[0]!r}"
    return ""
