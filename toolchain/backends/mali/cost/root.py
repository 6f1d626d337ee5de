"""Mesa's compiler on this machine: unpacked once into the cache, looked over before it is used, and run under qemu."""

from __future__ import annotations

import contextlib
import io
import json
import lzma
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from toolchain import files, locks, process, resources
from toolchain.architecture import AARCH64
from toolchain.backends.mali.cost import packages
from toolchain.backends.mali.cost.emulator import emulator
from toolchain.backends.mali.cost.packages import Packages
from toolchain.errors import BuildError, reason

Tell = Callable[[str], None]
"""Takes a line before a long step."""

SOURCE = resources.ROOT / "docker" / "mali" / "kernel_statistics.c"
"""The program that asks the compiler."""

_PROGRAM = "kernel_statistics"
_RECORD = "root.json"
_CURRENT = "current.json"
_LAYOUT = "1"
_KEPT, _LEFT_OUT = "usr/lib/", ("usr/lib/clc/amdgcn", "usr/lib/clc/nvptx", "usr/lib/clc/r600", "usr/lib/clc/clspv")
_AR, _AR_HEADER = b"!<arch>\n", 60
_LARGEST = 1 << 30
_COMPILE_S = 600.0
_FETCH_S = 3600.0  # what another process downloads, unpacks and compiles before


@dataclass(frozen=True)
class Root:
    """The compiler, as it lies in the cache.

    Attributes:
        folder: The unpacked packages, the program and warm caches.
        key: Digest of its contents.
        version: Debian's version of Mesa.
        is_pinned: Whether these are the packages that the toolchain was developed with.
    """

    folder: Path
    key: str
    version: str
    is_pinned: bool

    @property
    def tree(self) -> Path:
        """The unpacked packages."""
        return self.folder / "root"

    @property
    def program(self) -> Path:
        """What compiles kernels and prints their statistics."""
        return self.folder / _PROGRAM

    @property
    def stamp(self) -> str:
        """The mark of every figure that comes from it."""
        return f"modelled (Mesa {self.version}{'' if self.is_pinned else ', not the pinned one'})"


def at_hand() -> Root | None:
    """Return the compiler if it is in the cache, whole as far as sizes tell, and can be run; it fetches nothing."""
    with contextlib.suppress(BuildError):
        emulator()
        return _found(packages.pinned(), is_pinned=True) or _found_current()
    return None


def root(tell: Tell) -> Root:
    """Return the compiler, which is fetched if the cache lacks it: 80 MB, once.

    Args:
        tell: Gets a line before it is fetched.

    Raises:
        BuildError: It cannot be fetched, unpacked or run here.
    """
    emulator()
    pinned = packages.pinned()
    # One process fetches, and others wait for it.
    with locks.hold(_place() / ".lock", "the folder of Mali compilers", _FETCH_S):
        compiler = _found(pinned, is_pinned=True) or _found_current()
        if compiler is not None:
            return compiler
        tell(f"fetching Mesa's compiler for Mali GPUs ({pinned.size / 1e6:.0f} MB, once)")
        try:
            return _install(pinned, is_pinned=True)
        except BuildError:
            if not packages.takes_current():
                raise
        tell("Debian's packages have changed: using the current ones, which its archive signs")
        present = packages.current()
        current = _install(present, is_pinned=False)
        rows = [[package.sha256, package.size, package.path] for package in present.files]
        files.write_atomic(_place() / _CURRENT, files.canonical_json(rows))
        return current


def _place() -> Path:
    folder = files.check_cache() / "mesa"
    folder.mkdir(exist_ok=True)
    return folder


def _key(chosen: Packages) -> str:
    contents = (_LAYOUT, chosen.digest, files.sha256_file(SOURCE))
    return files.sha256_bytes("\n".join(contents).encode())


