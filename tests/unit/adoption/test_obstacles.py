"""What is in the way on a device, by its name."""

from __future__ import annotations

import pytest

from tests.support.devices_said import probed
from toolchain.adoption import obstacles
from toolchain.errors import ToolchainError

HOST = "me@10.0.0.7"
ANOTHER = f"toolchain board add {HOST} --root /FOLDER/edge-toolchain"
TRIED = ("writes", "executes", "fills", "links", "switches", "locks")


def fault(values: dict[str, str | None], lines: tuple[str, ...] = ()) -> ToolchainError:
    with pytest.raises(ToolchainError) as caught:
        obstacles.check(probed(values, lines), ANOTHER)
    return caught.value


def test_a_device_that_has_all():
    obstacles.check(probed(), ANOTHER)
    obstacles.check(probed({"android": "30", "libc": None}), ANOTHER)
    obstacles.check(probed({"libc": "musl libc, /lib/ld-musl-aarch64.so.1, 1.2.5"}), ANOTHER)


@pytest.mark.parametrize(
    ("values", "code", "message", "hint"),
    [
        ({"lacks": "flock"}, 4, "lacks flock", "util-linux"),
        ({"executes": None, "executes_not": "Permission denied", "mount": "ext4 rw,noexec"}, 4, "noexec", "--root"),
        ({"executes": None, "executes_not": "Permission denied"}, 4, "runs no programs", "--root"),
        ({"libc": "musl libc (aarch64)"}, 5, "has musl, but no /lib/ld-musl-aarch64.so.1", "loader"),
        ({"libc": "musl libc, /lib/ld-musl-aarch64.so.1, 1.1.24"}, 5, "musl 1.1.24, and musl 1.2.3", "OpenWrt 22.03"),
        (
            {"machine": "armv7l", "bits": "32", "libc": "musl libc, /lib/ld-musl-arm.so.1, 1.2.5"},
            5,
            "no /lib/ld-musl-armhf.so.1",
            "hard floats",
        ),
        ({"libc": "glibc 2.17"}, 5, "glibc 2.17, and glibc 2.28", "newer glibc"),
        ({"libc": None}, 5, "its C library", "getconf"),
        ({"df": "/dev/root 30000000 29999000 1000 99% /"}, 4, "full", "--root"),
        ({"fills": None, "fills_not": "No space left on device"}, 4, "full", "--root"),
        ({"locks": None, "locks_not": "No locks available"}, 4, "no file locks", "--root"),
        ({"switches": None}, 4, "symbolic link", "ext4"),
        ({"system": "FreeBSD"}, 5, "FreeBSD", "Linux"),
        ({"machine": "s390x"}, 5, "s390x", "Linux"),
        ({"machine": "x86_64", "bits": "32"}, 5, "i686", "its programs have 32"),
        ({"android": "21", "libc": None}, 5, "API level 21", "24"),
        ({"machine": "armv7l", "bits": "32", "loader": "/lib/ld-linux.so.3"}, 5, "armel", "armhf"),
        ({**dict.fromkeys(TRIED), "writes_not": "Read-only file system"}, 4, "read-only", "remount,rw"),
        ({**dict.fromkeys(TRIED), "writes_not": "", "mount": "squashfs ro"}, 4, "read-only", "remount,rw"),
        ({**dict.fromkeys(TRIED), "writes_not": "Permission denied"}, 4, "cannot be written", f"{HOST} --root"),
        ({**dict.fromkeys(TRIED), "writes_not": "No space left on device"}, 4, "full", "--root"),
    ],
)
def test_each_by_its_name_with_the_next_command(values, code, message, hint):
    error = fault(values)
    assert error.exit_code == code
    assert message in error.message
    assert hint in error.hint


def test_several_are_told_together():
    error = fault({"lacks": "flock", "libc": "glibc 2.17"})
    assert "2 obstacles" in error.message
    assert "lacks flock" in error.details
    assert "newer glibc" in error.hint
