"""Deploys to this machine, end to end and with a real runner; and what a deploy refuses."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.support import bundles, deploys
from toolchain import bundle as bundle_files
from toolchain import files, tensors
from toolchain.device import bench, fit, runner, verification
from toolchain.device.lock import Owner
from toolchain.device.probe.facts import DeviceFacts
from toolchain.device.runner import Run
from toolchain.device.shipment import Shipment
from toolchain.device.store import Store
from toolchain.device.verification import Samples
from toolchain.errors import DeviceError, VerificationError
from toolchain.progress import Stages
from toolchain.rankings import Ranking
from toolchain.shell import LocalShell


@pytest.fixture
def root(tmp_path):
    return tmp_path / "device"


@pytest.fixture
def ship(root, program):
    """Deploy a bundle to `root`."""

    def ship(bundle, shell=None, **options):
        shell = shell or LocalShell()
        return deploys.deploy(bundle, program, shell, Store(shell, str(root)), **{"keep": 2, **options})

    return ship


@pytest.fixture
def other(tiny, tmp_path):
    """The same library with other weights."""
    return bundles.reweighted(tiny, tmp_path / "other", seed=3)


@pytest.fixture(scope="session")
def facts(tiny):
    """A device that the bundle fits on."""
    return DeviceFacts(
        machine=tiny.manifest.machine, kernel="Linux 6.1", glibc="9.99", cpu="a CPU",
        cpu_features=(*tiny.manifest.cpu_features, "fpu"), cpus=4, memory_kib=1 << 20, free_kib=1 << 20, lacks=(),
    )  # fmt: skip


@pytest.fixture
def fitting(tiny, program, facts):
    return tiny, program, facts


class DamagingShell(LocalShell):
    """A device whose storage spoils the first uploads of one blob."""

    def __init__(self, digest: str, times: int) -> None:
        super().__init__()
        self.digest = digest
        self.times = times

    def push(self, source, target, *, offset=0, progress=None):
        super().push(source, target, offset=offset, progress=progress)
        if Path(target).name == self.digest and self.times > 0:
            self.times -= 1
            with Path(target).open("r+b") as stream:
                stream.write(b"spoiled")


def generations(root: Path) -> list[tuple[int, bool]]:
    return [
        (generation.number, generation.current) for generation in Store(LocalShell(), str(root)).releases.generations()
    ]


# --- what is refused before anything is sent ---


def test_fitting_device(tiny, program, facts):
    fit.check_fits(tiny.manifest, program, facts)


@pytest.mark.parametrize("glibc", ["", "2.99"])
def test_unknown_or_newer_glibc_fits(tiny, program, facts, glibc):
    fit.check_fits(tiny.manifest, program, dataclasses.replace(facts, glibc=glibc))


@pytest.mark.parametrize(
    ("device", "manifest", "message", "details"),
    [
        ({"machine": "armv7l"}, {}, "the device is armv7l", ""),
        ({"machine": "s390x"}, {}, "the device is s390x", ""),
        ({"cpu_features": ("fpu",)}, {"cpu_features": ("avx2", "fma", "fpu")}, "not support avx2, fma$", "a CPU"),
        ({"glibc": "2.5"}, {}, "has glibc 2.5, but glibc 2", "by "),
        ({"glibc": "", "musl": True}, {}, "runner is for glibc, but the device has musl", ""),
        ({"glibc": "2.36"}, {"glibc": "2.41"}, "but glibc 2.41 or newer is needed", "by the library"),
    ],
)
def test_devices_that_do_not_fit(fitting, device, manifest, message, details):
    bundle, program, facts = fitting
    with pytest.raises(VerificationError, match=message) as caught:
        fit.check_fits(dataclasses.replace(bundle.manifest, **manifest), program, dataclasses.replace(facts, **device))
    assert details in caught.value.details
    assert caught.value.hint


def test_a_program_for_musl_needs_a_device_with_musl(fitting):
    _, program, facts = fitting
    for_musl = dataclasses.replace(program, musl=True, glibc="")
    fit.check_runs(for_musl, dataclasses.replace(facts, glibc="", musl=True))
    with pytest.raises(VerificationError, match="runner is for musl, but the device has glibc"):
        fit.check_runs(for_musl, facts)


def test_a_library_that_musl_cannot_load(tiny, facts, tmp_path):
    """Functions that glibc alone has come from code of other compilers; ours calls none."""
    fit.check_library(tiny, dataclasses.replace(facts, musl=True))
    source = "int __snprintf_chk(void); int f(void) { return __snprintf_chk(); }"
    argv = ["c++", "-shared", "-fPIC", "-nostartfiles", "-x", "c", "-", "-o", tmp_path / "model.so"]
    subprocess.run(argv, input=source, text=True, check=True)
    foreign = dataclasses.replace(tiny, folder=tmp_path)
    fit.check_library(foreign, facts)
    with pytest.raises(VerificationError, match="musl has no __snprintf_chk"):
        fit.check_library(foreign, dataclasses.replace(facts, musl=True))


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        ({"tvm": "0.26.0"}, r"compiled with TVM 0\.26\.0, but the runner has TVM 0\.27\.0\.post1"),
        ({"tvm_ffi": "0.1.15.post2"}, r"compiled with TVM-FFI 0\.1\.15, but the runner has TVM-FFI 0\.1\.14"),
        ({"tvm": None}, r"compiled with TVM \(unknown\)"),
    ],
)
def test_bundles_of_another_tvm(fitting, versions, message):
    bundle, program, facts = fitting
    changed_versions = {name: text for name, text in {**bundle.manifest.versions, **versions}.items() if text}
    with pytest.raises(VerificationError, match=message) as caught:
        fit.check_fits(dataclasses.replace(bundle.manifest, versions=changed_versions), program, facts)
    assert (caught.value.exit_code, caught.value.hint) == (5, "build it again with this toolchain")


def test_post_releases_share_an_abi(tiny, program, facts):
    versions = {**tiny.manifest.versions, "tvm_ffi": "0.1.14"}
    fit.check_fits(dataclasses.replace(tiny.manifest, versions=versions), program, facts)


@pytest.mark.parametrize(
    "changes",
    [
        {"machine": "vax"},
        {"glibc": "9.99.9"},
        {"cpu_features": ("no-such-unit",)},
        {"versions": {"tvm": "0.1", "tvm_ffi": "0.1.14"}},
        {"versions": {"tvm": "0.27.0.post1", "tvm_ffi": "0.2.0"}},
    ],
    ids=["machine", "glibc", "cpu", "tvm", "abi"],
)
def test_misfits_are_refused_before_anything_is_sent(tiny, ship, root, facts, monkeypatch, changes):
    """The device's own facts but for glibc, which is older than any that a bundle may ask for here."""
    monkeypatch.setattr(Store, "facts", lambda _store: facts)
    shell = LocalShell()
    misfit = dataclasses.replace(tiny, manifest=dataclasses.replace(tiny.manifest, **changes))
    with pytest.raises(VerificationError) as caught:
        ship(misfit, shell)
    assert caught.value.exit_code == 5
    assert shell.bytes_sent == 0
    assert not (root / "blobs").exists()


