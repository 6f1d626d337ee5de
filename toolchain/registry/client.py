"""Requests to one registry: encrypted, with a login where one is required, and repeated where that helps.

This uses requests and not oras-py, which encodes a manifest anew, so that it gets another digest, and does not check
what it downloads. A login goes to the registry and to the token server that it names, and nowhere else that a redirect
or an upload leads. A deadline counts for a whole answer: a server that sends one byte at a time never exceeds the limit
of a single read.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.cookiejar import DefaultCookiePolicy
from typing import IO, Any, Literal, Self
from urllib.parse import urljoin, urlsplit

import requests
import urllib3
from requests import adapters, exceptions, utils
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from toolchain import __version__
from toolchain.errors import InputError, RegistryError, ToolchainError, VerificationError, reason
from toolchain.registry.access import (
    Access,
    Address,
    Login,
    basic_header,
    parse_challenge,
    stored_login,
    token_of,
    trusted,
)

# The content of a request: bytes, or a function that opens a file, since a request may be repeated.
Body = bytes | Callable[[], IO[bytes]]
LARGEST_DOCUMENT = 1 << 20  # a bundle's manifest, or a page of referrers, has some kilobytes
_HOSTS = {"docker.io": "registry-1.docker.io"}
_CONNECT_S, _ANSWER_S = 10, 60
_WHOLE_ANSWER_S = 120.0  # for a request with all its repetitions, plus the time for its size
_WORDS_S = 10.0  # for the text of a registry's error
_SLOWEST = 32 << 10  # bytes in a second
_BACKOFF_S, _LONGEST_WAIT_S = 0.5, 20  # a registry may ask for hours, and a user waits at the terminal
_TRIES = 4
_TRANSIENT = frozenset({429, 500, 502, 503, 504})  # statuses that may be gone at the next attempt
_REDIRECTS = 5
_LONGEST_MESSAGE = 300
_UNAUTHORIZED, _FORBIDDEN = 401, 403
_READ_METHODS = frozenset({"GET", "HEAD"})  # a redirect of anything else would not be the specification's
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Deadline:
    """Ends the connections of a session after a time, whatever is being read from them or sent."""

    def __init__(self) -> None:
        self.passed = False
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()

    def watch(self, connection: socket.socket) -> None:
        """Watch a new connection.

        Raises:
            TimeoutError: The deadline has passed.
        """
        with self._lock:
            if self.passed:
                raise TimeoutError("the time for this request is over")
            # A descriptor of its own: TLS takes over the connection's.
            self._sockets.append(connection.dup())

    @contextlib.contextmanager
    def running(self, seconds: float) -> Iterator[None]:
        """End the connections if a block takes longer than `seconds`."""
        timer = threading.Timer(seconds, self._end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _end(self) -> None:
        with self._lock:
            self.passed = True
            for connection in self._sockets:
                with contextlib.suppress(OSError):  # it has ended already
                    connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give up the connections that were watched."""
        with self._lock:
            for connection in self._sockets:
                connection.close()
            self._sockets.clear()


class WatchedAdapter(adapters.HTTPAdapter):
    def __init__(self, deadline: Deadline, **options: Any) -> None:
        self._pools = _pools(deadline)
        super().__init__(**options)

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = self._pools

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **options)
        manager.pool_classes_by_scheme = self._pools
        return manager


