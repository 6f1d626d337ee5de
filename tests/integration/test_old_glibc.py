"""The programs for devices start on a C library older than this system's: Debian 11's, of 2020."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.support.parts import require
from toolchain.native import programs as device_runtime

GLIBC = "2.31"
# Of each triple: Debian's name for it, `uname -m`, and what runs its programs here with the libraries of a folder.
KINDS = {
    "x86_64-linux-gnu": ("amd64", "x86_64", "{libraries}/ld-2.31.so --library-path {libraries}"),
    "aarch64-linux-gnu": ("arm64", "aarch64", "qemu-aarch64-static -L {root}"),
    "arm-linux-gnueabihf": ("armhf", "armv7l", "qemu-arm-static -L {root}"),
}


def mirror() -> str:
    """Return the address of the mirror that this system takes Debian's packages from."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Label: Debian"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[0]


@pytest.mark.parametrize("triple", KINDS)
def test_start(triple, tmp_path):
    architecture, machine, command = KINDS[triple]
    require("an old Debian", "root and mmdebstrap", os.geteuid() == 0 and shutil.which("mmdebstrap") is not None)
    start_command = command.format(root=tmp_path / "root", libraries=tmp_path / "root" / "lib" / triple).split()
    emulator = start_command[0] if start_command[0].startswith("qemu") else "sh"
    require("emulation of ARM", "qemu-user-static", shutil.which(emulator) is not None)
    bootstrap = ["mmdebstrap", "--quiet", "--variant=extract", "--include=libc6", f"--architectures={architecture}"]
    # The release alone: of an old one's updates a mirror has not all architectures.
    source = f"deb {mirror()} bullseye main"
    subprocess.run([*bootstrap, "bullseye", tmp_path / "root", source], check=True, timeout=300)
    assert (tmp_path / "root" / "lib" / triple / f"libc-{GLIBC}.so").is_file()
    for program in (device_runtime.build(name, triple, machine) for name in device_runtime.PROGRAMS):
        completed = subprocess.run(
            [*start_command, program.path, "--version"], capture_output=True, text=True, check=False
        )
        assert (completed.returncode, machine in completed.stdout) == (0, True), completed
