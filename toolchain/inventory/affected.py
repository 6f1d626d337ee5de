"""Which products contain a vulnerable component: advisories and package URLs, against bills in CycloneDX.

An advisory is a record of the CVE programme (format 5) or of OSV. Nothing is downloaded, and versions are compared only
by rules that are known for their kind of package: Python's. Where the rules of another kind would decide, the answer is
that the match is not certain.
"""

from __future__ import annotations

import codecs
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packageurl import PackageURL
from packaging.version import InvalidVersion, Version
from pydantic_core import from_json

from toolchain import files
from toolchain.errors import InputError, VerificationError

LARGEST_BILL = 64 << 20  # bytes; that of an image with a whole distribution has a tenth of it
_LARGEST_ADVISORY = 16 << 20
_PYTHON = "pypi"
_PART_OF_NAME = re.compile(rb"[\w.-]")
_SEPARATORS = re.compile(r"[-_.]+")
_FIRST = {"", "0", "*"}  # no version is earlier
_NO_END = {"", "*"}

Certainty = Literal["affected", "unclear"]


@dataclass(frozen=True)
class Span:
    """Versions from `first` up to `fixed`, which is not one of them, or up to `last`; empty for no such end."""

    first: str = ""
    fixed: str = ""
    last: str = ""

    @classmethod
    def only(cls, version: str) -> Span:
        return cls(version, last=version)

    def judge(self, version: str, kind: str) -> Certainty | None:
        """Return whether a version is one of them; `unclear` if that depends on rules other than Python's."""
        if self.first in _FIRST and self.fixed in _NO_END and self.last in _NO_END:
            return "affected"
        if self.first == self.last:
            return "affected" if version == self.first else None
        try:
            number = Version(version)
            after_first = self.first in _FIRST or number >= Version(self.first)
            before_end = self.fixed in _NO_END or number < Version(self.fixed)
            inside = after_first and before_end and (self.last in _NO_END or number <= Version(self.last))
        except InvalidVersion:
            return "unclear"
        if not inside:
            return None
        return "affected" if kind == _PYTHON else "unclear"


_EVERYTHING = Span()


@dataclass(frozen=True)
class Vulnerable:
    """A package with its vulnerable versions."""

    kind: str  # type of its package URL, such as `pypi`; empty if the advisory names none
    name: str
    spans: tuple[Span, ...]
    safe: tuple[Span, ...] = ()

    def may_be_in(self, lower: bytes) -> bool:
        """Return whether the name occurs in the text of a bill, in lower case, however its separators are written."""
        words = [word.encode() for word in _SEPARATORS.split(self.name.casefold())]
        if not all(word.isalnum() for word in words):  # JSON may write other letters in several ways
            return True
        # A pattern that begins with letters is found ten times as fast as one that looks behind itself.
        pattern = re.compile(rb"[-_.]+".join(words) + rb"(?![\w.-])")
        return any(not _PART_OF_NAME.match(lower, match.start() - 1) for match in pattern.finditer(lower, 1))

    def judge(self, component: Mapping[str, Any]) -> Certainty | None:
        """Return whether a component of a bill is this package in a vulnerable version; None if it is not."""
        name, kind, version = _identity(component)
        if _uniform(name) != _uniform(self.name) or (self.kind and kind != self.kind):
            return None
        if any(span.judge(version, kind) == "affected" for span in self.safe):
            return None
        verdicts = {span.judge(version, kind) for span in self.spans}
        if "affected" in verdicts and self.kind:
            return "affected"
        return "unclear" if verdicts - {None} else None


@dataclass(frozen=True)
class Advisory:
    identifier: str  # such as `CVE-2026-1234`, or the package URL that was asked for
    packages: tuple[Vulnerable, ...]

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """The names of the packages, with the same separators."""
        return frozenset(_uniform(package.name) for package in self.packages)


