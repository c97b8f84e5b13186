"""What to change, as HTML: remedies, and the section of a page that holds them."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from nccl_runbook.core.findings import Remedy
from nccl_runbook.report.markup import styled


def remedy_html(remedy: Remedy, text: Callable[[str], str] = str, style: str = "") -> str:
    """Who, what, and the lines to copy; ``text`` and ``style`` as in ``table_html``."""
    look = styled(style) or ' class="copy"'
    lines = f'<pre{look}>{escape(text(chr(10).join(remedy.lines)))}</pre>' if remedy.lines else ""
    return f'<p><strong>{escape(remedy.who.capitalize())}:</strong> {escape(text(remedy.text))}</p>{lines}'


def fixes_html(heading: str, fixes: Sequence[tuple[str, Sequence[Remedy]]], tone: str, text: Callable[[str], str] = str,
               most: int | None = None) -> str:
    """The section with what to change: (title, remedies) a card, at most so many; "" without any."""
    parts = ((escape(text(title)), "".join(remedy_html(r, text) for r in remedies[:most])) for title, remedies in fixes[:most])
    cards = [f'<article class="card {tone}"><h3>{title}</h3>{inner}</article>' for title, inner in parts]
    return f'<section aria-labelledby="fix"><h2 id="fix">{heading}</h2>{"".join(cards)}</section>' if cards else ""
