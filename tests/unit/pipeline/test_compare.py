import pytest

from tests.support import bundles
from toolchain.bundle.manifest import Tuned
from toolchain.errors import InputError
from toolchain.pipeline.compare import check_differ


def test_a_bundle_that_only_says_more_of_its_records_is_the_same_bundle(tiny, tmp_path):
    other = bundles.variant(tiny, tmp_path / "other", {}, records=Tuned("0" * 64, tasks=1, tuned=1))
    assert other.digest != tiny.digest
    with pytest.raises(InputError, match="there is nothing to compare") as caught:
        check_differ(tiny, other, "toolchain tune dense")
    assert "the best of 1 kernel(s)" in caught.value.details
    assert caught.value.hint == "toolchain tune dense, with more --trials"


def test_bundles_of_other_weights_differ(tiny, tmp_path):
    check_differ(tiny, bundles.reweighted(tiny, tmp_path / "other", seed=3), "")
