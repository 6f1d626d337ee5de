"""Truths that all lanes share are -1 where `select` asks for them; what compares vectors stays as it is."""

from __future__ import annotations

from toolchain.backends.mali.bool_vectors import negate_shared_conditions

_SHARED = "(convert_long2(((uint2)((i == 0), (i == 0)))))"
_COMPARED = "(convert_long2((a >= ((long2)((long)0, (long)0)))))"


def test_a_shared_truth_is_negated():
    assert negate_shared_conditions(f"y = select(a, b, {_SHARED});") == f"y = select(a, b, -{_SHARED});"


def test_what_compares_vectors_stays():
    text = f"y = select(a, {_SHARED}, {_COMPARED});"
    assert negate_shared_conditions(text) == text


def test_a_truth_that_is_one_of_several_stays():
    text = "y = select(a, b, (((uint2)(c, c)) && d));"
    assert negate_shared_conditions(text) == text


def test_within_another():
    text = f"y = select(select(a, b, {_SHARED}), b, {_COMPARED}) + 1;"
    assert negate_shared_conditions(text) == f"y = select(select(a, b, -{_SHARED}), b, {_COMPARED}) + 1;"
