"""Which cores are the big ones, and the options of LLVM for them."""

from __future__ import annotations

import pytest

from tests.support.devices_said import A53, A55, A72, A76, ARMV8, ARMV82, cores, probed
from toolchain.device.probe.cores import choose

AVX2 = "fpu sse2 ssse3 cx16 sse4_1 sse4_2 popcnt avx avx2 bmi1 bmi2 f16c fma movbe abm"


def x86(flags: str) -> list[str]:
    return [line for cpu in range(2) for line in (f"cpu processor={cpu}", "cpu model name=A CPU", f"cpu flags={flags}")]


def test_like_cores_are_one_cluster():
    clusters = probed().clusters
    assert [(cluster.count, cluster.name) for cluster in clusters] == [(4, "cortex-a72")]
    assert choose(clusters, "aarch64").mattr == ("+neon",)


def test_big_cores_come_first():
    """As on an RK3399, whose small cores have the lower numbers."""
    rows = [*cores(*[(A53, ARMV8)] * 4, *[(A72, ARMV8)] * 2)]
    clocks = [f"max_khz.{cpu}={1416000 if cpu < 4 else 1800000}" for cpu in range(6)]
    clusters = probed(lines=[*rows, *clocks]).clusters
    assert [(cluster.count, cluster.name, cluster.max_mhz) for cluster in clusters] == [
        (2, "cortex-a72", 1800),
        (4, "cortex-a53", 1416),
    ]
    assert choose(clusters, "aarch64").mcpu == "cortex-a72"


def test_a_cpu_that_is_offline_has_no_number_of_anothers():
    """As on an RK3399 whose second small core is off: /proc/cpuinfo leaves it out, and /sys does not."""
    rows = cores(*[(A53, ARMV8)] * 4, *[(A72, ARMV8)] * 2)
    del rows[4:8]
    clocks = [f"max_khz.{cpu}={1416000 if cpu < 4 else 1800000}" for cpu in range(6)]
    clusters = probed(lines=[*rows, *clocks]).clusters
    assert [(cluster.numbers, cluster.name, cluster.max_mhz) for cluster in clusters] == [
        ((4, 5), "cortex-a72", 1800),
        ((0, 2, 3), "cortex-a53", 1416),
    ]


def test_without_clocks_the_bigger_kind_of_core_counts():
    assert [cluster.name for cluster in probed(lines=cores((A53, ARMV8), (A72, ARMV8))).clusters] == [
        "cortex-a72",
        "cortex-a53",
    ]


def test_capacity_goes_before_the_clock():
    lines = [*cores((A76, ARMV82), (A55, ARMV82)), "max_khz.0=1500000", "max_khz.1=2000000"]
    lines += ["capacity.0=1024", "capacity.1=300"]
    assert [cluster.name for cluster in probed(lines=lines).clusters] == ["cortex-a76", "cortex-a55"]


def test_what_one_core_lacks_is_switched_off():
    clusters = probed(lines=cores((A76, ARMV82), (A53, ARMV8))).clusters
    assert choose(clusters, "aarch64").mattr == ("+neon", "-dotprod", "-fullfp16")
    assert choose(probed(lines=cores((A76, ARMV82))).clusters, "aarch64").mattr == ("+neon",)


def test_an_unknown_core_is_generic_with_its_features():
    chosen = choose(probed(lines=cores((("0x41", "0xfff"), ARMV82))).clusters, "aarch64")
    assert (chosen.mcpu, chosen.mattr, chosen.has_name) == ("generic", ("+neon", "+dotprod", "+fullfp16"), False)
    assert chosen.cpu_features == ("asimd", "asimddp", "asimdhp")


def test_cores_without_a_word_are_generic():
    chosen = choose(probed(lines=["cpu processor=0"]).clusters, "aarch64")
    assert (chosen.mcpu, chosen.mattr) == ("generic", ())
    assert choose((), "aarch64").mcpu == "generic"


def test_a_core_of_64_bits_runs_none_of_32():
    clusters = probed({"bits": "32"}, cores((("0x41", "0xd46"), ARMV82))).clusters
    assert choose(clusters, "armv7l").mcpu == "generic"


def test_old_kernels_name_the_part_once():
    """Below the last CPU, with the flags."""
    lines = ["cpu processor=0", "cpu processor=1", "cpu Features=half thumb neon vfpv3"]
    lines += ["cpu CPU implementer=0x41", "cpu CPU part=0xc09", "cpu Hardware=Xilinx Zynq Platform"]
    device = probed({"machine": "armv7l", "bits": "32", "model": None}, lines)
    assert [(cluster.count, cluster.name) for cluster in device.clusters] == [(2, "cortex-a9")]
    assert device.model == "Xilinx Zynq Platform"
    assert choose(device.clusters, "armv7l").mattr == ("+neon",)


@pytest.mark.parametrize(
    ("flags", "mcpu"),
    [
        ("fpu sse2", "x86-64"),
        ("fpu sse2 ssse3 cx16 sse4_1 sse4_2 popcnt", "x86-64-v2"),
        (AVX2, "x86-64-v3"),
        (f"{AVX2} avx512f avx512bw avx512cd avx512dq avx512vl", "x86-64-v4"),
        (f"{AVX2} avx512f", "x86-64-v3"),
    ],
)
def test_levels(flags, mcpu):
    chosen = choose(probed({"machine": "x86_64"}, x86(flags)).clusters, "x86_64")
    assert (chosen.mcpu, chosen.mattr) == (mcpu, ())
    assert set(chosen.cpu_features) <= set(flags.split())


def test_cpus_that_nothing_is_known_of_are_like_the_others():
    """An emulated board has more CPUs in its /proc/cpuinfo than the machine below it."""
    lines = [
        *cores(*[(A72, ARMV8)] * 4),
        "max_khz.0=2400000",
        "capacity.0=1024",
        "max_khz.1=2400000",
        "capacity.1=1024",
    ]
    assert [cluster.count for cluster in probed(lines=lines).clusters] == [4]


def test_caches():
    lines = ["cache.0=1 Data 32K", "cache.0=1 Instruction 48K", "cache.0=2 Unified 1M", "cache.0=9 Evil 1K"]
    clusters = probed(lines=[*cores((A72, ARMV8)), *lines]).clusters
    assert dict(clusters[0].caches) == {"l1d": 32, "l1i": 48, "l2": 1024}
