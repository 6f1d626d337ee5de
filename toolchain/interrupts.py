"""Ctrl-C and SIGTERM, which no command may lose.

Python raises KeyboardInterrupt wherever the main thread happens to be. In a destructor or a callback it cannot be
raised; compiled code may catch it, or turn it into an error of its own; and code that takes any error for a failed
candidate goes on. So each request is also written down. Long runs call `check` between their steps, and a command that
ends with another error after a request was interrupted. Every further signal is raised at once, as the first one was.
"""

from __future__ import annotations

import _thread
import functools
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

_AGAIN_S = 0.01  # later than where it came, sooner than anybody presses it again

_requests: list[str] = []  # what each KeyboardInterrupt since `listen` says


def listen() -> None:
    """Begin a command: note all requests to end from now on, and let none be lost where nothing can be raised."""
    _requests.clear()
    signal.signal(signal.SIGTERM, _end)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell has it ignored in the background
        signal.signal(signal.SIGINT, _end)
    sys.unraisablehook = functools.partial(_again, sys.unraisablehook)


def check() -> None:
    """Raise a request that was lost; not while a block ends because of it.

    Raises:
        KeyboardInterrupt: The command is to end, and goes on nevertheless.
    """
    if _requests and threading.current_thread() is threading.main_thread() and not _ending(sys.exc_info()[1]):
        raise _request()


def request_behind(fault: BaseException) -> BaseException:
    """Return the request to end if there was one: what ended the command afterwards is its consequence.

    An import that was interrupted fails for good, for instance, and is tried once more while the command ends.
    """
    if not _requests or isinstance(fault, KeyboardInterrupt):
        return fault
    found = _request()
    found.__cause__ = fault
    return found


def _request() -> KeyboardInterrupt:
    return KeyboardInterrupt(*filter(None, _requests[:1]))


def _ending(fault: BaseException | None) -> bool:
    """Whether a fault is a request to end, or was raised while one was handled."""
    seen: set[int] = set()
    while fault is not None and id(fault) not in seen:
        if isinstance(fault, KeyboardInterrupt):
            return True
        seen.add(id(fault))
        fault = fault.__context__
    return False


def _end(number: int, _frame: FrameType | None) -> None:
    """End through every `finally`, on SIGTERM as on Ctrl-C."""
    _requests.append("" if number == signal.SIGINT else signal.Signals(number).name)
    raise _request()


def _again(before: Callable[[sys.UnraisableHookArgs], object], found: sys.UnraisableHookArgs) -> None:
    """Let an interrupt come again that came where nothing can be raised, as in a destructor; it would be lost.

    A `threading.Thread` needs locks that the interrupted code may have.
    """
    if isinstance(found.exc_value, KeyboardInterrupt):
        _thread.start_new_thread(_press_again, ())
    else:
        before(found)


def _press_again() -> None:
    time.sleep(_AGAIN_S)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