def _pools(deadline: Deadline) -> dict[str, type[HTTPConnectionPool]]:
    """Return connection pools by scheme, whose connections the deadline watches."""

    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return _watch(super()._new_conn(), deadline)

    class Encrypted(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            return _watch(super()._new_conn(), deadline)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class EncryptedPool(HTTPSConnectionPool):
        ConnectionCls = Encrypted

    return {"http": PlainPool, "https": EncryptedPool}


def _watch(connection: socket.socket, deadline: Deadline) -> socket.socket:
    try:
        deadline.watch(connection)
    except TimeoutError:
        connection.close()
        raise
    return connection


class Client:
    """A connection to the registry of an address; a context manager.

    A registry at a loopback address uses plain HTTP unless CA certificates are named; others only if `access` says so.

    Raises:
        InputError: The file of CA certificates has none.
    """

    def __init__(self, address: Address, access: Access) -> None:
        self.registry = address.registry
        plain = access.plain or (address.is_loopback and access.authorities is None)
        self.origin = f"{'http' if plain else 'https'}://{_HOSTS.get(self.registry, self.registry)}"
        self._login: Callable[[], Login | None] = lambda: access.login or stored_login(self.registry)
        self._authorization = ""
        self._deadline = Deadline()
        self._session = _session(None if not plain else self.origin, trusted(access.authorities), self._deadline)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()
        self._deadline.close()

    @contextlib.contextmanager
    def limited(self, size: int) -> Iterator[None]:
        """Limit the time of a block in which `size` bytes are sent or read.

        Raises:
            RegistryError: It takes longer.
        """
        seconds = _WHOLE_ANSWER_S + size / _SLOWEST
        late = RegistryError(
            f"{self.registry} did not complete an answer within {seconds:.0f} s",
            details=f"{size} bytes were expected",
            hint="check the connection to the registry, and run the same command again",
        )
        try:
            with self._deadline.running(seconds):
                yield
        except (exceptions.RequestException, urllib3.exceptions.HTTPError, ToolchainError, OSError) as fault:
            if self._deadline.passed:
                raise late from fault
            raise
        if self._deadline.passed:  # a body without a length ends as its connection does
            raise late

    def ask(
        self,
        method: str,
        path: str,
        *,
        expected: frozenset[int],
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        what: str = "",
    ) -> requests.Response:
        """Make a request; the answer's body is not read yet.

        Args:
            method: The HTTP method.
            path: On the registry, or a URL where it has sent us.
            expected: Status codes that the caller can handle.
            headers: Headers, without the login.
            body: Content to send.
            what: The requested thing, for errors.

        Raises:
            RegistryError: The registry cannot be reached, refuses, or answers with another status.
            VerificationError: Its certificate is not trusted, or it redirects to an unencrypted address.
        """
        with self.limited(int((headers or {}).get("Content-Length", 0)) * _TRIES):
            response = self._send_with_login(method, path, headers or {}, body)
        if response.status_code not in expected:
            with response, self._deadline.running(_WORDS_S):
                raise self._refusal(response, what or path)
        return response

    def _send_with_login(
        self, method: str, path: str, headers: Mapping[str, str], body: Body | None
    ) -> requests.Response:
        try:
            url = urljoin(self.origin, path)
            response = self._send(method, url, headers, body)
            challenge = response.headers.get("WWW-Authenticate")
            if response.status_code == _UNAUTHORIZED and challenge and self._is_registry(response.url):
                response.close()
                self._authorization = self._authorize(challenge)
                if self._authorization:
                    response = self._send(method, url, headers, body)
        except (exceptions.RequestException, urllib3.exceptions.HTTPError, ValueError) as fault:
            raise self.explain(fault) from fault
        return response

    def _send(self, method: str, url: str, headers: Mapping[str, str], body: Body | None) -> requests.Response:
        # Only the registry itself may see the user's login.
        login_header = {"Authorization": self._authorization} if self._authorization and self._is_registry(url) else {}
        data = body() if callable(body) else body
        options = {
            **self._request_options(url),
            "headers": {**headers, **login_header},
            "data": data,
            "allow_redirects": method in _READ_METHODS,
        }
        try:
            for failed in range(_TRIES):
                response = self._session.request(method, url, **options)
                if response.status_code not in _TRANSIENT:
                    return response
                response.close()  # unread: its body may be of any length
                time.sleep(_pause_s(response, failed))
                if data is not None and not isinstance(data, bytes):
                    data.seek(0)
            return self._session.request(method, url, **options)
        finally:
            if data is not None and not isinstance(data, bytes):
                data.close()

    @staticmethod
    def _request_options(url: str) -> dict[str, Any]:
        return {"timeout": (_CONNECT_S, _ANSWER_S), "stream": True, "proxies": utils.get_environ_proxies(url)}

    def _is_registry(self, url: str) -> bool:
        return _origin(url) == _origin(self.origin)

    def _authorize(self, challenge: str) -> str:
        """Return the Authorization header that the registry asks for; empty if the user has no suitable login."""
        user = self._login()
        scheme, parameters = parse_challenge(challenge)
        if scheme == "basic":
            return basic_header(user) if user else ""
        if scheme != "bearer" or not parameters.get("realm"):
            raise RegistryError(f"{self.registry} requires an unknown kind of login", details=_one_line(challenge))
        query = {name: parameters[name] for name in ("service", "scope") if parameters.get(name)}
        headers = {"Authorization": basic_header(user)} if user else {}
        realm = parameters["realm"]
        with self._session.get(realm, params=query, headers=headers, **self._request_options(realm)) as response:
            status = response.status_code
            if status in {_UNAUTHORIZED, _FORBIDDEN}:
                if user is not None:
                    raise self._user_refused(_error_text(response))
                return ""
            token = token_of(document(response)) if response.ok else ""
            if not token:
                raise RegistryError(
                    f"the token server of {self.registry} answered {status} without a token",
                    details="" if response.ok else _error_text(response),
                    hint="run the same command again later"
                    if status in _TRANSIENT
                    else "check the configuration of that registry",
                )
            return f"Bearer {token}"

    def explain(self, fault: Exception) -> ToolchainError:
        """Turn a failed request into an error for the user."""
        if isinstance(fault, ValueError):  # the libraries' class for a wrong URL
            return VerificationError(
                f"{self.registry} redirects to an address that is not encrypted or not valid",
                details=_one_line(str(fault)),
                hint="check the registry's configuration; another machine may also intercept the connection",
            )
        if isinstance(fault, exceptions.SSLError):
            details = str(fault)
            if "WRONG_VERSION_NUMBER" in details or "record layer failure" in details:
                hint = "--plain-http connects without encryption: anyone on the network path can read the data"
                return RegistryError(f"{self.registry} does not speak TLS", details=_one_line(reason(fault)), hint=hint)
            return VerificationError(
                f"the certificate of {self.registry} is not trusted",
                details=_one_line(reason(fault)),
                hint="--ca FILE names the certificate of the authority that signed it",
            )
        return RegistryError(
            f"{self.registry} cannot be reached",
            details=_one_line(reason(fault)),
            hint="is its address right, and is the registry running?",
        )

    def _refusal(self, response: requests.Response, what: str) -> ToolchainError:
        status = response.status_code
        details = _error_text(response)
        if status == _UNAUTHORIZED and not self._authorization:
            hint = f"run `docker login {self.registry}`, or use --username and --password-stdin"
            return RegistryError(f"{self.registry} requires a login", details=details, hint=hint)
        if status in {_UNAUTHORIZED, _FORBIDDEN}:
            return self._user_refused(details)
        if status == requests.codes.not_found:
            return InputError(
                f"there is no {what}", details=details, hint="check the repository, the tag and the digest"
            )
        hint = "run the same command again later" if status in _TRANSIENT else "check that it is an OCI registry"
        if status == requests.codes.bad_request and self.origin.startswith("http:"):
            hint = "if it uses TLS, add --ca FILE: a registry on this machine is contacted with TLS only then"
        return RegistryError(f"{self.registry} answered {status} to the request for {what}", details=details, hint=hint)

    def _user_refused(self, details: str) -> RegistryError:
        return RegistryError(
            f"{self.registry} refuses this user",
            details=details,
            hint="check the user name, the password and the user's permission to push or pull there",
        )


def _origin(url: str) -> tuple[str, str | None, int | None]:
    split = urlsplit(url)
    return split.scheme, split.hostname, split.port or _DEFAULT_PORTS.get(split.scheme)


def _session(plain: str | None, authorities: str | Literal[True], deadline: Deadline) -> requests.Session:
    """Return a session without cookies and ~/.netrc, and with plain HTTP only to `plain`, if that is given."""
    session = requests.Session()
    session.trust_env = False  # a netrc file would send other passwords than the user chose
    session.verify = authorities
    session.max_redirects = _REDIRECTS
    # A login is sent with each request, so a cookie has no use, and it would identify the user.
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    session.headers.update({"User-Agent": f"edge-toolchain/{__version__}", "Accept-Encoding": "identity"})
    retries = urllib3.Retry(
        total=_TRIES,
        connect=1,
        other=0,
        backoff_factor=_BACKOFF_S,
        backoff_max=_LONGEST_WAIT_S,
        allowed_methods=None,
        respect_retry_after_header=False,
    )
    session.adapters.clear()
    for prefix in ["https://", *([f"{plain}/"] if plain else [])]:
        session.mount(prefix, WatchedAdapter(deadline, max_retries=retries))
    return session


def _pause_s(response: requests.Response, attempt: int) -> float:
    """Return how long to wait before the next attempt: as the registry asks, or longer with each attempt."""
    header = response.headers.get("Retry-After", "")
    seconds = float(header) if header.isascii() and header.isdecimal() else _BACKOFF_S * 2**attempt
    return min(seconds, _LONGEST_WAIT_S)


def document(response: requests.Response) -> bytes:
    """Read a small answer, or raise a VerificationError if it is not small."""
    data = bytearray()
    for chunk in chunks(response):
        data += chunk
        if len(data) > LARGEST_DOCUMENT:
            raise VerificationError(f"{urlsplit(response.url).netloc} sent more data than a manifest may have")
    return bytes(data)


def chunks(response: requests.Response) -> Iterator[bytes]:
    body: Iterator[bytes] = response.iter_content(1 << 20)
    return body


def _error_text(response: requests.Response) -> str:
    """Return the message of a registry's error, in the specification's form or in any other."""
    try:
        data = document(response)
    except (exceptions.RequestException, VerificationError):
        return ""
    try:
        lines = [f"{entry.get('code', '')}: {entry.get('message', '')}" for entry in json.loads(data)["errors"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return _one_line(data.decode(errors="replace"))
    return _one_line("; ".join(lines))


def _one_line(text: str) -> str:
    """Return untrusted text as one short line without control characters."""
    line = " ".join(text.split())
    return "".join(letter for letter in line if letter.isprintable())[:_LONGEST_MESSAGE]
