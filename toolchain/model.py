"""Model files: read ONNX, know its signature and its operators, and import it as a Relax module."""

from __future__ import annotations

import collections
import contextlib
import importlib
import io
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
from google.protobuf.message import DecodeError
from onnx import helper, shape_inference

from toolchain import batchnorm, files, flops, zoo
from toolchain.errors import InputError, did_you_mean
from toolchain.tensors import DTYPES, TensorSpec

if TYPE_CHECKING:
    import tvm


@dataclass(frozen=True)
class SourceModel:
    """A model file as it was read, with static shapes; no compiler has seen it yet.

    Attributes:
        name: The file's name without its ending, or the zoo's name.
        origin: What a command line names to get the model again: a zoo name, or the file's name.
        proto: The ONNX model. Initializers are not among its graph's inputs.
        sha256: Digest of the model with its weights and the shapes that were set.
        inputs: Signature of what a caller supplies, in order.
        output_names: Names of the results, in order.
    """

    name: str
    origin: str
    proto: onnx.ModelProto
    sha256: str
    inputs: tuple[TensorSpec, ...]
    output_names: tuple[str, ...]


@dataclass(frozen=True)
class ImportedModel:
    """A model as a Relax module whose weights are still constants.

    Attributes:
        source: Where it came from.
        module: Relax module; its function `main` takes the inputs in order.
        outputs: Signature of the results, in order.
    """

    source: SourceModel
    module: tvm.IRModule
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class UnsupportedNode:
    """A node of a model that the importer has no converter for."""

    operator: str
    node: str
    index: int

    def __str__(self) -> str:
        return f"{self.operator} at node {self.index} {self.node!r}"


def load(source: str, shapes: Mapping[str, tuple[int, ...]] | None = None, seed: int = 0) -> SourceModel:
    """Read a model of the zoo by its name, or an ONNX file by its path.

    Args:
        source: Zoo name, or path of an `.onnx` file.
        shapes: Shapes by input name, for inputs whose file leaves dimensions open.
        seed: Seed of a zoo network's weights.

    Raises:
        InputError: No such model, not an ONNX model, or a dimension stays open.
    """
    path = Path(source)
    if source in zoo.NAMES and not path.exists():
        proto, name, origin = zoo.build(source, seed), source, source
    else:
        proto, name, origin = _read(path), path.stem, path.name
    _drop_initializers_from_inputs(proto)
    _set_shapes(proto, dict(shapes or {}))
    return _described(proto, name, origin)


def _read(path: Path) -> onnx.ModelProto:
    if not path.is_file():
        raise InputError(
            f"there is no model {str(path)!r}",
            details="networks of the zoo: " + ", ".join(zoo.NAMES),
            hint=did_you_mean(str(path), zoo.NAMES)
            or "give the path of an .onnx file; `toolchain model list` shows the zoo",
        )
    try:
        proto = onnx.load(path, format="protobuf")
        onnx.checker.check_model(proto)
    except (DecodeError, onnx.checker.ValidationError, OSError, ValueError) as fault:
        raise InputError(
            f"{path.name} is not a valid ONNX model", details=str(fault).strip(), hint="export it again; is it whole?"
        ) from fault
    return proto


def _described(proto: onnx.ModelProto, name: str, origin: str) -> SourceModel:
    inputs = tuple(_input_spec(value) for value in proto.graph.input)
    if not inputs or not proto.graph.output:
        raise InputError(f"model {name} has no inputs or no outputs", hint="export it with its graph's signature")
    digest = files.sha256_bytes(proto.SerializeToString(deterministic=True))
    return SourceModel(name, origin, proto, digest, inputs, tuple(value.name for value in proto.graph.output))


def _drop_initializers_from_inputs(proto: onnx.ModelProto) -> None:
    """Old models list every weight among the inputs; whoever runs the model does not supply those."""
    weights = {tensor.name for tensor in proto.graph.initializer}
    kept = [value for value in proto.graph.input if value.name not in weights]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)


def _set_shapes(proto: onnx.ModelProto, shapes: dict[str, tuple[int, ...]]) -> None:
    """Write the given shapes into the graph's inputs and forget what was inferred from the open ones."""
    if not shapes:
        return
    values = {value.name: value for value in proto.graph.input}
    for name, shape in shapes.items():
        if name not in values:
            raise InputError(f"the model has no input {name!r}", details="its inputs: " + ", ".join(values))
        _set_shape(values[name], shape)
    del proto.graph.value_info[:]
    for output in proto.graph.output:
        output.type.tensor_type.ClearField("shape")


def _set_shape(value: onnx.ValueInfoProto, shape: tuple[int, ...]) -> None:
    dims = value.type.tensor_type.shape.dim
    fits = len(dims) == len(shape) and all(
        dim.dim_value <= 0 or dim.dim_value == want  # an open dimension is 0, from some exporters -1
        for dim, want in zip(dims, shape, strict=True)
    )
    if not fits:
        raise InputError(f"shape {shape} does not fit input {value.name}, which is {_dims_text(value)} in the model")
    del dims[:]
    for size in shape:
        dims.add().dim_value = size


def _dims_text(value: onnx.ValueInfoProto) -> str:
    dims = value.type.tensor_type.shape.dim
    return " x ".join(dim.dim_param or (str(dim.dim_value) if dim.dim_value > 0 else "?") for dim in dims) or "scalar"


