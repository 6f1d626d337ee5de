"""Model files: read ONNX with static shapes, and know its signature."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import shape_inference

from toolchain import files
from toolchain.errors import InputError, did_you_mean
from toolchain.models import (
    attributes,
    canonical,
    class_labels,
    draws,
    expansion,
    external,
    inputs,
    memory,
    names,
    signature,
    zoo,
)
from toolchain.models.formats import recognised
from toolchain.models.request import Model
from toolchain.tensors import TensorSpec

_LARGEST = 2**31
"""Bytes of what protobuf holds in one piece, and so of what ONNX checks, infers and converts."""

# What to do, by what the checker says.
_ADVICE = (
    (
        "outside the directory",
        "move the weights into the model's folder, and save the model with a location in that folder",
    ),
    ("should be stored in", "copy that file, which has the weights, next to the model"),
    ("ir_version", "save it in an older format: model.ir_version = 10; onnx.save(model, FILE)"),
)


@dataclass(frozen=True)
class SourceModel:
    """A model file as it was read, with static shapes; no compiler has seen it yet.

    Attributes:
        name: The file's name without its ending, or the zoo's name.
        origin: What a command line names to get the model again: a zoo name, or the file's name.
        proto: The ONNX model. Initializers are not among its graph's inputs.
        sha256: Digest of the model with its weights, and with the shapes and inputs that were set.
        inputs: Signature of what a caller supplies, in order.
        output_names: Names of the results, in order.
        declared: The inputs as the file describes them, with dimensions that it leaves open.
        guessed: Lines about shapes that nobody gave, and about outputs that are others than in the file.
    """

    name: str
    origin: str
    proto: onnx.ModelProto
    sha256: str
    inputs: tuple[TensorSpec, ...]
    output_names: tuple[str, ...]
    declared: tuple[onnx.ValueInfoProto, ...] = ()
    guessed: tuple[str, ...] = ()


def load_request(wanted: Model) -> SourceModel:
    """Read the model that a user names. A dimension that it leaves open, without --shape, is that of the user's input.

    Raises:
        InputError: As `load`; or the file with the inputs cannot be read.
    """
    given = inputs.shapes(wanted.given.npz) if wanted.given.npz else {}
    return load(wanted.source, wanted.shapes, wanted.given.seed, wanted.fixed, given)


def load(
    source: str,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    seed: int = 0,
    fixed: Mapping[str, str] | None = None,
    given: Mapping[str, tuple[int, ...]] | None = None,
) -> SourceModel:
    """Read a model of the zoo by its name, or an ONNX file by its path.

    Args:
        source: Zoo name, perhaps with `zoo:` in front, or path of an `.onnx` file.
        shapes: Shapes by input name, for inputs whose file leaves dimensions open.
        seed: Seed of a zoo network's weights.
        fixed: Values by input name, for inputs that are to be constants.
        given: Shapes by input name of what it will be run with; those of inputs with open dimensions are used.

    Raises:
        InputError: No such model, not an ONNX model, no such input, or a dimension stays open.
    """
    path = Path(source)
    if network := names.network(source):
        proto, name, origin = zoo.build(network, seed), network, network
    else:
        proto, name, origin = _read(path), _named(path), path.name
    changed = class_labels.as_tensors(proto)
    signature.drop_weights(proto)
    signature.fix(proto, fixed or {})
    declared = tuple(map(_copied, proto.graph.input))
    known = dict(shapes or {})
    of_arrays = signature.open_shapes(proto, {key: shape for key, shape in (given or {}).items() if key not in known})
    guessed = (*changed, *signature.set_shapes(proto, {**of_arrays, **known}))
    guessed += tuple(f"input {key} has the shape of its array: {_sizes(shape)}" for key, shape in of_arrays.items())
    specs = draws.with_draws(proto, signature.specs(proto))
    declared = tuple(value for value in declared if value.name in {spec.name for spec in specs})
    signature.check_outputs(proto)
    if not proto.graph.output:
        raise InputError(f"model {name} has no outputs", hint="export it with its graph's signature")
    if not specs:
        guessed = (*guessed, f"{name} has no inputs: its outputs are constants")
    digest = files.sha256_bytes(proto.SerializeToString(deterministic=True))
    results = tuple(value.name for value in proto.graph.output)
    return SourceModel(name, origin, proto, digest, specs, results, declared, guessed)


def _sizes(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "scalar"


def _named(path: Path) -> str:
    """Return what a file's model is called, on devices and in their lists, too."""
    if not path.stem.isprintable():
        raise InputError(f"{path.name!a} is not a valid model name", hint="rename the file: use printable characters")
    return path.stem


