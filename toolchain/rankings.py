"""Outputs whose rows a model orders by a score: rows with nearly equal scores may change places.

A detector that ends in TopK, or a network that ends in ArgMax, computes the same for both orders within its number
format's precision. So a row is compared with every row of the reference whose score is within the limit of its own.
Each row of the reference is used once, and the rows just behind the last one are candidates, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain import tensors
from toolchain.tensors import TOLERANCE, Difference, Tensors, Tolerance, limit_of

Array = NDArray[Any]


@dataclass(frozen=True)
class Ranking:
    """Rows of some outputs in the order of their scores."""

    names: tuple[str, ...]  # the outputs with these rows: each can be reshaped to [batch, rows, numbers of a row]
    scores: Array  # of the reference's rows, [batch, rows]
    next_scores: Array  # of the rows behind the last one, [batch, more]; NaN where there are fewer of them
    next_rows: Mapping[str, Array]  # those rows by output, [batch, more, numbers of a row]

    def rows(self, value: Array) -> Array:
        """Return an output as [batch, rows, numbers of a row]."""
        batch, count = self.scores.shape
        return value.reshape(batch, count, -1)


def compare(
    outputs: Tensors, reference: Tensors, rankings: Sequence[Ranking], tolerance: Tolerance | None = None
) -> Difference:
    """Compare outputs with their reference, whose rows may be in another order where their scores allow it.

    Raises:
        VerificationError: Names or shapes differ.
    """
    difference = tensors.compare(outputs, reference, tolerance)
    if difference.ok or not rankings:
        return difference
    reordered, names = reorder(outputs, reference, rankings, tolerance)
    return replace(tensors.compare(outputs, reordered, tolerance), reordered=names)


def reorder(
    outputs: Tensors, reference: Tensors, rankings: Sequence[Ranking], tolerance: Tolerance | None
) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Return the reference with its rows in the device's order, where their scores allow it.

    Returns:
        The outputs to compare with, and the names of those in another order than in the reference. Outputs for which no
        order fits are unchanged, so that a comparison finds their difference.
    """
    result, reordered = dict(reference), []
    for ranking in rankings:
        order = _Matching(outputs, reference, ranking, tolerance).order()
        if order is None:
            continue
        for name in ranking.names:
            rows = ranking.rows(reference[name])
            candidates = np.concatenate([rows, ranking.next_rows[name]], axis=1)
            chosen = np.take_along_axis(candidates, order[:, :, None], axis=1)
            result[name] = chosen.reshape(reference[name].shape)
            reordered.append(name)
    return result, tuple(reordered)


@dataclass(frozen=True)
class _Matching:
    """The search for the reference's rows among those of a device, for one ranking."""

    outputs: Tensors
    reference: Tensors
    ranking: Ranking
    tolerance: Tolerance | None

    def order(self) -> Array | None:
        """Return which of the reference's rows the device's rows are, [batch, rows].

        None if all are in the reference's order, or no order fits.
        """
        batch, count = self.ranking.scores.shape
        order = np.tile(np.arange(count), (batch, 1))
        off = np.zeros((batch, count), bool)
        for name in self.ranking.names:
            actual, expected = (self.ranking.rows(values[name]) for values in (self.outputs, self.reference))
            off |= ~_equals(actual, expected, self._gap(name)).all(axis=2)
        if not off.any():
            return None
        for batch_index in np.flatnonzero(off.any(axis=1)):
            rows = np.flatnonzero(off[batch_index])
            match = self._match(int(batch_index), rows)
            if match is None:
                return None
            order[batch_index, rows] = match
        return order

    def _match(self, batch_index: int, rows: Array) -> Array | None:
        """Find a row of the reference for each of some rows, no two the same; None if that is impossible."""
        from scipy.sparse import csr_array  # noqa: PLC0415 - slow to import, and rarely needed
        from scipy.sparse.csgraph import maximum_bipartite_matching  # noqa: PLC0415 - as above

        ranking, reference = self.ranking, self.reference
        numbers = np.concatenate([rows, ranking.scores.shape[1] + np.arange(ranking.next_scores.shape[1])])
        scores = np.concatenate([ranking.scores[batch_index], ranking.next_scores[batch_index]])
        fits = _equals(
            ranking.scores[batch_index, rows][:, None],
            scores[numbers][None, :],
            _gap(ranking.scores, score_limit(ranking, reference, self.tolerance)),
        )
        for name in ranking.names:
            ours, following = ranking.rows(reference[name])[batch_index], ranking.next_rows[name][batch_index]
            candidates = np.concatenate([ours, following])[numbers]
            actual, gap = ranking.rows(self.outputs[name])[batch_index, rows], self._gap(name)
            for row in range(len(rows)):  # one by one: all pairs at once may take gigabytes
                fits[row] &= _equals(actual[row][None, :], candidates, gap).all(axis=1)
        match = maximum_bipartite_matching(csr_array(fits), perm_type="column")
        return None if (match < 0).any() else numbers[match]

    def _gap(self, name: str) -> float:
        value = self.reference[name]
        return _gap(value, limit_of(self.tolerance, name, str(value.dtype)).value)


def score_limit(ranking: Ranking, reference: Tensors, tolerance: Tolerance | None) -> float:
    """Return the limit for differences of scores: the widest limit of the outputs that they order."""
    real = [name for name in ranking.names if reference[name].dtype.kind == "f"]
    if tolerance is not None and not isinstance(tolerance, Mapping):
        return tolerance
    return max([TOLERANCE["float32"], *(limit_of(tolerance, name, str(reference[name].dtype)).value for name in real)])


def _gap(reference: Array, limit: float) -> float:
    """Return the largest allowed absolute difference in a tensor; whole numbers must be equal."""
    if reference.dtype.kind != "f":
        return 0.0
    finite = reference[np.isfinite(reference)]
    return float(limit * np.abs(finite.astype(np.float64)).max(initial=0))


def _equals(first: Array, second: Array, gap: float) -> Array:
    """Return which numbers differ by at most `gap`, or are the same non-finite value."""
    with np.errstate(invalid="ignore"):
        near = np.abs(np.subtract(first, second, dtype=np.longdouble)) <= gap
    if first.dtype.kind != "f":
        return np.asarray(near)
    return np.asarray(near | (first == second) | (np.isnan(first) & np.isnan(second)))
