"""How much, and for how long, a device is listened to."""

from __future__ import annotations

import io
import time

import pytest

from toolchain.errors import DeviceError
from toolchain.shell.bounds import STDERR_KEPT, Bounded, Limit, LineBuffer, collect


def test_lines_are_cut_wherever_the_data_was():
    lines = LineBuffer()
    assert lines.take() is None
    for data in (b"o", b"ne\ntw", b"o\n", b"caf\xc3", b"\xa9 \xff"):
        lines.feed(data)
    assert (lines.take(), lines.take(), lines.take()) == ("one\n", "two\n", None)
    lines.feed(b"")
    assert (lines.take(), lines.take(), lines.take()) == ("caf\u00e9 \ufffd", "", "")


def test_a_buffer_tells_when_it_is_full():
    lines = LineBuffer(limit=4)
    lines.feed(b"abc")
    assert not lines.is_full
    lines.feed(b"d")
    assert (lines.is_full, lines.is_ready, lines.take()) == (True, False, None)
    lines.feed(b"\n")
    assert (lines.take(), lines.is_full) == ("abcd\n", False)


def test_many_short_lines_take_little_time():
    lines = LineBuffer(limit=1 << 30)
    lines.feed(b"\n" * 500_000)
    started = time.monotonic()
    assert all(lines.take() == "\n" for _ in range(500_000))
    assert time.monotonic() - started < 30


def test_a_limit_that_is_over_is_no_time_to_wait():
    assert 0 < Limit(60).check() <= 60
    with pytest.raises(TimeoutError):
        Limit(0).check()
    with pytest.raises(TimeoutError):
        Limit(60, in_all=0).check()


def test_no_more_is_passed_on_than_was_wanted():
    sink = io.BytesIO()
    bounded = Bounded(sink, 4, "a command on board")
    bounded.write(b"abcd")
    with pytest.raises(DeviceError, match="a command on board wrote more than 4 bytes"):
        bounded.write(b"e")
    assert sink.getvalue() == b"abcd"


def test_a_limit_counts_from_the_last_progress():
    progress = [0]
    limit = Limit(0.2, lambda: progress[0])
    time.sleep(0.25)
    progress[0] = 1
    assert limit.left() > 0
    time.sleep(0.25)
    assert limit.left() <= 0
    assert str(limit) == "moved no data for 0.2 s"
    assert str(Limit(0.2)) == "did not finish within 0.2 s"
    dripping = Limit(100.0, time.monotonic, in_all=0.0)
    assert dripping.left() <= 0
    assert str(dripping) == "is too slow"


class Talker:
    """Stands in for a command that writes without an end, as fast as it is read."""

    code = 0

    def __init__(self, *chunks: tuple[bytes, bytes], endless: tuple[bytes, bytes] = (b"", b"")) -> None:
        self.chunks, self.endless = list(chunks), endless

    def receive(self, _timeout: float) -> tuple[bytes, bytes]:
        return self.chunks.pop(0) if self.chunks else self.endless

    def wait(self, _timeout: float) -> bool:
        return True


def test_outputs_are_collected():
    sink = io.BytesIO()
    talker = Talker((b"a", b"x"), (b"b", b""), (b"", b"y"))
    assert collect(talker, Bounded(sink, 10, "it"), Limit(60.0)) == (True, "xy")
    assert sink.getvalue() == b"ab"


def test_no_stream_outruns_its_limit():
    for endless in ((b"x", b""), (b"", b"x" * 9999)):
        started = time.monotonic()
        in_time, stderr = collect(Talker(endless=endless), Bounded(io.BytesIO(), 1 << 40, "it"), Limit(0.1))
        assert not in_time
        assert len(stderr) <= STDERR_KEPT
        assert time.monotonic() - started < 30
