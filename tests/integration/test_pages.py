"""Every kind of page in a real Chromium: on a phone, a tablet and a desk, in the light and in the dark.

TOOLCHAIN_PICTURES=FOLDER keeps pictures of all of them there.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import browser as browsers
from tests.support import figures, pages


@pytest.fixture(scope="module")
def browser():
    with browsers.chromium() as chromium:
        yield chromium


def shown(browser, folder: Path, name: str, html: str) -> tuple[browsers.Seen, list[str]]:
    file = folder / f"{name}.html"
    file.write_text(html, encoding="utf-8")
    pictures = os.environ.get("TOOLCHAIN_PICTURES")
    page = browsers.look(browser, file, Path(pictures) if pictures else None)
    return page, browsers.faults(page, file)


@pytest.mark.parametrize("name", pages.PAGES)
def test_a_page(browser, tmp_path, name):
    case = pages.PAGES[name]()
    page, faults = shown(browser, tmp_path, name, case.html)
    assert not faults
    assert not figures.missing(case.document, page.text, case.unseen)
    assert len(page.requests) == 1


SPOILED = {
    "console: ": ("</main>", '<img src="data:,"></main>'),
    "asked for ": ("</main>", '<img src="none.png"></main>'),
    " wide": ("<main>", '<main><p style="width: 2000px">far</p>'),
    "text of ": ("font: 13px", "font: 11px"),
    "faint: ": ("--soft: #52514e", "--soft: #999999"),
    "outside: ": ('text-anchor="end"', 'dx="-999" text-anchor="end"'),
    "overlapping: ": ('<text x="', '<text dx="0" x="300" y="100" data-x="'),
    "covering: ": ('class="dot fill one" cx="', 'class="dot fill one" cx="45" data-x="'),
    "wrapped: ": ("fit-content(24rem) 1fr", "2rem 1fr"),
    "clipped: ": ("<h1>", '<h1 style="overflow: hidden; white-space: nowrap; width: 4px">'),
    "unscoped: ": (' scope="col"', ""),
    "without a name": (' role="img"', ""),
}


@pytest.mark.parametrize("fault", SPOILED)
def test_a_fault_is_seen(browser, tmp_path, fault):
    html = pages.PAGES["tune"]().html
    html = html.replace("default-src 'none'", "default-src *") if fault == "asked for " else html
    spoiled = html.replace(*SPOILED[fault])
    assert spoiled != html
    _, faults = shown(browser, tmp_path, "spoiled", spoiled)
    assert any(fault in text for text in faults), faults


@pytest.mark.parametrize(
    ("value", "text", "there"),
    [
        (0.0015521, "1.552 ms", True),
        (0.0015521, "1.553 ms", False),
        (0.0015521, "2 ms", False),
        (12345, "12,345 runs", True),
        (0.333, "33%", True),
        (0.333, "34%", False),
        (7, "7 of 9", True),
        (7, "17 of v7", False),
        (1.2e-7, "up to 1.2e-07", True),
        (2048, "2.0 MiB", True),
    ],
)
def test_what_is_read(value, text, there):
    assert (not figures.missing({"one": [value]}, text, ())) is there
    assert not figures.missing({"one": [value]}, "", ("on*",))
