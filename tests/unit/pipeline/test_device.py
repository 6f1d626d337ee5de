"""The stages on a device: where its store is, a deploy that is checked and measured, and a measurement alone."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support import bundles
from tests.support.applications import Place
from toolchain.device.lock import Owner
from toolchain.devices import Application, Device
from toolchain.errors import DeviceError, InputError
from toolchain.models import inputs
from toolchain.pipeline import DeviceStages, Settings, device, opened
from toolchain.shell import SshOptions

BRIEFLY = Settings(budget_s=0.02)


@pytest.fixture
def lab(native, tmp_path):
    with opened(native, Device(native.name, "local"), SshOptions(), str(tmp_path / "store")) as found:
        yield found


@pytest.mark.parametrize(
    ("root", "own", "expected"),
    [("/given", "/own", "/given"), ("", "/own", "/own"), ("", None, "~/.local/share/edge-toolchain")],
)
def test_where_the_store_is(native, root, own, expected):
    with opened(native, Device(native.name, "local", root=own), SshOptions(), root) as lab:
        assert lab.store.root.endswith(expected.removeprefix("~"))


def test_either_the_board_or_the_device_may_be_an_emulator(lab):
    assert not lab.emulated
    assert dataclasses.replace(lab, board=dataclasses.replace(lab.board, emulated=True)).emulated
    assert dataclasses.replace(lab, device=dataclasses.replace(lab.device, emulated=True)).emulated


def test_a_deploy_is_checked_and_measured_and_can_be_measured_again(lab, native, tiny, program):
    told = []
    stages = DeviceStages(native, told.append)
    report = stages.deploy(tiny, None, program, lab, BRIEFLY)
    assert (report.board, report.model, report.bundle_digest) == (native.name, tiny.manifest.name, tiny.digest)
    assert report.difference.ok
    assert {"deploy", "smoke", "bench"} <= set(report.stages)
    assert [str(line).split()[0] for line in told if "local" in line or "measuring" in line][-1] == "measuring"

    found = DeviceStages(native, told.append).bench(inputs.Source(), lab, BRIEFLY)
    assert found.bundle_digest == tiny.digest
    assert found.difference is None
    assert "deploy" not in found.stages


def test_an_application_is_part_of_a_deploy(lab, native, tiny, program, tmp_path):
    place = Place(tmp_path / "application", tmp_path / "store").put()
    run = Application(restart=place.restart, health=place.health, within="20s")
    lab = dataclasses.replace(lab, device=dataclasses.replace(lab.device, run=run))
    told = []
    report = DeviceStages(native, told.append).deploy(tiny, None, program, lab, BRIEFLY)
    assert place.running()[1] == tiny.digest
    assert (report.application.name, report.application.restarted) == (place.restart, True)
    assert report.stages["application"] > 0
    assert any("waiting up to 20 s" in line for line in told)
    place.end()


def test_the_way_back_is_the_release_before(lab, native, tiny, program, tmp_path):
    other = bundles.reweighted(tiny, tmp_path / "other", seed=5)
    for made in (tiny, other):
        DeviceStages(native, print).deploy(made, None, program, lab, BRIEFLY)
    with lab.store.lock(Owner("tester", "tests")):
        found, started = device.roll_back(lab, print)
        assert (found.digest, started) == (tiny.digest, None)
        with pytest.raises(DeviceError, match="no earlier release"):
            device.roll_back(lab, print)


def test_labels_that_do_not_fit_are_told_before_anything_is_deployed(lab, native, tiny, program, tmp_path):
    (tmp_path / "labels.txt").write_text("one\ntwo\n")
    settings = dataclasses.replace(BRIEFLY, labels=tmp_path / "labels.txt")
    with pytest.raises(InputError, match="2 labels for 4 classes"):
        DeviceStages(native, print).deploy(tiny, None, program, lab, settings)
    assert not lab.store.generations()
