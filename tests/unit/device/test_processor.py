"""The processor that ran a device's kernels: read, refused, and printed."""

from __future__ import annotations

import pytest

from toolchain.device import runner
from toolchain.device.runner import Processor

SAID = {"name": "Mali-G610 r0p0", "driver": "3.0", "version": "OpenCL 3.0 v1.g13p0", "units": 4}


def test_it_is_read_and_told():
    processor = runner.read_processor(SAID)
    assert processor == Processor("Mali-G610 r0p0", "3.0", "OpenCL 3.0 v1.g13p0", 4)
    assert processor.text == "Mali-G610 r0p0, 4 compute unit(s), OpenCL 3.0 v1.g13p0, driver 3.0"


def test_a_cpu_is_none():
    assert runner.read_processor(None) is None


def test_what_it_does_not_tell_is_left_out():
    assert runner.read_processor({**SAID, "driver": "", "units": 0}).text == "Mali-G610 r0p0, OpenCL 3.0 v1.g13p0"


@pytest.mark.parametrize(
    "report",
    [
        "Mali",
        [],
        {},
        {**SAID, "name": None},
        {**SAID, "name": "x" * 201},
        {**SAID, "name": "\x1b[2J"},
        {**SAID, "version": "OpenCL\n3.0"},
        {**SAID, "driver": "\u202e0.3"},
        {**SAID, "units": "4"},
        {**SAID, "units": True},
        {**SAID, "units": -1},
        {**SAID, "units": 1 << 40},
    ],
)
def test_what_is_none_is_refused(report):
    with pytest.raises((LookupError, TypeError, ValueError)):
        runner.read_processor(report)
