"""What the documentation says of the tree is so."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import ROOT
from toolchain import resources
from toolchain.device import scripts, store

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    """To a file that there is, and to a heading of it."""
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text(encoding="utf-8")):
        name, _, heading = target.partition("#")
        other = page.parent / name if name else page
        assert other.is_file(), target
        assert not heading or heading in headings(other.read_text(encoding="utf-8")), target


def headings(text: str) -> set[str]:
    """Return the anchors of a page, as they are made of its headings."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_architecture_names_every_room():
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rooms = {path.parent.name for path in resources.PACKAGE.glob("*/__init__.py")} | {"runtime"}
    assert set(re.findall(r"^\| `(\w+)/` \|", text, re.MULTILINE)) == rooms


def test_the_layout_of_a_device_is_that_of_its_store():
    page = (ROOT / "docs/device.md").read_text(encoding="utf-8")
    shown = re.findall(r"^  ([\w/<>.]+) ", page.partition("```")[2].partition("```")[0], re.MULTILINE)
    assert shown == re.findall(r"^ROOT/(\S+) ", str(store.__doc__), re.MULTILINE)
    made = re.search(r"mkdir -p (.*)", scripts.SWEEP)
    assert made
    assert {entry.partition("/<")[0] for entry in shown if "/" in entry} == set(made[1].split())
