"""The process with TVM's client takes a second to load, so that the tests of a module share one."""

from __future__ import annotations

import pytest

from toolchain.rpc import Client


@pytest.fixture(scope="module")
def client():
    rpc_client = Client()
    rpc_client.load()
    yield rpc_client
    rpc_client.kill()
