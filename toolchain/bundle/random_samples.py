"""Reference outputs for many random inputs. The inputs are not stored: a seed and digests stand for them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from toolchain.documents import FIRST_FAULT, words
from toolchain.errors import VerificationError
from toolchain.rankings import Ranking
from toolchain.tensors import LARGEST_TOLERANCE, Limit, Tensors

KIND = "sample"
_NOTE = "samples"
_NUMBER = re.compile(r"[0-9]{1,9}")


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
        return {f"{KIND}.{number}.{name}": value for number, outputs in samples for name, value in outputs.items()}

    def notes(self) -> dict[str, str]:
        """Return the notes of the file that has these tensors."""
        note = _READER.dump_json(_Note(self.seed, self.samples))
        return {_NOTE: json.dumps(json.loads(note), sort_keys=True)}


_READER: TypeAdapter[_Note] = TypeAdapter(_Note)


def read(stored: Tensors, notes: Mapping[str, str], where: str) -> RandomSamples | None:
    """Read the samples of a file; None if it has none.

    Args:
        stored: Its tensors, `<number>.<name>`.
        notes: Its notes.
        where: Its name.

    Raises:
        VerificationError: It has another form.
    """
    if _NOTE not in notes:
        return None
    try:
        note = _READER.validate_json(notes[_NOTE])
    except ValidationError as fault:
        raise VerificationError(f"{where} has samples in an unknown form", details=words(fault)) from fault
    outputs: list[dict[str, NDArray[Any]]] = [{} for _ in note.samples]
    for key, value in stored.items():
        number, _, name = key.partition(".")
        if not (_NUMBER.fullmatch(number) and int(number) < len(outputs)):
            raise VerificationError(f"{where} has samples in an unknown form", details=key)
        outputs[int(number)][name] = value
    return RandomSamples(note.seed, note.samples, tuple(outputs))
