"""How pages look: light and dark, on a phone, on a desk and on paper."""

from __future__ import annotations

# Each colour of a text has a contrast of 4.5:1 with the page at least, and each of a line 3:1. Paper is always light.
_COLOURS = """
:root { color-scheme: light dark; --page: #fcfcfb; --ink: #0b0b0b; --soft: #52514e; --rule: #e1e0d9; --one: #2a78d6;
  --two: #b85600; --three: #6b4fc4; --good: #1a6b2f; --bad: #b3261e; --doubt: #8a5a00; --shade: #0006; }
@media screen and (prefers-color-scheme: dark) {
  :root { --page: #1a1a19; --ink: #ffffff; --soft: #c3c2b7; --rule: #383835; --one: #4d97ee; --two: #f09a4a;
    --three: #ab95f5; --good: #6fcf85; --bad: #ff8d84; --doubt: #fab219; --shade: #000c; }
}
"""

_TEXT = """
* { box-sizing: border-box; }
body { background: var(--page); color: var(--ink); font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto;
  max-width: 90rem; overflow-wrap: anywhere; padding: 0 1rem; }
h1 { font-size: 1.4rem; line-height: 1.3; margin: 0 0 0.6rem; }
h2 { break-after: avoid; font-size: 1.1rem; margin: 2.2rem 0 0.6rem; }
.good { color: var(--good); } .bad { color: var(--bad); } .doubt { color: var(--doubt); }
.marks { margin: 0.4rem 0; }
.mark { border: 2px solid; border-radius: 4px; display: inline-block; font-size: 0.9rem; padding: 0 0.4rem; }
.verdict { border-left: 6px solid var(--soft); font-size: 1.1rem; margin: 0.8rem 0; padding: 0.3rem 0 0.3rem 0.8rem;
  white-space: pre-line; }
.verdict.good { border-color: var(--good); } .verdict.bad { border-color: var(--bad); }
.verdict.doubt { border-color: var(--doubt); }
.verdict { color: var(--ink); }
.notes { margin: 0.5rem 0; padding-left: 1.2rem; }
section p, .facts td, .notes li { white-space: pre-line; }
"""

_TABLES = """
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--rule); padding: 0.2rem 1rem 0.2rem 0; text-align: left; vertical-align: top; }
thead th, .facts th { color: var(--soft); font-weight: 600; }
tbody th { font-weight: 500; overflow-wrap: anywhere; }
td { overflow-wrap: anywhere; }
th.number { overflow-wrap: normal; white-space: nowrap; }
thead th.number { white-space: normal; }
thead th { overflow-wrap: normal; vertical-align: bottom; }
th.number, td.number { text-align: right; }
td.number { white-space: nowrap; }
tr { break-inside: avoid; }
.share { display: inline-block; height: 0.7em; flex: none; margin-right: 0.5em; width: 60px; }
.beside { align-items: baseline; display: flex; justify-content: space-between; }
.track { fill: var(--rule); } .part { fill: var(--one); }
"""

# A box that scrolls has a shadow at an edge with hidden content: a cover of the shadow moves with the content.
_WIDE = """
.wide { background:
    linear-gradient(to right, var(--page) 40%, transparent) 0 0 / 3rem 100% no-repeat local,
    linear-gradient(to left, var(--page) 40%, transparent) 100% 0 / 3rem 100% no-repeat local,
    linear-gradient(to right, var(--shade), transparent) 0 0 / 0.8rem 100% no-repeat scroll,
    linear-gradient(to left, var(--shade), transparent) 100% 0 / 0.8rem 100% no-repeat scroll;
  max-width: 100%; overflow-x: auto; scrollbar-color: var(--soft) transparent; scrollbar-width: thin; }
.wide:focus-visible { outline: 2px solid var(--one); }
"""

