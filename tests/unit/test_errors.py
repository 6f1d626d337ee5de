from __future__ import annotations

import errno
import socket
from http.client import RemoteDisconnected

import pytest
import requests
import urllib3

from toolchain import errors
from toolchain.errors import ToolchainError, did_you_mean, reason
from toolchain.shell.host_keys import UnknownHostKeyError

# The table of docs and design: 70 is whatever has no code of its own.
EXIT_CODES = {
    "InputError": 2,
    "BuildError": 3,
    "DeviceError": 4,
    "BusyError": 75,
    "RegistryError": 4,
    "BuildersError": 4,
    "VerificationError": 5,
    "RegressionError": 6,
    "InconclusiveError": 7,
    "ToolchainError": 70,
}


def test_every_error_has_the_exit_code_of_the_table():
    kinds = {ToolchainError, *ToolchainError.__subclasses__(), errors.BusyError}
    assert {kind.__name__: kind.exit_code for kind in kinds if kind.__module__ == errors.__name__} == EXIT_CODES


# What a roll-out tells apart, and a key that a person may confirm.
BELOW = {
    "EngineError": errors.BuildError,
    "BusyError": errors.DeviceError,
    "UnreachableError": errors.DeviceError,
    "FullError": errors.DeviceError,
    "HostKeyError": errors.VerificationError,
    "MismatchError": errors.VerificationError,
    "OutputError": errors.VerificationError,
    "UnhealthyError": errors.VerificationError,
}


def test_kinds_of_failures_stand_below_the_exit_codes():
    below = {kind for child in ToolchainError.__subclasses__() for kind in child.__subclasses__()}
    assert {kind.__name__: kind.__base__ for kind in below if kind.__module__ == errors.__name__} == BELOW
    assert all(kind.exit_code == kind.__base__.exit_code for kind in below - {errors.BusyError})
    assert issubclass(UnknownHostKeyError, errors.HostKeyError)


def test_exit_codes_that_no_error_carries():
    assert (errors.EXIT_INTERNAL, errors.EXIT_INTERRUPTED) == (70, 130)


def test_an_error_carries_its_message_details_and_hint():
    fault = errors.BuildError("it broke", details="line 3", hint="mend it")
    assert (str(fault), fault.message, fault.details, fault.hint) == ("it broke", "it broke", "line 3", "mend it")


def test_details_and_hint_may_be_left_out():
    fault = errors.InputError("no")
    assert (fault.details, fault.hint) == ("", "")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("mobilent", "did you mean mobilenet?"), ("resnet", "did you mean resnet-18?"), ("xyz", ""), ("", "")],
)
def test_did_you_mean(name, expected):
    assert did_you_mean(name, ["mobilenet", "resnet-18", "mlp"]) == expected


def test_did_you_mean_takes_any_iterable():
    assert did_you_mean("tirple", iter(["triple"])) == "did you mean triple?"


def test_did_you_mean_without_known_words():
    assert not did_you_mean("word", [])


# --- causes ----------------------------------------------------------------------------------------------------------


def refused_connection() -> BaseException:
    """Return what requests raises where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        requests.get(f"http://127.0.0.1:{port}/v2/", timeout=5)
    except requests.RequestException as fault:
        return fault
    raise AssertionError("something listens there")


def test_a_network_fault_is_words_and_not_pythons_representation():
    fault = refused_connection()
    assert "HTTPConnectionPool" in str(fault)
    assert reason(fault) == "Connection refused"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (OSError(errno.EISDIR, "Is a directory", "./x"), "./x: Is a directory"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (TimeoutError(), "no answer in time"),
        (ValueError("a plain text"), "a plain text"),
        (RuntimeError(), "RuntimeError"),
        (
            requests.ConnectionError(
                urllib3.exceptions.ProtocolError("Connection aborted.", RemoteDisconnected("the other end closed it"))
            ),
            "the other end closed it",
        ),
        (
            requests.exceptions.ChunkedEncodingError(
                urllib3.exceptions.ProtocolError("broken", urllib3.exceptions.IncompleteRead(5, 10))
            ),
            "5 bytes read, 10 more expected",
        ),
    ],
)
def test_the_innermost_cause_is_the_reason(fault, message):
    assert reason(fault) == message


def test_what_a_fault_was_raised_from_is_its_reason():
    fault = ValueError("<socket object at 0x7f00> failed")
    assert reason(fault) == "failed"
    fault.__cause__ = PermissionError(errno.EACCES, "Permission denied")
    assert reason(fault) == "Permission denied"
