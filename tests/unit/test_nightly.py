"""What CI leaves to `make nightly`."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

from tests.support import nightly
from tests.support.paths import ROOT


@dataclass(eq=False)
class Item:
    """What pytest collected, as far as choosing it needs."""

    nodeid: str
    markers: list[str] = field(default_factory=list)
    fixturenames: tuple[str, ...] = ()

    def add_marker(self, marker):
        self.markers.append(marker.name)

    def get_closest_marker(self, name):
        return name if name in self.markers else None


def test_of_a_kernels_cases_ci_runs_twelve_from_first_to_last(pytestconfig):
    conftest = pytestconfig.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    kernels = [Item(f"tests/unit/backends/cpu/test_x.py::test_it[{number}]") for number in range(34)]
    others = [Item(f"tests/unit/models/test_x.py::test_it[{number}]") for number in range(34)]
    chosen, deselected = [*kernels, *others], []

    def deselect(items):
        deselected.extend(items)

    config = SimpleNamespace(
        option=SimpleNamespace(nightly=False, quick=False), hook=SimpleNamespace(pytest_deselected=deselect)
    )
    conftest.pytest_collection_modifyitems(config, chosen)
    assert chosen == [*kernels[::3], *others]
    assert [item.markers for item in kernels[:4]] == [[], ["nightly"], ["nightly"], []]
    assert {*chosen, *deselected} == {*kernels, *others}


def test_one_of_several_cases_is_run_in_ci():
    cases = nightly.all_but_every(2, ["a", ("b", 1), "c"])
    assert [case.values for case in cases] == [("a",), ("b", 1), ("c",)]
    assert [[mark.name for mark in case.marks] for case in cases] == [[], ["nightly"], []]
