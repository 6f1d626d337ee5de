"""The peak of a run's boards: the highest of those that measure it, or the reason why it is unknown."""

from __future__ import annotations

import contextlib
import dataclasses
import json

import pytest

from toolchain.device.roofline import Peak
from toolchain.errors import DeviceError
from toolchain.rpc import CallError
from toolchain.tuning.measure import peak as board_peak

PEAK = Peak("NEON", 2, gflops=20.0, gbytes_s=5.0, array_kib=1024)


@pytest.fixture(autouse=True)
def _no_deadline(monkeypatch):
    monkeypatch.setattr(board_peak.rpc, "deadline", lambda *_: contextlib.nullcontext())


@dataclasses.dataclass
class Place:
    """A board whose server answers so."""

    answer: object = None
    name: str = "rpi4-1"
    emulated: bool = False
    threads: list[int] = dataclasses.field(default_factory=list)

    def open(self, *_: object):
        if isinstance(self.answer, DeviceError):
            raise self.answer
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_: object):
        return None

    def run(self, _function, _name, threads):
        self.threads.append(threads)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def place(peak: Peak = PEAK, **options) -> Place:
    return Place(json.dumps(dataclasses.asdict(peak)), **options)


def test_the_peak_is_that_of_the_kernels_threads():
    board = place()
    assert board_peak.measure([board], "llvm", 2) == board_peak.BoardPeak(PEAK)
    assert board.threads == [2]


def test_of_several_boards_the_highest_counts():
    boards = [place(dataclasses.replace(PEAK, gflops=30.0, gbytes_s=4.0)), place(), Place(None)]
    assert board_peak.measure(boards, "llvm", 0).peak == dataclasses.replace(PEAK, gflops=30.0)


@pytest.mark.parametrize(
    ("places", "kind", "reason"),
    [
        ([place()], "opencl", "measured on CPUs only, and these kernels run on opencl"),
        ([place(emulated=True)], "llvm", "an emulator has no peak"),
        ([], "llvm", "no board was there when the run began"),
        ([Place(None)], "llvm", "the server of rpi4-1 does not measure it"),
        ([Place(DeviceError("it is gone"))], "llvm", "rpi4-1 did not measure it: it is gone"),
        ([Place(CallError("RPCError", "no memory"))], "llvm", "rpi4-1 did not measure it: no memory"),
        ([Place("[1")], "llvm", "rpi4-1 sent an invalid peak"),
        ([Place("[1]")], "llvm", "rpi4-1 sent an invalid peak"),
    ],
)
def test_why_it_is_unknown(places, kind, reason):
    result = board_peak.measure(places, kind, 0)
    assert result.peak is None
    assert reason in result.reason
