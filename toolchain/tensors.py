"""Tensors at the edges of a model: their signature, their files, and the differences between two sets of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file
from safetensors.numpy import save as save_bytes

from toolchain import files
from toolchain.errors import VerificationError
from toolchain.validation import FEW_KEYS, FIRST_FAULT

Tensors = Mapping[str, NDArray[Any]]

# The types that safetensors, TVM and numpy all have, by the name that TVM and numpy share.
DTYPES = (
    "float32", "float16", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool",
)  # fmt: skip

# A library computes in another order than the reference: the accepted relative difference, by output dtype.
TOLERANCE = {"float32": 1e-4, "float64": 1e-4, "float16": 2e-2}

# the widest limit that a reference may set: for quantized networks, whose own reference varies
LARGEST_TOLERANCE = 0.15

# The reason for an output's limit: its own element type; the least precise type inside the model; the reference's own
# values, which move when the last bits of weights and inputs change; the user's option.
TYPE, MODEL, ROUNDING, OPTION = "type", "model", "rounding", "option"

_EXACT = 2**53  # the first whole number whose successor float64 lacks
ALIGNMENT = 64
"""Bytes that the address of a tensor is a multiple of, where a device computes with it."""

_LENGTH_BYTES = 8  # of the length at the start of a safetensors file
_STORED_DTYPES = {
    name: {"f": "F", "i": "I", "u": "U"}[np.dtype(name).kind] + str(8 * np.dtype(name).itemsize)
    for name in DTYPES
    if name != "bool"
} | {"bool": "BOOL"}  # what safetensors calls them
_NOTES = "notes"
_NOTES_READER = TypeAdapter(Annotated[dict[str, str], FEW_KEYS])


@dataclass(frozen=True)
class Bound:
    """The part of an output that is the result, where its size depends on the data."""

    axis: int  # the axis of that size
    count: str  # the output, one int64, that contains the number of valid elements along it: the first ones


@dataclass(frozen=True)
class Draw:
    """The range of random values for an input."""

    low: float
    high: float  # exclusive


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and element type of one input or output."""

    name: str  # as in the model file
    shape: Annotated[tuple[int, ...], FIRST_FAULT]  # all dimensions are static
    dtype: str  # one of `DTYPES`
    bound: Bound | None = None  # set where the shape is the largest possible one
    # set where the model needs other values than those that are drawn by default
    draw: Draw | None = field(default=None, compare=False)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * np.dtype(self.dtype).itemsize

    @property
    def can_be_drawn(self) -> bool:
        """Whether its element type has the values of its range."""
        if self.draw is None:
            return True
        kind, (low, high) = np.dtype(self.dtype), (float(self.draw.low), float(self.draw.high))
        if kind.kind == "f":
            smallest, largest = float(np.finfo(kind).min), float(np.finfo(kind).max)
        else:
            smallest, largest = (
                (0.0, 2.0) if kind.kind == "b" else (float(np.iinfo(kind).min), float(np.iinfo(kind).max))
            )
        is_whole = kind.kind == "f" or (low.is_integer() and high.is_integer() and abs(high) < _EXACT)
        return math.isfinite(low) and math.isfinite(high) and smallest <= low < high <= largest and is_whole

    def stacked(self, count: int) -> TensorSpec:
        """Return the spec of `count` such tensors, along one more axis in front."""
        return replace(self, shape=(count, *self.shape))

    def __str__(self) -> str:
        return f"{self.name} {'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype}"


@dataclass(frozen=True)
class Limit:
    """The accepted relative difference of an output from its reference."""

    value: Annotated[float, Field(gt=0, le=LARGEST_TOLERANCE)]
    # `TYPE`, `MODEL`, `ROUNDING` or `OPTION`
    reason: Annotated[str, Field(pattern=f"^({TYPE}|{MODEL}|{ROUNDING}|{OPTION})$")]


# one limit for all outputs, or limits of outputs by name; an output without one has that of its type
Tolerance = float | Mapping[str, Limit]


@dataclass(frozen=True)
class OutputDifference:
    """The difference of one output from its reference; see `Difference`."""

    name: str
    max_abs: float
    max_rel: float
    limit: Limit
    ok: bool


@dataclass(frozen=True)
class Difference:
    """The differences of outputs from their reference."""

    max_abs: float  # largest absolute difference over all outputs
    # largest `max|output - reference| / max|reference|` over the outputs, or over those beyond their limits if there
    # are some. It is relative to the tensor, not to each element, since elements near zero have no relative precision.
    max_rel: float
    tolerance: float  # the limit for `max_rel`
    ok: bool  # whether every output is finite and within its tolerance
    # outputs whose rows have nearly equal scores and are in another order than in the reference
    reordered: tuple[str, ...] = ()
    outputs: tuple[OutputDifference, ...] = field(default=(), compare=False)  # the same for each output


