"""Verification of host keys: known_hosts files name the trusted ones, or authorities that sign them.

OpenSSH's host certificates are described in its PROTOCOL.certkeys.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import fnmatch
import hmac
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko

from toolchain import files
from toolchain.errors import HostKeyError, InputError
from toolchain.shell.config import Hop

SUFFIX = "-cert-v01@openssh.com"  # of the type of a certificate
_HOST = 2
# The number of fields of the key itself in a certificate, by its type.
_FIELDS = {"ssh-ed25519": 1, "ssh-rsa": 2, "ecdsa-sha2-nistp256": 2, "ecdsa-sha2-nistp384": 2, "ecdsa-sha2-nistp521": 2}
_FOREVER = (1 << 64) - 1


@dataclass(frozen=True)
class OfferedKey:
    """The host key of a server that no known_hosts file has."""

    alias: str  # the server, as the user or the SSH configuration names it
    host: str  # its name in known_hosts files
    kind: str  # such as `ssh-ed25519`
    blob: bytes
    fingerprint: str  # `SHA256:` and Base64
    file: Path | None  # the known_hosts file to add it to; None if the configuration names none


class UnknownHostKeyError(HostKeyError):
    """No key of a server is known; no credentials were sent to it."""

    def __init__(self, message: str, *, key: OfferedKey, details: str = "", hint: str = "") -> None:
        super().__init__(message, details=details, hint=hint)
        self.key = key


def trust(key: OfferedKey) -> Path:
    """Add a key that a person has confirmed to known_hosts, and return that file."""
    if key.file is None:
        raise InputError(
            f"no known_hosts file is configured for {key.host}", hint="pass one: --known-hosts ~/.ssh/known_hosts"
        )
    line = f"{key.host} {key.kind} {base64.b64encode(key.blob).decode()}\n".encode()
    files.edit(key.file, lambda before: before + (b"" if before.endswith(b"\n") or not before else b"\n") + line)
    return key.file


@dataclass(frozen=True)
class _KnownKey:
    """One line of a known_hosts file."""

    marker: str
    patterns: str
    kind: str
    blob: bytes
    location: tuple[Path, int]


def _known_keys(path: Path) -> Iterator[_KnownKey]:
    """Yield the valid lines of a known_hosts file, which may be missing."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return
    except OSError as fault:
        raise InputError(f"cannot read the known host keys {path}: {fault.strerror}") from fault
    for number, line in enumerate(lines, 1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) >= 3 and not fields[0].startswith("#"):  # noqa: PLR2004 - names, key type, key
            with contextlib.suppress(binascii.Error):
                yield _KnownKey(marker, fields[0], fields[1], base64.b64decode(fields[2]), (path, number))


def _matches(patterns: str, name: str) -> bool:
    """Whether a known_hosts name field covers a host: names, wildcards, negations or one hash."""
    matched = False
    for pattern in patterns.split(","):
        wild = re.escape(pattern.removeprefix("!").lower()).replace(r"\*", ".*").replace(r"\?", ".")
        if pattern.startswith("|1|"):
            with contextlib.suppress(ValueError, AssertionError):  # not a valid hash
                matched |= hmac.compare_digest(paramiko.HostKeys.hash_host(name, pattern), pattern)
        elif re.fullmatch(wild, name):
            if pattern.startswith("!"):
                return False
            matched = True
    return matched


