"""Packages that were tampered with: seeded changes of their bytes, headers and documents, and what becomes of each."""

from __future__ import annotations

import copy
import io
import json
import random
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from toolchain import bundle, files, tensors
from toolchain.bundle import Bundle, contents, inventories
from toolchain.device import verification
from toolchain.errors import ToolchainError

Content = dict[str, bytes]
"""Members of a package by name."""

_BLOBS = "blobs/sha256/"
_BLOCK = 512
_SCALARS: tuple[Any, ...] = (
    *(None, True, 0, -1, 2, 3, 4, 1 << 31, 1 << 63, 10**40, 1.5, 1e308, float("inf"), float("nan"), "", "inf", "\x00"),
    *("../../evil", "x" * 5000, "\x1b[2J", "\u202e", [], {}, [[]], "sha256:" + "0" * 64, "0" * 64, "manifest.json"),
)


@dataclass(frozen=True)
class Original:
    """A package as it was packed, and the bundle that it is of."""

    bundle: Bundle
    package: Path

    @cached_property
    def data(self) -> bytes:
        """Its bytes."""
        return self.package.read_bytes()

    @cached_property
    def content(self) -> Content:
        """Its members."""
        with tarfile.open(self.package) as archive:
            return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]

    @cached_property
    def digests(self) -> Mapping[str, str]:
        """Digests of the bundle's files, reference and records among them."""
        return {item.name: files.sha256_file(item) for item in self.bundle.folder.iterdir()}


@dataclass
class Tally:
    """What became of mutants.

    Attributes:
        refused: They were, with an error that users are meant to see, by its class.
        same: They were taken, and are what one of the originals is; perhaps without reference or records.
        renamed: They were taken as bundles of other digests: what somebody may build, and call by that name.
        wrong: They were taken in the name of an original, and are something else; number, way, and what.
        internal: They ended in an error that nobody is meant to see.
    """

    refused: dict[str, int] = field(default_factory=dict)
    same: int = 0
    renamed: int = 0
    wrong: list[str] = field(default_factory=list)
    internal: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        refused = ", ".join(f"{count} {name}" for name, count in sorted(self.refused.items()))
        return (
            f"{sum(self.refused.values())} refused ({refused}), {self.same} the original's content, "
            f"{self.renamed} under a digest of their own, {len(self.wrong)} with other content, "
            f"{len(self.internal)} internal errors"
        )


def run(originals: tuple[Original, Original], seed: int, folder: Path, tally: Tally) -> None:
    """Make a mutant, unpack it into a folder that does not exist, and add what came of it to a tally."""
    chance = random.Random(seed)  # noqa: S311 - for tests
    mutation = chance.choice(WAYS)
    path = folder / "mutant.tar"
    path.write_bytes(mutation(chance, originals))
    label = f"{seed} {mutation.__name__}"
    try:
        unpacked = bundle.unpack(path, folder / "out")
        _judge(unpacked, originals, label, tally)
        verification.samples_of(unpacked, unchecked=True)
    except ToolchainError as fault:
        name = f"{type(fault).__name__} ({fault.exit_code})"
        tally.refused[name] = tally.refused.get(name, 0) + 1
    except Exception as fault:  # noqa: BLE001 - that is what is counted
        tally.internal.append(f"{label}: {type(fault).__name__}: {fault}")
    remaining = {item.name for item in folder.iterdir()} - {"mutant.tar", "out"}
    if remaining:
        tally.wrong.append(f"{label}: left {remaining}")


def _judge(unpacked: Bundle, originals: tuple[Original, Original], label: str, tally: Tally) -> None:
    known = {original.bundle.digest: original.digests for original in originals}.get(unpacked.digest)
    # What a bundle says of itself names the bundle, which cannot name it in turn: a load checks its form and subject.
    covered = [item for item in unpacked.folder.iterdir() if item.name not in inventories.NAMES]
    got = {item.name: files.sha256_file(item) for item in covered}
    if known is None:
        tally.renamed += 1
    elif got.items() <= known.items() and {bundle.MANIFEST, *bundle.LAYERS} <= got.keys():
        tally.same += 1
    else:
        tally.wrong.append(f"{label}: {sorted(got.items() - known.items())}")


# --- bytes -----------------------------------------------------------------------------------------------------------