def _copied(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(value)
    return copy


def _check_size(path: Path, more: int = 0) -> None:
    """Refuse what is too large before it is read: a few kilobytes may name one file of weights a thousand times."""
    size = path.stat().st_size + more
    if size >= _LARGEST:
        raise InputError(
            f"{path.name} has {size / 2**30:.1f} GiB of weights, but less than {_LARGEST / 2**30:.0f} are supported",
            hint="store them in half precision: onnxconverter_common.float16.convert_float_to_float16(model)",
        )


def _check(proto: onnx.ModelProto) -> None:
    """Have ONNX check a model; it wants shapes, which exporters leave out: of outputs nobody needs them."""
    ends = (*proto.graph.input, *proto.graph.output)
    bare = [value.type.tensor_type for value in ends if value.type.HasField("tensor_type")]
    bare = [tensor for tensor in bare if not tensor.HasField("shape")]
    for tensor in bare:
        tensor.shape.SetInParent()
    try:
        onnx.checker.check_model(proto)
    finally:
        for tensor in bare:
            tensor.ClearField("shape")


def as_declared(source: SourceModel) -> onnx.ModelProto:
    """Return a copy of a model whose inputs have the shapes that the file gives them, open dimensions included.

    A branch that is never taken may be for other shapes than those that were set: ONNX Runtime then refuses a model
    that it runs with open ones.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(source.proto)
    del proto.graph.input[:]
    proto.graph.input.extend(source.declared)
    return proto


def check_memory(source: SourceModel) -> None:
    """Refuse a model whose tensors do not fit into this machine's memory.

    Raises:
        InputError: They do not.
    """
    memory.check(source.proto)


def classes(source: SourceModel) -> int | None:
    """Return the number of elements of a model's first output; None if shape inference leaves it open."""
    output = shape_inference.infer_shapes(source.proto).graph.output[0].type.tensor_type
    sizes = [dim.dim_value for dim in output.shape.dim]
    return math.prod(sizes) if output.HasField("shape") and all(size > 0 for size in sizes) else None


def _read(path: Path) -> onnx.ModelProto:
    if not (path.is_file() or path.is_dir()):
        raise InputError(
            f"there is no model {str(path)!r}",
            details="networks of the zoo: " + ", ".join(zoo.NAMES),
            hint=did_you_mean(str(path), zoo.NAMES)
            or "give the path of an .onnx file; `toolchain model list` shows the zoo",
        )
    try:
        if found := recognised(path):
            raise InputError(f"{path.name} is {found.name}, not an ONNX model", hint=found.way)
        _check_size(path)
        proto = onnx.load_model_from_string(files.read_limited(path, _LARGEST), format="protobuf")
        _check_size(path, external.size(proto, path.parent))
        onnx.load_external_data_for_model(proto, str(path.parent))
        expansion.check(proto)
        canonical.canonical(proto)
        _check(proto)
        attributes.check(proto)
    except (DecodeError, onnx.checker.ValidationError, OSError, ValueError) as fault:
        raise InputError(
            f"{path.name} is not a valid ONNX model", details=str(fault).strip(), hint=_advice(str(fault))
        ) from fault
    return proto


def _advice(fault: str) -> str:
    return next(
        (hint for text, hint in _ADVICE if text in fault), "the file may be truncated or is not ONNX; export it again"
    )
