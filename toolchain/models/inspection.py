"""What a model is made of: its signature, its size, its work and its operators."""

from __future__ import annotations

import collections
from dataclasses import dataclass

import onnx
from onnx import shape_inference

from toolchain.errors import InputError
from toolchain.models import flops
from toolchain.models.importer import UnsupportedNode, as_imported, import_model, unsupported_nodes
from toolchain.models.signature import dtype_of
from toolchain.models.source import SourceModel
from toolchain.tensors import TensorSpec


@dataclass(frozen=True)
class Output:
    """An output as far as its shape is known: 0 is a size that depends on the data; None where not even the rank is."""

    name: str
    shape: tuple[int, ...] | None
    dtype: str


@dataclass(frozen=True)
class Inspection:
    """What `toolchain model inspect` shows.

    Attributes:
        name: Model name.
        opset: Version of the default ONNX operator set.
        inputs: Input signature.
        outputs: Output signature, as far as it is known.
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
    outputs: tuple[Output, ...]
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
    unsupported = tuple(unsupported_nodes(simple))
    outputs = tuple(map(_output, inferred.graph.output))
    if not unsupported and any(one.shape is None or 0 in one.shape for one in outputs):
        outputs = _imported(source, outputs)
    return Inspection(
        name=source.name,
        opset=opsets.get("", opsets.get("ai.onnx", 0)),
        inputs=source.inputs,
        outputs=outputs,
        parameters=flops.parameters(inferred.graph),
        gflops=None if work is None else round(work / 1e9, 4),
        operators=_counted(source.proto),
        imported=_counted(simple),
        guessed=source.guessed,
        unsupported=unsupported,
    )


def _counted(proto: onnx.ModelProto) -> dict[str, int]:
    return dict(sorted(collections.Counter(node.op_type for node in proto.graph.node).items()))


def _output(value: onnx.ValueInfoProto) -> Output:
    tensor = value.type.tensor_type
    shape = tuple(size.dim_value for size in tensor.shape.dim) if tensor.HasField("shape") else None
    return Output(value.name, shape, dtype_of(value.name, tensor.elem_type))


def _imported(source: SourceModel, outputs: tuple[Output, ...]) -> tuple[Output, ...]:
    """Return outputs as a build has them: shape inference does not know what all operators compute."""
    try:
        found = {spec.name: spec for spec in import_model(source).outputs}
    except InputError:
        return outputs  # what stands in the way, a build says
    return tuple(_of(found[one.name]) for one in outputs)


def _of(spec: TensorSpec) -> Output:
    open_axis = spec.bound.axis if spec.bound else None
    sizes = tuple(0 if axis == open_axis else size for axis, size in enumerate(spec.shape))
    return Output(spec.name, sizes, spec.dtype)
