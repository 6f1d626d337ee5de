"""Queries on records: the answers are those of a search through all lines, in the same order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.reference_records import FILTERS, LINES, ReferenceRecords, answers
from toolchain.records import Records


@settings(deadline=None)
@given(LINES, FILTERS, st.booleans())
def test_answers_are_those_of_all_lines(lines, condition, fits):
    expected = answers(ReferenceRecords.collect(lines), condition, fits=fits)
    assert answers(Records.collect(lines), condition, fits=fits) == expected


@settings(deadline=None)
@given(LINES, FILTERS, FILTERS)
def test_a_part_of_a_part_fits_both_filters(lines, first, second):
    expected = answers(ReferenceRecords.collect(lines).only(first), second)
    assert answers(Records.collect(lines).only(first), second) == expected
