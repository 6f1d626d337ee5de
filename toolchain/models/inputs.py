"""Inputs of a model: seeded random tensors, an .npz file, or an image; and the labels of its classes.

Inputs may be of any size, so it is checked whether this machine's memory suffices for them.
"""

from __future__ import annotations

import math
import re
import resource
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from toolchain import files
from toolchain.errors import InputError, reason
from toolchain.progress import size_text
from toolchain.states import LARGEST_STEPS, STEPS, count_steps, stacked
from toolchain.tensors import TensorSpec, check_signature

if TYPE_CHECKING:  # what is available is asked by those who load no ONNX, too
    import onnx

# ImageNet's mean and standard deviation by RGB channel, of pixels scaled to 0..1.
_MEAN = (0.485, 0.456, 0.406)
_STD = (0.229, 0.224, 0.225)
_IMAGE_RANK, _RGB = 4, 3
_RESIZE_RATIO = 256 / 224  # the usual evaluation crop: the short side to 256, the centre 224 kept

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup/memory.max")
_LARGEST_FILE = 1 << 30  # bytes of a picture or a sound
_LARGEST = 1 << 31  # bytes that protobuf, and so shape inference, takes


Convert = Callable[[NDArray[np.uint8]], NDArray[Any]]
"""Makes a model's only input of the bytes of a picture's or sound's file."""


@dataclass(frozen=True)
class Source:
    """The inputs that a user asked for; at most one of the paths is set, and without them `seed` counts."""

    npz: Path | None = None
    image: Path | None = None
    seed: int = 0
    convert: Convert | None = None  # what an image or a sound becomes; None for the usual ImageNet preprocessing
    sound: Path | None = None

    @property
    def options(self) -> list[tuple[str, Path]]:
        """The files with their options."""
        given = (("--input", self.npz), ("--image", self.image), ("--sound", self.sound))
        return [(option, path) for option, path in given if path]


def make(source: Source, specs: Sequence[TensorSpec], *, is_sequence: bool = False) -> dict[str, NDArray[Any]]:
    """Make the inputs of a model, or those of each step of a sequence, along an axis in front.

    Raises:
        InputError: A file is unreadable, or does not fit the model's signature.
    """
    if len(source.options) > 1:
        raise InputError(" and ".join(option for option, _ in source.options) + " cannot be combined")
    if is_sequence:
        return _make_sequence(source, specs)
    if source.npz:
        return from_npz(source.npz, specs)
    if source.image:
        return from_image(source.image, specs, source.convert)
    if source.sound:
        return from_sound(source.sound, specs, source.convert)
    return random(specs, source.seed)


def _make_sequence(source: Source, specs: Sequence[TensorSpec]) -> dict[str, NDArray[Any]]:
    if source.sound and source.convert:
        return from_sound(source.sound, specs, source.convert)
    if source.image or source.sound:
        given = "--image is one picture" if source.image else "--sound needs steps such as --pre wav:rate=16000"
        raise InputError(
            f"{given}, but the model has a state, and so runs a sequence",
            hint="pass its inputs with --input FILE.npz: each array has one more axis in front, of steps",
        )
    if source.npz is None:
        return random(stacked(specs, STEPS), source.seed)
    read = arrays(source.npz, specs)
    steps = count_steps(read)
    problems = check_signature(read, stacked(specs, steps)) if steps else ["an axis of steps is missing"]
    problems += [f"{steps} steps, but at most {LARGEST_STEPS} are allowed"] if steps > LARGEST_STEPS else []
    if problems:
        raise InputError(
            f"the arrays of {source.npz.name} do not fit the steps of the model",
            details="\n".join(problems),
            hint="each array has one more axis in front, of steps; the state is not among them",
        )
    return read


def random(specs: Sequence[TensorSpec], seed: int) -> dict[str, NDArray[Any]]:
    """Draw inputs: standard normal for floats, 0..255 for uint8, small non-negative numbers for other integers.

    If the model restricts the values of an input (`TensorSpec.draw`), they are uniform between its limits. Every tensor
    has its own stream, derived from the seed and its name.
    """
    return {spec.name: _draw(spec, seed) for spec in specs}


def _draw(spec: TensorSpec, seed: int) -> NDArray[Any]:
    stream = np.random.default_rng([seed, zlib.crc32(spec.name.encode())])
    kind = np.dtype(spec.dtype)
    if spec.draw and kind.kind == "f":
        return stream.uniform(spec.draw.low, spec.draw.high, spec.shape).astype(kind)
    if spec.draw:
        return stream.integers(int(spec.draw.low), int(spec.draw.high), spec.shape).astype(kind)
    if kind.kind == "f":
        return stream.standard_normal(spec.shape, dtype=np.float32).astype(kind)
    # Integers are mostly indices (tokens, classes): small ones stay inside any table.
    high = {"bool": 2, "uint8": 256, "int8": 128}.get(spec.dtype, 10)
    return stream.integers(0, high, spec.shape).astype(kind)


