"""The tools and shells of small devices, as folders of links: a session that has no others is one on such a device."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.support.parts import require


def toybox(folder: Path) -> Path:
    """Make Android's: toybox, and mksh as the shell."""
    for name in ("toybox", "mksh"):
        require(name, name, shutil.which(name) is not None)
    applets = subprocess.run(["toybox"], capture_output=True, text=True, check=True).stdout.split()
    tools = _linked(folder, str(shutil.which("toybox")), applets)
    shell = shutil.which("mksh")
    (tools / "sh").write_text(f'#!{shell}\nexec {shell} "$@"\n')
    (tools / "sh").chmod(0o755)
    return tools


def busybox(folder: Path) -> Path:
    """Make those of many a board: busybox for everything; but Debian's is built without `flock`."""
    require("busybox", "busybox", shutil.which("busybox") is not None)
    applets = subprocess.run(["busybox", "--list"], capture_output=True, text=True, check=True).stdout.split()
    tools = _linked(folder, str(shutil.which("busybox")), applets)
    if "flock" not in applets:
        (tools / "flock").symlink_to(str(shutil.which("flock")))
    return tools


def _linked(folder: Path, program: str, applets: list[str]) -> Path:
    folder.mkdir(parents=True)
    for name in applets:
        (folder / name).symlink_to(program)
    return folder
