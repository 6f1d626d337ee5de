"""Which outputs of a model are inputs of its next step: declared by the user, or proposed by their names and shapes.

A pair is only proposed: as a state, it would change what a release takes and returns.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

import onnx
from onnx import shape_inference

from toolchain import states
from toolchain.errors import InputError, did_you_mean
from toolchain.models import protos
from toolchain.models.request import Detection
from toolchain.models.signature import dtype_of
from toolchain.states import StatePair
from toolchain.tensors import TensorSpec

# Words of a name that is a state's: only then are an input and its output called `h_in` and `h_out`, as pictures are.
_STATE_WORD = re.compile(
    r"(^|[_.])(h|c|hx|cx|hidden|cell|states?|cached?|caches|mem|memory|buf|buffer|context|ctx|kv|keys?|values?)"
    r"(?=$|[_.0-9])"
)
_EARLIER = re.compile(
    r"^(?:prev|previous|past|old|last)[_.](?P<after>.+)$|^(?P<before>.+)[_.](?:prev|previous|past|old|last)$"
)
_START = re.compile(
    r"^(?:in|input|init|initial)[_.](?P<after>.+)$|^(?P<before>.+?)(?:[_.](?:in|input|init|initial|0)|0)$"
)


def choose(
    proto: onnx.ModelProto, inputs: Sequence[TensorSpec], declared: Mapping[str, str], detection: Detection
) -> tuple[tuple[StatePair, ...], tuple[str, ...]]:
    """Return the state of a model whose shapes are set, and a line about pairs that are only proposed.

    Args:
        proto: The model.
        inputs: Its inputs.
        declared: Names of outputs by the names of the inputs that they become.
        detection: What happens to other pairs; nothing if some are declared.

    Raises:
        InputError: A declared pair cannot be a state, or pairs are to be used and there are none.
    """
    if declared:
        pairs = tuple(StatePair(source, result) for source, result in declared.items())
        _refuse_growing(proto, pairs)
        check(proto.graph.output, inputs, _inferred(proto), pairs)
        return pairs, ()
    if detection == "off":
        return (), ()
    output_names = {value.name.lower() for value in proto.graph.output}
    # Shapes are inferred only for names that fit.
    is_likely = any(_next_names(spec.name.lower()) & output_names for spec in inputs)
    pairs = detected(inputs, _inferred(proto)) if is_likely else ()
    if detection == "use" and not pairs:
        raise InputError(
            "no output of the model looks like the next value of an input",
            details="a pair has the same shape and element type, and names such as h and hn, or state and new_state",
            hint="declare each pair: --state INPUT=OUTPUT",
        )
    if detection == "use" or not pairs:
        return pairs, ()
    options = " ".join(f"--state {shlex.quote(str(pair))}" for pair in pairs)
    return (), (f"these look like a state, which `--state auto` keeps on the device between runs: {options}",)


def check(
    outputs: Sequence[onnx.ValueInfoProto],
    inputs: Sequence[TensorSpec],
    inferred: Sequence[TensorSpec],
    pairs: Sequence[StatePair],
) -> None:
    """Check what is known before the import: an output without a shape yet has that of its input.

    Raises:
        InputError: A pair cannot be a state.
    """
    known = {spec.name: spec for spec in inferred}
    by_output = {pair.output: pair.input for pair in pairs}
    sources = {spec.name: spec for spec in inputs}
    specs = []
    for value in outputs:
        source = sources.get(by_output.get(value.name, ""))
        assumed = TensorSpec(value.name, source.shape if source else (), source.dtype if source else "float32")
        specs.append(known.get(value.name, assumed))
    refuse(inputs, specs, pairs)


def _refuse_growing(proto: onnx.ModelProto, pairs: Sequence[StatePair]) -> None:
    """Refuse a cache that grows with each step; otherwise do nothing.

    It is not given more room than it has: the model would attend to rows that are not there yet.

    Raises:
        InputError: One of the pairs is such a cache.
    """
    makers = {name: node for node in proto.graph.node for name in node.output}
    for pair in pairs:
        maker = makers.get(pair.output)
        if maker is not None and maker.op_type == "Concat" and pair.input in maker.input:
            raise InputError(
                f"{pair.output} grows with each step, and a state has a fixed size",
                details=f"Concat node {maker.name or pair.output!r} appends to {pair.input}",
                hint="export the model with a cache of a fixed size (a static cache), a position and a mask as inputs",
            )


def refuse(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], pairs: Sequence[StatePair]) -> None:
    """Refuse pairs that cannot be the state of a model; otherwise do nothing.

    Raises:
        InputError: They cannot.
    """
    if not (faults := states.faults(inputs, outputs, pairs)):
        return
    hint = "a state is an output that is an input of the next step: --state INPUT=OUTPUT"
    for pair in pairs:
        for name, specs in ((pair.input, inputs), (pair.output, outputs)):
            names = [spec.name for spec in specs]
            hint = (did_you_mean(name, names) if name not in names else "") or hint
    raise InputError("this cannot be the state of the model", details="\n".join(faults), hint=hint)


def detected(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> tuple[StatePair, ...]:
    """Return the pairs that look like a state, by their names, shapes and element types."""
    pairs = []
    for spec in inputs:
        names = _next_names(spec.name.lower())
        matching = [
            other for other in outputs
            if other.name.lower() in names and (other.shape, other.dtype) == (spec.shape, spec.dtype)
        ]  # fmt: skip
        pairs += [StatePair(spec.name, matching[0].name)] if len(matching) == 1 else []
    return () if states.faults(inputs, outputs, pairs) else tuple(pairs)


def _next_names(name: str) -> set[str]:
    """Return what the next value of an input may be called, in small letters."""
    names = {f"new_{name}", f"next_{name}", f"updated_{name}", f"{name}_new", f"{name}_next", f"{name}_updated"}
    if match := _EARLIER.match(name):
        stem = match["after"] or match["before"]
        stems = {stem, stem.removeprefix("key_values.")}  # past_key_values.0.key, and present.0.key
        names |= {text for stem in stems for text in (stem, f"new_{stem}", f"next_{stem}", f"cur_{stem}")}
        names |= {f"present{mark}{text}" for text in stems for mark in "_."}
    if _STATE_WORD.search(name):
        stems = {name}
        if match := _START.match(name):
            stems.add(match["after"] or match["before"])
        for stem in stems:
            names |= {f"{stem}n", f"{stem}_n", f"{stem}_out", f"out_{stem}", f"{stem}_output", f"output_{stem}"}
    return names


def _inferred(proto: onnx.ModelProto) -> list[TensorSpec]:
    """Return the outputs whose shapes are known before the import."""
    graph = shape_inference.infer_shapes(protos.without_weights(proto)).graph
    specs = []
    for value in graph.output:
        tensor = value.type.tensor_type
        sizes = tuple(dim.dim_value for dim in tensor.shape.dim)
        if tensor.HasField("shape") and all(size > 0 for size in sizes):
            specs.append(TensorSpec(value.name, sizes, dtype_of(value.name, tensor.elem_type)))
    return specs
