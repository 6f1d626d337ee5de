"""Rankings (orders of rows) in the file of a reference: tensors `ranking.<number>.<field>`, their outputs in a note."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from toolchain.documents import FIRST_FAULT, words
from toolchain.errors import VerificationError
from toolchain.rankings import Ranking
from toolchain.tensors import Tensors, TensorSpec

KIND = "ranking"
_NOTE = "rankings"
_SCORES, _NEXT_SCORES, _NEXT_ROWS = "scores", "next_scores", "next_rows"
_KEY = re.compile(r"([0-9]{1,9})\.(scores|next_scores|next_rows)(?:\.(.+))?", re.DOTALL)


@dataclass(frozen=True)
class _Entry:
    """The outputs of one, and the sample that it is of; None for the inputs of the bundle."""

    names: Annotated[tuple[str, ...], FIRST_FAULT]
    sample: Annotated[int, Field(ge=0, lt=10**9)] | None = None


_READER = TypeAdapter(Annotated[tuple[_Entry, ...], FIRST_FAULT])
# rankings, each with the number of its sample; None for the inputs of the bundle
Owned = Sequence[tuple[int | None, Ranking]]


def to_tensors(owned: Owned) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the tensors and notes of a file."""
    tensors: dict[str, NDArray[Any]] = {}
    for number, (_, ranking) in enumerate(owned):
        tensors[f"{KIND}.{number}.{_SCORES}"] = ranking.scores
        tensors[f"{KIND}.{number}.{_NEXT_SCORES}"] = ranking.next_scores
        for name, rows in ranking.next_rows.items():
            tensors[f"{KIND}.{number}.{_NEXT_ROWS}.{name}"] = rows
    entries = tuple(_Entry(ranking.names, sample) for sample, ranking in owned)
    return tensors, {_NOTE: _READER.dump_json(entries).decode()} if entries else {}


def read(contents: Tensors, notes: Mapping[str, str], where: str) -> Owned:
    """Read the rankings of a file.

    Args:
        contents: Its tensors, by what follows `ranking.`.
        notes: Its notes.
        where: Its name.

    Raises:
        VerificationError: It has another form.
    """
    try:
        entries = _READER.validate_json(notes.get(_NOTE, "[]"))
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


def faults(ranking: Ranking, specs: Sequence[TensorSpec]) -> list[str]:
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
