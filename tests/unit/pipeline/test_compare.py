import dataclasses

import pytest

from tests.support import bundles, pages
from toolchain import stats
from toolchain.bundle.manifest import Tuned
from toolchain.errors import InputError
from toolchain.pipeline import compare
from toolchain.pipeline.compare import check_differ


def test_a_bundle_that_only_says_more_of_its_records_is_the_same_bundle(tiny, tmp_path):
    other = bundles.variant(tiny, tmp_path / "other", {}, records=Tuned("0" * 64, tasks=1, tuned=1))
    assert other.digest != tiny.digest
    with pytest.raises(InputError, match="nothing to compare") as caught:
        check_differ(tiny, other, "toolchain tune dense")
    assert "for all 1 kernel(s) with records" in caught.value.details
    assert caught.value.hint == "toolchain tune dense, with more --trials"


def test_bundles_of_other_weights_differ(tiny, tmp_path):
    check_differ(tiny, bundles.reweighted(tiny, tmp_path / "other", seed=3), "")


def comparison(factor):
    base = [[1e6 + 1e4 * turn] for turn in range(12)]
    return pages.comparison(
        [1.0] * 24, [1.0] * 24, ratio=stats.ratio(base, [[factor * turn_ns[0]] for turn_ns in base])
    )


@pytest.mark.parametrize(
    ("factor", "phrase"),
    [
        (0.5, "tuned is 2.00 times as fast as untuned, 99 % within 2.00 to 2.00"),
        (2.0, "tuned is SLOWER: 0.50 times as fast as untuned"),
        (1.0, "tuned is NOT measurably faster: 1.00 times as fast as untuned"),
    ],
)
def test_it_is_said_plainly_whether_tuning_was_of_use(factor, phrase):
    compared = comparison(factor)
    assert phrase in compared.outcome
    assert compared.outcome in compare.table(compared)
    assert compared.document()["verdict"] == compared.ratio.verdict


def test_what_disturbed_it_is_told():
    compared = comparison(0.5)
    busy = dataclasses.replace(compared, before=dataclasses.replace(compared.before, busy=0.7))
    assert "warning: busy: other work used 70% of the CPUs just before" in compare.table(busy)
    assert any("70%" in warning for warning in busy.document()["warnings"])
