"""What a device lacks of what its board type computes with, and what brings it."""

from __future__ import annotations

import pytest

from tests.support.devices_said import A72, ARMV8, cores, probed
from toolchain import board
from toolchain.adoption import needs

LIBRARY, ICD = "library.opencl=/usr/lib/libOpenCL.so.1", "driver.opencl=/etc/OpenCL/vendors/pocl.icd"
MALI = "device.opencl=rw video /dev/mali0"


def lacking(name: str, *lines: str) -> dict[str, str]:
    """Return what is missing for a board on a device that says so, with the remedies."""
    said = probed(lines=[*cores(*[(A72, ARMV8)] * 4), *lines])
    return {one.what: one.remedy for one in needs.of(board.load(name).resolved(), said) if not one.found}


def test_nothing_is_missing():
    assert lacking("rk3399", LIBRARY, MALI) == {}
    assert lacking("opencl-local", LIBRARY, ICD) == {}


def test_no_library():
    (found,) = lacking("rk3399", MALI).items()
    assert found[0] == "library of OpenCL"
    for words in ("libmali", "mesa-opencl-icd", "EDGE_OPENCL_LIBRARY", "LD_LIBRARY_PATH=/vendor/lib64"):
        assert words in found[1]


@pytest.mark.parametrize(
    ("lines", "remedy"),
    [
        ([], "a kernel with the GPU's driver"),
        (["device.opencl= video /dev/mali0"], "sudo usermod -aG video LOGIN"),
        (["device.opencl=r render /dev/dri/renderD128"], "sudo usermod -aG render LOGIN"),
        (["device.opencl= /dev/mali0"], "chmod a+rw /dev/mali0"),
    ],
)
def test_no_device_for_this_login(lines, remedy):
    found = lacking("rk3399", LIBRARY, *lines)
    assert list(found) == ["device of OpenCL"]
    assert remedy in found["device of OpenCL"]


def test_a_loader_without_a_driver_has_no_device():
    assert lacking("opencl-local", LIBRARY) == {"device of OpenCL": "apt-get install pocl-opencl-icd"}
    assert set(lacking("opencl-local")) == {"library of OpenCL", "device of OpenCL"}


def test_cpus_and_simulators_need_nothing():
    asked = {name: needs.any_of(board.load(name)) for name in ("rpi4", "vta-sim", "pynq-z1", "rk3399")}
    assert asked == {"rpi4": False, "vta-sim": False, "pynq-z1": True, "rk3399": True}
    assert lacking("rpi4") == {}
    assert "image of PYNQ" in lacking("pynq-z1")["device of VTA (FPGA)"]
