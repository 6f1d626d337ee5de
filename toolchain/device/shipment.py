"""The files of a run or a release: send the blobs that a device lacks, and make the folders of links to them."""

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
from toolchain.device.probe.facts import DeviceFacts
from toolchain.device.runner import INPUTS
from toolchain.device.store import BlobState, Store
from toolchain.errors import DeviceError, FullError, UnreachableError, VerificationError
from toolchain.native.programs import RUNNER, Program
from toolchain.progress import MEGABYTES, Step, size_text
from toolchain.shell import Shell
from toolchain.tensors import Tensors

Tell = Callable[[str], None]
"""Called with a `Step` as an upload goes on."""

SIGNED = "release.signed"
"""The file of a release's statement and its signatures: kSigned of runtime/trust/approval.h."""
_MAKE_ROOM = "free some space there, or keep fewer releases (`keep` in the board file)"
SPARE_KIB = 1024  # for links, folders and a run's outputs


@dataclass(frozen=True)
class Transfer:
    """The traffic of a connection.

    Attributes:
        bytes_sent: Bytes sent since the connection was made, its key exchange included.
        bytes_received: Bytes received.
        blobs_sent: Number of blobs (library, graph, params, inputs and the runner) that the device lacked.
        blobs_skipped: Number of blobs that it had.
        seconds: Time spent sending.
    """

    bytes_sent: int
    bytes_received: int
    blobs_sent: int
    blobs_skipped: int
    seconds: float

    @classmethod
    def of(cls, sent: Sent, shell: Shell) -> Transfer:
        """Combine the byte counts of a shell with the blobs sent through it."""
        return cls(shell.bytes_sent, shell.bytes_received, sent.count, sent.skipped, sent.seconds)


@dataclass(frozen=True)
class Shipment:
    """The files that a device needs for a run.

    Attributes:
        blobs: Path on this machine of every blob, by digest.
        folders: For `releases`, `runners`, `libraries` and `inputs` the folder's digest and its files' digests by name.
        programs: Digests of the executable blobs.
        documents: Digests of the blobs that only describe others: a release's two manifests, and its statement.
        signed: Digest of the release's statement and signatures, which are attached to it once the device has checked
            them; empty without any.
    """

    blobs: Mapping[str, Path]
    folders: Mapping[str, tuple[str, Mapping[str, str]]]
    programs: tuple[str, ...]
    documents: frozenset[str] = frozenset()
    signed: str = ""

    @classmethod
    def of_run(cls, program: Program, inputs: Tensors, work: Path) -> Shipment:
        """Return a runner and inputs, which are written into the folder `work`."""
        path = work / INPUTS
        tensors.save(path, inputs)
        digest = files.sha256_file(path)
        return cls(
            blobs={program.sha256: program.path, digest: path},
            folders={"runners": (program.sha256, {RUNNER: program.sha256}), "inputs": (digest, {INPUTS: digest})},
            programs=(program.sha256,),
        )

    def with_library(self, library: Program | None) -> Shipment:
        """Add the library for applications, if there is one."""
        if library is None:
            return self
        blobs = {**self.blobs, library.sha256: library.path}
        folders = {**self.folders, "libraries": (library.sha256, {library.path.name: library.sha256})}
        return dataclasses.replace(self, blobs=blobs, folders=folders)

    def with_release(self, bundle: Bundle, work: Path) -> Shipment:
        """Add a bundle, whose manifests and signatures are written into the folder `work`."""
        # A device reads a statement and its signatures from one file, so that one rename replaces both.
        signed = b""
        if bundle.statement and bundle.signatures:
            paths = (bundle.statement, bundle.signatures)
            signed = b"".join(files.read_limited(path, LARGEST_STATEMENT, VerificationError) for path in paths)
        release = {name: record.sha256 for name, record in bundle.manifest.files.items()}
        blobs = {digest: bundle.folder / name for name, digest in release.items()}
        documents = {bundles.MANIFEST: bundle.manifest.encoded(), "oci.json": bundles.oci_manifest(bundle.manifest)}
        release |= {name: files.sha256_bytes(content) for name, content in documents.items()}
        folders = {**self.folders, "releases": (bundle.digest, dict(release))}
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


@dataclass(frozen=True)
class Sent:
    """Number of blobs sent, number that the device had (both without documents), and the seconds."""

    count: int
    skipped: int
    seconds: float


def send(shipment: Shipment, store: Store, facts: DeviceFacts, progress: Tell | None = None) -> Sent:
    """Send the blobs that a device lacks, and let it check their digests; the caller holds the store's lock.

    Raises:
        FullError: There is not enough space.
        DeviceError: The device is lost.
        VerificationError: The device stored other bytes than were sent, twice.
    """
    start = time.perf_counter()
    store.blobs.sweep()
    size = sum(path.stat().st_size for path in shipment.blobs.values())
    states = store.blobs.examine(shipment.blobs, size)
    missing = {digest: state for digest, state in states.items() if state.state != "have"}
    needed = sum(shipment.blobs[digest].stat().st_size - state.size for digest, state in missing.items()) // 1024
    if missing and needed + SPARE_KIB > facts.free_kib:
        free, required = (size_text(kib * 1024) for kib in (facts.free_kib, needed + SPARE_KIB))
        raise FullError(f"the device has {free} free, but {required} are needed", hint=_MAKE_ROOM)
    _push(shipment, missing, store, progress)
    if damaged := store.blobs.publish(missing, executable=shipment.programs, size=size):
        # A resumed upload may have ended in the middle of a write: once more, from the start.
        _push(shipment, dict.fromkeys(damaged, BlobState("missing", 0)), store, progress)
        damaged = store.blobs.publish(missing, executable=shipment.programs, size=size)
    if damaged:
        raise VerificationError(
            f"{len(damaged)} uploaded blob(s) have a different digest on the device",
            details="\n".join(damaged),
            hint="run the command again; if it happens again, check the device's storage",
        )
    count = len(missing.keys() - shipment.documents)
    skipped = len(states.keys() - missing.keys() - shipment.documents)
    return Sent(count, skipped, time.perf_counter() - start)


def _push(shipment: Shipment, missing: Mapping[str, BlobState], store: Store, progress: Tell | None) -> None:
    """Upload blobs, continuing what an earlier deploy began."""
    sizes = {digest: shipment.blobs[digest].stat().st_size for digest in missing}
    total, before = sum(sizes.values()), 0
    for digest, state in missing.items():
        path, size = shipment.blobs[digest], sizes[digest]
        report = None
        if progress:
            report = partial(_report_sent, progress, total, before)
        # If an earlier upload is longer than the blob, the check of the digest will fail.
        with _explain_full_disk(store):
            store.blobs.push(path, digest, min(state.size, size), report)
        before += size


@contextlib.contextmanager
def _explain_full_disk(store: Store) -> Iterator[None]:
    """Report a failed upload as a full disk if it is full: the free space may have changed since the check."""
    try:
        yield
    except UnreachableError:
        raise
    except DeviceError as fault:
        if store.facts().free_kib < SPARE_KIB:
            raise FullError(fault.message, details=fault.details, hint=_MAKE_ROOM) from fault
        raise


def _report_sent(progress: Tell, total: int, before: int, sent: int) -> None:
    progress(Step("sending files to the device", before + sent, total, MEGABYTES))


def install(shipment: Shipment, store: Store) -> dict[str, str]:
    """Make the folders of a shipment on the device; return their paths by kind."""
    return {kind: store.blobs.install(kind, digest, content) for kind, (digest, content) in shipment.folders.items()}
