"""Joules from sensors in a tree of files with known watts, and from a meter; and why there are none."""

from __future__ import annotations

import json
import threading
import time

import pytest

from toolchain.device import energy
from toolchain.device.energy import Method, _Sensor
from toolchain.errors import DeviceError
from toolchain.shell import LocalShell

_PERIOD_S = 0.010
_METHOD = {"idle_s": 3.0, "run_s": 3.0, "every_s": 0.01}
"""So many readings that a busy machine, which takes most of them away, leaves enough."""


@pytest.fixture
def places(tmp_path):
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


def measure(places, tmp_path, **how):
    method = Method(**{**_METHOD, "sysfs": str(tmp_path / "none"), **how})
    return energy.measure(LocalShell(), str(tmp_path), places, release="any", threads=1, method=method)


def test_known_watts_become_joules(places, tmp_path):
    files = {
        "hwmon/hwmon0/name": "ina3221",
        "hwmon/hwmon0/in1_input": 5000,
        "hwmon/hwmon0/curr1_input": 1500,
        "hwmon/hwmon0/in1_label": "VDD_IN",
        "hwmon/hwmon0/in2_input": 1000,
        "hwmon/hwmon0/curr2_input": 2000,
        "hwmon/hwmon0/in2_label": "VDD CPU",
    }
    found = measure(places, tmp_path, sysfs=tree(tmp_path / "sys", files))
    assert found.reason == ""
    joules = found.joules
    assert joules.gross_j == pytest.approx(7.5 * _PERIOD_S, rel=0.01)
    assert joules.net_j == pytest.approx(0, abs=1e-9)
    rails = {rail.name: (rail.run_w, rail.counted) for rail in joules.rails}
    assert rails == {
        "ina3221 VDD_IN": (pytest.approx(7.5), True),
        "ina3221 VDD_CPU": (pytest.approx(2.0), False),
    }
    assert 5 <= joules.hz <= 100
    assert joules.samples >= energy.LEAST_SAMPLES
    assert joules.inferences == 100
    assert "readings a second" in joules.method
    assert not list((tmp_path / "run").iterdir())


def test_a_counter_that_wraps_becomes_joules(places, tmp_path):
    """It counts 3 W, and 8 W once the model runs, up to a range that it exceeds on the way."""
    zone = tmp_path / "sys" / "class" / "powercap" / "intel-rapl:0"
    sysfs = tree(tmp_path / "sys", {"powercap/intel-rapl:0/name": "package-0"})
    (zone / "max_energy_range_uj").write_text("9000000\n")
    (zone / "energy_uj").write_text("0\n")
    over = threading.Event()

    def count():
        spent, last = 0.0, time.monotonic()
        while not over.wait(0.002):
            now = time.monotonic()
            spent += (now - last) * (8e6 if (tmp_path / "state").exists() else 3e6)
            last = now
            new = zone / "new"
            new.write_text(f"{int(spent) % 9_000_000}\n")
            new.replace(zone / "energy_uj")

    counter = threading.Thread(target=count)
    counter.start()
    try:
        found = measure(places, tmp_path, sysfs=sysfs)
    finally:
        over.set()
        counter.join()
    # The kernel's clock for scripts has a hundredth of a second, and a busy machine delays our counter.
    assert found.joules.run_w == pytest.approx(8, rel=0.15), found
    assert found.joules.idle_w == pytest.approx(3, rel=0.15)
    assert found.joules.gross_ci95[0] <= found.joules.gross_j * 1.15


def test_a_meter_of_the_lab_becomes_joules(places, tmp_path):
    meter = 'while :; do echo "$(date +%s.%N) 4.5"; sleep 0.01; done'
    found = measure(places, tmp_path, meter=meter)
    assert found.joules.gross_j == pytest.approx(4.5 * _PERIOD_S, rel=0.01), found
    assert [rail.name for rail in found.joules.rails] == ["meter"]