class HostKeyPolicy:
    """Accepts only the keys of a server in known_hosts files; it never adds one."""

    def __init__(self, hop: Hop) -> None:
        self._hop = hop
        all_keys = [key for path in hop.known_hosts for key in _known_keys(path)]
        matching = [key for key in all_keys if _matches(key.patterns, hop.key_name)]
        self._trusted = [key for key in matching if not key.marker]
        self._revoked = [key for key in matching if key.marker == "@revoked"]
        # As with ssh, an authority for a host is one for all of its ports.
        names = (hop.key_name, hop.host.lower())
        signing = [key for key in all_keys if key.marker == "@cert-authority"]
        self._authorities = [key for key in signing if any(_matches(key.patterns, name) for name in names)]

    def order(self, offered: Sequence[str], supported: Sequence[str] = ()) -> list[str]:
        """Return our key types with the known ones first, so that the server proves itself with one of those.

        The types of certificates among all `supported` ones come before them if an authority is trusted.
        """
        kinds = {key.kind for key in self._trusted}
        ordered = sorted(offered, key=lambda kind: ("ssh-rsa" if kind.startswith("rsa-") else kind) not in kinds)
        return [*(types(offered, supported) if self._authorities else []), *ordered]

    def verify(self, key: Any) -> None:
        """Raise a HostKeyError unless the key is known, or signed by a known authority, and not revoked."""
        fault = self._fault_of_certificate(key)
        if fault is None:
            return
        blob = key.asbytes()
        subject = f"{self._hop.key_name} has the {key.get_name()} host key {key.fingerprint}"
        revoked = [entry for entry in self._revoked if entry.blob == blob]
        if revoked:
            raise HostKeyError(
                f"{subject}, which is revoked",
                details=f"revoked at {_locations(revoked)}",
                hint="do not use this device; give it a new host key",
            )
        if any(entry.blob == blob for entry in self._trusted):
            return
        commands = self._commands(key)
        if not self._trusted:
            raise UnknownHostKeyError(
                f"{subject}, which is not in a known_hosts file",
                details="\n".join(
                    filter(None, [f"looked in {', '.join(str(path) for path in self._hop.known_hosts)}", fault])
                ),
                hint=f"compare it with the key that the device itself shows; to trust it:\n{commands}",
                key=OfferedKey(
                    self._hop.alias,
                    self._hop.key_name,
                    key.get_name(),
                    key.asbytes(),
                    key.fingerprint,
                    _file_for_keys(self._hop),
                ),
            )
        raise HostKeyError(
            f"{subject}, not the known key: the device was set up again, or another machine answers in its place",
            details="\n".join(filter(None, [f"the known key is at {_locations(self._trusted)}", fault])),
            hint=f"compare it with the key that the device itself shows; to replace the known key:\n{commands}",
        )

    def _fault_of_certificate(self, key: Any) -> str | None:
        """Return why a key's certificate does not count; None if it is valid, empty if there is none."""
        try:
            certificate = of(key)
        except ValueError as fault:
            return f"its certificate cannot be read: {fault}"
        if certificate is None:
            return ""
        revoked = {entry.blob for entry in self._revoked}
        if certificate.authority in revoked or key.asbytes() in revoked:
            return "its certificate does not count: the key or its authority is revoked"
        if all(entry.blob != certificate.authority for entry in self._authorities):
            return "its certificate is by an authority that no known_hosts file names"
        name = (self._hop.key_alias or self._hop.host).lower()
        reason = certificate.fault(name)
        return f"its certificate does not count: {reason}" if reason else None

    def _commands(self, key: Any) -> str:
        name = shlex.quote(self._hop.key_name)
        known_files = dict.fromkeys(entry.location[0] for entry in self._trusted)
        remove = [f"ssh-keygen -f {as_typed(path)} -R {name}" for path in known_files]
        target = _file_for_keys(self._hop) or Path.home() / ".ssh" / "known_hosts"
        indirect = self._hop.jumps or self._hop.proxy_command
        lines = [*remove, self._ask(target) if indirect else self._scan(key, target)]
        if _file_for_keys(self._hop) is None:
            lines.append(f"and add --known-hosts {as_typed(target)}, because no configured file can keep a key")
        return "\n".join(lines)

    def _scan(self, key: Any, target: Path) -> str:
        """Return the command that fetches the key and trusts it."""
        hop = self._hop
        kind = key.get_name().removeprefix("ssh-").partition("-")[0]
        scan = f"ssh-keyscan -p {hop.port} -t {kind} {shlex.quote(hop.host)}"
        if hop.key_alias:
            scan += f" | sed {shlex.quote(f's/^[^ ]*/{hop.key_name}/')}"
        folder = "" if target.parent.exists() else f"mkdir -p -m 700 {as_typed(target.parent)} && "
        return f"{folder}{scan} >> {as_typed(target)}"

    def _ask(self, target: Path) -> str:
        """Return the ssh command that asks whether to trust the key: ssh-keyscan cannot go through jump hosts."""
        hop = self._hop
        arguments = ["ssh", *(["-F", str(hop.config_file)] if hop.config_file else [])]
        arguments += ["-o", "StrictHostKeyChecking=ask", "-o", f'UserKnownHostsFile="{target}"']
        arguments += ["-J", ",".join(hop.jumps)] if hop.jumps else []
        return shlex.join([*arguments, "-p", str(hop.port), f"{hop.user}@{hop.alias}", "true"])


