"""What is pushed to a device: blobs that it lacks, with progress, and the release that is made of them."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from toolchain import bundle as bundles
from toolchain import files, tensors
from toolchain.bundle import Bundle
from toolchain.bundle.manifest import LARGEST_STATEMENT
from toolchain.device.runner import INPUTS
from toolchain.device.store import BlobState, DeviceFacts, Store
from toolchain.errors import DeviceError, FullError, UnreachableError, VerificationError
from toolchain.native.programs import RUNNER, Program
from toolchain.progress import MEGABYTES, Step, size_text
from toolchain.shell import Shell
from toolchain.tensors import Tensors

Tell = Callable[[str], None]
"""Called with a `Step` as an upload goes on."""

SIGNED = "release.signed"
"""A release's statement, and the signatures under it: kSigned of runtime/trust/approval.h."""
_MAKE_ROOM = "free some space there, or keep fewer releases (`keep` in the board file)"
SPARE_KIB = 1024  # links, folders and a run's outputs need room too


@dataclass(frozen=True)
class Transfer:
    """What went over the wire.

    Attributes:
        bytes_sent: Bytes sent since the connection was made, its key exchange included.
        bytes_received: Bytes received.
        blobs_sent: Number of blobs (library, graph, params, inputs and the runner) that the device lacked.
        blobs_skipped: Number that it had.
        seconds: Time spent pushing.
    """

    bytes_sent: int
    bytes_received: int
    blobs_sent: int
    blobs_skipped: int
    seconds: float

    @classmethod
    def of(cls, sent: Sent, shell: Shell) -> Transfer:
        """Add what a shell has counted to what was pushed through it."""
        return cls(shell.bytes_sent, shell.bytes_received, sent.count, sent.skipped, sent.seconds)


@dataclass(frozen=True)
class Shipment:
    """What must be on a device for a run.

    Attributes:
        blobs: Path on this machine of every blob, by digest.
        folders: For `releases`, `runners`, `libraries` and `inputs` the folder's digest and its files' digests by name.
        programs: Digests of the blobs that are executable.
        documents: Digests of the blobs that only describe others: a release's two manifests, and what is signed.
        signed: Digest of the release's statement and signatures, which belong to it once the device has seen that they
            are right; empty without any.
    """

    blobs: Mapping[str, Path]
    folders: Mapping[str, tuple[str, Mapping[str, str]]]
    programs: tuple[str, ...]
    documents: frozenset[str] = frozenset()
    signed: str = ""

    @classmethod
    def of_run(cls, program: Program, inputs: Tensors, work: Path) -> Shipment:
        """Ship a runner and inputs, which are written into the folder `work`."""
        path = work / INPUTS
        tensors.save(path, inputs)
        digest = files.sha256_file(path)
        return cls(
            blobs={program.sha256: program.path, digest: path},
            folders={"runners": (program.sha256, {RUNNER: program.sha256}), "inputs": (digest, {INPUTS: digest})},
            programs=(program.sha256,),
        )

    def with_library(self, library: Program | None) -> Shipment:
        """Add the library that applications are linked with, if there is one."""
        if library is None:
            return self
        blobs = {**self.blobs, library.sha256: library.path}
        folders = {**self.folders, "libraries": (library.sha256, {library.path.name: library.sha256})}
        return dataclasses.replace(self, blobs=blobs, folders=folders)

    def with_release(self, bundle: Bundle, work: Path) -> Shipment:
        """Add a bundle, whose manifests and signatures are written into the folder `work`."""
        release = {name: record.sha256 for name, record in bundle.manifest.files.items()}
        blobs = {digest: bundle.folder / name for name, digest in release.items()}
        documents = {bundles.MANIFEST: bundle.manifest.encoded(), "oci.json": bundles.oci_manifest(bundle.manifest)}
        release |= {name: files.sha256_bytes(content) for name, content in documents.items()}
        folders = {**self.folders, "releases": (bundle.digest, dict(release))}
        signed = _signed(bundle)
        documents |= {SIGNED: signed} if signed else {}
        described = {files.sha256_bytes(content): work / name for name, content in documents.items()}
        for name, content in documents.items():
            (work / name).write_bytes(content)
        return dataclasses.replace(
            self,
            blobs={**blobs, **described, **self.blobs},
            folders=folders,
            documents=frozenset(described),
            signed=files.sha256_bytes(signed) if signed else "",
        )