def _input_spec(value: onnx.ValueInfoProto) -> TensorSpec:
    tensor = value.type.tensor_type
    shape = tuple(dim.dim_value for dim in tensor.shape.dim)
    if not tensor.HasField("shape"):
        raise InputError(f"input {value.name} is not a tensor", hint="export the model with tensors as its inputs")
    if any(size <= 0 for size in shape):
        example = ",".join(str(max(size, 1)) for size in shape)
        raise InputError(
            f"input {value.name} has open dimensions: {_dims_text(value)}",
            hint=f"set them, for example: --shape {value.name}:{example}",
        )
    return TensorSpec(value.name, shape, _dtype(value.name, tensor.elem_type))


def _dtype(name: str, element: int) -> str:
    try:
        dtype = str(helper.tensor_dtype_to_np_dtype(element))
    except (KeyError, TypeError, ValueError):
        dtype = str(element)
    return _supported(name, "string" if dtype == "object" else dtype)


def _supported(name: str, dtype: str) -> str:
    if dtype not in DTYPES:
        raise InputError(f"tensor {name} has the element type {dtype}", hint="supported: " + ", ".join(DTYPES))
    return dtype


def import_model(source: SourceModel) -> ImportedModel:
    """Import a model into Relax.

    Raises:
        InputError: An operator has no converter, or its converter refused it; the node is named.
    """
    from tvm.relax.frontend.onnx import from_onnx  # noqa: PLC0415 - two seconds that `inspect` and tests can save

    unsupported = unsupported_nodes(source)
    if unsupported:
        raise InputError(
            f"{source.name} has {len(unsupported)} node(s) that TVM cannot import",
            details="\n".join(map(str, unsupported[:20])),
            hint="export the model without these operators; `toolchain model inspect` lists them",
        )
    try:
        # It warns of renamed inputs (our signature keeps the file's names) and prints on the results' stream.
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            module = from_onnx(batchnorm.fold(source.proto))
    except Exception as fault:  # the converters raise whatever they trip over, of any class
        raise InputError(
            f"TVM cannot import {source.name}: {type(fault).__name__} at {_failing_node(fault)}",
            details=str(fault).strip()[-2000:],
            hint="change that node when exporting; simplifying the model first (constant folding) often helps",
        ) from fault
    return ImportedModel(source, module, _output_specs(module, source))


def _failing_node(fault: BaseException) -> str:
    """Find the ONNX node that an importer's frame was working on: its exceptions do not say."""
    for frame, _ in traceback.walk_tb(fault.__traceback__):
        node = frame.f_locals.get("node")
        if isinstance(node, onnx.NodeProto):
            return f"{node.op_type} node {node.name or node.output[0]!r}"
    return "the graph's signature"


def _output_specs(module: tvm.IRModule, source: SourceModel) -> tuple[TensorSpec, ...]:
    result = module["main"].ret_ty
    types = list(result.fields) if hasattr(result, "fields") else [result]
    if not all(hasattr(kind, "shape") and hasattr(kind, "dtype") for kind in types):
        raise InputError(f"an output of {source.name} is not a tensor", details=str(result))
    try:
        shapes = [tuple(int(size) for size in kind.shape) for kind in types]
    except TypeError as fault:
        raise InputError(
            f"the output shapes of {source.name} depend on its data", details=str(result), hint="fix every input shape"
        ) from fault
    return tuple(
        TensorSpec(name, shape, _supported(name, str(kind.dtype)))
        for name, shape, kind in zip(source.output_names, shapes, types, strict=True)
    )


def unsupported_nodes(source: SourceModel) -> list[UnsupportedNode]:
    """List the nodes whose operator the TVM importer has no converter for."""
    frontend: Any = importlib.import_module("tvm.relax.frontend.onnx.onnx_frontend")
    # Private upstream, but it is the importer's own list: asking it beats importing to see what fails.
    known = {*frontend._get_convert_map(), "Constant", "If"}  # noqa: SLF001
    return [
        UnsupportedNode(node.op_type, node.name or (node.output[0] if node.output else ""), index)
        for index, node in enumerate(source.proto.graph.node)
        if node.op_type not in known
    ]


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
        operators: Number of nodes by operator.
        unsupported: Nodes that cannot be imported.
    """

    name: str
    opset: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parameters: int
    gflops: float | None
    operators: dict[str, int]
    unsupported: tuple[UnsupportedNode, ...]


def inspect(source: SourceModel) -> Inspection:
    """Describe a model: signature, size, work and operators."""
    inferred = shape_inference.infer_shapes(source.proto)
    opsets = {entry.domain: entry.version for entry in source.proto.opset_import}
    counts = collections.Counter(node.op_type for node in source.proto.graph.node)
    work = flops.count(inferred.graph)
    return Inspection(
        name=source.name,
        opset=opsets.get("", opsets.get("ai.onnx", 0)),
        inputs=source.inputs,
        outputs=tuple(_loose_spec(value) for value in inferred.graph.output),
        parameters=flops.parameters(inferred.graph),
        gflops=None if work is None else round(work / 1e9, 4),
        operators=dict(sorted(counts.items())),
        unsupported=tuple(unsupported_nodes(source)),
    )


def _loose_spec(value: onnx.ValueInfoProto) -> TensorSpec:
    tensor = value.type.tensor_type
    return TensorSpec(
        value.name, tuple(dim.dim_value for dim in tensor.shape.dim), _dtype(value.name, tensor.elem_type)
    )
