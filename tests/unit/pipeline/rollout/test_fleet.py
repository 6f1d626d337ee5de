from __future__ import annotations

import re

import pytest

from toolchain.devices import Application
from toolchain.errors import InputError
from toolchain.pipeline.rollout import fleet

TEXT = """
[types.x86_64]
latency_ms = 25
run = { unit = "detector.service", health = "true" }

[devices.kitchen]
board = "x86_64"
host = "me@10.0.0.7"
tags = ["indoors"]

[devices.yard]
board = "x86_64"
host = "me@10.0.0.8"
run = { restart = "true", health = "false" }

[devices.roof]
board = "rpi4"
host = "me@10.0.0.9"
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="fleet.toml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_devices_and_the_bounds_of_their_types(write):
    whole_fleet = fleet.read(write(TEXT)).for_board("x86_64")
    assert list(whole_fleet.devices) == ["kitchen", "yard"]
    assert whole_fleet.limits("x86_64").latency_ms == 25
    assert whole_fleet.devices["kitchen"].run == Application(unit="detector.service", health="true")
    assert whole_fleet.devices["yard"].run == Application(restart="true", health="false")
    assert whole_fleet.devices["kitchen"].tags == ("indoors",)
    assert fleet.read(write(TEXT)).for_board("rpi4").limits("rpi4").latency_ms is None


def test_a_p999_has_a_rate(write):
    text = TEXT.replace("latency_ms = 25", "p999_ms = 40\nperiod_ms = 33")
    rate = fleet.read(write(text)).for_board("x86_64").limits("x86_64").rate()
    assert rate
    assert (rate.period_s, rate.deadline_s) == (0.033, 0.04)
    assert fleet.read(write(TEXT)).limits("x86_64").rate() is None
    for keys, message in (
        ("p999_ms = 40", "one of p999_ms and period_ms"),
        ("p999_ms = 40\nperiod_ms = 0.01", "period_ms is below 0.1"),
        ("p999_ms = 40\nperiod_ms = 60_000", "too few samples"),
    ):
        with pytest.raises(InputError, match=message):
            fleet.read(write(TEXT.replace("latency_ms = 25", keys)))


def test_a_devices_toml_is_a_fleet_with_or_without_its_table(write):
    for text in ('[a]\nboard = "rpi4"\nhost = "h"\n', '[devices.a]\nboard = "rpi4"\nhost = "h"\n'):
        assert list(fleet.read(write(text)).devices) == ["a"]


@pytest.mark.parametrize(
    ("text", "message", "details"),
    [
        (TEXT.replace("[types", "[type"), "has 1 fault", r"type: unknown key \(did you mean types"),
        (TEXT.replace("latency_ms", "latencyms"), "has 1 fault", "did you mean latency_ms"),
        (TEXT.replace("tags", "tag"), "has 1 fault", "kitchen.tag: unknown key .did you mean tags"),
        (TEXT.replace("25", "0"), "has 1 fault", "latency_ms"),
        (TEXT.replace("25", '"25"'), "has 1 fault", "latency_ms"),
        (TEXT.replace("25", "inf"), "has 1 fault", "latency_ms"),
        (TEXT.replace("unit =", "unti ="), "has 1 fault", "unti: unknown key .did you mean unit"),
        (TEXT.replace('"rpi4"', '"rpi44"'), "no board 'rpi44'", "known boards"),
        (TEXT.replace("types.x86_64", "types.x8664"), "no board 'x8664'", "known boards"),
        (TEXT.replace('"rpi4"', '"local"'), "board local is this machine", ""),
        ("[types.rpi4]\nlatency_ms = 5\n", "there is no device in", ""),
        ("", "there is no device in", ""),
        ("[", "is not TOML", ""),
        (TEXT.replace("10.0.0.8", "10.0.0.7"), "kitchen and yard are the same device: me@10.0.0.7", ""),
        (TEXT.replace("10.0.0.8", "10.0.0.8:ssh"), "device yard: .* is not a valid device address", ""),
    ],
)
def test_faults_are_told_by_name(write, text, message, details):
    with pytest.raises(InputError, match=message) as caught:
        fleet.read(write(text))
    assert re.search(details, caught.value.details)


def test_no_device_of_the_packages_type(write):
    with pytest.raises(InputError, match="the fleet has no such device") as caught:
        fleet.read(write(TEXT)).for_board("rpi3b")
    assert "rpi4, x86_64" in caught.value.details


def test_any_change_gives_another_digest(write):
    base = fleet.read(write(TEXT)).for_board("x86_64").digest
    assert fleet.read(write(TEXT)).for_board("x86_64").digest == base
    for old, new in (("10.0.0.7", "10.0.0.6"), ("25", "26"), ("kitchen", "cellar"), ('"false"', '"true"')):
        assert fleet.read(write(TEXT.replace(old, new))).for_board("x86_64").digest != base
    # of another type
    assert fleet.read(write(TEXT.replace("10.0.0.9", "10.0.0.5"))).for_board("x86_64").digest == base


def test_the_digest_is_the_same_from_any_folder(write, tmp_path, monkeypatch):
    path = write('[a]\nboard = "rpi4"\nhost = "h"\nssh_config = "config"\n')
    there = fleet.read(path).for_board("rpi4").digest
    monkeypatch.chdir(tmp_path)
    assert fleet.read(path.relative_to(tmp_path)).for_board("rpi4").digest == there


def test_an_inventory_beside_a_fleet(write):
    inventory = write('{"_meta": {"hostvars": {"gate": {"edge_board": "x86_64"}, "other": {}}}}', "inventory.json")
    whole_fleet = fleet.read(write(TEXT), inventory)
    assert list(whole_fleet.for_board("x86_64").devices) == ["kitchen", "yard", "gate"]
    assert whole_fleet.for_board("x86_64").devices["gate"].run.unit == "detector.service"
    assert whole_fleet.unnamed == 1
    with pytest.raises(InputError, match="both contain kitchen"):
        fleet.read(
            write(TEXT), write('{"_meta": {"hostvars": {"kitchen": {"edge_board": "x86_64"}}}}', "inventory.json")
        )


SLOTS = """
[types.x86_64.slots.detector]
latency_ms = 9
run = { unit = "detector.service" }