def bit_flips(chance: random.Random, originals: tuple[Original, Original]) -> bytes:
    """Flip a few bits."""
    data = bytearray(chance.choice(originals).data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def byte_edits(chance: random.Random, originals: tuple[Original, Original]) -> bytes:
    """Replace, insert or remove a run of bytes."""
    data = chance.choice(originals).data
    start = chance.randrange(len(data))
    end = min(start + chance.choice((0, 1, 4, 64, 512, 4096)), len(data))
    return data[:start] + chance.randbytes(chance.choice((0, 1, 4, end - start, 512))) + data[end:]


def splices(chance: random.Random, originals: tuple[Original, Original]) -> bytes:
    """Go over from one package to another, at a block of the archive or anywhere."""
    first, second = chance.sample(originals, 2)
    unit = chance.choice((1, _BLOCK))
    here, there = (chance.randrange(len(original.data) // unit) * unit for original in (first, second))
    return first.data[:here] + second.data[chance.choice((here, there)) :]


def truncations(chance: random.Random, originals: tuple[Original, Original]) -> bytes:
    """Cut the end off."""
    data = chance.choice(originals).data
    return data[: chance.randrange(len(data))]


# --- headers ---------------------------------------------------------------------------------------------------------


def headers(chance: random.Random, originals: tuple[Original, Original]) -> bytes:
    """Change members' headers, with checksums that are right: size, name, type."""
    original, other = chance.sample(originals, 2)
    pieces = []
    for name, content in _shuffled(chance, original.content).items():
        info = tarfile.TarInfo(name)
        info.size = len(content)
        if chance.random() < 0.2:
            _change_header(chance, info, [*original.content, *other.content])
        how = chance.choice((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT))
        try:
            head = info.tobuf(how, "utf-8", "surrogateescape")
        except ValueError:  # what this format has no room for
            head = info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
        pieces.append(head + content + bytes(-len(content) % _BLOCK))
        if chance.random() < 0.05:
            pieces.append(pieces[-1])
    return b"".join([*pieces, bytes(2 * _BLOCK)])


def _shuffled(chance: random.Random, content: Content) -> Content:
    names = list(content)
    chance.shuffle(names)
    return {name: content[name] for name in names}


def _change_header(chance: random.Random, info: tarfile.TarInfo, names: list[str]) -> None:
    choice = chance.randrange(3)
    if choice == 0:
        info.size = chance.choice((0, 1, info.size - 1, info.size + 1, 512, 1 << 33, 1 << 40, -1, -512))
    elif choice == 1:
        info.name = chance.choice([*names, "../evil", "/etc/passwd", "x" * 90, f"{_BLOBS}{'0' * 64}", "./index.json"])
    else:
        info.type = bytes([chance.choice(b"01234567xgLKSV\x00")])
        info.linkname = chance.choice([*names, "/etc/passwd"])


# --- documents, with digests that are right --------------------------------------------------------------------------


def documents(chance: random.Random, originals: tuple[Original, Original]) -> bytes:
    """Change values of JSON documents, and put the new digests wherever the old ones stood."""
    original, other = chance.sample(originals, 2)
    content = dict(original.content)
    for _ in range(chance.choice((1, 1, 2, 3))):
        names = [name for name, data in content.items() if _document(data) is not None]
        name = chance.choice([name for name in names if b"params_order" in content[name]] * 5 + names)
        document = _document(content[name])
        theirs = _document(chance.choice([data for data in other.content.values() if _document(data) is not None]))
        _edit(chance, document, theirs)
        _replace(content, name, _written(chance, document))
    return _packed(content)


def _written(chance: random.Random, document: Any) -> bytes:
    if chance.random() < 0.05:
        return chance.choice(
            (b"[" * 3000, b'{"a":' * 3000, b"", b"{", b"null", b'{"schema": 3, "schema": 3}', b"\xff{}")
        )
    return (json.dumps(document, indent=2, sort_keys=True, ensure_ascii=True) + "\n").encode()


def _edit(chance: random.Random, document: Any, theirs: Any) -> None:
    """Change one value somewhere: another one, none, one of another document, or one more."""
    positions = list(_places(document))
    if not positions:
        return
    holder, key = chance.choice(positions)
    choice = chance.randrange(5)
    if choice == 0:
        del holder[key]
    elif choice == 1:
        other, theirs_at = chance.choice(list(_places(theirs)) or positions)
        holder[key] = copy.deepcopy(other[theirs_at])
    elif choice == 2 and isinstance(holder, list):
        holder.append(copy.deepcopy(holder[key]))
    elif choice == 3 and isinstance(holder, dict):
        holder[chance.choice(("extra", bundle.MANIFEST, "reference", "subject", "schema"))] = chance.choice(_SCALARS)
    else:
        holder[key] = chance.choice((*_SCALARS, *8 * [_near(holder[key])]))


def _near(value: Any) -> Any:
    """Return a value of the same kind, which a reader may take."""
    if isinstance(value, str):
        return value + "x"
    return value + 1 if isinstance(value, int | float) else copy.deepcopy(value)


def _places(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = list(enumerate(value))
    else:
        return []
    return [(value, key) for key, _ in pairs] + [position for _, inner in pairs for position in _places(inner)]


def _replace(content: Content, name: str, data: bytes, depth: int = 6) -> None:
    """Put other bytes in a member's place, and its new digest and size in every document that names it, upward.

    Documents that were edited before may name each other in a circle, or be none any more.
    """
    if not name.startswith(_BLOBS) or not depth:
        content[name] = data
        return
    old, new = name.removeprefix(_BLOBS), files.sha256_bytes(data)
    del content[name]
    content[_BLOBS + new] = data
    for other in [other for other, text in content.items() if old.encode() in text]:
        if other in content and (document := _document(content[other])) is not None:
            _name_anew(document, old, new, len(data))
            _replace(content, other, files.canonical_json(document), depth - 1)


def _document(data: bytes) -> Any:
    try:
        return json.loads(data) if data.startswith(b"{") else None
    except (ValueError, RecursionError):
        return None


def _name_anew(value: Any, old: str, new: str, size: int) -> None:
    if isinstance(value, dict):
        for key in ("digest", "sha256"):
            if str(value.get(key, "")).removeprefix("sha256:") == old:
                value[key] = str(value[key]).replace(old, new)
                value["size"] = size
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _name_anew(inner, old, new, size)


def _packed(content: Content) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, data in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return target.getvalue()


# --- meanings --------------------------------------------------------------------------------------------------------


def references(chance: random.Random, originals: tuple[Original, Original]) -> bytes:
    """Exchange the reference for one that agrees with anything, named by its companion or by the manifest too."""
    original = chance.choice(originals)
    arrays = tensors.load(original.bundle.folder / bundle.REFERENCE)
    notes: dict[str, str] = tensors.notes(original.bundle.folder / bundle.REFERENCE)
    name = chance.choice(list(arrays))
    value = arrays[name].copy()
    scale = chance.choice((0.0, -3.0, float("nan"), float("inf"), 1e30))
    with np.errstate(invalid="ignore", over="ignore"):
        others = (value, value * scale, value[:0], value.astype("f8"))
    arrays[chance.choice((name, "output.z", "x"))] = chance.choice(others)
    notes["tolerance"] = chance.choice(("inf", "nan", "1e9", "0", "-1", "0.15", "0.1", "", "[]", "1" * 400))
    notes["samples"] = chance.choice((notes.get("samples", "{}"), "[" * 3000, '{"seed": -1, "samples": []}', "null"))
    try:
        data = tensors.encode(arrays, notes)
    except ValueError:
        data = chance.randbytes(64)
    return _packed(_with_companion(chance, original, bundle.REFERENCE, data))


def records(chance: random.Random, originals: tuple[Original, Original]) -> bytes:
    """Exchange the tuning records."""
    original = chance.choice(originals)
    data = chance.choice((b"", b"{}\n", b'{"kind":"trial"}\n', chance.randbytes(99), b"[" * 9999))
    return _packed(_with_companion(chance, original, bundle.RECORDS, data))


def _with_companion(chance: random.Random, original: Original, name: str, data: bytes) -> Content:
    """Exchange a companion's file: its own manifest names the new one; the bundle's does so only sometimes."""
    content = dict(original.content)
    path = original.bundle.folder / name
    if not path.is_file():
        return content
    if chance.random() < 0.3:
        _replace(content, _BLOBS + files.sha256_file(path), data)
        return content
    travelling = contents.contents(original.bundle)
    companions = {_BLOBS + entry["digest"].removeprefix("sha256:") for entry in travelling.manifests[1:]}
    old, new = files.sha256_file(path), files.sha256_bytes(data)
    content[_BLOBS + new] = data
    for companion in companions:
        document = _document(content[companion])
        _name_anew(document, old, new, len(data))
        _replace(content, companion, files.canonical_json(document))
    return content


def exchanges(chance: random.Random, originals: tuple[Original, Original]) -> bytes:
    """Let a blob have the bytes of another, or leave one out, or take members of the other package."""
    original, other = chance.sample(originals, 2)
    content = dict(original.content)
    for _ in range(chance.choice((1, 2, 4))):
        name = chance.choice(list(content))
        donor = chance.choice((original.content, other.content))
        choice = chance.randrange(4)
        if choice == 0:
            content[name] = donor[chance.choice(list(donor))]
        elif choice == 1 and len(content) > 1:
            del content[name]
        elif choice == 2:
            content |= {member: donor[member] for member in chance.sample(list(donor), 3)}
        else:
            _replace(content, name, donor[chance.choice(list(donor))])
    return _packed(content)


Way = Callable[[random.Random, tuple[Original, Original]], bytes]
WAYS: tuple[Way, ...] = (
    *(bit_flips, byte_edits, splices, truncations, headers, headers),
    *(documents, documents, documents, references, records, exchanges),
)
