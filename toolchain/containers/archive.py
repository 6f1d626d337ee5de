"""Reproducible image archives: turns an exported file system into an archive for `docker load`.

Times, host names, caches and the order of files are normalized, so images with the same content have the same ID.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

_BLOCK = tarfile.BLOCKSIZE
_END = bytes(2 * _BLOCK)
_CHUNK = 1 << 20

# Files that differ between machines or runs: written by the engine, a package manager or the kernel.
_VOLATILE = re.compile(
    r"""
    (dev|proc|sys|run|tmp|var/tmp|var/log|var/cache/(apt|ldconfig)|var/lib/apt/lists)/.*
    | \.dockerenv
    | etc/(hostname|hosts|resolv\.conf|machine-id|\.pwd\.lock)
    | etc/(passwd|group|shadow|gshadow|subuid|subgid)-
    | var/lib/dbus/machine-id
    | var/lib/dpkg/[a-z-]+-old
    | var/cache/debconf/.*-old
    """,
    re.VERBOSE | re.DOTALL,
)
# The flags of a compiled Python module follow its magic number (PEP 552); without a flag, it holds its source's time.
_PYC_FLAGS = slice(4, 8)


@dataclass(frozen=True)
class ImageConfig:
    """An image's settings."""

    created: int  # seconds since 1970; the time of the image and of every file in it
    architecture: str  # Docker's name
    labels: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()  # program that `docker run` starts, and its first arguments
    command: tuple[str, ...] = ()  # arguments that `docker run` gives it by default
    variant: str = ""  # of the architecture: `v7` of `arm`
    settings: Mapping[str, Any] = field(
        default_factory=dict
    )  # more of Docker's, such as `{"ExposedPorts": {"22/tcp": {}}}`


def write(exported: Path, archive: Path, tag: str, config: ImageConfig) -> str:
    """Write an archive for `docker load` with one layer; return the image's ID, its configuration's `sha256:` digest.

    Extended attributes are left out: a container without capabilities has no use for those of files.

    Args:
        exported: A tar file of the whole file system, as `docker export` writes it.
        archive: The file to write.
        tag: Name and tag that the image gets when it is loaded.
        config: The image's settings.
    """
    with tarfile.open(exported, "r:", errorlevel=1) as source, archive.open("wb") as stream:
        entries = _entries(source, config.created)
        sizes = [entry.content.size if entry.content else 0 for entry in entries]
        headers = sum(len(_buffer(entry.info)) for entry in entries)
        stream.write(_header("layer.tar", headers + sum(size + -size % _BLOCK for size in sizes) + len(_END)))
        layer = _write_layer(source, entries, stream)
        configuration = _json(_configuration(config, layer))
        name = hashlib.sha256(configuration).hexdigest()
        _add(stream, f"{name}.json", configuration)
        _add(stream, "manifest.json", _json([{"Config": f"{name}.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]))
        stream.write(_END)
    return f"sha256:{name}"


@dataclass(frozen=True)
class _Entry:
    """One file of a layer: its header, and the member with its content, if any."""

    info: tarfile.TarInfo
    content: tarfile.TarInfo | None


def _entries(source: tarfile.TarFile, created: int) -> list[_Entry]:
    """List the files to keep, parents before children, each content before the hard links to it."""
    members = {_name(member): member for member in source if _is_included(source, member)}
    first_names: dict[int, str] = {}  # by the offset of the content; all other names become hard links to it
    entries = []
    for name in sorted(members, key=lambda name: name.split("/")):
        member = content = members[name]
        while content.islnk():
            content = source.getmember(content.linkname)
        # Only what counts as content is copied: no owner names, and the image's time.
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.mtime = member.type, member.mode, created
        info.uid, info.gid = member.uid, member.gid
        info.linkname = member.linkname if member.issym() else ""
        info.devmajor, info.devminor = member.devmajor, member.devminor
        has_content = False
        if content.isreg():
            first_name = first_names.setdefault(content.offset, name)
            has_content = first_name == name
            if has_content:
                info.type, info.size, info.linkname = tarfile.REGTYPE, content.size, ""
            else:
                info.type, info.linkname = tarfile.LNKTYPE, first_name
        entries.append(_Entry(info, content if has_content else None))
    return entries


def _name(member: tarfile.TarInfo) -> str:
    return member.name.removeprefix("./").strip("/")


def _is_included(source: tarfile.TarFile, member: tarfile.TarInfo) -> bool:
    name = _name(member)
    if name in {"", "."} or _VOLATILE.fullmatch(name):
        return False
    if not (name.endswith(".pyc") and member.isreg()):
        return True
    stream = source.extractfile(member)
    return stream is None or any(stream.read(_PYC_FLAGS.stop)[_PYC_FLAGS])


def _buffer(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _write_layer(source: tarfile.TarFile, entries: Iterable[_Entry], stream: IO[bytes]) -> str:
    digest = hashlib.sha256()

    def emit(data: bytes) -> None:
        digest.update(data)
        stream.write(data)

    for entry in entries:
        emit(_buffer(entry.info))
        if entry.content:
            content = source.extractfile(entry.content)
            while content and (chunk := content.read(_CHUNK)):
                emit(chunk)
            emit(bytes(-entry.content.size % _BLOCK))
    emit(_END)
    return digest.hexdigest()


def _configuration(config: ImageConfig, layer: str) -> dict[str, Any]:
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(config.created))
    return {
        "architecture": config.architecture,
        **({"variant": config.variant} if config.variant else {}),
        "os": "linux",
        "created": created,
        "config": {
            "Cmd": list(config.command) or None,
            "Entrypoint": list(config.entrypoint) or None,
            "Env": [f"{name}={value}" for name, value in sorted(config.environment.items())],
            "Labels": dict(config.labels),
            **config.settings,
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
        "history": [{"created": created, "created_by": "edge-toolchain"}],
    }


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return _buffer(info)


def _add(stream: IO[bytes], name: str, data: bytes) -> None:
    stream.write(_header(name, len(data)) + data + bytes(-len(data) % _BLOCK))
