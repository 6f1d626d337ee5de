from __future__ import annotations

import pytest

from toolchain.devices import Device
from toolchain.errors import InputError
from toolchain.pipeline.rollout import groups
from toolchain.pipeline.rollout.groups import Share, Thresholds


def fleet(count: int, **tags: tuple[int, ...]) -> dict[str, Device]:
    return {
        f"d{index}": Device("x86_64", "here", tags=tuple(tag for tag, indices in tags.items() if index in indices))
        for index in range(count)
    }


def sizes(waves: str, count: int, **tags: tuple[int, ...]) -> list[int]:
    assigned = list(groups.assign(groups.parse_waves(waves), fleet(count, **tags)).values())
    return [assigned.count(number) for number in sorted(set(assigned))]


@pytest.mark.parametrize(
    ("waves", "count", "expected"),
    [
        ("1,10%,100%", 50, [1, 4, 45]),
        ("100%", 3, [3]),
        ("1, 1%, 100%", 50, [1, 49]),  # the second one adds nothing, so it is no group
        ("5,100%", 3, [3]),
        ("0.5%,100%", 1000, [5, 995]),
        ("33.4%,100%", 3, [2, 1]),  # part of a device counts as one
        ("1,2,3,4", 4, [1, 1, 1, 1]),
    ],
)
def test_waves_say_up_to_how_many_devices_are_reached(waves, count, expected):
    assert sizes(waves, count) == expected


def test_devices_come_in_the_order_of_the_fleet():
    assigned = groups.assign(("2", "100%"), fleet(4))
    assert assigned == {"d0": 1, "d1": 1, "d2": 2, "d3": 2}


def test_a_tag_adds_its_devices():
    assigned = groups.assign(("canary", "50%", "100%"), fleet(6, canary=(1, 4)))
    assert [name for name, group in assigned.items() if group == 1] == ["d1", "d4"]
    assert [name for name, group in assigned.items() if group == 2] == ["d0"]
    assert sizes("canary,2,100%", 6, canary=(1, 4)) == [2, 4]


@pytest.mark.parametrize(
    ("waves", "message"),
    [
        ("1,10%", "leave out 45 of 50 devices"),
        ("50%,5,100%", "wave 5 reaches 5 device"),
        ("canari,100%", "'canari' is not a valid wave"),
        ("", "'' is not a valid wave"),
        ("0,100%", "'0' is not a valid wave"),
        ("101%", "'101%' is not a valid wave"),
        ("0%,100%", "'0%' is not a valid wave"),
        ("-1,100%", "'-1' is not a valid wave"),
        ("1e3,100%", "'1e3' is not a valid wave"),
        ("1,,100%", "'' is not a valid wave"),
    ],
)
def test_wrong_waves_are_refused(waves, message):
    with pytest.raises(InputError, match=message):
        groups.assign(groups.parse_waves(waves), fleet(50, canary=(1,)))


def test_a_misspelt_tag_is_suggested():
    with pytest.raises(InputError) as caught:
        groups.assign(("canari",), fleet(3, canary=(1,)))
    assert caught.value.hint == "did you mean canary?"


@pytest.mark.parametrize(
    ("text", "failed", "size", "stops"),
    [
        ("1", 0, 45, False),
        ("1", 1, 45, True),
        ("5", 4, 45, False),
        ("10%", 4, 45, False),
        ("10%", 5, 45, True),
        ("10%", 1, 1, True),  # the first device of all
        ("5", 1, 1, True),  # a group of which nothing is left
        ("100%", 44, 45, False),
    ],
)
def test_when_too_many_have_failed(text, failed, size, stops):
    assert Thresholds(Share.read(text)).stops(failed, size) is stops


def test_when_enough_are_done():
    assert Thresholds(success=90).passes(9, 10)
    assert not Thresholds(success=90).passes(8, 10)
    assert Thresholds().passes(0, 10)
