"""A real registry on this host, Debian's docker-registry, for a test; and one that answers as it is told."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import ipaddress
import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import bcrypt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.x509.oid import NameOID

from tests.support.parts import require
from tests.support.sshd import free_port
from toolchain import files
from toolchain.bundle import oci

REGISTRY = shutil.which("docker-registry")
USER, PASSWORD = "ann", "correct horse"
_START_S = 60


@dataclass(frozen=True)
class Registry:
    """A running registry.

    Attributes:
        host: Its address and port.
        authorities: File of the certificate of the CA that signed its own; None if it speaks plain HTTP.
        process: Its process.
        storage: What it keeps.
    """

    host: str
    authorities: Path | None
    process: subprocess.Popen[bytes] = field(repr=False)
    storage: Path

    def address(self, name: str) -> str:
        return f"oci://{self.host}/{name}"

    def blob(self, sha256: str) -> Path:
        """Where it keeps a blob or a manifest."""
        return self.storage / "docker/registry/v2/blobs/sha256" / sha256[:2] / sha256 / "data"


@contextlib.contextmanager
def running(folder: Path, *, tls: bool = False, login: bool = False, tokens: str | None = None) -> Iterator[Registry]:
    """Start a registry whose files live in a folder.

    Args:
        folder: A folder.
        tls: Whether it has a certificate of a CA of its own.
        login: Whether it wants a password.
        tokens: Address of a server of tokens, signed by the CA, where it wants these.
    """
    require("a registry", "docker-registry", REGISTRY is not None)
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    authorities = None
    if tls:
        authorities = folder / "ca.pem" if (folder / "ca.pem").exists() else certify(folder)
    config = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "storage")}},
        "http": {"addr": f"127.0.0.1:{port}", "secret": "of a test"},
    }
    if tls:
        config["http"]["tls"] = {"certificate": str(folder / "server.pem"), "key": str(folder / "server.key")}
    if login:
        hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
        (folder / "htpasswd").write_text(f"{USER}:{hashed}\n")
        config["auth"] = {"htpasswd": {"realm": "a test", "path": str(folder / "htpasswd")}}
    if tokens:
        trusted = {"issuer": "a test", "service": "registry", "rootcertbundle": str(authorities)}
        config["auth"] = {"token": {"realm": f"https://{tokens}/token", **trusted}}
    (folder / "config.yml").write_text(json.dumps(config))  # which is YAML, too
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([REGISTRY, "serve", folder / "config.yml"], stdout=log, stderr=log, env={})
    try:
        _wait(process, port, folder / "log")
        yield Registry(f"127.0.0.1:{port}", authorities, process, folder / "storage")
    finally:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise AssertionError(log.read_text())


def certify(folder: Path) -> Path:
    """Write server.pem and server.key of 127.0.0.1, signed by a new CA whose certificate is returned, and ca.key."""
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca = _certificate("a CA of a test", ca_key.public_key(), "a CA of a test", ca_key, authority=True)
    server = _certificate("127.0.0.1", key.public_key(), "a CA of a test", ca_key, authority=False)
    for path, certificate in {"ca.pem": ca, "server.pem": server}.items():
        (folder / path).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    for path, secret in {"ca.key": ca_key, "server.key": key}.items():
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (folder / path).write_bytes(secret.private_bytes(*form))
    return folder / "ca.pem"


def _certificate(name, key, issuer, signer, *, authority):
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in (name, issuer)]
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(names[0])
        .issuer_name(names[1])
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=2))
        .not_valid_after(now + dt.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    if not authority:
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    return builder.sign(signer, hashes.SHA256())


def token(folder: Path, scope: str) -> str:
    """Return a token (a JWT) that a registry of `certify` accepts: for a minute, and for one scope."""
    kind, name, actions = scope.split(":")
    certificate = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    chain = [base64.b64encode(certificate.public_bytes(serialization.Encoding.DER)).decode()]
    now = int(time.time())
    claims = {
        "iss": "a test",
        "sub": USER,
        "aud": "registry",
        "jti": "1",
        "iat": now,
        "nbf": now - 60,
        "exp": now + 60,
        "access": [{"type": kind, "name": name, "actions": actions.split(",")}],
    }
    encoded = [_coded(json.dumps(value).encode()) for value in ({"typ": "JWT", "alg": "ES256", "x5c": chain}, claims)]
    key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    pair = utils.decode_dss_signature(key.sign(".".join(encoded).encode(), ec.ECDSA(hashes.SHA256())))
    return ".".join([*encoded, _coded(b"".join(number.to_bytes(32, "big") for number in pair))])


def _coded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def docker_config(folder: Path, registry: str, user: str = USER, password: str = PASSWORD) -> Path:
    """Write what `docker login` writes; DOCKER_CONFIG names the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {registry: {"auth": credentials}}}))
    return folder


