"""What is known before a build is told before it, all of it at once; a device is asked and left as it is."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import resource
import subprocess

import pytest

from tests.support import bundles, nets
from tests.support.parts import require
from toolchain import architecture, board
from toolchain.compile.request import BuildRequest
from toolchain.device.connected import ConnectedDevice, explain_host
from toolchain.device.lock import Owner
from toolchain.device.store import Store
from toolchain.devices import Device
from toolchain.errors import BusyError, DeviceError, InputError, VerificationError
from toolchain.models import inputs
from toolchain.models.request import Model
from toolchain.pipeline import preflight
from toolchain.pipeline.source import BundleSource, Loaded
from toolchain.shell import LocalShell


@pytest.fixture
def device(native, tmp_path):
    with LocalShell() as shell:
        yield ConnectedDevice(
            native, Device(board=native.name, host="local"), shell, Store(shell, str(tmp_path / "device"))
        )


@pytest.fixture
def facts(device):
    return device.store.facts()


@pytest.fixture
def connect(device):
    return lambda: contextlib.nullcontext(device)


MUSL = {"musl": True, "musl_loaders": (architecture.of_machine(platform.machine()).musl_loader,)}


def job_of(path, kind):
    return BundleSource(BuildRequest(Model(str(path), {}, inputs.Source()), kind))


# --- the device ------------------------------------------------------------------------------------------------------


def test_this_machine_is_what_its_board_file_says(native, facts):
    preflight.check_board(native, facts)


@pytest.mark.parametrize(
    ("changed", "message", "hint"),
    [
        ({"machine": "armv7l"}, r"board local is for .*, and the device is armv7l", "--board"),
        (
            {"machine": "s390x"},
            r"board local is for .*, and the device is s390x",
            "supported: aarch64, armv7l, riscv64",
        ),
        ({"glibc": "2.27"}, r"has glibc 2\.27, and glibc 2\.28 or newer", "newer glibc"),
        ({"glibc": "", "musl": True, "musl_loaders": ()}, r"has musl, but no /lib/ld-musl-", "loader"),
        ({"glibc": "", **MUSL, "musl_version": "1.1.24"}, r"has musl 1\.1\.24, and musl 1\.2\.3", "newer system"),
    ],
)
def test_another_device_than_the_board_file_says(native, facts, changed, message, hint):
    with pytest.raises(VerificationError, match=message) as caught:
        preflight.check_board(native, dataclasses.replace(facts, **changed))
    assert hint in caught.value.hint


def test_the_boards_of_the_devices_machine_are_named(native, facts):
    with pytest.raises(VerificationError) as caught:
        preflight.check_board(native, dataclasses.replace(facts, machine="armv7l"))
    assert "pynq" in caught.value.details


def test_a_cpu_without_a_feature(native, facts):
    kind = dataclasses.replace(native, cpu_features=("fpu", "warp_drive"))
    with pytest.raises(VerificationError, match="CPU has no warp_drive"):
        preflight.check_board(kind, dataclasses.replace(facts, cpu_features=("fpu",)))


def test_a_device_with_musl(native, facts):
    preflight.check_board(native, dataclasses.replace(facts, glibc="", **MUSL))


def test_a_c_library_that_says_nothing_is_left_to_the_deploy(native, facts):
    preflight.check_board(native, dataclasses.replace(facts, glibc=""))


def test_androids_c_library_is_another_one(facts):
    kind = board.load("android-arm64")
    preflight.check_board(
        kind, dataclasses.replace(facts, machine=kind.machine, glibc="", cpu_features=kind.cpu_features)
    )


def test_a_device_without_tools(native, facts):
    with pytest.raises(DeviceError, match="lacks flock"):
        preflight.check_board(native, dataclasses.replace(facts, lacks=("flock",)))


# --- before a command ------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path):
    return tmp_path / nets.save(nets.relu(), tmp_path)


def test_what_a_build_needs_is_there(native, small, connect):
    ready = preflight.before_build(job_of(small, native), connect)
    assert isinstance(ready.subject, Loaded)
    assert list(ready.subject.arrays) == ["x"]
    assert ready.triple == native.triple


def test_the_programs_of_a_device_with_musl(native, small, connect, monkeypatch):
    plain = Store.facts
    monkeypatch.setattr(Store, "facts", lambda self: dataclasses.replace(plain(self), glibc="", **MUSL))
    ready = preflight.before_build(job_of(small, native), connect)
    assert ready.triple == architecture.of_machine(native.machine).musl


def test_a_bundle_is_opened_once(native, tiny, connect, tmp_path):
    assert preflight.before_deploy(job_of(tiny.folder, native), tmp_path / "out", connect).subject == tiny


def test_a_busy_device_and_a_missing_file_are_told_together(native, small, connect, device, tmp_path):
    with (
        Store(LocalShell(), device.store.root).lock(Owner.here("deploy")),
        pytest.raises(BusyError, match="2 problems: device, labels") as caught,
    ):
        preflight.before_build(job_of(small, native), connect, tmp_path / "none.txt")
    assert "is busy" in caught.value.details
    assert "none.txt" in caught.value.details


def test_a_bundle_for_another_machine_is_refused_without_the_device(native, tiny, tmp_path):
    other = bundles.variant(tiny, tmp_path / "other", {}, machine="s390x")

    def unreachable():
        raise DeviceError("off")

    with pytest.raises(VerificationError, match="bundle, device") as caught:
        preflight.before_deploy(job_of(other.folder, native), tmp_path / "out", unreachable)
    assert "was built for a different board that is also named local" in caught.value.details


def test_labels_are_counted_before_a_build(native, small, connect, tmp_path):
    (tmp_path / "labels.txt").write_text("one\ntwo\n")
    with pytest.raises(InputError, match="2 labels for 6 classes"):
        preflight.before_build(job_of(small, native), connect, tmp_path / "labels.txt")


def test_labels_of_a_bundle_are_counted_too(native, tiny, connect, tmp_path):
    (tmp_path / "labels.txt").write_text("one\ntwo\n")
    with pytest.raises(InputError, match="2 labels for 4 classes"):
        preflight.before_deploy(job_of(tiny.folder, native), tmp_path / "out", connect, tmp_path / "labels.txt")


def test_a_device_without_room(native, tiny, connect, tmp_path, monkeypatch):
    plain = Store.facts
    monkeypatch.setattr(Store, "facts", lambda self: dataclasses.replace(plain(self), free_kib=100))
    with pytest.raises(DeviceError, match=r"0\.1 MiB free, and dense needs 4\.\d MiB or more"):
        preflight.before_deploy(job_of(tiny.folder, native), tmp_path / "out", connect)
    (tmp_path / "device" / "runners" / "old").mkdir(parents=True)
    with pytest.raises(DeviceError, match=r"0\.1 MiB free, and dense needs 1\.\d MiB or more"):
        preflight.before_deploy(job_of(tiny.folder, native), tmp_path / "out", connect)


def test_more_threads_than_cpus_are_refused_before_the_build(native, small, connect, monkeypatch):
    plain = Store.facts
    monkeypatch.setattr(Store, "facts", lambda self: dataclasses.replace(plain(self), cpus=2))
    job = job_of(small, native)
    three = dataclasses.replace(job, request=dataclasses.replace(job.request, threads=3))
    with pytest.raises(InputError, match="3 threads, but programs may use 2 CPUs") as caught:
        preflight.before_build(three, connect)
    assert "--threads 2" in caught.value.hint
    assert preflight.before_build(
        dataclasses.replace(job, request=dataclasses.replace(job.request, threads=2)), connect
    )


@pytest.mark.parametrize(("requested", "of_board", "expected"), [(0, 0, 0), (0, 4, 2), (0, 1, 1), (3, 4, 3)])
def test_the_threads_of_a_board_file_are_at_most_the_cpus(device, requested, of_board, expected):
    """A board file counts the cores of the board, and a container may have fewer."""
    changed = dataclasses.replace(device, board=dataclasses.replace(device.board, threads=of_board))
    assert changed.threads(requested, cpus=2) == expected


def test_a_missing_tool_is_reported_once(native, tiny, connect, tmp_path, monkeypatch):
    plain = Store.facts
    monkeypatch.setattr(Store, "facts", lambda self: dataclasses.replace(plain(self), lacks=("flock",)))
    with pytest.raises(DeviceError, match=r"^the device lacks flock$"):
        preflight.before_deploy(job_of(tiny.folder, native), tmp_path / "out", connect)


def test_a_folder_where_nothing_runs(native, small, tmp_path):
    """Found before the build, as by `board add`."""
    require("a mount of its own", "mount, and run as root", os.geteuid() == 0)
    point = tmp_path / "mounted"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec,size=64m", "tmpfs", point], check=True)
    try:
        with LocalShell() as shell:
            device = ConnectedDevice(
                native, Device(board=native.name, host="local"), shell, Store(shell, f"{point}/device")
            )
            with pytest.raises(DeviceError, match="it is mounted noexec") as caught:
                preflight.before_build(job_of(small, native), lambda: contextlib.nullcontext(device))
        assert "--root" in caught.value.hint
        assert not (point / "device" / "blobs").exists()
    finally:
        subprocess.run(["umount", point], check=True)


def test_a_device_without_the_library_of_its_board(small, tmp_path, monkeypatch):
    kind = board.load("opencl-local").resolved()
    monkeypatch.setattr("toolchain.device.probe.script._libraries", lambda _accelerator: "")
    with LocalShell() as shell:
        device = ConnectedDevice(
            kind, Device(board=kind.name, host="local"), shell, Store(shell, str(tmp_path / "device"))
        )
        with pytest.raises(DeviceError, match="lacks the library of OpenCL"):
            preflight.before_build(job_of(small, kind), lambda: contextlib.nullcontext(device))


def test_every_network_of_a_survey_is_read(native, small, connect, tmp_path):
    with pytest.raises(InputError, match="there is no model 'mobilent'"):
        preflight.before_survey([job_of(small, native), job_of("mobilent", native)], connect)


def test_a_full_disk_of_this_machine(monkeypatch):
    monkeypatch.setattr(preflight, "_MIN_FREE", 1 << 60)
    with pytest.raises(InputError, match="MiB left, and a build needs") as caught:
        preflight.check_host()
    assert "TOOLCHAIN_CACHE" in caught.value.hint


def test_a_limit_of_files_counts_as_a_full_disk():
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(InputError, match="has 1 MiB left") as caught:
            preflight.check_room()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "TMPDIR" in caught.value.hint


def test_a_misspelt_cpu_and_a_missing_compiler_are_told_together(native, connect, small):
    target = dataclasses.replace(native.target, mcpu="skylakke")
    kind = dataclasses.replace(native, target=target, compiler="no-such-compiler")
    with pytest.raises(InputError, match="2 problems: target, compiler") as caught:
        preflight.before_build(job_of(small, kind), connect)
    assert "did you mean skylake" in caught.value.details
    assert "no-such-compiler is not installed" in caught.value.details


def test_what_takes_seconds_is_left_out_where_something_else_is_wrong(native, small, tmp_path):
    kind = dataclasses.replace(native, compiler="no-such-compiler")
    with pytest.raises(InputError, match=r"none\.txt"):
        preflight.before_build(job_of(small, kind), labels=tmp_path / "none.txt")


# --- names -----------------------------------------------------------------------------------------------------------

LOST = DeviceError("the name deks cannot be resolved", details="Name or service not known")


def test_a_misspelt_device_is_suggested():
    devices = {"desk": Device(board="rpi4", host="pi@10.0.0.7")}
    with pytest.raises(InputError) as caught, explain_host("deks", devices):
        raise LOST
    suggestion = caught.value
    assert (type(suggestion), suggestion.message) == (InputError, "there is no device 'deks', and no host of that name")
    assert suggestion.hint == "did you mean desk?"


@pytest.mark.parametrize(("host", "fault"), [("pi@deks", LOST), ("deks.lan", LOST), ("deks", DeviceError("off"))])
def test_an_address_stays_one(host, fault):
    with pytest.raises(DeviceError) as caught, explain_host(host, {}):
        raise fault
    assert caught.value is fault
