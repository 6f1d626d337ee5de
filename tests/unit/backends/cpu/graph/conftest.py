from __future__ import annotations

import pytest

from tests.support import naive_template
from toolchain.backends.cpu import kernels


@pytest.fixture
def naive(monkeypatch):
    """A template that computes everything: what is left out is left out by the matching."""
    monkeypatch.setattr(kernels, "_TEMPLATES", {naive_template.NAME: naive_template})