@pytest.mark.parametrize("meter", ["echo hello", "true", "echo 1 nan", "echo 1 0; echo 2 0", "yes 1 -5"])
def test_a_meter_that_says_nonsense_has_no_figure(places, tmp_path, meter):
    (tmp_path / "runner").write_text((tmp_path / "runner").read_text().replace("sleep 4", ""))
    found = measure(places, tmp_path, meter=meter, idle_s=0.1)
    assert found.joules is None
    assert "the meter says" in found.reason


def test_without_a_sensor_there_is_a_reason_at_once(places, tmp_path):
    found = measure(places, tmp_path)
    assert (found.joules, "no power sensor" in found.reason) == (None, True)
    assert not (tmp_path / "run").exists()


def test_a_model_that_fails_is_told_as_elsewhere(places, tmp_path):
    (tmp_path / "fails").touch()
    sysfs = tree(tmp_path / "sys", {"hwmon/hwmon0/name": "ina", "hwmon/hwmon0/power1_input": 5_000_000})
    with pytest.raises(DeviceError, match="does not run"):
        measure(places, tmp_path, sysfs=sysfs, idle_s=0.1)
    assert not list((tmp_path / "run").iterdir())


_POWER = _Sensor("uW", "ina226", "", 0, ("power1_input",))
_PAIR = _Sensor("mVmA", "ina3221", "VDD_CPU", 0, ("in1_input", "curr1_input"))
_COUNTER = _Sensor("uJ", "powercap", "package-0", 1000, ("energy_uj",))


@pytest.mark.parametrize(
    ("sensor", "rows", "said"),
    [
        (_POWER, [["1", "x"], ["2", "5"]], "ina226, power1_input: it could not be read"),
        (_POWER, [["1", "5"], ["2", "5W"]], "ina226, power1_input: it says '5W', which is no number"),
        (_POWER, [["1", "9" * 18], ["2", "5"]], "no number"),
        (_POWER, [["1", "0"], ["2", "0"]], "ina226: it says 0 all the time"),
        (_POWER, [], "ina226: it says nothing all the time"),
        (_PAIR, [["1", "5", "x"]], "ina3221 VDD_CPU, curr1_input: it could not be read"),
        (_Sensor("mVmA", "ina3221", "", 0, _PAIR.files), [["1", "5", "5"]], "in1_input: it has no label"),
        (_COUNTER, [["1", "7"], ["2", "7"]], "powercap package-0: it says 7 all the time"),
        (_Sensor("uJ", "powercap", "psys", 0, ("e",)), [["1", "9"], ["2", "7"]], "powercap psys: its counter fell"),
    ],
)
def test_a_sensor_that_fails_is_named_with_what_it_said(sensor, rows, said):
    with pytest.raises(energy._NoFigureError) as caught:
        energy._of_sensors([sensor], rows)
    assert said in str(caught.value)


def test_too_few_readings_are_refused(places, tmp_path):
    (tmp_path / "runner").write_text((tmp_path / "runner").read_text().replace("sleep 4", "sleep 1.4"))
    sysfs = tree(tmp_path / "sys", {"hwmon/hwmon0/name": "ina", "hwmon/hwmon0/power1_input": 5_000_000})
    found = measure(places, tmp_path, sysfs=sysfs, idle_s=0.7, every_s=0.05)
    assert found.joules is None
    assert "ina: " in found.reason
    assert "20 are the least" in found.reason


def test_rails_of_one_supply_add_up_and_a_supply_counts_alone():
    assert energy._counted(["ina VDD_CPU", "ina VDD_GPU"]) == {"ina VDD_CPU", "ina VDD_GPU"}
    assert energy._counted(["ina VDD_CPU", "ina VDD_IN"]) == {"ina VDD_IN"}


@pytest.mark.parametrize("head", ["", "start 1\nbegin 2", "start x\nbegin 2\nend 3", "at\nat 1 2\n"])
def test_a_device_that_tells_no_times_has_no_figure(head):
    with pytest.raises(energy._NoFigureError, match="when the model ran"):
        energy._read(head)
