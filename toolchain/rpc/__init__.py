"""Sessions on a board over TVM's RPC: opened within a deadline, checked, filtered, and held by a disposable process.

TVM's protocol trusts both of its ends: whoever answers as a server may let the client call any function of its own. So
nothing of it reaches this process. A `Relay` passes on only what answers a question, and TVM's client is a child
process (`Client`) without secrets in its environment, which is ended with its session when anything goes wrong.
"""

from toolchain.rpc.client import CallError, Client, words
from toolchain.rpc.greeting import Dial, versions
from toolchain.rpc.session import Session, connect, deadline
from toolchain.rpc.tracker import Registered, registered, request

__all__ = [
    "CallError",
    "Client",
    "Dial",
    "Registered",
    "Session",
    "connect",
    "deadline",
    "registered",
    "request",
    "versions",
    "words",
]
