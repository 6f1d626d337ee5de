"""How the user wants a registry to be reached: whose certificates are trusted, and with which login."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from toolchain.errors import InputError, reason


@dataclass(frozen=True)
class Login:
    """A user's name and password, which no message shows."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True)
class Access:
    """How a registry is reached."""

    authorities: Path | None = None  # file of the CA certificates that are trusted; None for those of this system
    plain: bool = False  # whether to speak to it without TLS, wherever it is
    login: Login | None = None  # whom to log in as; None for what `docker login` or `oras login` has kept


def trusted(authorities: Path | None) -> str | Literal[True]:
    """Return the file or folder of the trusted CA certificates; True where only those of the client are left.

    Raises:
        InputError: The file that was named holds none.
    """
    if authorities is None:
        found = ssl.get_default_verify_paths()  # the system's, or what SSL_CERT_FILE and SSL_CERT_DIR name
        return found.cafile or found.capath or True
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(authorities)
    except OSError as fault:  # an SSLError is one
        raise InputError(
            f"{authorities} contains no CA certificates",
            details=reason(fault),
            hint="name a file in PEM format with --ca",
        ) from fault
    return str(authorities)
