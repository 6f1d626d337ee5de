"""Starts a script on a device, with any login shell, and any output of its profile.

A login shell gets one short line that every shell reads in the same way: no line break, no `!`, no backslash. The line
starts a POSIX sh, which prints a marker; all output before the marker is the profile's. The script is sent on standard
input only after the marker: a program that a profile starts instead of the shell never reads it.
"""

from __future__ import annotations

import re
import shlex
import time
from typing import Protocol

from toolchain import process
from toolchain.errors import DeviceError
from toolchain.printable import printable
from toolchain.shell.bounds import MAX_OUTPUT, STDERR_KEPT, Limit

START_S = 10.0  # seconds of silence after which a login that has not started our sh has failed
_START_IN_ALL_S = 60.0
_LOOK_S = 1.0
_SHOWN_LINES = 5
_ANSWER_S = 2.0
# The first message of SFTP, and how the answer to it begins (draft-ietf-secsh-filexfer-02, section 4).
_SFTP_HELLO = b"\0\0\0\x05\x01\0\0\0\x03"
_SFTP_ANSWER = re.compile(rb"\0\0..\x02\0\0\0", re.DOTALL)
_SFTP_ANSWER_BYTES = 8
_SFTP_ONLY = re.compile(r"sftp connections only", re.IGNORECASE)
_READS_SCRIPT = (
    "echo {0} >&2; echo {0}; n=$(echo; echo x); n=${{n%x}}; s=; "
    "while IFS= read -r l || exit 1; do case $l in {0}) break;; esac; s=$s$l$n; done; "
    'exec sh -c "$s" sh {0}'
)
_TERMINAL_ONLY = "[ -t 0 ] || return"


class Stream(Protocol):
    """A command that has just been started; see `Channel`."""

    @property
    def code(self) -> int | None: ...

    def receive(self, timeout: float) -> tuple[bytes, bytes]: ...

    def send(self, data: bytes, limit: Limit) -> None: ...

    def wait(self, timeout: float) -> bool: ...


def command_line(token: str) -> str:
    """Return the line for a login shell; `token` is the marker, of hexadecimal digits."""
    return f"exec sh -c '{_READS_SCRIPT.format(token)}'"


def script_bytes(script: str, token: str) -> bytes:
    """Return the input to send after the marker."""
    return f"{script}\n{token}\n".encode()


class Preamble:
    """The output before the marker `token` on one stream, which is ignored."""

    def __init__(self, token: str) -> None:
        self._marker = f"{token}\n".encode()
        self._tail = b""
        self.size = 0
        self.passed = False

    def feed(self, data: bytes) -> bytes:
        """Add output; return what follows the marker."""
        if self.passed:
            return data
        text = self._tail + data
        before, marker, after = text.partition(self._marker)
        self.passed = bool(marker)
        self.size += len(data) - len(after) - (len(marker) if marker else 0)
        self._tail = (before if self.passed else text)[-STDERR_KEPT:]
        return after

    @property
    def text(self) -> str:
        """The end of the ignored output, for error messages."""
        return process.tail(printable(self._tail.decode(errors="replace")), _SHOWN_LINES)


def await_marker(stream: Stream, out: Preamble, err: Preamble, name: str, patience_s: float) -> None:
    """Wait until a login has started our sh, with at most `patience_s` seconds of silence, or raise a DeviceError."""
    silence = time.monotonic() + patience_s
    end = time.monotonic() + max(_START_IN_ALL_S, 2 * patience_s)
    while not out.passed:
        try:
            new_out, new_err = stream.receive(max(0.0, min(_LOOK_S, silence - time.monotonic())))
        except TimeoutError:
            if time.monotonic() < min(silence, end):
                continue
            raise _silent(stream, out, err, name, patience_s) from None
        if not new_out and not new_err:
            raise _ended(stream, out, err, name)
        out.feed(new_out)
        err.feed(new_err)
        if not out.passed and out.size + err.size > MAX_OUTPUT:
            raise DeviceError(
                f"the login of {name} wrote more than {MAX_OUTPUT} bytes before it ran a command",
                details=out.text or err.text,
                hint=f"let its profile print for terminals only: {_TERMINAL_ONLY}",
            )
        silence = time.monotonic() + patience_s


def _silent(stream: Stream, out: Preamble, err: Preamble, name: str, patience_s: float) -> DeviceError:
    """Return the error for a silent login: it may be an SFTP server, or a program that the profile has started."""
    if _talks_sftp(stream):
        return _sftp_only(name)
    return DeviceError(
        f"the login of {name} did not run a command within {patience_s:g} s",
        details=_printed(out, err),
        hint="a profile such as .bashrc, .zshenv or config.fish may start another program (tmux, a menu, `exec zsh`) "
        f"or wait; end it early where there is no terminal: {_TERMINAL_ONLY}. "
        "If the device is only slow, raise `ConnectTimeout` in ~/.ssh/config",
    )


def _talks_sftp(stream: Stream) -> bool:
    """Send SFTP's first message, and return whether a server answers it; the command cannot be used afterwards."""
    answer, limit = b"", Limit(_ANSWER_S)
    try:
        stream.send(_SFTP_HELLO, limit)
        while len(answer) < _SFTP_ANSWER_BYTES:
            new_out, new_err = stream.receive(limit.check())
            if not new_out and not new_err:
                break
            answer += new_out
    except OSError:  # a TimeoutError, too
        return False
    return bool(_SFTP_ANSWER.match(answer))


def _ended(stream: Stream, out: Preamble, err: Preamble, name: str) -> DeviceError:
    """Return the error for a login that ended without running our command."""
    stream.wait(_ANSWER_S)
    if _SFTP_ONLY.search(out.text + err.text):
        return _sftp_only(name)
    exit_known = stream.code is not None and stream.code >= 0
    user = shlex.quote(name.rpartition("@")[0])
    return DeviceError(
        f"the login of {name} ended without running a command"
        + (f", with exit code {stream.code}" if exit_known else ""),
        details=_printed(out, err),
        hint=f"give it a shell, on the device: `sudo usermod -s /bin/sh {user}`; or look at its profile "
        f"(.bashrc, .zshenv, config.fish), which may start another program: {_TERMINAL_ONLY}",
    )


def _sftp_only(name: str) -> DeviceError:
    return DeviceError(
        f"the login of {name} allows SFTP only, and no commands",
        hint="use another login, or remove `ForceCommand internal-sftp` for it from the device's sshd_config",
    )


def _printed(out: Preamble, err: Preamble) -> str:
    text = "\n".join(filter(None, [out.text, err.text]))
    return f"it printed:\n{text}" if text else "it printed nothing"


def exec_script(script: str, *arguments: str) -> str:
    """Return a line that replaces the shell by a new one, which runs a script with arguments."""
    return f"exec sh -c {shlex.join([script, *arguments])}"
