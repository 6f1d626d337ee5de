"""What is shown of a device."""

from __future__ import annotations

import json

from tests.support.devices_said import probed
from toolchain.adoption import summary


def test_what_a_person_sees():
    lines = ["library.opencl=/usr/lib/libOpenCL.so.1", "device.opencl= video /dev/mali0", "governor.0=ondemand"]
    lines += ["thermal=cpu 45300", "hwmon=r ina3221 power1_input", "group_cpus=150000 100000"]
    values = {"bits": "32", "kernel_arch": "aarch64", "throttled": "throttled=0x0"}
    text = str(summary.table(probed(values, lines), [("board", "rpi4"), ("or", "")]))
    for phrase in (
        "32-bit programs",
        "glibc 2.36",
        "not for this login",
        "usermod -aG video",
        "ondemand on 1, which the login may not change",
        "cpu 45 °C",
        "ina3221 power1_input",
        "time of 1.5 CPUs",
        "board",
    ):
        assert phrase in text, phrase
    assert "\nor" not in text


def test_which_files_of_pictures_a_device_decodes():
    assert "no JPEG or PNG (apt-get install libturbojpeg0 libpng16-16), raw pixels" in str(summary.table(probed(), []))
    lines = ["decoder=/lib/libpng16.so.16", "decoder=/usr/lib/aarch64-linux-gnu/libpng16.so.16"]
    text = str(summary.table(probed(lines=lines), []))
    assert "PNG by /lib/libpng16.so.16, no JPEG (apt-get install libturbojpeg0), raw pixels" in text
    android = {"android": "30", "libc": ""}
    assert "no JPEG or PNG, raw pixels" in str(summary.table(probed(android), []))


def test_emulation_is_told():
    assert "emulated" in str(summary.table(probed({"model": "linux,dummy-virt"}), []))


def test_what_may_be_none_is_told_as_that():
    assert "--no-emulated" in str(summary.table(probed({"dmi": "QEMU"}), []))
    assert "--no-emulated" not in str(summary.table(probed({"kernel_arch": "x86_64"}), []))


def test_what_a_program_gets():
    document = json.loads(json.dumps(summary.document(probed())))
    assert document["clusters"][0]["name"] == "cortex-a72"
    assert document["place"]["links"] is True
    assert document["flags"] == sorted(document["flags"])
