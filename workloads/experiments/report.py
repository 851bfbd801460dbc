"""One HTML page of all experiments found in a directory: figures inside it as data, nothing loaded from elsewhere."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workloads.experiments.registry import NAMES
from workloads.experiments.show import as_text
from workloads.experiments.store import PICTURE, REPORT, SUMMARY, TABLE, Store, StoreError

TITLE = "PARTIES on the simulated node"
ABOUT = (
    "Figures of PARTIES (Chen, Delimitrou, Martínez, ASPLOS 2019) measured on a model of its server, beside the paper's own where "
    "its text gives one. What differs has a reason beside it."
)
STYLE = """
:root { color-scheme: light dark; --line: #8886; --soft: #8882; --bad: #b3261e; --good: #1b7f3b; }
@media (prefers-color-scheme: dark) { :root { --bad: #ff8a80; --good: #7bd88f; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 78rem; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.3rem; margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1rem; }
nav { columns: 3 18rem; } .wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .8rem 0; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .7rem; text-align: left; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
img { max-width: 100%; background: #fff; border-radius: 6px; padding: 6px; } .note { opacity: .75; font-size: .9em; }
.differs { color: var(--bad); } .holds { color: var(--good); } details { margin: .6rem 0; } figure { margin: 1rem 0; }
"""


def write(store: Store) -> Path:
    """Write the page into the directory and give its path. Raises StoreError where there is no experiment."""
    summaries = store.summaries()
    if not summaries:
        raise StoreError(
            f"{store.directory}: no experiment was run into it; parties experiment all --quick --out {store.directory}"
        )
    path = store.directory / REPORT
    if path.exists() and TITLE not in path.read_text(encoding="utf-8", errors="replace"):
        raise StoreError(f"{path} is not from here; choose another --out or remove it")
    text = page([(summaries[name], _picture(store, name)) for name in in_order(summaries)])
    store.write(path, lambda beside: beside.write_text(text, encoding="utf-8"))
    return path


def in_order(names: Mapping[str, object]) -> list[str]:
    """Names in the registry's order, then the rest."""
    return [name for name in NAMES if name in names] + sorted(set(names) - set(NAMES))


def page(parts: Sequence[tuple[Mapping[str, Any], bytes | None]]) -> str:
    """The whole page, from summaries and their figures."""
    quick = any(summary["quick"] for summary, _ in parts)
    head = "<p><strong>Some of it is of quick grids: good for a look, not for claims.</strong></p>" if quick else ""
    links = "".join(
        f'<li><a href="#{_text(s["experiment"])}">{_text(s["experiment"])}</a> {_text(s["title"])}</li>' for s, _ in parts
    )
    body = "".join(_section(summary, picture) for summary, picture in parts)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{TITLE}</title><style>{STYLE}</style></head><body><h1>{TITLE}</h1><p>{ABOUT}</p>{head}"
        f"{_differences(parts)}<nav><ul>{links}</ul></nav>{body}</body></html>\n"
    )


def _differences(parts: Sequence[tuple[Mapping[str, Any], bytes | None]]) -> str:
    lines = [line for summary, _ in parts for line in summary["comparison"]]
    held = sum(line["holds"] for line in lines)
    return f"<p>{held} of {len(lines)} of the paper's figures and statements hold here.</p>" if lines else ""


def _section(summary: Mapping[str, Any], picture: bytes | None) -> str:
    name = _text(summary["experiment"])
    parts = [f'<section id="{name}"><h2>{_text(summary["title"])} <span class="note">{_text(summary["figure"])}</span></h2>']
    parts.append(f"<p>{_text(summary['headline'])}</p>")
    if picture is not None:
        data = base64.b64encode(picture).decode()
        parts.append(f'<figure><img alt="{_text(summary["title"])}" src="data:image/png;base64,{data}"></figure>')
    if summary["comparison"]:
        parts.append(_comparison(summary["comparison"]))
    parts += [_table(table) for table in summary.get("tables", ())]
    versions = ", ".join(f"{what} {version}" for what, version in summary["versions"].items())
    grid = "quick" if summary["quick"] else "full"
    facts = (
        *(f"{grid} grid", f"{summary['points']} points", f"seed {summary['seed']}", f"node {summary['node']}", summary["date"]),
        *(versions, f"fingerprint {summary['fingerprint']}"),
    )
    files = f"All rows: {name}{TABLE}; all figures: {name}{SUMMARY}."
    parts.append(f'<p class="note">{_text(summary["method"])} {_text(", ".join(facts))}. {files}</p></section>')
    return "".join(parts)


def _comparison(lines: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for line in lines:
        mark = '<span class="holds">holds</span>' if line["holds"] else '<span class="differs">differs</span>'
        unit = f" {line['unit']}" if line["unit"] else ""
        rows.append(
            f'<tr><td>{_text(line["what"])}</td><td class="number">{_value(line["paper"])}{_text(unit)}</td>'
            f'<td class="number">{_value(line["ours"])}{_text(unit)}</td><td>{mark}</td><td>{_text(line["reason"])}</td></tr>'
        )
    head = "<tr><th></th><th>paper</th><th>ours</th><th></th><th>why</th></tr>"
    return f'<div class="wide"><table>{head}{"".join(rows)}</table></div>'


def _table(table: Mapping[str, Any]) -> str:
    """A table of the summary: ``title``, ``columns`` and ``rows``; long ones are folded."""
    head = "".join(f"<th>{_text(column)}</th>" for column in table["columns"])
    rows = "".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in table["rows"])
    inner = f'<div class="wide"><table><tr>{head}</tr>{rows}</table></div>'
    return f"<details><summary>{_text(table['title'])}</summary>{inner}</details>"


def _cell(value: object) -> str:
    kind = ' class="number"' if isinstance(value, int | float) else ""
    return f"<td{kind}>{_value(value)}</td>"


def _value(value: object) -> str:
    return _text(as_text(value))


def _text(value: object) -> str:
    return html.escape(str(value))


def _picture(store: Store, name: str) -> bytes | None:
    try:
        return store.path(name, PICTURE).read_bytes()
    except OSError:
        return None
