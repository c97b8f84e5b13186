"""The frame of every page to pass on, how a status looks, and tables for a node; escaped,
without script and request.

Standard library and Python >= 3.9, because nccl-look.pyz writes a page where the job hangs.
"""

import itertools
import pkgutil
import re
import string
from html import escape
from typing import Iterable, List, NamedTuple, Sequence, Tuple

from nccl_runbook.core.redact import masked, plain
from nccl_runbook.core.share import replaced, shared

# translucent, readable on light and dark; a word always repeats the colour
TONES = {
    "": "",
    "ok": "rgba(46,160,67,.18)",
    "note": "rgba(56,139,253,.18)",
    "warn": "rgba(210,153,34,.28)",
    "broken": "rgba(248,81,73,.28)",
    "unknown": "rgba(139,92,246,.22)",
    "muted": "rgba(128,128,128,.14)",
}
# a picture, or a diff, in which a dash at the beginning is no option; a tag; an option
_UNBROKEN = re.compile(
    r'<svg\b(?s:.*?)</svg>|<pre class="copy diff">[^<]*|<[^<>]*>|(?<![\w-])(--?[^\W\d_][\w-]{0,40})'
)
_HEADING = re.compile(r'<h2 id="([\w-]+)">([^<]+)</h2>')


class Badge(NamedTuple):
    """``word`` and ``symbol`` for readers; ``tone``: a key of TONES and a class of the page's style."""

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
    """The badge of a step's status, a verdict or a cause's status; a badge with the word itself for any
    other."""
    return BADGES.get(status) or Badge(status, "?", "muted")


def table_html(caption: str, columns: Iterable[str], rows: Iterable[Iterable[Tuple[str, str]]]) -> str:
    """A table in a box that scrolls and takes keyboard focus. ``rows``: (text, background) a cell, the first
    heads its row."""
    head = "".join(f'<th scope="col">{escape(c)}</th>' for c in columns)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table><caption>'
        f"{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>"
        + "".join(f"<tr>{''.join(_cell(i, *cell) for i, cell in enumerate(row))}</tr>" for row in rows)
        + "</tbody></table></div>"
    )


def _cell(index: int, shown: str, background: str) -> str:
    tag = 'th scope="row"' if index == 0 else "td"
    style = f' style="background:{background}"' if background else ""
    return f"<{tag}{style}>{escape(shown)}</{tag[:2]}>"


def grid(rows: Sequence[Sequence[str]]) -> List[str]:
    """Rows as aligned lines of text; the last column is not padded."""
    widths = [max(map(len, column)) for column in itertools.zip_longest(*rows, fillvalue="")]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in rows]


def _unbroken(html: str) -> str:
    """The markup, in whose words no option (--out) breaks at its dashes; not in pictures and diffs."""
    return _UNBROKEN.sub(lambda m: f'<span class="option">{m[1]}</span>' if m[1] else m[0], html)


def framed(main: str, status: str, sentence: str, sub: str, about: str) -> str:
    """The whole page: a banner with ``sentence``, then ``main`` (HTML) whose h2 with ids are linked on top.
    ``status``: a verdict, or "running"; ``sub``: line below the sentence; ``about``: subject and time of the
    page."""
    frame, style = (
        (pkgutil.get_data(__package__, f"templates/{name}") or b"").decode()
        for name in ("frame.html", "style.css")
    )
    links = "".join(f'<li><a href="#{at}">{name}</a></li>' for at, name in _HEADING.findall(main))
    look = BADGES[status]
    main, sentence, sub, about = map(shared, (main, sentence, sub, about))
    return plain(
        string.Template(frame).substitute(
            main=_unbroken(main),
            style=style,
            links=links,
            tone=look.tone,
            symbol=look.symbol,
            sentence=escape(sentence),
            sub=escape(sub),
            headline=_unbroken(re.sub("`([^`\n]{1,200})`", r"<code>\1</code>", escape(sentence))),
            about=escape(about),
            hidden=masked(main) or "nothing",
            names=_unbroken(replaced(main)),
        )
    )
