"""Each byte of a small signed release and of its package, changed: what notices, and what no check covers."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

from toolchain import bundle
from toolchain.device import verification
from toolchain.errors import ToolchainError
from toolchain.signing import trust
from toolchain.signing.trust import Trust

FLIP = 0x20
BLOCK = tarfile.BLOCKSIZE
_CHECKSUM_END = slice(154, 156)  # of a header; readers end the number at the first of these two bytes
NOT_COVERED = {
    "padding": "zeros between the end of a file and the next block of the archive: nothing reads them",
    "end": "zeros after the last file: the archive ends at its first block of zeros",
    "checksum": "the two bytes after the digits of a header's checksum",
    "layout": "oci-layout, which only other OCI tools read",
    "index": "index.json, which finds the other files by their digests: titles and media types say nothing to us, and "
    "a part whose type was changed is missing, as if it had not been packed: the statement does not name it",
}
"""Bytes of a package that may change without a refusal, and why: docs/security.md has the same list."""
MAY_BE_MISSING = frozenset({bundle.REFERENCE, bundle.RECORDS, bundle.BILL, bundle.PROVENANCE})
"""Files that the statement does not name; a device needs none of them."""


def changes(data: bytes, step: int) -> Iterator[tuple[int, bytes]]:
    """Yield positions, every `step`-th and the last one, and the data with that byte changed."""
    for position in sorted({*range(0, len(data), step), len(data) - 1}):
        changed = bytearray(data)
        changed[position] ^= FLIP
        yield position, bytes(changed)


def refused_by_device(runner: Path, release: Path, trusted: Path) -> bool:
    """Whether the runner refuses a release as not trusted."""
    words = [runner, "--verify", release, "--trust", trusted]
    code = subprocess.run(words, capture_output=True, check=False, timeout=60).returncode
    assert code in {0, 7}
    return code != 0


def regions(package: Path) -> Callable[[int], str]:
    """Return a function that names the part of a package that a byte belongs to: a key of `NOT_COVERED`, or `file`."""
    parts: list[tuple[int, int, str]] = []
    with tarfile.open(package) as archive:
        for member in archive:
            start = member.offset_data
            parts.append((start - BLOCK, start, "header"))
            name = {"index.json": "index", "oci-layout": "layout"}.get(member.name, "file")
            parts += [(start, start + member.size, name)]
            parts.append((start + member.size, start + -(-member.size // BLOCK) * BLOCK, "padding"))

    def region(position: int) -> str:
        for start, end, name in parts:
            if start <= position < end:
                is_end = name == "header" and _CHECKSUM_END.start <= position - start < _CHECKSUM_END.stop
                return "checksum" if is_end else name
        return "end"

    return region


def accepted(package: Path, signers: Trust, folder: Path) -> dict[str, bytes] | None:
    """Return the files of the bundle in a package that its signers approve; None if it is refused."""
    try:
        unpacked = bundle.unpack(package, folder)
        trust.approve(unpacked, signers)
        verification.samples_of(unpacked, unchecked=True)
        return {path.name: path.read_bytes() for path in unpacked.folder.iterdir()}
    except ToolchainError:
        return None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
