"""Which devices will do for a session of tests, and what is told when none is free; sessions are in integration."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest

from toolchain import board
from toolchain.device import waiting
from toolchain.device.connected import ConnectedDevice, Connection
from toolchain.device.deploy import Settings
from toolchain.device.lock import Owner
from toolchain.device.store import Store
from toolchain.device.waiting import Patience
from toolchain.devices import Device
from toolchain.errors import BusyError, DeviceError, InputError
from toolchain.models.request import Model
from toolchain.pipeline import rig
from toolchain.shell import LocalShell, SshOptions

ME = Owner("me@desk", "pytest")
RPI4 = board.load("rpi4").resolved()
LAB = {
    "one": Device(board="rpi4", host="me@one"),
    "two": Device(board="rpi4", host="me@two"),
    "three": Device(board="pynq", host="me@three"),
}


def hosts(kind, *names: str) -> list[str]:
    return [candidate.host for candidate in rig.candidates(kind, names, LAB)]


def test_all_devices_of_the_type_will_do():
    assert hosts(RPI4) == ["me@one", "me@two"]


def test_named_devices_and_addresses():
    assert hosts(RPI4, "two", "x@y", "two") == ["me@two", "x@y"]
    with pytest.raises(InputError, match="is a pynq, not a rpi4"):
        hosts(RPI4, "three")


def test_this_machine():
    local = board.load("local").resolved()
    assert hosts(local) == ["local"]
    with pytest.raises(InputError, match="takes no host"):
        hosts(local, "one")


def test_no_device():
    with pytest.raises(InputError, match="which rpi4 device"):
        rig.candidates(RPI4, (), {})


BUSY = [BusyError(f"{name} is busy", hint="h", owner=f"ann@{name}: tune") for name in "ab"]
LOST = DeviceError("c cannot be reached")


@pytest.mark.parametrize(
    ("faults", "kind", "message"),
    [
        ([BUSY[0]], BusyError, "a is busy"),
        ([LOST, LOST], DeviceError, "c cannot be reached"),
        ([LOST, BUSY[0], BUSY[1]], BusyError, "none of 3 devices is free: ann@a: tune; ann@b: tune"),
    ],
)
def test_none_is_free(faults, kind, message):
    fault = rig._combine(faults)
    assert (type(fault), fault.message) == (kind, message)


@pytest.fixture
def devices(native, tmp_path):
    """Two devices that are this machine, with a store of their own each."""
    return [Device(board=native.name, host="local", root=str(tmp_path / name)) for name in "ab"]


def held(native, devices, seconds: float = 0.0):
    return rig.hold_free(native, devices, SshOptions(), ME, Patience(seconds))


def test_two_sessions_have_two_devices_and_a_third_has_none(native, devices):
    with held(native, devices) as first, held(native, devices) as second:
        assert {first.store.root, second.store.root} == {device.root for device in devices}
        with pytest.raises(BusyError, match="none of 2 devices is free: me@desk: pytest"), held(native, devices):
            pass
    with held(native, devices):
        pass


class Flaky:
    """Devices that are lost or busy as a test says, and what was asked of them."""

    def __init__(self) -> None:
        self.lost: set[str] = set()
        self.busy: set[str] = set()
        self.open: list[str] = []
        self.tries: list[str] = []

    @contextlib.contextmanager
    def connect(self, connection):
        host = connection.entry.host
        self.tries.append(host)
        if host in self.lost:
            raise DeviceError(f"{host} cannot be reached")
        self.open.append(host)
        yield ConnectedDevice(connection.board, connection.entry, host, self.store(host))
        self.open.remove(host)

    def store(self, host: str) -> SimpleNamespace:
        @contextlib.contextmanager
        def lock(_owner):
            if host in self.lost:
                raise DeviceError(f"{host} is lost")
            if host in self.busy:
                self.free_next()
                raise BusyError(f"{host} is busy", owner=f"ann@{host}")
            yield SimpleNamespace()

        return SimpleNamespace(lock=lock)

    def free_next(self) -> None:
        """Called each time that a device was found busy."""


@pytest.fixture
def flaky(monkeypatch):
    connections = Flaky()
    monkeypatch.setattr(Connection, "open", lambda connection: connections.connect(connection))  # noqa: PLW0108 - a bound method gets no `self`
    monkeypatch.setattr(rig._ORDER, "sample", lambda all_of_them, _count: list(all_of_them))
    monkeypatch.setattr(waiting.time, "sleep", lambda _seconds: None)
    return connections


THREE = [Device(board="rpi4", host=host) for host in ("me@one", "me@two", "me@three")]


def taken_of(devices, seconds: float = 100.0):
    return rig.hold_free(RPI4, devices, SshOptions(), ME, Patience(seconds))


def test_devices_that_are_not_taken_are_let_go(flaky):
    flaky.busy = {"me@one"}
    with taken_of(THREE) as device_rig:
        assert device_rig.entry.host == "me@two"
        assert flaky.open == ["me@two"]
    assert flaky.open == []


def test_a_device_whose_connection_is_lost_is_tried_again(flaky, monkeypatch):
    """It was busy, and restarted: its connection is of no use any more, and a new one is."""
    monkeypatch.setattr(rig, "_MIN_REST_S", 0.0)
    flaky.busy = {"me@one", "me@two"}
    losses: list[set[str]] = [set(), {"me@one"}, {"me@one"}, set()]

    def restart() -> None:
        if losses:
            flaky.lost = losses.pop(0)
        else:
            flaky.lost, flaky.busy = set(), {"me@two"}

    flaky.free_next = restart
    with taken_of(THREE[:2]) as device_rig:
        assert device_rig.entry.host == "me@one"
        assert flaky.open == ["me@one"]
    assert flaky.tries.count("me@one") >= 2


def test_a_device_that_cannot_be_reached_is_left_alone_while_another_is_waited_for(flaky):
    """Each time would take as long as it takes to give it up."""
    flaky.lost, flaky.busy = {"me@one"}, {"me@two"}
    polls = iter(range(20))
    flaky.free_next = lambda: flaky.busy.clear() if next(polls, None) is None else None
    with taken_of(THREE[:2]) as device_rig:
        assert device_rig.entry.host == "me@two"
    assert flaky.tries == ["me@one", "me@two"]


def test_a_lock_that_is_lost_is_told_at_once(native, devices):
    """The next sign of life is seconds away, and tests are short."""
    with held(native, devices[:1]) as device:
        device.check()
        device.lease._holder.close()
        with pytest.raises(DeviceError, match="lost its lock"):
            device.check()


def test_a_release_for_the_time_of_a_session(native, devices, tiny):
    with held(native, devices[:1]) as device:
        device.check()
        with rig.deploy_release(
            device, Model(str(tiny.folder)), Settings(budget_s=0.05), lambda _line: None
        ) as release:
            [spec] = release.release.manifest.inputs
            assert release.digest == f"sha256:{tiny.digest}"
            assert release.latency.median > 0
            assert repr(release) == f"<dense {tiny.digest[:16]} on <{native.name} at local>>"
            first = release.run({spec.name: np.ones(spec.shape, spec.dtype)})
            second = release.run({spec.name: np.zeros(spec.shape, spec.dtype)})
            [name] = first
            assert not np.array_equal(first[name], second[name])
            with pytest.raises(InputError, match="do not fit the model's inputs"):
                release.run({"y": np.zeros(1)})
        with pytest.raises(BusyError, match="in use by me@desk: pytest"):
            Store(LocalShell(), device.store.root).check_free()
    Store(LocalShell(), devices[0].root).check_free()
