"""Keys, and a bundle that nothing has to be compiled for."""

import pytest

from tests.support import signers


@pytest.fixture(scope="session")
def alice(tmp_path_factory):
    return signers.pair(tmp_path_factory.mktemp("keys"), "alice")


@pytest.fixture(scope="session")
def bob(tmp_path_factory):
    return signers.pair(tmp_path_factory.mktemp("keys"), "bob")
