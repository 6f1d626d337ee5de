"""Statistics of a benchmark, what a device tells about its CPU, and what makes numbers doubtful.

Benchmarks of a real release are in test_deploy.py.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.support import bundles, deploys
from toolchain.device import bench, runner, verification
from toolchain.device.bench import Conditions
from toolchain.device.lock import Owner
from toolchain.device.store import Store
from toolchain.errors import DeviceError
from toolchain.process import Result
from toolchain.shell import LocalShell

CALM = Conditions(load=0.0, busy=0.0, governors=("performance",), mhz=2000.0, celsius=50.0)
STEADY = tuple(1.0 + 0.001 * (index % 7) for index in range(40))


class Device:
    """A shell whose only script prints a text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def run(self, script, *, timeout=60.0, check=True):  # noqa: ARG002
        return Result(0, self.text, "")


# --- statistics ---


@pytest.mark.parametrize("size", [1, 2, 9, 10, 99, 100, 5000])
def test_statistics_are_those_of_numpy(size):
    values = np.random.default_rng(size).lognormal(size=size)
    statistics = bench.statistics(list(values))
    assert statistics.samples == tuple(values)
    assert (statistics.min, statistics.max) == (values.min(), values.max())
    assert statistics.mean == pytest.approx(values.mean())
    assert statistics.median == pytest.approx(np.median(values))
    assert statistics.std == pytest.approx(values.std(ddof=1) if size > 1 else 0.0)
    assert statistics.p90 == (pytest.approx(np.percentile(values, 90)) if size >= 10 else None)
    assert statistics.p99 == (pytest.approx(np.percentile(values, 99)) if size >= 100 else None)
    low, high = statistics.median_ci95
    assert values.min() <= low <= statistics.median <= high <= values.max()


def test_statistics_are_reproducible_and_plain():
    statistics = bench.statistics(STEADY)
    assert statistics == bench.statistics(STEADY)
    plain = [
        statistics.mean,
        statistics.median,
        statistics.std,
        statistics.p90,
        *statistics.median_ci95,
        *statistics.samples,
    ]
    assert {type(value) for value in plain} == {float}


def test_interval_covers_the_true_median():
    """A 95 % interval may miss it in 1 of 20 series; in more than 20 of 100 it would be none."""
    stream = np.random.default_rng(0)
    intervals = [bench.statistics(stream.normal(5, 1, 50)).median_ci95 for _ in range(100)]
    assert sum(low <= 5 <= high for low, high in intervals) > 80


def test_resampling_of_many_samples_is_cut_into_parts():
    assert sum(bench._batches(10_000)) == sum(bench._batches(1)) == 2000
    assert max(bench._batches(10_000)) * 10_000 <= 1_000_000


# --- conditions ---


def test_conditions_of_this_machine():
    conditions = bench.conditions(LocalShell())
    assert conditions.load >= 0
    assert 0 <= conditions.busy <= 1
    assert conditions.mhz is None or conditions.mhz > 100


def test_conditions_are_read():
    text = """load=0.75
ticks=cpu  100 0 100 700 100 0 0 0 0 0
ticks=cpu  130 0 120 740 110 0 0 0 0 0
governor=ondemand
governor=performance
governor=ondemand
khz=1000000
khz=2000000
mhz=3000.5
millidegrees=45000
millidegrees=-5000
"""
    assert bench.conditions(Device(text)) == Conditions(0.75, 0.5, ("ondemand", "performance"), 1500.0, 45.0)


def test_clock_from_cpuinfo():
    assert bench.conditions(Device("load=0\nticks=\nticks=\nmhz=1000\nmhz=2000.50\n")).mhz == 1500.2


def test_device_that_tells_nothing():
    text = "load=\nticks=\nticks=\ngovernor=\nkhz=<unknown>\nmillidegrees=\n"
    assert bench.conditions(Device(text)) == Conditions(0.0, 0.0, (), None, None)


