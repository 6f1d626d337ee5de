"""A real browser, and what it sees of a page: nothing it complains about, nothing cut off, nothing hard to read."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.parts import require

WIDTHS = (390, 768, 1280, 1440)
SCHEMES = ("light", "dark")
_HEIGHT = 900
_LOOK = """
() => {
  const shown = (one) => one.checkVisibility({ visibilityProperty: true });
  const channels = (text) => {
    const found = text.match(/[\\d.]+/g).map(Number);
    return { rgb: found.slice(0, 3), alpha: found.length > 3 ? found[3] : 1 };
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const found = channels(getComputedStyle(at).backgroundColor);
      if (found.alpha > 0) return found.rgb;
    }
    return [255, 255, 255];
  };
  const contrast = (one, style) => {
    const ink = channels(one.closest("svg") ? style.fill : style.color);
    if (ink.alpha < 1 || style.opacity < 1) return 0;
    const [a, b] = [luminance(ink.rgb), luminance(behind(one))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  const said = (one) => one.tagName + " " + one.textContent.trim().slice(0, 40);
  const faint = [];
  for (const one of document.body.querySelectorAll("*")) {
    if (!shown(one)) continue;
    const before = getComputedStyle(one, "::before");
    const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (own && contrast(one, getComputedStyle(one)) < 4.5) faint.push(said(one));
    if (before.content !== "none" && contrast(one, before) < 4.5) faint.push("::before of " + said(one));
  }
  const sizes = [], outside = [], overlapping = [], covering = [], wrapped = [];
  for (const picture of document.querySelectorAll("svg")) {
    const frame = picture.getBoundingClientRect();
    const texts = [...picture.querySelectorAll("text")];
    const boxes = texts.map((one) => one.getBoundingClientRect());
    texts.forEach((one, place) => {
      const turned = one.getScreenCTM(), box = boxes[place];
      sizes.push(parseFloat(getComputedStyle(one).fontSize) * Math.hypot(turned.a, turned.b));
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1
        || box.bottom > frame.bottom + 1) outside.push(said(one));
      boxes.slice(0, place).forEach((other, earlier) => {
        const across = Math.min(box.right, other.right) - Math.max(box.left, other.left);
        const down = Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top);
        if (across > 1 && down > 4) overlapping.push(said(texts[earlier]) + " and " + said(one));
      });
      picture.querySelectorAll("circle:not(.area), .points").forEach((point) => {
        const other = point.getBoundingClientRect();
        const across = Math.min(box.right, other.right) - Math.max(box.left, other.left);
        const down = Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top);
        if (across > 1 && down > 1) covering.push(said(one));
      });
    });
  }
  // A name in two lines, though its table leaves room: to the right of all that is written in it.
  for (const table of innerWidth < 1200 ? [] : document.querySelectorAll("table")) {
    const written = (one) => { const found = document.createRange(); found.selectNodeContents(one); return found; };
    const ends = [...table.querySelectorAll("th, td")].map((one) => written(one).getBoundingClientRect().right);
    const free = table.parentElement.getBoundingClientRect().right - Math.max(...ends);
    for (const one of table.querySelectorAll("th[scope=row]")) {
      const lines = new Set([...written(one).getClientRects()].map((box) => Math.round(box.top)));
      if (lines.size > 1 && free > 60 && one.clientWidth < 380) wrapped.push(said(one));
    }
  }
  const clipped = [...document.querySelectorAll("h1, h2, p, li, th, td, figcaption")]
    .filter((one) => shown(one) && one.scrollWidth > one.clientWidth + 1).map(said);
  return {
    width: document.documentElement.scrollWidth, smallest: Math.min(...sizes, 100), text: document.body.innerText,
    faint, outside, overlapping, covering, wrapped, clipped,
    nameless: [...document.querySelectorAll("svg:not([aria-hidden])")]
      .filter((one) => one.getAttribute("role") !== "img" || !one.getAttribute("aria-label")
        || !one.querySelector(":scope > desc")).length,
    unscoped: [...document.querySelectorAll("th:not([scope])")].map(said),
    tall: [...document.querySelectorAll("th, td")]
      .filter((one) => shown(one) && one.clientWidth < 24 && one.textContent.length > 6).map(said),
  };
}
"""


@dataclass
class Seen:
    """What a browser saw of a page.

    Attributes:
        looks: What it looked like, by width and scheme; the names are those of the script above.
        complaints: What the browser said of it.
        requests: What it asked for.
    """

    looks: dict[tuple[int, str], dict[str, Any]] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """What can be read on a desk."""
        return self.looks[WIDTHS[-1], SCHEMES[0]]["text"]


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Run a Chromium, which many pages can be shown in one after the other."""
    executable = shutil.which("chromium")
    require("a browser", "chromium", present=executable is not None)
    from playwright import sync_api

    flags = ["--no-sandbox"] if os.geteuid() == 0 else []  # as root it has none
    with sync_api.sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=executable, args=flags)
        try:
            yield browser
        finally:
            browser.close()


def look(browser: Any, file: Path, pictures: Path | None = None) -> Seen:
    """Show a page at every width and in both schemes.

    Args:
        browser: A running browser.
        file: The page.
        pictures: A folder for pictures of what was seen; None to take none.
    """
    seen = Seen()
    page = browser.new_page(viewport={"width": WIDTHS[0], "height": _HEIGHT})
    page.on("console", lambda message: seen.complaints.append(f"console: {message.text}"))
    page.on("pageerror", lambda fault: seen.complaints.append(f"error: {fault}"))
    page.on("request", lambda request: seen.requests.append(request.url))
    try:
        page.goto(file.as_uri())
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": _HEIGHT})
                seen.looks[width, scheme] = page.evaluate(_LOOK)
                if pictures:
                    page.screenshot(path=pictures / f"{file.stem}-{width}-{scheme}.png", full_page=True)
    finally:
        page.close()
    return seen


def faults(page: Seen, file: Path) -> list[str]:
    """Say what is wrong with a page, by what was seen of it."""
    complaints = [*page.complaints, *(f"asked for {url}" for url in page.requests if url != file.as_uri())]
    lists = ("faint", "outside", "overlapping", "covering", "wrapped", "clipped", "unscoped", "tall")
    for (width, scheme), view in page.looks.items():
        problems = [f"{name}: {text}" for name in lists for text in view[name]]
        problems += [f"{view['width']} wide"] if view["width"] > width else []
        problems += [f"text of {view['smallest']:.1f} px"] if view["smallest"] < 10 else []
        problems += [f"{view['nameless']} pictures without a name"] if view["nameless"] else []
        complaints += [f"{width} {scheme}: {text}" for text in problems]
    return complaints