# Letters of 13 in a picture that is 720 wide are 10 pixels high where it is 560 pixels wide; it gets no narrower.
_PLOTS = """
figure { container-type: inline-size; margin: 1rem 0 1.4rem; }
figure svg { break-inside: avoid; display: block; height: auto; max-width: 64rem; min-width: 560px; width: 100%; }
.pictures { display: flex; flex-wrap: wrap; gap: 0.8rem; }
.picture { display: flex; flex-direction: column; font-size: 0.8rem; overflow-wrap: anywhere; width: 8rem; }
.picture img { height: auto; max-width: 96px; }
figcaption { font-weight: 600; }
figcaption span { font-weight: 400; margin-left: 1rem; white-space: nowrap; }
.key { border-left: 0.9em solid; margin-right: 0.4em; }
.key.one { border-color: var(--one); } .key.two { border-color: var(--two); } .key.three { border-color: var(--three); }
.more { color: var(--soft); display: none; margin: 0; }
@container (max-width: 559px) { .more { display: block; } }
.remark { color: var(--soft); margin: 0; }
svg text { fill: var(--soft); font: 13px system-ui, sans-serif; }
svg .said { fill: var(--ink); }
.over { paint-order: stroke; stroke: var(--page); stroke-width: 4px; stroke-linejoin: round; }
.grid { stroke: var(--rule); } .axis { stroke: var(--soft); } .area { fill: transparent; }
.level { stroke: var(--doubt); stroke-dasharray: 6 4; stroke-width: 1.5; }
.line { fill: none; stroke-linejoin: round; stroke-width: 2; }
.points { fill: none; opacity: 0.8; stroke-linecap: round; }
.line.one, .points.one, .whisker.one { stroke: var(--one); }
.line.two, .points.two, .whisker.two { stroke: var(--two); }
.line.three, .points.three, .whisker.three { stroke: var(--three); }
.fill.one { fill: var(--one); } .fill.two { fill: var(--two); } .fill.three { fill: var(--three); }
.dot { stroke: var(--page); stroke-width: 1; } .hollow { fill: var(--page); stroke-width: 2; }
.hollow.one { stroke: var(--one); } .hollow.two { stroke: var(--two); } .hollow.three { stroke: var(--three); }
.whisker { stroke-width: 1.5; } .error { stroke: var(--ink); stroke-width: 1.5; }
.middle { stroke: var(--ink); stroke-width: 1.5; }
"""

# A screen has room for names in one line; facts and plots that are alone in their rows would leave half of it empty.
_DESK = """
@media screen and (min-width: 48.01rem) {
  .facts { display: block; }
  .facts tbody { display: grid; grid-template-columns: fit-content(24rem) 1fr; }
  .facts tr { display: contents; }
}
@media screen and (min-width: 75rem) {
  main { column-gap: 1.5rem; display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); }
  main > * { grid-column: 1 / -1; }
  main > .half { grid-column: auto; }
  section:has(> figure ~ figure) { column-gap: 1.5rem; display: grid;
    grid-template-columns: repeat(2, minmax(0, 1fr)); }
  section:has(> figure ~ figure) > :not(figure) { grid-column: 1 / -1; }
}
"""

_NARROW = """
@media screen and (max-width: 48rem) {
  body { margin: 1rem auto; }
  table, thead, tbody, tr, th, td { display: block; }
  thead { display: none; }
  tr { border-bottom: 1px solid var(--rule); padding: 0.5rem 0; }
  tbody th, td { border: 0; min-width: 0; overflow-wrap: anywhere; padding: 0; }
  th.number, td.number { text-align: left; white-space: normal; }
  td:empty { display: none; }
  td[data-name]::before { color: var(--soft); content: attr(data-name) ": "; }
  .beside { display: inline; }
  figcaption span { display: block; margin-left: 0; }
}
"""

_PAPER = """
@media print {
  body { font-size: 11px; margin: 0; max-width: none; padding: 0; }
  .wide { background: none; overflow: visible; }
  figure { break-inside: avoid; container-type: normal; }
  figure svg { max-width: 100%; min-width: 0; }
  th, td { min-width: 0 !important; overflow-wrap: anywhere; padding-right: 0.5rem; }
}
"""

STYLE = f"{_COLOURS}{_TEXT}{_TABLES}{_WIDE}{_PLOTS}{_DESK}{_NARROW}{_PAPER}"
