"""The images of docker/, built where a test needs one and it is not here or not of today's sources."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator

from tests.support import boards, parts, session
from toolchain.containers import images


def require(name: str) -> str:
    """Return an image's ID; leave the test out where no engine can build it."""
    client = boards.engine()
    parts.require("a Docker engine", "docker.io, and start dockerd", client is not None)
    with alone():
        state = next(status for status in images.examine() if status.name == name)
        return state.id if state.state == "ready" else images.build(name).id


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Wait until no other worker builds an image: it may be the same one."""
    with (session.folder() / "images.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