def test_device_without_programs(tiny, program, facts):
    with pytest.raises(DeviceError, match="lacks flock, sync"):
        fit.check_fits(tiny.manifest, program, dataclasses.replace(facts, lacks=("flock", "sync")))


def test_refused_device_keeps_its_release(tiny, other, ship, root):
    ship(tiny)
    foreign = dataclasses.replace(other, manifest=dataclasses.replace(other.manifest, machine="vax"))
    with pytest.raises(VerificationError, match="for vax"):
        ship(foreign)
    assert bundles.whole_release(root) == tiny.digest


def test_space_is_checked_before_the_upload(tiny, ship, root, monkeypatch):
    honest = Store.facts
    monkeypatch.setattr(Store, "facts", lambda store: dataclasses.replace(honest(store), free_kib=2000))
    shell = LocalShell()
    with pytest.raises(DeviceError, match=r"has 2\.\d MB free, but .* MB are needed") as caught:
        ship(tiny, shell)
    assert caught.value.exit_code == 4
    assert shell.bytes_sent == 0
    assert not (root / "current").exists()


def test_full_device_takes_what_it_has(tiny, ship, monkeypatch):
    ship(tiny)
    honest = Store.facts
    monkeypatch.setattr(Store, "facts", lambda store: dataclasses.replace(honest(store), free_kib=0))
    assert ship(tiny).transfer.blobs_sent == 0


