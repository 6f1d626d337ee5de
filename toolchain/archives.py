"""Tar archives that depend on their contents alone: no owner, no time, mode 644."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

Contents = Mapping[str, bytes | Path]  # members by name, in the archive's order: their bytes, or the file that has them


def append(stream: IO[bytes], contents: Contents) -> None:
    """Write an archive at the end of an open file."""
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(content) if isinstance(content, bytes) else content.stat().st_size
            with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as source:
                archive.addfile(info, source)


def write(path: Path, contents: Contents) -> None:
    with path.open("wb") as stream:
        append(stream, contents)


def encoded(contents: Contents) -> bytes:
    stream = io.BytesIO()
    append(stream, contents)
    return stream.getvalue()
