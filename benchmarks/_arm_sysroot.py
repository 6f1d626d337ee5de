"""What the peers for Arm need on an x86-64 machine: an emulator, LLVM's tools, a Python for arm64, and their wheels.

Debian's packages and the wheels are pinned by their digests (data/arm.packages, arm_guest.txt, arm_host.txt). They are
downloaded once, 200 MB, and unpacked into the user's cache; nothing is installed, and no command needs root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain import files, locks, process
from toolchain.backends.mali.cost import packages
from toolchain.backends.mali.cost.root import unpack
from toolchain.errors import BuildError

_DATA = Path(__file__).with_name("data")
_PACKAGES, _GUEST, _HOST = _DATA / "arm.packages", _DATA / "arm_guest.txt", _DATA / "arm_host.txt"
_LAYOUT = "1"
_PATIENCE_S = 3600.0
_FILES = ("usr/", "lib/")  # packages of this release still have files in /lib, among them the loader
_PYTHON = "3.11"
_PROCESSORS = 4  # that /proc/cpuinfo lists


@dataclass(frozen=True)
class Sysroot:
    """The unpacked programs.

    Attributes:
        folder: Where they are.
    """

    folder: Path

    @property
    def site(self) -> Path:
        """The peers and numpy, for the emulated Python."""
        return self.folder / "site"

    @property
    def host(self) -> Path:
        """Python packages for this machine: the converter for ncnn."""
        return self.folder / "host"

    @property
    def qemu(self) -> Path:
        """The emulator."""
        return self.folder / "tools/usr/bin/qemu-aarch64"

    def llvm(self, name: str) -> Path:
        """Return one of LLVM's programs."""
        return self.folder / "tools/usr/lib/llvm-19/bin" / name

    @property
    def environment(self) -> dict[str, str]:
        """Variables under which the emulator and LLVM's programs find their libraries."""
        return {**os.environ, "LD_LIBRARY_PATH": str(self.folder / "tools/usr/lib/x86_64-linux-gnu")}

    def run(self, command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run one of these programs to its end, and return what it wrote.

        Raises:
            BuildError: It fails.
        """
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, env=self.environment, errors="replace", **options
        )
        if done.returncode:
            tail = process.tail(done.stdout + done.stderr)
            raise BuildError(f"{Path(command[0]).name} ended with code {done.returncode}", details=tail)
        return done

    def root(self, name: str, midr: int, flags: str) -> Path:
        """Return the file system of an emulated core, with its own /proc/cpuinfo: engines choose kernels by that.

        Args:
            name: The core's name.
            midr: Its identification register.
            flags: Its line of features.
        """
        root = self.folder / "roots" / name
        (root / "proc").mkdir(parents=True, exist_ok=True)
        for folder in ("usr", "lib"):
            if not (root / folder).is_symlink():
                (root / folder).symlink_to(self.folder / "guest" / folder)
        processors = (_processor(number, midr, flags) for number in range(_PROCESSORS))
        files.write_atomic(root / "proc/cpuinfo", "\n".join(processors).encode())
        return root

    def python(self, root: Path, path: Sequence[Path], variables: Mapping[str, str]) -> list[str | Path]:
        """Return the arguments of the emulator that start the emulated Python.

        Args:
            root: File system of the core.
            path: Where it finds modules, beside `site`.
            variables: Those of its environment.
        """
        search = os.pathsep.join(map(str, (*path, self.site)))
        values = {"LD_LIBRARY_PATH": "", "PYTHONPATH": search, "PYTHONDONTWRITEBYTECODE": "1", **variables}
        settings = [word for key, value in values.items() for word in ("-E", f"{key}={value}")]
        return ["-L", root, *settings, root / f"usr/bin/python{_PYTHON}"]


def _processor(number: int, midr: int, flags: str) -> str:
    fields = {
        "processor": number,
        "BogoMIPS": "108.00",
        "Features": flags,
        "CPU implementer": hex(midr >> 24),
        "CPU architecture": 8,
        "CPU variant": hex(midr >> 20 & 15),
        "CPU part": hex(midr >> 4 & 0xFFF),
        "CPU revision": midr & 15,
    }
    return "".join(f"{key}\t: {value}\n" for key, value in fields.items())


def obtain() -> Sysroot:
    """Return the programs, which are downloaded if the cache lacks them.

    Raises:
        BuildError: They cannot be downloaded or unpacked.
    """
    sources = (_PACKAGES, _GUEST, _HOST)
    key = files.sha256_bytes("\n".join([_LAYOUT, *(files.sha256_file(path) for path in sources)]).encode())
    place = files.check_cache() / "arm-peers"
    place.mkdir(exist_ok=True)
    with locks.hold(place / ".lock", "the folder of peers for Arm", _PATIENCE_S):
        target = place / key[:16]
        if not target.is_dir():
            print("fetching qemu-user, LLVM's tools, a Python for arm64 and the peers (200 MB, once)", flush=True)
            _install(target)
    return Sysroot(target)


def _install(target: Path) -> None:
    """Unpack everything in a temporary folder, and put that in place by one rename."""
    with tempfile.TemporaryDirectory(prefix=".arm-", dir=target.parent) as name:
        work, staged = Path(name), Path(name) / "staged"
        (work / "packages").mkdir()
        for path in packages.fetch(packages.read_list(_PACKAGES), work / "packages"):
            is_tool = path.name.endswith("_amd64.deb")
            unpack(path, staged / ("tools" if is_tool else "guest"), _FILES)
        _wheels(_GUEST, "aarch64", staged / "site")
        _wheels(_HOST, "x86_64", staged / "host")
        os.sync()
        shutil.rmtree(target, ignore_errors=True)
        staged.rename(target)


def _wheels(requirements: Path, machine: str, target: Path) -> None:
    """Let pip download wheels for a machine by their digests, and unpack them."""
    tags = [f"manylinux{tag}_{machine}" for tag in ("2014", "_2_17", "_2_24", "_2_27", "_2_28")]
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--require-hashes"]
    words += ["--only-binary", ":all:", "--python-version", _PYTHON, "--implementation", "cp"]
    words += ["--abi", "cp311", "--abi", "none", *(word for tag in tags for word in ("--platform", tag))]
    process.run([*words, "-r", str(requirements), "--target", str(target)], timeout=_PATIENCE_S)
