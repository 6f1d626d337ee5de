"""Debian's packages of Mesa's compiler: which they are, byte for byte, and where they come from."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote

from toolchain import files, process, resources, temporary
from toolchain.architecture import AARCH64
from toolchain.errors import BuildError, reason

LIST = resources.ROOT / "docker" / "mali" / "mesa.packages"
"""The packages that are pinned."""

_MIRROR = "http://deb.debian.org"
_SNAPSHOTS = "https://snapshot.debian.org/archive"
_SUITE = "trixie"
_WANTED = ("mesa-opencl-icd", "mesa-drm-shim", "ocl-icd-libopencl1")
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_LINE = re.compile(r"([0-9a-f]{64}) +(\d{1,10}) (pool/[A-Za-z0-9.+_~%/:-]+\.deb)")
_URI = re.compile(r"'[^']*?/(pool/[^']+\.deb)' \S+ (\d{1,10}) SHA256:([0-9a-f]{64})")
_SNAPSHOT = re.compile(r"# snapshot: (\d{8}T\d{6}Z)")
_MESA = re.compile(rf"mesa-opencl-icd_(.+)_{AARCH64.debian}\.deb")
_LARGEST = 1 << 28
_CHUNK = 1 << 20
_PATIENCE_S = 60.0
_APT_S = 300.0


@dataclass(frozen=True)
class Package:
    """One file of Debian's archive.

    Attributes:
        sha256: Its digest.
        size: Its bytes.
        path: Its place below the archive's `debian/`.
    """

    sha256: str
    size: int
    path: str

    @property
    def name(self) -> str:
        """The file's name."""
        return PurePosixPath(self.path).name


@dataclass(frozen=True)
class Packages:
    """All files that make up a compiler.

    Attributes:
        files: The files.
        snapshot: When Debian's archive had them, as its snapshots are named; empty if unknown.
    """

    files: tuple[Package, ...]
    snapshot: str = ""

    @property
    def digest(self) -> str:
        """Digest of all that is unpacked from them."""
        return files.sha256_bytes("".join(sorted(package.sha256 for package in self.files)).encode())

    @property
    def version(self) -> str:
        """Debian's version of Mesa among them."""
        return next((match[1] for package in self.files if (match := _MESA.fullmatch(package.name))), "unknown")

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(package.size for package in self.files)


def pinned() -> Packages:
    """Return the packages that the toolchain was developed with."""
    return read_list(LIST)


def read_list(path: Path) -> Packages:
    """Return the packages of a list.

    Args:
        path: A line for each: SHA-256, bytes, place; and `# snapshot: WHEN`.

    Raises:
        BuildError: A line names no package.
    """
    entries, snapshot = [], ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if match := _LINE.fullmatch(line):
            entries.append(Package(match[1], int(match[2]), match[3]))
        elif match := _SNAPSHOT.fullmatch(line):
            snapshot = match[1]
        elif line.strip() and not line.startswith("#"):
            raise BuildError(f"{path.name} has a line that is not a package", details=line[:200])
    return Packages(tuple(entries), snapshot)


def takes_current() -> bool:
    """Whether current packages of Debian may replace the pinned ones: the user has turned snapshots off."""
    return os.environ.get("TOOLCHAIN_DEBIAN_SNAPSHOT") == ""


def current() -> Packages:
    """Ask Debian's archive as it is now, whose lists apt checks by their signatures.

    Raises:
        BuildError: There is no apt here, no key of Debian's, or no archive.
    """
    with temporary.folder() as name:
        folder = Path(name)
        settings = _settings(folder)
        apt = ["apt-get", "-qq", "-c", os.fspath(settings)]
        process.run([*apt, "update"], timeout=_APT_S)
        command = [*apt, "--print-uris", "-o", "Acquire::ForceHash=SHA256", "install", *_WANTED]
        answer = process.run(command, timeout=_APT_S).stdout
    matches = [_URI.match(line) for line in answer.splitlines()]
    if not matches or not all(matches):
        raise BuildError("apt does not list the packages that Mesa's compiler needs", details=process.tail(answer))
    return Packages(tuple(Package(match[3], int(match[2]), unquote(match[1])) for match in matches if match))


def _settings(folder: Path) -> Path:
    """Write the settings of an apt that neither reads nor changes this machine's packages."""
    for subfolder in ("lists/partial", "cache/archives/partial", "log"):
        (folder / subfolder).mkdir(parents=True)
    (folder / "status").touch()
    sources = folder / "sources.list"
    rows = [f"deb [signed-by={_KEYS}] {_mirror()}/debian {suite} main" for suite in (_SUITE, f"{_SUITE}-updates")]
    security = f"deb [signed-by={_KEYS}] {_mirror()}/debian-security {_SUITE}-security main"
    sources.write_text("\n".join([*rows, security, ""]), encoding="utf-8")
    values = {
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State": folder,
        "Dir::State::Lists": folder / "lists",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Dir::Log": folder / "log",
        "APT::Architecture": AARCH64.debian,
        "APT::Architectures::": AARCH64.debian,
        "APT::Install-Recommends": "false",
        "Acquire::Languages": "none",
    }
    settings = folder / "apt.conf"
    settings.write_text("".join(f'{name} "{value}";\n' for name, value in values.items()), encoding="utf-8")
    return settings


def _mirror() -> str:
    mirror = os.environ.get("TOOLCHAIN_DEBIAN_MIRROR", "").rstrip("/").removesuffix("/debian")
    return mirror or _MIRROR


def fetch(packages: Packages, folder: Path) -> list[Path]:
    """Download packages; each is what its digest says, wherever it came from.

    Args:
        packages: What to download.
        folder: Where they go.

    Raises:
        BuildError: One cannot be downloaded from any address.
    """
    return [_fetched(package, packages.snapshot, folder) for package in packages.files]


def _fetched(package: Package, snapshot: str, folder: Path) -> Path:
    target, path, causes = folder / package.name, quote(package.path), []
    addresses = [f"{_mirror()}/debian/{path}"] + [f"{_SNAPSHOTS}/debian/{snapshot}/{path}"] * bool(snapshot)
    for address in addresses:
        try:
            _download(address, target, package)
        except BuildError as fault:
            causes.append(f"{fault.message}: {fault.details}" if fault.details else fault.message)
        else:
            return target
    raise BuildError(
        f"{package.name} cannot be downloaded",
        details="\n".join(causes),
        hint="set TOOLCHAIN_DEBIAN_MIRROR to a mirror, or set TOOLCHAIN_DEBIAN_SNAPSHOT= for current packages",
    )


def _download(address: str, target: Path, package: Package) -> None:
    import requests  # noqa: PLC0415 - slow to import, and seldom needed

    certificates = os.environ.get("TOOLCHAIN_EXTRA_CA", "").split(os.pathsep)[0] or None
    try:
        with requests.get(address, stream=True, timeout=_PATIENCE_S, verify=certificates) as answer:
            answer.raise_for_status()
            size = 0
            with target.open("wb") as stream:
                for chunk in answer.iter_content(_CHUNK):
                    size += len(chunk)
                    if size > min(package.size, _LARGEST):
                        break
                    stream.write(chunk)
    except requests.RequestException as fault:
        raise BuildError(f"{address} cannot be downloaded", details=reason(fault)) from fault
    if size != package.size or files.sha256_file(target) != package.sha256:
        target.unlink()
        raise BuildError(f"{address}: the file has a different SHA-256 than expected")
