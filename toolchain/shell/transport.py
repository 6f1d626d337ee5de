"""paramiko's SSH connection with three additions: an algorithm's newer name, exit signals, and the server's offers."""

from __future__ import annotations

import signal
import weakref
from typing import Any, ClassVar

import paramiko

# Bytes that a device may send before we acknowledge them: enough for a fast link with a long delay.
WINDOW = 1 << 24
# OpenSSH's own limit for AES, 2**32 blocks (RFC 4344); paramiko's 512 MB would stall every large upload.
_REKEY_BYTES = 1 << 36
# GCM needs no separate MAC, which makes it about twice as fast here; CTR serves dropbear. CBC and 3DES are left out.
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr", "aes192-ctr")
# paramiko has this key exchange only under its older name; the other is that of RFC 8731.
_CURVE, _CURVE_OF_RFC = "curve25519-sha256@libssh.org", "curve25519-sha256"
_OFFERS = {
    "key exchange": ("kex_algo_list", "preferred_kex"),
    "host key": ("server_key_algo_list", "preferred_keys"),
    "cipher": ("client_encrypt_algo_list", "preferred_ciphers"),
    "MAC": ("client_mac_algo_list", "preferred_macs"),
}


class Transport(paramiko.Transport):  # type: ignore[misc]
    """One SSH connection, from the key exchange on.

    Attributes:
        offers: The algorithms that the server offers, by kind.
    """

    _kex_info: ClassVar[dict[str, Any]] = {
        **paramiko.Transport._kex_info,  # noqa: SLF001 - paramiko has no other way to add a name
        **(
            {_CURVE_OF_RFC: paramiko.Transport._kex_info[_CURVE]}  # noqa: SLF001
            if _CURVE in paramiko.Transport._kex_info  # noqa: SLF001
            else {}
        ),
    }

    def __init__(self, sock: Any) -> None:
        super().__init__(sock, default_window_size=WINDOW)
        self.packetizer.REKEY_BYTES = _REKEY_BYTES
        self.offers: dict[str, tuple[str, ...]] = {}
        self.ended_by: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        security = self.get_security_options()
        security.ciphers = _CIPHERS
        if _CURVE in security.kex:
            index = security.kex.index(_CURVE)
            security.kex = (*security.kex[:index], _CURVE_OF_RFC, *security.kex[index:])
        request = paramiko.common.MSG_CHANNEL_REQUEST
        handlers: dict[int, Any] = paramiko.Transport._channel_handler_table  # noqa: SLF001
        self._channel_handler_table = {**handlers, request: self._on_request}

    def _really_parse_kex_init(self, message: Any, ignore_first_byte: bool = False) -> Any:  # noqa: FBT001, FBT002
        parsed = super()._really_parse_kex_init(message, ignore_first_byte)
        if not self.offers:
            self.offers = {kind: tuple(parsed[theirs]) for kind, (theirs, _ours) in _OFFERS.items()}
        return parsed

    def _on_request(self, channel: Any, message: Any) -> None:
        """Note the signal that ended a command, which paramiko ignores; pass other requests on."""
        before = message.packet.tell()
        if message.get_text() == "exit-signal":
            message.get_boolean()
            self.ended_by[channel] = message.get_text()
            return
        message.packet.seek(before)
        channel._handle_request(message)  # noqa: SLF001 - what paramiko's own table calls

    def without_match(self) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
        """Return the kinds of algorithms without a match: what the server offers, and what we support."""
        pairs = {kind: (self.offers.get(kind, ()), tuple(getattr(self, ours))) for kind, (_, ours) in _OFFERS.items()}
        return {kind: pair for kind, pair in pairs.items() if pair[0] and not set(pair[0]) & set(pair[1])}


def signal_number(name: str) -> int:
    """Return the number of a signal that SSH names without its SIG, such as KILL; 0 for an unknown one."""
    return int(getattr(signal.Signals, f"SIG{name.partition('@')[0]}", 0))
