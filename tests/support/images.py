"""The images of docker/, built where a test needs one and it is not here or not of today's sources."""

from __future__ import annotations

from tests.support import boards, parts
from toolchain.containers import images


def require(name: str) -> str:
    """Return an image's ID; leave the test out where no engine can build it."""
    client = boards.engine()
    parts.require("a Docker engine", "docker.io, and start dockerd", client is not None)
    state = next(one for one in images.examine() if one.name == name)
    return state.id if state.state == "ready" else images.build(name).id
