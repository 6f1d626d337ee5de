"""Joules from sensors in a tree of files with known watts, and from a meter; and why there are none."""

from __future__ import annotations

import json

import pytest

from tests.support import deploys
from toolchain.device import energy
from toolchain.device.energy import Method
from toolchain.device.sensors import Sensor
from toolchain.errors import DeviceError
from toolchain.shell import LocalShell

_PERIOD_S = 0.010
_METHOD = {"idle_s": 3.0, "run_s": 3.0, "every_s": 0.01}
"""So many readings that a busy machine, which takes most of them away, leaves enough."""


@pytest.fixture
def folders(tmp_path):
    """A runner that says that an inference takes ten milliseconds, after four seconds of them."""
    report = json.dumps({"samples_ns": [int(_PERIOD_S * 1e9)] * 100})
    script = f"""#!/bin/sh
for word do [ "$last" = --report ] && echo '{report}' > "$word"; last=$word; done
[ ! -e {tmp_path}/fails ] || exit 5
echo run > {tmp_path}/state
sleep 4
"""
    (tmp_path / "runner").write_text(script)
    (tmp_path / "runner").chmod(0o755)
    return {"runners": str(tmp_path), "inputs": "any"}


def tree(folder, files):
    for name, text in files.items():
        path = folder / "class" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return str(folder)


def measure(folders, tmp_path, *, inference_s=0.0, **settings):
    method = Method(**{**_METHOD, "sysfs": str(tmp_path / "none"), **settings})
    return energy.measure(deploys.installed(folders, tmp_path), method, inference_s)


def test_known_watts_become_joules(folders, tmp_path):
    files = {
        "hwmon/hwmon0/name": "ina3221",
        "hwmon/hwmon0/in1_input": 5000,
        "hwmon/hwmon0/curr1_input": 1500,
        "hwmon/hwmon0/in1_label": "VDD_IN",
        "hwmon/hwmon0/in2_input": 1000,
        "hwmon/hwmon0/curr2_input": 2000,
        "hwmon/hwmon0/in2_label": "VDD CPU",
    }
    result = measure(folders, tmp_path, sysfs=tree(tmp_path / "sys", files))
    assert result.reason == ""
    joules = result.joules
    assert joules.gross_j == pytest.approx(7.5 * _PERIOD_S, rel=0.01)
    assert joules.net_j == pytest.approx(0, abs=1e-9)
    rails = {rail.name: (rail.run_w, rail.counted) for rail in joules.rails}
    assert rails == {
        "ina3221 VDD_IN": (pytest.approx(7.5), True),
        "ina3221 VDD_CPU": (pytest.approx(2.0), False),
    }
    assert joules.samples >= energy.LEAST_SAMPLES
    assert joules.inferences == 100
    assert "readings a second" in joules.method
    assert not list((tmp_path / "run").iterdir())


_RANGE_UJ = 9_000_000
_COUNTER = Sensor("uJ", "powercap", "package-0", _RANGE_UJ, ("energy_uj",))
_BATTERY = Sensor("uW", "power_supply", "BAT0", 0, ("power_now",))


def recorded(*others):
    """Return what a device says whose counter has 3 W for ten seconds and then 8 W for eleven, and wraps on the way.

    The clock has hundredths of a second, as the kernel's for scripts; after the counter stands what others say.
    """
    lines = ["start 100.00"]
    for step in range(20 * 21 + 1):
        clock_s = 100 + round(step / 20 + 0.003 * (step % 3), 2)
        energy_j = 3.0 * min(clock_s - 100, 10) + 8.0 * max(clock_s - 110, 0)
        lines.append(f"at {clock_s:.2f} {(int(energy_j * 1e6) + 5_000_000) % _RANGE_UJ} {' '.join(others)}".strip())
    report = json.dumps({"samples_ns": [int(_PERIOD_S * 1e9)] * 1100})
    return "\n".join([*lines, "begin 110.00", "end 121.00"]) + f"\nreport\n{report}"


def test_a_counter_that_wraps_becomes_joules_within_a_percent():
    joules = energy._joules(recorded(), [_COUNTER], [], 0.0, Method())
    assert joules.run_w == pytest.approx(8, rel=0.01)
    assert joules.idle_w == pytest.approx(3, rel=0.01)
    assert joules.gross_j == pytest.approx(8 * _PERIOD_S, rel=0.01)
    assert joules.net_j == pytest.approx(5 * _PERIOD_S, rel=0.01)
    assert joules.gross_ci95 == (pytest.approx(8 * _PERIOD_S, rel=0.02), pytest.approx(8 * _PERIOD_S, rel=0.02))
    assert (joules.hz, joules.inferences) == (pytest.approx(20, rel=0.01), 1100)


def test_a_sensor_that_is_dead_and_would_not_count_is_a_warning():
    dead_sensor = Sensor("uW", "ina226", "VDD_CPU", 0, ("power1_input",))
    joules = energy._joules(recorded("0"), [_COUNTER, dead_sensor], [], 0.0, Method())
    assert joules.run_w == pytest.approx(8, rel=0.01)
    assert [rail.name for rail in joules.rails] == ["powercap package-0"]
    assert joules.warnings == ("ina226 VDD_CPU: it stays at 0",)


