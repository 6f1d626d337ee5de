"""Logging in to an SSH server: agent, key files, password; and a list of attempts if all fail."""

from __future__ import annotations

import base64
import contextlib
import os
import shlex
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import paramiko

from toolchain.errors import UnreachableError
from toolchain.printable import printable
from toolchain.shell.address import SshOptions
from toolchain.shell.config import Hop
from toolchain.shell.host_keys import as_typed

_PASSWORD_METHODS = frozenset({"password", "keyboard-interactive"})


class Login:
    """Tries the available proofs of identity, and remembers their results.

    A jump host must not see the device's password.
    """

    def __init__(self, transport: Any, hop: Hop, options: SshOptions, *, is_jump: bool = False) -> None:
        self._transport = transport
        self._hop = hop
        self._options = options
        self._password = None if is_jump else options.password
        self._is_jump = is_jump
        self._tried: list[str] = []
        self._locked: list[Path] = []
        self._accepted = False

    def run(self) -> None:
        """Log in; a server may require several proofs, such as a key and a password."""
        # The method `none` returns what the server accepts, and is enough for a board without a password.
        methods: set[str] | None = None
        try:
            self._transport.auth_none(self._hop.user)
        except paramiko.BadAuthenticationType as fault:
            methods = set(fault.allowed_types)
        if methods:
            methods = self._with_keys(methods)
        if methods and self._password is not None and self._transport.is_active():
            methods = self._with_password(methods, self._password)
        if methods is not None:
            raise self._refused(methods)

    def _with_keys(self, methods: set[str] | None) -> set[str] | None:
        """Try keys while the server accepts some; return the methods it accepts next, or None once logged in."""
        with contextlib.ExitStack() as stack:
            agent = stack.enter_context(contextlib.closing(_Agent(self._hop.agent))) if self._options.agent else None
            for label, key in self._keys(agent.get_keys() if agent else ()):
                if not methods or "publickey" not in methods or not self._transport.is_active():
                    break
                methods = self._attempt(methods, label, self._transport.auth_publickey, key)
        return methods

    def _with_password(self, methods: set[str], password: str) -> set[str] | None:
        """Try the password in both ways in which servers ask for one; return as `_with_keys`."""
        remaining: set[str] | None = methods
        if "password" in methods:
            remaining = self._attempt(
                methods, "password", partial(self._transport.auth_password, fallback=False), password
            )
        refused = remaining is methods and "password" in methods
        if remaining and "keyboard-interactive" in remaining and not refused and self._transport.is_active():
            answers = _Answers(password)
            remaining = self._attempt(remaining, "keyboard-interactive", self._transport.auth_interactive, answers)
            self._tried += [f"keyboard-interactive: the server also asks {prompt!r}" for prompt in answers.unanswered]
        return remaining

    def _keys(self, agent_keys: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        """Yield keys in the order they are tried: the chosen one, the agent's, the configured ones."""
        chosen = self._options.identity
        if chosen:
            yield from self._from_files([chosen])
        allowed = set()
        for path in [*([chosen] if chosen else []), *self._hop.identities]:
            with contextlib.suppress(OSError, IndexError, ValueError):  # no public half lies beside it
                allowed.add(base64.b64decode(Path(f"{path}.pub").read_text(encoding="utf-8").split()[1]))
        for key in agent_keys:
            if not self._hop.identities_only or key.asbytes() in allowed:
                yield f"agent key {key.fingerprint}", key
        yield from self._from_files(self._hop.identities)

    def _from_files(self, paths: Sequence[Path]) -> Iterator[tuple[str, Any]]:
        """Yield the keys of files, each with its certificates first."""
        for path in paths:
            candidates = dict.fromkeys((*self._hop.certificates, Path(f"{path}-cert.pub")))  # as `ssh` looks for them
            for certificate in candidates:
                if certificate.is_file():
                    yield from self._load(path, certificate)
            yield from self._load(path)

    def _load(self, path: Path, certificate: Path | None = None) -> Iterator[tuple[str, Any]]:
        label = f"key file {path}" + (f" with {certificate}" if certificate else "")
        try:
            key = paramiko.PKey.from_path(path)
            if certificate:
                key.load_certificate(str(certificate))
        except (TypeError, paramiko.PasswordRequiredException):
            # The crypto library reports a missing passphrase as a TypeError.
            if certificate is None:
                self._locked.append(path)
                self._tried.append(f"{label}: it is encrypted and the passphrase is not known")
        except OSError as fault:
            self._tried.append(f"{label}: {fault.strerror}")
        except (ValueError, paramiko.SSHException, paramiko.UnknownKeyType) as fault:
            problem = "the certificate does not belong to the key" if certificate else "it is not a valid private key"
            self._tried.append(f"{label}: {problem} ({fault})")
        else:
            yield label, key

    def _attempt(
        self, methods: set[str], label: str, present: Callable[[str, Any], Sequence[str]], proof: Any
    ) -> set[str] | None:
        """Present a proof; return the methods that the server accepts next, or None once logged in."""
        try:
            more = present(self._hop.user, proof)
        except paramiko.AuthenticationException as fault:
            alive = self._transport.is_active()
            self._tried.append(f"{label}: {'refused' if alive else 'the server closed the connection'} ({fault})")
            return methods
        if not more:
            return None
        self._accepted = True
        self._tried.append(f"{label}: accepted, but the server also requires {' or '.join(more)}")
        return set(more)

    def _refused(self, methods: set[str]) -> UnreachableError:
        hop = self._hop
        tried = "\n".join(self._tried) or "nothing: there is no agent key, no key file and no password"
        accepts = ", ".join(sorted(methods)) or "nothing"
        return UnreachableError(
            f"login to {hop.name} failed",
            details=f"the server accepts: {accepts}\ntried:\n{tried}",
            hint=self._hint(methods),
        )

    def _hint(self, methods: set[str]) -> str:
        hop, asks_password = self._hop, bool(methods & _PASSWORD_METHODS)
        if self._locked and "publickey" in methods:
            return f"ssh-add {as_typed(self._locked[0])}"
        if self._password is not None and asks_password:
            return f"check the password of {hop.user} on {hop.host}"
        setting = f"set TOOLCHAIN_SSH_PASSWORD to the password of {hop.user} on {hop.host}"
        if self._accepted and asks_password:
            return f"{hop.name} may ask for a key only: it is a jump host" if self._is_jump else setting
        jump = f"-o ProxyJump={','.join(hop.jumps)} " if hop.jumps else ""
        copying = f"ssh-copy-id {jump}-p {hop.port} {shlex.quote(f'{hop.user}@{hop.host}')}"
        return f"{copying}; or {setting}" if asks_password and not self._is_jump else copying


class _Agent(paramiko.agent.AgentSSH):  # type: ignore[misc]
    """The keys of the agent at a socket, by default that of SSH_AUTH_SOCK; no keys without an agent."""

    def __init__(self, path: str) -> None:
        super().__init__()
        path = path or os.environ.get("SSH_AUTH_SOCK", "")
        if not path or path == "none":
            return
        with contextlib.ExitStack() as stack:
            link = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            try:
                link.connect(path)
            except OSError:  # it has ended, but the variable is still set
                return
            stack.pop_all()
        self._connect(link)

    def close(self) -> None:
        self._close()


class _Answers:
    """Answers keyboard-interactive questions: the password once, and nothing else.

    `unanswered` lists the other questions, such as for a code.
    """

    def __init__(self, password: str) -> None:
        self._password: str | None = password
        self.unanswered: list[str] = []

    def __call__(self, _title: str, _instructions: str, prompts: Sequence[tuple[str, bool]]) -> list[str]:
        answers = []
        for prompt, echo in prompts:
            if echo or self._password is None:
                self.unanswered.append(printable(prompt).strip())
                answers.append("")
            else:
                answers.append(self._password)
                self._password = None
        return answers
