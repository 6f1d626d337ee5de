"""What is measured, alone or in turns with another one: packages, bundles and releases, as a user names them."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toolchain import bundle, files, registry, temporary
from toolchain.board import Board
from toolchain.bundle import Bundle, kernels
from toolchain.bundle.kernels import Kernel
from toolchain.bundle.manifest import LARGEST_GRAPH, Manifest
from toolchain.device import released
from toolchain.device.connected import ConnectedDevice
from toolchain.device.installed import DeviceRelease
from toolchain.device.store import Store
from toolchain.errors import InputError
from toolchain.models import names, zoo
from toolchain.native.programs import Program
from toolchain.registry import Access
from toolchain.tensors import TensorSpec

_DIGEST = re.compile(r"(sha256:)?(?P<digest>[0-9a-f]{64})")
_LONGEST_FILE = 4096
_SHOWN = 200
_FORMS = (
    "a package, a bundle's folder, oci://HOST/REPOSITORY:TAG, a file whose one line is a package's digest,"
    " or a release that the device keeps: `current`, its number, or its digest"
)


@dataclass(frozen=True)
class Side:
    """A release that is measured.

    Attributes:
        named: What the user called it.
        manifest: The bundle's.
        digest: The bundle's digest.
        bundle: Its files here; None of a release that the device keeps.
    """

    named: str
    manifest: Manifest
    digest: str
    bundle: Bundle | None = None

    @classmethod
    def of(cls, bundle: Bundle, named: str = "") -> Side:
        return cls(named or bundle.manifest.name, bundle.manifest, bundle.digest, bundle)

    @property
    def size(self) -> int:
        """Bytes of all files that travel to a device."""
        return sum(record.size for record in self.manifest.files.values())

    def release(self, program: Program, device: ConnectedDevice, threads: int) -> DeviceRelease:
        """Return it as a release of a device that can run it.

        Raises:
            MismatchError, VerificationError: As `DeviceRelease.of_bundle`.
        """
        if self.bundle:
            return DeviceRelease.of_bundle(self.bundle, program, device, threads)
        return DeviceRelease.of_device(self.manifest, self.digest, program, device, threads)

    def kernels(self, device: ConnectedDevice) -> Mapping[str, Kernel]:
        """Return the kernels of its graph by name.

        Raises:
            DeviceError: The device is lost.
            VerificationError: The graph on the device is not what the release's digest says.
        """
        if self.bundle:  # its files were checked when it was opened
            text = files.read_limited(self.bundle.folder / bundle.GRAPH_TEXT, LARGEST_GRAPH).decode()
            return kernels.read(text)
        record = self.manifest.files[bundle.GRAPH_TEXT]
        if record.size > LARGEST_GRAPH:
            raise released.damaged(device.store, self.digest)
        with temporary.folder() as folder:
            path = Path(folder) / bundle.GRAPH_TEXT
            source = f"{device.store.root}/releases/{self.digest}/{bundle.GRAPH_TEXT}"
            device.shell.pull(source, path, most=record.size)
            if files.sha256_file(path) != record.sha256:
                raise released.damaged(device.store, self.digest)
            return kernels.read(path.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Finding:
    """How sides are found.

    Attributes:
        folder: Where packages are unpacked or pulled to.
        access: How a registry is reached.
        tell: Who is told about each stage.
    """

    folder: Path
    access: Access
    tell: Callable[[str], None] = lambda _line: None

    def here(self, word: str, beside: str = "") -> Side | None:
        """Open what needs no device to be opened; None if the word names a release on it.

        Args:
            word: What the user named.
            beside: What the user named as the other side; a digest may be one of the same repository.

        Raises:
            InputError: There is no such file, or it is none of what a side can be.
            VerificationError: It is damaged.
            RegistryError: The registry does not give it.
        """
        if registry.is_address(word):
            return self._pulled(word, word)
        path, there = Path(word), _there(word)
        if there == "folder" or (there == "file" and bundle.is_archive(path)):
            return Side.of(bundle.open_bundle(path, self._new()), word)
        if there == "file":
            line = pinned(path)
            if registry.is_address(line):
                return self._pulled(line, word)
            return self._beside(line, word, beside)
        if released.is_word(word):
            return None
        network = word.startswith(names.PREFIX) or word in zoo.NAMES
        hint = f"a network is built first: toolchain build {word} -o FOLDER" if network else ""
        raise InputError(f"there is no {word[:_SHOWN]!r}", details=f"expected {_FORMS}", hint=hint)

    def _beside(self, line: str, named: str, beside: str) -> Side | None:
        if not registry.is_address(beside):
            return None
        digest = line.removeprefix("sha256:")
        address = registry.parse(beside).pinned(f"sha256:{digest}")
        return self._pulled(str(address), named)

    def _pulled(self, address: str, named: str) -> Side:
        return Side.of(registry.pull(registry.parse(address), self._new(), self.access, self.tell), named)

    def _new(self) -> Path:
        return self.folder / str(sum(1 for _ in self.folder.iterdir()))


def _there(word: str) -> Literal["folder", "file", ""]:
    """Tell what there is by a name; nothing by one that no file can have, or that is empty."""
    try:
        mode = Path(word).stat().st_mode if word else 0
    except (OSError, ValueError):
        return ""
    return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else ""


def pinned(path: Path) -> str:
    """Read a file whose one line is a package's digest, or its address with one in a registry.

    Raises:
        InputError: That is not what the file is.
    """
    wrong = f"{path} is neither a package nor a file with a package's digest"
    try:
        lines = files.read_limited(path, _LONGEST_FILE).decode(errors="replace").split()
    except InputError as fault:
        raise InputError(wrong, details=fault.message, hint=f"expected {_FORMS}") from fault
    if len(lines) != 1:
        raise InputError(wrong, details=f"expected {_FORMS}")
    if registry.is_address(lines[0]):
        if not registry.parse(lines[0]).digest:
            raise InputError(
                f"{path} names a tag, which can change to another package",
                details=lines[0],
                hint="write the digest: oci://HOST/REPOSITORY@sha256:DIGEST",
            )
        return lines[0]
    if not _DIGEST.fullmatch(lines[0]):
        raise InputError(
            f"{path} is not a package and does not contain a package's digest",
            details=f"{lines[0][:80]!r} instead of sha256: and 64 hexadecimal digits",
            hint="`toolchain package` and `toolchain push` print a package's digest",
        )
    return lines[0]


def on_device(word: str, store: Store) -> Side:
    """Find a release that a device keeps.

    Args:
        word: `current`, its number, its digest or eight digits of it or more, or a file with its digest.
        store: The device's store.

    Raises:
        InputError: The device has no such release, or several.
        VerificationError: What it has is not what its digest says.
    """
    digest = released.named(store, pinned(Path(word)) if _there(word) == "file" else word).digest
    return Side(word, released.manifest(store, digest), digest)


def both(here: Sequence[Side | None], words: Sequence[str], store: Store) -> tuple[Side, Side]:
    """Return both sides: those that were opened here, and from the device what it keeps.

    Args:
        here: What `Finding.here` gave for each.
        words: What the user named.
        store: The device's store.

    Raises:
        InputError: The device has no such release, or several.
    """
    new, base = (side or on_device(word, store) for side, word in zip(here, words, strict=True))
    return new, base


def check_pair(new: Side, base: Side, board: Board) -> None:
    """Refuse a pair that cannot be held against each other, before any work.

    Raises:
        InputError: They are the same, or have other inputs or outputs than each other.
        VerificationError: One was built for another board.
    """
    if new.digest == base.digest:
        raise InputError(
            "NEW and --base are the same release",
            details=f"{new.named} and {base.named} are both sha256:{new.digest}",
            hint="a gate compares a new package with the one before it",
        )
    for side in (new, base):
        bundle.check_board(side.manifest, board)
    for what in ("inputs", "outputs"):
        one, other = (_signature(getattr(side.manifest, what)) for side in (new, base))
        if one != other:
            raise InputError(
                f"{new.named} and {base.named} are different models: their {what} differ",
                details=f"{one}\ninstead of {other}",
                hint="name a base of the same model",
            )


def _signature(specs: tuple[TensorSpec, ...]) -> str:
    return ", ".join(f"{spec.name} {spec.dtype}{list(spec.shape)}" for spec in specs)
