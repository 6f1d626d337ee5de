"""Model files: ONNX read with static shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import shape_inference

from toolchain import files
from toolchain.errors import InputError, did_you_mean
from toolchain.models import (
    canonical,
    dimensions,
    draws,
    inputs,
    model_size,
    protos,
    signature,
    state_pairs,
    variants,
    zoo,
)
from toolchain.models.formats import recognise
from toolchain.models.request import Model
from toolchain.states import StatePair, of_step
from toolchain.tensors import TensorSpec

_MAX_BYTES = 2**31  # protobuf's limit for one message, and so the limit of what ONNX checks, infers and converts

# A hint for each of the checker's messages, by a part of its text.
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
    """A model file with static shapes, as read; no compiler has seen it yet.

    Attributes:
        name: The file's name without its suffix, or the zoo's name.
        origin: What a command line names to get the model again: a zoo name, or the file's name.
        proto: Initializers are not among its graph's inputs.
        sha256: Digest of the model with its weights, and with the shapes and inputs that were set.
        declared: The inputs as in the file, with open dimensions.
        guessed: Lines about guessed shapes, about outputs that differ from the file's, and about what may be a state.
        states: Outputs that are inputs of the next step.
    """

    name: str
    origin: str
    proto: onnx.ModelProto
    sha256: str
    inputs: tuple[TensorSpec, ...]
    output_names: tuple[str, ...]
    declared: tuple[onnx.ValueInfoProto, ...] = ()
    guessed: tuple[str, ...] = ()
    states: tuple[StatePair, ...] = ()

    @property
    def step_inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs without the state."""
        return of_step(self.inputs, [pair.input for pair in self.states])

    @property
    def step_output_names(self) -> tuple[str, ...]:
        """The names of the outputs without the state."""
        state = {pair.output for pair in self.states}
        return tuple(name for name in self.output_names if name not in state)

    @property
    def size(self) -> int:
        """About how many bytes the file has, with its weights."""
        return protos.size(self.proto)


def load_request(model: Model) -> SourceModel:
    """Read the model that a user names; dimensions that the options leave open are those of the input file.

    Raises:
        InputError: As `load`; or the model has several variants.
    """
    variants.check_plain(model)
    array_shapes = inputs.shapes(model.given.npz) if model.given.npz else {}
    if model.states or model.detection == "use":
        # Their first axis is that of steps, and no dimension of the model.
        array_shapes = {name: shape[1:] for name, shape in array_shapes.items()}
    source = load(model.source, model.shapes, model.given.seed, model.fixed, array_shapes, model.dims)
    pairs, lines = state_pairs.choose(source.proto, source.inputs, model.states, model.detection)
    return replace(source, states=pairs, guessed=(*source.guessed, *lines))


def load(
    source: str,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    seed: int = 0,
    fixed: Mapping[str, str] | None = None,
    array_shapes: Mapping[str, tuple[int, ...]] | None = None,
    dims: Mapping[str, int] | None = None,
) -> SourceModel:
    """Read a model of the zoo by its name, perhaps with `zoo:` in front, or an ONNX file by its path.

    `shapes` are for inputs with open dimensions in the file, `dims` for dimensions by name in all inputs, and
    `array_shapes` for inputs that stay open after that.
    `fixed` has values of inputs that become constants; `seed` is for a zoo network's weights.

    Raises:
        InputError: No such model, not an ONNX model, no such input or dimension, or one stays open.
    """
    path = Path(source)
    if network := zoo.network(source):
        proto, name, origin = zoo.build(network, seed), network, network
    else:
        proto, name, origin = _read(path), path.stem, path.name
        if not name.isprintable():
            raise InputError(f"{origin!a} is not a valid model name", hint="rename the file: use printable characters")
    changed = canonical.make_tensor_outputs(proto)
    signature.drop_weights(proto)
    dims = dims or {}
    dimensions.check(dims, proto.graph.input)
    signature.fix(proto, fixed or {}, dims)
    declared = tuple(map(protos.clone, proto.graph.input))
    shapes = dict(shapes or {})
    array_shapes = {key: shape for key, shape in (array_shapes or {}).items() if key not in shapes}
    array_shapes = signature.open_shapes(proto, array_shapes, dims)
    guessed = (*changed, *signature.set_shapes(proto, {**array_shapes, **shapes}, dims))
    guessed += tuple(
        f"input {key} has the shape of its array: {' x '.join(map(str, shape)) or 'scalar'}"
        for key, shape in array_shapes.items()
    )
    specs = draws.with_draws(proto, signature.specs(proto))
    declared = tuple(value for value in declared if value.name in {spec.name for spec in specs})
    signature.check_outputs(proto)
    if not proto.graph.output:
        raise InputError(f"model {name} has no outputs", hint="export it with its graph's signature")
    if not specs:
        guessed = (*guessed, f"{name} has no inputs: its outputs are constants")
    # Protobuf may order map entries differently in each process unless it is deterministic.
    digest = files.sha256_bytes(proto.SerializeToString(deterministic=True))
    results = tuple(value.name for value in proto.graph.output)
    return SourceModel(name, origin, proto, digest, specs, results, declared, guessed)


# Before anything is read: a few kilobytes may name one file of weights a thousand times.
def _check_size(path: Path, more: int = 0) -> None:
    size = path.stat().st_size + more
    if size >= _MAX_BYTES:
        raise InputError(
            f"{path.name} has {size / 2**30:.1f} GiB of weights, but less than {_MAX_BYTES / 2**30:.0f} are supported",
            hint="store them in half precision: onnxconverter_common.float16.convert_float_to_float16(model)",
        )


# A branch that is not taken may be for other shapes than those that were set: ONNX Runtime would refuse such a model,
# but runs it with open ones.
def as_declared(source: SourceModel) -> onnx.ModelProto:
    """Return a copy of a model whose inputs have the shapes of the file, open dimensions included."""
    proto = protos.clone(source.proto)
    protos.set_repeated(proto.graph.input, source.declared)
    return proto


def check_memory(source: SourceModel) -> None:
    """Refuse a model whose tensors do not fit into this machine's memory."""
    inputs.check_memory(source.proto)


def classes(source: SourceModel) -> int | None:
    """Return the number of elements of a model's first output; None if shape inference leaves it open."""
    graph = shape_inference.infer_shapes(protos.without_weights(source.proto)).graph
    output = next(value for value in graph.output if value.name == source.step_output_names[0]).type.tensor_type
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
        if other := recognise(path):
            raise InputError(f"{path.name} is {other.name}, not an ONNX model", hint=other.remedy)
        _check_size(path)
        proto = onnx.load_model_from_string(files.read_limited(path, _MAX_BYTES), format="protobuf")
        _check_size(path, model_size.external_bytes(proto, path.parent))
        onnx.load_external_data_for_model(proto, str(path.parent))
        model_size.check_inlined(proto)
        canonical.make_canonical(proto)
        # The checker requires shapes, which exporters leave out; those of outputs are not needed.
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
        canonical.check(proto)
    except (DecodeError, onnx.checker.ValidationError, OSError, ValueError) as fault:
        raise InputError(
            f"{path.name} is not a valid ONNX model",
            details=str(fault).strip(),
            hint=next(
                (hint for text, hint in _ADVICE if text in str(fault)),
                "the file may be truncated or is not ONNX; export it again",
            ),
        ) from fault
    return proto
