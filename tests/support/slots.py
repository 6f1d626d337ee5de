"""Slots of a store, and what belongs to each of them alone."""

from __future__ import annotations

from pathlib import Path

SLOTS = ("", "detector", "classifier")
"""Three models of a store: its own, and two in slots."""
SHARED = frozenset({"blobs", "runners", "servers", "inputs", "run", "lock", "lock.within"})


def folder_of(root: Path, slot: str) -> Path:
    return root / "slots" / slot if slot else root


def own(root: Path, slot: str) -> dict[str, object]:
    """What belongs to a slot alone: the targets of links, and the bytes of files and where these are on the disk."""
    folder = folder_of(root, slot)
    tops = [path for path in folder.iterdir() if path.name not in {*SHARED, "slots"}]
    paths = [path for top in tops for path in (top, *(() if top.is_symlink() else top.rglob("*")))]
    return {str(path.relative_to(folder)): _content(path) for path in paths}


def _content(path: Path) -> object:
    if path.is_symlink():
        return str(path.readlink())
    return (path.stat().st_ino, path.read_bytes()) if path.is_file() else "folder"
