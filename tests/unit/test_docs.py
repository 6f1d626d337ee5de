"""What the documentation says of the tree is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import documents
from tests.support.documents import PAGES
from tests.support.paths import ROOT
from toolchain import board, resources
from toolchain.device import scripts, store

FOLDERS = (".ci", "ci", "docker", "docs", "tests", "toolchain")
FILES = [
    path for top in (*FOLDERS, "Dockerfile", "Makefile") for path in [ROOT / top, *sorted((ROOT / top).rglob("*"))]
]


@pytest.mark.parametrize("page", PAGES, ids=documents.name_of)
def test_links_lead_somewhere(page):
    """To a file that there is, and to a heading of it."""
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text(encoding="utf-8")):
        name, _, heading = target.partition("#")
        other = page.parent / name if name else page
        assert other.is_file(), target
        assert not heading or heading in headings(other.read_text(encoding="utf-8")), target


@pytest.mark.parametrize("page", PAGES, ids=documents.name_of)
def test_every_command_of_a_page_exists_with_its_options(page):
    """In the blocks, also in those that no test runs, and in the sentences."""
    texts = [block.text for block in documents.blocks(page) if block.language == "sh"]
    texts += documents.inline_commands(page)
    faults = {fault for text in texts for command in documents.commands(text) if (fault := documents.fault(command))}
    assert faults == set()


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("toolchain depoly mlp", "toolchain has no command depoly"),
        ("A=1 toolchain farm start  # comment", "toolchain farm has no command start"),
        ("cd x && toolchain deploy mlp --bord rpi4", "no such option '--bord'"),
        ("toolchain pull oci://host/x:1 y -o z", "toolchain pull does not take y"),
        ("make depoly", "make has no target depoly"),
        ("make deploy HOSTS=x", "make has no variable HOSTS"),
        ("toolchain farm lock rpi4-1 -- python x.py --anything", ""),
        ("sudo anything --at all", ""),
    ],
)
def test_a_command_that_does_not_exist_is_detected(command, fault):
    [command_line] = [command_line for command_line in documents.commands(command) if command_line[0] != "cd"]
    result = documents.fault(command_line)
    assert fault.lower() in result.lower()
    assert bool(result) == bool(fault)


@pytest.mark.parametrize("page", PAGES, ids=documents.name_of)
def test_a_block_of_commands_is_marked_as_one(page):
    """Commands in other blocks would not be checked; what a command prints begins with its prompt."""
    for block in documents.blocks(page):
        assert block.language == "sh" or not re.search(r"(?m)^(toolchain|make|pip) ", block.text), block.first
    assert not re.search(r"(?m)^    (toolchain|make|pip|docker|TOOLCHAIN_\w+=)", page.read_text(encoding="utf-8"))


def test_nothing_installs_this_project_from_a_package_index():
    """The name is not registered there, so it would be whoever's registers it first."""
    by_name = re.compile(r"""pip3? install[^\n]*[ '"](?:edge-toolchain|edge_toolchain)(?:[\s'"\[=]|$)""")
    paths = {path for path in (*PAGES, *FILES) if path.is_file()} - {
        Path(__file__),
        Path(__file__).with_name("test_hints.py"),
    }  # both name it to look for it
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in paths}
    assert [path for path, text in texts.items() if by_name.search(text)] == []
    assert all(by_name.search("pip install " + name) for name in ("edge-toolchain", "-q 'edge-toolchain[dask]'"))


def test_the_readme_names_every_board_type_and_where_its_libraries_are_linked():
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("| board | device |")[2].partition("\n\n")[0]
    rows = [row.split("|")[1:4] for row in table.splitlines()[2:]]
    linked = {name: where for names, _, where in rows for name in re.findall(r"`([\w-]+)`", names)}
    assert linked.keys() == set(board.names())
    for name, where in linked.items():
        if board.load(name).toolchain == "container" and "NDK" not in where:
            assert f"image `{board.load(name).image}`" in where, name


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
    entries = re.findall(r"^  ([\w/<>.]+) ", page.partition("```")[2].partition("```")[0], re.MULTILINE)
    assert entries == re.findall(r"^ROOT/(\S+) ", str(store.__doc__), re.MULTILINE)
    folders = re.search(r"mkdir -p (.*)", scripts.SWEEP)
    assert folders
    # A deploy to a slot makes the folder of slots.
    assert {entry.partition("/<")[0] for entry in entries if "/" in entry} == {"slots", *folders[1].split()}
