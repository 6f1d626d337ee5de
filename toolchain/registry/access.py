"""How a registry is reached: the address of a package, the trusted certificates, and the forms of a login.

An address is `oci://HOST[:PORT]/REPOSITORY:TAG`, or `@sha256:DIGEST`, which never moves.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import re
import ssl
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from toolchain.errors import InputError, reason

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


@dataclass(frozen=True)
class Login:
    """A user's name and password; no message shows them."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True)
class Access:
    authorities: Path | None = None  # file of the trusted CA certificates; None for those of this system
    plain: bool = False  # without TLS, wherever it is
    login: Login | None = None  # None for the one that `docker login` or `oras login` stored


def trusted(authorities: Path | None) -> str | Literal[True]:
    """Return the file or folder of the trusted CA certificates; True if only the HTTP client's own are left.

    Raises:
        InputError: The named file has no certificates.
    """
    if authorities is None:
        defaults = ssl.get_default_verify_paths()  # the system's, or what SSL_CERT_FILE and SSL_CERT_DIR name
        return defaults.cafile or defaults.capath or True
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(authorities)
    except OSError as fault:  # an SSLError is one
        raise InputError(
            f"{authorities} contains no CA certificates",
            details=reason(fault),
            hint="name a file in PEM format with --ca",
        ) from fault
    return str(authorities)


def stored_login(registry: str) -> Login | None:
    """Return the login that `docker login` or `oras login` stored, in a file or with a helper.

    Raises:
        InputError: Their file or helper is broken, or they did not store a name and password.
    """
    from docker import auth, errors  # noqa: PLC0415 - slow to import

    try:
        with warnings.catch_warnings(action="ignore"):  # its warnings are followed by exceptions
            config = auth.load_config().resolve_authconfig(registry) or {}
    except (
        errors.DockerException,
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as fault:
        raise InputError(
            f"the login for {registry} cannot be read from Docker's configuration",
            details=reason(fault),
            hint=f"`docker login {registry}` writes it again; or use --username and --password-stdin",
        ) from fault
    fields = {key.lower(): value for key, value in config.items()}
    if fields.get("identitytoken"):
        raise InputError(
            f"Docker stored an identity token for {registry}, not a password",
            hint="use --username and --password-stdin, with an access token as the password",
        )
    name, password = fields.get("username"), fields.get("password")
    return Login(name, password) if name and password else None


def basic_header(login: Login) -> str:
    """Return the Authorization header for a name and password."""
    return "Basic " + base64.b64encode(f"{login.username}:{login.password}".encode()).decode()


def parse_challenge(header: str) -> tuple[str, dict[str, str]]:
    """Read a WWW-Authenticate header: the scheme, in lower case, and its parameters."""
    from requests import utils  # noqa: PLC0415 - slow to import

    scheme, _, parameters = header.strip().partition(" ")
    fields: dict[str, str | None] = utils.parse_dict_header(parameters)
    return scheme.lower(), {name.lower(): value or "" for name, value in fields.items()}


def token_of(answer: bytes) -> str:
    """Return the token in a token server's answer; empty if there is none."""
    try:
        document = json.loads(answer)
    except (ValueError, RecursionError):
        return ""
    token = (document.get("token") or document.get("access_token")) if isinstance(document, dict) else ""
    return token if isinstance(token, str) and token.isascii() and token.isprintable() else ""
