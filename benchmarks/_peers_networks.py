"""The networks that `cpu.py` runs, by name: those of the zoo and of others, any file, and int8 versions of each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from benchmarks import _encoders
from tests.support import exported, light, third_party
from toolchain.models import batchnorm, inputs, ort
from toolchain.models import source as model

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from toolchain.models.source import SourceModel
    from toolchain.tensors import TensorSpec

    Specs = tuple[TensorSpec, ...]
    Arrays = dict[str, NDArray[Any]]

DEFAULT = (
    *("resnet-50", "resnet-18", "vgg19", "inception_v1", "inception_v2", "inception_v3", "mobilenet", "mobilenet_v2"),
    *("squeezenet_v1.1", "densenet121", "shufflenet", "mlp", "resnet-50-int8"),
)

THIRD_PARTY = tuple(third_party.MODELS)
EXPORTED = exported.NAMES

_QUANTIZED = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})
_INT8 = "-int8"
_CALIBRATION = 8
_FIRST_SEED = 1000  # the calibration sees other inputs than the comparison


@dataclass(frozen=True)
class Network:
    """A network as all engines get it.

    Attributes:
        name: What the user called it.
        build: What `toolchain build` is told to build: a zoo name, or the file.
        path: The ONNX file that the peers load.
        source: The same model, for its signature.
        draw: Makes inputs for it from a seed, where random ones may make no sense.
        fixed: Inputs that become constants, as `--fix` takes them.
    """

    name: str
    build: str
    path: Path
    source: SourceModel
    draw: Callable[[Specs, int], Arrays] = inputs.random
    fixed: Mapping[str, str] = field(default_factory=dict)

    @property
    def quantized(self) -> bool:
        """Whether it computes with 8 bits."""
        return any(node.op_type in _QUANTIZED for node in self.source.proto.graph.node)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs, for files that leave some open."""
        return {spec.name: spec.shape for spec in self.source.inputs}

    def samples(self, count: int, seed: int = 0) -> list[Arrays]:
        """Draw some inputs."""
        return [self.draw(self.source.inputs, seed + number) for number in range(count)]


def named(arguments: Sequence[str]) -> list[str]:
    """Put the names of a kind in the place of the word for all of them."""
    listed = [entry.name for entry in third_party.MODELS.values() if entry.listed]
    kinds = {"exported": EXPORTED, "listed": listed, "third-party": THIRD_PARTY}
    return [name for argument in arguments for name in kinds.get(argument, (argument,))]


def obtain(name: str, folder: Path) -> Network:
    """Make the ONNX file of a network.

    Args:
        name: A zoo name, a name of `tests/support/light.py`, `exported.py`, `third_party.py` or `_encoders.py`, one of
            these with `-int8` behind it, or the path of an ONNX file.
        folder: Where the file goes.

    Raises:
        InputError: There is no such network.
    """
    path = folder / f"{Path(name).stem if name.endswith('.onnx') else name}.onnx"
    if name in light.NAMES:
        onnx.save(light.load(name), path)
        return Network(name, str(path), path, model.load(str(path)))
    if name in _encoders.MODELS:
        onnx.save(_encoders.MODELS[name](), path)
        return Network(name, str(path), path, model.load(str(path)))
    if name in EXPORTED:
        return _exported(name, path)
    if name in THIRD_PARTY:
        return _third_party(name, path)
    if name.endswith(_INT8):
        _quantize(obtain(name.removesuffix(_INT8), folder), path)
        return Network(name, str(path), path, model.load(str(path)))
    source = model.load(name)
    onnx.save(source.proto, path)
    return Network(name, name, path, source)


def _exported(name: str, path: Path) -> Network:
    net = exported.load(name)
    build = path.with_name(f"{name}-open.onnx")
    onnx.save(net.proto, build)
    return _fixed(Network(name, str(build), path, model.load(str(build), net.shapes), net.inputs))


def _third_party(name: str, path: Path) -> Network:
    entry = third_party.MODELS[name]
    return _fixed(
        Network(name, str(third_party.obtain(entry)), path, third_party.loaded(entry), entry.inputs, entry.fixed)
    )


def _fixed(network: Network) -> Network:
    """Write the file for the peers with the shapes set: every engine is to know them.

    Where an input is a constant, a branch that is never taken may not suit those shapes: ONNX Runtime crashes on it.
    """
    onnx.save(model.as_declared(network.source) if network.fixed else network.source.proto, network.path)
    return network


def _quantize(network: Network, path: Path) -> None:
    """Write a QDQ model: symmetric int8 weights by channel, uint8 activations.

    ONNX Runtime has its quick kernels on x86 for uint8 times int8: ResNet-50 takes 9 ms so, 19 ms with int8 times
    int8, and 22 ms in float32 on the same two cores.
    """
    quantization = ort.quantization()

    logging.getLogger().setLevel(logging.ERROR)  # it advises a preparation whose use here is done by `batchnorm`
    quantization.quantize_static(
        batchnorm.fold(network.source.proto),
        path,
        _reader(network),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        extra_options={"WeightSymmetric": True},
    )


def _reader(network: Network) -> Any:
    quantization = ort.quantization()

    class Reader(quantization.CalibrationDataReader):
        """Hands out random inputs, then None."""

        def __init__(self) -> None:
            self._rest: Iterator[dict[str, NDArray[Any]]] = iter(network.samples(_CALIBRATION, _FIRST_SEED))

        def get_next(self) -> dict[str, NDArray[Any]] | None:
            return next(self._rest, None)

    return Reader()
