"""Power sensors: which a tree of files has, what is wrong with what they say, and which count together."""

import os

import pytest

from toolchain.device import sensors
from toolchain.device.sensors import NoFigureError, Sensor
from toolchain.shell import LocalShell

_POWER = Sensor("uW", "ina226", "", 0, ("power1_input",))
_PAIR = Sensor("mVmA", "ina3221", "VDD_CPU", 0, ("in1_input", "curr1_input"))
_COUNTER = Sensor("uJ", "powercap", "package-0", 1000, ("energy_uj",))
_BATTERY = Sensor("uVuA", "power_supply", "BAT0", 0, ("voltage_now", "current_now"))


def rail(name, folder="hwmon0"):
    chip, _, label = name.partition(" ")
    return Sensor("uW", chip, label, 0, (f"/sys/{folder}/{label}",))


def sensor_names(tmp_path, files):
    """Return the names of what there is in a tree of files."""
    for name, text in files.items():
        path = tmp_path / "class" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return [sensor.name for sensor in sensors.find(LocalShell(), str(tmp_path)).sensors]


def supply(name, kind, **values):
    return {
        f"power_supply/{name}/{key}": value for key, value in {"type": kind, "power_now": 18_000_000, **values}.items()
    }


def test_a_counter_with_its_range(tmp_path):
    zone = "powercap/intel-rapl:0"
    files = {f"{zone}/name": "package-0", f"{zone}/energy_uj": 5, f"{zone}/max_energy_range_uj": 262_143_328_850}
    assert sensor_names(tmp_path, files) == ["powercap package-0"]
    (sensor,) = sensors.find(LocalShell(), str(tmp_path)).sensors
    assert (sensor.unit, sensor.wraps) == ("uJ", 262_143_328_850)


@pytest.mark.parametrize("text", ["9" * 5000, "9" * 18, "x", "", "\N{SUPERSCRIPT TWO}"])
def test_a_range_that_is_none_is_not_known(text):
    class Shell(LocalShell):
        def run(self, _script, **options):
            return super().run(f"echo 'rail uJ powercap psys {text or '-'} /sys/energy_uj'", **options)

    (sensor,) = sensors.find(Shell(), "/sys").sensors
    assert sensor.wraps == 0


def test_a_processor_is_found_once(tmp_path):
    zones = ["intel-rapl:0", "intel-rapl:0:0", "intel-rapl-mmio:0", "intel-rapl-mmio:0:0"]
    files = {
        f"powercap/{zone}/{key}": value for zone in zones for key, value in (("name", "package-0"), ("energy_uj", 5))
    }
    assert sensor_names(tmp_path, files) == ["powercap package-0"]


def test_a_processor_with_one_way_to_its_counter_is_found(tmp_path):
    zone = "powercap/intel-rapl-mmio:0"
    assert sensor_names(tmp_path, {f"{zone}/name": "package-0", f"{zone}/energy_uj": 5}) == ["powercap package-0"]


@pytest.mark.parametrize(
    ("supplies", "names"),
    [
        (supply("BAT0", "Battery", status="Discharging"), ["power_supply BAT0"]),
        (supply("BAT0", "Battery", status="Charging"), []),
        (supply("BAT0", "Battery", status="Full") | supply("AC", "Mains", online=1), []),
        (supply("BAT0", "Battery", status="Charging") | supply("usb", "USB", online=1), []),
        (supply("BAT0", "Battery"), []),
        (supply("usb", "USB", online=1), ["power_supply usb"]),
        (supply("usb", "USB", online=0), []),
        (supply("ups", "UPS", status="Discharging"), []),
    ],
)  # fmt: skip
def test_of_supplies_those_that_feed_the_device(tmp_path, supplies, names):
    assert sensor_names(tmp_path, supplies) == names


def test_a_sleep_without_fractions_is_noticed(tmp_path, monkeypatch):
    assert sensors.find(LocalShell(), str(tmp_path)).fractions
    (tmp_path / "sleep").write_text("#!/bin/sh\ncase $1 in *.*) exit 1 ;; esac\n")
    (tmp_path / "sleep").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert not sensors.find(LocalShell(), str(tmp_path)).fractions


