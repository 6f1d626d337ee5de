"""The reference of a bundle: inputs, the outputs for them, and how far a device's outputs may be from these."""

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
from toolchain.bundle import random_samples, ranked
from toolchain.bundle.manifest import REFERENCE, InInt8, Manifest
from toolchain.bundle.random_samples import RandomSamples
from toolchain.documents import FEW_KEYS, words
from toolchain.errors import VerificationError
from toolchain.rankings import Ranking
from toolchain.tensors import LARGEST_TOLERANCE, Limit, Tensors, TensorSpec, Tolerance

_LIMITS = "limits"
_LIMITS_READER = TypeAdapter(Annotated[dict[str, Limit], FEW_KEYS])
_KINDS = ("input", "output", random_samples.KIND, ranked.KIND)


@dataclass(frozen=True)
class Reference:
    runtime: str  # what computed the outputs, with its version
    inputs: Tensors  # by name
    outputs: Tensors
    # limits for the relative difference, where the dtypes' own are not the right ones
    tolerance: Tolerance | None = None
    random: RandomSamples | None = None  # the outputs for many random inputs, too, where they were requested
    rankings: tuple[Ranking, ...] = ()  # which outputs have rows in an order of scores
    # how near what computed them is to the user's model, where that was made int8; the manifest keeps it
    int8: InInt8 | None = None

    def save(self, folder: Path) -> None:
        """Write it into the folder of a bundle, as `input.<name>` and `output.<name>`."""
        contents = {f"input.{name}": value for name, value in self.inputs.items()}
        contents |= {f"output.{name}": value for name, value in self.outputs.items()}
        limit = {} if self.tolerance is None else limit_notes(self.tolerance)
        samples = self.random.notes() if self.random else {}
        contents |= self.random.tensors() if self.random else {}
        orders, notes = ranked.to_tensors(self._every_ranking())
        tensors.save(folder / REFERENCE, contents | orders, {"runtime": self.runtime, **limit, **samples, **notes})

    def _every_ranking(self) -> ranked.Owned:
        own: ranked.Owned = [(None, ranking) for ranking in self.rankings]
        samples = enumerate(self.random.rankings if self.random else ())
        return [*own, *((sample, ranking) for sample, rankings in samples for ranking in rankings)]

    @classmethod
    def read(cls, path: Path) -> Reference:
        """Read the file of a bundle.

        Raises:
            VerificationError: It is not readable, or has a tolerance that would let anything pass.
        """
        groups: dict[str, dict[str, NDArray[Any]]] = {kind: {} for kind in _KINDS}
        for key, value in tensors.load(path).items():
            kind, _, name = key.partition(".")
            if kind not in groups:
                raise VerificationError(f"{path.name} has a tensor in an unknown form", details=key)
            groups[kind][name] = value
        notes = tensors.notes(path)
        limit = _read_limits(notes, path.name)
        runtime = notes.get("runtime", "an unnamed reference")
        samples = random_samples.read(groups[random_samples.KIND], notes, path.name)
        owned = ranked.read(groups[ranked.KIND], notes, path.name)
        of_inputs = tuple(ranking for sample, ranking in owned if sample is None)
        if samples:
            rankings_of_samples = [
                tuple(ranking for sample, ranking in owned if sample == number)
                for number in range(len(samples.samples))
            ]
            samples = replace(samples, rankings=tuple(rankings_of_samples))
        return cls(runtime, groups["input"], groups["output"], limit, samples, of_inputs)

    def check(self, manifest: Manifest) -> None:
        """Refuse a reference that no device can agree with.

        Raises:
            VerificationError: Names, types or shapes are not the model's.
        """
        faults = tensors.check_signature(self.inputs, manifest.inputs)
        faults += _output_faults(self.outputs, manifest.outputs)
        for number, outputs in enumerate(self.random.outputs if self.random else ()):
            faults += [f"sample {number}: {fault}" for fault in _output_faults(outputs, manifest.outputs)]
        for _, ranking in self._every_ranking():
            faults += ranked.faults(ranking, manifest.outputs)
        if faults:
            raise VerificationError(
                "the bundle's reference does not fit its model", details="\n".join(faults), hint="build it again"
            )

    def check_comparable(self) -> None:
        """Refuse a reference with an output that has no finite value: nothing can be compared with that."""
        groups = (self.outputs, *(self.random.outputs if self.random else ()))
        pairs = (pair for outputs in groups for pair in outputs.items())
        names = {name for name, value in pairs if value.size and not np.isfinite(value).any()}
        if names:
            raise VerificationError(
                f"the bundle's reference outputs have no finite value in {', '.join(sorted(names))}",
                details="outputs cannot be compared with such a reference",
                hint="build it with inputs for which the model computes finite values: --input, --image or --seed",
            )


def save_expected(path: Path, outputs: Tensors, tolerance: Tolerance | None, order: Sequence[Ranking]) -> None:
    """Write what a device compares its outputs with by itself, in the form that its runner reads.

    These are `output.<name>` and `limit.<name>`, and for rows in an order of scores `ranking.<number>.<field>`, with
    the limit of the scores.
    """
    contents: dict[str, NDArray[Any]] = {f"output.{name}": value for name, value in outputs.items()}
    for name, value in outputs.items():
        contents[f"limit.{name}"] = np.array([tensors.limit_of(tolerance, name, str(value.dtype)).value])
    stored, _ = ranked.to_tensors([(None, ranking) for ranking in order])
    for number, ranking in enumerate(order):
        stored[f"{ranked.KIND}.{number}.limit"] = np.array([rankings.score_limit(ranking, outputs, tolerance)])
    tensors.save(path, contents | stored)


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
    if "tolerance" not in notes:
        return None
    try:
        limit = float(notes["tolerance"])
    except ValueError as fault:
        raise VerificationError(f"{where} has a tolerance that is not a number", details=str(fault)) from fault
    # Everything would be within an infinite limit, or one that is not a number.
    if not (math.isfinite(limit) and 0 < limit <= LARGEST_TOLERANCE):
        raise VerificationError(
            f"{where} has a tolerance of {limit}; it must be positive and at most {LARGEST_TOLERANCE}",
            details="the toolchain never writes a wider one",
            hint="build it again; `deploy --tolerance` sets a different limit",
        )
    return limit


def _output_faults(outputs: Tensors, specs: tuple[TensorSpec, ...]) -> list[str]:
    counts = {spec.bound.count for spec in specs if spec.bound}
    expected: Mapping[str, TensorSpec] = {spec.name: spec for spec in specs if spec.name not in counts}
    faults = [f"{name}: only in one of them" for name in sorted(expected.keys() ^ outputs.keys())]
    for name in sorted(expected.keys() & outputs.keys()):
        spec, value = expected[name], outputs[name]
        if not _has_signature(spec, value):
            faults.append(f"{name}: has {value.shape} {value.dtype}, expected {spec}")
    return faults


def _has_signature(spec: TensorSpec, value: NDArray[Any]) -> bool:
    if value.ndim != len(spec.shape) or str(value.dtype) != spec.dtype:
        return False
    # Along the axis of a bound, the array may be shorter: its size depends on the data.
    free = spec.bound.axis if spec.bound else None
    pairs = enumerate(zip(value.shape, spec.shape, strict=True))
    return all(got == size or (axis == free and got <= size) for axis, (got, size) in pairs)
