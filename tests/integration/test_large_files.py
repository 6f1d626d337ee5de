"""Files that are larger than any that is meant, and that take no space on a disk."""

from __future__ import annotations

import pytest

from tests.support import memory
from toolchain import board, bundle, files, outputs, validation
from toolchain.backends.vta.isa import config
from toolchain.cli import reports
from toolchain.errors import ToolchainError
from toolchain.pipeline import ab
from toolchain.pipeline.rollout import state
from toolchain.signing import keys, trust

SPARSE = 6 << 30
LITTLE_KIB = 100 << 10

READERS = {
    "JSON": files.read_json,
    "TOML": validation.parse_toml,
    "a board": board.check,
    "a bundle": lambda path: bundle.load(path.parent),
    "a folder for a bundle": lambda path: bundle.check_target(path.parent),
    "a key": lambda path: keys.load(path, str),
    "allowed signers": trust.Trust.read,
    "a digest": ab.read_digest_file,
    "a configuration": config.load,
    "the state of a roll-out": lambda path: outputs.check_file(path, "the state", state.foreign),
    "a report": lambda path: outputs.check_file(path, "a report", reports.JSON.foreign),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_sparse_file_is_refused_in_little_memory(tmp_path, reader):
    path = tmp_path / "manifest.json"
    with path.open("wb") as stream:
        stream.truncate(SPARSE)
    with memory.at_most(LITTLE_KIB), pytest.raises(ToolchainError) as caught:
        READERS[reader](path)
    assert "which is the limit" in caught.value.message + caught.value.details
