"""A whole HTML page, its style within it: it reads on screens of 800 pixels and more, light and dark, and prints."""

from __future__ import annotations

import html

from cs336_tui.export.texts import one_line

_CSS = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --soft: #57606a; --line: #d0d7de; --tint: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --paper: #0d1117; --soft: #9da7b1; --line: #3d444d; --tint: #161b22; }
  a { color: #79c0ff; }
}
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; max-width: 66em; margin: 2em auto;
  padding: 0 1.5em; color: var(--ink); background: var(--paper); overflow-wrap: anywhere; }
h1 { font-size: 1.6em; line-height: 1.25; margin: 0 0 .5em; }
h2 { font-size: 1.3em; margin: 2em 0 .6em; padding-bottom: .2em; border-bottom: 1px solid var(--line); }
h3, h4 { font-size: 1em; margin: 1.5em 0 .4em; }
ul { padding-left: 1.3em; }
li { margin: .2em 0; }
table { border-collapse: collapse; margin: 1em 0; display: block; max-width: 100%; overflow-x: auto;
  font-size: .875em; }
caption { caption-side: top; text-align: left; font-weight: bold; padding-bottom: .4em; }
thead th { border-top: 2px solid; border-bottom: 1px solid; vertical-align: bottom; }
tbody tr + tr td { border-top: 1px solid var(--line); }
tbody tr:last-child td { border-bottom: 2px solid; }
th, td { font-variant-numeric: tabular-nums; padding: .25em .7em; text-align: left; vertical-align: baseline; }
th { overflow-wrap: normal; }
td:first-child:not(.right, [style*="right"]) { min-width: 13em; }
th.right, td.right { text-align: right; }
td.data, td[style*="right"] { white-space: nowrap; }
th.group { text-align: center; }
table + ul, .notes { font-size: .875em; color: var(--soft); }
pre { background: var(--tint); padding: .8em; white-space: pre-wrap; }
code { font-size: .875em; }
figure { margin: 1.5em 0; break-inside: avoid; }
figure img { display: block; max-width: 100%; background: #fff; padding: .5em; border: 1px solid var(--line); }
figcaption { font-size: .875em; color: var(--soft); margin-top: .3em; }
@page { margin: 16mm 15mm; }
@media print {
  :root { color-scheme: light; --ink: #000; --paper: #fff; --soft: #333; --line: #bbb; --tint: #f4f4f4; }
  body { font-size: 10pt; max-width: none; margin: 0; padding: 0; }
  a { color: inherit; text-decoration: none; }
  h2, h3, h4, caption, p:has(+ table), p:has(+ ul), h4 + ul { break-after: avoid; }
  table { display: table; break-inside: auto; }
  thead { display: table-header-group; }
  tr, li { break-inside: avoid; }
  p { orphans: 3; widows: 3; }
  figure img { max-height: 215mm; border: 0; padding: 0; }
}
"""


def page(title: str, body: str) -> str:
    """A whole HTML page round a body of HTML; needs nothing but itself."""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>{html.escape(one_line(title))}</title>\n'
        f"<style>{_CSS}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )
