"""Where a board type is measured: who is asked for what, decided without a board."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import pytest

from tests.support.stores import holder, soon
from toolchain import board
from toolchain.device.lock import Owner
from toolchain.device.store import Store
from toolchain.devices import Device
from toolchain.errors import BusyError, DeviceError, InputError
from toolchain.farm import boards
from toolchain.farm.boards import BoardRequest, Boards, open_boards, parse_tracker
from toolchain.farm.leases import LeasedBoard
from toolchain.rpc import Registered
from toolchain.shell import LocalShell
from toolchain.tuning.measure import Event, ServerPlace
from toolchain.tuning.trials import Measured, Trial

LOCAL, RPI4 = board.load("local").resolved(), board.load("rpi4").resolved()
TRACKER = ("127.0.0.1", 9190)
DEVICES = {
    "one": Device("rpi4", "board", None, Path("one/ssh_config")),
    "two": Device("rpi4", "board", None, Path("two/ssh_config"), emulated=True),
    "other": Device("pynq", "me@192.0.2.9"),
}


class Lease:
    """A lease of some boards that remembers what it is told."""

    def __init__(self, names: tuple[str, ...], *, emulated: bool = False) -> None:
        self.boards = tuple(LeasedBoard(name, "rpi4", f"{name}.secret", emulated) for name in names)
        self.told: list[tuple[object, ...]] = []
        self.closed = False

    def dial(self, name: str, timeout_s: float) -> str:
        return f"a stream to {name} within {timeout_s:g} s"

    def report_trial(self, *values: object, **more: object) -> None:
        self.told.append((*values, more))

    def report_state(self, *values: object) -> None:
        self.told.append(values)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True


class Farm:
    """Stands in for the farm, and remembers what is asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.up = False
        self.boards = [{"name": "one", "host": "me@192.0.2.1"}, {"name": "two", "host": "board"}]
        self.asked: list[tuple[object, ...]] = []
        self.private: list[boards.leases.FarmDevice] = []
        self.lease = Lease(("one", "two"))
        monkeypatch.setattr(boards.leases, "is_running", lambda: self.up)
        monkeypatch.setattr(boards.leases, "lease", self._lease)
        monkeypatch.setattr(boards.leases, "private", self._private)
        monkeypatch.setattr(boards.client, "served_names", lambda: tuple(board["name"] for board in self.boards))
        monkeypatch.setattr(boards.client, "status", self._status)

    def _status(self) -> dict | None:
        return {"boards": self.boards} if self.up else None

    def _lease(self, kind: str, names: list[str], *, who: str, folder: Path | None, **terms):
        self.asked.append((kind, tuple(names), who, folder))
        self.terms = terms["limit"], terms["shares"], terms["patience"]
        assert terms["wait"] == (30.0 if terms["shares"] else 10.0)
        return self.lease

    @contextlib.contextmanager
    def _private(self, devices, _tell, _patience):
        self.private += devices
        yield Path("daemon")
        self.private.clear()


@pytest.fixture
def farm(monkeypatch):
    return Farm(monkeypatch)


def nobody(_timeout_s: float):
    raise DeviceError("nobody is there")


def nothing(_text: str) -> None:
    """For who wants to hear nothing."""


def wanted(**more) -> BoardRequest:
    return BoardRequest(**{"board": RPI4, "devices": DEVICES, "purpose": "tune mlp", **more})


def names_of(opened: Boards) -> list[str]:
    return [place.name for place in opened.places]


# --- trackers ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [("127.0.0.1:9190", TRACKER), ("lab.example:1", ("lab.example", 1)), ("::1:65535", ("::1", 65535))],
)
def test_a_trackers_address(text, expected):
    assert parse_tracker(text) == expected


@pytest.mark.parametrize(
    "text", ["", "nonsense", ":9190", "host:", "host:0", "host:65536", "host:-1", "host:1x", "9190"]
)
def test_no_trackers_address(text):
    with pytest.raises(InputError, match="not a valid tracker address") as caught:
        parse_tracker(text)
    assert "--tracker" in caught.value.hint


