"""Updates for tests: exported from bundles, and applied by the shells and tools that devices have."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.parts import require
from toolchain import board, export
from toolchain.bundle import Bundle
from toolchain.devices import Application
from toolchain.export import WrittenUpdate
from toolchain.native.programs import Program


def written(
    release: Bundle,
    program: Program,
    target: Path,
    *,
    kind: str = "offline",
    run: Application | None = None,
    slot: str = "",
    unchecked: bool = False,
    **how: Any,
) -> WrittenUpdate:
    """Export a bundle for this machine; `how` is what `export.write` takes beside."""
    with export.prepare(
        release, board.load("local").resolved(), program, run, slot=slot, unchecked=unchecked
    ) as update:
        return export.write(kind, update, target, **how)


@dataclass(frozen=True)
class Device:
    """A shell, and the tools that it finds.

    Attributes:
        shell: Its words.
        environment: What the shell gets; PATH says where its tools are.
    """

    shell: tuple[str, ...] = ("sh",)
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    def start(self, script: Path, *arguments: object, **how: object) -> subprocess.Popen[str]:
        """Start to apply an update."""
        # Who runs the tests in the background has signals ignored for all that they start.
        argv = ["/usr/bin/env", "--default-signal", *self.shell, str(script), *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        return subprocess.Popen(argv, env=self.environment, text=True, **{**pipes, **how})

    def apply(self, script: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Apply an update, or whatever else the words say."""
        with self.start(script, *arguments) as process:
            out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def with_tool(self, folder: Path, name: str, text: str) -> Device:
        """Return the device with another program in place of one of its tools."""
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
        path = f"{folder}:{self.environment['PATH']}"
        return Device(self.shell, {**self.environment, "PATH": path})


SHELLS = ("dash", "bash", "busybox", "mksh", "zsh")


def device(shell: str, folder: Path) -> Device:
    """Return a device with one of `SHELLS`: busybox and mksh with their own tools alone, others with coreutils."""
    require(shell, shell, shutil.which(shell) is not None)
    if shell in {"dash", "bash", "zsh"}:
        return Device((shell,))
    box = "busybox" if shell == "busybox" else "toybox"
    require(box, box, shutil.which(box) is not None)
    listing = [box, "--list"] if box == "busybox" else [box]
    tools = folder / f"{box}-tools"
    tools.mkdir()
    for name in subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split():
        (tools / name).symlink_to(str(shutil.which(box)))
    if not (tools / "flock").exists():  # Debian's busybox has none
        (tools / "flock").symlink_to(str(shutil.which("flock")))
    shell_command = (str(shutil.which("busybox")), "sh") if shell == "busybox" else (str(shutil.which("mksh")),)
    return Device(shell_command, {"PATH": str(tools), "HOME": str(folder), "TMPDIR": "/nowhere"})
