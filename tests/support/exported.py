"""Networks that PyTorch exported, without their weights (`tests/data/exported`): stripped there, filled anew here.

Each large weight is kept as its shape and its mean, standard deviation and limits; `load` draws another one like it.
"""

from __future__ import annotations

import json
import lzma
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tests.support import paths
from toolchain.models import inputs
from toolchain.tensors import TensorSpec

_RECIPE = "recipe: "
_NOTES = "notes"
_FEW = 64
_DIGITS = 6
_CONVOLUTION = 4  # dimensions of its weights
# A factor for the weights of convolutions where the true ones differ from channel to channel: drawn alike in all, they
# make a network in which the last bit of the input decides.
_CALM = {"efficientnet": 0.92, "regnet": 0.92}
_FOLDER = paths.DATA / "exported"
_ENDING = ".onnx.xz"

NAMES = tuple(sorted(path.name.removesuffix(_ENDING) for path in _FOLDER.glob(f"*{_ENDING}")))


@dataclass(frozen=True)
class Exported:
    """A network as an exporter wrote it, with other weights.

    Attributes:
        proto: The model.
        shapes: Shapes for the inputs that it leaves open.
        below: Exclusive upper bounds of its integer inputs.
    """

    proto: onnx.ModelProto
    shapes: dict[str, tuple[int, ...]]
    below: dict[str, int]

    def inputs(self, specs: tuple[TensorSpec, ...], seed: int = 0) -> dict[str, np.ndarray]:
        """Make what it is run with: random tensors, whose integers are tokens of its vocabulary."""
        arrays = inputs.random(specs, seed)
        for spec in specs:
            if spec.name in self.below:
                arrays[spec.name] = np.random.default_rng(seed).integers(
                    0, self.below[spec.name], spec.shape, spec.dtype
                )
        return arrays


def load(name: str) -> Exported:
    """Read a network of `NAMES` and draw its weights, the same ones each time."""
    proto = onnx.load_from_string(lzma.decompress((_FOLDER / f"{name}{_ENDING}").read_bytes()))
    [notes] = [json.loads(prop.value) for prop in proto.metadata_props if prop.key == _NOTES]
    del proto.metadata_props[:]
    _restore(proto, _CALM.get(name.partition("-")[0], 1.0))
    return Exported(proto, {key: tuple(shape) for key, shape in notes["shapes"].items()}, notes["below"])


def strip(proto: onnx.ModelProto, notes: Mapping[str, Any]) -> None:
    """Replace the numbers of large weights by recipes, and forget what a test needs not: where a node came from."""
    for tensor in _tensors(proto):
        tensor.doc_string = ""
        if _is_large(tensor):
            _strip(tensor)
    for graph in (proto.graph, *proto.functions):
        for message in graph.node:
            message.doc_string = ""
            del message.metadata_props[:]
        for message in graph.value_info:
            del message.metadata_props[:]
    for message in (*proto.graph.input, *proto.graph.output, proto.graph, proto):
        message.doc_string = ""
        del message.metadata_props[:]
    proto.metadata_props.add(key=_NOTES, value=json.dumps(notes, sort_keys=True))


def _restore(proto: onnx.ModelProto, gain: float) -> None:
    for index, tensor in enumerate(_tensors(proto)):
        if tensor.doc_string.startswith(_RECIPE):
            values = _drawn(json.loads(tensor.doc_string.removeprefix(_RECIPE)), tuple(tensor.dims), index)
            values *= np.float32(gain if values.ndim == _CONVOLUTION else 1.0)
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            tensor.CopyFrom(numpy_helper.from_array(values.astype(dtype), tensor.name))


def _tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield the weights and the values of Constant nodes, in a fixed order."""
    yield from proto.graph.initializer
    for graph in (proto.graph, *proto.functions):
        for node in graph.node:
            yield from (attribute.t for attribute in node.attribute if attribute.HasField("t"))


def _is_large(tensor: onnx.TensorProto) -> bool:
    if tensor.data_type not in {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16}:
        return False
    values = numpy_helper.to_array(tensor)
    few = values.size <= _FEW or len(np.unique(values.ravel()[:: max(1, values.size // 4096)])) <= _FEW // 4
    return not few and bool(np.isfinite(values).all())  # a mask has few values, and infinities among them


def _strip(tensor: onnx.TensorProto) -> None:
    values = numpy_helper.to_array(tensor).astype(np.float64)
    statistics = {"mean": values.mean(), "std": values.std(), "low": values.min(), "high": values.max()}
    bare = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    bare.doc_string = _RECIPE + json.dumps({key: float(f"{value:.{_DIGITS}g}") for key, value in statistics.items()})
    tensor.CopyFrom(bare)


def _drawn(recipe: Mapping[str, float], shape: tuple[int, ...], index: int) -> np.ndarray:
    stream = np.random.default_rng([index, zlib.crc32(repr(shape).encode())])
    values = stream.standard_normal(shape, np.float32) * np.float32(recipe["std"]) + np.float32(recipe["mean"])
    return np.clip(values, recipe["low"], recipe["high"])
