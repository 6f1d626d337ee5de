"""The outputs of a reference for many random inputs, which are drawn again instead of carried, and told by a digest."""

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
    """One of the inputs, and what its outputs are held against."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # digest of the inputs, as `tensors.encode` writes them
    # limits for the outputs' relative difference; None for the dtype's own
    tolerance: Annotated[float, Field(gt=0, le=LARGEST_TOLERANCE)] | Mapping[str, Limit] | None = None


@dataclass(frozen=True)
class _Note:
    seed: Annotated[int, Field(ge=0, lt=2**64)]
    samples: Annotated[tuple[Sample, ...], FIRST_FAULT]


@dataclass(frozen=True)
class Drawn:
    """Reference outputs for random inputs."""

    seed: int  # seed of the first inputs; each one's is one more than that of the one before
    samples: tuple[Sample, ...]  # what is known of each of the inputs
    outputs: tuple[Tensors, ...]  # for each of them the outputs by name
    rankings: tuple[tuple[Ranking, ...], ...] = ()  # for each of them which outputs have rows in an order of scores

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return the outputs as a file holds them: `sample.<number>.<name>`."""
        named = enumerate(self.outputs)
        return {f"{KIND}.{at}.{name}": value for at, outputs in named for name, value in outputs.items()}

    def notes(self) -> dict[str, str]:
        """Return what the notes of that file say."""
        written = _READER.dump_json(_Note(self.seed, self.samples))
        return {_NOTE: json.dumps(json.loads(written), sort_keys=True)}


_READER: TypeAdapter[_Note] = TypeAdapter(_Note)


def read(found: Tensors, notes: Mapping[str, str], where: str) -> Drawn | None:
    """Return what a file holds; None if nothing of the kind.

    Args:
        found: Its tensors, `<number>.<name>`.
        notes: Its notes.
        where: Its name.

    Raises:
        VerificationError: It holds something else.
    """
    if _NOTE not in notes:
        return None
    try:
        note = _READER.validate_json(notes[_NOTE])
    except ValidationError as fault:
        raise VerificationError(f"{where} has samples in an unknown form", details=words(fault)) from fault
    outputs: list[dict[str, NDArray[Any]]] = [{} for _ in note.samples]
    for key, value in found.items():
        number, _, name = key.partition(".")
        if not (_NUMBER.fullmatch(number) and int(number) < len(outputs)):
            raise VerificationError(f"{where} has samples in an unknown form", details=key)
        outputs[int(number)][name] = value
    return Drawn(note.seed, note.samples, tuple(outputs))
