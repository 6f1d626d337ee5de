import pytest

from toolchain import board
from toolchain.errors import VerificationError
from toolchain.tuning.hardware import Hardware, check

RPI4 = board.load("rpi4").resolved()


def test_a_board_that_is_what_its_file_says():
    found = Hardware("aarch64", 4, "Cortex-A72", RPI4.cpu_features)
    assert check(RPI4, found, "rpi4-1", emulated=False) == ()


def test_another_machine_is_refused():
    with pytest.raises(VerificationError, match="rpi4-1 is x86_64"):
        check(RPI4, Hardware("x86_64", 4), "rpi4-1", emulated=True)


def test_a_cpu_without_a_needed_feature_is_refused():
    needy = board.load("rpi4").resolved()
    needy = type(needy)(**{**vars(needy), "cpu_features": ("asimddp",)})
    with pytest.raises(VerificationError, match="has no asimddp"):
        check(needy, Hardware("aarch64", 4), "rpi4-1", emulated=False)
    assert check(needy, Hardware("aarch64", 4), "rpi4-1", emulated=True) == ()


def test_another_number_of_cpus_is_told():
    (note,) = check(RPI4, Hardware("aarch64", 2, features=RPI4.cpu_features), "rpi4-1", emulated=False)
    assert "has 2 CPUs" in note
    assert "scheduled for 4" in note


def test_hardware_is_told_in_one_line():
    found = Hardware("aarch64", 4, "Cortex-A72", (), {"l1d": 32, "l2": 1024})
    assert str(found) == "4 CPUs, Cortex-A72, l1d 32 KiB, l2 1024 KiB"
