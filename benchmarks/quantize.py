"""How near int8 with powers of two as scales is to networks of others, beside what ONNX Runtime's quantizer makes.

    python benchmarks/quantize.py [NAME ...]

The networks are those of public wheels (tests/data/third_party.toml), with trained weights. ONNX Runtime's tool takes
16 pictures to quantize each (uint8 activations, a scale for each channel of the weights); the toolchain takes that file
with its own ranges, and the network on floats with the same pictures. All are compared on other pictures: 256 for the
classifier, 8 for the detectors. Nothing is timed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from PIL import Image, ImageDraw, ImageFont

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support import third_party
from toolchain import quantize
from toolchain.models import converters, ort, simplify
from toolchain.models import source as model
from toolchain.quantize import Settings
from toolchain.quantize.calibrate import Probe
from toolchain.quantize.network import Noise
from toolchain.tensors import TensorSpec

_PICTURES = 16
_CLASSIFIERS = ("ppocr-v2-cls",)
_SCALED = {"nudenet-320n": (0.0, 255.0), "ddddocr-det": (0.0, 1.0)}  # by default from -1 to 1
_USUAL = (127.5, 127.5)
_CASES = [
    ("ppocr-v2-cls", "QDQ"),
    ("nudenet-320n", "QDQ"),
    ("nudenet-320n", "QOperator"),
    ("ddddocr-det", "QDQ"),
    ("ppocr-v4-det", "QDQ"),
]
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGH 0123456789"


def picture(name: str, spec: TensorSpec, seed: int) -> dict[str, np.ndarray]:
    """Return a picture of words, half of them upside down, as a network takes it."""
    *_, height, width = spec.shape
    random = np.random.default_rng(seed)
    image = Image.new("RGB", (width, height), tuple(map(int, random.integers(120, 256, 3))))
    draw = ImageDraw.Draw(image)
    for _ in range(max(1, height // 60)):
        size = int(random.integers(14, 40))
        position = int(random.integers(0, max(1, width // 3))), int(random.integers(0, max(1, height - size)))
        text = "".join(random.choice(list(_LETTERS), random.integers(4, 14)))
        ink = tuple(map(int, random.integers(0, 90, 3)))
        draw.text(position, text, fill=ink, font=ImageFont.load_default(size))
    image = image.rotate(180) if random.integers(0, 2) else image
    pixels = np.asarray(image, np.float32) + random.normal(0, 4, (height, width, 3))
    middle, unit = _SCALED.get(name, _USUAL)
    return {spec.name: np.ascontiguousarray(((pixels - middle) / unit).transpose(2, 0, 1)[None].astype(np.float32))}


class _Samples(ort.quantization().CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, samples: Sequence[dict[str, np.ndarray]]) -> None:
        self._left = list(samples)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self._left.pop() if self._left else None


def quantized_by_onnxruntime(source: Path, target: Path, form: str, samples: Sequence[dict[str, np.ndarray]]) -> None:
    """Quantize by ONNX Runtime's tool."""
    tool = ort.quantization()
    tool.quantize_static(
        source, target, _Samples(samples), quant_format=tool.QuantFormat[form], per_channel=True,
        activation_type=tool.QuantType.QUInt8, weight_type=tool.QuantType.QInt8,
    )  # fmt: skip


def _compared(
    reference: Probe, other: Probe, results: Sequence[str], samples: Sequence[dict[str, np.ndarray]], kind: str
) -> str:
    noise, same = Noise(), 0
    for sample in samples:
        expected, actual = reference.run(sample), other.run(sample)
        for name in results:
            noise.add(expected[name], actual[name])
        same += int(expected[results[0]].argmax() == actual[results[0]].argmax())
    top = f", same first class {same} of {len(samples)}" if kind in _CLASSIFIERS else ""
    return f"{noise.ratio} dB{top}"


def _shown(name: str, form: str) -> None:
    loaded = third_party.loaded(third_party.MODELS[name])
    (spec,) = loaded.inputs
    samples = [picture(name, spec, seed) for seed in range(_PICTURES)]
    others = [picture(name, spec, 1000 + seed) for seed in range(256 if name in _CLASSIFIERS else 8)]
    with tempfile.TemporaryDirectory() as folder:
        plain, file = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        onnx.save(onnx.shape_inference.infer_shapes(simplify.plain(loaded, converters.names())), plain)
        quantized_by_onnxruntime(plain, file, form, samples)
        floats, int8 = model.load(str(plain)), model.load(str(file))
    results = list(floats.output_names)
    exact, theirs = Probe(floats.proto, results), Probe(int8.proto, results, optimized=False)

    def near(to: Probe, other: Any) -> str:
        return _compared(to, other, results, others, name)

    print(f"{name} {form}\n  ONNX Runtime's, against floats: {near(exact, theirs)}")
    cases = {
        "ours within its ranges": (int8, samples, Settings(random=True)),
        "ours within its ranges, with the pictures": (int8, samples, Settings()),
        "ours from floats, with the pictures": (floats, samples, Settings()),
    }
    for title, (source, calibration, how) in cases.items():
        result = quantize.quantized(source, calibration, how)
        ours = Probe(result.source.proto, results, optimized=False)
        apart = sum(smallest != largest for smallest, largest in (layer.weight_exponents for layer in result.layers))
        print(f"  {title} ({apart} of {len(result.layers)} layers with scales for each channel): against floats "
              f"{near(exact, ours)}; against ONNX Runtime's {near(theirs, ours)}", flush=True)  # fmt: skip


def main(names: Sequence[str]) -> None:
    """Print the comparison of some networks, or of all."""
    for name, form in _CASES:
        if not names or name in names:
            _shown(name, form)


if __name__ == "__main__":
    main(sys.argv[1:])
