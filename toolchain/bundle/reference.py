"""The reference of a bundle: inputs, the outputs for them, and how far a device's outputs may be from these.

It may have the outputs for many random inputs, too. Those inputs are not stored: a seed and digests stand for them. Its
rankings (orders of rows) are tensors `ranking.<number>.<field>`, with their outputs in a note. The references of other
variants than the first have `variant.<name>.` in front of the names of their tensors and notes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from toolchain import rankings, states, tensors
from toolchain.bundle.manifest import REFERENCE, InInt8, Manifest
from toolchain.errors import VerificationError
from toolchain.rankings import Ranking
from toolchain.tensors import LARGEST_TOLERANCE, Limit, Tensors, TensorSpec, Tolerance
from toolchain.validation import FEW_KEYS, FIRST_FAULT, words

SAMPLE = "sample"
_SAMPLES_NOTE = "samples"
_NUMBER = re.compile(r"[0-9]{1,9}")

RANKING = "ranking"
_RANKINGS_NOTE = "rankings"
_SCORES, _NEXT_SCORES, _NEXT_ROWS = "scores", "next_scores", "next_rows"
_KEY = re.compile(r"([0-9]{1,9})\.(scores|next_scores|next_rows)(?:\.(.+))?", re.DOTALL)
# rankings, each with the number of its sample; None for the inputs of the bundle
Owned = Sequence[tuple[int | None, Ranking]]
_LIMITS = "limits"
_LIMITS_READER = TypeAdapter(Annotated[dict[str, Limit], FEW_KEYS])
_PICTURE, _SOUND = "picture", "sound"
_VARIANT = "variant"
_Value = TypeVar("_Value")
_KINDS = ("input", "output", SAMPLE, RANKING, _PICTURE, _SOUND, _VARIANT)


@dataclass(frozen=True)
class Sample:
    """One of the inputs, and the limits for its outputs."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # digest of the inputs, as `tensors.encode` writes them
    # limits for the outputs' relative difference; None for the dtype's own
    tolerance: Annotated[float, Field(gt=0, le=LARGEST_TOLERANCE)] | Mapping[str, Limit] | None = None


@dataclass(frozen=True)
class _Note:
    seed: Annotated[int, Field(ge=0, lt=2**64)]
    samples: Annotated[tuple[Sample, ...], FIRST_FAULT]


@dataclass(frozen=True)
class RandomSamples:
    seed: int  # of the first sample; each next seed is one more
    samples: tuple[Sample, ...]
    outputs: tuple[Tensors, ...]  # of each sample, by name
    rankings: tuple[tuple[Ranking, ...], ...] = ()  # of each sample, which outputs have rows in an order of scores

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return the outputs as `sample.<number>.<name>`."""
        samples = enumerate(self.outputs)
        return {f"{SAMPLE}.{number}.{name}": value for number, outputs in samples for name, value in outputs.items()}

    def notes(self) -> dict[str, str]:
        """Return the notes of the file that has these tensors."""
        note = _SAMPLES_READER.dump_json(_Note(self.seed, self.samples))
        return {_SAMPLES_NOTE: json.dumps(json.loads(note), sort_keys=True)}


_SAMPLES_READER: TypeAdapter[_Note] = TypeAdapter(_Note)


def read_samples(stored: Tensors, notes: Mapping[str, str], where: str) -> RandomSamples | None:
    """Read the samples of a file; None if it has none.

    Raises:
        VerificationError: It has another form.
    """
    if _SAMPLES_NOTE not in notes:
        return None
    try:
        note = _SAMPLES_READER.validate_json(notes[_SAMPLES_NOTE])
    except ValidationError as fault:
        raise VerificationError(f"{where} has samples in an unknown form", details=words(fault)) from fault
    outputs: list[dict[str, NDArray[Any]]] = [{} for _ in note.samples]
    for key, value in stored.items():
        number, _, name = key.partition(".")
        if not (_NUMBER.fullmatch(number) and int(number) < len(outputs)):
            raise VerificationError(f"{where} has samples in an unknown form", details=key)
        outputs[int(number)][name] = value
    return RandomSamples(note.seed, note.samples, tuple(outputs))


@dataclass(frozen=True)
class _Entry:
    """The outputs of one, and the sample that it is of; None for the inputs of the bundle."""

    names: Annotated[tuple[str, ...], FIRST_FAULT]
    sample: Annotated[int, Field(ge=0, lt=10**9)] | None = None


_RANKINGS_READER = TypeAdapter(Annotated[tuple[_Entry, ...], FIRST_FAULT])


def rankings_to_tensors(owned: Owned) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the tensors and notes of a file."""
    tensors: dict[str, NDArray[Any]] = {}
    for number, (_, ranking) in enumerate(owned):
        tensors[f"{RANKING}.{number}.{_SCORES}"] = ranking.scores
        tensors[f"{RANKING}.{number}.{_NEXT_SCORES}"] = ranking.next_scores
        for name, rows in ranking.next_rows.items():
            tensors[f"{RANKING}.{number}.{_NEXT_ROWS}.{name}"] = rows
    entries = tuple(_Entry(ranking.names, sample) for sample, ranking in owned)
    return tensors, {_RANKINGS_NOTE: _RANKINGS_READER.dump_json(entries).decode()} if entries else {}


