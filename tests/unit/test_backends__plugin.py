"""What all runtimes for Python have in common; the backends' tests build them."""

from __future__ import annotations

import pytest

from toolchain.backends import _plugin
from toolchain.errors import BuildError


def test_a_package_that_is_missing():
    with pytest.raises(BuildError, match="no_such_package is not installed"):
        _plugin._package("no_such_package")
