"""Tensors at the edges of a model: their signature, their files, and how far two sets of them lie apart."""

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
from toolchain.documents import FEW_KEYS, FIRST_FAULT
from toolchain.errors import VerificationError

Tensors = Mapping[str, NDArray[Any]]

# What safetensors, TVM and numpy all know, under the name that TVM and numpy share.
DTYPES = (
    "float32", "float16", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool",
)  # fmt: skip

# A library computes in another order than the reference does: what counts as the same answer, by output dtype.
TOLERANCE = {"float32": 1e-4, "float64": 1e-4, "float16": 2e-2}

# the widest limit that a reference may set: that of quantized networks whose own reference lies far apart
LARGEST_TOLERANCE = 0.15

# why an output has its limit: its own element type; the least precise type inside the model; because the reference's
# own values move when the last bits of weights and inputs change; because the user says so
TYPE, MODEL, ROUNDING, OPTION = "type", "model", "rounding", "option"

_EXACT = 2**53  # the first whole number whose successor float64 lacks
_NOTES = "notes"
_NOTES_READER = TypeAdapter(Annotated[dict[str, str], FEW_KEYS])


@dataclass(frozen=True)
class Bound:
    """How much of an output is the result, where its size depends on the data."""

    axis: int  # the axis along which it does
    count: str  # the output, of one int64, that says how many elements along it count: the first ones


@dataclass(frozen=True)
class Draw:
    """Which random values an input takes."""

    low: float  # the least
    high: float  # no value is as large as this


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and element type of one input or output."""

    name: str  # the name that the model file gives it
    shape: Annotated[tuple[int, ...], FIRST_FAULT]  # dimensions, all static
    dtype: str  # one of `DTYPES`
    bound: Bound | None = None  # set where the shape is the greatest that there can be
    # set where the model takes other values than those that are drawn by default
    draw: Draw | None = field(default=None, compare=False)

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of its elements."""
        return self.elements * np.dtype(self.dtype).itemsize

    @property
    def can_be_drawn(self) -> bool:
        """Whether the values that it takes are some of its element type."""
        if self.draw is None:
            return True
        kind, (low, high) = np.dtype(self.dtype), (float(self.draw.low), float(self.draw.high))
        if kind.kind == "f":
            least, most = float(np.finfo(kind).min), float(np.finfo(kind).max)
        else:
            least, most = (0.0, 2.0) if kind.kind == "b" else (float(np.iinfo(kind).min), float(np.iinfo(kind).max))
        is_whole = kind.kind == "f" or (low.is_integer() and high.is_integer() and abs(high) < _EXACT)
        return math.isfinite(low) and math.isfinite(high) and least <= low < high <= most and is_whole

    def stacked(self, count: int) -> TensorSpec:
        """Return the spec of so many of them, along one more axis in front."""
        return replace(self, shape=(count, *self.shape))

    def __str__(self) -> str:
        return f"{self.name} {'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype}"


@dataclass(frozen=True)
class Limit:
    """How far an output may lie from its reference."""

    value: Annotated[float, Field(gt=0, le=LARGEST_TOLERANCE)]  # limit for the relative difference
    # `TYPE`, `MODEL`, `ROUNDING` or `OPTION`
    reason: Annotated[str, Field(pattern=f"^({TYPE}|{MODEL}|{ROUNDING}|{OPTION})$")]


# one limit for all outputs, or those of outputs by name; an output without one has that of its type
Tolerance = float | Mapping[str, Limit]


@dataclass(frozen=True)
class OutputDifference:
    """How far one output lies from its reference; see `Difference`."""

    name: str
    max_abs: float
    max_rel: float
    limit: Limit
    ok: bool


@dataclass(frozen=True)
class Difference:
    """How far outputs lie from their reference."""

    max_abs: float  # largest absolute difference over all outputs
    # largest over the outputs of `max|output - reference| / max|reference|`, or over those beyond their limits if there
    # are some. It is relative to the tensor, not to each element, since elements near zero carry no relative precision.
    max_rel: float
    tolerance: float  # the limit that `max_rel` was held against
    ok: bool  # whether every output is finite and within its tolerance
    # outputs whose rows have nearly equal scores and are in another order than in the reference
    reordered: tuple[str, ...] = ()
    outputs: tuple[OutputDifference, ...] = field(default=(), compare=False)  # the same for each output


