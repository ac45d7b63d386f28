"""The report's style sheet: one column, light and dark, fit for printing."""

from __future__ import annotations

CSS = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1d2229; --soft: #57606a;
  --card: #f4f6f8; --line: #d8dee4; --accent: #0072b2; --warn: #fff4e0; --warn-line: #e69f00;
  --plot-blue: #0072b2; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171c; --ink: #e3e7ec; --soft: #a3acb6; --card: #1e232a; --line: #363d47;
    --accent: #56b4e9; --warn: #33291a; --plot-blue: #56b4e9; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main, header, footer { max-width: 52rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 2.5rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; margin: 2.75rem 0 .75rem; padding-bottom: .3rem;
  border-bottom: 1px solid var(--line); }
h3 { font-size: 1.02rem; margin: .6rem 0 .3rem; }
p, li { max-width: 46rem; }
.kicker { color: var(--soft); margin: 0 0 1.25rem; }
.headline { background: var(--card); border-left: 5px solid var(--accent); border-radius: 6px;
  padding: 1.1rem 1.3rem; }
.headline .numbers { display: flex; flex-wrap: wrap; gap: .4rem 2.4rem; margin: 0 0 .7rem; }
.headline .numbers div { display: flex; flex-direction: column-reverse; }
.headline dt { color: var(--soft); font-size: .87rem; }
.headline dd { margin: 0; font-size: 1.65rem; font-weight: 650; line-height: 1.25;
  font-variant-numeric: tabular-nums; }
.headline p { margin: .3rem 0; }
.notes { background: var(--warn); border-left: 5px solid var(--warn-line); border-radius: 6px;
  padding: .7rem 1.3rem; margin: 1.1rem 0; }
.notes h2 { border: 0; margin: 0; padding: 0; font-size: 1.02rem; }
.notes ul { margin: .3rem 0; padding-left: 1.2rem; }
.two { display: grid; grid-template-columns: 1fr 1fr; gap: 0 2rem; }
.two ul { padding-left: 1.1rem; margin: .3rem 0; }
@media (max-width: 40rem) { .two { grid-template-columns: 1fr; } }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .95rem; margin: .75rem 0; }
table.narrow { width: auto; } table.narrow th, table.narrow td { padding-left: 1.5rem; }
th, td { text-align: left; vertical-align: top; padding: .45rem .7rem .45rem 0;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; }
tbody th { white-space: nowrap; }
td { overflow-wrap: anywhere; }
td.number, th.number { text-align: right; padding-right: 1.6rem; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
tr.covered { font-weight: 650; }
caption { text-align: left; color: var(--soft); font-size: .9rem; padding-bottom: .3rem; }
figure { margin: 1rem 0; }
figure svg { display: block; width: 100%; max-width: 46rem; height: auto; color: var(--ink); }
figcaption, .small { color: var(--soft); font-size: .9rem; }
dl.words dt { font-weight: 650; margin-top: .7rem; }
dl.words dd { margin: 0; }
code { font: .9em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  overflow-wrap: anywhere; }
footer { color: var(--soft); font-size: .87rem; margin-top: 3rem; padding-bottom: 3rem; }
footer p { border-top: 1px solid var(--line); padding-top: .8rem; }
@media print {
  :root { --page: #fff; --ink: #000; --soft: #444; --card: #f4f6f8; --line: #bbb;
    --accent: #0072b2; --warn: #fff4e0; --plot-blue: #0072b2; }
  body { font-size: 11pt; } main, header, footer { max-width: none; padding: 0; }
  figure, tr, .headline, .notes { break-inside: avoid; } h2, h3 { break-after: avoid; } }
"""
