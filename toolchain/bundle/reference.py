"""What a bundle's outputs are compared with: inputs, outputs for them, and how far others may lie from these."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from toolchain import rankings, tensors
from toolchain.bundle import drawn, ranked
from toolchain.bundle.drawn import Drawn
from toolchain.bundle.manifest import REFERENCE, InInt8, Manifest
from toolchain.documents import FEW_KEYS, words
from toolchain.errors import VerificationError
from toolchain.rankings import Ranking
from toolchain.tensors import LARGEST_TOLERANCE, Limit, Tensors, TensorSpec, Tolerance

_LIMITS = "limits"
_LIMITS_READER = TypeAdapter(Annotated[dict[str, Limit], FEW_KEYS])
_KINDS = ("input", "output", drawn.KIND, ranked.KIND)


@dataclass(frozen=True)
class Reference:
    """What a bundle's outputs are compared with."""

    runtime: str  # what computed them, with its version
    inputs: Tensors  # inputs by name
    outputs: Tensors  # the outputs for them, by name
    # limits for the relative difference, where the dtypes' own are not the right ones
    tolerance: Tolerance | None = None
    drawn: Drawn | None = None  # the outputs for many random inputs, too, where they were asked for
    rankings: tuple[Ranking, ...] = ()  # which outputs have rows in an order of scores
    # how near what computed them is to the user's model, where that was made int8; the manifest keeps it
    int8: InInt8 | None = None

    def save(self, folder: Path) -> None:
        """Write it into the folder of a bundle, as `input.<name>` and `output.<name>`."""
        named = {f"input.{name}": value for name, value in self.inputs.items()}
        named |= {f"output.{name}": value for name, value in self.outputs.items()}
        limit = {} if self.tolerance is None else limit_notes(self.tolerance)
        more = self.drawn.notes() if self.drawn else {}
        named |= self.drawn.tensors() if self.drawn else {}
        orders, notes = ranked.stored(self._every_ranking())
        tensors.save(folder / REFERENCE, named | orders, {"runtime": self.runtime, **limit, **more, **notes})

    def _every_ranking(self) -> ranked.Owned:
        samples = enumerate(self.drawn.rankings if self.drawn else ())
        return [(None, one) for one in self.rankings] + [(at, one) for at, each in samples for one in each]

    @classmethod
    def read(cls, path: Path) -> Reference:
        """Read it.

        Raises:
            VerificationError: The file is not readable, or has a tolerance that would let anything pass.
        """
        parts: dict[str, dict[str, NDArray[Any]]] = {kind: {} for kind in _KINDS}
        for key, value in tensors.load(path).items():
            kind, _, name = key.partition(".")
            if kind not in parts:
                raise VerificationError(f"{path.name} has a tensor in an unknown form", details=key)
            parts[kind][name] = value
        notes = tensors.notes(path)
        limit = _read_limits(notes, path.name)
        runtime = notes.get("runtime", "an unnamed reference")
        samples = drawn.read(parts[drawn.KIND], notes, path.name)
        owned = ranked.read(parts[ranked.KIND], notes, path.name)
        own = tuple(ranking for sample, ranking in owned if sample is None)
        if samples:
            each = [tuple(one for sample, one in owned if sample == at) for at in range(len(samples.samples))]
            samples = replace(samples, rankings=tuple(each))
        return cls(runtime, parts["input"], parts["output"], limit, samples, own)

    def check(self, manifest: Manifest) -> None:
        """Refuse a reference that no device can agree with: a technician would find it out.

        Raises:
            VerificationError: Names, types or shapes are not the model's.
        """
        faults = tensors.check_signature(self.inputs, manifest.inputs)
        faults += _output_faults(self.outputs, manifest.outputs)
        for at, outputs in enumerate(self.drawn.outputs if self.drawn else ()):
            faults += [f"sample {at}: {fault}" for fault in _output_faults(outputs, manifest.outputs)]
        for _, ranking in self._every_ranking():
            faults += ranked.faults(ranking, manifest.outputs)
        if faults:
            raise VerificationError(
                "the bundle's reference does not fit its model", details="\n".join(faults), hint="build it again"
            )

    def check_comparable(self) -> None:
        """Refuse a reference that nothing can be compared with.

        Raises:
            VerificationError: An output has no finite value.
        """
        every = (self.outputs, *(self.drawn.outputs if self.drawn else ()))
        names = {name for outputs in every for name, value in outputs.items() if not _has_finite(value)}
        if names:
            raise VerificationError(
                f"the bundle's reference outputs have no finite value in {', '.join(sorted(names))}",
                details="outputs cannot be compared with such a reference",
                hint="build it with inputs for which the model computes finite values: --input, --image or --seed",
            )