def save(path: Path, tensors: Tensors, notes: Mapping[str, str] | None = None) -> None:
    """Write tensors as a safetensors file, the same bytes for the same tensors and notes."""
    files.write_atomic(path, encode(tensors, notes))


def encode(tensors: Tensors, notes: Mapping[str, str] | None = None) -> bytes:
    """Encode tensors in the safetensors format (https://github.com/huggingface/safetensors).

    Args:
        tensors: Arrays by name.
        notes: Text by name, kept in the file's metadata.
    """
    # ascontiguousarray alone would turn a scalar into a vector of one.
    contiguous = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    # One entry for all notes: the library writes several in an order that changes from process to process.
    metadata = {_NOTES: json.dumps(dict(notes), sort_keys=True)} if notes else None
    return bytes(save_bytes(contiguous, metadata))


def notes(path: Path) -> dict[str, str]:
    """Read the notes of a safetensors file.

    Raises:
        VerificationError: The file is missing, truncated or not in the format.
    """
    try:
        with safe_open(path, "np") as opened:
            found = json.loads((opened.metadata() or {}).get(_NOTES, "{}"))
        return dict(_NOTES_READER.validate_python(found))
    except (OSError, SafetensorError, ValueError, RecursionError) as fault:
        raise VerificationError(f"{path.name} is not a readable safetensors file", details=str(fault)) from fault


def load(path: Path) -> dict[str, NDArray[Any]]:
    """Read a safetensors file.

    Raises:
        VerificationError: The file is missing, truncated or not in the format.
    """
    try:
        return dict(load_file(path))
    except (OSError, SafetensorError, ValueError, KeyError, AttributeError, OverflowError) as fault:
        # KeyError and AttributeError: a type that numpy lacks; OverflowError: no element, and a size beyond all sizes.
        raise VerificationError(f"{path.name} is not a readable safetensors file", details=str(fault)) from fault


def limit_of(tolerance: Tolerance | None, name: str, dtype: str) -> Limit:
    """Return the limit of an output."""
    if isinstance(tolerance, Mapping):
        return tolerance.get(name) or limit_of(None, name, dtype)
    return Limit(TOLERANCE.get(dtype, 0.0), TYPE) if tolerance is None else Limit(tolerance, MODEL)


def as_option(difference: Difference) -> Difference:
    """Return a difference whose limits are what the user says."""
    outputs = tuple(replace(one, limit=replace(one.limit, reason=OPTION)) for one in difference.outputs)
    return replace(difference, outputs=outputs)


def compare(outputs: Tensors, reference: Tensors, tolerance: Tolerance | None = None) -> Difference:
    """Compare outputs with their reference; both map the same names to arrays of the same shapes.

    Args:
        outputs: What the device computed.
        reference: What the reference runtime computed.
        tolerance: Limits for the relative difference; the default depends on the dtype (`TOLERANCE`), and integer
            outputs must be equal.

    Raises:
        VerificationError: Names or shapes differ.
    """
    _check_alike(outputs, reference)
    parts = tuple(_difference(name, outputs[name], wanted, tolerance) for name, wanted in reference.items())
    worst = max(parts, key=lambda part: (not part.ok, part.max_rel))
    return Difference(
        max_abs=max(part.max_abs for part in parts),
        max_rel=worst.max_rel,
        tolerance=worst.limit.value,
        ok=all(part.ok for part in parts),
        outputs=parts,
    )


def _check_alike(outputs: Tensors, reference: Tensors) -> None:
    got = {name: tuple(value.shape) for name, value in outputs.items()}
    wanted = {name: tuple(value.shape) for name, value in reference.items()}
    if got != wanted:
        raise VerificationError("the outputs do not have the model's signature", details=f"{got}\nexpected {wanted}")


