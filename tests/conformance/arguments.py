"""The command line of a client, and what the clients here do alike: show files, and replace a folder by a rename."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("verify", "install", "list"):
        command = commands.add_parser(name)
        command.add_argument("--trust", type=Path, required=True)
        command.add_argument("release", type=Path)
        if name == "install":
            command.add_argument("target", type=Path)
    return parser.parse_args(argv)


def show(files: Mapping[str, str]) -> None:
    for name, digest in sorted(files.items()):
        print(f"{digest}  {name}")  # noqa: T201 - its output


@contextlib.contextmanager
def staging(target: Path) -> Iterator[Path]:
    """Yield a new folder that becomes the target if the block succeeds."""
    folder = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
    try:
        yield folder
        folder.rename(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