@pytest.fixture
def tracked(monkeypatch):
    """A tracker with two boards of one key and one of another."""
    registrations = (Registered("mine", "h", 1), Registered("rpi4", "h", 2), Registered("mine", "h", 3))
    addresses = []
    monkeypatch.setattr(boards, "registered", lambda address: addresses.append(address) or registrations)
    return addresses


def test_a_tracker_of_ones_own(tracked, farm):
    with open_boards(wanted(tracker=TRACKER, key="mine"), nothing) as opened:
        assert names_of(opened) == ["mine-1", "mine-2"]
        assert {(place.tracker, place.key, place.machine) for place in opened.places} == {(TRACKER, "mine", "aarch64")}
        assert opened.lease is None
    with open_boards(wanted(tracker=TRACKER), nothing) as opened:
        assert names_of(opened) == ["rpi4-1"]
    assert tracked == [TRACKER] * 2
    assert farm.asked == []


def test_a_tracker_without_the_board(tracked):
    with (
        pytest.raises(DeviceError, match="has no board yours") as caught,
        open_boards(wanted(tracker=TRACKER, key="yours"), nothing),
    ):
        pass
    assert "--key" in caught.value.hint


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"board": LOCAL, "host": "me@there"}, "local is this machine"),
        ({"board": LOCAL, "tracker": TRACKER}, "local is this machine"),
        ({"host": "one", "tracker": TRACKER}, "cannot be combined"),
        ({"key": "mine"}, "requires --tracker"),
        ({"board": LOCAL, "limit": 2}, "--boards limits how many"),
        ({"host": "one", "limit": 2}, "--boards limits how many"),
        ({"tracker": TRACKER, "limit": 2}, "--boards limits how many"),
    ],
)
def test_what_goes_not_together_is_refused(more, message):
    with pytest.raises(InputError, match=message) as caught:
        wanted(**more)
    assert caught.value.hint


# --- this machine, and the farm ---


@pytest.fixture
def local(monkeypatch, tmp_path):
    """This machine as a board: its store, and what is measured on."""
    server = ServerPlace("local", lambda timeout_s: f"a stream within {timeout_s} s")
    monkeypatch.setattr(boards, "local_server", lambda _board, _tell: contextlib.nullcontext(server))
    return wanted(board=LOCAL, devices={}, root=str(tmp_path / "root")), Store(LocalShell(), str(tmp_path / "root"))


def test_this_machine(farm, local):
    farm.up = True
    request, _store = local
    with open_boards(request, nothing) as opened:
        [place] = opened.places
        assert (place.name, place.dial(3), opened.lease) == ("local", "a stream within 3 s", None)
    assert farm.asked == []


def test_nobody_deploys_to_this_machine_while_it_is_measured_on(local):
    request, store = local
    with open_boards(request, nothing), pytest.raises(BusyError, match=": tune mlp"):
        store.check_free()
    store.check_free()
    with (
        store.lock(Owner("ann@desk", "deploy")),
        pytest.raises(BusyError, match="in use by ann@desk: deploy"),
        open_boards(request, nothing),
    ):
        pass


def test_nothing_is_measured_on_this_machine_once_its_lock_is_lost(local, tmp_path, monkeypatch):
    monkeypatch.setattr("toolchain.device.lock._HEARTBEAT_S", 0.05)
    with open_boards(local[0], nothing) as opened:
        os.kill(holder(tmp_path / "root"), signal.SIGKILL)
        assert soon(lambda: lost(opened.places[0]), 30)


def lost(place) -> bool:
    try:
        place.dial(3)
    except DeviceError as fault:
        return "lost its lock" in fault.message
    return False


def test_all_of_the_farms_boards(farm):
    farm.up = True
    with open_boards(wanted(), nothing) as opened:
        assert names_of(opened) == ["one", "two"]
        assert [place.key for place in opened.places] == ["one.secret", "two.secret"]
        assert [place.dial(3) for place in opened.places] == [
            f"a stream to {name} within 3 s" for name in ("one", "two")
        ]
        assert "secret" not in repr(opened)
        assert not opened.emulated
    assert farm.asked == [("rpi4", (), "tune mlp", None)]
    assert farm.lease.closed


