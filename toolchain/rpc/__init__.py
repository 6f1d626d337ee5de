"""Sessions on a board over TVM's RPC: opened within a deadline, checked, filtered, and held by a disposable process.

TVM's protocol trusts both ends: a server may let the client call any function of the client's. So nothing of it
reaches this process. A `Relay` passes on only answers, and TVM's client is a child process (`Client`) without secrets
in its environment, which is ended with its session when anything goes wrong.
"""

from toolchain.rpc.client import CallError, Client, error_text
from toolchain.rpc.handshake import Dial, Terms, versions
from toolchain.rpc.session import Session, connect, deadline
from toolchain.rpc.tracker import Registered, registered, request

__all__ = [
    "CallError",
    "Client",
    "Dial",
    "Registered",
    "Session",
    "Terms",
    "connect",
    "deadline",
    "error_text",
    "registered",
    "request",
    "versions",
]
