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


def require_processor(feature: str, *, present: bool) -> None:
    """Leave a test out on a processor that lacks an instruction, in strict mode as well: no package has one.

    The same kernels are tested for Arm, under emulation, on any machine.
    """
    if not present:
        pytest.skip(f"left out: this processor has no {feature}")
