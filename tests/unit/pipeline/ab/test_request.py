"""How sides become ready to run: what is refused before the device, before the runner, and under the lock."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest

from tests.support import bundles, deploys, gates
from toolchain.device.lock import Owner
from toolchain.device.store import Store
from toolchain.errors import BusyError, InputError, VerificationError
from toolchain.pipeline.ab import Request, lock_sides, request
from toolchain.shell import LocalShell


@pytest.fixture
def bench(program, tmp_path, monkeypatch):
    device = gates.bench(tmp_path / "device", program)
    monkeypatch.setattr(request.device_programs, "runner", lambda _board, _stages: device.program)
    return device


@pytest.fixture
def other(tiny, tmp_path):
    return gates.alike(tiny, tmp_path / "other")


def request_of(bench, *names, **fields):
    def connect():
        return contextlib.nullcontext(bench.device)

    return Request([str(name) for name in names], bench.device.board, connect, lambda _line: None, **fields)


def unreachable():
    raise AssertionError("the device was contacted")


def test_both_sides_are_ready_under_the_lock(bench, tiny, other):
    with lock_sides(request_of(bench, other.folder, tiny.folder), "gate") as locked:
        assert [side.digest for side in locked.sides] == [other.digest, tiny.digest]
        assert (locked.device, locked.program) == (bench.device, bench.program)
        with pytest.raises(BusyError, match="gate"):
            Store(LocalShell(), str(bench.folder / "store")).check_free()
    bench.device.store.check_free()


def test_sides_that_are_here_are_checked_before_the_device_is_contacted(bench, tiny, native):
    same = dataclasses.replace(request_of(bench, tiny.folder, tiny.folder), connect=unreachable)
    with pytest.raises(InputError, match="are the same release"), lock_sides(same, "gate"):
        pass
    moved = dataclasses.replace(same, board=dataclasses.replace(native, name="rpi4"))
    for names in ([str(tiny.folder)], [str(tiny.folder), "current"]):
        request = dataclasses.replace(moved, names=names)
        with pytest.raises(VerificationError, match="not for board rpi4"), lock_sides(request, "profile"):
            pass
    nothing = dataclasses.replace(same, names=["nothing.tar"])
    with pytest.raises(InputError, match=r"there is no 'nothing.tar'"), lock_sides(nothing, "profile"):
        pass


def test_a_release_on_the_device_is_checked_before_the_runner_is_built(bench, tiny, monkeypatch):
    monkeypatch.setattr(request.device_programs, "runner", lambda _board, _stages: pytest.fail("it was built"))
    with pytest.raises(InputError, match="no such release: current"), lock_sides(request_of(bench, "current"), "gate"):
        pass
    bench.says(tiny)
    deploys.deploy(tiny, bench.program, bench.device.shell, bench.device.store)
    same = request_of(bench, tiny.folder, "current")
    with pytest.raises(InputError, match="are the same release"), lock_sides(same, "gate"):
        pass


def test_a_release_is_looked_up_again_under_the_lock(bench, tiny, other, tmp_path, monkeypatch):
    """A deploy that was waited for may have changed what `current` is."""
    newest = bundles.reweighted(tiny, tmp_path / "newest", seed=3)
    for bundle in (tiny, newest):
        bench.says(bundle)
    store = bench.device.store
    deploys.deploy(tiny, bench.program, bench.device.shell, store)

    def deploy_meanwhile(_board, _stages):
        deploys.deploy(newest, bench.program, bench.device.shell, store)
        return bench.program

    monkeypatch.setattr(request.device_programs, "runner", deploy_meanwhile)
    with lock_sides(request_of(bench, other.folder, "current"), "gate") as locked:
        assert [side.digest for side in locked.sides] == [other.digest, newest.digest]
    same = request_of(bench, newest.folder, "1")
    with lock_sides(same, "gate") as locked:
        assert locked.sides[1].digest == tiny.digest
    with store.lock(Owner.here("test")):
        store.check_free()
