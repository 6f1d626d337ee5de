"""What a model consists of: its signature, size, work and operators."""

from __future__ import annotations

import collections
from dataclasses import dataclass

import onnx
from onnx import shape_inference

from toolchain.errors import InputError
from toolchain.models import few_bits, flops, protos, sparsity
from toolchain.models.few_bits import FewBits
from toolchain.models.importer import UnsupportedNode, as_imported, import_model, unsupported_nodes
from toolchain.models.signature import dtype_of
from toolchain.models.source import SourceModel
from toolchain.models.sparsity import Sparsity
from toolchain.tensors import TensorSpec


@dataclass(frozen=True)
class Output:
    """An output; a size that depends on the data is 0, and an unknown rank is None."""

    name: str
    shape: tuple[int, ...] | None
    dtype: str


@dataclass(frozen=True)
class Inspection:
    """Result of `toolchain inspect model`.

    Attributes:
        outputs: As far as known.
        gflops: Of one run, a multiply-add as two operations; None if a shape is unknown.
        operators: Number of nodes by operator, in the file.
        imported: The same after constants were folded with the shapes set.
        guessed: Lines about guessed shapes, and about outputs that differ from the file's.
        sparsity: Zeros in the weights of layers; None if no layer has constant weights.
        few_bits: Weights of few bits in blocks; None if there are none.
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
    sparsity: Sparsity | None
    few_bits: FewBits | None
    unsupported: tuple[UnsupportedNode, ...]


def inspect(source: SourceModel) -> Inspection:
    simple = as_imported(source)
    inferred = shape_inference.infer_shapes(protos.without_weights(simple))
    opsets = {entry.domain: entry.version for entry in source.proto.opset_import}
    work = flops.count(inferred.graph)
    unsupported = tuple(unsupported_nodes(simple))
    outputs = []
    for value in inferred.graph.output:
        tensor = value.type.tensor_type
        shape = tuple(size.dim_value for size in tensor.shape.dim) if tensor.HasField("shape") else None
        outputs.append(Output(value.name, shape, dtype_of(value.name, tensor.elem_type)))
    if not unsupported and any(output.shape is None or 0 in output.shape for output in outputs):
        outputs = _imported_outputs(source, outputs)
    return Inspection(
        name=source.name,
        opset=opsets.get("", opsets.get("ai.onnx", 0)),
        inputs=source.inputs,
        outputs=tuple(outputs),
        parameters=flops.parameters(inferred.graph),
        gflops=None if work is None else round(work / 1e9, 4),
        operators=_operator_counts(source.proto),
        imported=_operator_counts(simple),
        guessed=source.guessed,
        sparsity=sparsity.measure(simple.graph),
        few_bits=few_bits.measure(source.proto.graph),
        unsupported=unsupported,
    )


def _operator_counts(proto: onnx.ModelProto) -> dict[str, int]:
    return dict(sorted(collections.Counter(node.op_type for node in proto.graph.node).items()))


# Shape inference does not support all operators: a build knows more.
def _imported_outputs(source: SourceModel, outputs: list[Output]) -> list[Output]:
    try:
        specs = {spec.name: spec for spec in import_model(source).outputs}
    except InputError:
        return outputs  # a build reports the obstacle
    imported = []
    for spec in (specs[output.name] for output in outputs):
        open_axis = spec.bound.axis if spec.bound else None
        sizes = tuple(0 if axis == open_axis else size for axis, size in enumerate(spec.shape))
        imported.append(Output(spec.name, sizes, spec.dtype))
    return imported
