"""Which release a word means."""

import pytest

from toolchain.device.store import Generation
from toolchain.errors import DeviceError, InputError
from toolchain.pipeline.profile.sides import named

_A, _B = "a" * 64, "ab" + "c" * 62


def generation(number, digest, *, current=False):
    return Generation(number, digest, number, "net", current)


_KEPT = (generation(1, _A), generation(2, _B), generation(3, _A, current=True))


@pytest.mark.parametrize(
    ("word", "digest"), [("current", _A), ("2", _B), ("1", _A), ("a" * 6, _A), (f"sha256:{_B}", _B), (_B, _B)]
)
def test_a_release_is_named(word, digest):
    assert named(_KEPT, word, "board").digest == digest


@pytest.mark.parametrize("word", ["4", "", "a", "f" * 64, "net", "sha256:", "current "])
def test_what_names_none_is_refused(word):
    with pytest.raises(InputError, match="is called"):
        named(_KEPT, word, "board")


def test_nothing_was_deployed():
    with pytest.raises(DeviceError, match="nothing is deployed"):
        named((), "current", "board")
