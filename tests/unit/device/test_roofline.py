"""The roofline: what limits a kernel, and how near it comes to that."""

import pytest

from toolchain.device.roofline import Peak, attained, read_peak

_PEAK = Peak("NEON", 1, gflops=100.0, gbytes_s=10.0, array_kib=1024)
_DOCUMENT = {"instructions": "NEON", "threads": 1, "gflops": 100.0, "gbytes_s": 10, "array_kib": 1024}


# A tenth of a GFLOP, or a hundredth of a GB, is what a millisecond has room for; more bytes came from a cache.
@pytest.mark.parametrize(
    ("gflop", "gbytes", "limit", "share"),
    [
        (0.06, 0.001, "compute", 0.6),
        (0.001, 0.009, "memory", 0.9),
        (0.001, 0.0115, "memory", 1.15),
        (0.01, 0.001, "neither", 0.1),
        (0.001, 0.02, "neither", 0.01),
        (0.2, 0.001, "compute", 2.0),  # Winograd
        (0.0, 0.0, "neither", 0.0),
    ],
)
def test_what_limits_a_kernel(gflop, gbytes, limit, share):
    result = attained(gflop, gbytes, 1e-3, _PEAK)
    assert (result.bound, result.share) == (limit, pytest.approx(share))
    assert result.limit_s == pytest.approx(share * 1e-3)


def test_a_peak_is_read():
    assert read_peak(_DOCUMENT) == _PEAK
    assert read_peak(_DOCUMENT | {"max_khz": 1_800_000}).max_khz == 1_800_000
    assert "NEON" in _PEAK.method


@pytest.mark.parametrize("key", _DOCUMENT)
def test_a_peak_lacks_nothing(key):
    with pytest.raises(LookupError):
        read_peak({name: value for name, value in _DOCUMENT.items() if name != key})


@pytest.mark.parametrize("change", [{"gflops": 0}, {"gflops": float("nan")}, {"gbytes_s": 1e300}, {"threads": True}])
def test_wrong_numbers_are_no_peak(change):
    with pytest.raises(ValueError, match="not"):
        read_peak(_DOCUMENT | change)
