"""What a device lacks of what its board type computes with, and what brings it."""

from __future__ import annotations

import pytest

from tests.support.devices_said import A72, ARMV8, cores, probed
from toolchain import board
from toolchain.adoption import needs
from toolchain.errors import DeviceError

LIBRARY, ICD = "library.opencl=/usr/lib/libOpenCL.so.1", "driver.opencl=/etc/OpenCL/vendors/pocl.icd"
LOADS = "loads.opencl=/usr/lib/libOpenCL.so.1"
MALI, OWN = "device.opencl=rw video /dev/mali0", "kind.opencl=/dev/mali0"
PANFROST = "kind.opencl=/sys/bus/platform/drivers/panfrost/fde60000.gpu"
RENDER = "device.opencl=rw render /dev/dri/renderD129"
ANDROID = "android=30"


def lacking(name: str, *lines: str) -> dict[str, str]:
    """Return what is missing for a board on a device that says so, with the remedies."""
    device_probe = probed(lines=[*cores(*[(A72, ARMV8)] * 4), *lines])
    outcomes = [check.outcome() for check in needs.of(board.load(name).resolved(), device_probe)]
    return {outcome.name: outcome.remedy for outcome in outcomes if not outcome.passed}


def test_nothing_is_missing():
    assert lacking("rk3399", LIBRARY, MALI, OWN) == {}
    assert lacking("rk3399", LIBRARY, RENDER, PANFROST) == {}
    assert lacking("rk3399", LIBRARY, LOADS, ICD, MALI, OWN) == {}
    assert lacking("opencl-local", LIBRARY, LOADS, ICD) == {}


def test_no_library():
    (missing,) = lacking("rk3399", MALI, OWN).items()
    assert missing[0] == "library of OpenCL"
    for text in ("libmali", "mesa-opencl-icd", "EDGE_OPENCL_LIBRARY", "LD_LIBRARY_PATH=/vendor/lib64"):
        assert text in missing[1]


@pytest.mark.parametrize(
    ("lines", "remedy"),
    [
        ([], "a kernel with the GPU's driver"),
        ([RENDER], "a kernel with the GPU's driver"),
        (["device.opencl= video /dev/mali0", OWN], "sudo usermod -aG video LOGIN"),
        (["device.opencl=r render /dev/dri/renderD128", PANFROST], "sudo usermod -aG render LOGIN"),
        (["device.opencl= video /dev/mali0", RENDER, OWN], "sudo usermod -aG video LOGIN"),
        (["device.opencl= /dev/mali0", OWN], "chmod a+rw /dev/mali0"),
        (["device.opencl= root /dev/mali0", OWN], 'a rule of udev: KERNEL=="mali0"'),
        (["device.opencl= root /dev/mali0", OWN, ANDROID], "Android's image"),
    ],
)
def test_no_device_for_this_login(lines, remedy):
    missing = lacking("rk3399", LIBRARY, *lines)
    assert list(missing) == ["device of OpenCL"]
    assert remedy in missing["device of OpenCL"]


def test_a_loader_without_a_driver_has_no_device():
    remedy = "apt-get install ocl-icd-libopencl1 pocl-opencl-icd"
    assert lacking("opencl-local", LIBRARY, LOADS) == {"device of OpenCL": remedy}
    assert set(lacking("opencl-local")) == {"library of OpenCL", "device of OpenCL"}


def test_a_loader_without_a_driver_is_no_library_of_a_board():
    """The runtime opens it first, and it would know no device."""
    (missing,) = lacking("rk3399", LIBRARY, LOADS, MALI, OWN).items()
    assert missing[0] == "library of OpenCL"
    assert "finds none: on the device: the vendor's GPU driver" in missing[1]
    mali = "library.opencl=/usr/lib/libmali.so"
    assert lacking("rk3399", LIBRARY, LOADS, mali, MALI, OWN)["library of OpenCL"].endswith(
        "EDGE_OPENCL_LIBRARY=/usr/lib/libmali.so"
    )


def test_what_a_variable_names_is_missing_by_name():
    missing = lacking("rk3399", "named.opencl=/nowhere.so", MALI, OWN)
    assert "EDGE_OPENCL_LIBRARY is /nowhere.so, which is not a library" in missing["library of OpenCL"]
    here = lacking("opencl-local", "named.opencl=/nowhere.so", ICD)
    assert here["library of OpenCL"] == here["device of OpenCL"] == missing["library of OpenCL"]
    assert (
        "OCL_ICD_VENDORS is /x"
        in lacking("opencl-local", LIBRARY, LOADS, "drivers_named.opencl=/x")["device of OpenCL"]
    )


def test_a_choice_among_devices_is_told():
    device_probe = probed(lines=[*cores(*[(A72, ARMV8)] * 4), LIBRARY, MALI, OWN, "choice.opencl=nosuch"])
    device = needs.of(board.load("rk3399").resolved(), device_probe)[-1]
    assert device.probe().startswith(
        "/dev/mali0, of which EDGE_OPENCL_DEVICE takes only those with 'nosuch' in their names"
    )


def test_androids_remedies_are_its_own():
    missing = lacking("rk3399", ANDROID, "device.opencl= root /dev/mali0", OWN)
    assert not any(command in remedy for command in ("sudo", "apt-get", "usermod") for remedy in missing.values())


def test_cpus_and_simulators_need_nothing():
    needed = {name: needs.any_of(board.load(name)) for name in ("rpi4", "vta-sim", "pynq-z1", "rk3399")}
    assert needed == {"rpi4": False, "vta-sim": False, "pynq-z1": True, "rk3399": True}
    assert lacking("rpi4") == {}
    assert "image of PYNQ" in lacking("pynq-z1")["device of VTA (FPGA)"]


def test_a_library_or_a_driver_that_is_missing_is_refused():
    probes = {name: probed(lines=[*cores(*[(A72, ARMV8)] * 4), *lines]) for name, lines in LINES.items()}
    kind, here = board.load("rk3399").resolved(), board.load("opencl-local").resolved()
    needs.check_library(kind, probes["whole"])
    needs.check_library(kind, probes["no device"])  # its file may have another name
    for name, refused in (("nothing", kind), ("nothing", here), ("no driver", here)):
        with pytest.raises(DeviceError, match="of OpenCL, which kernels of board") as caught:
            needs.check_library(refused, probes[name])
        assert caught.value.hint


LINES = {
    "whole": [LIBRARY, MALI, OWN],
    "no device": [LIBRARY],
    "no driver": [LIBRARY, LOADS],
    "nothing": [],
}
