"""A profile as a device with a CPU and an accelerator that is only modelled would have it."""

from dataclasses import replace

import pytest

from toolchain.device.bench import Conditions
from toolchain.device.roofline import Peak
from toolchain.pipeline.profile import MACHINE, Profile, Row

_CALM = Conditions(load=0.1, busy=0.0, governors=(), mhz=None, celsius=None)
_ROWS = (
    Row(
        1,
        "conv",
        "conv2d",
        "1x3x8x8, 4x3x3x3 -> 1x4x8x8",
        2,
        0.6,
        0.6,
        0.5,
        0.7,
        0.01,
        16.7,
        0.33,
        0.001,
        1.6,
        "compute",
    ),
    Row(2, "odd<b>", "odd<b>", "", 1, 0.3, 0.3, 0.2, 0.4),
    Row(0, "", MACHINE, "", 9, 0.05, 0.05, 0.04, 0.06),
)


@pytest.fixture
def profile():
    return Profile(
        model="net",
        board="rpi4",
        host="pi@board",
        bundle_digest="ab" * 32,
        emulated=False,
        threads=1,
        runs=50,
        other_runs=0,
        plain_ms=1.0,
        watched_ms=1.005,
        sum_ms=0.95,
        waits=False,
        rows=_ROWS,
        peak=Peak("NEON", 1, 50.0, 5.0, 65536, 0),
        no_peak="",
        before=_CALM,
        after=_CALM,
        waited=(),
        warnings=(),
        typical=(("vm.builtin.x", 1000), ("conv", 600_000), ("odd<b>", 300_000)),
    )


@pytest.fixture
def doubtful(profile):
    """The same on an emulated board, without a peak, and with a model of its accelerator."""
    rows = (replace(profile.rows[0], modelled_ms=2.125, of_peak=None, bound=""), *profile.rows[1:])
    return replace(
        profile, emulated=True, rows=rows, peak=None, no_peak="it is an emulator", warnings=("emulated: no",)
    )
