"""One client at a time for each run of a file."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading

import pytest

from toolchain.device.lock import Owner
from toolchain.device.waiting import Patience
from toolchain.errors import BusyError, InputError
from toolchain.records.claims import claim_run

OWNER = Owner("ann@desk", "tune mlp")


def test_a_second_client_is_told_of_the_first_and_has_its_turn_then(tmp_path):
    records = tmp_path / "r.jsonl"
    with claim_run(records, "abc", OWNER):
        with (
            pytest.raises(BusyError, match=r"r\.jsonl: in use by ann@desk: tune mlp") as caught,
            claim_run(records, "abc", Owner("bob", "tune mlp")),
        ):
            pass
        assert "--wait" in caught.value.hint
    with claim_run(records, "abc", Owner("bob", "tune mlp")):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_second_client_that_waits_comes_after_the_first(tmp_path):
    records, order, waiting = tmp_path / "r.jsonl", [], threading.Event()

    def second():
        with contextlib.ExitStack() as stack:
            patience = Patience(60, lambda _: waiting.set())
            patience.get(lambda: stack.enter_context(claim_run(records, "abc", OWNER)))
            order.append("second")

    thread = threading.Thread(target=second)
    with claim_run(records, "abc", OWNER):
        thread.start()
        assert waiting.wait(20)
        order.append("first")
    thread.join(20)
    assert order == ["first", "second"]


def test_other_runs_of_a_file_are_free(tmp_path):
    with claim_run(tmp_path / "r.jsonl", "abc", OWNER), claim_run(tmp_path / "r.jsonl", "abd", OWNER):
        assert len(list(tmp_path.iterdir())) == 2


CLIENT = """
import sys, time
from pathlib import Path
from toolchain.device.lock import Owner
from toolchain.records.claims import claim_run
with claim_run(Path(sys.argv[1]), "abc", Owner("ann", "tune mlp")):
    print("claimed", flush=True)
    time.sleep(60)
"""


def test_what_a_killed_client_leaves_holds_nobody_up(tmp_path):
    argv = [sys.executable, "-c", CLIENT, str(tmp_path / "r.jsonl")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "claimed\n"
        process.send_signal(signal.SIGKILL)
    assert [path.name for path in tmp_path.iterdir()] == [".r.jsonl.abc.claim"]
    with claim_run(tmp_path / "r.jsonl", "abc", OWNER):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_records_nothing_leaves_no_folder(tmp_path):
    with claim_run(tmp_path / "new" / "r.jsonl", "abc", OWNER):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"), claim_run(tmp_path / "file" / "r.jsonl", "abc", OWNER):
        pass
