"""What workers of a test run share is made once, whoever asks first."""

from __future__ import annotations

import threading
import time

import pytest

from tests.support import shared


def test_it_is_made_once(tmp_path_factory):
    started, complete = threading.Event(), []

    def make(folder):
        assert not started.is_set()
        started.set()
        time.sleep(0.05)  # the others ask meanwhile
        (folder / "whole").touch()

    def ask():
        complete.append((shared.once(tmp_path_factory, "thing", make) / "whole").exists())

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert complete == [True] * 4


def test_what_failed_is_made_anew(tmp_path_factory):
    def fails(folder):
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        shared.once(tmp_path_factory, "broken", fails)
    assert shared.once(tmp_path_factory, "broken", lambda folder: (folder / "whole").touch()).joinpath("whole").exists()
