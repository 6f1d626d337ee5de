"""A shell that counts what its commands and files have: nobody but it knows what goes over the wire."""

from __future__ import annotations

from toolchain.shell.protocol import Shell


class CountedShell(Shell):
    """A shell whose bytes are those that it is told of: payload, without what carries it."""

    _sent = _received = 0

    @property
    def bytes_sent(self) -> int:
        return self._sent

    @property
    def bytes_received(self) -> int:
        return self._received

    def count(self, sent: int = 0, received: int = 0) -> None:
        """Add what went there, and what came back."""
        self._sent += sent
        self._received += received
