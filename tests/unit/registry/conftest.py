"""A registry with scripted answers, and clients that do not wait between two tries."""

from __future__ import annotations

import pytest

from tests.support.registries import Shelf, told
from toolchain.registry import client


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch):
    monkeypatch.setattr(client, "_BACKOFF_S", 0.001)


@pytest.fixture
def shelf():
    return Shelf()


@pytest.fixture
def server(shelf):
    with told(shelf) as running:
        yield running
