"""How times are written for people."""

import pytest

from toolchain import units


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0.0, "0 ms"),
        (0.0000021, "0.002100 µs"),
        (0.004564, "4.564 µs"),
        (0.0099999, "10.00 µs"),
        (0.01, "0.01000 ms"),
        (0.6, "0.6000 ms"),
        (162.308, "162.3 ms"),
        (1500.0, "1500 ms"),
        (12345.6, "12346 ms"),
    ],
)
def test_times_below_a_hundredth_of_a_millisecond_are_in_microseconds(milliseconds, text):
    assert units.duration(milliseconds) == text


def test_differences_have_a_sign():
    assert [units.duration(value, signed=True) for value in (0.6, -0.6, 0.002, -0.002)] == [
        "+0.6000 ms",
        "-0.6000 ms",
        "+2.000 µs",
        "-2.000 µs",
    ]


@pytest.mark.parametrize(
    ("text", "seconds"), [("33ms", 0.033), ("100us", 100e-6), ("1.5s", 1.5), ("10m", 600.0), ("24h", 86400.0)]
)
def test_times_with_a_unit_are_read(text, seconds):
    assert units.parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "33", "ms", "-1ms", "1e3s", "nan", "1 ms", "1ms ", "1.s", "1d", "9" * 40 + "s"])
def test_other_times_are_refused(text):
    with pytest.raises(ValueError, match="is not a time with a unit"):
        units.parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"), [("64M", 64 << 20), ("1.5G", 3 << 29), ("500KiB", 500 << 10), ("2mb", 2 << 20), ("65536", 65536)]
)
def test_a_size(text, size):
    assert units.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "M", "-1M", "1T", "64 M", "1e3", "0", "0.1", "1" * 13, "1MM"])
def test_no_size(text):
    with pytest.raises(ValueError, match="is not a size, such as 64M"):
        units.parse_size(text)