def from_npz(path: Path, specs: Sequence[TensorSpec]) -> dict[str, NDArray[Any]]:
    """Read inputs from an .npz file with one array for each input, by name, or from an .npy file of the only input."""
    names = {spec.name for spec in specs}
    # An input without elements is a constant of the model, so its array may be passed and is ignored.
    read = {name: array for name, array in arrays(path, specs).items() if array.size or name in names}
    faults = check_signature(read, specs)
    if faults:
        raise InputError(f"the arrays of {path.name} do not fit the model", details="\n".join(faults))
    return read


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays of an .npz file by name; empty for an .npy file, which has no names."""
    if path.is_file() and not zipfile.is_zipfile(path):
        return {}
    return {name: array.shape for name, array in arrays(path, ()).items()}


def arrays(path: Path, specs: Sequence[TensorSpec]) -> dict[str, NDArray[Any]]:
    """Read the arrays of an .npz file by name; the array of an .npy file gets the name of the only input."""
    try:
        return _load_arrays(path, specs)
    except InputError:
        raise
    except Exception as fault:  # zip, zlib and numpy each have errors of their own for a damaged file
        raise InputError(
            f"cannot read inputs from {path}", details=reason(fault), hint="write it with numpy.savez"
        ) from fault


def _load_arrays(path: Path, specs: Sequence[TensorSpec]) -> dict[str, NDArray[Any]]:
    # Zeros compress to a thousandth of their size, so a small archive can fill the memory: refuse it before reading.
    size = 0
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
    if size > (free := available_bytes()):
        raise InputError(
            f"the arrays of {path.name} have {size_text(size)}, but this machine has {size_text(free)} of free memory",
            hint="pass fewer samples at once",
        )
    loaded = np.load(path, allow_pickle=False)
    if not isinstance(loaded, np.ndarray):
        with loaded as archive:
            return {name: np.asarray(archive[name]) for name in archive.files}
    if len(specs) != 1:
        raise InputError(
            f"{path.name} contains one array, but the model has {len(specs)} inputs",
            details="its inputs: " + ", ".join(map(str, specs)),
            hint="write all of them to one file: numpy.savez(FILE, NAME=array, ...)",
        )
    return {specs[0].name: loaded}


def read_rgb(path: Path) -> NDArray[np.uint8]:
    """Decode a picture to its pixels, (height, width, 3)."""
    try:
        return np.asarray(Image.open(path).convert("RGB"))
    except Exception as fault:  # its decoders raise exceptions of any class
        raise InputError(f"cannot read the image {path}", details=reason(fault)) from fault


def from_image(path: Path, specs: Sequence[TensorSpec], convert: Convert | None = None) -> dict[str, NDArray[Any]]:
    """Read a picture as ImageNet models expect it: resized, cropped at the centre, scaled and normalized.

    The result is the model's one input in its own layout: 1 x 3 x H x W, or 1 x H x W x 3. With `convert`, it is what
    that returns.
    """
    if convert:
        return {specs[0].name: of_file(path, convert)}
    is_image = len(specs) == 1 and len(specs[0].shape) == _IMAGE_RANK and _RGB in specs[0].shape[1::2]
    if not is_image or not specs[0].dtype.startswith("float"):
        raise InputError(
            "the model does not take one image",
            details="its inputs: " + ", ".join(map(str, specs)),
            hint="pass its inputs with --input FILE.npz",
        )
    spec = specs[0]
    channels_first = spec.shape[1] == _RGB
    height, width = spec.shape[2:] if channels_first else spec.shape[1:3]
    image = Image.fromarray(read_rgb(path))
    scale = max(height / image.height, width / image.width) * _RESIZE_RATIO
    resized = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)
    left, top = (resized.width - width) // 2, (resized.height - height) // 2
    pixels = resized.crop((left, top, left + width, top + height))
    array = (np.asarray(pixels, dtype=np.float32) / 255 - _MEAN) / _STD
    array = array.transpose(2, 0, 1) if channels_first else array
    batch = np.repeat(array[None], spec.shape[0], axis=0)
    return {spec.name: np.ascontiguousarray(batch, dtype=spec.dtype)}


def read_contents(path: Path) -> NDArray[np.uint8]:
    """Return the bytes of a picture's or sound's file."""
    try:
        return np.frombuffer(files.read_limited(path, _LARGEST_FILE), np.uint8)
    except OSError as fault:
        raise InputError(f"cannot read {path}", details=reason(fault), hint="pass a file that exists") from fault


def of_file(path: Path, convert: Convert) -> NDArray[Any]:
    """Convert the bytes of a file; errors name it."""
    try:
        return convert(read_contents(path))
    except InputError as fault:
        if str(path) in fault.message:
            raise
        raise InputError(f"{path.name}: {fault.message}", details=fault.details, hint=fault.hint) from fault


def from_sound(path: Path, specs: Sequence[TensorSpec], convert: Convert | None) -> dict[str, NDArray[Any]]:
    """Read a sound as the model's only input beside a state, by its own steps.

    Raises:
        InputError: It is not a sound that fits them, or there are none.
    """
    if convert is None:
        raise InputError(
            f"the model has no steps that make its input of {path.name}",
            details="its inputs: " + ", ".join(map(str, specs)),
            hint="build it with steps, such as --pre wav:rate=16000, or pass its inputs with --input FILE.npz",
        )
    return {specs[0].name: of_file(path, convert)}


def read_labels(path: Path, classes: int) -> list[str]:
    """Read class names, one a line; an InputError if there are fewer lines than classes."""
    try:
        labels = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as fault:
        raise InputError(f"cannot read the labels {path}", details=reason(fault)) from fault
    if len(labels) < classes:
        raise InputError(f"{len(labels)} labels for {classes} classes", hint="write one line for each class")
    return labels


@dataclass(frozen=True)
class Guess:
    """One row of a top-5 table; the score is as the model returns it."""

    index: int
    label: str
    score: float


def top(scores: NDArray[Any], labels: Sequence[str], count: int = 5) -> tuple[Guess, ...]:
    """Rank the classes of a classifier's output, of any shape, best first."""
    flat = scores.reshape(-1)
    # Stable: of equal scores, the first class comes first.
    order = np.argsort(-flat.astype(np.float64), kind="stable")[:count]
    return tuple(Guess(int(i), labels[int(i)], float(flat[int(i)])) for i in order)


