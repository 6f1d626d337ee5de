"""The index of a large file: its answers are those of the lines, whatever became of file and index."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import sqlite3
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.reference_records import FILTERS, LINES, ReferenceRecords, answers
from tests.support.tunings import KEY, record, workload
from toolchain import files
from toolchain.errors import InputError
from toolchain.records import RecordFile, Records, Start, encode, index, parse
from toolchain.records.index import crew, snapshot, source
from toolchain.records.index.source import Source

KINDS = ["append", "newline", "cut", "edit", "swap", "replace", "restore"]


@pytest.fixture(autouse=True)
def everywhere(monkeypatch, tmp_path):
    """Give the smallest file an index, of chunks of a few lines, and believe at once that nobody touches it."""
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(index, "LEAST", 1)
    monkeypatch.setattr(index, "_CHUNK", 700)
    monkeypatch.setattr(source, "BLOCK", 700)


def reference(path):
    return ReferenceRecords.collect(parse(path.read_bytes(), str(path)))


def check(path, choice=None):
    """Compare the answers with those of the lines, twice: with the present index, and with the one that this saved."""
    for _ in range(2):
        assert answers(Records.open(path), choice) == answers(reference(path), choice)


# --- the same answers ------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(LINES, FILTERS, st.integers(0, 40))
def test_the_answers_are_those_of_the_file(lines, choice, torn):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "all.jsonl"
        path.write_bytes(encode(lines) + encode([record(7)])[:torn])
        check(path, choice)


@pytest.mark.long
@settings(deadline=None)  # files are written, and caches flushed
@given(
    LINES,
    st.lists(
        st.tuples(st.sampled_from(KINDS), LINES, st.integers(0, 3000)),
        max_size=4,
    ),
    FILTERS,
)
def test_they_are_so_whatever_becomes_of_the_file(lines, changes, choice):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "all.jsonl"
        path.write_bytes(encode(lines))
        for kind, new, number in changes:
            check(path, choice)
            before = path.read_bytes()
            rows = before.splitlines(keepends=True)
            position = number % (len(rows) + 1)
            changed = {
                "append": before + encode(new),
                "newline": before.removesuffix(b"\n"),
                "cut": before[:number],
                "edit": b"".join([*rows[:position], encode(new), *rows[position + 1 :]]),
                "swap": b"".join([*rows[position:], *rows[:position]]),  # of the same length
                "replace": encode(new),
                "restore": before,
            }[kind]
            if kind in {"replace", "restore"}:
                files.write_atomic(path, changed)
            else:
                path.write_bytes(changed)
            if parsable(changed):
                check(path, choice)
            else:
                path.write_bytes(before)


def parsable(data):
    try:
        list(parse(data, "here"))
    except InputError:
        return False
    return True


@settings(deadline=None)
@given(LINES, LINES, st.integers(0, 30), st.binary(min_size=1, max_size=9).filter(lambda junk: b"\n" not in junk))
def test_a_damaged_line_is_refused_with_its_number_as_ever(lines, more, position, junk):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "all.jsonl"
        path.write_bytes(encode(lines))
        Records.open(path)
        rows = encode([*lines, *more]).splitlines(keepends=True)
        path.write_bytes(b"".join([*rows[:position], junk + b"\n", *rows[position:]]))
        with pytest.raises(InputError) as expected:
            reference(path)
        with pytest.raises(InputError) as caught:
            Records.open(path)
        assert vars(caught.value) == vars(expected.value)


@pytest.fixture
def helped(monkeypatch):
    """Have the smallest file read by processes."""
    monkeypatch.setattr(crew, "LEAST", 1)


MANY = [workload(), Start(run="me", time=1.0), *(record(number, run="me") for number in range(30)), record(31, run="é")]


def test_processes_that_help_say_the_same(tmp_path, helped):
    path = tmp_path / "all.jsonl"
    path.write_bytes(encode(MANY) + encode(MANY)[:99])
    check(path)


def test_a_line_that_they_cannot_read_is_refused_with_its_number(tmp_path, helped):
    path = tmp_path / "all.jsonl"
    path.write_bytes(encode(MANY) + b"notes\n" + encode(MANY) + b"more notes\n")
    with pytest.raises(InputError, match=f"^line {len(MANY) + 1} of .* is not a valid tuning record"):
        Records.open(path)


@pytest.mark.parametrize("command", [("/no/such/program",), ("/bin/true",)])
def test_what_they_leave_undone_is_done_without_them(tmp_path, helped, monkeypatch, command):
    monkeypatch.setattr(crew, "_COMMAND", command)
    path = tmp_path / "all.jsonl"
    path.write_bytes(encode(MANY))
    check(path)


# --- what is believed ------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "all.jsonl"
    file.write_bytes(encode([workload(), *(record(number, 1e-3 * (9 - number)) for number in range(9))]))
    return file


@pytest.fixture
def at_once(monkeypatch):
    """Believe the time of change of a file that was changed just now."""
    monkeypatch.setattr(index, "_QUIET_S", 0.0)


def read(path, monkeypatch):
    """Return how many bytes are read as lines to answer for a file."""
    ranges = []
    true_rows = Source.rows
    with monkeypatch.context() as patch:
        patch.setattr(Source, "rows", lambda self, *arguments: ranges.append(arguments) or true_rows(self, *arguments))
        records = Records.open(path)
    assert answers(records) == answers(reference(path))
    return sum(stop - start for start, stop, _ in ranges)


def test_what_nobody_touched_is_not_read_again(path, monkeypatch, at_once):
    assert read(path, monkeypatch) == path.stat().st_size
    monkeypatch.setattr(Source, "digests", None)
    assert read(path, monkeypatch) == 0


def test_only_new_lines_are_read(path, monkeypatch):
    read(path, monkeypatch)
    for number in range(9, 30):
        line = encode([record(number)])
        RecordFile(path).append([record(number)])
        assert read(path, monkeypatch) == len(line)
    assert read(path, monkeypatch) == 0
    assert Records.open(path).count() == 30


def test_an_edited_file_is_read_again(path, monkeypatch):
    read(path, monkeypatch)
    rows = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*rows[:7], *rows[8:]]))
    assert read(path, monkeypatch) == path.stat().st_size


def test_an_index_is_of_the_bytes_and_not_of_the_file(path, monkeypatch, tmp_path):
    """A backup, or a clone, has another inode and another time."""
    read(path, monkeypatch)
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(path.read_bytes())
    snapshot.path_of(path).rename(snapshot.path_of(copy))
    assert read(copy, monkeypatch) == 0


def flipped(file):
    data = bytearray(file.read_bytes())
    data[-300] ^= 1
    file.write_bytes(data)


def of_another(file):
    """Take the right rows with a wrong one among them, sealed with another key."""
    database = snapshot.load(file.with_name("all.jsonl"))
    database.execute("UPDATE trial SET latency = 0.1")
    database.commit()
    os.environ["TOOLCHAIN_CACHE"] += "-of-another"
    snapshot.save(file.with_name("all.jsonl"), database)
    os.environ["TOOLCHAIN_CACHE"] = os.environ["TOOLCHAIN_CACHE"].removesuffix("-of-another")


def in_place(make):
    def change(file):
        file.unlink()
        make(file)

    return change


@pytest.mark.parametrize(
    "damage",
    [
        flipped,
        of_another,
        lambda place: os.truncate(place, place.stat().st_size // 2),
        lambda place: place.write_bytes(b""),
        lambda place: place.write_bytes(b"notes"),
        in_place(lambda place: place.symlink_to("/dev/zero")),
        in_place(os.mkfifo),
        in_place(Path.mkdir),
    ],
    ids=["flipped", "sealed by another", "cut", "empty", "notes", "link", "pipe", "folder"],
)
def test_a_damaged_or_hostile_index_is_made_anew(path, monkeypatch, at_once, damage):
    read(path, monkeypatch)
    damage(snapshot.path_of(path))
    assert read(path, monkeypatch) == path.stat().st_size
    if not snapshot.path_of(path).is_dir():
        assert read(path, monkeypatch) == 0


def test_the_index_of_another_toolchain_is_made_anew(path, monkeypatch, at_once):
    """It may have read lines otherwise."""
    read(path, monkeypatch)
    monkeypatch.setattr(snapshot, "_code_digest", lambda: b"another")
    assert read(path, monkeypatch) == path.stat().st_size


def test_an_index_of_other_tables_is_made_anew(path, monkeypatch):
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE trial (place)")
    snapshot.save(path, database)
    assert read(path, monkeypatch) == path.stat().st_size


def test_a_record_that_is_not_what_the_index_says_is_not_handed_out(path, monkeypatch, at_once):
    read(path, monkeypatch)
    database = snapshot.load(path)
    database.execute("UPDATE trial SET checksum = 1 WHERE position = 3")
    database.commit()
    snapshot.save(path, database)
    with pytest.raises(InputError, match="was modified while it was read"):
        assert Records.open(path).trials


@pytest.mark.parametrize("change", [b"", b"x" * 9000, encode([workload()]) * 40], ids=["cut", "overwritten", "others"])
def test_a_file_that_is_changed_under_who_asks_is_named(path, change):
    records = Records.open(path)
    with path.open("r+b") as stream:
        stream.truncate(0)
        stream.write(change)
    with pytest.raises(InputError, match=r"all\.jsonl was modified while it was read") as caught:
        records.best(KEY)
    assert "again" in caught.value.hint


def test_who_asks_sees_the_file_of_that_moment_though_another_takes_its_place(path):
    records, before = Records.open(path), reference(path)
    RecordFile(path).replace(list)
    assert answers(records) == answers(before)


# --- where there is no room, or somebody else ------------------------------------------------------------------------


def full(_handle, _data):
    raise OSError(28, "No space left on device")


def test_without_room_for_an_index_there_are_answers(path, monkeypatch):
    monkeypatch.setattr(snapshot, "_write", full)
    check(path)
    assert list(path.parent.glob(".*")) == []


def test_without_a_folder_for_the_key_there_are_answers(path, monkeypatch, tmp_path):
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(path / "cache"))
    check(path)
    assert list(path.parent.glob(".*")) == []


def test_one_process_saves_and_what_a_killed_one_left_is_taken_over(path):
    unfinished = snapshot.path_of(path).with_name(snapshot.path_of(path).name + ".part")
    with unfinished.open("wb") as other:
        other.write(b"half of it")
        fcntl.flock(other, fcntl.LOCK_EX)
        check(path)
        assert not snapshot.path_of(path).exists()
    check(path)
    assert snapshot.path_of(path).exists()
    assert not unfinished.exists()


def _append_some(path, writer):
    file = RecordFile(path)
    for number in range(60):
        file.append([workload(number % 3), record(100 * writer + number, trace="x" * (number * 37 % 1500))])


def test_who_asks_while_others_append_finds_whole_lines(path):
    """All of them, and the writers too, make and save the index at once."""
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_append_some, args=(path, number), daemon=True) for number in (1, 2, 3)]
    for writer in writers:
        writer.start()
    count = 0
    while any(writer.is_alive() for writer in writers):
        records = Records.open(path)
        trials = records.trials
        assert count <= len(trials) == sum(sum(tally.values()) for tally in records.tallies(KEY).values())
        count = len(trials)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert Records.open(path).count() == 9 + 180
    check(path)


def test_a_link_that_waits_for_an_index_is_not_written_through(path, tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"mine")
    snapshot.path_of(path).with_name(snapshot.path_of(path).name + ".part").symlink_to(other)
    check(path)
    assert other.read_bytes() == b"mine"


# --- files and their index -------------------------------------------------------------------------------------------


def test_a_small_file_has_no_index_and_a_large_one_is_no_other_file_of_records(path, monkeypatch):
    RecordFile(path).read()
    assert snapshot.path_of(path).is_file()
    assert list(path.parent.glob("*.jsonl")) == [path]
    RecordFile(path).replace(list)
    assert not snapshot.path_of(path).exists(), "it is of a file that is gone"
    monkeypatch.setattr(index, "LEAST", 1 << 20)
    RecordFile(path).read()
    assert not snapshot.path_of(path).exists()


def test_a_run_begins_where_the_file_ends(path):
    file = RecordFile(path)
    assert file.begin(Start(run="me", time=1000.0)).runs["me"].index == 9
    file.append([workload(), record(9)])
    assert file.begin(Start(run="me", time=2000.0)).runs["me"].index == 9
    assert file.begin(Start(run="other", time=2000.0)).runs["other"].index == 10
    assert path.read_bytes().count(b'"kind":"workload"') == 1
    check(path)


def test_reading_a_large_file_is_told_of(path, monkeypatch):
    monkeypatch.setattr(index, "_REPORTED", 0)
    messages = []
    RecordFile(path, messages.append).read()
    assert set(messages) == {f"indexing {path}"}
    assert messages[-1].done == messages[-1].total
    assert [message.done for message in messages] == sorted(message.done for message in messages)