def read_rankings(contents: Tensors, notes: Mapping[str, str], where: str) -> Owned:
    """Read the rankings of a file.

    `contents` are tensors by what follows `ranking.` in their names.

    Raises:
        VerificationError: It has another form.
    """
    try:
        entries = _RANKINGS_READER.validate_json(notes.get(_RANKINGS_NOTE, "[]"))
    except ValidationError as fault:
        raise VerificationError(f"{where} has rankings in an unknown form", details=words(fault)) from fault
    groups: list[dict[str, dict[str, NDArray[Any]]]] = [{} for _ in entries]
    for key, value in contents.items():
        match = _KEY.fullmatch(key)
        if match is None or int(match[1]) >= len(groups):
            raise VerificationError(f"{where} has rankings in an unknown form", details=key)
        groups[int(match[1])].setdefault(match[2], {})[match[3] or ""] = value
    return [(entry.sample, _ranking(entry.names, group, where)) for entry, group in zip(entries, groups, strict=True)]


def _ranking(names: tuple[str, ...], group: Mapping[str, Tensors], where: str) -> Ranking:
    scores, next_scores = (group.get(key, {}).get("") for key in (_SCORES, _NEXT_SCORES))
    rows = dict(group.get(_NEXT_ROWS, {}))
    if scores is None or next_scores is None or set(rows) != set(names) or not names:
        raise VerificationError(f"{where} has a ranking that lacks a part", details=", ".join(names))
    return Ranking(names, scores, next_scores, rows)