@pytest.mark.parametrize(
    ("sensor", "rows", "message"),
    [
        (_POWER, [["1", "x"], ["2", "5"]], "ina226, power1_input: it could not be read"),
        (_POWER, [["1", "5"], ["2", "5W"]], "ina226, power1_input: its value '5W' is not a number"),
        (_POWER, [["1", "9" * 18], ["2", "5"]], "is not a number"),
        (_POWER, [["1", "9" * 5000], ["2", "5"]], "is not a number"),
        (_POWER, [["1", "0"], ["2", "0"]], "ina226: it stays at 0"),
        (_POWER, [["1", "-5"], ["2", "3"]], "ina226: its power is negative (-5)"),
        (_POWER, [], "ina226: it has no values"),
        (_PAIR, [["1", "5", "x"]], "ina3221 VDD_CPU, curr1_input: it could not be read"),
        (Sensor("mVmA", "ina3221", "", 0, _PAIR.files), [["1", "5", "5"]], "in1_input: it has no label"),
        (_COUNTER, [["1", "7"], ["2", "7"]], "powercap package-0: it stays at 7"),
        (Sensor("uJ", "powercap", "psys", 0, ("e",)), [["1", "9"], ["2", "7"]], "powercap psys: its counter decreased"),
        (_BATTERY, [["1", "12", "-5"], ["2", "12", "5"]], "power is negative"),
    ],
)
def test_a_sensor_that_fails_is_named_with_what_it_said(sensor, rows, message):
    (fault,) = sensors.read([sensor], rows)
    assert isinstance(fault, str)
    assert message in fault


def test_a_sensor_that_fails_leaves_the_others():
    dead, alive = sensors.read([_POWER, _PAIR], [["1", "0", "5000", "100"], ["2", "0", "5000", "100"]])
    assert dead == "ina226: it stays at 0"
    assert alive.values == pytest.approx([0.5, 0.5])


def test_a_discharged_battery_gives_power_whatever_sign_its_driver_has():
    for current in ("1500000", "-1500000"):
        (readings,) = sensors.read([_BATTERY], [["1", "12000000", current], ["2", "12000000", current]])
        assert readings.values == pytest.approx([18, 18])


@pytest.mark.parametrize(
    ("names", "counted"),
    [
        (["ina VDD_CPU", "ina VDD_GPU"], {"ina VDD_CPU", "ina VDD_GPU"}),
        (["ina VDD_CPU", "ina VDD_IN"], {"ina VDD_IN"}),
        (["ina VDD_SYS_GPU", "ina VDD_IN"], {"ina VDD_IN"}),
        (["supply VDD_CPU", "supply VDD_GPU"], {"supply VDD_CPU", "supply VDD_GPU"}),
        (["amd_energy Ecore000", "amd_energy Ecore001", "amd_energy Esocket0"], {"amd_energy Esocket0"}),
        (["amd_energy Ecore000", "amd_energy Esocket0", "powercap package-0"], {"powercap package-0"}),
        (["amdgpu PPT", "powercap package-0", "powercap package-1"], {"powercap package-0", "powercap package-1"}),
        (["powercap package-0", "powercap psys"], {"powercap psys"}),
        (["powercap package-0", "power_supply BAT0"], {"power_supply BAT0"}),
        (["power_supply BAT0", "power_supply BAT1", "ina VDD_CPU"], {"power_supply BAT0", "power_supply BAT1"}),
        (["ina VDD_IN", "power_supply BAT0", "powercap psys"], {"ina VDD_IN"}),
        (["tps pin", "tps pout1"], {"tps pin"}),
    ],
)
def test_no_rail_counts_that_another_holds(names, counted):
    rails = [rail(name) for name in names]
    assert {rails[index].name for index in sensors.choose_counted(rails)} == counted


def test_rails_of_different_chips_hold_none_of_each_other():
    rails = [rail("amd_energy Esocket0"), rail("other core0", "hwmon1")]
    assert sensors.choose_counted(rails) == (0, 1)


def test_two_that_are_the_whole_input_have_a_reason():
    with pytest.raises(NoFigureError, match="one VDD_IN, two VIN: the label of each says"):
        sensors.choose_counted([rail("one VDD_IN"), rail("two VIN")])
