"""What a device says, as what it means."""

from __future__ import annotations

import os

import pytest

from tests.support.devices_said import A72, ARMV8, cores, probed, said
from toolchain.device import probe
from toolchain.errors import DeviceError
from toolchain.process import Result
from toolchain.shell import LocalShell


def test_a_board():
    device = probed()
    assert (device.machine, device.libc, device.libc_version, device.cpus) == ("aarch64", "glibc", "2.36", 4)
    assert (device.place.free_kib, device.memory_kib) == (29_000_000, 3_884_344)
    assert not device.place.faults
    assert not device.emulation


@pytest.mark.parametrize(
    ("kernel", "bits", "machine"),
    [
        ("aarch64", "64", "aarch64"),
        ("aarch64", "32", "armv7l"),
        ("armv8l", "32", "armv7l"),
        ("armv7l", "32", "armv7l"),
        ("x86_64", "32", "i686"),
        ("aarch64", "", "aarch64"),
    ],
)
def test_programs_may_have_fewer_bits_than_the_kernel(kernel, bits, machine):
    assert probed({"machine": kernel, "bits": bits}).machine == machine


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("glibc 2.36", ("glibc", "2.36")),
        ("ldd (Debian GLIBC 2.31-13+deb11u11) 2.31", ("glibc", "2.31")),
        ("ldd (Ubuntu GLIBC 2.27-3ubuntu1) 2.27", ("glibc", "2.27")),
        ("ldd (GNU libc) 2.17", ("glibc", "2.17")),
        ("GNU C Library (Buildroot) stable release version 2.38.", ("glibc", "2.38")),
        ("musl libc (aarch64)", ("musl", "")),
        ("musl libc, /lib/ld-musl-armhf.so.1", ("musl", "")),
        ("musl libc, /lib/ld-musl-armhf.so.1, 1.2.5", ("musl", "1.2.5")),
        ("musl libc, /lib/ld-musl-armhf.so.1, ", ("musl", "")),
        ("ldd: not found", ("", "")),
        ("glibc 2." + "9" * 40, ("", "")),
    ],
)
def test_c_libraries(line, expected):
    device = probed({"libc": line})
    assert (device.libc, device.libc_version) == expected


def test_android():
    device = probed({"android": "34", "libc": None})
    assert (device.libc, device.libc_version) == ("bionic", "34")


def test_limits_of_a_group_count_where_they_are_tightest():
    lines = [*cores(*[(("0x41", "0xd08"), ARMV8)] * 4), "group_cpus=max 100000", "group_cpus=150000 100000"]
    lines += ["group_memory=max", "group_memory=1073741824", "group_memory=9223372036854771712"]
    device = probed(lines=lines)
    assert (device.cpu_limit, device.usable_cpus, device.memory_limit_kib) == (1.5, 2, 1 << 20)


@pytest.mark.parametrize("value", ["-1 100000", "max 100000", "1 0", "x y", "", "9" * 30 + " 1"])
def test_no_limits(value):
    assert probed({"group_cpus": value}).cpu_limit is None


@pytest.mark.parametrize(
    "values",
    [
        {"kernel_arch": "x86_64"},
        {"init": "/usr/libexec/qemu-binfmt/aarch64-binfmt-P /sbin/init"},
        {"model": "linux,dummy-virt"},
        {"dmi": "QEMU"},
    ],
)
def test_signs_of_an_emulator(values):
    assert probed(values).emulation


def test_another_vendors_cpu_is_a_sign_of_an_emulator():
    assert probed(lines=["cpu processor=0", "cpu model name=Intel(R) Xeon(R)"]).emulation


def test_a_virtual_machine_is_none():
    device = probed({"machine": "x86_64", "dmi": "QEMU", "clocks": "kvm-clock tsc", "kernel_arch": "x86_64"})
    assert device.virtual
    assert not device.emulation


@pytest.mark.parametrize(
    "lines", [["dmi=QEMU", "dmi=KVM Virtual Machine"], ["dmi=QEMU", "ptp=KVM virtual PTP"], ["ptp=KVM virtual PTP"]]
)
def test_a_virtual_machine_of_kvm_on_arm(lines):
    """It has the CPU's own clock, and no kvm-clock."""
    cpus = cores(*[(A72, ARMV8)] * 4)
    device = probed({"clocks": "arch_sys_counter", "model": "linux,dummy-virt"}, [*cpus, *lines])
    assert device.virtual
    assert not device.emulation
    assert not device.unsure


