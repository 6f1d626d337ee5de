"""The model of Arm boards in benchmarks/: the plugin's counts, what LLVM is asked, tables, and the calibration."""

from __future__ import annotations

import json
import math
import re
import subprocess
from dataclasses import replace

import pytest

from benchmarks import _arm_calibrate, _arm_cycles, _arm_model, _arm_peers
from benchmarks._arm_model import Board, Cost, Counts, Lines
from benchmarks._arm_peers import Row
from toolchain import board, resources
from toolchain.errors import BuildError

BOARD = Board("toy", "Toy", "cortex-a72", mhz=1000, last="512:16", gb_s=6.4, adds="sum")
LINES = Lines(foreseen=50_000, other=30_000, written=20_000)  # 6.4 MB, so 1 ms
COST = Cost(instructions=3_000_000, core_cycles=2e6, lines={512: LINES})
CORES = ("cortex-a72", "cortex-a76")
NOP, RET = "1f2003d5", "c0035fd6"


def test_counts_are_read_and_those_of_one_run_are_the_difference_of_two_processes():
    once = _arm_model.counted(f"lines 512 5 6 7\nblock 2 {NOP}\nblock 1 {NOP}{RET}\nblock 3 {NOP}\n")
    twice = _arm_model.counted(f"lines 512 10 13 20\nblock 9 {NOP}\nblock 1 {NOP}{RET}\nblock 4 {RET}\n")
    assert once == Counts({NOP: 5, NOP + RET: 1}, {512: Lines(5, 6, 7)})
    assert once.instructions == 7
    assert _arm_model.difference(twice, once) == Counts({NOP: 4, RET: 4}, {512: Lines(5, 7, 13)})


@pytest.mark.parametrize(("adds", "ms"), [("sum", 3.0), ("root", math.sqrt(5)), ("latency", 9.0)])
def test_times_of_core_and_memory_add_up_by_a_rule(adds, ms):
    assert COST.ms(BOARD, adds) == pytest.approx(ms)
    if adds != "latency":
        assert COST.ms(replace(BOARD, adds=adds)) == pytest.approx(ms)


def test_a_ratio_has_the_bounds_of_all_rules():
    theirs = replace(COST, core_cycles=4e6, lines={512: Lines()})
    assert _arm_model.bounds(COST, theirs, BOARD) == pytest.approx((math.sqrt(5) / 4, 9 / 4))


def test_a_cost_is_read_as_it_was_written():
    assert _arm_model.cost(COST.document()) == COST


def test_the_tables_of_cores_and_boards_fit_together():
    cores, boards = _arm_model.cores(), _arm_model.boards()
    assert {board.core for board in boards.values()} == {*cores}
    for core in cores.values():
        kind = board.load(core.build)
        assert kind.target.mcpu == core.name
        assert core.computes_in_half == ("asimdhp" in kind.cpu_features)
    assert all(board.adds in {"sum", "root"} for board in boards.values())
    assert all(
        re.fullmatch(r"\d+:\d+", text) for board in boards.values() for text in (board.last, cores[board.core].l1)
    )


def test_the_blocks_with_most_instructions_are_counted_until_they_cover_a_share():
    counts = Counts({NOP: 10, RET: 1, NOP + RET: 100})
    assert _arm_cycles.most(counts, 0.9) == {NOP + RET: 100}
    assert _arm_cycles.most(counts, 0.99) == {NOP + RET: 100, NOP: 10}
    assert _arm_cycles.most(counts, 1.0) == counts.blocks


def test_llvm_gets_a_region_for_each_block_without_targets_of_jumps():
    assert _arm_cycles.hexadecimal([NOP + RET, RET]) == "0x1f 0x20 0x03 0xd5 0xc0 0x03 0x5f 0xd6\n0xc0 0x03 0x5f 0xd6\n"
    text = _arm_cycles.regions("\t.text\n\tnop\n\tbl\t#-64\n\tret\n\tfmla\tv0.4s, v1.4s, v2.s[1]\n", [2, 1, 1])
    assert text.splitlines() == [
        *("# LLVM-MCA-BEGIN r0", "nop", "b\t#64", "# LLVM-MCA-END r0"),
        *("# LLVM-MCA-BEGIN r1", "br\tx30", "# LLVM-MCA-END r1"),
        *("# LLVM-MCA-BEGIN r2", "fmla\tv0.4s, v1.4s, v2.s[1]", "# LLVM-MCA-END r2"),
    ]
    assert text.endswith("\n")


def test_an_instruction_that_llvm_does_not_know_is_an_error():
    with pytest.raises(BuildError, match="llvm-mc knows 1 of 2 instructions"):
        _arm_cycles.regions("\tnop\n", [2])


def test_cycles_of_all_regions_are_read():
    answer = "\n[0] Code Region - r1\n\nIterations: 100\nTotal Cycles:      450\n"
    answer += "\n[1] Code Region - r0\n\nIterations: 100\nTotal Cycles:      100\n"
    assert _arm_cycles.cycles(answer, 2) == [1.0, 4.5]
    with pytest.raises(BuildError, match="counted 2 of 3 blocks"):
        _arm_cycles.cycles(answer, 3)


# --- the table ---


