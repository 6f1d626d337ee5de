"""The kernel's rule that runs programs of another architecture with QEMU (binfmt_misc)."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from toolchain import process
from toolchain.architecture import Architecture
from toolchain.errors import DeviceError, reason
from toolchain.virtual.board import Tell

_PACKAGE = "qemu-user-static"

RULES = Path("/proc/sys/fs/binfmt_misc")
RECIPES = Path("/usr/lib/binfmt.d")


def fault(architecture: Architecture) -> str:
    """Return why programs of an architecture do not run in a container here; empty if they do."""
    if platform.machine() == architecture.machine:
        return ""
    rule = RULES / architecture.qemu_user
    if not rule.is_file():
        return f"{rule} is missing: the kernel has no rule to run {architecture.debian} programs"
    # Flag F makes the kernel open QEMU when the rule is added, outside the container
    # (Documentation/admin-guide/binfmt-misc.rst).
    lines = rule.read_text(encoding="utf-8").splitlines()
    if lines[:1] != ["enabled"]:
        return f"{rule} is switched off"
    if not any(line.startswith("flags:") and "F" in line.removeprefix("flags:") for line in lines):
        return f"{rule} lacks flag F, so QEMU is not found inside a container"
    return ""


def ensure(architecture: Architecture, tell: Tell) -> None:
    """Make programs of an architecture run in containers: root adds the kernel's rule if it is missing.

    Raises:
        DeviceError: They do not run, and this user cannot change that.
    """
    cause = fault(architecture)
    if not cause:
        return
    recipe = RECIPES / f"{architecture.qemu_user}.conf"
    message = f"{architecture.debian} programs do not run on this machine"
    if not recipe.is_file():
        raise DeviceError(message, details=cause, hint=f"apt-get install {_PACKAGE}")
    if os.geteuid() != 0 or (RULES / architecture.qemu_user).exists():
        raise DeviceError(message, details=cause, hint=_remedy(recipe))
    tell(f"adding a kernel rule to run {architecture.debian} programs ({recipe})")
    if not (RULES / "register").exists():
        process.run(["mount", "-t", "binfmt_misc", "binfmt_misc", RULES], timeout=30.0, error=DeviceError)
    try:
        (RULES / "register").write_bytes(recipe.read_bytes())
    except OSError as refusal:
        raise DeviceError(f"the kernel does not take {recipe}", details=reason(refusal)) from refusal
    if cause := fault(architecture):
        raise DeviceError(message, details=cause, hint=_remedy(recipe))


def _remedy(recipe: Path) -> str:
    """Return the command that adds the rule, which works without systemd, too."""
    rule = RULES / recipe.stem
    mount = "" if (RULES / "register").exists() else f"mount -t binfmt_misc binfmt_misc {RULES}; "
    removal = f"echo -1 >{rule}; " if rule.exists() else ""
    return f"sudo sh -c '{mount}{removal}cat {recipe} >{RULES}/register'"
