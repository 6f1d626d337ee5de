"""The child process that holds TVM's client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from toolchain.errors import DeviceError, InputError
from toolchain.rpc.client import CallError, Client, error_text
from toolchain.rpc.handshake import Terms


# Run in the child, with the session, which there is none of, as the first argument.
def echo(_visit, value):
    return value


def environment(_visit):
    return dict(os.environ)


def fail(_visit, kind):
    if kind == "input":
        raise InputError("a bad input", details="of this kind", hint="do this")
    if kind == "file":
        Path("/nowhere/at/all").read_bytes()
    raise RuntimeError("something else")


def hang(_visit):
    time.sleep(600)


def much(_visit):
    return "x" * (5 << 20)


def speak(_visit):
    print("this is no answer")  # noqa: T201 - on purpose
    return "an answer"


def test_what_runs_there_answers_in_json(client):
    assert client.run(echo, {"a": [1, 2.5, None]}) == {"a": [1, 2.5, None]}
    assert client.run(speak) == "an answer"


def test_it_has_nothing_secret_in_its_environment(monkeypatch):
    monkeypatch.setenv("TOOLCHAIN_SSH_PASSWORD", "hush")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    client = Client()
    client.start()
    variables = client.run(environment)
    raw = Path(f"/proc/{client.pid}/environ").read_bytes() + Path(f"/proc/{client.pid}/cmdline").read_bytes()
    client.kill()
    assert "hush" not in variables.values()
    assert b"hush" not in raw


def test_errors_come_back_as_what_they_are(client):
    with pytest.raises(InputError, match="a bad input") as caught:
        client.run(fail, "input")
    assert (caught.value.details, caught.value.hint) == ("of this kind", "do this")
    with pytest.raises(OSError, match="nowhere"):
        client.run(fail, "file")
    with pytest.raises(CallError, match="something else") as other:
        client.run(fail, "")
    assert other.value.kind == "RuntimeError"


def test_it_is_ended_while_it_is_asked(client):
    client.start()
    threading.Timer(0.3, client.kill).start()
    start = time.monotonic()
    with pytest.raises(DeviceError, match="was cut"):
        client.run(hang)
    assert time.monotonic() - start < 20
    assert client.run(echo, 1) == 1


def test_one_that_died_is_started_again(client):
    client.start()
    before = client.pid
    os.kill(before, signal.SIGKILL)
    with pytest.raises(DeviceError, match="was cut"):
        client.run(echo, 1)
    client.kill()
    assert client.run(echo, 1) == 1
    assert client.pid != before


def test_an_answer_without_end_is_none(client):
    with pytest.raises(DeviceError):
        client.run(much)
    client.kill()


def test_waiting_ends_when_the_time_is_over(client):
    with pytest.raises((TimeoutError, CallError)):
        client.open(1, "key", Terms(0.0))
    client.kill()


def test_none_is_left_behind():
    code = "from toolchain.rpc import Client; c = Client(); c.start(); print(c.pid, flush=True); raise SystemExit"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    end = time.monotonic() + 10
    while Path(f"/proc/{int(completed.stdout)}").exists():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_boards_words_without_tvms():
    assert error_text(RuntimeError("RPCError: Error caught from RPC call:\nValueError: no")) == "ValueError: no"
    assert error_text(RuntimeError()) == "RuntimeError"
