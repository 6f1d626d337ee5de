"""The stages on a device: where its store is, a deploy that is checked and measured, and a measurement alone."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support import bundles
from tests.support.applications import Place
from toolchain.device.connected import Connection
from toolchain.device.deploy import Settings, roll_back
from toolchain.device.lock import Owner
from toolchain.devices import Application, Device
from toolchain.errors import DeviceError, InputError
from toolchain.models import inputs
from toolchain.pipeline.bench import bench_current
from toolchain.pipeline.deploy import deploy_bundle
from toolchain.progress import Stages
from toolchain.shell import SshOptions

BRIEFLY = Settings(budget_s=0.02)


@pytest.fixture
def connected(native, tmp_path):
    with Connection(native, Device(native.name, "local"), SshOptions(), str(tmp_path / "store")).open() as device:
        yield device


@pytest.mark.parametrize(
    ("root", "explicit", "expected"),
    [("/given", "/own", "/given"), ("", "/own", "/own"), ("", None, "~/.local/share/edge-toolchain")],
)
def test_where_the_store_is(native, root, explicit, expected):
    with Connection(native, Device(native.name, "local", root=explicit), SshOptions(), root).open() as device:
        assert device.store.root.endswith(expected.removeprefix("~"))


def test_either_the_board_or_the_device_may_be_an_emulator(connected):
    assert not connected.emulated
    assert dataclasses.replace(connected, board=dataclasses.replace(connected.board, emulated=True)).emulated
    assert dataclasses.replace(connected, entry=dataclasses.replace(connected.entry, emulated=True)).emulated


def test_a_deploy_is_checked_and_measured_and_can_be_measured_again(connected, native, tiny, program):
    lines = []
    report = deploy_bundle(tiny, program, connected, BRIEFLY, Stages(lines.append))
    assert (report.board, report.model, report.bundle_digest) == (native.name, tiny.manifest.name, tiny.digest)
    assert report.difference.ok
    assert {"deploy", "smoke", "bench"} <= set(report.stages)
    assert [str(line).split()[0] for line in lines if "local" in line or "measuring" in line][-1] == "measuring"

    measured = bench_current(inputs.Source(), connected, BRIEFLY, Stages(lines.append))
    assert measured.bundle_digest == tiny.digest
    assert measured.difference is None
    assert "deploy" not in measured.stages


def test_an_application_is_part_of_a_deploy(connected, native, tiny, program, tmp_path):
    application = Place(tmp_path / "application", tmp_path / "store").put()
    run = Application(restart=application.restart, health=application.health, within="20s")
    connected = dataclasses.replace(connected, entry=dataclasses.replace(connected.entry, run=run))
    lines = []
    report = deploy_bundle(tiny, program, connected, BRIEFLY, Stages(lines.append))
    assert application.running()[1] == tiny.digest
    assert (report.application.name, report.application.restarted) == (application.restart, True)
    assert report.stages["application"] > 0
    assert any("waiting up to 20 s" in line for line in lines)
    application.end()


def test_the_way_back_is_the_release_before(connected, native, tiny, program, tmp_path):
    other = bundles.reweighted(tiny, tmp_path / "other", seed=5)
    for bundle in (tiny, other):
        deploy_bundle(bundle, program, connected, BRIEFLY, Stages())
    with connected.store.lock(Owner("tester", "tests")):
        returned, started = roll_back(connected, print)
        assert (returned.digest, started) == (tiny.digest, None)
        with pytest.raises(DeviceError, match="no earlier release"):
            roll_back(connected, print)


def test_labels_that_do_not_fit_are_told_before_anything_is_deployed(connected, native, tiny, program, tmp_path):
    (tmp_path / "labels.txt").write_text("one\ntwo\n")
    settings = dataclasses.replace(BRIEFLY, labels=tmp_path / "labels.txt")
    with pytest.raises(InputError, match="2 labels for 4 classes"):
        deploy_bundle(tiny, program, connected, settings, Stages())
    assert not connected.store.releases.generations()