def _has_finite(value: NDArray[Any]) -> bool:
    return not value.size or bool(np.isfinite(value).any())


def save_expected(path: Path, outputs: Tensors, tolerance: Tolerance | None, order: Sequence[Ranking]) -> None:
    """Write what a device compares its outputs with by itself, in the form that its runner reads.

    It has `output.<name>` and `limit.<name>`, and for rows in an order of scores `ranking.<number>.<what>`, with the
    limit of the scores.
    """
    named: dict[str, NDArray[Any]] = {f"output.{name}": value for name, value in outputs.items()}
    for name, value in outputs.items():
        named[f"limit.{name}"] = np.array([tensors.limit_of(tolerance, name, str(value.dtype)).value])
    stored, _ = ranked.stored([(None, ranking) for ranking in order])
    for number, ranking in enumerate(order):
        stored[f"{ranked.KIND}.{number}.limit"] = np.array([rankings.score_limit(ranking, outputs, tolerance)])
    tensors.save(path, named | stored)


def limit_notes(tolerance: Tolerance) -> dict[str, str]:
    """Return limits as notes of a file: `tolerance` for all outputs, or `limits` by output."""
    if isinstance(tolerance, Mapping):
        return {_LIMITS: json.dumps(json.loads(_LIMITS_READER.dump_json(dict(tolerance))), sort_keys=True)}
    return {"tolerance": repr(tolerance)}


def _read_limits(notes: Mapping[str, str], where: str) -> Tolerance | None:
    if _LIMITS in notes:
        try:
            return _LIMITS_READER.validate_json(notes[_LIMITS])
        except ValidationError as fault:
            raise VerificationError(f"{where} has limits in an unknown form", details=words(fault)) from fault
    return _tolerance(notes["tolerance"], where) if "tolerance" in notes else None


def _tolerance(text: str, where: str) -> float:
    """Read a limit: of what is infinite or no number, everything would be within."""
    try:
        limit = float(text)
    except ValueError as fault:
        raise VerificationError(f"{where} has a tolerance that is not a number", details=str(fault)) from fault
    if not (math.isfinite(limit) and 0 < limit <= LARGEST_TOLERANCE):
        raise VerificationError(
            f"{where} has a tolerance of {limit}; it must be positive and at most {LARGEST_TOLERANCE}",
            details="the toolchain never writes a wider one",
            hint="build it again; `deploy --tolerance` sets a different limit",
        )
    return limit


def _output_faults(found: Tensors, specs: tuple[TensorSpec, ...]) -> list[str]:
    counts = {spec.bound.count for spec in specs if spec.bound}
    wanted: Mapping[str, TensorSpec] = {spec.name: spec for spec in specs if spec.name not in counts}
    faults = [f"{name}: only in one of them" for name in sorted(wanted.keys() ^ found.keys())]
    for name in sorted(wanted.keys() & found.keys()):
        spec, value = wanted[name], found[name]
        if not _is_of(spec, value):
            faults.append(f"{name}: has {value.shape} {value.dtype}, expected {spec}")
    return faults


def _is_of(spec: TensorSpec, value: NDArray[Any]) -> bool:
    """Tell whether an array is of a signature, shorter perhaps where the size depends on the data."""
    if value.ndim != len(spec.shape) or str(value.dtype) != spec.dtype:
        return False
    free = spec.bound.axis if spec.bound else None
    pairs = enumerate(zip(value.shape, spec.shape, strict=True))
    return all(got == size or (axis == free and got <= size) for axis, (got, size) in pairs)
