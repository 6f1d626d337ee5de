"""A real systemd for units, in a control group of its own, which can lose power with all that it started."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.parts import require

MANAGER = Path("/usr/lib/systemd/systemd")

# It refuses to run where no systemd booted the machine, which one folder says; and the control groups are seen from
# its own on. Its sockets are in XDG_RUNTIME_DIR, so that `systemctl --user` reaches it from anywhere.
_START = """
mount --make-rprivate /
mount -t tmpfs none /run
mkdir -p /run/systemd/system
mount -t tmpfs none /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
exec {manager} --user --log-target=console --log-level=notice
"""


def require_systemd() -> None:
    """Leave a test out where no systemd can be started."""
    present = os.geteuid() == 0 and MANAGER.exists() and shutil.which("unshare") and _groups() is not None
    require("a systemd that manages units", "systemd, and run it as root", bool(present))


def _groups() -> Path | None:
    """Return where the control groups are; the kernel's one tree of version 2."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return next((Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"), None)


@dataclass
class Manager:
    """A systemd for the units of one folder.

    Attributes:
        folder: Its own; the units are in `systemd/user` there.
    """

    folder: Path
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def runtime(self) -> Path:
        return self.folder / "runtime"

    def unit(self, name: str, text: str) -> None:
        """Write a unit that starts with the manager."""
        units = self.folder / "systemd" / "user"
        link = units / "default.target.wants" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        (units / name).write_text(text)
        if not link.is_symlink():
            link.symlink_to(units / name)

    def boot(self) -> None:
        """Start it, and with it the units."""
        shutil.rmtree(self.runtime, ignore_errors=True)
        self.runtime.mkdir(parents=True, mode=0o700)
        self._group.mkdir(exist_ok=True)
        (self.folder / "systemd" / "user").mkdir(parents=True, exist_ok=True)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "XDG_RUNTIME_DIR": str(self.runtime),
            "XDG_CONFIG_HOME": str(self.folder),
        }
        start = shlex.quote(_START.format(manager=MANAGER))
        script = f"echo $$ >{self._group}/cgroup.procs && exec unshare --mount --cgroup sh -ec {start}"
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(["sh", "-c", script], env=environment, stdout=log, stderr=log)
        self._await()

    def _await(self) -> None:
        deadline = time.monotonic() + 30
        while self.ctl("show", "--property=Version").returncode != 0:
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"systemd did not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.02)

    def ctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(self.runtime)}
        return subprocess.run(
            ["systemctl", "--user", *arguments], env=environment, text=True, capture_output=True, check=False
        )

    def inside(self, command: list[str]) -> list[str]:
        """Return the words that run a command among what loses power with the manager."""
        return ["sh", "-c", f'echo $$ >{self._group}/cgroup.procs && exec "$@"', "sh", *command]

    def lose_power(self) -> None:
        """End it and all that it has started, at once and without a word."""
        if self._process is None:
            return
        (self._group / "cgroup.kill").write_text("1")
        self._process.wait()
        self._process = None
        deadline = time.monotonic() + 10
        while "populated 1" in (self._group / "cgroup.events").read_text() and time.monotonic() < deadline:
            time.sleep(0.01)

    def remove(self) -> None:
        self.lose_power()
        folders = sorted(self._group.rglob("*/"), key=lambda folder: len(folder.parts), reverse=True)
        for folder in [folder for folder in folders if folder.is_dir()] + [self._group]:
            with contextlib.suppress(OSError):
                folder.rmdir()

    @property
    def _group(self) -> Path:
        return _groups() / f"toolchain-test-{os.getpid()}-{self.folder.name}"


@contextlib.contextmanager
def managing(folder: Path) -> Iterator[Manager]:
    """Have a systemd for the time of a block; it is not started yet."""
    require_systemd()
    folder.mkdir(parents=True, exist_ok=True)
    manager = Manager(folder)
    try:
        yield manager
    finally:
        manager.remove()
