"""The line with a command's code, whatever parts its standard error comes in; a process of this host stands for adb."""

from __future__ import annotations

import pytest

from toolchain.shell.adb.shell import AdbChannel, new_token


def outcome(script, token, *, held=False):
    lost = []
    channel = AdbChannel(["sh", "-c", script], token, lost.append, print, held=held)
    out = err = b""
    while any(output := channel.receive(20)):
        out, err = out + output[0], err + output[1]
    channel.wait(20)
    channel.close()
    return out, err, channel.code, lost


@pytest.fixture
def token():
    return new_token()


def test_the_line_is_taken_out(token):
    assert outcome(f"echo out; echo err >&2; echo {token} 7 >&2", token) == (b"out\n", b"err\n", 7, [])


def test_the_line_comes_in_parts(token):
    script = f"printf words{token[:9]} >&2; sleep 0.1; printf '{token[9:]} 1' >&2; sleep 0.1; echo 2 >&2"
    assert outcome(script, token) == (b"", b"words", 12, [])


def test_words_after_the_line_are_kept(token):
    assert outcome(f"echo {token} 0 >&2; echo late >&2", token) == (b"", b"late\n", 0, [])


def test_much_is_passed_on_before_the_end(token):
    channel = AdbChannel(["sh", "-c", "head -c 5000 /dev/zero >&2; sleep 100"], token, print, print, held=True)
    assert channel.receive(20)[1].startswith(b"\0" * 100)
    assert channel.code is None
    channel.close()


@pytest.mark.parametrize("code", [0, 1])
def test_without_the_line_there_is_no_code(token, code):
    """What the client itself ends with says nothing: 0, if the device is gone."""
    assert outcome(f"echo bye >&2; exit {code}", token) == (b"", b"bye\n", -1, ["bye\n"])


def test_a_process_whose_input_we_ended_is_not_lost(token):
    lost = []
    channel = AdbChannel(["sh", "-c", "cat"], token, lost.append, print, held=True)
    channel.end_input()
    assert channel.receive(20) == (b"", b"")
    assert lost == []
    channel.close()


def test_what_a_command_left_is_ended_by_its_group(token):
    ended = []
    channel = AdbChannel(["sh", "-c", f"echo {token} 0 77 >&2; sleep 100"], token, print, ended.append, held=False)
    with pytest.raises(TimeoutError):
        channel.receive(1)
    channel.stop()
    channel.close()
    assert ended == [77]


def test_tokens_differ():
    assert new_token() != new_token()


def test_a_group_is_told_without_a_code_first(token):
    assert outcome(f"echo {token} - 77 >&2; echo err >&2; echo {token} 3 >&2", token) == (b"", b"err\n", 3, [])
