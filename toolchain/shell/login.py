"""Proving who we are to an SSH server: agent, key files, password; and what was tried if nothing helps."""

from __future__ import annotations

import base64
import contextlib
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import paramiko

from toolchain.errors import UnreachableError
from toolchain.shell.address import SshOptions
from toolchain.shell.config import Hop
from toolchain.shell.host_keys import shown

_PASSWORD_METHODS = frozenset({"password", "keyboard-interactive"})


class Login:
    """Tries what there is to prove who we are, and remembers what came of it."""

    def __init__(self, transport: Any, hop: Hop, options: SshOptions) -> None:
        self._transport = transport
        self._hop = hop
        self._options = options
        self._tried: list[str] = []
        self._locked: list[Path] = []

    def run(self) -> None:
        """Log in.

        Raises:
            UnreachableError: The server accepts nothing of it.
        """
        # Asking for nothing tells what the server accepts, and is enough for a board without a password.
        methods = self._methods()
        if methods is None or ("publickey" in methods and self._with_keys()):
            return
        password = self._options.password
        possible = password is not None and methods & _PASSWORD_METHODS and self._transport.is_active()
        if possible and self._attempt("password", self._transport.auth_password, password):
            return
        raise self._refused(methods)

    def _methods(self) -> set[str] | None:
        """Return the methods the server offers, or None if it lets us in without any."""
        try:
            self._transport.auth_none(self._hop.user)
        except paramiko.BadAuthenticationType as fault:
            return set(fault.allowed_types)
        return None

    def _with_keys(self) -> bool:
        with contextlib.ExitStack() as stack:
            agent = stack.enter_context(contextlib.closing(paramiko.Agent())) if self._options.agent else None
            for label, key in self._keys(agent.get_keys() if agent else ()):
                if self._attempt(label, self._transport.auth_publickey, key):
                    return True
                if not self._transport.is_active():
                    return False
        return False

    def _keys(self, held: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        """Yield keys in the order they are tried: the one asked for, the agent's, the configured ones."""
        chosen = self._options.identity
        if chosen:
            yield from self._from_files([chosen])
        allowed = {_public(path) for path in [*([chosen] if chosen else []), *self._hop.identities]}
        for key in held:
            if not self._hop.identities_only or key.asbytes() in allowed:
                yield f"agent key {key.fingerprint}", key
        yield from self._from_files(self._hop.identities)

    def _from_files(self, paths: Sequence[Path]) -> Iterator[tuple[str, Any]]:
        for path in paths:
            try:
                yield f"key file {path}", paramiko.PKey.from_path(path)
            except (TypeError, paramiko.PasswordRequiredException):
                # The crypto library reports a missing passphrase as a TypeError.
                self._locked.append(path)
                self._tried.append(f"key file {path}: it is encrypted and the passphrase is not known")
            except OSError as fault:
                self._tried.append(f"key file {path}: {fault.strerror}")
            except (ValueError, paramiko.SSHException, paramiko.UnknownKeyType) as fault:
                self._tried.append(f"key file {path}: it is not a valid private key ({fault})")

    def _attempt(self, label: str, present: Callable[[str, Any], Sequence[str]], proof: Any) -> bool:
        try:
            more = present(self._hop.user, proof)
        except paramiko.AuthenticationException as fault:
            alive = self._transport.is_active()
            self._tried.append(f"{label}: {'refused' if alive else 'the server closed the connection'} ({fault})")
            return False
        if more:
            self._tried.append(f"{label}: accepted, but the server also requires {' or '.join(more)}")
        return not more

    def _refused(self, methods: set[str]) -> UnreachableError:
        hop = self._hop
        tried = "\n".join(self._tried) or "nothing: there is no agent key, no key file and no password"
        if self._locked:
            hint = f"ssh-add {shown(self._locked[0])}"
        elif self._options.password is not None and methods & _PASSWORD_METHODS:
            hint = f"check the password of {hop.user} on {hop.host}"
        else:
            jump = f"-o ProxyJump={','.join(hop.jumps)} " if hop.jumps else ""
            hint = f"ssh-copy-id {jump}-p {hop.port} {shlex.quote(f'{hop.user}@{hop.host}')}"
        accepts = ", ".join(sorted(methods)) or "nothing"
        return UnreachableError(
            f"login to {hop.name} failed",
            details=f"the server accepts: {accepts}\ntried:\n{tried}",
            hint=hint,
        )


def _public(path: Path) -> bytes:
    """Return the public half that lies beside a private key, or nothing."""
    try:
        return base64.b64decode(Path(f"{path}.pub").read_text(encoding="utf-8").split()[1])
    except (OSError, IndexError, ValueError):
        return b""