def _difference(name: str, got: NDArray[Any], wanted: NDArray[Any], tolerance: Tolerance | None) -> OutputDifference:
    limit = limit_of(tolerance, name, str(wanted.dtype))
    if wanted.size == 0:
        return OutputDifference(name, 0.0, 0.0, limit, ok=True)
    wide, wide_wanted = _widened(got), _widened(wanted)
    finite = np.isfinite(wide_wanted)
    alike = np.array_equal(wide[~finite], wide_wanted[~finite], equal_nan=True)  # a logarithm of 0, or a mask
    if not alike or not np.isfinite(wanted).any() or not np.isfinite(wide[finite]).all():
        return OutputDifference(name, math.inf, math.inf, limit, ok=False)
    if not finite.any():
        return OutputDifference(name, 0.0, 0.0, limit, ok=True)
    wide, wide_wanted = wide[finite], wide_wanted[finite]
    distance = np.max(np.abs(wide - wide_wanted))
    scale = np.max(np.abs(wide_wanted))
    relative = float(distance / scale if scale > 0 else distance)
    return OutputDifference(name, float(distance), relative, limit, ok=relative <= limit.value)


def _widened(array: NDArray[Any]) -> NDArray[np.longdouble]:
    """Return numbers in a type that holds 64-bit integers too; the largest floats, which mask as well, as infinite.

    A reference that writes the least number for minus infinity would otherwise be the scale of all differences.
    """
    wide = array.astype(np.longdouble)
    if array.dtype.kind != "f":
        return wide
    return np.where(np.abs(wide) >= np.finfo(array.dtype).max, np.copysign(np.inf, wide), wide)


def cut(outputs: Tensors, specs: Sequence[TensorSpec]) -> dict[str, NDArray[Any]]:
    """Return outputs as the model defines them: those with a bound cut to their counts, and without the counts.

    Raises:
        VerificationError: A count is no size that there can be.
    """
    bounds = {spec.name: spec.bound for spec in specs if spec.bound}
    counts = {bound.count for bound in bounds.values()}
    return {
        name: _cut(name, value, bounds[name], outputs[bounds[name].count]) if name in bounds else value
        for name, value in outputs.items()
        if name not in counts
    }


def cut_stacked(outputs: Tensors, specs: Sequence[TensorSpec]) -> dict[str, NDArray[Any]]:
    """Return the outputs of many samples, those with a bound cut to the greatest count among them.

    What lies behind a sample's own count is 0, and the counts stay among the outputs.

    Args:
        outputs: Outputs by name, each with an axis of samples in front.
        specs: Specs of one sample's.

    Raises:
        VerificationError: A count is no size that there can be.
    """
    found = dict(outputs)
    for spec in specs:
        if spec.bound:
            counts = outputs[spec.bound.count].reshape(-1)
            parts = [
                _cut(spec.name, one, spec.bound, count) for one, count in zip(outputs[spec.name], counts, strict=True)
            ]
            found[spec.name] = _padded(parts, spec.bound.axis)
    return found


def _padded(parts: Sequence[NDArray[Any]], axis: int) -> NDArray[Any]:
    """Stack arrays that differ along one axis alone, filled with 0 to the largest of them."""
    most = max(part.shape[axis] for part in parts)
    widths = [[(0, most - part.shape[axis] if at == axis else 0) for at in range(part.ndim)] for part in parts]
    return np.stack([np.pad(part, width) for part, width in zip(parts, widths, strict=True)])


def _cut(name: str, value: NDArray[Any], bound: Bound, counted: NDArray[Any]) -> NDArray[Any]:
    count, most = int(counted.reshape(())), value.shape[bound.axis]
    if not 0 <= count <= most:
        raise VerificationError(f"output {name} claims {count} elements", details=f"it can have {most} of them at most")
    return value.take(range(count), bound.axis)


def check_signature(tensors: Tensors, specs: Sequence[TensorSpec]) -> list[str]:
    """List what is wrong with tensors that should fit a signature; an empty list means that they fit."""
    faults = [f"{name}: the model has no such input" for name in tensors if name not in {s.name for s in specs}]
    for spec in specs:
        value = tensors.get(spec.name)
        if value is None:
            faults.append(f"{spec.name}: missing, expected {spec}")
        elif tuple(value.shape) != spec.shape or str(value.dtype) != spec.dtype:
            faults.append(f"{spec.name}: has {tuple(value.shape)} {value.dtype}, expected {spec}")
    return faults
