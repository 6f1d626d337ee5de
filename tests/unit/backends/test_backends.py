"""What the compilers say against a board file that is valid as far as its text can be."""

from __future__ import annotations

import pytest

from tests.support import paths
from tests.support.commands import toolchain
from toolchain import backends, board
from toolchain.errors import InputError

DATA = paths.DATA / "boards" / "refused"

FAULTS = {
    "misspelt-mcpu": [("target", "no CPU named 'cortex-a7s' for aarch64-linux-gnu", "did you mean cortex-a7")],
    "mcpu-of-another-machine": [("target", "no CPU named 'skylake'", "such as generic")],
    "no-device-programs": [("triple", "'aarch64-poky-linux' has no device programs", "supported: aarch64-linux-gnu")],
}


def test_every_file_has_its_row():
    assert sorted(path.stem for path in DATA.iterdir()) == sorted(FAULTS)


@pytest.mark.parametrize("name", FAULTS)
def test_the_faults_of_a_file(name):
    faults = backends.faults(board.load(str(DATA / f"{name}.toml")))
    assert [fault.key for fault in faults] == [key for key, _, _ in FAULTS[name]]
    for fault, (_, message, suggestion) in zip(faults, FAULTS[name], strict=True):
        assert message in fault.message
        assert suggestion in fault.suggestion


@pytest.mark.parametrize("name", board.names())
def test_the_boards_of_the_project_have_none(name):
    assert backends.faults(board.load(name).resolved()) == []


def test_a_wrong_cpu_is_no_list_of_a_hundred_names():
    kind = board.load(str(DATA / "misspelt-mcpu.toml"))
    with pytest.raises(InputError, match="cortex-a7s") as caught:
        _ = backends.backend_of(kind).target
    assert len(str(caught.value) + caught.value.details + caught.value.hint) < 300


def test_boards_check_tells_them():
    outcome = toolchain("board", "check", DATA / "misspelt-mcpu.toml")
    assert outcome.code == 2
    assert "did you mean cortex-a7" in outcome.err
