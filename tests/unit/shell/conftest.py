"""A real sshd for the tests of a module."""

from __future__ import annotations

import pytest

from tests.support import sshd


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with sshd.running(tmp_path_factory.mktemp("sshd")) as running:
        yield running