def test_a_sensor_that_is_dead_and_would_count_voids_the_figure():
    with pytest.raises(energy.NoFigureError, match="power_supply BAT0: it stays at 0"):
        energy._joules(recorded("0"), [_COUNTER, _BATTERY], [], 0.0, Method())


def test_as_many_inferences_as_a_slow_model_needs_are_waited_for_or_refused(folders, tmp_path):
    assert energy.longest_s(Method(), 2.2) > 100 * 2.2 * 5
    assert energy.longest_s(Method(), 0.001) < 300
    sysfs = tree(tmp_path / "sys", {"hwmon/hwmon0/name": "ina", "hwmon/hwmon0/power1_input": 5_000_000})
    result = measure(folders, tmp_path, sysfs=sysfs, inference_s=60.0)
    assert (result.joules, result.reason) == (None, "100 inferences would take 100 minutes, and the limit is 30")
    assert not (tmp_path / "state").exists()


def test_what_takes_too_long_has_no_figure_and_a_lost_device_is_told(folders, tmp_path, monkeypatch):
    sysfs = tree(tmp_path / "sys", {"hwmon/hwmon0/name": "ina", "hwmon/hwmon0/power1_input": 5_000_000})
    monkeypatch.setattr(energy, "longest_s", lambda *_: 0.5)
    result = measure(folders, tmp_path, sysfs=sysfs)
    assert (result.joules, "did not end within" in result.reason) == (None, True)
    assert not list((tmp_path / "run").iterdir())

    class Lost(LocalShell):
        def run(self, script, **options):
            if options.get("timeout", 0) == 1e6:
                raise DeviceError("it is lost")
            return super().run(script, **options)

    monkeypatch.setattr(energy, "longest_s", lambda *_: 1e6)
    method = Method(sysfs=sysfs)
    with pytest.raises(DeviceError, match="lost"):
        energy.measure(deploys.installed(folders, tmp_path, shell=Lost()), method)


def test_where_readings_are_slow_it_takes_longer():
    slow = energy.slower(Method())
    assert slow.every_s == 1
    for phase in (slow.idle_s, slow.run_s):
        # Less its edges, and with readings that are late by a tenth.
        assert (phase - 2) / 1.1 >= energy.LEAST_SAMPLES
    assert energy.slower(Method(idle_s=99, run_s=99)).idle_s == 99


@pytest.mark.long
def test_a_meter_of_the_lab_becomes_joules(folders, tmp_path):
    meter = 'while :; do echo "$(date +%s.%N) 4.5"; sleep 0.01; done'
    result = measure(folders, tmp_path, meter=meter)
    assert result.joules.gross_j == pytest.approx(4.5 * _PERIOD_S, rel=0.01), result
    assert [rail.name for rail in result.joules.rails] == ["meter"]


@pytest.mark.parametrize("meter", ["echo hello", "true", "echo 1 nan", "echo 1 0; echo 2 0", "yes 1 -5"])
def test_a_meter_that_says_nonsense_has_no_figure(folders, tmp_path, meter):
    (tmp_path / "runner").write_text((tmp_path / "runner").read_text().replace("sleep 4", ""))
    result = measure(folders, tmp_path, meter=meter, idle_s=0.1)
    assert result.joules is None
    assert "the meter printed" in result.reason


def test_without_a_sensor_there_is_a_reason_at_once(folders, tmp_path):
    result = measure(folders, tmp_path)
    assert (result.joules, "no power sensor" in result.reason) == (None, True)
    assert not (tmp_path / "run").exists()


def test_a_model_that_fails_is_told_as_elsewhere(folders, tmp_path):
    (tmp_path / "fails").touch()
    sysfs = tree(tmp_path / "sys", {"hwmon/hwmon0/name": "ina", "hwmon/hwmon0/power1_input": 5_000_000})
    with pytest.raises(DeviceError, match="does not run"):
        measure(folders, tmp_path, sysfs=sysfs, idle_s=0.1)
    assert not list((tmp_path / "run").iterdir())


def test_too_few_readings_are_refused(folders, tmp_path):
    (tmp_path / "runner").write_text((tmp_path / "runner").read_text().replace("sleep 4", "sleep 1.4"))
    sysfs = tree(tmp_path / "sys", {"hwmon/hwmon0/name": "ina", "hwmon/hwmon0/power1_input": 5_000_000})
    result = measure(folders, tmp_path, sysfs=sysfs, idle_s=0.7, every_s=0.05)
    assert result.joules is None
    assert "ina: " in result.reason
    assert "at least 20 are needed" in result.reason


@pytest.mark.parametrize("head", ["", "start 1\nbegin 2", "start x\nbegin 2\nend 3", "at\nat 1 2\n"])
def test_a_device_that_tells_no_times_has_no_figure(head):
    with pytest.raises(energy.NoFigureError, match="when the model ran"):
        energy._read(head)
