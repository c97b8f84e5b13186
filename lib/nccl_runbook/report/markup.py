"""What every page to pass on is made of: frame, tables, remedies; escaped, without script and request.

Standard library and Python >= 3.9, because nccl-look.pyz writes a page where the job hangs.
"""
from __future__ import annotations

import dataclasses
import itertools
import pkgutil
import re
import string
from html import escape
from typing import Any, Callable, Iterable, List, Optional, Sequence

from nccl_runbook.report.badges import badge

# translucent, so that they read on light and dark; a word always says what the colour says
TONES = {"": "", "ok": "rgba(46,160,67,.18)", "note": "rgba(56,139,253,.18)", "warn": "rgba(210,153,34,.28)",
         "broken": "rgba(248,81,73,.28)", "unknown": "rgba(139,92,246,.22)", "muted": "rgba(128,128,128,.14)"}
_HEADING = re.compile(r'<h2 id="([\w-]+)">([^<]+)</h2>')


@dataclasses.dataclass(frozen=True)
class Cell:
    """One table cell: ``text`` and a ``tone`` of TONES; ``heat`` from 0 to 1 shades it instead (0 worst)."""

    text: str
    tone: str = ""
    heat: Optional[float] = None

    def __post_init__(self) -> None:
        if self.tone not in TONES:
            raise ValueError(f"unknown tone {self.tone!r}; one of {', '.join(TONES)}")

    @property
    def background(self) -> str:
        return TONES[self.tone] if self.heat is None else f"hsla({int(120 * max(0.0, min(1.0, self.heat)))},70%,45%,.3)"


def table_html(caption: str, columns: Iterable[str], rows: Iterable[Iterable[Cell]], text: Callable[[str], str] = str,
               style: str = "") -> str:
    """The one writer of tables. ``text`` shortens what is shown; ``style`` goes into each cell, for a page without a style of its own."""
    head = "".join(f'<th scope="col"{_styled(style)}>{escape(text(c))}</th>' for c in columns)
    body = "".join(f"<tr>{''.join(_cell(i, c, text, style) for i, c in enumerate(row))}</tr>" for row in rows)
    title = f"<caption{_styled(style)}><strong>{escape(text(caption))}</strong></caption>"
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(index: int, cell: Cell, text: Callable[[str], str], style: str) -> str:
    tag = 'th scope="row"' if index == 0 else "td"
    painted = f"background:{cell.background}" if cell.background else ""
    return f"<{tag}{_styled(style, painted)}>{escape(text(cell.text))}</{tag[:2]}>"


def _styled(*styles: str) -> str:
    joined = ";".join(filter(None, styles))
    return f' style="{joined}"' if joined else ""


def scrolling(label: str, table: str) -> str:
    """A wide table in a box that scrolls by itself and takes the keyboard."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">{table}</div>'


def grid(rows: Sequence[Sequence[str]]) -> List[str]:
    """Rows as aligned lines of text; the last column is not padded."""
    widths = [max(map(len, column)) for column in itertools.zip_longest(*rows, fillvalue="")]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in rows]


def remedy_html(remedy: Any, text: Callable[[str], str] = str, style: str = "") -> str:
    """Who, what, and the lines to copy, of a findings.Remedy; ``text`` and ``style`` as in ``table_html``."""
    look = _styled(style) or ' class="copy"'
    lines = f'<pre{look}>{escape(text(chr(10).join(remedy.lines)))}</pre>' if remedy.lines else ""
    return f'<p><strong>{escape(remedy.who.capitalize())}:</strong> {escape(text(remedy.text))}</p>{lines}'


def fixes_html(heading: str, fixes: Sequence[Any], tone: str, text: Callable[[str], str] = str, most: Optional[int] = None) -> str:
    """The section with what to change: (title, remedies) a card, at most so many; "" without any."""
    cards = "".join(f'<article class="card {tone}"><h3>{escape(text(title))}</h3>{"".join(remedy_html(r, text) for r in remedies[:most])}'
                    "</article>" for title, remedies in fixes[:most])
    return f'<section aria-labelledby="fix"><h2 id="fix">{heading}</h2>{cards}</section>' if cards else ""


def framed(main: str, status: str, sentence: str, sub: str, about: str) -> str:
    """The whole page: a banner with ``sentence``, then ``main``, which is HTML; its h2 with an id are linked on top.

    ``status``: a verdict or "running"; ``sub``: the line below the sentence; ``about``: what the page is of, and when.
    """
    frame, style = ((pkgutil.get_data(__package__, f"templates/{name}") or b"").decode() for name in ("frame.html", "style.css"))
    links = "".join(f'<li><a href="#{at}">{name}</a></li>' for at, name in _HEADING.findall(main))
    look = badge(status)
    return string.Template(frame).substitute(
        main=main, style=style, links=links, tone=look.tone, symbol=look.symbol, sentence=escape(sentence), sub=escape(sub),
        about=escape(about))