def save(path: Path, tensors: Tensors, notes: Mapping[str, str] | None = None) -> None:
    """Write tensors as a safetensors file, the same bytes for the same tensors and notes."""
    files.write_atomic(path, encode(tensors, notes))


def encode(tensors: Tensors, notes: Mapping[str, str] | None = None) -> bytes:
    """Encode tensors in the safetensors format (https://github.com/huggingface/safetensors).

    Notes are text by name, stored in the file's metadata.
    """
    # ascontiguousarray alone would turn a scalar into a vector of one.
    contiguous = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    # One entry for all notes: the library writes several in an order that changes from process to process.
    metadata = {_NOTES: json.dumps(dict(notes), sort_keys=True)} if notes else None
    return bytes(save_bytes(contiguous, metadata))


def encode_aligned(tensors: Tensors) -> bytes:
    """Encode tensors such that a process that maps the file can use nearly all of them where they are.

    The data start at a multiple of `ALIGNMENT` bytes. First come the tensors whose sizes are such multiples, in the
    given order, which is the order of their use; they are all aligned. The others follow, the largest first: that one
    is aligned too, and a process copies the rest.
    """
    contiguous = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    whole = {name: value for name, value in contiguous.items() if value.nbytes % ALIGNMENT == 0}
    rest = sorted(contiguous.keys() - whole.keys(), key=lambda name: (-contiguous[name].nbytes, name))
    ordered = {**whole, **{name: contiguous[name] for name in rest}}
    header, end = {}, 0
    for name, value in ordered.items():
        offsets = [end, end := end + value.nbytes]
        header[name] = {"dtype": _STORED_DTYPES[str(value.dtype)], "shape": value.shape, "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    size = -(-(len(text) + _LENGTH_BYTES) // ALIGNMENT) * ALIGNMENT - _LENGTH_BYTES
    views = (value.reshape(-1).view(np.uint8).data for value in ordered.values())  # tobytes would copy all weights
    return b"".join([size.to_bytes(_LENGTH_BYTES, "little"), text.ljust(size), *views])


def notes(path: Path) -> dict[str, str]:
    """Read the notes of a safetensors file, or raise a VerificationError."""
    try:
        with safe_open(path, "np") as stream:
            entries = json.loads((stream.metadata() or {}).get(_NOTES, "{}"))
        return dict(_NOTES_READER.validate_python(entries))
    except (OSError, SafetensorError, ValueError, RecursionError) as fault:
        raise VerificationError(f"{path.name} is not a readable safetensors file", details=str(fault)) from fault


def load(path: Path) -> dict[str, NDArray[Any]]:
    """Read a safetensors file, or raise a VerificationError."""
    try:
        return dict(load_file(path))
    except (OSError, SafetensorError, ValueError, KeyError, AttributeError, OverflowError) as fault:
        # KeyError and AttributeError: a type that numpy lacks; OverflowError: no element, and an impossible size.
        raise VerificationError(f"{path.name} is not a readable safetensors file", details=str(fault)) from fault


def limit_of(tolerance: Tolerance | None, name: str, dtype: str) -> Limit:
    if isinstance(tolerance, Mapping):
        return tolerance.get(name) or limit_of(None, name, dtype)
    return Limit(TOLERANCE.get(dtype, 0.0), TYPE) if tolerance is None else Limit(tolerance, MODEL)


def as_option(difference: Difference) -> Difference:
    """Return a difference whose limits are the user's."""
    outputs = (replace(output, limit=replace(output.limit, reason=OPTION)) for output in difference.outputs)
    return replace(difference, outputs=tuple(outputs))


def compare(outputs: Tensors, reference: Tensors, tolerance: Tolerance | None = None) -> Difference:
    """Compare outputs with their reference; both map the same names to arrays of the same shapes.

    The default limit of the relative difference depends on the dtype (`TOLERANCE`); integer outputs must be equal.

    Raises:
        VerificationError: Names or shapes differ.
    """
    shapes = {name: tuple(value.shape) for name, value in outputs.items()}
    expected = {name: tuple(value.shape) for name, value in reference.items()}
    if shapes != expected:
        raise VerificationError(
            "the outputs do not have the model's signature", details=f"{shapes}\nexpected {expected}"
        )
    differences = tuple(_difference(name, outputs[name], value, tolerance) for name, value in reference.items())
    worst = max(differences, key=lambda difference: (not difference.ok, difference.max_rel))
    return Difference(
        max_abs=max(difference.max_abs for difference in differences),
        max_rel=worst.max_rel,
        tolerance=worst.limit.value,
        ok=all(difference.ok for difference in differences),
        outputs=differences,
    )


def _difference(
    name: str, actual: NDArray[Any], expected: NDArray[Any], tolerance: Tolerance | None
) -> OutputDifference:
    limit = limit_of(tolerance, name, str(expected.dtype))
    if expected.size == 0:
        return OutputDifference(name, 0.0, 0.0, limit, ok=True)
    wide_actual, wide_expected = _widen(actual), _widen(expected)
    finite = np.isfinite(wide_expected)
    same = np.array_equal(wide_actual[~finite], wide_expected[~finite], equal_nan=True)  # a logarithm of 0, or a mask
    if not same or not np.isfinite(expected).any() or not np.isfinite(wide_actual[finite]).all():
        return OutputDifference(name, math.inf, math.inf, limit, ok=False)
    if not finite.any():
        return OutputDifference(name, 0.0, 0.0, limit, ok=True)
    wide_actual, wide_expected = wide_actual[finite], wide_expected[finite]
    distance = np.max(np.abs(wide_actual - wide_expected))
    scale = np.max(np.abs(wide_expected))
    relative = float(distance / scale if scale > 0 else distance)
    return OutputDifference(name, float(distance), relative, limit, ok=relative <= limit.value)


def _widen(array: NDArray[Any]) -> NDArray[np.longdouble]:
    """Return numbers in a type that also holds 64-bit integers; the largest floats become infinite."""
    # A mask that has the largest float for infinity would otherwise be the scale of all differences.
    wide = array.astype(np.longdouble)
    if array.dtype.kind != "f":
        return wide
    return np.where(np.abs(wide) >= np.finfo(array.dtype).max, np.copysign(np.inf, wide), wide)


def cut(outputs: Tensors, specs: Sequence[TensorSpec]) -> dict[str, NDArray[Any]]:
    """Return outputs as the model defines them: those with a bound cut to their counts, and without the counts.

    Raises:
        VerificationError: A count is negative, or larger than the output.
    """
    bounds = {spec.name: spec.bound for spec in specs if spec.bound}
    counts = {bound.count for bound in bounds.values()}
    return {
        name: _cut(name, value, bounds[name], outputs[bounds[name].count]) if name in bounds else value
        for name, value in outputs.items()
        if name not in counts
    }


def cut_stacked(outputs: Tensors, specs: Sequence[TensorSpec]) -> dict[str, NDArray[Any]]:
    """Return the outputs of many samples, which have an axis of samples in front, cut to the largest count.

    Elements behind a sample's own count are 0, and the counts stay among the outputs. `specs` are those of one sample.

    Raises:
        VerificationError: A count is negative, or larger than the output.
    """
    result = dict(outputs)
    for spec in specs:
        if spec.bound:
            counts = outputs[spec.bound.count].reshape(-1)
            samples = [
                _cut(spec.name, value, spec.bound, count)
                for value, count in zip(outputs[spec.name], counts, strict=True)
            ]
            result[spec.name] = _stack_padded(samples, spec.bound.axis)
    return result


def _stack_padded(samples: Sequence[NDArray[Any]], axis: int) -> NDArray[Any]:
    """Stack arrays that differ along one axis only, filled with 0 to the largest of them."""
    largest = max(sample.shape[axis] for sample in samples)
    widths = [
        [(0, largest - sample.shape[axis] if dimension == axis else 0) for dimension in range(sample.ndim)]
        for sample in samples
    ]
    return np.stack([np.pad(sample, width) for sample, width in zip(samples, widths, strict=True)])


def _cut(name: str, value: NDArray[Any], bound: Bound, size: NDArray[Any]) -> NDArray[Any]:
    count, limit = int(size.reshape(())), value.shape[bound.axis]
    if not 0 <= count <= limit:
        raise VerificationError(
            f"output {name} claims {count} elements", details=f"it can have {limit} of them at most"
        )
    return value.take(range(count), bound.axis)


def check_signature(tensors: Tensors, specs: Sequence[TensorSpec]) -> list[str]:
    """Return the differences between tensors and a signature; empty if they fit."""
    faults = [f"{name}: the model has no such input" for name in tensors if name not in {s.name for s in specs}]
    for spec in specs:
        value = tensors.get(spec.name)
        if value is None:
            faults.append(f"{spec.name}: missing, expected {spec}")
        elif tuple(value.shape) != spec.shape or str(value.dtype) != spec.dtype:
            faults.append(f"{spec.name}: has {tuple(value.shape)} {value.dtype}, expected {spec}")
    return faults
