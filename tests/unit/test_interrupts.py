"""Requests to end that Python, or compiled code, loses: they are raised again, but not while a block ends."""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from toolchain import interrupts
from toolchain.errors import BuildError
from toolchain.failure import Failure

SCRIPT = """
import ctypes, gc, os, signal, sys, time, weakref
from toolchain import interrupts

interrupts.listen()

def press(*_):
    os.kill(os.getpid(), {number})
    time.sleep(0.001)  # here Python raises it

class Ends:
    def __del__(self):
        press()

class Node:
    pass

def in_a_destructor():
    Ends()

def in_a_collected_circle():
    one, two = Ends(), Node()
    one.other, two.other = two, one
    del one, two
    gc.collect()

def in_a_weak_reference():
    node = Node()
    reference = weakref.ref(node, press)
    del node

def in_a_callback_of_c():
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(lambda *_: press() or 0)
    ctypes.CDLL(None).qsort((ctypes.c_int * 2)(2, 1), 2, 4, compare)

try:
    {where}()
    time.sleep(20)  # the run goes on until it comes again
    print("lost")
except KeyboardInterrupt as fault:
    print("ended", *fault.args)
"""
PLACES = ("in_a_destructor", "in_a_collected_circle", "in_a_weak_reference", "in_a_callback_of_c")


@pytest.fixture
def listening(monkeypatch):
    """Listen in this process, and put back afterwards what there was."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    interrupts.listen()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    interrupts._requests.clear()


def swallow(number=signal.SIGINT):
    """Lose an interrupt, as who takes all errors for failures of its own."""
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)


@pytest.mark.parametrize(("number", "output"), [(signal.SIGINT, "ended"), (signal.SIGTERM, "ended SIGTERM")])
@pytest.mark.parametrize("where", PLACES)
def test_what_cannot_be_raised_comes_again(where, number, output):
    script = SCRIPT.format(where=where, number=int(number))
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (completed.stdout.strip(), completed.stderr) == (output, "")


@pytest.mark.usefixtures("listening")
def test_a_lost_request_is_raised_at_the_next_step():
    interrupts.check()
    swallow(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        interrupts.check()


@pytest.mark.usefixtures("listening")
def test_it_is_not_raised_while_a_block_ends_because_of_it():
    steps = []
    try:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            interrupts.check()
            steps.append("first")
            try:
                Path("/no/such/file").unlink()
            except OSError:
                interrupts.check()
                steps.append("second")
    except KeyboardInterrupt:
        steps.append("ended")
    assert steps == ["first", "second", "ended"]


@pytest.mark.usefixtures("listening")
def test_other_threads_go_on():
    swallow()
    faults = []

    def step():
        try:
            interrupts.check()
        except KeyboardInterrupt as fault:
            faults.append(fault)

    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
    assert faults == []


@pytest.mark.usefixtures("listening")
def test_another_error_after_a_request_is_its_consequence():
    fault = BuildError("parallel_for failed")
    assert interrupts.request_behind(fault) is fault
    swallow(signal.SIGTERM)
    request = interrupts.request_behind(fault)
    assert (type(request), request.args, request.__cause__) == (KeyboardInterrupt, ("SIGTERM",), fault)
    assert Failure.of(request) == Failure("interrupted by SIGTERM", "parallel_for failed", exit_code=130)


@pytest.mark.usefixtures("listening")
def test_what_fails_while_a_command_ends_does_not_hide_the_request():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        with pytest.raises(ImportError) as caught:
            importlib.import_module("no_such_module")
    assert Failure.of(interrupts.request_behind(caught.value)) == Failure("interrupted", exit_code=130)


@pytest.mark.usefixtures("listening")
def test_each_signal_is_raised_at_once():
    for _ in range(3):
        swallow()


def test_who_ignores_the_signal_goes_on_doing_so():
    script = (
        "import signal; from toolchain import interrupts; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "interrupts.listen(); signal.raise_signal(signal.SIGINT); print('went on')"
    )
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert completed.stdout == "went on\n"
