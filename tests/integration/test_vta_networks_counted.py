"""What the benchmark of whole networks makes of what it counts: whose instructions are, and how long they take."""

from __future__ import annotations

import base64
import importlib
import subprocess
from collections import Counter

import pytest

from benchmarks import _arm_calls, _cortex_a9
from benchmarks._arm_calls import Block, Cost, Owner
from tests.support import vta_streams
from tests.support.paths import ROOT

LISTING = """
model.so:     file format elf32-littlearm

00000100 <nearbyintf@plt> (File Offset: 0x100):
 100:\tadd\tip, pc, #0, 12
 104:\tldr\tpc, [ip, #1048]!\t@ 0x418

00001200 <__tvm_ffi_pool> (File Offset: 0x200):
    1200:\tpush\t{r4, lr}
    1204:\tbl\t1220 <pool_compute_> (File Offset: 0x220)
    1208:\tpop\t{r4, pc}

00001220 <pool_compute_> (File Offset: 0x220):
    1220:\tmov\tr0, r1
    1224:\tbx\tlr
    1228:\tvmla.f32\tq8, q9, q10
    122c:\tbl\t100 <nearbyintf@plt> (File Offset: 0x100)

00001230 <mean_compute_> (File Offset: 0x230):
    1230:\tvadd.f32\tq8, q9, q10
    1234:\tbl\t100 <nearbyintf@plt> (File Offset: 0x100)
"""
ENDS = {0x1200: 0x120C, 0x1220: 0x1228, 0x1230: 0x1238}
CODE = _arm_calls.listed(LISTING, ENDS)
EXECUTED = {
    Block(0x200, 2): (1, 0),
    Block(0x220, 2): (1, 0),
    Block(0x228, 2): (30, 0),
    Block(0x230, 2): (10, 0),
    Block(0x100, 2): (40, 2000),
}


def test_what_follows_a_function_is_the_body_of_its_parallel_loop():
    assert CODE[0x220].owner == Owner("pool", parallel=False)
    assert CODE[0x228].owner == Owner("pool", parallel=True)
    assert CODE[0x22C].to == "nearbyintf@plt"


def test_what_is_called_belongs_to_its_callers_by_the_number_of_calls():
    counted_calls = _arm_calls.calls(CODE, EXECUTED, {"pool", "mean"}, _cortex_a9.cycles)
    assert counted_calls["pool"].serial == Cost(4, 0, 4)
    assert counted_calls["pool"].parallel == Cost(60 + 60, 1500, 30 * 5 + 60 + 1500)
    assert counted_calls["mean"].serial == Cost(20 + 20, 500, 10 * 3 + 20 + 500)
    assert counted_calls["pool"].instructions == 4 + 120 + 1500


def test_one_run_is_what_two_have_more_than_one():
    once = "block 512 3 1 0\nblock 544 2 7 4\nall 9\n"
    twice = "block 512 3 1 0\nblock 544 2 10 4\nblock 544 2 7 6\nblock 600 5 2 0\n"
    assert _arm_calls.counted(once, twice) == {Block(544, 2): (10, 6), Block(600, 5): (2, 0)}


@pytest.mark.parametrize(
    ("text", "cycles"),
    [
        ("vmla.f32\tq8, q9, d0[0]", 4),
        ("vmla.f32\td16, d17, d18", 2),
        ("vmla.f32\ts0, s1, s2", 1),
        ("vadd.f32\tq8, q9, q10", 2),
        ("vadd.f32\td8, d9, d10", 1),
        ("vcvt.s32.f32\tq8, q9", 2),
        ("vmax.s8\tq8, q9, q10", 1),
        ("vmul.i32\tq8, q9, q10", 4),
        ("vmul.i16\tq8, q9, q10", 2),
        ("vmull.s8\tq8, d0, d1", 1),
        ("vdiv.f32\ts0, s1, s2", 10),
        ("vld1.32\t{d16-d17}, [r0]!", 1),
        ("vld1.32\t{d16-d19}, [r0]!", 2),
        ("vld1.32\t{d16[0]}, [r0]", 2),
        ("vld1.32\t{d16[]}, [r0]", 1),
        ("vldmia\tsp, {d16-d19}", 4),
        ("vstmia\tsp!, {s0}", 1),
        ("push\t{r4, r5, r6, lr}", 2),
        ("ldm\tr0, {r1-r8}", 4),
        ("ldrb\tr0, [r1]", 2),
        ("ldrsh\tr0, [r1]", 2),
        ("ldr\tr0, [r1]", 1),
        ("strd\tr0, [r1]", 1),
        ("mul\tr0, r1, r2", 2),
        ("smull\tr0, r1, r2, r3", 3),
        ("bne\t1f00", 1),
    ],
)
def test_cycles(text, cycles):
    assert _cortex_a9.cycles(text) == cycles


