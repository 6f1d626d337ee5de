"""The networks that `cpu.py` runs, by name: the zoo's, those of the onnx wheel, any file, and int8 versions of each."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from tests import light
from toolchain import batchnorm, inputs, model

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from toolchain.model import SourceModel
    from toolchain.tensors import TensorSpec

DEFAULT = (
    *("resnet-50", "resnet-18", "vgg19", "inception_v1", "inception_v2", "inception_v3", "mobilenet", "mobilenet_v2"),
    *("squeezenet_v1.1", "densenet121", "shufflenet", "mlp", "resnet-50-int8"),
)

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
    """

    name: str
    build: str
    path: Path
    source: SourceModel

    @property
    def quantized(self) -> bool:
        """Whether it computes with 8 bits."""
        return any(node.op_type == "QuantizeLinear" for node in self.source.proto.graph.node)


def obtain(name: str, folder: Path) -> Network:
    """Make the ONNX file of a network.

    Args:
        name: A zoo name, a name of `tests/light.py`, one of both with `-int8` behind it, or the path of an ONNX file.
        folder: Where the file goes.

    Raises:
        InputError: There is no such network.
    """
    path = folder / f"{Path(name).stem if name.endswith('.onnx') else name}.onnx"
    if name in light.NAMES:
        onnx.save(light.load(name), path)
        return Network(name, str(path), path, model.load(str(path)))
    if name.endswith(_INT8):
        _quantize(obtain(name.removesuffix(_INT8), folder), path)
        return Network(name, str(path), path, model.load(str(path)))
    source = model.load(name)
    onnx.save(source.proto, path)
    return Network(name, name, path, source)


def _quantize(network: Network, path: Path) -> None:
    """Write a QDQ model: symmetric int8 weights by channel, uint8 activations.

    ONNX Runtime has its quick kernels on x86 for uint8 times int8: ResNet-50 takes 9 ms so, 19 ms with int8 times
    int8, and 22 ms in float32 on the same two cores.
    """
    from onnxruntime import quantization

    logging.getLogger().setLevel(logging.ERROR)  # it advises a preparation whose use here is done by `batchnorm`
    quantization.quantize_static(
        batchnorm.fold(network.source.proto),
        path,
        _reader(network.source.inputs),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        extra_options={"WeightSymmetric": True},
    )


def _reader(specs: tuple[TensorSpec, ...]) -> Any:
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):
        """Hands out random inputs, then None."""

        def __init__(self) -> None:
            self._rest: Iterator[dict[str, NDArray[Any]]] = iter(samples(specs, _CALIBRATION, _FIRST_SEED))

        def get_next(self) -> dict[str, NDArray[Any]] | None:
            return next(self._rest, None)

    return Reader()


def samples(specs: tuple[TensorSpec, ...], count: int, seed: int = 0) -> list[dict[str, NDArray[Any]]]:
    """Draw some random inputs."""
    return [inputs.random(specs, seed + number) for number in range(count)]
