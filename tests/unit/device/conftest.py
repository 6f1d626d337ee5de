"""A store on this machine, through a real /bin/sh."""

from __future__ import annotations

import pytest

from toolchain.device.store import Store
from toolchain.shell import LocalShell


@pytest.fixture
def root(tmp_path):
    return tmp_path / "device"


@pytest.fixture
def store(root):
    return Store(LocalShell(), str(root))
