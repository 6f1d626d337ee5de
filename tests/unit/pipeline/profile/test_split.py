"""What an accelerator and the CPU take of a run."""

from dataclasses import replace

import pytest

from toolchain.pipeline.profile import MACHINE, Row, pages
from toolchain.pipeline.profile.split import split
from toolchain.report import plain


def row(kernel, ms, modelled_ms=None, calls=1):
    return Row(1, kernel, kernel or MACHINE, "", calls, ms, 0.0, ms, ms, modelled_ms=modelled_ms)


ROWS = (
    row("quantize", 2.0),
    row("vta_conv", 40.0, 30.0, 2),
    row("pool", 5.0, calls=2),
    row("vta_conv", 50.0, 40.0, 2),
    row("pool", 2.5, calls=2),
    row("", 0.5),
)


def test_the_calls_of_the_cpu_are_named_by_what_they_cost():
    times = split(ROWS, emulated=False)
    assert (times.accelerator_ms, times.accelerator_calls, times.modelled_ms) == (90.0, 2, 70.0)
    assert times.cpu_ms == 10.0
    assert times.cpu_share == pytest.approx(0.1)
    assert [(function.kernel, function.calls, function.ms) for function in times.cpu] == [
        ("pool", 2, 7.5),
        ("quantize", 1, 2.0),
        ("", 1, 0.5),
    ]


def test_a_board_without_an_accelerator_has_none(profile):
    assert split([row("conv", 1.0)], emulated=False) is None
    assert profile.document()["split"] is None
    assert "left to the CPU" not in plain(pages.profile_page(profile).printed())


def test_a_device_tells_shares(profile):
    text = plain(pages.profile_page(replace(profile, rows=ROWS)).printed())
    assert "90.00 ms, 90.0%, 2 calls; modelled: 70.00 ms" in text
    assert "10.00 ms, 10.0%: pool 7.500 ms, quantize 2.000 ms, virtual machine 0.5000 ms" in text


def test_a_simulated_accelerator_makes_no_share(profile):
    text = plain(pages.profile_page(replace(profile, rows=ROWS, emulated=True)).printed())
    assert split(ROWS, emulated=True).cpu_share is None
    assert "modelled: 70.00 ms, 2 calls; the simulator itself took 90.00 ms" in text
    assert "10.00 ms (emulated, so no share of a run): pool 7.500 ms" in text


def test_only_the_longest_are_named():
    rows = [row("vta_conv", 1.0, 1.0), *(row(f"k{number}", float(number)) for number in range(1, 9))]
    (_, (_, text)) = split(rows, emulated=False).facts()
    assert text.endswith(": k8 8.000 ms, k7 7.000 ms, k6 6.000 ms, k5 5.000 ms, k4 4.000 ms, 3 more")
