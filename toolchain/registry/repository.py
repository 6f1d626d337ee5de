"""A repository of a registry: its blobs, its manifests, and what refers to them, all checked by their digests.

A bundle is pushed and pulled as the blobs of its package, under the same digests.
"""

from __future__ import annotations

import dataclasses
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
from toolchain.bundle import Bundle, contents, load, oci, replacing
from toolchain.bundle.contents import assemble, bundle_manifest, data_of, size_of
from toolchain.bundle.oci import INDEX_TYPE, MANIFEST_TYPE, Descriptor, Index
from toolchain.errors import InputError, RegistryError, VerificationError
from toolchain.progress import MEGABYTES, Progress, Step, size_text, stage
from toolchain.registry.access import Access, Address
from toolchain.registry.client import LARGEST_DOCUMENT, Body, Client, chunks, document

_DOCKER_TYPES = (
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_OK, _OK_OR_MISSING = frozenset({200}), frozenset({200, 404})
_WITHOUT_REFERRERS = frozenset({404, 405})
_TRIES = 3
_PAGES = 16
_SPARE_BYTES = 16 << 20


@dataclass(frozen=True)
class Repository:
    client: Client
    address: Address
    count_bytes: Callable[[int], None] = lambda _count: None  # called with the number of bytes since the last call

    @property
    def name(self) -> str:
        return str(self.address)

    def _path(self, kind: str, name: str) -> str:
        return f"/v2/{self.address.repository}/{kind}/{name}"

    def manifest(self) -> bytes:
        """Return the manifest that the address names, with its digest if it names one.

        Raises:
            InputError: There is none, or it is not an image manifest.
            VerificationError: It has another digest.
            RegistryError: The registry cannot be reached, or refuses.
        """
        reference = self.address.digest or self.address.tag
        with self._get_manifest(reference, expected=_OK) as response:
            kind = response.headers.get("Content-Type", "").partition(";")[0].strip()
            data = self._document(response)
        if kind != MANIFEST_TYPE:
            hint = "choose one of its manifests by digest" if kind == INDEX_TYPE else f"expected {MANIFEST_TYPE}"
            raise InputError(f"{self.address} is not a package", details=f"it is {kind[:200]!r}", hint=hint)
        if self.address.digest:
            contents.check_blob(data, Descriptor(self.address.digest, len(data), kind), self.name)
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
            raise self.client.explain(fault) from fault

    def read(self, blob: Descriptor) -> bytes:
        """Return a small blob, or a manifest, checked."""
        if blob.media == MANIFEST_TYPE:
            response = self._get_manifest(blob.digest, expected=_OK)
        else:
            response = self._get_blob(blob)
        with response:
            return contents.check_blob(self._document(response), blob, self.name)

    def save(self, blob: Descriptor, target: Path) -> None:
        """Write a blob into a new file, checked; a download that breaks off is repeated.

        Raises:
            InputError: There is not enough space, or no such blob.
            VerificationError: It has another digest.
            RegistryError: The registry is lost.
        """
        free = shutil.disk_usage(target.parent).free - _SPARE_BYTES
        if blob.size > free:
            raise InputError(
                f"{target.name} in {self.name} needs {size_text(blob.size)}, but only {size_text(free)} are free",
                hint="free some space, or set TMPDIR to a folder on another disk",
            )
        for tries_left in reversed(range(_TRIES)):
            try:
                with self._get_blob(blob) as response, self.client.limited(blob.size):
                    contents.save_blob(self._count_chunks(response), target, blob, self.name)
            except exceptions.RequestException as fault:
                if not tries_left:
                    raise self.client.explain(fault) from fault
            else:
                break

    def _get_blob(self, blob: Descriptor) -> requests.Response:
        what = f"blob {blob.sha256[:12]} of {self.name}"
        return self.client.ask("GET", self._path("blobs", blob.digest), expected=_OK, what=what)

    def _count_chunks(self, response: requests.Response) -> Iterator[bytes]:
        """Report the bytes as they come; after an interrupted download, which is repeated, subtract them."""
        count = 0
        try:
            for chunk in chunks(response):
                count += len(chunk)
                self.count_bytes(len(chunk))
                yield chunk
        except exceptions.RequestException:
            self.count_bytes(-count)
            raise

    def referrers(self, digest: str) -> tuple[Descriptor, ...]:
        """Return the manifests that refer to one, from the registry's list or from the tag that replaces it."""
        manifests: list[Descriptor] = []
        path = self._path("referrers", digest)
        for _ in range(_PAGES):
            with self.client.ask("GET", path, expected=_OK | _WITHOUT_REFERRERS, what="referrers") as response:
                if response.status_code in _WITHOUT_REFERRERS:
                    return oci.parse(Index, self._referrers_index(digest), self.name).manifests
                manifests += oci.parse(Index, self._document(response), self.name).manifests
                following = response.links.get("next", {}).get("url", "")
                path = urljoin(response.url, following) if following else ""
            if not path:
                break
        return tuple(manifests)

    def _referrers_index(self, digest: str) -> bytes:
        """Return the index under the tag that replaces a list of referrers; empty if there is none yet."""
        with self._get_manifest(_tag_of(digest), expected=_OK_OR_MISSING) as response:
            return self._document(response) if response.status_code in _OK else oci.encode_index([])

    def ensure(self, sha256: str, content: bytes | Path) -> bool:
        """Upload a blob if the registry lacks it; return whether it did.

        Raises:
            RegistryError: The registry is lost, or refuses.
        """
        digest = f"sha256:{sha256}"
        size = contents.size_of(content)
        with self.client.ask("HEAD", self._path("blobs", digest), expected=_OK_OR_MISSING, what="a blob") as response:
            if response.status_code in _OK:
                self.count_bytes(size)
                return False
        upload = self.client.ask("POST", self._path("blobs", "uploads/"), expected=frozenset({202}), what="an upload")
        with upload:
            location = _with_digest(upload.headers.get("Location", ""), digest)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        body: Body = (
            partial(_CountingFile, content, self.count_bytes)
            if isinstance(content, Path) and size
            else contents.data_of(content)
        )
        self.client.ask(
            "PUT", location, expected=frozenset({201}), headers=headers, body=body, what="an upload's end"
        ).close()
        if isinstance(content, bytes):
            self.count_bytes(size)
        return True

    def put(self, name: str, data: bytes, media: str = MANIFEST_TYPE) -> Mapping[str, str]:
        """Upload a manifest under a tag or its digest; return the answer's headers.

        Raises:
            VerificationError: The registry stores it under another digest.
            RegistryError: It refuses, or is lost.
        """
        path = self._path("manifests", name)
        headers = {"Content-Type": media}
        response = self.client.ask(
            "PUT", path, expected=frozenset({201}), headers=headers, body=data, what="a manifest's upload"
        )
        with response:
            stored = response.headers.get("Docker-Content-Digest", "")
        if stored and stored != f"sha256:{files.sha256_bytes(data)}":
            raise VerificationError(
                f"{self.client.registry} stored the manifest under a different digest", details=stored[:80]
            )
        return response.headers

    def refer(self, subject: str, descriptor: Mapping[str, Any]) -> None:
        """Add a manifest to the tag of its subject, in place of an earlier one of its kind, if that is ours."""
        index, kind = self._referrers_index(subject), str(descriptor["artifactType"])
        oci.parse(Index, index, self.name)
        others = [
            entry
            for entry in json.loads(index)["manifests"]
            if entry["digest"] != descriptor["digest"]
            and not (kind.startswith(oci.VENDOR) and entry.get("artifactType") == kind)
        ]
        self.put(_tag_of(subject), oci.encode_index([*others, dict(descriptor)]), INDEX_TYPE)


def _tag_of(digest: str) -> str:
    """Return the tag that replaces a list of referrers, by the OCI distribution specification."""
    return digest.replace(":", "-")


def _with_digest(location: str, digest: str) -> str:
    try:
        url = urlsplit(location)
    except ValueError:
        url = urlsplit("")
    if not url.path:
        raise RegistryError("the registry's answer has no upload address")
    query = "&".join(filter(None, [url.query, urlencode({"digest": digest})]))
    return urlunsplit(url._replace(query=query))


class _CountingFile(io.FileIO):
    """A file that reports how much was read; bytes that a repeated upload reads again count once."""

    def __init__(self, path: Path, count_bytes: Callable[[int], None]) -> None:
        super().__init__(path)
        self._count_bytes = count_bytes
        self._furthest_position = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data: bytes = super().read(-1 if size is None else size)
        if (more := self.tell() - self._furthest_position) > 0:
            self._furthest_position += more
            self._count_bytes(more)
        return data


@dataclass(frozen=True)
class Pushed:
    address: Address  # the package's, by its digest
    tag: str  # the tag that now names it
    blobs_sent: int  # blobs that the registry lacked, the manifests not counted
    blobs_skipped: int  # blobs that it had
    bytes_sent: int  # bytes of those that it lacked
    companions: int  # manifests that accompany the bundle: its reference and its records


@dataclass
class _Transfer:
    """Reports how many bytes of a transfer are done."""

    text: str
    total: int
    progress: Progress
    so_far: int = 0

    def __post_init__(self) -> None:
        self.progress(stage(self.text))

    def add(self, count: int) -> None:
        self.so_far += count
        self.progress(Step(self.text, self.so_far, self.total, MEGABYTES))


def push(bundle: Bundle, address: Address, access: Access, progress: Progress) -> Pushed:
    """Push a bundle and its companions. The tag comes last, so that it never names an incomplete package.

    Raises:
        InputError: The address has no tag.
        RegistryError: The registry cannot be reached, or refuses.
        VerificationError: Its certificate is not trusted, or it stores something else than was sent.
    """
    check_tag(address)
    from toolchain.registry.client import Client  # noqa: PLC0415 - slow to import

    package = contents.contents(bundle)
    documents = {descriptor["digest"].removeprefix("sha256:"): descriptor for descriptor in package.manifests}
    blobs = {sha256: content for sha256, content in package.blobs.items() if sha256 not in documents}
    sizes = {sha256: size_of(content) for sha256, content in blobs.items()}
    transfer = _Transfer(f"sending {bundle.manifest.name} to {address.registry}", sum(sizes.values()), progress)
    with Client(address, access) as client:
        repository = Repository(client, address, transfer.add)
        uploaded = [sha256 for sha256, content in blobs.items() if repository.ensure(sha256, content)]
        first, *others = documents
        for sha256 in (first, *others):
            answer = repository.put(f"sha256:{sha256}", data_of(package.blobs[sha256]))
            if sha256 != first and "OCI-Subject" not in answer:  # it keeps no list of referrers
                repository.refer(f"sha256:{first}", documents[sha256])
        repository.put(address.tag, data_of(package.blobs[first]))
    uploaded_bytes = sum(sizes[sha256] for sha256 in uploaded)
    pinned = address.pinned(f"sha256:{first}")
    return Pushed(pinned, address.tag, len(uploaded), len(blobs) - len(uploaded), uploaded_bytes, len(others))


def check_tag(address: Address) -> None:
    """Check that a package can be pushed to an address: with a tag and without a digest."""
    if address.digest or not address.tag:
        raise InputError(
            f"{address} has no tag for the package",
            hint=f"add a tag, such as {Address(address.registry, address.repository, 'latest')}",
        )


def pull(address: Address, folder: Path, access: Access, progress: Progress) -> Bundle:
    """Pull a bundle and its companions into a folder, where they replace an earlier bundle.

    Raises:
        InputError: There is no such package, or the folder holds something other than a bundle.
        RegistryError: The registry cannot be reached, or refuses.
        VerificationError: Its certificate is not trusted, or a digest or a form is wrong.
    """
    if not (address.tag or address.digest):
        raise InputError(f"{address} has neither a tag nor a digest", hint=f"add a tag: {address}:TAG")
    from toolchain.registry.client import Client  # noqa: PLC0415 - slow to import

    with Client(address, access) as client, replacing(folder) as staging:
        document = Repository(client, address).manifest()
        digest = f"sha256:{files.sha256_bytes(document)}"
        if not address.digest:
            progress(f"{address} is {digest}")
        pinned = Repository(client, address.pinned(digest))
        manifest = bundle_manifest(pinned, document)
        total = sum(file.size for file in manifest.files.values())
        transfer = _Transfer(f"fetching {manifest.name} from {address.registry}", total, progress)
        counting = dataclasses.replace(pinned, count_bytes=transfer.add)
        assemble(counting, manifest, counting.referrers(digest), staging)
        bundle = load(staging, str(address))
    return dataclasses.replace(bundle, folder=folder)
