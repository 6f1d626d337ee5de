"""Outputs whose rows a model orders by a score: rows of nearly equal scores may change places.

A detector that ends in TopK, or a network that ends in ArgMax, computes the same for both orders as far as its number
format can tell. So a row is compared with every row of the reference whose score is within the limit of its own. Each
row of the reference counts once, and what comes just behind the last row counts, too.
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

    names: tuple[str, ...]  # the outputs that have these rows: each can be reshaped to [batch, rows, numbers of a row]
    scores: Array  # score of each row of the reference, [batch, rows]
    next_scores: Array  # scores of the rows that came next, [batch, more]; NaN where there are fewer of them
    next_rows: Mapping[str, Array]  # these rows by output, [batch, more, numbers of a row]

    def rows(self, value: Array) -> Array:
        """Return an output as [batch, rows, numbers of a row]."""
        batch, count = self.scores.shape
        return value.reshape(batch, count, -1)


def compare(
    outputs: Tensors, reference: Tensors, rankings: Sequence[Ranking], tolerance: Tolerance | None = None
) -> Difference:
    """Compare outputs with their reference, whose rows may be in another order where their scores allow it.

    Args:
        outputs: What a device computed, with the names and shapes of the reference.
        reference: What the reference computed.
        rankings: Which outputs have rows in an order of scores.
        tolerance: As for `tensors.compare`.

    Raises:
        VerificationError: Names or shapes differ.
    """
    found = tensors.compare(outputs, reference, tolerance)
    if found.ok or not rankings:
        return found
    other, moved = arranged(outputs, reference, rankings, tolerance)
    return replace(tensors.compare(outputs, other, tolerance), reordered=moved)


def arranged(
    outputs: Tensors, reference: Tensors, rankings: Sequence[Ranking], tolerance: Tolerance | None
) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Return the reference with its rows in the order in which a device has them, where their scores allow it.

    Args:
        outputs: What a device computed, with the names and shapes of the reference.
        reference: What the reference computed.
        rankings: Which outputs have rows in an order of scores.
        tolerance: Limit for the relative difference; None for that of the dtype.

    Returns:
        The outputs to compare with, and the names of those that are in another order than in the reference. Outputs
        for which no order fits are as they were, so that a comparison finds their difference.
    """
    found, moved = dict(reference), []
    for ranking in rankings:
        order = _order(outputs, reference, ranking, tolerance)
        if order is None:
            continue
        for name in ranking.names:
            rows = ranking.rows(reference[name])
            every = np.concatenate([rows, ranking.next_rows[name]], axis=1)
            chosen = np.take_along_axis(every, order[:, :, None], axis=1)
            found[name] = chosen.reshape(reference[name].shape)
            moved.append(name)
    return found, tuple(moved)


def _order(outputs: Tensors, reference: Tensors, ranking: Ranking, tolerance: Tolerance | None) -> Array | None:
    """Return which of the reference's rows those of a device are, [batch, rows]; None without need or without a fit."""
    batch, count = ranking.scores.shape
    order = np.tile(np.arange(count), (batch, 1))
    off = np.zeros((batch, count), bool)
    for name in ranking.names:
        got, wanted = (ranking.rows(values[name]) for values in (outputs, reference))
        off |= ~_alike(
            got, wanted, _gap(reference[name], limit_of(tolerance, name, str(reference[name].dtype)).value)
        ).all(axis=2)
    if not off.any():
        return None
    for at in np.flatnonzero(off.any(axis=1)):
        places = np.flatnonzero(off[at])
        match = _matched(outputs, reference, ranking, tolerance, int(at), places)
        if match is None:
            return None
        order[at, places] = match
    return order


def _matched(  # noqa: PLR0913, PLR0917 - what is compared, and where
    outputs: Tensors,
    reference: Tensors,
    ranking: Ranking,
    tolerance: Tolerance | None,
    at: int,
    places: Array,
) -> Array | None:
    """Find for each row that is elsewhere in the reference a row of its own; None if one has none."""
    from scipy.sparse import csr_array  # noqa: PLC0415 - a moment that most comparisons can save
    from scipy.sparse.csgraph import maximum_bipartite_matching  # noqa: PLC0415 - as above

    count = ranking.scores.shape[1]
    numbers = np.concatenate([places, count + np.arange(ranking.next_scores.shape[1])])
    scores = np.concatenate([ranking.scores[at], ranking.next_scores[at]])
    fits = _alike(
        ranking.scores[at, places][:, None],
        scores[numbers][None, :],
        _gap(ranking.scores, score_limit(ranking, reference, tolerance)),
    )
    for name in ranking.names:
        every = np.concatenate([ranking.rows(reference[name])[at], ranking.next_rows[name][at]])[numbers]
        got = ranking.rows(outputs[name])[at, places]
        gap = _gap(reference[name], limit_of(tolerance, name, str(reference[name].dtype)).value)
        for row in range(len(places)):  # one by one: all pairs at a time may be gigabytes
            fits[row] &= _alike(got[row][None, :], every, gap).all(axis=1)
    match = maximum_bipartite_matching(csr_array(fits), perm_type="column")
    return None if (match < 0).any() else numbers[match]


def score_limit(ranking: Ranking, reference: Tensors, tolerance: Tolerance | None) -> float:
    """Return how far scores may lie apart: as far as the widest limit of the outputs that they order."""
    real = [name for name in ranking.names if reference[name].dtype.kind == "f"]
    if tolerance is not None and not isinstance(tolerance, Mapping):
        return tolerance
    return max([TOLERANCE["float32"], *(limit_of(tolerance, name, str(reference[name].dtype)).value for name in real)])


def _gap(reference: Array, limit: float) -> float:
    """Return how far numbers of a tensor may lie apart; whole numbers are equal."""
    if reference.dtype.kind != "f":
        return 0.0
    finite = reference[np.isfinite(reference)]
    return float(limit * np.abs(finite.astype(np.float64)).max(initial=0))


def _alike(first: Array, second: Array, gap: float) -> Array:
    """Tell which numbers are as near as that, or the same that is not finite."""
    with np.errstate(invalid="ignore"):
        near = np.abs(np.subtract(first, second, dtype=np.longdouble)) <= gap
    if first.dtype.kind != "f":
        return np.asarray(near)
    return np.asarray(near | (first == second) | (np.isnan(first) & np.isnan(second)))
