# SPDX-License-Identifier: Apache-2.0
"""Pages that are complete in themselves: no network, no fonts of their own, style and script inside.

All text goes through :func:`text`. What strangers wrote cannot become markup, and a Content-Security-Policy that names
the page's one script and one style by their digests keeps anything else from running.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files

from gpuiso import __version__
from gpuiso.cli.render.plain import plain
from gpuiso.cli.render.unexamined import lines_by_reason

__all__ = ["Field", "Heading", "not_examined", "page", "table", "tag", "text"]


@dataclass(frozen=True, slots=True)
class Heading:
    """A column's heading; ``wide`` for columns of running text."""

    label: str
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    """A cell: ``markup`` is HTML already, ``sort`` what rows are ordered by: numbers as numbers, the rest as text."""

    markup: str
    sort: str | float


def text(value: str) -> str:
    """Any text as HTML, for content and quoted attributes; control and direction characters are shown as escapes."""
    return html.escape(plain(value), quote=True)


def tag(kind: str, value: str) -> str:
    """A word on the colour of its ``kind`` (a class of page.css)."""
    return f'<span class="tag {text(kind)}">{text(value)}</span>'


def table(caption: str, headings: Sequence[Heading], rows: Iterable[Sequence[Field]], *, region: str) -> str:
    """A table that sorts by each column; the first one heads its row. ``region`` is an id that the page has once.

    The roles are those that the elements have anyway: on a narrow screen the style lays rows out as cards, and some
    browsers then forget them.
    """
    head = "".join(
        f'<th scope="col" role="columnheader" aria-sort="none"><button type="button">{text(h.label)}</button></th>'
        for h in headings
    )
    body = "".join(f'<tr role="row">{_row(headings, row)}</tr>\n' for row in rows)
    return (
        f'<div class="scroll" role="region" aria-labelledby="{region}" tabindex="0">\n'
        f'<table class="sortable" role="table"><caption id="{region}">{text(caption)}</caption>\n'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>\n'
        f'<tbody role="rowgroup">\n{body}</tbody></table></div>\n'
    )


def _row(headings: Sequence[Heading], row: Sequence[Field]) -> str:
    first, *others = row
    cells = [f'<th scope="row" role="rowheader" data-sort="{text(str(first.sort))}">{first.markup}</th>']
    for heading, field in zip(headings[1:], others, strict=True):
        wide = ' class="wide"' if heading.wide else ""
        cells.append(
            f'<td role="cell"{wide} data-label="{text(heading.label)}" data-sort="{text(str(field.sort))}">'
            f"{field.markup}</td>"
        )
    return "".join(cells)


def not_examined(entries: Iterable[tuple[str, str]]) -> str:
    """The section about what could not be known; nothing where all was."""
    lines = lines_by_reason(entries, shown=12)
    if not lines:
        return ""
    items = "".join(f"<li>{text(line)}</li>" for line in lines)
    return f'<section><h2>Not examined</h2><ul class="plain faint">{items}</ul></section>\n'


def page(title: str, body: str, *, made: str | None) -> str:
    """The whole document. ``made`` is when the facts were read, None where that is not known."""
    style, script = (_part(name) for name in ("page.css", "page.js"))
    policy = f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; base-uri 'none'"
    when = "" if made is None else f", {text(made)}"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{text(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"<main>\n<h1>{text(title)}</h1>\n{body}</main>\n"
        '<div id="said" class="unseen" role="status" aria-live="polite"></div>\n'
        f'<footer><p class="faint">gpuiso {text(__version__)}{when}</p></footer>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _part(name: str) -> str:
    return (files("gpuiso.cli.render") / name).read_text(encoding="utf-8")


def _digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