def test_boards_of_a_type_are_shared_and_named_ones_are_not(farm):
    farm.up = True
    request = wanted(limit=2, shares=True)
    with open_boards(request, nothing):
        assert farm.terms == (2, True, request.patience)
    for host in ("one", "me@192.0.2.7:22"):
        with open_boards(wanted(host=host, shares=True), nothing):
            assert farm.terms[:2] == (0, False)


@pytest.mark.parametrize("host", ["one", "me@192.0.2.1"])
def test_a_host_that_the_farm_serves_is_taken_from_it(farm, host):
    farm.up = True
    with open_boards(wanted(host=host), nothing):
        assert farm.private == []
    assert farm.asked == [("rpi4", ("one",), "tune mlp", None)]


def test_a_host_that_the_farm_does_not_serve_is_served_for_the_run(farm):
    farm.up = True
    lines = []
    with open_boards(wanted(host="me@192.0.2.7:22", root="~/here"), lines.append):
        [device] = farm.private
        assert (device.name, device.device.host, device.device.root) == ("me@192.0.2.7:22", "me@192.0.2.7:22", "~/here")
    assert farm.asked == [("rpi4", (), "tune mlp", Path("daemon"))]
    assert "farm up" in lines[0]
    assert farm.lease.closed


def test_a_device_keeps_its_name_though_others_have_its_host(farm):
    """An alias of the SSH configuration, which differs."""
    with open_boards(wanted(host="two"), nothing):
        [device] = farm.private
    assert (device.name, device.device) == ("two", DEVICES["two"])


def test_an_alias_that_two_boards_of_the_farm_have_names_neither(farm):
    farm.up, farm.boards = True, [{"name": "one", "host": "board"}, {"name": "two", "host": "board"}]
    with open_boards(wanted(host="board"), nothing):
        assert [device.name for device in farm.private] == ["board"]


def test_the_only_device_needs_no_name(farm):
    with open_boards(wanted(devices={"one": DEVICES["one"]}, root="/data"), nothing):
        [device] = farm.private
    assert (device.name, device.device) == ("one", dataclasses.replace(DEVICES["one"], root="/data"))


@pytest.mark.parametrize(("devices", "message"), [({}, "which rpi4 device"), (DEVICES, "There are 2: one, two")])
def test_without_farm_and_name_it_is_asked_which(farm, devices, message):
    with pytest.raises(InputError, match=message) as caught, open_boards(wanted(devices=devices), nothing):
        pass
    assert "--host" in caught.value.hint


def test_a_device_of_another_type_is_refused(farm):
    with pytest.raises(InputError, match="other is a pynq"), open_boards(wanted(host="other"), nothing):
        pass


def test_one_emulated_board_makes_the_run_emulated(farm):
    farm.up, farm.lease = True, Lease(("one",), emulated=True)
    with open_boards(wanted(), nothing) as opened:
        assert opened.emulated


# --- what the farm is told ---

TRIAL = Trial(Path("a.so"), (), "fused_matmul")
GOOD = Measured((1e-3,), board="one", seconds=2.5)
BAD = Measured((), "crash", "SIGSEGV", board="one", seconds=0.5)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (Event("ended", "one", trial=TRIAL, measured=GOOD), ("one", "fused_matmul", {"ok": True, "seconds": 2.5})),
        (
            Event("ended", "one", trial=TRIAL, measured=BAD),
            ("one", "fused_matmul (crash)", {"ok": False, "seconds": 0.5}),
        ),
        (Event("quarantined", "one", "gone"), ("one", "quarantined", 1)),
        (Event("back", "one"), ("one", "ok", 0)),
        (Event("started", "one", trial=TRIAL), None),
        (Event("lost", "one", "gone"), None),
        (Event("ended", "another", trial=TRIAL, measured=GOOD), None),
    ],
)
def test_the_farm_hears_of_its_boards(event, expected):
    lease = Lease(("one",))
    Boards((), lease).report(event)
    assert lease.told == ([] if expected is None else [expected])


def test_nobody_hears_without_a_lease():
    Boards((SimpleNamespace(emulated=False),)).report(Event("quarantined", "one"))