@dataclass(frozen=True)
class Match:
    """A component of a product that an advisory names."""

    component: str
    version: str
    certainty: Certainty  # `unclear` if the advisory has only a name, or other rules for versions than Python's
    required: bool  # whether it is in the product or needed to run it; otherwise it was used to build it
    reference: str = ""  # its `bom-ref` in the bill


@dataclass(frozen=True)
class Product:
    name: str
    digest: str  # SHA-256, as devices and registries name it; empty if the bill has none
    matches: tuple[Match, ...]
    serial: str = ""  # of the bill: `urn:uuid:...`, and after a slash its version; empty if the bill has none

    @property
    def certainty(self) -> Certainty | None:
        """The most certain of its matches; None without any."""
        return min((match.certainty for match in self.matches), default=None)  # `affected` is before `unclear`


def parse_advisory(text: str) -> Advisory:
    """Parse what the user asks for: a package URL, or the name of a file with an advisory.

    Raises:
        InputError: It is neither, or the advisory names no package.
    """
    if text.startswith("pkg:"):
        try:
            url = PackageURL.from_string(text)
        except ValueError as fault:
            raise InputError(f"{text!r} is not a package URL: {fault}", hint="such as pkg:pypi/onnx@1.16.0") from None
        span = Span.only(url.version) if url.version else _EVERYTHING
        return Advisory(text, (Vulnerable(url.type, url.name, (span,)),))
    path = Path(text)
    if not path.is_file():
        raise InputError(
            f"{text} is neither a package URL nor a file",
            hint="name a component, such as pkg:pypi/onnx@1.16.0, or a file with a CVE record or an OSV advisory",
        )
    document = files.read_json(path, InputError, _LARGEST_ADVISORY)
    try:
        identifier, packages = _parse_document(document)
    except (KeyError, TypeError, AttributeError, ValueError) as fault:
        raise _not_an_advisory(path, f"{type(fault).__name__}: {fault}") from fault
    if not packages:
        raise _not_an_advisory(path, "its list of affected packages is empty")
    return Advisory(identifier, tuple(packages))


def _not_an_advisory(path: Path, details: str) -> InputError:
    return InputError(
        f"{path} is neither a CVE record of format 5 nor an OSV advisory",
        details=details,
        hint="download one of them, or name the component, such as pkg:pypi/onnx@1.16.0",
    )


def _parse_document(document: Any) -> tuple[str, list[Vulnerable]]:
    if "cveMetadata" in document:
        containers = document["containers"]
        entries = [
            entry for part in (containers["cna"], *containers.get("adp", [])) for entry in part.get("affected", [])
        ]
        return document["cveMetadata"]["cveId"], [package for entry in entries for package in _of_cve(entry)]
    if "affected" in document and "id" in document:
        return document["id"], [_of_osv(entry) for entry in document["affected"]]
    raise ValueError("it has neither `cveMetadata` nor `id` and `affected`")


def _of_osv(entry: Mapping[str, Any]) -> Vulnerable:
    package = entry["package"]
    url = PackageURL.from_string(package["purl"]) if package.get("purl") else None
    kind = (
        url.type if url else {"PyPI": _PYTHON}.get(package["ecosystem"].partition(":")[0], package["ecosystem"].lower())
    )
    spans = [Span.only(version) for version in entry.get("versions", [])]
    for versions in entry.get("ranges", []):
        if versions["type"] != "GIT":  # commits; the versions that have them are listed beside
            spans += _spans_of_events(versions["events"])
    return Vulnerable(kind, url.name if url else package["name"], tuple(spans))


def _spans_of_events(events: Sequence[Mapping[str, str]]) -> Iterator[Span]:
    first = ""
    for event in events:
        if first:
            yield Span(first, event.get("fixed", event.get("limit", "")), event.get("last_affected", ""))
        first = event.get("introduced", "")
    if first:
        yield Span(first)


