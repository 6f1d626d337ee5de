"""Which release of a device a word means."""

from types import SimpleNamespace

import pytest

from toolchain.device import installed
from toolchain.device.store import Generation
from toolchain.errors import InputError

_A, _B, _C = "a" * 64, "ab" + "c" * 62, "12345678" + "d" * 56


def store(*generations):
    return SimpleNamespace(releases=SimpleNamespace(generations=lambda: generations), name="board")


def generation(number, digest, *, current=False):
    return Generation(number, digest, number, "net", current)


_KEPT = (generation(1, _A), generation(2, _B), generation(3, _C), generation(4, _A, current=True))
_DIGITS = "abcccccc"


@pytest.mark.parametrize(
    ("name", "digest"),
    [("current", _A), ("2", _B), ("1", _A), ("a" * 8, _A), (_DIGITS, _B), (f"sha256:{_B}", _B), (_B, _B),
     ("12345678", _C)],
)  # fmt: skip
def test_a_release_is_named(name, digest):
    assert installed.is_release_name(name)
    assert installed.find_release(store(*_KEPT), name).digest == digest


def test_of_a_release_with_several_activations_the_last_is_meant():
    assert installed.find_release(store(*_KEPT), _A).number == 4


@pytest.mark.parametrize("name", ["5", "1234567", "", "a", "a" * 7, "f" * 64, "net", "sha256:", "current "])
def test_what_names_none_is_refused_and_what_there_is_told(name):
    with pytest.raises(InputError, match="no such release") as caught:
        installed.find_release(store(*_KEPT), name)
    assert _B[:16] in caught.value.details


def test_what_names_several_is_refused():
    two_releases = store(generation(1, "ab" * 32), generation(2, "ab" * 31 + "cd"))
    with pytest.raises(InputError, match="several releases"):
        installed.find_release(two_releases, "abababab")


def test_nothing_was_deployed():
    with pytest.raises(InputError, match="no such release") as caught:
        installed.find_release(store(), "current")
    assert caught.value.details == "the device has no releases"