def test_a_table_compares_each_peer_with_our_build_of_the_same_precision():
    halved = replace(COST, core_cycles=1e6)
    rows = [
        Row("cortex-a76", "net", engine, cost)
        for engine, cost in (("ours", COST), ("ours-float16", halved), ("ncnn", halved), ("ncnn-float16", COST))
    ]
    rows = [replace(row, cost=replace(row.cost, lines=dict.fromkeys((2048, 3072), LINES))) for row in rows]
    text = "\n".join(_arm_peers.table(rows))
    assert "Raspberry Pi 5 (cortex-a76, 2.4 GHz, 1 thread), modelled. " in text
    assert "RK3588, its Cortex-A76" in text
    assert "Raspberry Pi 4" not in text
    board = _arm_model.boards()["rpi5"]
    table = {cells[2]: cells for line in text.splitlines() if len(cells := re.split(r" *\| *", line)) > 8}
    ratio = rows[0].cost.ms(board) / rows[2].cost.ms(board)
    assert table["ncnn"][7] == f"{ratio:.2f}"
    assert table["ncnn-float16"][7] == f"{1 / ratio:.2f}"
    assert table["ours"][7] == table["ours-float16"][7] == ""


def test_rows_are_read_as_they_were_written(tmp_path):
    rows = [Row("cortex-a72", "net", "ours", COST, 1e-6), Row("cortex-a72", "net", "ncnn", COST, None, "its own")]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([row.document() for row in rows]))
    assert _arm_peers.read_rows(path) == rows


# --- the calibration ---


def test_the_recorded_calibration_is_within_its_limit():
    costs = _arm_calibrate.recorded()
    assert {network for core, network in costs if core == "cortex-a72"} == {*_arm_calibrate.published().networks}
    assert _arm_calibrate.failures(costs, {core for core, _ in costs}) == []


def test_a_deviation_beyond_a_quarter_fails_on_the_boards_that_must_fit():
    published = _arm_calibrate.published().ms["rpi4"]["mobilenet"]
    board = _arm_model.boards()["rpi4"]
    costs = dict(_arm_calibrate.recorded())
    for share, fails in ((1.2, False), (0.8, False), (1.3, True), (0.7, True)):
        costs["cortex-a72", "mobilenet"] = Cost(1, published * share * board.mhz * 1e3, {1024: Lines()})
        failures = _arm_calibrate.failures(costs, ["cortex-a72"])
        assert [failure.partition(":")[0] for failure in failures] == ["rpi4, mobilenet"] * fails


def test_boards_without_a_calibration_fail_and_say_so():
    assert _arm_calibrate.failures({}, CORES) == ["rpi4 was not calibrated", "rpi5 was not calibrated"]
    assert _arm_calibrate.failures({}, ["cortex-a72"]) == ["rpi4 was not calibrated"]
    assert _arm_calibrate.error(BOARD) == "Not calibrated: no published time of this board."


def test_published_times_are_of_known_boards_and_networks():
    published = _arm_calibrate.published()
    assert re.fullmatch("[0-9a-f]{40}", published.commit)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", published.date)
    assert {*published.ms} <= {*_arm_model.boards()}
    assert all({*times} <= {*published.networks} for times in published.ms.values())


def test_a_network_of_another_commit_is_refused(tmp_path):
    network = _arm_calibrate.published().networks["mobilenet"]
    with pytest.raises(BuildError, match=r"mobilenet\.param is missing"):
        _arm_calibrate.param(tmp_path, network)
    path = tmp_path / "benchmark/models/mobilenet.param"
    path.parent.mkdir(parents=True)
    path.write_text("Input data 0 1 data -23330=4,3,224,200,3 0=224 1=200 2=3\n")
    with pytest.raises(BuildError, match="is not the network whose times are published") as fault:
        _arm_calibrate.param(tmp_path, network)
    assert _arm_calibrate.published().commit in fault.value.hint
    assert _arm_calibrate.shape(path) == (1, 3, 200, 224)
    path.write_text("")
    with pytest.raises(BuildError, match="has no input of a known shape"):
        _arm_calibrate.shape(path)


# --- the plugin ---


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    """A program that stands in for QEMU; it returns what the plugin counts in a guest that does some steps."""
    folder = tmp_path_factory.mktemp("plugin")
    sources = [resources.ROOT / "tests/data/qemu_lines_harness.c", resources.ROOT / "benchmarks/qemu_lines.c"]
    subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "-o", folder / "harness", *sources], check=True)

    def count(steps, *options):
        out = folder / "lines"
        command = [folder / "harness", f"out={out}", "l1=1:2", *options]
        subprocess.run(command, input="\n".join(steps), check=True, text=True)
        return _arm_model.counted(out.read_text())

    return count


def test_blocks_are_counted_between_marks(plugin):
    steps = ["run", "mark 1", "run", "run", "mark 2", "run"]
    assert plugin(steps).blocks == {NOP + RET: 2}
    assert plugin(["run"]).blocks == {NOP + RET: 1}


def test_lines_come_from_memory_unless_a_cache_has_them(plugin):
    every = [f"load {number * 64:x}" for number in range(1001, 1033)]  # 2 KiB: twice the first cache
    lines = plugin([*every, *every], "last=1:2", "last=4:4").lines
    assert lines[4] == Lines(foreseen=30, other=2)  # the second of a stream is not foreseen yet
    assert lines[1] == Lines(foreseen=60, other=4)


def test_lines_in_no_order_are_not_foreseen(plugin):
    steps = [f"load {number * 64 * 9:x}" for number in range(1, 9)]
    assert plugin(steps, "last=4:4").lines == {4: Lines(other=8)}


def test_lines_that_were_stored_are_written_when_they_leave_the_last_cache(plugin):
    stores = [f"store {number * 64 * 9:x}" for number in range(1, 9)]
    others = [f"load {number * 64:x}" for number in range(1000, 1200)]
    assert plugin([*stores, *others], "last=2:2").lines[2].written == 8
    assert plugin(stores, "last=2:2").lines[2].written == 0


def test_caches_start_at_their_mark(plugin):
    far = [f"load {number * 64 * 9:x}" for number in range(1, 9)]
    assert plugin([*far, "mark 3", "load 40000"], "last=4:4", "marked=on").lines == {4: Lines(other=1)}
