"""What CI leaves to `make nightly`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def all_but_every(step: int, cases: Iterable[Any]) -> list[Any]:
    """Return parameters of a test of which CI runs every `step`-th, and `make nightly` the others.

    Args:
        step: From one that CI runs to the next.
        cases: Values, or tuples of them where the test has several parameters.
    """
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [left(*case) if number % step else pytest.param(*case) for number, case in enumerate(values)]


def left(*values: Any) -> Any:
    """Return a parameter of a test that CI leaves out."""
    return pytest.param(*values, marks=pytest.mark.nightly)
