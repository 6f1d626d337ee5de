"""The address of a package: `oci://HOST[:PORT]/REPOSITORY:TAG`, or `@sha256:DIGEST`, which never moves."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from toolchain.errors import InputError

SCHEME = "oci://"
_FORM = f"{SCHEME}HOST[:PORT]/REPOSITORY:TAG or {SCHEME}HOST[:PORT]/REPOSITORY@sha256:DIGEST"
# By the OCI distribution specification, which has no user names: none can be mistaken for a part of a host.
_HOST = r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_ADDRESS = re.compile(
    rf"{SCHEME}{_HOST}/(?P<repository>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_LONGEST = 512
_PORTS = range(1, 65536)


@dataclass(frozen=True)
class Address:
    registry: str  # host and port, as its login is filed under
    repository: str  # what stands between host and tag
    tag: str = ""  # a name that may move; may be empty
    digest: str = ""  # `sha256:` and 64 hexadecimal digits, which take precedence over the tag; may be empty

    def __str__(self) -> str:
        tag, digest = self.tag and f":{self.tag}", self.digest and f"@{self.digest}"
        return f"{SCHEME}{self.registry}/{self.repository}{tag}{digest}"

    @property
    def is_loopback(self) -> bool:
        """Whether the registry is on this machine, so that nobody else can intercept the connection."""
        host = self.registry.rpartition(":")[0] if re.search(r":[0-9]+$", self.registry) else self.registry
        try:
            return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
        except ValueError:
            return False

    def pinned(self, digest: str) -> Address:
        """Return the address with a digest instead of the tag."""
        return Address(self.registry, self.repository, digest=digest)


def is_address(text: str) -> bool:
    return text.startswith(SCHEME)


def parse(text: str) -> Address:
    match = _ADDRESS.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None or (match["port"] and int(match["port"]) not in _PORTS) or not _is_host(match["host"]):
        hint = (
            "leave the user name out: `docker login` stores the login" if "@" in text.partition("@sha256:")[0] else ""
        )
        raise InputError(
            f"{text[:_LONGEST]!r} is not a valid address of a package in a registry",
            details=f"expected {_FORM}",
            hint=hint,
        )
    registry = match["host"] + (f":{match['port']}" if match["port"] else "")
    return Address(registry, match["repository"], match["tag"] or "", match["digest"] or "")


def _is_host(host: str) -> bool:
    if not host.startswith("["):
        return True
    try:
        ipaddress.IPv6Address(host[1:-1])
    except ValueError:
        return False
    return True