def _of_cve(entry: Mapping[str, Any]) -> Iterator[Vulnerable]:
    url = PackageURL.from_string(entry["packageURL"]) if entry.get("packageURL") else None
    name = url.name if url else entry.get("packageName") or entry["product"]
    kind = url.type if url else _PYTHON if "pypi.org" in entry.get("collectionURL", "") else ""
    spans: dict[str, list[Span]] = {"affected": [], "unaffected": [], "unknown": []}
    for listed in entry.get("versions", []):
        is_range = "lessThan" in listed or "lessThanOrEqual" in listed
        span = Span(listed["version"], listed.get("lessThan", ""), listed.get("lessThanOrEqual", ""))
        spans[listed["status"]].append(span if is_range else Span.only(listed["version"]))
    # By default, all versions that are not listed are affected, or none.
    vulnerable = [_EVERYTHING] if entry.get("defaultStatus") == "affected" else spans["affected"]
    if vulnerable:
        yield Vulnerable(kind, name, tuple(vulnerable), tuple(spans["unaffected"]))


def examine(advisory: Advisory, data: bytes, label: str, *, quick: bool = True) -> Product | None:
    """Return the product of a bill with its components that an advisory names; `quick` returns None without any.

    Args:
        advisory: What to look for.
        data: A bill of materials in CycloneDX, as JSON.
        label: Name of its file, for errors.
        quick: Whether bills without such a component may be skipped unread.

    Raises:
        VerificationError: It is not such a bill.
    """
    if b'"CycloneDX"' not in data:
        raise _not_a_bill(label, "its `bomFormat` is not CycloneDX")
    # Reading ten thousand bills takes seconds, and most contain no such name.
    lower = data.lower() if quick else b""
    if quick and not any(package.may_be_in(lower) for package in advisory.packages):
        return None
    try:
        document = from_json(data.removeprefix(codecs.BOM_UTF8))  # in two thirds of the time of the module `json`
        matches = tuple(_matches(advisory, document.get("components", [])))
        product = document.get("metadata", {}).get("component", {})
        digests = [entry["content"] for entry in product.get("hashes", []) if entry["alg"] == "SHA-256"]
        name = str(product.get("name", label))
        serial = f"{document['serialNumber']}/{document.get('version', 1)}" if "serialNumber" in document else ""
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as fault:
        raise _not_a_bill(label, f"{type(fault).__name__}: {fault}") from fault
    return Product(name, digests[0] if digests else "", matches, serial) if matches or not quick else None


def _not_a_bill(label: str, details: str) -> VerificationError:
    return VerificationError(
        f"{label} is not a bill of materials in CycloneDX",
        details=details,
        hint="build the bundle again, or leave that file out",
    )


def _matches(advisory: Advisory, components: Sequence[Mapping[str, Any]]) -> Iterator[Match]:
    for component in components:
        if _uniform_name(component.get("purl", ""), component["name"]) in advisory.names:
            certainties = {package.judge(component) for package in advisory.packages} - {None}
            if certainties:
                certainty: Certainty = "affected" if "affected" in certainties else "unclear"
                required = component.get("scope", "required") == "required"
                name, version = component["name"], str(component.get("version", ""))
                yield Match(name, version, certainty, required, str(component.get("bom-ref", "")))
        if nested := component.get("components"):
            yield from _matches(advisory, nested)


def _identity(component: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return name, type and version of a component of a bill."""
    if component.get("purl"):
        url = _package_url(component["purl"])
        return url.name, url.type, url.version or str(component.get("version", ""))
    return str(component["name"]), "", str(component.get("version", ""))


@functools.lru_cache(maxsize=1 << 14)  # the same components are in most bills of a folder
def _package_url(text: str) -> PackageURL:
    return PackageURL.from_string(text)


@functools.lru_cache(maxsize=1 << 14)
def _uniform_name(purl: str, name: str) -> str:
    return _uniform(_package_url(purl).name if purl else name)


def _uniform(name: str) -> str:
    return _SEPARATORS.sub("-", name).casefold()
