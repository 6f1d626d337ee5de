"""A gate on a device whose runner says what a test wants to be measured: every verdict, without a clock."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support import bundles, deploys, gates
from toolchain.device.lock import Owner
from toolchain.errors import BusyError, DeviceError, InputError, VerificationError
from toolchain.pipeline import ab, gate
from toolchain.pipeline.ab import Side, turns
from toolchain.pipeline.gate import GateSettings, session
from toolchain.pipeline.profile.against import Against, Layer
from toolchain.stats import Estimate, Rule, Verdict

EVEN = [{"ms": 1.0 + 0.002 * (number % 3)} for number in range(5)]
SLOWER = [{"ms": 1.1 + 0.002 * (number % 3)} for number in range(5)]


@pytest.fixture(scope="module")
def other(tiny, tmp_path_factory):
    """The same model in other bytes."""
    return gates.alike(tiny, tmp_path_factory.mktemp("other") / "bundle")


@pytest.fixture
def bench(program, tmp_path):
    return gates.bench(tmp_path / "device", program)


def gated(bench, new, base, **settings):
    return gate.run(Side.of(new, "new"), Side.of(base, "old"), bench.program, bench.device, GateSettings(**settings))


def left(bench):
    """Name the releases and scratch folders on the device."""
    root = bench.folder / "store"
    return [path.name for kind in ("releases", "run") for path in (root / kind).iterdir()]


def test_the_same_speed_passes_after_eight_rounds(bench, tiny, other):
    bench.says(tiny, *EVEN)
    bench.says(other, *EVEN)
    result = gated(bench, other, tiny, package_size=0.01, peak_memory=0.05, load_time=0.1)
    assert [quantity.verdict for quantity in result.quantities] == [Verdict.PASS] * 4
    assert [pair.new_first for pair in result.rounds] == [True, False] * 4
    assert result.threads == 2
    assert result.outputs.each_other.ok
    assert left(bench) == []
    assert bench.device.store.releases.current() is None


def test_slower_is_a_regression_once_it_is_confirmed(bench, tiny, other):
    bench.says(tiny, *EVEN)
    bench.says(other, *SLOWER)
    result = gated(bench, other, tiny)
    assert result.verdict is Verdict.REGRESSION
    assert [pair.fresh for pair in result.rounds] == [False] * 8 + [True] * 16
    assert result.quantities[0].judgement.confirmation.low > 0
    assert result.slower_layers.startswith("unknown, because profiling failed: "), "this runner has no hooks"
    assert result.fault().exit_code == 6


def test_what_fresh_rounds_do_not_confirm_is_inconclusive(bench, tiny, other):
    bench.says(tiny, *EVEN)
    bench.says(other, *[{"ms": 1.1}] * 8, {"ms": 0.99})
    result = gated(bench, other, tiny)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert len(result.rounds) == 24


def test_noise_is_inconclusive_after_the_last_look(bench, tiny, other):
    bench.says(tiny, *[{"ms": 1.0 + number % 2} for number in range(16)])
    bench.says(other, *[{"ms": 1.0 + number // 2 % 2} for number in range(16)])
    result = gated(bench, other, tiny, rule=Rule().within(12))
    assert (result.verdict, len(result.rounds)) == (Verdict.INCONCLUSIVE, 12)


@pytest.mark.parametrize(
    ("setting", "report"), [("peak_memory", {"peak_rss_kib": 6000}), ("load_time", {"load_ms": 9})]
)
def test_other_quantities_regress_by_the_same_rule(bench, tiny, other, setting, report):
    bench.says(tiny, {})
    bench.says(other, report)
    result = gated(bench, other, tiny, **{setting: 0.1})
    assert [quantity.verdict for quantity in result.quantities] == [Verdict.PASS, Verdict.REGRESSION]
    assert gated_latency_only(bench, other, tiny) is Verdict.PASS


def gated_latency_only(bench, new, base):
    return gated(bench, new, base).verdict


def test_a_larger_package_regresses_exactly(bench, tiny, other):
    bench.says(tiny)
    bench.says(other)
    assert gated(bench, other, tiny, package_size=0.0).verdict is Verdict.REGRESSION
    assert gated(bench, tiny, other, package_size=0.0).verdict is Verdict.PASS


def test_outputs_come_first(bench, tiny, other):
    bench.says(tiny)
    bench.says(other, {"ms": 9}, scale=1.5)
    with pytest.raises(
        VerificationError, match="the new release, new: the device's outputs differ from the reference for"
    ) as caught:
        gated(bench, other, tiny)
    assert caught.value.exit_code == 5
    with pytest.raises(VerificationError, match="the base, old: the device's outputs differ from the reference for"):
        gated(bench, tiny, other)
    assert left(bench) == []


def test_other_weights_are_told_and_may_be_meant(bench, tiny, tmp_path):
    trained = bundles.reweighted(tiny, tmp_path / "trained", seed=4)
    bench.says(tiny)
    bench.says(trained)
    with pytest.raises(VerificationError, match="new and old compute different outputs") as caught:
        gated(bench, trained, tiny)
    assert "--retrained" in caught.value.hint
    result = gated(bench, trained, tiny, retrained=True)
    assert result.verdict is Verdict.PASS
    assert result.outputs.each_other is None


def test_other_weights_without_a_reference_are_refused_before_any_work(bench, tiny, other):
    new = dataclasses.replace(Side.of(other, "new"), bundle=None)
    with pytest.raises(InputError, match="the outputs of the new release cannot be verified"):
        gate.run(new, Side.of(tiny, "old"), bench.program, bench.device, GateSettings(retrained=True))
    assert not (bench.folder / "store").exists()


def throttling(folder, rounds):
    """Return what makes a runner's device throttle in its first runs that are timed."""
    return f"""
if [ "$runs" != 0 ]; then
  read -r n <{folder}/n
  [ "$n" -ge {rounds} ] || echo $((n + 1)) >{folder}/n
  echo $n >{folder}/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count
fi
"""