def _found(chosen: Packages, *, is_pinned: bool) -> Root | None:
    key = _key(chosen)
    compiler = Root(_place() / key[:16], key, chosen.version, is_pinned)
    try:
        record = json.loads((compiler.folder / _RECORD).read_bytes())
        complete = record["key"] == key and all(
            (compiler.folder / name).stat().st_size == size for name, (size, _digest) in record["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError):  # a power cut or a full disk leaves any of these
        return None
    return compiler if complete else None


def _found_current() -> Root | None:
    path = _place() / _CURRENT
    if not packages.takes_current() or not path.is_file():
        return None
    rows = files.read_json(path, BuildError)
    return _found(Packages(tuple(packages.Package(*row) for row in rows)), is_pinned=False)


def check(compiler: Root) -> None:
    """Compare every file of the compiler with its digest, which reads half a gigabyte.

    Raises:
        BuildError: One is not what was unpacked.
    """
    record = files.read_json(compiler.folder / _RECORD, BuildError)
    for name, (_size, digest) in record["files"].items():
        if files.sha256_file(compiler.folder / name) != digest:
            raise BuildError(
                f"{compiler.folder / name} differs from the file in Debian's package",
                hint=f"remove {compiler.folder}; the next command downloads it again",
            )


def _install(chosen: Packages, *, is_pinned: bool) -> Root:
    """Unpack and compile it in a temporary folder, and put that in place by one rename."""
    key = _key(chosen)
    with tempfile.TemporaryDirectory(prefix=".mesa-", dir=_place()) as name:
        work = Path(name)
        downloads, staged = work / "packages", work / "staged"
        downloads.mkdir()
        staged.mkdir()
        for path in packages.fetch(chosen, downloads):
            unpack(path, staged / "root")
        (staged / "root" / "lib").symlink_to("usr/lib")
        _compile(staged / _PROGRAM)
        digests = {
            str(path.relative_to(staged)): (path.stat().st_size, files.sha256_file(path))
            for path in sorted(staged.rglob("*"))
            if path.is_file() and not path.is_symlink()
        }
        record = {"key": key, "version": chosen.version, "files": digests}
        (staged / _RECORD).write_bytes(files.canonical_json(record))
        os.sync()  # or a power cut after the rename would leave truncated files in the cache
        target = _place() / key[:16]
        shutil.rmtree(target, ignore_errors=True)  # one that is damaged
        staged.rename(target)
    return Root(target, key, chosen.version, is_pinned)


def unpack(package: Path, folder: Path, kept: tuple[str, ...] = (_KEPT,)) -> None:
    """Unpack a package of Debian's.

    Args:
        package: The file.
        folder: Where its files go.
        kept: How the names of files begin that are wanted; the compiler needs libraries alone.

    Raises:
        BuildError: It is not such a package.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(lzma.decompress(_content(package)))) as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                leads_out = member.issym() and member.linkname.startswith("/")  # to a setting of the system's
                if name.startswith(kept) and not name.startswith(_LEFT_OUT) and not leads_out:
                    archive.extract(member, folder, filter="data")
    except (tarfile.TarError, lzma.LZMAError, OSError) as fault:
        raise BuildError(f"{package.name} cannot be unpacked: {reason(fault)}") from fault


def _content(package: Path) -> bytes:
    """Return the compressed content of a package: the last member of an archive of `ar`."""
    data = package.read_bytes()
    if not data.startswith(_AR):
        raise BuildError(f"{package.name} is not a Debian package")
    offset = len(_AR)
    while offset + _AR_HEADER <= len(data):
        name, size = data[offset : offset + 16].decode(errors="replace").strip(" /"), data[offset + 48 : offset + 58]
        length = int(size) if size.strip().isdigit() else _LARGEST
        offset += _AR_HEADER
        if name == "data.tar.xz":
            return data[offset : offset + length]
        offset += length + length % 2
    raise BuildError(f"{package.name} has no data.tar.xz")


def _compile(target: Path) -> None:
    """Compile the program, by the compiler that device programs are compiled with."""
    zig = resources.package_folder("ziglang") / "zig"
    caches = files.cache_root() / "zig"
    command: list[str | Path] = [
        zig,
        "cc",
        "-target",
        AARCH64.zig_target,
        "-O1",
        "-s",
        "-Wall",
        "-Werror",
        SOURCE,
        "-o",
        target,
        "-ldl",
    ]
    env = {"ZIG_GLOBAL_CACHE_DIR": str(caches), "ZIG_LOCAL_CACHE_DIR": str(target.parent.parent / "zig")}
    process.run(command, env=env, timeout=_COMPILE_S)
