"""This machine as a RISC-V: QEMU runs the device's programs, with a C library from Debian's cross compilers."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.networks import deployed
from tests.support.parts import require
from toolchain import board
from toolchain.architecture import RISCV64
from toolchain.device.deploy import Deployment
from toolchain.device.store import Store
from toolchain.errors import DeviceError
from toolchain.native import programs
from toolchain.virtual import emulation

_SYSROOT = Path("/usr/riscv64-linux-gnu")
# What QEMU emulates for a board type: without vectors, with the shortest ones, and with those of the SpacemiT X60.
CPUS = {
    "riscv64": "rv64",
    "riscv64-v": "rv64,v=true,vext_spec=v1.0,vlen=128",
    "spacemit-k1": "rv64,v=true,vext_spec=v1.0,vlen=256,zba=true,zbb=true,zbc=true,zbs=true,zbkc=true,Zfh=true",
}
# What QEMU 7.2 lacks of it: conditional moves of whole numbers, and arithmetic in half precision in vectors.
_LACKING = {"spacemit-k1": ("-zicond", "-zvfh", "-zvfhmin")}


@contextlib.contextmanager
def emulated() -> Iterator[pytest.MonkeyPatch]:
    """Have the kernel start programs for RISC-V by QEMU, and the store call this machine one.

    Yields:
        What sets variables until the block ends.
    """
    require("a C library for RISC-V", "libc6-riscv64-cross", (_SYSROOT / "lib").is_dir())
    try:
        emulation.ensure(RISCV64, lambda _line: None)
    except DeviceError as fault:
        require("emulation of RISC-V", f"qemu-user-static: {fault.details}", present=False)
    plain = Store.facts
    as_riscv = {"machine": "riscv64", "cpu_features": tuple("imafdcv")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEMU_LD_PREFIX", str(_SYSROOT))
        patch.setattr(Store, "facts", lambda self: dataclasses.replace(plain(self), **as_riscv))
        yield patch


def deploy(patch: pytest.MonkeyPatch, kind: str, model: str, folder: Path) -> Deployment:
    """Build a model for a board type of `CPUS`, and deploy it to what `emulated` has made of this machine."""
    patch.setenv("QEMU_CPU", CPUS[kind])
    # /proc/cpuinfo is this machine's, so the runner would miss the vectors.
    chosen = dataclasses.replace(board.load(kind).resolved(), cpu_features=(), toolchain="host")
    target = dataclasses.replace(chosen.target, mattr=(*chosen.target.mattr, *_LACKING.get(kind, ())))
    chosen = dataclasses.replace(chosen, target=target)
    runner = programs.build(programs.RUNNER, chosen.triple, chosen.machine)
    return deployed(model, chosen, runner, folder)