@pytest.fixture
def hot(program, tmp_path, monkeypatch):
    monkeypatch.setattr(turns, "_COOLING_S", 0.0)
    folder = tmp_path / "sys"
    (folder / "devices/system/cpu/cpu0/thermal_throttle").mkdir(parents=True)
    (folder / "devices/system/cpu/cpu0/thermal_throttle/core_throttle_count").write_text("0\n")
    (folder / "n").write_text("0\n")

    def made(rounds):
        return gates.bench(tmp_path / "device", program, more=throttling(folder, rounds)), str(folder)

    return made


def test_a_throttled_round_is_repeated_and_reported(hot, tiny, other):
    bench, sysfs = hot(5)
    bench.says(tiny)
    bench.says(other)
    result = gated(bench, other, tiny, sysfs=sysfs)
    assert result.verdict is Verdict.PASS
    assert [bool(pair.throttled) for pair in result.rounds] == [True] * 3 + [False] * 8
    assert "by the CPUs' own count" in result.rounds[0].throttled[0]
    assert [pair.new_first for pair in result.rounds] == [True] * 4 + [False, True, False, True, False, True, False]


def test_a_device_that_stays_hot_is_inconclusive_however_it_looks(hot, tiny, other):
    bench, sysfs = hot(1000)
    bench.says(tiny, {"ms": 1.0})
    bench.says(other, {"ms": 5.0})
    result = gated(bench, other, tiny, sysfs=sysfs)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.fault().exit_code == 7
    assert "throttled in 9 rounds" in result.fault().message
    assert len(result.rounds) == 9


def test_an_emulated_device_is_for_rehearsals(program, tmp_path, tiny, other):
    bench = gates.bench(tmp_path / "device", program, emulated=True)
    bench.says(tiny)
    bench.says(other)
    with pytest.raises(InputError, match="its times say nothing about a real board") as caught:
        gated(bench, other, tiny)
    assert "--allow-emulated" in caught.value.hint
    assert not (bench.folder / "store").exists(), "nothing was touched"
    assert gated(bench, other, tiny, allow_emulated=True).emulated


def test_the_device_keeps_the_release_that_it_has(bench, tiny, other, tmp_path):
    root = bench.folder / "store"
    bench.says(tiny)
    bench.says(other)
    with bench.device.store.lock(Owner.here("test")):
        gate.run(Side.of(other), Side.of(tiny), bench.program, bench.device, GateSettings())

    deploys.deploy(tiny, bench.program, bench.device.shell, bench.device.store)
    assert bundles.whole_release(root) == tiny.digest
    current = ab.on_device("current", bench.device)
    assert (current.digest, current.bundle) == (tiny.digest, None)
    result = gate.run(Side.of(other), current, bench.program, bench.device, GateSettings())
    assert result.verdict is Verdict.PASS
    assert result.outputs.base is None
    assert bundles.whole_release(root) == tiny.digest
    assert left(bench) == [tiny.digest]
    assert gate.run(current, Side.of(other), bench.program, bench.device, GateSettings()).verdict is Verdict.PASS


