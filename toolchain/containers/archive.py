"""Container images as files: an exported file system becomes an archive for `docker load` of its content alone.

No time, host name, cache or order of writing gets into it. So images with the same content have the same ID, whoever
made them, when and where.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

_BLOCK = tarfile.BLOCKSIZE
_END = bytes(2 * _BLOCK)
_CHUNK = 1 << 20

# What the engine, a package manager or the kernel writes anew for each machine or run.
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
# The flags word of a compiled Python module follows its magic number; without a flag, it holds its source's time.
_PYC_FLAGS = slice(4, 8)


@dataclass(frozen=True)
class Config:
    """What an image says besides its files.

    Attributes:
        created: Seconds since 1970; the time of the image and of every file in it.
        labels: Its labels.
        environment: Variables of every program in it.
        entrypoint: Program that `docker run` starts, and its first arguments.
        command: The arguments that `docker run` gives it by default.
        architecture: As Docker names it: `amd64`, `arm64`, `arm`.
        variant: Of the architecture: `v7` of `arm`.
        settings: More of Docker's settings, such as `{"ExposedPorts": {"22/tcp": {}}}`.
    """

    created: int
    labels: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    architecture: str = "amd64"
    variant: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


def write(exported: Path, archive: Path, tag: str, config: Config) -> str:
    """Write an archive for `docker load` with one layer.

    Extended attributes are left out: a container without capabilities has no use for those of files.

    Args:
        exported: A tar file of the whole file system, as `docker export` writes it.
        archive: The file to write.
        tag: Name and tag that the image gets when it is loaded.
        config: What it says besides its files.

    Returns:
        The image's ID: `sha256:` and the digest of its configuration.
    """
    with tarfile.open(exported, "r:", errorlevel=1) as source, archive.open("wb") as stream:
        entries = _entries(source, config.created)
        stream.write(_header("layer.tar", sum(map(_length, entries)) + len(_END)))
        layer = _write_layer(source, entries, stream)
        configuration = _encoded(_described(config, layer))
        name = hashlib.sha256(configuration).hexdigest()
        _add(stream, f"{name}.json", configuration)
        _add(
            stream, "manifest.json", _encoded([{"Config": f"{name}.json", "RepoTags": [tag], "Layers": ["layer.tar"]}])
        )
        stream.write(_END)
    return f"sha256:{name}"


@dataclass(frozen=True)
class _Entry:
    """One file of a layer: its header there, and where its content is, if it has some."""

    info: tarfile.TarInfo
    content: tarfile.TarInfo | None


def _entries(source: tarfile.TarFile, created: int) -> list[_Entry]:
    """List the files that stay, parents before children, each content before the hard links to it."""
    found = {_name(member): member for member in source if _stays(source, member)}
    contents = {name: _content(source, member) for name, member in found.items()}
    holders: dict[int, str] = {}
    entries = []
    for name in sorted(found, key=lambda name: name.split("/")):
        content = contents[name]
        info = _plain(found[name], name, created)
        if content is not None:
            holder = holders.setdefault(content.offset, name)
            if holder == name:
                info.type, info.size, info.linkname = tarfile.REGTYPE, content.size, ""
            else:
                info.type, info.linkname, content = tarfile.LNKTYPE, holder, None
        entries.append(_Entry(info, content))
    return entries


def _name(member: tarfile.TarInfo) -> str:
    return member.name.removeprefix("./").strip("/")


def _stays(source: tarfile.TarFile, member: tarfile.TarInfo) -> bool:
    name = _name(member)
    if name in {"", "."} or _VOLATILE.fullmatch(name):
        return False
    return not (name.endswith(".pyc") and member.isreg() and _is_timed(source, member))


def _is_timed(source: tarfile.TarFile, member: tarfile.TarInfo) -> bool:
    stream = source.extractfile(member)
    return stream is not None and not any(stream.read(_PYC_FLAGS.stop)[_PYC_FLAGS])


def _content(source: tarfile.TarFile, member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Find the entry that holds a file's bytes: the file's own, or the one that a hard link names."""
    while member.islnk():
        member = source.getmember(member.linkname)
    return member if member.isreg() else None


def _plain(member: tarfile.TarInfo, name: str, created: int) -> tarfile.TarInfo:
    """Copy of a header what is content; of hard links, that of the file itself."""
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime = member.type, member.mode, created
    info.uid, info.gid = member.uid, member.gid
    info.linkname = member.linkname if member.issym() else ""
    info.devmajor, info.devminor = member.devmajor, member.devminor
    return info


def _buffer(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _padding(size: int) -> int:
    return -size % _BLOCK


def _length(entry: _Entry) -> int:
    size = entry.content.size if entry.content else 0
    return len(_buffer(entry.info)) + size + _padding(size)


def _write_layer(source: tarfile.TarFile, entries: Iterable[_Entry], stream: IO[bytes]) -> str:
    """Write a layer and return its digest."""
    digest = hashlib.sha256()

    def emit(data: bytes) -> None:
        digest.update(data)
        stream.write(data)

    for entry in entries:
        emit(_buffer(entry.info))
        if entry.content:
            _copy(source, entry.content, emit)
    emit(_END)
    return digest.hexdigest()


def _copy(source: tarfile.TarFile, member: tarfile.TarInfo, emit: Callable[[bytes], None]) -> None:
    content = source.extractfile(member)
    while content and (chunk := content.read(_CHUNK)):
        emit(chunk)
    emit(bytes(_padding(member.size)))


def _described(config: Config, layer: str) -> dict[str, Any]:
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


def _encoded(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return _buffer(info)


def _add(stream: IO[bytes], name: str, data: bytes) -> None:
    stream.write(_header(name, len(data)) + data + bytes(_padding(len(data))))
