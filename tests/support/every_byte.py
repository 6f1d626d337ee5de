"""Each byte of a small signed release and of what brings it, changed: what notices, and what no check covers."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from tests.support.updates import Device
from toolchain import bundle, files, tensors
from toolchain.bundle import Bundle
from toolchain.device import verification
from toolchain.errors import ToolchainError
from toolchain.native.programs import Program
from toolchain.signing import trust
from toolchain.signing.trust import Trust

BITS = 8
BLOCK = tarfile.BLOCKSIZE
_CHECKSUM = {148, 154, 155}  # of a header: a zero before the number, where a space may be, and the bytes that end it
_UNTRUSTED = 7
AT_A_LOAD = dict.fromkeys(
    (bundle.GRAPH, bundle.GRAPH_TEXT), "nothing on a device reads it: only deploys, roll-backs and updates check it"
)
"""Files of a release on a device that a load does not check, and why."""
IN_A_PACKAGE = {
    "padding": "zeros between the end of a file and the next block of the archive: nothing reads them",
    "end": "zeros after the last file: the archive ends at its first block of zeros",
    "checksum": "the zero before the digits of a header's checksum, and the two bytes after them",
    "layout": "oci-layout, which only other OCI tools read",
    "index": "index.json, which finds the other files by their digests: titles and media types say nothing to us, and "
    "a part whose type was changed is missing, as if it had not been packed: the statement does not name it",
}
"""Bytes of a package that may change without a refusal, and why."""
IN_A_FOLDER = dict.fromkeys((bundle.BILL, bundle.PROVENANCE), "the statement does not name it, and no device gets it")
"""Files in the folder of a bundle that may change without a refusal, and why."""
IN_AN_UPDATE = {"first lines": "they check all others, and not themselves"}
"""Bytes of an update without a network that may change without a refusal, and why."""
MAY_BE_MISSING = frozenset({bundle.REFERENCE, bundle.RECORDS, bundle.BILL, bundle.PROVENANCE})
"""Files that the statement does not name; a device needs none of them."""


def some(size: int, count: int) -> list[int]:
    """Return about so many positions of a file, the first and the last one among them."""
    return sorted({*range(0, size, max(1, size // count)), size - 1})


def changes(data: bytes, positions: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    """Yield each position, and the data with one bit of that byte changed: with each position the next bit."""
    for number, position in enumerate(positions):
        yield position, changed(data, position, number % BITS)


def each_bit(data: bytes, positions: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    """Yield each position as often as a byte has bits, and the data with that bit changed."""
    for position in positions:
        for bit in range(BITS):
            yield position, changed(data, position, bit)


def changed(data: bytes, position: int, bit: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]


def refused_by_device(runner: Path, release: Path, trusted: Path, emulator: tuple[str, ...] = ()) -> bool:
    """Whether the runner refuses a release as not trusted, before it becomes current."""
    return _refused([*emulator, runner, "--verify", release, "--trust", trusted])


def refused_at_a_load(runner: Path, release: Path, trusted: Path, package: Bundle, work: Path) -> bool:
    """Whether the runner refuses to load a release as not trusted."""
    tensors.save(work / "inputs", verification.samples_of(package).inputs)
    command = [runner, "--release", release, "--trust", trusted, "--inputs", work / "inputs"]
    return _refused([*command, "--outputs", work / "outputs", "--report", work / "report", "--max-runs", "0"])


def _refused(command: list[str | Path]) -> bool:
    code = subprocess.run(command, capture_output=True, check=False, timeout=60).returncode
    assert code in {0, _UNTRUSTED}
    return code != 0


def regions(package: Path) -> Callable[[int], str]:
    """Return a function that names the part of a package that a byte belongs to: one of `IN_A_PACKAGE`, or `file`."""
    ranges: list[tuple[int, int, str]] = []
    with tarfile.open(package) as archive:
        for member in archive:
            start = member.offset_data
            ranges.append((start - BLOCK, start, "header"))
            name = {"index.json": "index", "oci-layout": "layout"}.get(member.name, "file")
            ranges += [(start, start + member.size, name)]
            ranges.append((start + member.size, start + -(-member.size // BLOCK) * BLOCK, "padding"))

    def region(position: int) -> str:
        for start, end, name in ranges:
            if start <= position < end:
                return "checksum" if name == "header" and position - start in _CHECKSUM else name
        return "end"

    return region


def accepted(package: Path, signers: Trust, folder: Path) -> dict[str, bytes] | None:
    """Return the files of the bundle in a package that its signers approve; None if it is refused."""
    try:
        unpacked = bundle.unpack(package, folder)
        return (
            {path.name: path.read_bytes() for path in unpacked.folder.iterdir()} if approved(folder, signers) else None
        )
    except ToolchainError:
        return None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def approved(folder: Path, signers: Trust) -> bool:
    """Whether the host takes the bundle in a folder as one that its signers approve."""
    try:
        package = bundle.load(folder)
        trust.approve(package, signers)
        verification.samples_of(package, unchecked=True)
    except ToolchainError:
        return False
    return True


def small(program: Program, path: Path) -> Program:
    """Return a program in place of the runner that is small, so that an update is small, too."""
    path.write_text("#!/bin/sh\necho 0\n")
    path.chmod(0o755)
    return replace(program, path=path, sha256=files.sha256_file(path))


def first_lines(installer: bytes) -> int:
    """Return how many bytes an installer has before those that it hashes."""
    match = re.search(rb"tail -c \+([0-9]+) ", installer)
    assert match
    return int(match[1]) - 1


def refused_by_update(script: Path, *arguments: str | Path) -> bool:
    """Whether an update ends with an error."""
    nowhere = subprocess.DEVNULL  # what it prints may not be text any more
    with Device().start(script, *arguments, cwd=script.parent, stdout=nowhere, stderr=nowhere) as process:
        return process.wait(timeout=60) != 0
