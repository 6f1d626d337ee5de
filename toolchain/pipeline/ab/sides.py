"""A release to measure, alone or in turns with another: a package, a bundle or a release, as a user names it."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from toolchain import bundle, files, registry
from toolchain.board import Board
from toolchain.bundle import Bundle, kernels
from toolchain.bundle.kernels import Kernel
from toolchain.bundle.manifest import LARGEST_GRAPH, Manifest
from toolchain.device import installed
from toolchain.device.connected import ConnectedDevice
from toolchain.device.installed import DeviceRelease
from toolchain.errors import InputError
from toolchain.models import zoo
from toolchain.native.programs import Program
from toolchain.progress import Progress
from toolchain.registry import Access

TensorKind = Literal["inputs", "outputs"]

_DIGEST = re.compile(r"(sha256:)?(?P<digest>[0-9a-f]{64})")
_LONGEST_FILE = 4096
_MAX_NAME = 200  # letters of a wrong name in a message
_FORMS = (
    "a package, a bundle's folder, oci://HOST/REPOSITORY:TAG, a file whose one line is a package's digest,"
    " or a release that the device keeps: `current`, its number, or its digest"
)


@dataclass(frozen=True)
class Side:
    """A release to measure: of a bundle on this machine, or one that a device keeps."""

    label: str  # what the user called it
    manifest: Manifest
    digest: str
    bundle: Bundle | None = None  # its files here; None of a release that a device keeps
    device: ConnectedDevice | None = field(default=None, compare=False, repr=False)  # which keeps it
    variant: str = ""  # the set of shapes to measure, which its manifest is about; empty if there is one

    @classmethod
    def of(cls, bundle: Bundle, label: str = "") -> Side:
        return cls(label or bundle.manifest.name, bundle.manifest, bundle.digest, bundle)

    def of_variant(self, name: str) -> Side:
        """Return it with one of its sets of shapes; as it is with an empty name, or if it was built for one.

        Raises:
            InputError: It has several, and this is none of them.
        """
        if not name or not self.manifest.variants:
            return self
        label = f"{self.label}, variant {name}"
        return replace(self, label=label, manifest=self.manifest.of_variant(name), variant=name)

    @property
    def size(self) -> int:
        """Bytes of all files that travel to a device."""
        return sum(record.size for record in self.manifest.files.values())

    @cached_property
    def kernels(self) -> Mapping[str, Kernel]:
        """The kernels of its graph by name, which are read when they are first needed.

        Raises:
            DeviceError: The device is lost.
            VerificationError: The graph on the device is damaged.
        """
        if self.bundle:  # its files were checked when it was opened
            text = files.read_limited(self.bundle.folder / bundle.GRAPH_TEXT, LARGEST_GRAPH).decode()
        elif self.device:
            text = installed.read_graph(self.device, self.manifest, self.digest)
        else:
            raise ValueError(f"{self.label} is neither here nor on a device")
        return kernels.read(text, self.manifest.entry)

    def release(self, program: Program, device: ConnectedDevice, threads: int) -> DeviceRelease:
        """Return it as a release of a device that can run it.

        Raises:
            MismatchError, VerificationError: As `DeviceRelease.of_bundle`.
        """
        if self.bundle:
            release = DeviceRelease.of_bundle(self.bundle, program, device, threads)
        else:
            release = DeviceRelease.of_device(self.manifest, self.digest, program, device, threads)
        return replace(release, manifest=self.manifest, variant=self.variant)

    def check_board(self, board: Board) -> None:
        """Refuse a release that was built for another board, or of which one of several sets of shapes is not chosen.

        Raises:
            VerificationError: It was built for another board.
            InputError: It has variants.
        """
        if names := [variant.name for variant in self.manifest.variants]:
            raise InputError(
                f"{self.label} has {len(names)} variants, and this command measures one set of shapes",
                details=", ".join(map(str, self.manifest.variants)),
                hint=f"name one of them: --variant {names[0]}; `toolchain bench` measures all of them",
            )
        bundle.check_board(self.manifest, board, root=self.device.store.folder if self.device else "")


@dataclass(frozen=True)
class SideOpener:
    """Opens sides by what a user calls them."""

    folder: Path  # where packages are unpacked
    access: Access | None  # how a registry is reached; None refuses addresses
    progress: Progress = lambda _line: None

    def open_local(self, name: str, other: str = "") -> Side | None:
        """Open a side whose files are here or in a registry; None if the name is that of a release on the device.

        Args:
            name: The name from the command line.
            other: The name of the other side; a digest may be of the same repository.

        Raises:
            InputError: There is no such file, or it is not a side.
            VerificationError: It is damaged.
            RegistryError: It cannot be pulled.
        """
        if registry.is_address(name):
            return self._pull(name, name)
        path, kind = Path(name), _path_kind(name)
        if kind == "folder" or (kind == "file" and bundle.is_archive(path)):
            return Side.of(bundle.open_bundle(path, self._new_folder()), name)
        if kind == "file":
            address = read_digest_file(path)
            if not registry.is_address(
                address
            ):  # a bare digest: of a package in the repository of the other side, or of a release on the device
                if not registry.is_address(other):
                    return None
                address = str(registry.parse(other).pinned(f"sha256:{address.removeprefix('sha256:')}"))
            return self._pull(address, name)
        if installed.is_release_name(name):
            return None
        network = name.startswith(zoo.PREFIX) or name in zoo.NAMES
        hint = f"a network is built first: toolchain build {name} -o FOLDER" if network else ""
        raise InputError(f"there is no {name[:_MAX_NAME]!r}", details=f"expected {_FORMS}", hint=hint)

    def _pull(self, address: str, label: str) -> Side:
        if self.access is None:
            raise InputError(f"{label} is in a registry", details=address, hint="pull it first: `toolchain pull`")
        return Side.of(registry.pull(registry.parse(address), self._new_folder(), self.access, self.progress), label)

    def _new_folder(self) -> Path:
        return self.folder / str(sum(1 for _ in self.folder.iterdir()))


def _path_kind(name: str) -> Literal["folder", "file", ""]:
    """Return what is at a path; empty for nothing, or for a name that no file can have."""
    try:
        mode = Path(name).stat().st_mode if name else 0
    except (OSError, ValueError):
        return ""
    return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else ""


def read_digest_file(path: Path) -> str:
    """Read a file whose one line is the digest of a package, or its address in a registry with a digest.

    Raises:
        InputError: It is another file.
    """
    message = f"{path} is neither a package nor a file with a package's digest"
    try:
        lines = files.read_limited(path, _LONGEST_FILE).decode(errors="replace").split()
    except InputError as fault:
        raise InputError(message, details=fault.message, hint=f"expected {_FORMS}") from fault
    if len(lines) != 1:
        raise InputError(message, details=f"expected {_FORMS}")
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


def on_device(name: str, device: ConnectedDevice) -> Side:
    """Find a release that a device keeps: `current`, its number, its digest or at least eight digits, or a digest file.

    Raises:
        InputError: The device has no such release, or several.
        VerificationError: Its manifest does not have that digest.
    """
    text = read_digest_file(Path(name)) if _path_kind(name) == "file" else name
    digest = installed.find_release(device.store, text).digest
    return Side(name, installed.read_manifest(device.store, digest), digest, device=device)


def check_pair(new: Side, base: Side, board: Board, kinds: Sequence[TensorKind] = ("inputs", "outputs")) -> None:
    """Refuse a pair that cannot be compared: its tensors of these kinds must be the same.

    Raises:
        InputError: They are the same, or differ in their inputs or outputs.
        VerificationError: One was built for another board.
    """
    if new.digest == base.digest:
        raise InputError(
            f"{new.label} and {base.label} are the same release",
            details=f"sha256:{new.digest}",
            hint="name another release or package to compare it with",
        )
    for side in (new, base):
        side.check_board(board)
    if new.manifest.states != base.manifest.states:
        raise InputError(
            f"{new.label} and {base.label} do not have the same state",
            details="\ninstead of ".join(
                " ".join(f"--state {pair}" for pair in side.manifest.states) or "no state" for side in (new, base)
            ),
            hint="build both with the same --state options",
        )
    for kind in kinds:
        new_signature, base_signature = (
            ", ".join(f"{spec.name} {spec.dtype}{list(spec.shape)}" for spec in getattr(side.manifest, kind))
            for side in (new, base)
        )
        if new_signature != base_signature:
            raise InputError(
                f"{new.label} and {base.label} are different models: their {kind} differ",
                details=f"{new_signature}\ninstead of {base_signature}",
                hint="name a base of the same model",
            )