def ranking_faults(ranking: Ranking, specs: Sequence[TensorSpec]) -> list[str]:
    """Return what does not fit the outputs of a model."""
    scores, more = ranking.scores, ranking.next_scores
    if scores.ndim != 2 or more.ndim != 2 or not scores.size or len(scores) != len(more):  # noqa: PLR2004 - [batch, rows]
        return ["the scores of a ranking do not have the shape [batch, rows]"]
    if any(table.dtype.kind != "f" for table in (scores, more)):
        return ["the scores of a ranking must have a floating-point type"]
    by_name = {spec.name: spec for spec in specs}
    messages = []
    for name, rows in ranking.next_rows.items():
        spec = by_name.get(name)
        elements, size = (spec.elements, scores.size) if spec else (0, 1)
        if spec and spec.bound:  # as many rows as there were for the reference's inputs
            elements, size = elements // spec.shape[spec.bound.axis], 1
        width = elements // size
        if spec is None or elements % size or (spec.bound and scores.shape[1] > spec.shape[spec.bound.axis]):
            messages.append(f"{name}: a ranking does not fit this output")
        elif rows.shape != (*more.shape, width) or np.dtype(spec.dtype) != rows.dtype:
            messages.append(f"{name}: has rows {rows.shape} {rows.dtype} in a ranking, expected {(*more.shape, width)}")
    return messages


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
    # RGB pixels, or the bytes of a JPEG or PNG file, that a device checks the steps for pictures with
    picture: NDArray[np.uint8] | None = None
    sound: NDArray[np.uint8] | None = None  # the bytes of a WAV file, for those for sounds
    variants: Mapping[str, Reference] = field(default_factory=dict)  # of all variants but the first, by name

    def of_variant(self, name: str) -> Reference:
        """Return the reference of a variant; of an empty name, or of the first one, its own."""
        return self.variants.get(name, replace(self, variants={}) if self.variants else self)

    def save(self, folder: Path) -> None:
        """Write it into the folder of a bundle, as `input.<name>` and `output.<name>`."""
        contents, notes = self.encoded()
        for name, reference in self.variants.items():
            more_contents, more_notes = reference.encoded()
            contents |= {f"{_VARIANT}.{name}.{key}": value for key, value in more_contents.items()}
            notes |= {f"{_VARIANT}.{name}.{key}": value for key, value in more_notes.items()}
        tensors.save(folder / REFERENCE, contents, notes)

    def encoded(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return its tensors and notes, without those of other variants."""
        contents: dict[str, NDArray[Any]] = {f"input.{name}": value for name, value in self.inputs.items()}
        contents |= {f"output.{name}": value for name, value in self.outputs.items()}
        if self.picture is not None:
            contents[f"{_PICTURE}.{'file' if self.picture.ndim == 1 else 'rgb'}"] = self.picture
        contents |= {f"{_SOUND}.wav": self.sound} if self.sound is not None else {}
        limit = {} if self.tolerance is None else limit_notes(self.tolerance)
        samples = self.random.notes() if self.random else {}
        contents |= self.random.tensors() if self.random else {}
        orders, notes = rankings_to_tensors(self._every_ranking())
        return contents | orders, {"runtime": self.runtime, **limit, **samples, **notes}

    def _every_ranking(self) -> Owned:
        own: Owned = [(None, ranking) for ranking in self.rankings]
        samples = enumerate(self.random.rankings if self.random else ())
        return [*own, *((sample, ranking) for sample, rankings in samples for ranking in rankings)]

    @classmethod
    def read(cls, path: Path) -> Reference:
        """Read the file of a bundle.

        Raises:
            VerificationError: It is not readable, or has a tolerance that would let anything pass.
        """
        return cls._decoded(tensors.load(path), tensors.notes(path), path.name)

    @classmethod
    def _decoded(cls, contents: Tensors, notes: Mapping[str, str], where: str) -> Reference:
        groups: dict[str, dict[str, NDArray[Any]]] = {kind: {} for kind in _KINDS}
        for key, value in contents.items():
            kind, _, name = key.partition(".")
            if kind not in groups:
                raise VerificationError(f"{where} has a tensor in an unknown form", details=key)
            groups[kind][name] = value
        limit = _read_limits(notes, where)
        runtime = notes.get("runtime", "an unnamed reference")
        samples = read_samples(groups[SAMPLE], notes, where)
        owned = read_rankings(groups[RANKING], notes, where)
        of_inputs = tuple(ranking for sample, ranking in owned if sample is None)
        if samples:
            rankings_of_samples = [
                tuple(ranking for sample, ranking in owned if sample == number)
                for number in range(len(samples.samples))
            ]
            samples = replace(samples, rankings=tuple(rankings_of_samples))
        pictures, sound = groups[_PICTURE], groups[_SOUND].get("wav")
        picture = pictures.get("file", pictures.get("rgb"))
        more = _of_variants(notes)
        variants = {
            name: cls._decoded(own, more.get(name, {}), f"variant {name} of {where}")
            for name, own in _of_variants(groups[_VARIANT], prefix="").items()
        }
        result = cls(
            runtime, groups["input"], groups["output"], limit, samples, of_inputs, picture=picture, sound=sound
        )
        return replace(result, variants=variants)

    def check(self, manifest: Manifest) -> None:
        """Refuse a reference that no device can agree with.

        Raises:
            VerificationError: Names, types or shapes are not the model's.
        """
        if manifest.variants:
            names = set(manifest.variant_names[1:])
            if names != set(self.variants) or any(reference.variants for reference in self.variants.values()):
                raise VerificationError(
                    "the bundle's reference is not of its variants",
                    details=", ".join(sorted(names ^ set(self.variants))),
                    hint="build it again",
                )
            for name in manifest.variant_names:
                self.of_variant(name).check(manifest.of_variant(name))
            return
        steps = manifest.steps(self.inputs)
        if steps > states.LARGEST_STEPS:
            faults = [f"it has {steps} steps, more than {states.LARGEST_STEPS}"]
        else:
            faults = tensors.check_signature(self.inputs, states.stacked(manifest.step_inputs, steps))
            faults += _output_faults(self.outputs, states.stacked(manifest.step_outputs, steps))
        for number, outputs in enumerate(self.random.outputs if self.random else ()):
            faults += [f"sample {number}: {fault}" for fault in _output_faults(outputs, manifest.step_outputs)]
        if manifest.pictures:
            faults += _picture_faults(self.picture)
        if manifest.sounds:
            faults += _sound_faults(self.sound)
        faults += ["it has variants, and the model has none"] if self.variants else []
        for _, ranking in self._every_ranking():
            faults += ranking_faults(ranking, manifest.outputs)
        if faults:
            raise VerificationError(
                "the bundle's reference does not fit its model", details="\n".join(faults), hint="build it again"
            )

    def faults_beside(self, other: Reference) -> list[str]:
        """Return where it is not what another host has for the same model, within their limits, without variants."""
        faults = [] if self.runtime == other.runtime else [f"it is of {self.runtime}, and here is {other.runtime}"]
        faults += [] if self.tolerance == other.tolerance else ["its limits are others"]
        faults += [] if tensors.encode(self.inputs) == tensors.encode(other.inputs) else ["its inputs are others"]
        own, others = self.random or RandomSamples(0, (), ()), other.random or RandomSamples(0, (), ())
        if (own.seed, own.samples) != (others.seed, others.samples):
            return [*faults, "its random inputs or their limits are others"]
        limits = [self.tolerance, *(sample.tolerance for sample in own.samples)]
        pairs = zip((self.outputs, *own.outputs), (other.outputs, *others.outputs), limits, strict=True)
        for outputs, expected, limit in pairs if not faults else ():
            difference = tensors.compare(outputs, expected, limit)
            faults += [] if difference.ok else [f"its outputs differ by {difference.max_rel:.1e} from those here"]
        return faults

    def check_comparable(self) -> None:
        """Refuse a reference with an output that has no finite value: nothing can be compared with that."""
        for reference in self.variants.values():
            reference.check_comparable()
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
    stored, _ = rankings_to_tensors([(None, ranking) for ranking in order])
    for number, ranking in enumerate(order):
        stored[f"{RANKING}.{number}.limit"] = np.array([rankings.score_limit(ranking, outputs, tolerance)])
    tensors.save(path, contents | stored)


def _of_variants(contents: Mapping[str, _Value], prefix: str = f"{_VARIANT}.") -> dict[str, dict[str, _Value]]:
    """Return what belongs to variants, by their names, under its own names."""
    variants: dict[str, dict[str, _Value]] = {}
    for key, value in contents.items():
        if key.startswith(prefix):
            variant, _, name = key.removeprefix(prefix).partition(".")
            variants.setdefault(variant, {})[name] = value
    return variants


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


def _picture_faults(picture: NDArray[Any] | None) -> list[str]:
    if picture is None:
        return ["there is no picture for its steps"]
    is_rgb = picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3 and picture.size > 0  # noqa: PLR2004 - rows, columns and RGB
    is_file = picture.dtype == np.uint8 and picture.ndim == 1 and picture.size > 0
    text = f"the picture is {picture.dtype} of {picture.shape}, neither RGB pixels nor the bytes of a file"
    return [] if is_rgb or is_file else [text]


def _sound_faults(sound: NDArray[Any] | None) -> list[str]:
    if sound is None:
        return ["there is no sound for its steps"]
    is_file = sound.dtype == np.uint8 and sound.ndim == 1 and sound.size > 0
    return [] if is_file else [f"the sound is {sound.dtype} of {sound.shape}, not the bytes of a WAV file"]


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
