"""What a model is made of: its signature, its size, its work and its operators."""

from __future__ import annotations

import collections
from dataclasses import dataclass

import onnx
from onnx import shape_inference

from toolchain.models import flops
from toolchain.models.importer import UnsupportedNode, as_imported, unsupported_nodes
from toolchain.models.signature import dtype_of
from toolchain.models.source import SourceModel
from toolchain.tensors import TensorSpec


@dataclass(frozen=True)
class Inspection:
    """What `toolchain model inspect` shows.

    Attributes:
        name: Model name.
        opset: Version of the default ONNX operator set.
        inputs: Input signature.
        outputs: Output signature as far as shape inference sees it.
        parameters: Number of weights.
        gflops: Billions of floating-point operations of one run (a multiply-add counts as two), or None where a
            shape is unknown.
        operators: Number of nodes by operator, in the file.
        imported: The same after the simplification, which folds what is constant once the shapes are known.
        guessed: Lines about shapes that nobody gave, and about outputs that are others than in the file.
        unsupported: Nodes that cannot be imported.
    """

    name: str
    opset: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parameters: int
    gflops: float | None
    operators: dict[str, int]
    imported: dict[str, int]
    guessed: tuple[str, ...]
    unsupported: tuple[UnsupportedNode, ...]


def inspect(source: SourceModel) -> Inspection:
    """Describe a model: signature, size, work and operators."""
    simple = as_imported(source)
    inferred = shape_inference.infer_shapes(simple)
    opsets = {entry.domain: entry.version for entry in source.proto.opset_import}
    work = flops.count(inferred.graph)
    return Inspection(
        name=source.name,
        opset=opsets.get("", opsets.get("ai.onnx", 0)),
        inputs=source.inputs,
        outputs=tuple(_loose_spec(value) for value in inferred.graph.output),
        parameters=flops.parameters(inferred.graph),
        gflops=None if work is None else round(work / 1e9, 4),
        operators=_counted(source.proto),
        imported=_counted(simple),
        guessed=source.guessed,
        unsupported=tuple(unsupported_nodes(simple)),
    )


def _counted(proto: onnx.ModelProto) -> dict[str, int]:
    return dict(sorted(collections.Counter(node.op_type for node in proto.graph.node).items()))


def _loose_spec(value: onnx.ValueInfoProto) -> TensorSpec:
    tensor = value.type.tensor_type
    return TensorSpec(
        value.name, tuple(dim.dim_value for dim in tensor.shape.dim), dtype_of(value.name, tensor.elem_type)
    )