def _signed(bundle: Bundle) -> bytes:
    """Return a bundle's statement and signatures as a device has them, in one file; empty without any."""
    if bundle.statement is None or bundle.signatures is None:
        return b""
    paths = (bundle.statement, bundle.signatures)
    return b"".join(files.read_limited(path, LARGEST_STATEMENT, VerificationError) for path in paths)


@dataclass(frozen=True)
class Sent:
    """How many blobs were sent, how many the device had (documents not counted), and how many seconds it took."""

    count: int
    skipped: int
    seconds: float


def send(shipment: Shipment, store: Store, facts: DeviceFacts, progress: Tell | None = None) -> Sent:
    """Push the blobs that a device lacks and have it check them; the caller holds the store's lock.

    Raises:
        FullError: There is not enough space.
        DeviceError: The device is lost.
        VerificationError: The device stored other bytes than were sent, twice.
    """
    start = time.perf_counter()
    store.sweep()
    size = sum(path.stat().st_size for path in shipment.blobs.values())
    states = store.examine(shipment.blobs, size)
    missing = {digest: state for digest, state in states.items() if state.state != "have"}
    _check_space(shipment, missing, facts)
    _push(shipment, missing, store, progress)
    if damaged := store.publish(missing, executable=shipment.programs, size=size):
        # What was resumed may have been cut in the middle of a write: once more, from the start.
        _push(shipment, dict.fromkeys(damaged, BlobState("missing", 0)), store, progress)
        damaged = store.publish(missing, executable=shipment.programs, size=size)
    if damaged:
        raise VerificationError(
            f"{len(damaged)} uploaded blob(s) have a different digest on the device",
            details="\n".join(damaged),
            hint="run the command again; if it happens again, check the device's storage",
        )
    count = len(missing.keys() - shipment.documents)
    skipped = len(states.keys() - missing.keys() - shipment.documents)
    return Sent(count, skipped, time.perf_counter() - start)


def _check_space(shipment: Shipment, missing: Mapping[str, BlobState], facts: DeviceFacts) -> None:
    needed = sum(shipment.blobs[digest].stat().st_size - state.size for digest, state in missing.items()) // 1024
    if missing and needed + SPARE_KIB > facts.free_kib:
        free, required = (size_text(kib * 1024) for kib in (facts.free_kib, needed + SPARE_KIB))
        raise FullError(f"the device has {free} free, but {required} are needed", hint=_MAKE_ROOM)


def _push(shipment: Shipment, missing: Mapping[str, BlobState], store: Store, progress: Tell | None) -> None:
    """Upload blobs, continuing what an earlier deploy began."""
    sizes = {digest: shipment.blobs[digest].stat().st_size for digest in missing}
    total, before = sum(sizes.values()), 0
    for digest, state in missing.items():
        path, size = shipment.blobs[digest], sizes[digest]
        report = partial(_tell, progress, total, before) if progress else None
        # An upload longer than its blob is not one of this blob: the check on the device will say so.
        with _explain_full_disk(store):
            store.push(path, digest, min(state.size, size), report)
        before += size


@contextlib.contextmanager
def _explain_full_disk(store: Store) -> Iterator[None]:
    """Say of an upload that failed that the disk is full, where it is: others may have filled it since it was asked."""
    try:
        yield
    except UnreachableError:
        raise
    except DeviceError as fault:
        if store.facts().free_kib < SPARE_KIB:
            raise FullError(fault.message, details=fault.details, hint=_MAKE_ROOM) from fault
        raise


def _tell(tell: Tell, total: int, before: int, sent: int) -> None:
    tell(Step("sending files to the device", before + sent, total, MEGABYTES))


def install(shipment: Shipment, store: Store) -> dict[str, str]:
    """Make the folders of a shipment on the device; return their paths by kind."""
    return {kind: store.install(kind, digest, content) for kind, (digest, content) in shipment.folders.items()}