# --- samples and shipments ---


def test_samples_of_a_reference(tiny):
    samples = verification.samples_of(tiny)
    assert {name: value.shape for name, value in samples.inputs.items()} == {"x": (1, 8)}
    assert {name: value.shape for name, value in samples.expected.items()} == {"y": (1, 4)}


def test_samples_without_a_reference(tiny, tmp_path):
    bare = bundles.variant(tiny, tmp_path / "bare", {})
    (bare.folder / bundle_files.REFERENCE).unlink()
    first, second = (verification.samples_of(bare, unchecked=True) for _ in range(2))
    assert first.expected is None
    assert np.array_equal(first.inputs["x"], second.inputs["x"])


def test_reference_of_another_model(tiny, tmp_path):
    wrong = tensors.encode({"input.x": np.zeros((2, 8), np.float32), "output.y": np.zeros((1, 4), np.float32)})
    with pytest.raises(VerificationError, match="does not fit its model") as caught:
        verification.samples_of(bundles.variant(tiny, tmp_path / "wrong", {bundle_files.REFERENCE: wrong}))
    assert "(2, 8)" in caught.value.details


def test_shipment(tiny, program, tmp_path):
    shipment = Shipment.of_run(program, verification.samples_of(tiny).inputs, tmp_path).with_release(tiny, tmp_path)
    assert set(shipment.folders) == {"runners", "inputs", "releases"}
    name, release = shipment.folders["releases"]
    assert name == tiny.digest == release["oci.json"]
    assert set(release) == {*tiny.manifest.files, "manifest.json", "oci.json"}
    assert set(shipment.programs) == {program.sha256}
    linked = {digest for _, content in shipment.folders.values() for digest in content.values()}
    assert linked == set(shipment.blobs)
    assert all(files.sha256_file(path) == digest for digest, path in shipment.blobs.items())


# --- end to end ---


def test_first_deploy(tiny, ship, root, program):
    steps = []
    stages = Stages(steps.append)
    deployed = ship(tiny, stages=stages)
    assert deployed.changed
    assert deployed.digest == bundles.whole_release(root) == tiny.digest
    assert deployed.difference.ok
    assert deployed.run.samples_ns == ()
    assert set(stages.seconds) == {"deploy", "smoke"}
    blobs = len(tiny.manifest.files) + 2
    assert (deployed.transfer.blobs_sent, deployed.transfer.blobs_skipped) == (blobs, 0)
    assert deployed.transfer.bytes_sent == sum(path.stat().st_size for path in (root / "blobs" / "sha256").iterdir())
    assert deployed.transfer.seconds > 0
    assert len({str(step) for step in steps}) == 1, "one bar"
    amounts = [step.done for step in steps]
    assert amounts == sorted(amounts)
    assert {(step.total, step.unit) for step in steps} == {(amounts[-1], "MB")}
    assert amounts[-1] == deployed.transfer.bytes_sent
    assert list((root / "run").iterdir()) == []


def test_second_deploy_sends_nothing(tiny, ship, root):
    first = ship(tiny)
    second = ship(tiny)
    assert not second.changed
    assert (second.transfer.blobs_sent, second.transfer.bytes_sent) == (0, 0)
    assert second.transfer.blobs_skipped == first.transfer.blobs_sent
    assert generations(root) == [(1, True)]


def test_changed_weights_send_only_themselves(tiny, other, ship, root):
    ship(tiny)
    deployed = ship(other)
    changed = [other.manifest.files["params.safetensors"].size, len(other.manifest.encoded())]
    changed.append(len(bundle_files.oci_manifest(other.manifest)))
    assert deployed.changed
    assert (deployed.transfer.blobs_sent, deployed.transfer.bytes_sent) == (1, sum(changed))
    assert bundles.whole_release(root) == other.digest
    assert generations(root) == [(1, False), (2, True)]


def test_old_release_is_sent_back_for_nothing(tiny, other, ship):
    ship(tiny)
    ship(other)
    deployed = ship(tiny)
    assert (deployed.changed, deployed.transfer.blobs_sent) == (True, 0)


