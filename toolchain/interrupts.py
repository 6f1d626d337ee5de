"""Ctrl-C and SIGTERM, which no command may lose.

Python raises KeyboardInterrupt wherever the main thread happens to be. In a destructor or a callback it cannot be
raised; compiled code may catch it, or turn it into an error of its own; and code that treats any error as a failed
candidate continues. So each request is also recorded. Long runs call `check` between their steps, and a command that
ends with another error after a request was interrupted. Each further signal is raised at once, as the first one was.
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

_AGAIN_S = 0.01  # enough to leave the destructor, and too little for a person to notice

_requests: list[str] = []  # the text of each KeyboardInterrupt since `listen`


def listen() -> None:
    """Begin a command: record all requests to end from now on, and let none be lost where nothing can be raised."""
    _requests.clear()
    signal.signal(signal.SIGTERM, _end)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell has it ignored in the background
        signal.signal(signal.SIGINT, _end)
    sys.unraisablehook = functools.partial(_again, sys.unraisablehook)


def check() -> None:
    """Raise a request to end that was lost, unless a block is ending because of it."""
    if _requests and threading.current_thread() is threading.main_thread() and not _ending(sys.exc_info()[1]):
        raise _request()


def answered() -> None:
    """Forget the requests so far: the command ended what it was doing early, and continues with a result."""
    _requests.clear()


def request_behind(fault: BaseException) -> BaseException:
    """Return the request to end if there was one, since an error after it is its consequence.

    For example, an import that was interrupted fails for good, and is repeated while the command ends.
    """
    if not _requests or isinstance(fault, KeyboardInterrupt):
        return fault
    request = _request()
    request.__cause__ = fault
    return request


def _request() -> KeyboardInterrupt:
    return KeyboardInterrupt(*filter(None, _requests[:1]))


def _ending(fault: BaseException | None) -> bool:
    """Whether a fault is a request to end, or was raised while one was handled."""
    visited: set[int] = set()
    while fault is not None and id(fault) not in visited:
        if isinstance(fault, KeyboardInterrupt):
            return True
        visited.add(id(fault))
        fault = fault.__context__
    return False


def _end(number: int, _frame: FrameType | None) -> None:
    _requests.append("" if number == signal.SIGINT else signal.Signals(number).name)
    raise _request()


def _again(before: Callable[[sys.UnraisableHookArgs], object], unraisable: sys.UnraisableHookArgs) -> None:
    """Raise an interrupt once more that came where nothing can be raised, such as in a destructor."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        # A `threading.Thread` needs locks that the interrupted code may have.
        _thread.start_new_thread(_press_again, ())
    else:
        before(unraisable)


def _press_again() -> None:
    time.sleep(_AGAIN_S)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