# --- doubts ---


def doubts(samples=STEADY, before=CALM, after=CALM, **options):
    settings = {"threads": 1, "cpus": 4, "emulated": False, **options}
    return bench.doubts(bench.statistics(samples), before, after, **settings)


def changed(**values):
    return dataclasses.replace(CALM, **values)


def test_nothing_to_doubt():
    assert doubts() == ()
    assert doubts(before=changed(governors=(), mhz=None, celsius=None), after=changed(mhz=None, celsius=None)) == ()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"emulated": True}, "emulated: these times say nothing about the real board"),
        ({"samples": STEADY[:9]}, "only 9 runs: use a longer --budget for a reliable median"),
        ({"samples": (*STEADY, 1.6)}, "outlier: the longest run took 1.6 times the median"),
        (
            {"samples": (*STEADY, *(value * 1.08 for value in STEADY))},
            "drift: the second half of the runs was 8% slower than the first half",
        ),
        (
            {"samples": (*STEADY, *(value * 0.9 for value in STEADY))},
            "drift: the second half of the runs was 10% faster than the first half",
        ),
        ({"before": changed(busy=0.25)}, "busy: other work used 25% of the CPUs just before the first run"),
        ({"threads": 8}, "8 threads share 4 CPUs"),
        (
            {"before": changed(governors=("ondemand", "performance"))},
            "CPU governor ondemand, performance: ",
        ),
        ({"after": changed(mhz=1800.0)}, "throttled: 2000.0 MHz before, 1800.0 MHz after"),
        ({"after": changed(celsius=80.0)}, "hot: 80.0 degrees C"),
    ],
)
def test_each_doubt(options, text):
    (doubt,) = doubts(**options)
    assert doubt.startswith(text)


def test_unstable():
    assert "unstable: the standard deviation is 17% of the mean" in doubts([1.0, 1.4] * 40)


def test_limits_are_not_passed_by_what_is_usual():
    samples = (*STEADY, *(value * 1.04 for value in STEADY), 1.4)
    after = changed(mhz=1950.0, celsius=79.9)
    assert doubts(samples, changed(busy=0.1), after, threads=4) == ()


def test_times_below_the_tick_of_the_clock():
    """Some boards count time in milliseconds; the fastest models take none."""
    assert doubts([0.0] * 40) == ()
    assert doubts([0.0] * 39 + [1.0])


def test_a_release_that_was_replaced_meanwhile_is_not_measured(tiny, program, tmp_path):
    other = bundles.reweighted(tiny, tmp_path / "other", seed=2)
    with LocalShell() as shell:
        store = Store(shell, str(tmp_path / "device"))
        device, plan = deploys.connected(shell, store), runner.Plan(0.0)
        deploys.deploy(tiny, program, shell, store)
        current, inputs = bench.current(store, "local"), verification.samples_of(tiny).inputs
        with store.lock(Owner.here("test")):
            assert len(bench.measure(current.release(program, device, 1), inputs, plan).latency.samples) == 3
        deploys.deploy(other, program, shell, store)
        with store.lock(Owner.here("test")), pytest.raises(DeviceError, match="another deployment replaced"):
            bench.measure(current.release(program, device, 1), inputs, plan)


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ({"busy": 0.5}, {}, "busy: other work used 50% of the CPUs just before the rounds, and 0% just after"),
        ({}, {"busy": 1.0}, "0% of the CPUs just before the rounds, and 100% just after"),
        ({}, {"mhz": 1500.0}, "throttled: 2000.0 MHz before, 1500.0 MHz after"),
        ({}, {"celsius": 85.0}, "hot: 85.0 degrees C"),
    ],
)
def test_what_disturbs_turns_is_told(before, after, text):
    (disturbance,) = bench.disturbances(dataclasses.replace(CALM, **before), dataclasses.replace(CALM, **after))
    assert text in disturbance
    assert bench.disturbances(CALM, CALM) == ()