def test_keep(tiny, other, ship, root):
    ship(tiny)
    ship(other, keep=1)
    assert generations(root) == [(2, True)]
    assert [path.name for path in (root / "releases").iterdir()] == [other.digest]
    assert ship(tiny, keep=1).transfer.blobs_sent == 1


def test_changed_inputs_send_only_themselves(tiny, ship, tmp_path):
    ship(tiny)
    reference = tensors.load(tiny.reference)
    samples = {"input.x": reference["input.x"] * 0, "output.y": reference["output.y"]}
    moved = bundles.variant(tiny, tmp_path / "moved", {bundle_files.REFERENCE: tensors.encode(samples)})
    assert moved.digest != tiny.digest
    shell = LocalShell()
    with pytest.raises(VerificationError, match="from the reference"):
        ship(moved, shell)
    assert 0 < shell.bytes_sent < 1000 + len(moved.manifest.encoded()) + len(bundle_files.oci_manifest(moved.manifest))


def test_tampered_release_is_healed(tiny, ship, root):
    ship(tiny)
    for name in ("params.safetensors", "manifest.json"):
        path = root / "current" / name
        path.chmod(0o644)
        path.write_bytes(b"tampered with")
    deployed = ship(tiny)
    assert (deployed.changed, deployed.transfer.blobs_sent) == (False, 1)
    assert bundles.whole_release(root) == tiny.digest


def test_replaced_and_missing_files_are_healed(tiny, ship, root, program):
    ship(tiny)
    (root / "current" / "model.so").unlink()
    (root / "current" / "graph.json").unlink()
    (root / "current" / "graph.json").write_text("{}")
    shutil.rmtree(root / "runners" / program.sha256)
    assert ship(tiny).transfer.blobs_sent == 0
    assert bundles.whole_release(root) == tiny.digest


def test_deploy_without_a_reference(tiny, ship, root, tmp_path):
    bare = bundles.variant(tiny, tmp_path / "bare", {})
    (bare.folder / bundle_files.REFERENCE).unlink()
    with pytest.raises(VerificationError, match="has no reference outputs") as caught:
        ship(bare)
    assert "--unchecked" in caught.value.hint
    assert not generations(root)
    deployed = ship(bare, unchecked=True)
    assert deployed.difference is None
    assert deployed.run.outputs["y"].shape == (1, 4)
    assert bundles.whole_release(root) == tiny.digest
    store = Store(LocalShell(), str(root))
    assert store.releases.is_unchecked(tiny.digest)
    ship(tiny)
    assert not store.releases.is_unchecked(tiny.digest)


def test_the_mark_of_a_release_goes_with_it(tiny, other, ship, root):
    (other.folder / bundle_files.REFERENCE).unlink()
    ship(other, unchecked=True)
    assert [path.name for path in (root / "unchecked").iterdir()] == [other.digest]
    ship(tiny, keep=1)
    assert not list((root / "unchecked").iterdir())


def test_upload_damaged_once_is_sent_again(tiny, ship, root):
    deployed = ship(tiny, DamagingShell(tiny.manifest.files["model.so"].sha256, times=1))
    assert deployed.changed
    assert bundles.whole_release(root) == tiny.digest


def test_upload_damaged_twice_is_refused(tiny, other, ship, root):
    ship(tiny)
    digest = other.manifest.files["params.safetensors"].sha256
    with pytest.raises(VerificationError, match="a different digest on the device") as caught:
        ship(other, DamagingShell(digest, times=2))
    assert caught.value.details == digest
    assert bundles.whole_release(root) == tiny.digest
    assert ship(other).changed


def test_wrong_partial_upload_is_sent_again(tiny, ship, root):
    """Whatever an upload was cut or spoiled by: what is longer than its blob, or another, is not kept."""
    for index, name in enumerate(("model.so", "graph.json")):
        partial = root / "blobs" / "partial" / "earlier" / tiny.manifest.files[name].sha256
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(b"x" * (10 + index * 1_000_000))
    ship(tiny)
    assert bundles.whole_release(root) == tiny.digest


# --- a release that does not do what it should ---