def _file_for_keys(hop: Hop) -> Path | None:
    """Return the first known_hosts file that a key can be written to; not /dev/null, for example."""
    return next((path for path in hop.known_hosts if path.is_file() or not path.exists()), None)


def as_typed(path: Path) -> str:
    """Return a path as a user types it in a shell."""
    home = Path.home()
    return f"~/{shlex.quote(str(path.relative_to(home)))}" if path.is_relative_to(home) else shlex.quote(str(path))


def _locations(keys: Sequence[_KnownKey]) -> str:
    return ", ".join(f"{path}:{line}" for path, line in (key.location for key in keys))


@dataclass(frozen=True)
class Certificate:
    """An authority's signed statement about a key."""

    kind: int  # 1 for a user's key, 2 for a host's
    principals: tuple[str, ...]  # names for which it is valid
    begin: int  # start of its validity, in seconds since 1970
    end: int  # end of its validity
    critical: bytes  # options that a reader must refuse if it does not support them
    authority: bytes
    signed: bytes  # the bytes that the authority has signed
    signature: bytes

    def fault(self, host: str, now: float | None = None) -> str:
        """Return why it does not prove that its key is a host's; empty if it does, given a trusted authority."""
        now = time.time() if now is None else now
        if self.kind != _HOST:
            return "it is for a user, not for a host"
        if not any(fnmatch.fnmatchcase(host, principal.lower().replace("[", "[[]")) for principal in self.principals):
            return f"it is for {', '.join(self.principals) or 'no name'}, not for {host}"
        if now < self.begin:
            return "it is not valid yet; check the clock of this host"
        if self.end != _FOREVER and now >= self.end:
            return "it has expired"
        if self.critical:
            return "it has a critical option, which is not supported here"
        return "" if self._is_signed() else "its signature is wrong"

    def _is_signed(self) -> bool:
        try:
            key = paramiko.PKey.from_type_string(_type_of(self.authority), self.authority)
            return bool(key.verify_ssh_sig(self.signed, paramiko.Message(self.signature)))
        except (paramiko.SSHException, paramiko.UnknownKeyType, ValueError):
            return False


def read(blob: bytes) -> Certificate:
    """Parse a certificate, or raise a ValueError."""
    message = paramiko.Message(blob)
    kind = _type_of(blob)
    message.get_binary()
    message.get_binary()  # a nonce
    fields = _FIELDS.get(kind.removesuffix(SUFFIX))
    if not kind.endswith(SUFFIX) or fields is None:
        raise ValueError(f"{kind} is not a type of certificate that is supported here")
    for _ in range(fields):
        message.get_binary()
    message.get_int64()  # a serial number
    use = message.get_int()
    message.get_binary()  # a free text about the owner
    names, principals = paramiko.Message(message.get_binary()), []
    while names.get_remainder():
        principals.append(names.get_binary().decode(errors="replace"))
    begin, end = message.get_int64(), message.get_int64()
    critical, _extensions, _reserved, authority = (message.get_binary() for _ in range(4))
    signed = blob[: len(blob) - len(message.get_remainder())]
    return Certificate(use, tuple(principals), begin, end, critical, authority, signed, message.get_binary())


def of(key: Any) -> Certificate | None:
    """Return the certificate that a server sent with its key, if any, or raise a ValueError."""
    blob = getattr(key, "public_blob", None)
    return read(blob.key_blob) if blob is not None and blob.key_type.endswith(SUFFIX) else None


def types(offered: Sequence[str], supported: Sequence[str]) -> list[str]:
    """Return the types of certificates that paramiko supports, for the key types that we accept."""
    return [kind + SUFFIX for kind in offered if kind + SUFFIX in supported]


def _type_of(blob: bytes) -> str:
    return str(paramiko.Message(blob).get_binary(), "ascii", "replace")
