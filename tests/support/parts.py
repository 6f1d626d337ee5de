"""Parts of a system that some tests need and some systems lack."""

from __future__ import annotations

import os

import pytest


def require(part: str, package: str, present: bool) -> None:  # noqa: FBT001 - the third word of one sentence
    """Leave a test out when a part is missing; fail instead where TOOLCHAIN_STRICT=1 promises all parts."""
    if present:
        return
    message = f"left out: {part} (install {package})"
    if os.environ.get("TOOLCHAIN_STRICT") == "1":
        pytest.fail(message)
    pytest.skip(message)
