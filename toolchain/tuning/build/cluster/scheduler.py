"""The address of a Dask scheduler, and a connection to it that is safe from others."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import re
import socket
import ssl
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from toolchain.errors import BuildersError, InputError, reason

SCHEMES = ("dask", "tls", "tcp")
"""Schemes of an address: `tls` and `tcp` are Dask's own; `dask` is either, depending on the certificates."""

_ADDRESS = re.compile(r"(?P<scheme>[a-z]+)://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:(?P<port>[0-9]{1,5}))?/?")
_PORT, _MOST_PORT = 8786, 65535
_ANSWER_S = 10.0
_LOGGERS = ("distributed", "distributed.client", "distributed.gc")
_MOST_CHARACTERS = 300
_OPTIONS = {"tls_ca_file": "--builders-ca", "tls_client_cert": "--builders-cert", "tls_client_key": "--builders-key"}


@dataclass(frozen=True)
class Access:
    """The user's options for the connection; files that are None are taken from Dask's configuration.

    Attributes:
        ca: File with the certificate of the cluster's own authority.
        cert: File with our certificate.
        key: File with our private key.
        plain: Whether TLS may be omitted for a scheduler on another machine.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    plain: bool = False

    @property
    def files(self) -> dict[str, str]:
        """The given files by Dask's names of them."""
        paths = zip(_OPTIONS, (self.ca, self.cert, self.key), strict=True)
        return {name: str(path) for name, path in paths if path}


@dataclass(frozen=True)
class Scheduler:
    """A Dask scheduler.

    Attributes:
        scheme: One of SCHEMES.
        host: Its name or address.
        port: Its port.
        access: Options for the connection.
    """

    scheme: str
    host: str
    port: int
    access: Access

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether it is on this machine, so that the connection crosses no network."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    @contextlib.contextmanager
    def client(self) -> Iterator[Any]:
        """Connect to it.

        Raises:
            InputError: Dask is not installed, the connection is not safe, or a certificate cannot be read.
            BuildersError: It does not answer.
        """
        distributed = dask_distributed()
        security = self._security(distributed)
        address = f"{'tls' if security else 'tcp'}://{self.host}:{self.port}"
        try:
            # Dask itself would try a closed port or an unknown name again and again.
            socket.create_connection((self.host.strip("[]"), self.port), _ANSWER_S).close()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about versions, which `roster` compares itself
                client = distributed.Client(
                    address, security=security, timeout=_ANSWER_S, set_as_default=False, direct_to_workers=False
                )
        except (OSError, ValueError, ImportError) as fault:
            raise BuildersError(
                f"no Dask scheduler answers at {self}",
                details=error_text(fault),
                hint="`dask scheduler` starts one; one with TLS is reached by tls:// and its certificates alone",
            ) from fault
        try:
            yield client
        finally:
            client.close(timeout=_ANSWER_S)

    def _security(self, distributed: ModuleType) -> Any:
        """Return Dask's TLS settings; None for a connection without TLS."""
        files = self.access.files
        if self.scheme == "tcp" and files:
            raise InputError(
                f"{self} is without TLS, and {_OPTIONS[next(iter(files))]} is for TLS",
                hint=f"--builders tls://{self.host}:{self.port}",
            )
        security = distributed.Security(**files)
        missing = [option for name, option in _OPTIONS.items() if not getattr(security, name)]
        if self.scheme == "tcp" or (self.scheme == "dask" and len(missing) == len(_OPTIONS)):
            if not (self.is_loopback or self.access.plain):
                raise InputError(
                    f"{self} is another machine, and the connection would be without TLS",
                    details="any machine that can reach or intercept it can run code on its workers and here",
                    hint="give --builders-ca, --builders-cert and --builders-key; --builders-plain is for a network"
                    " that is yours alone",
                )
            return None
        if missing:
            raise InputError(
                f"TLS with the scheduler at {self} needs our certificate, its key and the cluster's authority",
                details=f"neither the options nor Dask's configuration name these: {', '.join(missing)}",
                hint="`toolchain tune --help` lists the options; distributed.comm.tls is Dask's own configuration",
            )
        security.require_encryption = True
        try:
            security.get_connection_args("client")  # reads the files
        except (OSError, ssl.SSLError, ValueError) as fault:
            raise InputError(
                f"the certificates for {self} cannot be used: {reason(fault)}",
                details=", ".join(f"{option} {getattr(security, name)}" for name, option in _OPTIONS.items()),
            ) from fault
        return security


def parse(text: str, access: Access) -> Scheduler:
    """Read the address of a scheduler, such as `dask://10.0.0.7:8786`.

    Raises:
        InputError: It is not valid.
    """
    match = _ADDRESS.fullmatch(text)
    port = int(match["port"] or _PORT) if match else 0
    if not match or match["scheme"] not in SCHEMES or not 0 < port <= _MOST_PORT:
        raise InputError(
            f"--builders {text[:200]} is not a valid address of a Dask scheduler",
            hint=f"write an address such as dask://127.0.0.1:{_PORT}, tls://HOST:{_PORT} or tcp://127.0.0.1:{_PORT}",
        )
    return Scheduler(match["scheme"], match["host"], port, access)


def dask_distributed() -> ModuleType:
    """Import Dask without its messages about lost connections, which we report ourselves.

    Raises:
        InputError: It is not installed.
    """
    try:
        import distributed  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as fault:
        raise InputError(
            "--builders needs Dask, which is not installed",
            details=str(fault),
            hint="pip install 'distributed>=2026.3'",
        ) from fault
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    module: ModuleType = distributed
    return module


def error_text(fault: Any) -> str:
    """Return the message of an exception, which another machine may have sent, as one short line."""
    return shorten(f"{type(fault).__name__}: {fault}")


def shorten(text: str) -> str:
    """Return the beginning of a text from another machine as one line that is safe to print."""
    return "".join(character if character.isprintable() else " " for character in text[:_MOST_CHARACTERS])
