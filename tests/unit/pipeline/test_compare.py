import pytest

from tests.support import bundles
from toolchain.bundle.manifest import Tuned
from toolchain.errors import InputError
from toolchain.pipeline.compare import check_differ, ratio


def test_the_ratio_is_that_of_the_medians():
    found = ratio([[2.0, 2.1, 9.0]] * 8, [[1.0, 1.0, 5.0]] * 8)
    assert found.value == pytest.approx(2.1)
    assert found.ci95 == pytest.approx((2.1, 2.1))


def test_the_interval_covers_what_turns_differ_by():
    first = [[value] for value in (2.0, 2.2, 1.9, 2.1, 2.0, 2.3, 1.8, 2.0)]
    found = ratio(first, [[1.0]] * 8)
    low, high = found.ci95
    assert 1.8 <= low < found.value < high <= 2.3


def test_equal_builds_are_not_told_apart():
    turns = [[1.0, 1.1], [1.2, 1.0], [0.9, 1.0], [1.1, 1.05]]
    low, high = ratio(turns, turns[::-1]).ci95
    assert low <= 1.0 <= high


def test_a_clock_that_is_too_coarse_is_no_division_by_zero():
    assert ratio([[0.0]] * 4, [[0.0]] * 4).value == 1.0


def test_a_bundle_that_only_says_more_of_its_records_is_the_same_bundle(tiny, tmp_path):
    other = bundles.variant(tiny, tmp_path / "other", {}, records=Tuned("0" * 64, tasks=1, tuned=1))
    assert other.digest != tiny.digest
    with pytest.raises(InputError, match="there is nothing to compare") as caught:
        check_differ(tiny, other, "toolchain tune dense")
    assert "the best of 1 kernel(s)" in caught.value.details
    assert caught.value.hint == "toolchain tune dense, with more --trials"


def test_bundles_of_other_weights_differ(tiny, tmp_path):
    check_differ(tiny, bundles.reweighted(tiny, tmp_path / "other", seed=3), "")
