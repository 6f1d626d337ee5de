import dataclasses

import pytest

from toolchain import board
from toolchain.errors import DeviceError, VerificationError
from toolchain.rpc.hardware import Accelerator, Hardware, check

RPI4 = board.load("rpi4").resolved()
RK3399 = board.load("rk3399").resolved()
T860 = Accelerator("Mali-T860", units=4, max_threads_per_block=256, max_shared_memory_per_block=32768, driver="1.r14p0")


def test_a_board_that_is_what_its_file_says():
    hardware = Hardware("aarch64", 4, "Cortex-A72", RPI4.cpu_features)
    assert check(RPI4, hardware, "rpi4-1", emulated=False) == ()


def test_another_machine_is_refused():
    with pytest.raises(VerificationError, match="rpi4-1 is x86_64"):
        check(RPI4, Hardware("x86_64", 4), "rpi4-1", emulated=True)


def test_a_cpu_without_a_needed_feature_is_refused():
    needy = board.load("rpi4").resolved()
    needy = type(needy)(**{**vars(needy), "cpu_features": ("asimddp",)})
    with pytest.raises(VerificationError, match="does not support asimddp"):
        check(needy, Hardware("aarch64", 4), "rpi4-1", emulated=False)
    assert check(needy, Hardware("aarch64", 4), "rpi4-1", emulated=True) == ()


def test_another_number_of_cpus_is_told():
    (note,) = check(RPI4, Hardware("aarch64", 2, features=RPI4.cpu_features), "rpi4-1", emulated=False)
    assert "has 2 CPUs" in note
    assert "scheduled for the 4 " in note


def test_hardware_is_told_in_one_line():
    hardware = Hardware("aarch64", 4, "Cortex-A72", (), {"l1d": 32, "l2": 1024})
    assert str(hardware) == "4 CPUs, Cortex-A72, l1d 32 KiB, l2 1024 KiB"


# --- accelerators ----------------------------------------------------------------------------------------------------


def hardware_with(accelerator):
    return Hardware("aarch64", RK3399.cores, features=RK3399.cpu_features, accelerator=accelerator)


def test_an_accelerator_that_is_what_its_board_file_says():
    assert check(RK3399, hardware_with(T860), "rk-1", emulated=False) == ()


@pytest.mark.parametrize(
    ("less", "advice"),
    [
        ({"max_threads_per_block": 128}, "max_threads_per_block = 128"),
        ({"max_shared_memory_per_block": 16384}, "max_shared_memory_per_block = 16384"),
        (
            {"max_threads_per_block": 64, "max_shared_memory_per_block": 1024},
            "max_threads_per_block = 64 and max_shared_memory_per_block = 1024",
        ),
    ],
)
def test_kernels_that_ask_for_more_than_the_device_has_are_refused(less, advice):
    with pytest.raises(VerificationError, match=r"rk3399\.toml requires more than Mali-T860 has") as caught:
        check(RK3399, hardware_with(dataclasses.replace(T860, **less)), "rk-1", emulated=False)
    assert caught.value.hint == f"in [target], write {advice}"


def test_a_device_with_more_than_kernels_ask_for_is_told():
    (note,) = check(RK3399, hardware_with(dataclasses.replace(T860, max_threads_per_block=512)), "rk-1", emulated=False)
    assert note == "Mali-T860 has max_threads_per_block = 512, but kernels are scheduled for 256"


def test_limits_without_sense_are_clamped():
    """PoCL's are those of a CPU, which runs work-items one after the other, out of ordinary memory."""
    pocl = dataclasses.replace(T860, max_threads_per_block=4096, max_shared_memory_per_block=2**20)
    assert pocl.useful_limits() == {"max_threads_per_block": 1024, "max_shared_memory_per_block": 65536}
    assert T860.useful_limits() == {"max_threads_per_block": 256, "max_shared_memory_per_block": 32768}


def test_half_precision_needs_a_device_that_has_it():
    half = RK3399.with_precision(float16=True)
    with pytest.raises(VerificationError, match="Mali-T860 does not compute in half precision") as caught:
        check(half, hardware_with(T860), "rk-1", emulated=False)
    assert caught.value.hint == "leave --float16 out"
    assert check(half, hardware_with(dataclasses.replace(T860, float16=True)), "rk-1", emulated=False) == ()


def test_an_accelerator_is_told_in_one_line():
    hardware = hardware_with(dataclasses.replace(T860, float16=True))
    assert str(hardware) == "6 CPUs, Mali-T860, 4 units, 256 threads and 32 KiB per block, float16"


def test_a_board_whose_accelerator_cannot_be_used():
    hardware = dataclasses.replace(hardware_with(None), fault="no OpenCL library on this device")
    with pytest.raises(DeviceError, match="rk-1 has no usable opencl device") as caught:
        check(RK3399, hardware, "rk-1", emulated=False)
    assert caught.value.details == "no OpenCL library on this device"
