"""Push a bundle to a registry and pull it back: the blobs of its package, under the same digests."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from toolchain import files
from toolchain.bundle import Bundle, load, replacing
from toolchain.bundle.contents import assemble, bundle_manifest, contents, data_of, size_of
from toolchain.errors import InputError
from toolchain.progress import MEGABYTES, Progress, Step, stage
from toolchain.registry.access import Access
from toolchain.registry.address import Address


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
    from toolchain.registry.repository import Repository  # noqa: PLC0415 - as above

    package = contents(bundle)
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
    from toolchain.registry.repository import Repository  # noqa: PLC0415 - as above

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
