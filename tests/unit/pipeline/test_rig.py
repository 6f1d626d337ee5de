"""Which devices will do for a session of tests, and what is told when none is free; sessions are in integration."""

from __future__ import annotations

import numpy as np
import pytest

from toolchain import board
from toolchain.device.lock import Owner
from toolchain.device.store import Store
from toolchain.device.waiting import Patience
from toolchain.devices import Device
from toolchain.errors import BusyError, DeviceError, InputError
from toolchain.pipeline import Settings, rig
from toolchain.shell import LocalShell, SshOptions

ME = Owner("me@desk", "pytest")
RPI4 = board.load("rpi4").resolved()
LAB = {
    "one": Device(board="rpi4", host="me@one"),
    "two": Device(board="rpi4", host="me@two"),
    "three": Device(board="pynq", host="me@three"),
}


def hosts(kind, *words: str) -> list[str]:
    return [one.host for one in rig.candidates(kind, words, LAB)]


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


BUSY = [BusyError(f"{one} is busy", hint="h", owner=f"ann@{one}: tune") for one in "ab"]
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
    found = rig._none_free(faults)
    assert (type(found), found.message) == (kind, message)


@pytest.fixture
def devices(native, tmp_path):
    """Two devices that are this machine, with a store of their own each."""
    return [Device(board=native.name, host="local", root=str(tmp_path / name)) for name in "ab"]


def held(native, devices, seconds: float = 0.0):
    return rig.held(native, devices, SshOptions(), ME, Patience(seconds))


def test_two_sessions_have_two_devices_and_a_third_has_none(native, devices):
    with held(native, devices) as one, held(native, devices) as other:
        assert {one.store.root, other.store.root} == {device.root for device in devices}
        with pytest.raises(BusyError, match="none of 2 devices is free: me@desk: pytest"), held(native, devices):
            pass
    with held(native, devices):
        pass


def test_a_release_for_the_time_of_a_session(native, devices, tiny):
    with held(native, devices[:1]) as one:
        one.check()
        with rig.released(one, str(tiny.folder), Settings(budget_s=0.05), lambda _line: None) as found:
            [spec] = found.place.manifest.inputs
            assert found.digest == f"sha256:{tiny.digest}"
            assert found.latency.median > 0
            assert repr(found) == f"<dense {tiny.digest[:16]} on <{native.name} at local>>"
            first = found.run({spec.name: np.ones(spec.shape, spec.dtype)})
            second = found.run({spec.name: np.zeros(spec.shape, spec.dtype)})
            [name] = first
            assert not np.array_equal(first[name], second[name])
            with pytest.raises(InputError, match="no inputs of the model"):
                found.run({"y": np.zeros(1)})
        with pytest.raises(BusyError, match="me@desk holds it: pytest"):
            Store(LocalShell(), one.store.root).check_free()
    Store(LocalShell(), devices[0].root).check_free()