def test_a_release_that_does_not_run_leaves_nothing(bench, tiny, other):
    bench.says(tiny)
    with pytest.raises(DeviceError):
        gated(bench, other, tiny)
    assert left(bench) == []


def test_a_gate_is_refused_while_somebody_else_is_at_work(bench, tiny, other, program):
    from toolchain.device.store import Store
    from toolchain.shell import LocalShell

    store = Store(LocalShell(), str(bench.folder / "store"))
    with store.lock(Owner("bob@lab", "tune")), pytest.raises(BusyError, match="in use by bob@lab: tune"):
        gated(bench, other, tiny)


def test_a_device_that_others_hold_longer_than_a_round_keeps_its_lock(bench, tiny, other):
    """Both sides and all rounds lie within one lock."""
    from toolchain.device.store import Store
    from toolchain.shell import LocalShell

    bench.says(tiny)
    bench.says(other)
    busy = []

    def tell(line):
        try:
            Store(LocalShell(), str(bench.folder / "store")).check_free()
        except BusyError:
            busy.append(str(line))

    gate.run(Side.of(other), Side.of(tiny), bench.program, bench.device, GateSettings(), tell)
    assert sum("measuring in turns" in line for line in busy) == 8


def test_the_layers_that_carry_it_are_named_and_of_many_the_worst():
    def layers(*more_ms):
        sure = Estimate(0.1, 0.05, 0.2, 0.99, 16)
        compared = [Layer(f"layer {index}", "k", "k", more, 0.0, sure) for index, more in enumerate(more_ms)]
        return Against("m", "b", "h", False, "1", "2", 16, 2.0, 1.0, sure, tuple(compared))  # noqa: FBT003 - a record

    assert session.culprits_text(layers(0.4, 0.6)) == "layer 1 (+0.6000 ms); layer 0 (+0.4000 ms)"
    assert session.culprits_text(layers(*[1.0] * 10)).endswith("layer 4 (+1.000 ms); and 3 more")
    assert session.culprits_text(layers()) == "no single layer is measurably slower"
    unmatched = dataclasses.replace(layers(), layers=(Layer("8 relu", "k", "", 0.5, 0.0, None),))
    assert session.culprits_text(unmatched) == (
        "no single layer is measurably slower; not matched: 8 relu (+0.5000 ms, only in the new release)"
    )


def test_settings_have_a_rule_for_each_quantity():
    rules = GateSettings(peak_memory=0.1).rules()
    assert list(rules) == ["latency", "peak memory"]
    assert (rules["peak memory"].least, rules["peak memory"].worst) == (0.1, 0.1)
    assert dataclasses.replace(rules["latency"]) == Rule()


@pytest.mark.parametrize(
    ("quantity", "reported", "settings"),
    [
        ("latency", {"samples_ns": [0] * 5}, {}),
        ("peak memory", {"peak_rss_kib": 0}, {"peak_memory": 0.1}),
        ("load time", {"load_ms": 0}, {"load_time": 0.1}),
    ],
)
def test_what_a_device_does_not_tell_never_passes(bench, tiny, other, quantity, reported, settings):
    """Two zeros are as good as each other, and no measurement."""
    bench.says(tiny, reported)
    bench.says(other, reported)
    result = gated(bench, other, tiny, **settings)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert [judged.verdict for judged in result.quantities if judged.name == quantity] == [Verdict.INCONCLUSIVE]
    assert f"the device reports a {quantity} of 0, which is not possible" in result.warnings()


@pytest.mark.parametrize(
    "reported",
    [
        {"samples_ns": [1 << 61] * 5},
        {"warmup_ns": [10**15]},
        {"samples_ns": [-1] * 5},
        {"samples_ns": [float("nan")] * 5},
        {"samples_ns": [True] * 5},
        {"samples_ns": [1000] * 50_000},
        {"load_ms": float("inf")},
        {"load_ms": float("nan")},
        {"peak_rss_kib": -5},
        {"peak_rss_kib": 1.5},
        {"involuntary_switches": "many"},
        {"processor": "a GPU"},
        {"processor": {"name": "\x1b[2J", "driver": "", "version": "", "units": 1}},
        {"involuntary_switches": 1 << 70},
    ],
)
def test_what_cannot_be_ends_the_gate(bench, tiny, other, reported):
    """Of a device that lies, one error, and nothing of the gate is left on it."""
    bench.says(tiny)
    bench.says(other, reported)
    with pytest.raises(DeviceError, match=r"an invalid report|of runs, but the whole|wrote more than"):
        gated(bench, other, tiny)
    assert left(bench) == []
