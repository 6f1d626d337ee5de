"""The first words of TVM's RPC protocol, said by hand: enough to have a session, or to be refused one."""

from __future__ import annotations

import socket
import struct

MAGIC = 0xFF271
REFUSED = MAGIC + 2
VERSIONS = "edge-toolchain:version"


def greet(link: socket.socket, key: str, *, timeout: float = 30.0) -> int:
    """Greet a board server; return its code: MAGIC if it gives what was asked for, REFUSED, or 0 if it hangs up."""
    link.settimeout(timeout)
    try:
        link.sendall(struct.pack("<ii", MAGIC, len(key)) + key.encode())
        return int(struct.unpack("<i", link.recv(4, socket.MSG_WAITALL))[0])
    except (ConnectionError, struct.error):
        return 0


def ended(link: socket.socket, *, timeout: float = 30.0) -> bool:
    """Wait until a server ends a session."""
    link.settimeout(timeout)
    try:
        while link.recv(4096):
            pass
    except ConnectionError:
        pass
    return True
