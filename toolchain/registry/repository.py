"""A repository of a registry: its blobs, its manifests, and what refers to them. Nothing is believed unchecked."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit, urlunsplit

import requests
from requests import exceptions

from toolchain import files
from toolchain.bundle import contents, oci
from toolchain.bundle.oci import INDEX_TYPE, MANIFEST_TYPE, Descriptor, Index
from toolchain.errors import InputError, RegistryError, VerificationError
from toolchain.progress import size_text
from toolchain.registry.address import Address
from toolchain.registry.client import LARGEST_DOCUMENT, Body, Client, chunks, document

_DOCKER_TYPES = (
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_OK, _FOUND = frozenset({200}), frozenset({200, 404})
_WITHOUT_REFERRERS = frozenset({404, 405})
_TRIES = 3
_PAGES = 16
_SPARE = 16 << 20


@dataclass(frozen=True)
class Repository:
    """Where a package is, or will be."""

    client: Client  # speaks to the registry
    address: Address  # the package's
    done: Callable[[int], None] = lambda _count: None  # told how many bytes more have gone or come

    @property
    def name(self) -> str:
        """What errors call it."""
        return str(self.address)

    def _path(self, kind: str, name: str) -> str:
        return f"/v2/{self.address.repository}/{kind}/{name}"

    # --- what is there

    def manifest(self) -> bytes:
        """Return the manifest that the address names, which has its digest if it names one.

        Raises:
            InputError: There is none, or it is no image manifest.
            VerificationError: It has another digest.
            RegistryError: The registry cannot be reached, or refuses.
        """
        wanted = self.address.digest or self.address.tag
        with self._get_manifest(wanted, expected=_OK) as response:
            kind = response.headers.get("Content-Type", "").partition(";")[0].strip()
            data = self._document(response)
        if kind != MANIFEST_TYPE:
            hint = "choose one of its manifests by digest" if kind == INDEX_TYPE else f"expected {MANIFEST_TYPE}"
            raise InputError(f"{self.address} is not a package", details=f"it is {kind[:200]!r}", hint=hint)
        if self.address.digest:
            contents.checked(data, Descriptor(self.address.digest, len(data), kind), self.name)
        return data

    def _get_manifest(self, name: str, expected: frozenset[int]) -> requests.Response:
        accepted = ", ".join((MANIFEST_TYPE, INDEX_TYPE, *_DOCKER_TYPES))
        path = self._path("manifests", name)
        return self.client.ask("GET", path, expected=expected, headers={"Accept": accepted}, what=self.name)

    def _document(self, response: requests.Response) -> bytes:
        try:
            with self.client.limited(LARGEST_DOCUMENT):
                return document(response)
        except exceptions.RequestException as fault:
            raise self.client.explained(fault) from fault

    def read(self, wanted: Descriptor) -> bytes:
        """Return a small blob, or a manifest, checked."""
        if wanted.media == MANIFEST_TYPE:
            response = self._get_manifest(wanted.digest, expected=_OK)
        else:
            response = self._get_blob(wanted)
        with response:
            return contents.checked(self._document(response), wanted, self.name)

    def save(self, wanted: Descriptor, target: Path) -> None:
        """Write a blob into a new file, checked on the way; a download that breaks off is begun anew.

        Raises:
            InputError: There is no room for it, or it is not there.
            VerificationError: It is another one.
            RegistryError: The registry is lost.
        """
        free = shutil.disk_usage(target.parent).free - _SPARE
        if wanted.size > free:
            raise InputError(
                f"{target.name} in {self.name} needs {size_text(wanted.size)}, but only {size_text(free)} are free",
                hint="free some space, or set TMPDIR to a folder on another disk",
            )
        for left in reversed(range(_TRIES)):
            try:
                self._download(wanted, target)
            except exceptions.RequestException as fault:
                if not left:
                    raise self.client.explained(fault) from fault
            else:
                break

    def _download(self, wanted: Descriptor, target: Path) -> None:
        with self._get_blob(wanted) as response, self.client.limited(wanted.size):
            contents.save_checked(self._counted(response), target, wanted, self.name)

    def _get_blob(self, wanted: Descriptor) -> requests.Response:
        what = f"blob {wanted.sha256[:12]} of {self.name}"
        return self.client.ask("GET", self._path("blobs", wanted.digest), expected=_OK, what=what)

    def _counted(self, response: requests.Response) -> Iterator[bytes]:
        """Count what comes, and take it back where a download breaks off."""
        count = 0
        try:
            for chunk in chunks(response):
                count += len(chunk)
                self.done(len(chunk))
                yield chunk
        except exceptions.RequestException:
            self.done(-count)
            raise

    def referrers(self, digest: str) -> tuple[Descriptor, ...]:
        """Return the manifests that refer to one: as the registry lists them, or those of a tag of its digest."""
        found: list[Descriptor] = []
        path = self._path("referrers", digest)
        for _ in range(_PAGES):
            with self.client.ask("GET", path, expected=_OK | _WITHOUT_REFERRERS, what="referrers") as response:
                if response.status_code in _WITHOUT_REFERRERS:
                    return oci.parse(Index, self._tagged(digest), self.name).manifests
                found += oci.parse(Index, self._document(response), self.name).manifests
                following = response.links.get("next", {}).get("url", "")
                path = urljoin(response.url, following) if following else ""
            if not path:
                break
        return tuple(found)

    def _tagged(self, digest: str) -> bytes:
        """Return the index of a registry without a list of referrers; an empty one if there is none yet."""
        with self._get_manifest(_tag_of(digest), expected=_FOUND) as response:
            return self._document(response) if response.status_code in _OK else oci.encode_index([])

    # --- what is brought there

    def ensure(self, sha256: str, content: bytes | Path) -> bool:
        """Upload a blob that the registry lacks; return whether it did.

        Raises:
            RegistryError: The registry is lost, or refuses.
        """
        digest = f"sha256:{sha256}"
        size = contents.size_of(content)
        with self.client.ask("HEAD", self._path("blobs", digest), expected=_FOUND, what="a blob") as response:
            if response.status_code in _OK:
                self.done(size)
                return False
        begun = self.client.ask("POST", self._path("blobs", "uploads/"), expected=frozenset({202}), what="an upload")
        with begun:
            place = _with_digest(begun.headers.get("Location", ""), digest)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        body: Body = (
            partial(_Told, content, self.done) if isinstance(content, Path) and size else contents.data_of(content)
        )
        self.client.ask(
            "PUT", place, expected=frozenset({201}), headers=headers, body=body, what="an upload's end"
        ).close()
        if isinstance(content, bytes):
            self.done(size)
        return True

    def put(self, name: str, data: bytes, media: str = MANIFEST_TYPE) -> Mapping[str, str]:
        """Upload a manifest under a tag or its digest; return the answer's headers.

        Raises:
            VerificationError: The registry keeps it under another digest.
            RegistryError: It refuses it, or is lost.
        """
        path = self._path("manifests", name)
        headers = {"Content-Type": media}
        response = self.client.ask(
            "PUT", path, expected=frozenset({201}), headers=headers, body=data, what="a manifest's upload"
        )
        with response:
            kept = response.headers.get("Docker-Content-Digest", "")
        if kept and kept != f"sha256:{files.sha256_bytes(data)}":
            raise VerificationError(
                f"{self.client.registry} stored the manifest under a different digest", details=kept[:80]
            )
        return response.headers

    def refer(self, subject: str, described: Mapping[str, Any]) -> None:
        """Add a manifest to the tag of what it accompanies, in place of an earlier one of its kind, if that is ours."""
        known, kind = self._tagged(subject), str(described["artifactType"])
        oci.parse(Index, known, self.name)
        others = [
            one
            for one in json.loads(known)["manifests"]
            if one["digest"] != described["digest"]
            and not (kind.startswith(oci.VENDOR) and one.get("artifactType") == kind)
        ]
        self.put(_tag_of(subject), oci.encode_index([*others, dict(described)]), INDEX_TYPE)


def _tag_of(digest: str) -> str:
    """Name the tag that stands in for a list of referrers, as the OCI distribution specification does."""
    return digest.replace(":", "-")


def _with_digest(place: str, digest: str) -> str:
    """Add the digest to where an upload goes."""
    try:
        parts = urlsplit(place)
    except ValueError:
        parts = urlsplit("")
    if not parts.path:
        raise RegistryError("the registry's answer has no upload address")
    query = "&".join(filter(None, [parts.query, urlencode({"digest": digest})]))
    return urlunsplit(parts._replace(query=query))


class _Told(io.FileIO):
    """A file whose reading is told about; what is read again, as an upload is tried again, counts once."""

    def __init__(self, path: Path, done: Callable[[int], None]) -> None:
        super().__init__(path)
        self._done = done
        self._furthest = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data: bytes = super().read(-1 if size is None else size)
        if (more := self.tell() - self._furthest) > 0:
            self._furthest += more
            self._done(more)
        return data
