"""Several OpenCLs for CPUs, and the environment of a program that is to use one of them.

PoCL is what Debian has; Oclgrind interprets kernels and reports reads and writes out of bounds, races and wrong calls;
Intel's has half precision (`cl_khr_fp16`) and dot products of integers (`cl_khr_integer_dot_product`), which PoCL lacks
on x86. Mesa's has all of that, and images; its C library is not this machine's (`tests/support/rusticl.py`), so that it
is for programs that a test starts itself.
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
import tempfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tests.support import paths, rusticl, wheels
from tests.support.parts import require
from toolchain import files

POCL, INTEL, OCLGRIND, RUSTICL = "pocl", "intel", "oclgrind", "rusticl"
NAMES = (POCL, INTEL, OCLGRIND)
"""Those that variables alone choose."""

HALF = (INTEL, RUSTICL)
"""Those that compute in half precision."""

_VENDORS = Path("/etc/OpenCL/vendors")
_OCLGRIND = Path("/usr/lib/oclgrind/liboclgrind-rt.so")
_LIBRARIES = "/data/lib/"
_DRIVER = "libintelocl.so"
_UNUSED = ("icx-lto", "libOpenCL", "libtcm_debug", "libtbbmalloc_proxy")
_PARTS = {POCL: "pocl-opencl-icd", OCLGRIND: "oclgrind", INTEL: "a way to the package index, on x86-64"}
_PARTS[RUSTICL] = "a way to Debian's archive, on x86-64 with a C library no newer than 2.41"


@dataclass(frozen=True)
class Checks:
    """What Oclgrind is to look for.

    Attributes:
        log: The file that gets a line for each fault.
        uninitialised: Whether reads of what nobody wrote count. Then a program is to run one network.
    """

    log: Path
    uninitialised: bool = False


def environment(name: str, checks: Checks | None = None) -> dict[str, str]:
    """Return the variables of a program that is to use one of the OpenCLs, and keeps no binaries.

    Args:
        name: One of `NAMES`, or `RUSTICL`; it must be there (`require_one`).
        checks: For Oclgrind alone.
    """
    variables = {"EDGE_OPENCL_CACHE": "", "EDGE_OPENCL_DEVICE": ""}
    if name == POCL:
        return variables | {"EDGE_OPENCL_DEVICE": "Portable Computing Language"}
    if name == INTEL:
        return variables | {"OCL_ICD_VENDORS": str(_intel() / "lib" / _DRIVER)}
    if name == RUSTICL:
        return variables | rusticl.environment()
    variables["EDGE_OPENCL_LIBRARY"] = str(_OCLGRIND)
    return variables | (_checked(checks) if checks is not None else {})


def command(name: str) -> list[str]:
    """Return the words in front of a program that is to use one of the OpenCLs, beside `environment`."""
    return rusticl.command() if name == RUSTICL else []


def _checked(checks: Checks) -> dict[str, str]:
    variables = {
        "OCLGRIND_CHECK_API": "1",
        "OCLGRIND_DATA_RACES": "1",
        "OCLGRIND_MAX_ERRORS": "50",
        "OCLGRIND_LOG": str(checks.log),
        # Optimised, kernels read whole vectors for a part of them, and compute with integers of two bits: its
        # interpreter gets those wrong.
        "OCLGRIND_BUILD_OPTIONS": "-cl-opt-disable",
    }
    return variables | ({"OCLGRIND_UNINITIALIZED": "1", "OCLGRIND_NUM_THREADS": "1"} if checks.uninitialised else {})


def require_one(name: str) -> None:
    """Leave a test out, or fail it, where one of the OpenCLs is missing; Intel's and Mesa's are fetched."""
    require(f"OpenCL of {name}", _PARTS[name], present(name))


@functools.cache
def present(name: str) -> bool:
    """Tell whether one of the OpenCLs is there, or can be fetched."""
    if name == OCLGRIND:
        return _OCLGRIND.is_file()
    if name == POCL:
        return (_VENDORS / "pocl.icd").is_file()
    if name == RUSTICL:
        return rusticl.present()
    if platform.machine() != "x86_64":
        return False
    try:
        _intel()
    except wheels.UnreachableError:
        return False
    return True


def _intel() -> Path:
    """Return the folder with Intel's libraries; they are fetched unless the toolchain's cache has them."""
    table = tomllib.loads((paths.DATA / "opencl_runtimes.toml").read_text(encoding="utf-8"))
    listed = wheels.listed(table["wheels"])
    digest = files.sha256_bytes("".join(wheel.sha256 for wheel in listed.values()).encode())[:16]
    folder = files.cache_root() / "opencl-runtimes" / f"intel-{digest}"
    if not (folder / "lib" / _DRIVER).is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="intel-", dir=folder.parent) as scratch:
            _unpack(list(listed.values()), Path(scratch), folder)
    return folder


def _unpack(listed: list[wheels.Wheel], scratch: Path, folder: Path) -> None:
    """Put the libraries of all wheels into one folder, where alone they find each other."""
    unpacked = scratch / "whole"
    (unpacked / "lib").mkdir(parents=True)
    for wheel in listed:
        path = wheels.downloaded(wheel, scratch)
        with zipfile.ZipFile(path) as archive:
            _take(archive, unpacked / "lib")
        path.unlink()
    try:
        unpacked.rename(folder)
    except OSError:
        if not (folder / "lib" / _DRIVER).is_file():  # else another process was faster
            raise


def _take(archive: zipfile.ZipFile, folder: Path) -> None:
    """Unpack libraries; a file that is there under several names, as wheels know no links, is written once."""
    targets: dict[tuple[int, int], Path] = {}
    for member in archive.infolist():
        name = PurePosixPath(member.filename).name
        if _LIBRARIES not in member.filename or not name or name.startswith(_UNUSED):
            continue
        path, key = folder / name, (member.CRC, member.file_size)
        if key in targets:
            os.link(targets[key], path)
            continue
        with archive.open(member) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target)
        targets[key] = path