def test_a_call_whose_tensors_fit_the_cache_waits_for_no_memory():
    assert _cortex_a9.memory_seconds(512 * 1024) == 0.0
    assert _cortex_a9.memory_seconds(8_000_000) == pytest.approx(0.01)
    assert _cortex_a9.copy_seconds(4_000_000) == pytest.approx(0.01)


def test_both_cores_share_what_is_parallel():
    assert _cortex_a9.computing_seconds(650e6, 650e6) == 1.5


def test_the_first_convolution_in_floats_is_not_slower_than_measured():
    """Its products alone, on both cores, as TopHub's 107 ms have more to do than these."""
    products = 112 * 112 * 64 * 3 * 7 * 7
    bare = _cortex_a9.computing_seconds(0, products / 4 * _cortex_a9.cycles("vmla.f32\tq0, q1, q2"))
    assert 0.05 < bare < 0.107


def test_the_plugin_tells_the_blocks_of_a_file_and_what_others_execute_for_it(tmp_path):
    """A harness stands in for QEMU: blocks of a file, of a library that it calls, and of the program."""
    library = tmp_path / "libm.so"
    harness, plugin = tmp_path / "harness", ROOT / "benchmarks" / "qemu_count.c"
    code = tmp_path / "model"
    for path in (library, code):
        path.write_bytes(bytes(8192))
    source = ROOT / "tests" / "data" / "qemu_harness.c"
    subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "-o", harness, source, plugin], check=True)
    completed = subprocess.run([harness, code, library], check=True, capture_output=True, text=True)
    assert Counter(completed.stderr.splitlines()) == Counter(["block 4112 3 2 5"])


@pytest.fixture
def networks(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("vta_networks")


def counts(copies, ms):
    stream = base64.b64encode(vta_streams.stream().encoded()).decode()
    cpu = [{"name": "pool", "calls": 1, "instructions": 10, "memory_ms": 0.0, "ms": ms}]
    return {"network": "net", "array": [{"stream": stream, "calls": 2}], "cpu": cpu, "copies": copies, "difference": 0}


def test_without_a_count_all_of_a_kernel_is_copied(networks):
    stream = vta_streams.stream()
    sizes = [
        (buffer.elements * stream.config.element_bytes(buffer.memory), buffer.written) for buffer in stream.buffers
    ]
    tensors = sum(size * (2 if is_output else 1) for size, is_output in sizes)
    program = len(stream.instructions) * 16 + len(stream.uops) * 4
    assert networks.copied(counts(None, 1.0)) == 2 * (tensors + program)
    assert networks.copied(counts({"to_device": 5, "from_device": 3, "resident": 9}, 1.0)) == 8


def test_a_run_is_the_array_the_cpu_and_the_copies(networks, capsys):
    now, before = (networks.modelled(counts({"to_device": 400_000, "from_device": 0}, ms)) for ms in (3.0, 103.0))
    array = now["array_ms"]["pynq-z1"]
    assert array > 2 * 3200 / networks.CLOCK_HZ * 1e3  # what starting two programs takes
    assert now["copies_ms"] == pytest.approx(1.0)
    assert now["total_ms"]["pynq-z1"] == pytest.approx(array + 4.0)
    networks.show([now], [before])
    output = capsys.readouterr().out
    assert f"| {(array + 4) / (array + 104):.2f} |" in output
    assert "| pool | 1 | 10 | 3.00 | 0.00 |" in output