def check_memory(proto: onnx.ModelProto) -> None:
    needed, available = least_bytes(proto), available_bytes()
    if needed > available:
        sizes = ", ".join(f"{value.name} {'x'.join(map(str, _dims(value)))}" for value in proto.graph.input)
        raise InputError(
            f"one run needs {needed / 2**30:.1f} GiB or more, but this machine has {available / 2**30:.1f} GiB free",
            details=f"inputs: {sizes}",
            hint="use smaller inputs: --shape NAME:1,3,224,224",
        )


def least_bytes(proto: onnx.ModelProto) -> int:
    """Return a lower bound of the memory of one run: all inputs, or all tensors of one operator."""
    from onnx import shape_inference  # noqa: PLC0415 - see above

    from toolchain.models import protos  # noqa: PLC0415 - see above

    sizes = {value.name: _bytes(value) for value in proto.graph.input}
    inputs = sum(sizes.values())
    if inputs > available_bytes() or protos.size(proto) >= _LARGEST:  # more than enough, and inference could overflow
        return inputs
    inferred = shape_inference.infer_shapes(protos.without_weights(proto)).graph
    sizes |= {value.name: _bytes(value) for value in [*inferred.value_info, *inferred.output]}
    nodes = (sum(sizes.get(name, 0) for name in {*node.input, *node.output}) for node in inferred.node)
    return max(inputs, *nodes, 0)


def available_bytes() -> int:
    """Return the memory that a process may use: free memory and swap space, within its limits."""
    amounts = dict(re.findall(r"^(\w+): +(\d+) kB$", _MEMINFO.read_text(encoding="ascii"), re.MULTILINE))
    limits = [1024 * (int(amounts.get("MemAvailable", 0)) + int(amounts.get("SwapFree", 0)))]
    soft, _hard = resource.getrlimit(resource.RLIMIT_AS)
    limits += [soft] if soft != resource.RLIM_INFINITY else []
    # A container's limit, which /proc/meminfo does not show.
    text = _CGROUP.read_text(encoding="ascii").strip() if _CGROUP.is_file() else ""
    limits += [int(text)] if text.isdecimal() else []
    return min(limits)


def _dims(value: onnx.ValueInfoProto) -> list[int]:
    return [max(dim.dim_value, 1) for dim in value.type.tensor_type.shape.dim]


def _bytes(value: onnx.ValueInfoProto) -> int:
    from onnx import helper  # noqa: PLC0415 - see above

    element = value.type.tensor_type.elem_type
    try:
        width = helper.tensor_dtype_to_np_dtype(element).itemsize
    except (KeyError, TypeError, ValueError):  # a sequence, or a type that numpy lacks
        return 0
    return int(math.prod(_dims(value)) * width)