# --- a registry that answers as a test wants it ------------------------------------------------------------------


@dataclass
class Answer:
    """What is answered: a status, a body, and headers."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    """Bytes after which the connection breaks off."""


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Told:
    """A server that answers as it is told, and what it was asked.

    Attributes:
        host: Its address and port.
        asked: The requests, in order.
    """

    host: str
    asked: list[Asked]

    def paths(self, method: str) -> list[str]:
        return [request.path for request in self.asked if request.method == method]


@contextlib.contextmanager
def told(answer: Callable[[Asked], Answer], certified: Path | None = None) -> Iterator[Told]:
    """Serve what a function answers, on a free port of this host; with TLS where a folder of `certify` is given."""
    requests: list[Asked] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self):
            length = int(self.headers.get("Content-Length") or 0)
            requests.append(Asked(self.command, self.path, dict(self.headers), self.rfile.read(length)))
            response = answer(requests[-1])
            self.send_response(response.status)
            for name, value in response.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(response.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(response.body[: response.cut])
            if response.cut is not None:
                self.close_connection = True

        def log_message(self, *_):
            pass

    for method in ("GET", "HEAD", "POST", "PUT"):
        setattr(Handler, f"do_{method}", Handler._serve)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if certified:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certified / "server.pem", certified / "server.key")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield Told(f"127.0.0.1:{server.server_address[1]}", requests)
        finally:
            server.shutdown()
            thread.join()


@dataclass
class Shelf:
    """What a registry keeps, and how one of OCI 1.1 answers: it lists what refers to a manifest, page by page.

    Attributes:
        blobs: Content by digest.
        manifests: Content by digest or tag.
        referrers: Descriptors of what refers to a manifest, by its digest.
        instead: Answers in place of this one's, where it returns one.
    """

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    referrers: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    instead: Callable[[Asked], Answer | None] = lambda _asked: None

    def __call__(self, request: Asked) -> Answer:
        if instead := self.instead(request):
            return instead
        url = urlsplit(request.path)
        name = url.path.rpartition("/")[2]
        query = parse_qs(url.query)
        kind = url.path.split("/")[-2]
        if request.method == "POST":
            return Answer(202, headers={"Location": "/v2/x/blobs/uploads/one?state=1"})
        if request.method == "PUT" and kind == "uploads":
            self.blobs[query["digest"][0]] = request.body
            return Answer(201)
        if request.method == "PUT":
            return self._keep(name, request.body)
        if kind == "referrers":
            return self._page(url.path, name, int(query.get("page", ["0"])[0]))
        contents_known = self.blobs if kind == "blobs" else self.manifests
        media = "application/octet-stream" if kind == "blobs" else oci.MANIFEST_TYPE
        return Answer(200, contents_known[name], {"Content-Type": media}) if name in contents_known else Answer(404)

    def _keep(self, name: str, data: bytes) -> Answer:
        digest = f"sha256:{files.sha256_bytes(data)}"
        document = json.loads(data)
        self.manifests |= {name: data, digest: data}
        headers = {"Docker-Content-Digest": digest}
        if subject := document.get("subject", {}).get("digest"):
            described = oci.descriptor(oci.MANIFEST_TYPE, oci.bytes_record(data))
            listed = self.referrers.setdefault(subject, [])
            listed.append({**described, "artifactType": document["artifactType"]})
            headers["OCI-Subject"] = subject
        return Answer(201, headers=headers)

    def _page(self, path: str, digest: str, page: int) -> Answer:
        """One referrer on each page."""
        listed = self.referrers.get(digest, [])
        headers = {"Content-Type": oci.INDEX_TYPE}
        if page + 1 < len(listed):
            headers["Link"] = f'<{path}?page={page + 1}>; rel="next"'
        return Answer(200, oci.encode_index(listed[page : page + 1]), headers)
