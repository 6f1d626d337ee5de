"""Rows that may stand in another order."""

from __future__ import annotations

import numpy as np
import pytest

from toolchain import rankings
from toolchain.rankings import Ranking

ROWS = np.array([[[1.0, 0.0], [2.0, 0.0], [3.0, 1.0]]], np.float32)
REFERENCE = {"rows": ROWS, "labels": np.array([[7, 8, 9]])}


def _ranking(scores, names=("rows", "labels"), next_scores=(), next_rows=()):
    more = np.array([next_scores], np.float32).reshape(1, -1)
    rows = np.array([next_rows], np.float32).reshape(1, -1, 2)
    every = {"rows": rows, "labels": np.arange(len(next_scores)).reshape(1, -1, 1) + 20}
    return Ranking(names, np.array([scores], np.float32), more, {name: every[name] for name in names})


def _outputs(order):
    return {name: value[:, list(order)] for name, value in REFERENCE.items()}


@pytest.mark.parametrize(
    ("order", "ok"),
    [
        pytest.param((0, 1, 2), True, id="as the reference"),
        pytest.param((1, 0, 2), True, id="near-equal scores"),
        pytest.param((0, 2, 1), False, id="scores apart"),
        pytest.param((2, 1, 0), False, id="first and last"),
        pytest.param((0, 0, 2), False, id="one row twice"),
    ],
)
def test_orders(order, ok):
    comparison = rankings.compare(_outputs(order), REFERENCE, [_ranking([0.9, 0.89999, 0.5])])
    assert comparison.ok is ok
    assert comparison.reordered == (("rows", "labels") if order == (1, 0, 2) else ())


def test_all_outputs_of_a_row_go_together():
    got = _outputs((1, 0, 2)) | {"labels": REFERENCE["labels"]}
    assert not rankings.compare(got, REFERENCE, [_ranking([0.9, 0.9, 0.9])]).ok


@pytest.mark.parametrize(("score", "ok"), [(0.49999, True), (0.4, False), (np.nan, False)])
def test_a_row_that_came_next(score, ok):
    ranking = _ranking([0.9, 0.8, 0.5], next_scores=[score], next_rows=[[4.0, 4.0]])
    got = {"rows": ROWS.copy(), "labels": np.array([[7, 8, 20]])}
    got["rows"][0, 2] = 4.0
    assert rankings.compare(got, REFERENCE, [ranking]).ok is ok


def test_a_wider_limit_makes_more_scores_equal():
    arguments = _outputs((1, 0, 2)), REFERENCE, [_ranking([0.9, 0.8, 0.5])]
    assert not rankings.compare(*arguments).ok
    assert rankings.compare(*arguments, 0.12).ok


def test_each_part_of_a_batch_has_an_order_of_its_own():
    rows = np.arange(12, dtype=np.float32).reshape(3, 4, 1)
    scores = np.ones((3, 4), np.float32)
    ranking = Ranking(("y",), scores, np.empty((3, 0), np.float32), {"y": np.empty((3, 0, 1), np.float32)})
    got = rows.copy()
    got[1] = rows[1, ::-1]
    assert rankings.compare({"y": got}, {"y": rows}, [ranking]).ok
    got[1, 0], got[2, 0] = rows[2, 0], rows[1, 3]
    assert not rankings.compare({"y": got}, {"y": rows}, [ranking]).ok


def test_values_that_are_no_numbers_have_to_be_the_same():
    rows = np.array([[[np.nan], [np.inf]]], np.float32)
    ranking = Ranking(("y",), np.ones((1, 2)), np.empty((1, 0)), {"y": np.empty((1, 0, 1), np.float32)})
    assert rankings.compare({"y": rows[:, ::-1]}, {"y": rows}, [ranking]).ok is False  # nothing finite to compare
    with_one = np.concatenate([rows, np.ones((1, 1, 1), np.float32)], axis=1)
    more = Ranking(("y",), np.ones((1, 3)), np.empty((1, 0)), {"y": np.empty((1, 0, 1), np.float32)})
    assert rankings.compare({"y": with_one[:, ::-1]}, {"y": with_one}, [more]).ok