[devices.kitchen.slots.detector]
run = { restart = "true", health = "false" }
"""


def test_a_slot_has_limits_and_applications_of_its_own(write):
    whole_fleet = fleet.read(write(TEXT + SLOTS))
    in_slot = whole_fleet.for_board("x86_64", "detector")
    assert in_slot.limits("x86_64", "detector").latency_ms == 9
    assert in_slot.devices["kitchen"].for_slot("detector").run == Application(restart="true", health="false")
    assert in_slot.devices["yard"].for_slot("detector").run == Application(unit="detector.service")
    other = whole_fleet.for_board("x86_64", "classifier")
    assert other.limits("x86_64", "classifier").latency_ms is None
    assert other.devices["yard"].for_slot("classifier").run is None


def test_what_is_set_for_one_slot_changes_no_roll_out_to_another(write):
    with_slots, without = fleet.read(write(TEXT + SLOTS)), fleet.read(write(TEXT))
    for slot in ("", "classifier"):
        assert with_slots.for_board("x86_64", slot).digest == without.for_board("x86_64", slot).digest
    assert with_slots.for_board("x86_64", "detector").digest != without.for_board("x86_64", "detector").digest


def test_the_name_of_a_slot_is_checked(write):
    with pytest.raises(InputError) as caught:
        fleet.read(write(TEXT + SLOTS.replace("slots.detector]\nlatency", "slots.Detector]\nlatency")))
    assert "types" not in caught.value.details
    assert "x86_64.slots" in caught.value.details
