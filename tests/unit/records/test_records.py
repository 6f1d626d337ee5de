"""Tuning records: what is written is read again, whoever was killed meanwhile, and never used for another target."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import math
import multiprocessing
import os
import stat
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import memory, paths, tunings
from tests.support.tunings import KEY, OTHER, OTHER_KEY, TARGET, record, workload
from toolchain.errors import BusyError, InputError
from toolchain.records import (
    EXPIRY_S,
    Key,
    Record,
    RecordFile,
    Records,
    Start,
    Workload,
    best_bytes,
    default_path,
    encode,
    maintenance,
    parse,
)
from toolchain.records import file as records_file
from toolchain.records.lines import USUAL

DATA = paths.DATA / "records"

# JSON has no lone surrogates; every other text must survive, newlines and all.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
HASHES = st.integers(0, 5).map(lambda number: f"{number:016x}")
SECONDS = st.floats(1e-9, 1e3)
WORKLOADS = st.builds(Workload.of, HASHES, TEXT, st.floats(0, 1e15), st.text("ab{}\n", max_size=5000))
OUTCOMES = st.one_of(
    st.tuples(st.lists(SECONDS, min_size=1, max_size=5).map(tuple), st.just("")),
    st.tuples(st.just(()), st.sampled_from(["build", "crash", "timeout", "refused"])),
)


@st.composite
def trials(draw):
    samples, cause = draw(OUTCOMES)
    return Record(
        workload=draw(HASHES),
        target=draw(st.sampled_from([TARGET, OTHER])),
        tvm=draw(st.sampled_from(["0.27.0", "0.28.0"])),
        emulated=draw(st.booleans()),
        candidate=draw(HASHES),
        trace=draw(TEXT),
        samples_s=samples,
        cause=cause,
        error=draw(TEXT) if cause else "",
        board=draw(TEXT),
        tuner=draw(TEXT),
        seed=draw(st.integers(0, 3)),
        round=draw(st.integers(0, 3)),
        index=draw(st.integers(0, 63)),
        time=draw(st.floats(0, 2e9)),
    )


LINES = st.lists(st.one_of(WORKLOADS, trials()), max_size=12)


# --- lines -----------------------------------------------------------------------------------------------------


@given(LINES)
def test_what_is_written_is_read(lines):
    assert list(parse(encode(lines), "here")) == lines


@given(st.lists(st.one_of(WORKLOADS, trials()), min_size=1, max_size=4), st.data())
def test_a_torn_last_line_costs_that_line_alone(lines, data):
    complete = encode(lines[:-1])
    last = encode(lines[-1:])
    length = data.draw(st.integers(0, len(last) - 2))
    assert list(parse(complete + last[:length], "here")) == lines[:-1]


@given(st.binary(min_size=1, max_size=60).filter(lambda junk: b"\n" not in junk), LINES, LINES)
def test_a_damaged_line_within_is_named(junk, before, after):
    with pytest.raises(InputError, match=f"^line {len(before) + 1} of here is not a valid tuning record"):
        list(parse(encode(before) + junk + b"\n" + encode(after), "here"))


@pytest.mark.parametrize("path", sorted((DATA / "invalid").iterdir()), ids=lambda path: path.stem)
def test_a_faulty_file_is_refused(path):
    """The name of each file begins with the number of its faulty line."""
    number = path.name.split("-")[0]
    with pytest.raises(
        InputError, match=f"^line {number} of .* (is not a valid tuning record|has schema version 3)"
    ) as caught:
        RecordFile(path).read()
    assert caught.value.hint


def test_a_newer_schema_says_what_to_use():
    with pytest.raises(InputError, match="has schema version 3, but this toolchain reads up to 2") as caught:
        RecordFile(DATA / "invalid" / "2-newer-schema.jsonl").read()
    assert "the toolchain that wrote it" in caught.value.hint


def test_a_file_of_each_kind_of_line_stays_readable():
    """These lines stand for the files that users have; a change that cannot read them needs a new schema version."""
    records = RecordFile(DATA / "valid" / "schema-1.jsonl").read()
    assert [kernel.name for kernel in records.workloads.values()] == ["fused_conv2d_add_relu", "softmax"]
    assert records.workloads["00000000000000b2"].text() == "{}" + " " * 3000
    assert [(trial.cause, trial.latency_s) for trial in records.trials] == [
        ("", 0.002),
        ("timeout", math.inf),
        ("", 0.004),
    ]
    assert [key.emulated for key in records.keys] == [False, True]
    assert encode(records.lines()).count(b"\n") == 5


def test_a_missing_file_names_the_command_that_makes_one(tmp_path):
    with pytest.raises(InputError, match="No such file") as caught:
        RecordFile(tmp_path / "none.jsonl").read()
    assert "toolchain tune" in caught.value.hint


@pytest.mark.parametrize(
    "fields",
    [
        {"samples_s": (), "cause": ""},
        {"samples_s": (1.0,), "cause": "crash"},
        {"samples_s": (0.0,)},
        {"samples_s": (-1.0,)},
        {"samples_s": (math.nan,)},
        {"samples_s": (math.inf,)},
    ],
)
def test_a_trial_has_either_samples_or_a_cause(fields):
    with pytest.raises(ValueError, match="samples"):
        record(**fields)


def test_a_long_error_is_cut():
    assert len(record(seconds=None, error="x" * 9999).error) == 500


def test_a_long_module_is_compressed():
    text = json.dumps(["SBlock", 1] * 5000)
    kernel = Workload.of("ab", "conv", 1.0, text)
    assert kernel.text() == text
    assert len(encode([kernel])) < len(text) / 2
    with pytest.raises(InputError, match="damaged"):
        dataclasses.replace(kernel, module=kernel.module[:-9]).text()


def test_a_file_is_where_its_board_says(monkeypatch, tmp_path):
    monkeypatch.delenv("TOOLCHAIN_RECORDS", raising=False)
    (tmp_path / ".edge-toolchain").touch()
    monkeypatch.chdir(tmp_path)
    assert default_path("rpi4") == Path("records/rpi4.jsonl")
    monkeypatch.setenv("TOOLCHAIN_RECORDS", "/srv/tuned")
    assert default_path("rpi4") == Path("/srv/tuned/rpi4.jsonl")


# --- what is asked of them -------------------------------------------------------------------------------------


def test_the_key_does_not_depend_on_the_order_of_a_target():
    assert Key.of(dict(reversed(TARGET.items()))) == KEY
    assert len({KEY.id, OTHER_KEY.id, Key.of(TARGET, emulated=True).id, Key.of(TARGET, tvm="0.1").id}) == 4


def test_what_a_model_computed_is_told_apart_and_counts_as_emulated():
    modelled = Key.of(TARGET, modelled="g610, 4 cores, 1000 MHz")
    assert (KEY.mark, Key.of(TARGET, emulated=True).mark, modelled.mark) == ("", "emulated", "modelled")
    assert modelled.emulated
    assert len({KEY.id, Key.of(TARGET, emulated=True).id, modelled.id, Key.of(TARGET, modelled="g52").id}) == 4
    modelled_record = record(1, 1e-3, emulated=True, modelled=modelled.modelled)
    assert modelled_record.key == modelled_record.canonical().key == modelled
    assert list(parse(encode([modelled_record]), "here")) == [modelled_record]
    with pytest.raises(ValueError, match="be marked as emulated"):
        record(1, 1e-3, modelled="g610")


def test_files_without_a_models_records_are_what_they_were():
    assert b"modelled" not in encode([record(1, 1e-3)])
    assert Key.of(TARGET, tvm="0.27.0").id == "35ab40dc2290"


def test_what_was_found_for_another_is_not_handed_out():
    records = Records.collect(
        [
            record(1, 5e-3),
            record(2, 1e-3, target=OTHER),
            record(3, 1e-3, tvm="0.1"),
            record(4, 1e-3, emulated=True),
            record(5, 1e-3, target=TARGET | {"num-cores": 8}),
        ]
    )
    assert [trial.index for trial in records.best(KEY).values()] == [1]
    assert [trial.index for trial in records.best(Key.of(TARGET, emulated=True)).values()] == [4]
    assert len(records.keys) == 5


@given(st.permutations([record(n, 1e-3) for n in range(4)] + [record(4, None), record(5, 2e-3)]))
def test_the_best_does_not_depend_on_the_order_of_a_file(lines):
    assert [trial.index for trial in Records.collect(lines).best(KEY).values()] == [0]


def test_a_workload_whose_trials_all_failed_has_no_best():
    records = Records.collect([workload(), record(0, None), record(1, None, cause="build")])
    assert records.best(KEY) == {}
    assert best_bytes(records, KEY) == b""
    assert len(records.of(KEY, workload().workload)) == 2


@given(LINES)
def test_the_best_in_bytes_are_a_file_that_gives_the_same_bytes(lines):
    records = Records.collect(lines)
    for key in records.keys:
        text = best_bytes(records, key)
        again = Records.collect(parse(text, "here"))
        assert best_bytes(again, key) == text
        assert {name: trial.candidate for name, trial in again.best(key).items()} == {
            name: trial.candidate for name, trial in records.best(key).items()
        }


def test_the_best_in_bytes_do_not_tell_who_when_and_where():
    lines = [record(7, 2e-3, time=1.0, seed=3, round=8, board="bench-1", tuner="grid", run="a", of=9)]
    others = [record(8, 3e-3), record(7, 2e-3, time=2.0)]
    assert best_bytes(Records.collect(lines), KEY) == best_bytes(Records.collect(others), KEY) != b""


# --- whole files -----------------------------------------------------------------------------------------------


def test_distilling_keeps_the_fastest_of_each_target(tmp_path):
    source, target = RecordFile(tmp_path / "all.jsonl"), tmp_path / "best.jsonl"
    lines = [record(n, 1e-3 * (9 - n), workload=f"{n % 2:016x}") for n in range(6)]
    source.append([workload(0), workload(1), workload(2), *lines, record(7, target=OTHER), record(8, None)])
    maintenance.distill(source.path, target, 2)
    records = RecordFile(target).read()
    assert [trial.index for trial in records.of(KEY)] == [4, 2, 5, 3]
    assert [trial.index for trial in records.of(OTHER_KEY)] == [7]
    assert set(records.workloads) == {workload(0).workload, workload(1).workload}


def test_distilling_in_place_leaves_the_best(tmp_path):
    file = RecordFile(tmp_path / "all.jsonl")
    file.append([workload(), record(1, 2e-3), record(2, 1e-3)])
    maintenance.distill(file.path, file.path)
    assert [trial.index for trial in file.read().trials] == [2]


def test_merging_drops_duplicates_whatever_the_order(tmp_path):
    first, second = RecordFile(tmp_path / "a.jsonl"), RecordFile(tmp_path / "b.jsonl")
    first.append([workload(), record(1, time=5.0), record(2, time=1.0)])
    second.append([workload(), record(2, time=1.0), record(3, time=3.0), record(2, time=4.0, round=1)])
    merged = [tmp_path / "ab.jsonl", tmp_path / "ba.jsonl"]
    maintenance.merge([first.path, second.path], merged[0])
    maintenance.merge([second.path, first.path], merged[1])
    assert merged[0].read_bytes() == merged[1].read_bytes()
    assert [trial.time for trial in RecordFile(merged[0]).read().trials] == [1.0, 3.0, 4.0, 5.0]


@given(LINES)
def test_merging_with_itself_changes_nothing(lines):
    once = Records.collect(maintenance.merge_lines([Records.collect(lines)]))
    assert list(maintenance.merge_lines([once, once])) == list(once.lines())


def test_records_that_exist_are_not_overwritten(tmp_path):
    for name in ("a", "b"):
        RecordFile(tmp_path / f"{name}.jsonl").append([record()])
    before = (tmp_path / "b.jsonl").read_bytes()
    with pytest.raises(InputError, match=r"b\.jsonl exists"):
        maintenance.merge([tmp_path / "a.jsonl"], tmp_path / "b.jsonl")
    with pytest.raises(InputError, match=r"b\.jsonl exists"):
        maintenance.distill(tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert (tmp_path / "b.jsonl").read_bytes() == before


def test_a_table_sums_up_each_target():
    lines = [workload(0, "conv", 4e6), record(1, 2e-3), record(2, 1e-3, board="bench-1"), record(3, None)]
    other = [record(4, None, cause="build", workload="ff"), record(5, 1e-3, target=OTHER, emulated=True)]
    first, second = maintenance.tables(Records.collect([*lines, *other]))
    conv, unknown = first.rows
    assert (conv.name, conv.trials, conv.failures, conv.board) == ("conv", 3, {"crash": 1}, "bench-1")
    assert (conv.latency_s, conv.gflops) == (1e-3, pytest.approx(4.0))
    assert (unknown.name, unknown.failures, unknown.latency_s, unknown.gflops) == ("", {"build": 1}, None, None)
    assert second.key.emulated


# --- files that several write, and some are killed -------------------------------------------------------------


def test_a_workload_is_written_once(tmp_path):
    file = RecordFile(tmp_path / "records.jsonl")
    file.append([workload(), record(1)])
    file.append([workload(), record(2)])
    RecordFile(file.path).append([workload(), workload(1), record(3)])
    assert file.path.read_bytes().count(b'"kind":"workload"') == 2
    assert [trial.index for trial in file.read().trials] == [1, 2, 3]


def test_the_next_writer_cuts_a_torn_line_off_wherever_it_is_torn(tmp_path):
    path = tmp_path / "records.jsonl"
    complete, last = encode([workload(), record(1)]), encode([record(2, error="é\n")])
    for length in range(1, len(last)):
        path.write_bytes(complete + last[:length])
        RecordFile(path).append([record(3)])
        expected = complete + (last if length == len(last) - 1 else b"") + encode([record(3)])
        assert path.read_bytes() == expected, length


def test_a_line_of_which_only_the_length_reached_the_disk_is_cut_off(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_bytes(encode([record(1)]) + b"\0" * 300)
    assert [trial.index for trial in RecordFile(path).read().trials] == [1]
    RecordFile(path).append([record(2)])
    assert path.read_bytes() == encode([record(1), record(2)])


@pytest.mark.parametrize("content", [b"\x89PNG no newline", b"my notes\nand more\n", b'{"kind":"note"}', b'["kind"'])
def test_nothing_is_appended_to_another_file(tmp_path, content):
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(InputError, match="not a valid tuning record"):
        RecordFile(path).append([record()])
    assert path.read_bytes() == content


def test_a_full_disk_leaves_whole_lines(tmp_path, monkeypatch):
    file = RecordFile(tmp_path / "records.jsonl")
    file.append([record(1)])
    true_write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: true_write(handle, data[:20]))
    with pytest.raises(InputError, match="No space left"):
        file.append([record(2)])
    monkeypatch.undo()
    assert file.path.read_bytes() == encode([record(1)])


def test_a_folder_that_is_not_ours_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot write"):
        RecordFile(tmp_path / "file" / "records.jsonl").append([record()])


def _append_for_ever(path, start, connection):
    file = RecordFile(path)
    for number in range(start, start + 1_000_000):
        file.append([workload(number % 7), record(number, trace="x" * 20_000)])
        connection.send(number)


def test_a_killed_writer_loses_at_most_the_line_in_flight(tmp_path):
    path, context, start = tmp_path / "records.jsonl", multiprocessing.get_context("fork"), 0
    for kill in range(60):
        mine, its = context.Pipe(duplex=False)
        writer = context.Process(target=_append_for_ever, args=(path, start, its), daemon=True)
        writer.start()
        its.close()
        assert mine.poll(30)
        time.sleep(0.0007 * (kill % 13))
        writer.kill()
        writer.join()
        last = _last(mine)
        numbers = [trial.index for trial in RecordFile(path).read().trials]
        assert numbers == list(range(len(numbers)))
        assert last + 1 <= len(numbers) <= last + 2
        if kill % 3 == 0:  # a power cut would also tear the last line
            torn = encode([record(len(numbers))])
            with path.open("ab") as stream:
                stream.write(torn[: 1 + 9 * kill % (len(torn) - 2)])
        start = len(numbers)
    assert start >= 60


def _last(connection):
    """Read all that a killed process has told; return the last."""
    last = -1
    while True:
        try:
            last = connection.recv()
        except (EOFError, OSError):
            return last


def _append_some(path, writer, count):
    file = RecordFile(path)
    for number in range(count):
        file.append([workload(number % 3), record(1000 * writer + number, seed=writer)])


def test_two_writers_and_one_who_distills_lose_nothing(tmp_path):
    path, context = tmp_path / "records.jsonl", multiprocessing.get_context("fork")
    RecordFile(path).append([workload()])
    writers = [context.Process(target=_append_some, args=(path, number, 150), daemon=True) for number in (1, 2)]
    for writer in writers:
        writer.start()
    rewritten = 0
    while any(writer.is_alive() for writer in writers):
        maintenance.distill(path, path, keep=10_000)
        rewritten += 1
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert rewritten > 1
    records = RecordFile(path).read()
    assert sorted(trial.index for trial in records.trials) == [
        1000 * writer + number for writer in (1, 2) for number in range(150)
    ]


def test_a_wait_for_the_lock_is_told_and_has_an_end(tmp_path, monkeypatch):
    path, messages = tmp_path / "records.jsonl", []
    RecordFile(path).append([workload()])
    beside = path.with_name(f".{path.name}.lock")
    assert stat.S_IMODE(beside.stat().st_mode) == 0o600
    monkeypatch.setattr(records_file, "_PATIENCE_S", 0.1)
    with beside.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match=f"is in use by process {os.getpid()} "):
            RecordFile(path, messages.append).append([record(1)])
    assert messages[0].startswith("waiting for up to 0 s: the file of tuning records")


def test_another_lock_of_the_records_keeps_nobody_out(tmp_path):
    """Others may read the records, and so can lock them."""
    path = tmp_path / "records.jsonl"
    RecordFile(path).append([workload()])
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        RecordFile(path).append([record(1)])
    assert len(RecordFile(path).read().trials) == 1


def test_a_large_file_is_read_fast(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"".join(encode([record(n, 1e-3, trace="[1,2]" * 1000)]) for n in range(4000)))
    began = time.monotonic()
    records = RecordFile(path).read()
    assert records.best(KEY)
    assert len(records.trials) == 4000
    assert time.monotonic() - began < 10  # 20 MB; about 0.1 s on an idle machine


def test_tests_and_module_agree_on_the_target():
    assert tunings.record().key == KEY


def test_a_module_that_would_fill_the_memory_is_not_unpacked(monkeypatch):
    monkeypatch.setattr("toolchain.records.lines._LARGEST_MODULE", 10_000)
    bomb = Workload.of("ab", "dense", 1.0, "x" * 20_000)
    assert len(bomb.module) < 200
    with pytest.raises(InputError, match="the module of workload dense is damaged") as caught:
        bomb.text()
    assert "more than 10000 bytes" in caught.value.details
    assert Workload.of("ab", "dense", 1.0, "x" * 10_000).text() == "x" * 10_000


@pytest.mark.parametrize(
    ("name", "value"),
    [("samples_s", ["x"] * 200_000), ("", {f"{number:x}": 0 for number in range(400_000)})],
)
def test_a_line_of_nothing_but_faults_takes_little_memory(name, value):
    line = encode([Record(workload="ab", target={}, tvm="1", candidate="cd", trace="[]", samples_s=(1.0,))])
    document = json.loads(line) | ({name: value} if name else value)
    with (
        memory.at_most(100 << 10),
        pytest.raises(InputError, match="line 1 of here is not a valid tuning record") as caught,
    ):
        list(parse(json.dumps(document).encode() + b"\n", "here"))
    assert len(caught.value.details) < 2000


@pytest.mark.parametrize("change", [b'"target":{"kind":NaN}', b'"target":{"kind":"llvm"},"schema":[]'])
def test_a_line_that_no_key_is_made_of_is_no_record(change):
    line = encode([Record(workload="ab", target={}, tvm="1", candidate="cd", trace="[]", samples_s=(1.0,))])
    with pytest.raises(InputError, match=r"line 1 of here is not a valid tuning record"):
        list(parse(line.replace(b'"target":{}', change), "here"))


# --- what decides ----------------------------------------------------------------------------------------------------


def final(number, verdict="faster", **fields):
    return record(number, 2e-3, schema=2, verdict=verdict, base_s=(3e-3,), among=(f"{0:016x}",), **fields)


def test_a_trial_decides_nothing_and_the_last_final_does():
    trials = (record(1, 1e-3, schema=2), final(2), final(3, "untuned"))
    assert Records.collect(trials[:1]).best(KEY) == {}
    assert Records.collect(trials).best(KEY) == {f"{0:016x}": trials[2]}
    assert Records.collect(trials).of(KEY) == trials[:1]
    assert Records.collect(trials).fastest(KEY)[f"{0:016x}"] == trials[:1]


def test_of_records_of_before_the_fastest_decides_until_a_final_does():
    before = record(1, 1e-3)
    assert Records.collect([before, record(2, 1e-12)]).best(KEY) == {before.workload: before}
    assert Records.collect([before, final(2)]).best(KEY)[before.workload].candidate == f"{2:016x}"


def test_threads_and_options_are_a_part_of_the_key():
    usual = record(1, 1e-3, schema=2, options=dict(USUAL))
    single, quick = (
        record(2, 1e-4, schema=2, threads=1),
        record(3, 1e-5, schema=2, options={**USUAL, "min_repeat_ms": 0}),
    )
    assert (usual.key, usual.key.id) == (KEY, record(1).key.id), "the usual way is what records of before stand for"
    assert len({usual.key, single.key, quick.key}) == 3
    assert Records.collect([usual, single, quick]).of(KEY) == (usual,)
    assert quick.key.in_any_way == KEY


@pytest.mark.parametrize(
    "fields",
    [
        {"threads": 1},
        {"options": dict(USUAL)},
        {"verdict": "faster"},
        {"seconds": None, "verdict": "faster", "schema": 2},
    ],
)
def test_what_no_record_can_say(fields):
    with pytest.raises(ValueError, match=r"schema 1 have no|failed trial"):
        record(1, **fields)


def test_lines_of_schema_2_come_back_and_those_of_before_look_as_they_did(tmp_path):
    file = RecordFile(tmp_path / "records.jsonl")
    lines = [workload(), record(1), final(2, threads=1, options=dict(USUAL)), Start(run="abc", time=1.0), record(3)]
    file.append(lines)
    assert list(file.read().lines()) == lines
    assert file.read().runs["abc"].index == 2
    assert b"threads" not in encode([record(1)])


# --- runs ------------------------------------------------------------------------------------------------------------


def test_a_run_begins_once_until_it_is_fresh_or_has_expired(tmp_path):
    file = RecordFile(tmp_path / "records.jsonl")

    def first_index(seconds, *, fresh=False):
        return file.begin(Start(run="me", time=seconds, fresh=fresh)).runs["me"].index

    file.append([record(1)])
    assert first_index(1000.0) == 1
    file.append([record(2)])
    assert first_index(2000.0) == 1
    assert file.begin(Start(run="other", time=2000.0)).runs["other"].index == 2
    assert first_index(1000.0 + EXPIRY_S + 1) == 2
    assert first_index(1000.0 + EXPIRY_S + 2, fresh=True) == 2
    assert len(file.read().trials) == 2


def test_where_runs_began_outlives_a_merge():
    mine = Records.collect([record(1, time=1.0), Start(run="me", time=3.0), record(2, time=5.0)])
    other = Records.collect([record(3, time=2.0), record(4, time=4.0)])
    merged = Records.collect(maintenance.merge_lines([mine, other]))
    assert [trial.index for trial in merged.trials] == [1, 3, 4, 2]
    assert merged.runs["me"].index == 2


def test_distilled_records_keep_what_decides():
    records = Records.collect([record(1, 1e-3, schema=2), record(2, 2e-3, schema=2), final(3)])
    assert [trial.index for trial in maintenance.distill_lines(records)] == [1, 3]
