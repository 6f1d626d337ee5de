"""Mesa's OpenCL for CPUs, rusticl on llvmpipe: half precision, dot products of integers and images, all without a GPU.

It is Debian's, newer than the machine it may run on, and wants a newer C library. So its packages are unpacked into the
toolchain's cache, none is installed, and a program that is to use it is started by their own dynamic linker. What such
a program starts has this machine's C library again, and not this OpenCL.
"""

from __future__ import annotations

import functools
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.paths import DATA
from toolchain import files
from toolchain.backends.mali.cost import packages
from toolchain.backends.mali.cost.root import unpack
from toolchain.errors import BuildError

_LIST, _REDIRECT = DATA / "rusticl.packages", DATA / "clc_redirect.c"
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_HERE = "/usr/lib/x86_64-linux-gnu"
_SECONDS = 60


def present() -> bool:
    """Tell whether it runs here: on x86-64, where Debian can be reached, and no C library is newer than its own."""
    if platform.machine() != "x86_64":
        return False
    try:
        argv = [*command(), sys.executable, "-c", ""]
    except BuildError:
        return False
    return subprocess.run(argv, capture_output=True, check=False, timeout=_SECONDS).returncode == 0


def command() -> list[str]:
    """Return the words in front of a program that is to use it."""
    folder = _place()
    libraries = folder / _LIBRARIES
    linker = libraries / "ld-linux-x86-64.so.2"
    return [str(linker), "--library-path", f"{libraries}:{_HERE}", "--preload", str(folder / "libredirect.so")]


def environment() -> dict[str, str]:
    """Return the variables of such a program; devices of this kind are off unless they are asked for."""
    folder = _place()
    return {
        "EDGE_OPENCL_LIBRARY": str(folder / _LIBRARIES / "libOpenCL.so.1"),
        "EDGE_OPENCL_DEVICE": "rusticl",
        "OCL_ICD_VENDORS": str(folder / _LIBRARIES / "libRusticlOpenCL.so.1"),
        "RUSTICL_ENABLE": "llvmpipe",
        "RUSTICL_FEATURES": "fp16,fp64",
        "CLC_ROOT": str(folder),
        "MESA_SHADER_CACHE_DISABLE": "true",
    }


@functools.cache
def _place() -> Path:
    """Return the folder with the unpacked packages; they are fetched unless the toolchain's cache has them."""
    listed = packages.read_list(_LIST)
    made_of = listed.digest + files.sha256_file(_REDIRECT)
    folder = files.cache_root() / "opencl-runtimes" / f"rusticl-{files.sha256_bytes(made_of.encode())[:16]}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="rusticl-", dir=folder.parent) as scratch:
            _made(listed, Path(scratch), folder)
    return folder


def _made(listed: packages.Packages, scratch: Path, folder: Path) -> None:
    downloads, unpacked = scratch / "packages", scratch / "whole"
    downloads.mkdir()
    unpacked.mkdir()
    for path in packages.fetch(listed, downloads):
        unpack(path, unpacked)
        path.unlink()
    for other in (unpacked / "usr/lib/clc").glob("*.bc"):  # for GPUs of other makers, 300 MB
        other.unlink()
    (unpacked / "usr/lib/lib").symlink_to("llvm-19/lib")  # where the compiler looks for its headers, from its library
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", unpacked / "libredirect.so", _REDIRECT, "-ldl"], check=True)
    try:
        unpacked.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process was faster
            raise
