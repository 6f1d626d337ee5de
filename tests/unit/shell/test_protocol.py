"""What all shells share: lines, files and the words of an error."""

from __future__ import annotations

import pytest

from toolchain import process
from toolchain.errors import DeviceError, InputError
from toolchain.shell import protocol


def test_a_file_is_read_from_where_it_goes_on(tmp_path):
    (tmp_path / "source").write_bytes(b"abcdef")
    with protocol.reading(tmp_path / "source", 2) as (stream, remaining):
        assert (stream.read(), remaining) == (b"cdef", 4)
    with protocol.reading(tmp_path / "source", 6) as (stream, remaining):
        assert (stream.read(), remaining) == (b"", 0)
    for offset in (-1, 7):
        with pytest.raises(InputError, match="it has 6 bytes"), protocol.reading(tmp_path / "source", offset):
            pass


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    target = tmp_path / "target"
    target.write_text("old")
    with pytest.raises(TypeError), protocol.replacing(target) as stream:
        stream.write("no bytes")
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert target.read_text() == "old"
    with protocol.replacing(target) as stream:
        stream.write(b"new")
    assert target.read_text() == "new"


def test_a_command_that_failed_is_shown_with_its_last_words():
    with pytest.raises(DeviceError, match="a command on board failed with exit code 3") as caught:
        protocol.check_result("a command on board", "the script", process.Result(3, "out", ""))
    assert caught.value.details == "the script\nout"
    with pytest.raises(DeviceError) as caught:
        protocol.check_result("a command on board", "", process.Result(3, "out", "err"))
    assert caught.value.details == "err"
    well = process.Result(0, "out", "err")
    assert protocol.check_result("a command on board", "", well) is well


def test_an_error_without_words_is_named():
    assert protocol.fault_text(EOFError()) == "EOFError"
    assert protocol.fault_text(EOFError("why")) == "why"
