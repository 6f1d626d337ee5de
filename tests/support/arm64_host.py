"""A host with a 64-bit Arm CPU, Debian's Python and what requirements.lock names; QEMU runs its programs.

Python's packages are pinned by their digests, as those of benchmarks/arm.py --peers are. They and what the lock file
names are downloaded once, 450 MB, and unpacked into the cache; nothing is installed on this machine.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.support.parts import require
from tests.support.paths import ROOT
from toolchain import files, locks
from toolchain.architecture import AARCH64
from toolchain.backends.mali.cost import packages
from toolchain.backends.mali.cost.root import unpack
from toolchain.errors import DeviceError
from toolchain.virtual import emulation

_PACKAGES, _LOCK = ROOT / "benchmarks/data/arm.packages", ROOT / "requirements.lock"
_PYTHON = "3.11"
_TAGS = ("2014", "_2_17", "_2_24", "_2_26", "_2_27", "_2_28", "_2_34")
_PATIENCE_S = 1800.0


@dataclass(frozen=True)
class Arm64Host:
    """The unpacked programs.

    Attributes:
        folder: Where they are.
    """

    folder: Path

    def toolchain(self, *words: object, home: Path) -> subprocess.CompletedProcess[str]:
        """Run `toolchain WORDS...` of this checkout, with an empty cache in a folder, and without a compiler."""
        root = self.folder / "root"
        environment = {
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "PATH": str(home),  # nothing of this machine
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, self.folder / "site"))),
            "QEMU_LD_PREFIX": str(root),
        }
        command = [root / f"usr/bin/python{_PYTHON}", "-c", "from toolchain import cli; cli.main()", *map(str, words)]
        return subprocess.run(
            command, env=environment, cwd=home, capture_output=True, text=True, check=False, timeout=_PATIENCE_S
        )


def obtain() -> Arm64Host:
    """Return it; it is made if the cache lacks it. Leave the test out where QEMU cannot run its programs."""
    try:
        emulation.ensure(AARCH64, lambda _line: None)
    except DeviceError as fault:
        require("emulation of arm64", f"qemu-user-static: {fault.details}", present=False)
    key = files.sha256_bytes((files.sha256_file(_PACKAGES) + files.sha256_file(_LOCK)).encode())
    place = files.check_cache() / "arm64-host"
    place.mkdir(exist_ok=True)
    with locks.hold(place / ".lock", "the host with a 64-bit Arm CPU", _PATIENCE_S):
        target = place / key[:16]
        if not target.is_dir():
            _install(target)
    return Arm64Host(target)


def _install(target: Path) -> None:
    """Unpack everything in a temporary folder, and put that in place by one rename."""
    listed = packages.read_list(_PACKAGES)
    arm64 = tuple(package for package in listed.files if package.name.endswith("_arm64.deb"))
    with tempfile.TemporaryDirectory(prefix=".arm64-", dir=target.parent) as name:
        staged, downloads = Path(name) / "staged", Path(name) / "packages"
        downloads.mkdir()
        for path in packages.fetch(dataclasses.replace(listed, files=arm64), downloads):
            unpack(path, staged / "root", ("usr/", "lib/"))
        install_lock(staged / "site")
        staged.rename(target)


def install_lock(target: Path) -> None:
    """Have pip install requirements.lock for such a host, with every digest, and wheels alone."""
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--require-hashes"]
    words += ["--only-binary", ":all:", "--python-version", _PYTHON, "--implementation", "cp"]
    words += ["--abi", "cp311", "--abi", "abi3", "--abi", "none"]
    words += [word for tag in _TAGS for word in ("--platform", f"manylinux{tag}_{AARCH64.machine}")]
    command = [*words, "--requirement", str(_LOCK), "--target", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
    assert done.returncode == 0, done.stderr[-2000:]
