"""What every page to pass on is made of: frame and tables; escaped, without script and request.

Standard library and Python >= 3.9, because nccl-look.pyz writes a page where the job hangs.
"""
from __future__ import annotations

import itertools
import pkgutil
import re
import string
from html import escape
from typing import TYPE_CHECKING, Callable, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from nccl_runbook.core.redact import masked, plain
from nccl_runbook.core.share import replaced, shared

if TYPE_CHECKING:
    from nccl_runbook.core.findings import Remedy

# translucent, so that they read on light and dark; a word always says what the colour says
TONES = {"": "", "ok": "rgba(46,160,67,.18)", "note": "rgba(56,139,253,.18)", "warn": "rgba(210,153,34,.28)",
         "broken": "rgba(248,81,73,.28)", "unknown": "rgba(139,92,246,.22)", "muted": "rgba(128,128,128,.14)"}
_HEADING = re.compile(r'<h2 id="([\w-]+)">([^<]+)</h2>')


class Badge(NamedTuple):
    """``word`` and ``symbol`` for readers, ``tone`` a key of TONES and a class of the page's style."""

    word: str
    symbol: str
    tone: str


# how a status looks: a word, a symbol and a colour, so that no one of them carries the meaning alone
BADGES = {
    # a verdict, or a run at work; the tone is a class of style.css, too
    "healthy": Badge("healthy", "✓", "ok"),
    "degraded": Badge("degraded", "!", "warn"),
    "broken": Badge("broken", "✕", "broken"),
    "unknown": Badge("unknown", "?", "unknown"),
    "running": Badge("running", "…", "muted"),
    # a step
    "ok": Badge("ok", "✓", "ok"),
    "note": Badge("note", "i", "note"),
    "warn": Badge("warning", "!", "warn"),
    "skipped": Badge("skipped", "–", "muted"),
    # how sure a cause is
    "established": Badge("established", "●", "broken"),
    "likely": Badge("likely", "◕", "warn"),
    "possible": Badge("possible", "◑", "unknown"),
    "ruled-out": Badge("ruled out", "○", "muted"),
}


def badge(status: str) -> Badge:
    """The badge of a step's status, a verdict or a cause's status; a word of its own for anything else."""
    return BADGES.get(status) or Badge(status, "?", "muted")


def table_html(caption: str, columns: Iterable[str], rows: Iterable[Iterable[Tuple[str, str]]], text: Callable[[str], str] = str,
               style: str = "") -> str:
    """The one writer of tables. ``rows``: (text, background) a cell, the first one heads its row.

    ``text`` shortens what is shown; ``style`` goes into each cell, for a page without a style of its own.
    """
    head = "".join(f'<th scope="col"{styled(style)}>{escape(text(c))}</th>' for c in columns)
    lines = ("".join(_cell(i, text(shown), back, style) for i, (shown, back) in enumerate(row)) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    title = f"<caption{styled(style)}><strong>{escape(text(caption))}</strong></caption>"
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(index: int, shown: str, background: str, style: str) -> str:
    tag = 'th scope="row"' if index == 0 else "td"
    return f"<{tag}{styled(style, background and f'background:{background}')}>{escape(shown)}</{tag[:2]}>"


def styled(*styles: str) -> str:
    joined = ";".join(filter(None, styles))
    return f' style="{joined}"' if joined else ""


def scrolling(label: str, table: str) -> str:
    """A wide table in a box that scrolls by itself and takes the keyboard."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">{table}</div>'


def grid(rows: Sequence[Sequence[str]]) -> List[str]:
    """Rows as aligned lines of text; the last column is not padded."""
    widths = [max(map(len, column)) for column in itertools.zip_longest(*rows, fillvalue="")]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in rows]


def framed(main: str, status: str, sentence: str, sub: str, about: str) -> str:
    """The whole page: a banner with ``sentence``, then ``main``, which is HTML; its h2 with an id are linked on top.

    ``status``: a verdict, or "running"; ``sub``: the line below the sentence; ``about``: what the page is of, and when.
    """
    frame, style = ((pkgutil.get_data(__package__, f"templates/{name}") or b"").decode() for name in ("frame.html", "style.css"))
    links = "".join(f'<li><a href="#{at}">{name}</a></li>' for at, name in _HEADING.findall(main))
    look = BADGES[status]
    main, sentence, sub, about = map(shared, (main, sentence, sub, about))
    hidden = masked(main) or "nothing"
    return plain(string.Template(frame).substitute(
        main=main, style=style, links=links, tone=look.tone, symbol=look.symbol, sentence=escape(sentence), sub=escape(sub),
        about=escape(about), hidden=hidden, names=replaced(main)))


def remedy_html(remedy: Remedy, text: Callable[[str], str] = str, style: str = "") -> str:
    """Who, what, and the lines to copy; ``text`` and ``style`` as in ``table_html``."""
    look = styled(style) or ' class="copy"'
    lines = f'<pre{look}>{escape(text(chr(10).join(remedy.lines)))}</pre>' if remedy.lines else ""
    return f'<p><strong>{escape(remedy.who.capitalize())}:</strong> {escape(text(remedy.text))}</p>{lines}'


def fixes_html(heading: str, fixes: Sequence[Tuple[str, Sequence[Remedy]]], tone: str, text: Callable[[str], str] = str,
               most: Optional[int] = None) -> str:
    """The section with what to change: (title, remedies) a card, at most so many; "" without any."""
    parts = ((escape(text(title)), "".join(remedy_html(r, text) for r in remedies[:most])) for title, remedies in fixes[:most])
    cards = [f'<article class="card {tone}"><h3>{title}</h3>{inner}</article>' for title, inner in parts]
    return f'<section aria-labelledby="fix"><h2 id="fix">{heading}</h2>{"".join(cards)}</section>' if cards else ""