def _with_wrong_reference(bundle, folder):
    reference = tensors.load(bundle.reference)
    return bundles.variant(
        bundle, folder, {bundle_files.REFERENCE: tensors.encode({**reference, "output.y": reference["output.y"] + 1})}
    )


def test_wrong_outputs_are_refused(tiny, other, ship, root, tmp_path):
    ship(tiny)
    with pytest.raises(VerificationError, match="from the reference for dense") as caught:
        ship(_with_wrong_reference(other, tmp_path / "wrong"))
    assert "tolerance 0.0001" in caught.value.details
    assert bundles.whole_release(root) == tiny.digest
    assert generations(root) == [(1, True)]


def test_tolerance_can_be_widened(other, ship, tmp_path):
    deployed = ship(_with_wrong_reference(other, tmp_path / "wrong"), tolerance=10.0)
    assert deployed.difference.ok
    assert deployed.difference.tolerance == 10.0


@pytest.mark.parametrize("broken", ["model.so", "params.safetensors"])
def test_release_that_does_not_run_is_refused(tiny, ship, root, tmp_path, broken):
    ship(tiny)
    with pytest.raises(DeviceError, match="does not run") as caught:
        ship(bundles.variant(tiny, tmp_path / "broken", {broken: b"neither a library nor weights " * 20}))
    assert caught.value.exit_code == 4
    assert broken in caught.value.details
    assert bundles.whole_release(root) == tiny.digest
    assert list((root / "run").iterdir()) == []


def _run(outputs):
    return Run(outputs=outputs, samples_ns=(), warmup_ns=(1,), load_ms=0.0, threads=1, peak_rss_kib=1)


def test_outputs_of_another_signature(tiny):
    with pytest.raises(VerificationError, match="signature") as caught:
        verification.check_outputs(_run({"y": np.zeros((1, 5), np.float32)}), Samples({}, None), tiny.manifest, None)
    assert "(1, 5)" in caught.value.details


def test_outputs_that_are_not_finite(tiny):
    expected = {"y": np.ones((1, 4), np.float32)}
    with pytest.raises(VerificationError, match="outputs differ from the reference"):
        verification.check_outputs(_run({"y": expected["y"] * np.nan}), Samples({}, expected), tiny.manifest, 1e9)


def test_rows_of_nearly_equal_scores_in_another_order(tiny):
    expected = {"y": np.array([[1.0, 2.0, 3.0, 4.0]], np.float32)}
    got = _run({"y": expected["y"][:, [1, 0, 2, 3]]})
    scores = np.array([[0.9, 0.89999, 0.5, 0.1]])
    order = Ranking(("y",), scores, np.empty((1, 0)), {"y": np.empty((1, 0, 1), np.float32)})
    difference = verification.check_outputs(got, Samples({}, expected, rankings=(order,)), tiny.manifest, None)
    assert difference.ok
    assert difference.reordered == ("y",)
    with pytest.raises(VerificationError, match="outputs differ from the reference"):
        verification.check_outputs(got, Samples({}, expected), tiny.manifest, None)


# --- benchmarks of what was deployed ---


def test_measure(tiny, ship, root, program):
    deployed = ship(tiny)
    shell = LocalShell()
    store = Store(shell, str(root))
    current = bench.current(store, shell.name)
    assert (current.generation.digest, current.manifest) == (tiny.digest, tiny.manifest)
    plan = runner.Plan(budget_s=0.0, min_runs=12, warmup_runs=2)
    inputs = verification.samples_of(tiny).inputs
    device = deploys.connected(shell, store)
    device = dataclasses.replace(device, entry=dataclasses.replace(device.entry, emulated=True))
    with store.lock(Owner.here("test")):
        measured = bench.measure(current.release(program, device, 1), inputs, plan)
    assert len(measured.latency.samples) == 12
    assert len(measured.run.warmup_ns) == 3
    assert measured.run.threads == 1
    assert np.array_equal(measured.run.outputs["y"], deployed.run.outputs["y"])
    assert "emulated" in measured.warnings[0]
    assert bundles.whole_release(root) == tiny.digest


def test_nothing_to_measure(root):
    with pytest.raises(DeviceError, match="no release is deployed on here"):
        bench.current(Store(LocalShell(), str(root)), "here")
