"""Logging in: the name and password that are kept for a registry, and the words in which it asks for them."""

from __future__ import annotations

import base64
import json
import warnings

from toolchain.errors import InputError, reason
from toolchain.registry.access import Login


def kept(registry: str) -> Login | None:
    """Return the login that `docker login` or `oras login` has kept, in a file of theirs or with a helper.

    Raises:
        InputError: Their file or helper is broken, or what they kept is no name and password.
    """
    from docker import auth, errors  # noqa: PLC0415 - slow to import

    try:
        with warnings.catch_warnings(action="ignore"):  # what it warns of it also raises
            found = auth.load_config().resolve_authconfig(registry) or {}
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
    named = {key.lower(): value for key, value in found.items()}
    if named.get("identitytoken"):
        raise InputError(
            f"Docker stored an identity token for {registry}, not a password",
            hint="use --username and --password-stdin, with an access token as the password",
        )
    name, password = named.get("username"), named.get("password")
    return Login(name, password) if name and password else None


def basic(login: Login) -> str:
    """Return the header that carries a name and a password."""
    return "Basic " + base64.b64encode(f"{login.username}:{login.password}".encode()).decode()


def parse_challenge(header: str) -> tuple[str, dict[str, str]]:
    """Read a WWW-Authenticate header: the scheme, in lower case, and its parameters."""
    from requests import utils  # noqa: PLC0415 - slow to import

    scheme, _, words = header.strip().partition(" ")
    found: dict[str, str | None] = utils.parse_dict_header(words)
    return scheme.lower(), {name.lower(): value or "" for name, value in found.items()}


def token_of(answer: bytes) -> str:
    """Return the token that a server of tokens answers with; empty if there is none."""
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        return ""
    token = (found.get("token") or found.get("access_token")) if isinstance(found, dict) else ""
    return token if isinstance(token, str) and token.isascii() and token.isprintable() else ""
