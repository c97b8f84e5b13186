"""An executed notebook as one HTML file: code folded, outputs sanitised, no script, no request."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from nccl_runbook.core.records import write_text
from nccl_runbook.core.redact import Redactor, plain
from nccl_runbook.report.pictures import TEMPLATES

_TAGS = frozenset(
    "a abbr b blockquote br caption code dd details div dl dt em h1 h2 h3 h4 h5 h6 hr i kbd li meter "
    "ol p pre progress s "
    "small span strong sub summary sup table tbody td tfoot th thead tr ul".split()
)
_ATTRIBUTES = {
    "*": ["class", "style", "title"],
    "a": ["href"],
    "th": ["scope", "colspan", "rowspan"],
    "td": ["colspan", "rowspan"],
    "meter": ["value", "min", "max", "low", "high", "optimum"],
    "progress": ["value", "max"],
    "details": ["open"],
}
_STYLES = frozenset(
    "background background-color border border-left border-collapse color font-family font-size "
    "font-style font-weight "
    "margin margin-bottom margin-left margin-top max-width opacity overflow-wrap padding padding-left "
    "text-align vertical-align white-space width".split()
)
# values that can load nothing: words, numbers, colours; no quotes, no escapes, no function but a colour
_PLAIN_STYLE = re.compile(r"(?:[\w\s:;.,%#+-]|(?<=rgb)\(|(?<=rgba)\(|(?<=hsl)\(|(?<=hsla)\(|\))*\Z", re.I)
_HREF = re.compile(r"(#|https?://|[\w./-]+(#[\w-]*)?\Z)")


def _is_allowed(tag: str, name: str, value: str) -> bool:
    matches = {"style": _PLAIN_STYLE.match, "href": _HREF.match}.get(name)
    return name in (*_ATTRIBUTES["*"], *_ATTRIBUTES.get(tag, ())) and (
        matches is None or matches(value) is not None
    )


def _cleaner() -> Any:
    """A function text -> harmless HTML; bleach comes with nbconvert, whose own filter would drop
    captions, scope and style."""
    from bleach.css_sanitizer import CSSSanitizer
    from bleach.sanitizer import Cleaner

    cleaner = Cleaner(
        tags=_TAGS,
        attributes=_is_allowed,
        protocols={"http", "https"},
        strip=True,
        css_sanitizer=CSSSanitizer(allowed_css_properties=_STYLES),
    )
    return lambda text: cleaner.clean(_BODY_OF_CODE.sub("", str(text)))


# their content is code, not text: bleach would keep it as text once the tag is gone
_BODY_OF_CODE = re.compile(r"<(script|style)\b[^>]*>.*?(</\1\s*>|\Z)", re.I | re.S)

# links of a page lead to the next page, not to a file for Jupyter
_NEXT = re.compile(r'href="(\d\d-[\w-]+)\.ipynb')
_LINK = re.compile(r'<a href="([^"#:]{1,300})["#][^>]{0,300}>((?:(?!<a\b).){0,2000}?)</a>', re.S)


def without_dead_links(page: Path) -> None:
    """Replace links on a finished run's page that lead nowhere (to a step that did not run, into the
    checkout) by text."""
    text = page.read_text(encoding="utf-8")
    clean = _LINK.sub(lambda link: link[0] if os.path.exists(page.parent / link[1]) else link[2], text)
    if clean != text:
        write_text(page, clean)


class NotebookPages:
    """Renders executed notebooks, one thread at a time, as the exporter keeps state. Use one for all of them:
    to make it takes about 0.4 s, each page hundredths."""

    def __init__(self) -> None:
        from nbconvert import HTMLExporter
        from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
        from traitlets.config import Config

        self._exporter = HTMLExporter(
            config=Config(
                NbConvertBase={
                    "display_data_priority": ["text/html", "text/markdown", "image/png", "text/plain"]
                }
            ),
            template_name="runbook",
            sanitize_html=True,
            extra_template_basedirs=[str(TEMPLATES)],
            extra_template_paths=[str(TEMPLATES)],
            exclude_anchor_links=True,
        )
        self._exporter.register_filter("clean_html", _cleaner())
        # now, so that the first page does not wait for the template, the lexers and the cleaner
        self._page(
            new_notebook(
                cells=[
                    new_markdown_cell("a"),
                    new_code_cell("a", outputs=[new_output("display_data", {"text/html": "<p>a</p>"})]),
                ]
            ),
            "warm",
        )

    def render(self, notebook: Path) -> str:
        """HTML page of one notebook file. OSError if unreadable; nbformat's ValidationError if it is no
        notebook."""
        import nbformat

        return self._page(
            nbformat.from_dict(Redactor(os.environ).json(nbformat.read(notebook, as_version=4))),
            notebook.stem,
        )

    def _page(self, node: Any, name: str) -> str:
        page, _ = self._exporter.from_notebook_node(node, {"metadata": {"name": name}})
        return plain(_NEXT.sub(r'href="\1.html', page))

    def write(self, notebook: Path) -> Path:
        """Write NN-name.html beside NN-name.ipynb and return its path. Raises as render."""
        target = notebook.with_suffix(".html")
        write_text(target, self.render(notebook))
        return target