def test_what_qemu_shows_in_both_cases_is_no_proof():
    device = probed({"dmi": "QEMU", "clocks": "arch_sys_counter"})
    assert device.emulation
    assert device.unsure
    for sure in ({"kernel_arch": "x86_64"}, {"init": "/usr/bin/qemu-aarch64-static /sbin/init"}):
        assert not probed({"dmi": "QEMU", **sure}).unsure
    assert not probed({"dmi": "QEMU"}, cores((("0x00", "0x051"), ARMV8))).unsure
    assert not probed({"dmi": "QEMU"}, ["cpu processor=0", "cpu model name=QEMU TCG CPU version 2.5+"]).unsure


def test_a_kernel_of_64_bits_is_no_emulator_for_32():
    assert not probed({"bits": "32", "kernel_arch": "aarch64"}).emulation


def test_device_files_and_the_groups_for_them():
    lines = ["library.opencl=/usr/lib/libOpenCL.so.1", "device.opencl= video /dev/mali0"]
    accelerator = probed(lines=[*lines, "device.opencl=rw render /dev/dri/renderD128"]).accelerators[0]
    assert accelerator.devices == (("/dev/mali0", "", "video"), ("/dev/dri/renderD128", "rw", "render"))
    assert accelerator.missing_groups == ("video",)


def test_sensors():
    lines = ["thermal=cpu-thermal 45300", "thermal=broken", "thermal=hot 99999999", "cooling=fan", "cooling=fan"]
    lines += ["hwmon=r ina3221 power1_input", "hwmon= ina3221 curr1_input", "powercap=rw /sys/class/powercap/x"]
    sensors = probed(lines=lines).sensors
    assert sensors.thermal == (("cpu-thermal", 45.3), ("broken", None), ("hot 99999999", None))
    assert sensors.cooling == ("fan",)
    assert sensors.power == ("ina3221 power1_input", "/sys/class/powercap/x")
    assert sensors.unreadable == ("ina3221 curr1_input",)


def test_governors():
    device = probed(
        lines=["governor.0=ondemand", "governor.1=ondemand", "governor.4=performance", "governor_writable=0"]
    )
    assert device.governors == {"ondemand": 2, "performance": 1}
    assert device.governor_writable


@pytest.mark.parametrize("machine", ["", "x" * 50, "aarch64; reboot", "../x"])
def test_a_device_says_what_machine_it_is(machine):
    with pytest.raises(DeviceError, match="its machine"):
        probed({"machine": machine})


def test_what_was_not_tried_is_no_fault_of_its_own():
    """Where nothing can be written, nothing else can be tried."""
    tried = ("writes", "executes", "fills", "links", "switches", "locks")
    device = probed({**dict.fromkeys(tried), "writes_not": "Read-only file system"})
    assert device.place.faults == {"writes": "Read-only file system"}


class Told(LocalShell):
    """A device whose login says something else than what it was asked."""

    def __init__(self, out: str, err: str, code: int) -> None:
        super().__init__()
        self.name = "me@board:22"
        self._told = Result(code, out, err)

    def run(self, script: str, **_options: object) -> Result:  # noqa: ARG002 - it says the same to whatever it is asked
        return self._told


@pytest.mark.parametrize(
    ("out", "err", "code", "message"),
    [
        ("This service allows sftp connections only.\n", "", 1, "SFTP"),
        ("This account is currently not available.\n", "", 1, "no shell"),
        ("", "", 0, "no shell"),
        ("", "% Unknown command\n", 1, "no POSIX shell"),
        ("begin=wrong\nend=wrong\n", "", 0, "no POSIX shell"),
    ],
)
def test_logins_that_run_no_scripts(out, err, code, message):
    with pytest.raises(DeviceError, match=message) as caught:
        probe.ask(Told(out, err, code), "~/x")
    assert "@board:22" in caught.value.hint


def test_this_machine(tmp_path):
    """The script, its answer and what it means, at once."""
    device = probe.ask(LocalShell(), str(tmp_path / "a" / "b"))
    assert device.place.at == str(tmp_path)
    assert not device.place.faults
    assert device.memory_kib == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 1024
    measured = probe.measure_link(LocalShell(), device)
    assert measured.upload_mib_s
    assert measured.upload_mib_s > 0
    assert not list(tmp_path.iterdir())


def test_answers_are_as_the_script_prints_them():
    assert said().startswith("begin=")


def test_the_command_for_another_login_is_the_users():
    with pytest.raises(DeviceError) as caught:
        probe.ask(Told("", "", 0), "~/x", "toolchain board add OTHER@board -i key")
    assert caught.value.hint.endswith("toolchain board add OTHER@board -i key")
