"""index.html, notebook pages and what a step shows: escaped, bounded, readable by everyone."""

import dataclasses
import html
import json
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
import report_samples as samples
from hypothesis import given, settings, strategies as st
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from nccl_runbook.case import judge as case
from nccl_runbook.case.answer import of_run
from nccl_runbook.case.table import Answer
from nccl_runbook.core.facts import to_json
from nccl_runbook.core.findings import NOTHING_KNOWN, Evidence, Finding, Remedy, Severity
from nccl_runbook.core.records import Command, Judged, Record
from nccl_runbook.report.markup import framed
from nccl_runbook.report.notebook_html import NotebookPages, without_dead_links
from nccl_runbook.report.page import MAX_BYTES, render_index
from nccl_runbook.report.pictures import TEMPLATES, Lanes, macros
from nccl_runbook.report.tables import Cell, StepView, Table, _by_hand, not_looked_at_table, steps_table
from nccl_runbook.report.verdict import verdict_document
from nccl_runbook.report.verdict_document import RunInfo
from processes import ROOT, quickest_s

EVIL = (
    "</pre></script><script>alert(1)</script><img src=http://evil.test/x onerror=alert(1)>\"'>"
    '<svg onload=alert(1)>{{7*7}}<a href="javascript:alert(1)">'
)
VOID = {"meta", "br", "img", "hr", "link", "input", "col", "wbr"}
LOADING = {"script", "link", "iframe", "object", "embed", "svg", "base", "form", "video", "audio", "source"}


class Page(HTMLParser):
    """Tags with attributes, text by element, and whether every tag is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags, self.open, self.text, self.bad_nesting = [], [], "", []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID and (not self.open or self.open.pop() != tag):
            self.bad_nesting.append(tag)

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data

    def named(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def assert_harmless(html: str) -> Page:
    """Nothing runs, nothing is requested, and the markup is well nested."""
    page = Page(html)
    assert not {name for name, _ in page.tags} & LOADING
    for name, attrs in page.tags:
        assert not [a for a in attrs if a.startswith("on")], (name, attrs)
        assert not re.match(r"\s*(javascript|data):", attrs.get("href") or "", re.I)
        assert not attrs.get("src") or attrs["src"].startswith("data:image/png;base64,")
        assert "url(" not in (attrs.get("style") or "") and "@import" not in (attrs.get("style") or "")
        assert (attrs.get("http-equiv") or "Content-Security-Policy") == "Content-Security-Policy"
    assert not page.bad_nesting and not page.open
    return page


def render(sample: str) -> str:
    run, found = samples.SAMPLES[sample]()
    return render_index(verdict_document(run, found), found, {"03-fewer-gpus.html"})


def evil_record(step: str, text: str = EVIL) -> Record:
    """A record with ``text`` in every field that holds text."""
    evidence = (Evidence(text, text),)
    remedy = (Remedy("the administrator", text, (text, text)),)
    broken = Finding(text, Severity.BROKEN, text, evidence, remedy, cause=text, status="likely", against=evidence)
    trial = {"at": text, "env": {text: text}, "gpus": [text], "passed": text, "wall_s": text, "line": text}
    table = to_json(Table(text, [text, text], [[text, Cell(text, "ok")]], text))
    judged = Judged(python=text, torch=text, cuda=text, nccl=text, nccl_path=text, gpus=[text], host=text)
    return Record(
        step=step,
        status="broken",
        reason=text,
        started=text,
        wall_s=1.0,
        parameters={text: text},
        judged=judged,
        facts={text: [text]},
        findings=[broken],
        not_looked_at=[text],
        commands=[Command(label=text, line=text)],
        tried_by_hand=[trial],
        tables=[
            table,
            {text: text},
            {**table, "rows": [[{"text": text, "tone": text, "heat": None}]]},
            {**table, "rows": [[{"text": "x", "heat": text}]]},
        ],
    )


def evil_run(text: str = EVIL) -> tuple[RunInfo, list[Record]]:
    run = RunInfo(id=text, started=text, command=text, planned=["03-fewer-gpus", text], not_run={text: text})
    return run, [evil_record("03-fewer-gpus", text), evil_record(text, text)]


PARTS = ("verdict", "fix", "picture", "evidence", "causes", "ruled-out", "steps", "each", "tried", "not-looked-at", "repeat")


@pytest.mark.parametrize("sample", samples.SAMPLES)
def test_a_page_is_complete_and_asks_for_nothing(sample):
    run, found = samples.SAMPLES[sample]()
    html = render(sample)
    page = assert_harmless(html)
    assert html.startswith("<!DOCTYPE html>") and page.named("html") == [{"lang": "en"}]
    assert len(page.named("h1")) == len(page.named("main")) == len(page.named("nav")) == 1
    assert page.named("a")[0] == {"class": "skip", "href": "#verdict"}
    assert page.text.count(verdict_document(run, found).sentence) == 2, "the title and the h1"
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert [i for i in PARTS if i in ids] == [i for i in ids if not i.startswith("step-")] and {
        "verdict",
        "steps",
        "each",
        "repeat",
    } <= set(ids)
    assert {a["href"][1:] for a in page.named("a") if a["href"].startswith("#")} <= set(ids)
    tables = [name for name, _ in page.tags if name in ("table", "caption")]
    assert tables[0::2] == ["table"] * (len(tables) // 2) and tables[1::2] == ["caption"] * (len(tables) // 2)
    assert all(attrs.get("scope") in ("col", "row") for attrs in page.named("th"))
    boxes = [attrs for _, attrs in page.tags if attrs.get("class") == "scroll"]
    assert boxes and all(attrs["tabindex"] == "0" and attrs["role"] == "region" and attrs["aria-label"] for attrs in boxes)


def test_a_page_shows_what_one_needs_to_act():
    text = Page(render("duplicate-gpu")).text
    for wanted in (
        "torch.cuda.set_device(local_rank)",
        "In your launcher:",
        "torchrun --nproc-per-node 4 train.py",
        "established",
        "ruled out",
        "Against it",
        "the same pair in 5 of 5 runs",
        "Links between GPUs",
        "make report",
        "exit code 3",
    ):
        assert wanted in text, wanted
    assert "own torch" not in text
    assert "own torch" in Page(render("cpu-only")).text, "not that of the job"
    healthy = Page(render("healthy")).text
    assert "NCCL_P2P_LEVEL=PHB" in healthy and "/dev/kmsg: Permission denied" in healthy and "The fix" not in healthy


def test_what_leads_is_said_once_and_what_is_weaker_is_folded():
    run, found = samples.duplicate_gpu()
    page = Page(render("duplicate-gpu"))
    lead = samples.shared_gpu()
    assert page.text.count(lead.title) == 2, "the title and the h1; the table of steps only points to it"
    assert [page.text.count(text) for r in lead.remedy for text in (r.text, *r.lines)] == [1] * 5
    assert [page.text.count(e.text) for e in lead.evidence] == [1, 1]
    ids = [attrs.get("id", name) for name, attrs in page.tags if "id" in attrs or name == "details"]
    assert (ids[ids.index("causes") :][:2], ids[ids.index("ruled-out") :][:2]) == (["causes", "details"], ["ruled-out", "details"])
    assert not [attrs for attrs in page.named("details") if "open" in attrs]


def test_a_step_that_does_not_lead_is_one_line_and_no_box_shares_its_name():
    run, found = samples.duplicate_gpu()
    found[0].tables += [to_json(samples.topology())] * 2
    html = render_index(verdict_document(run, found), found)
    page, folded = Page(html), re.findall(r'<details class="fold behind"><summary>(\d\d-[\w-]+)', html)
    assert folded == [s.notebook for s in verdict_document(run, found).steps if s.notebook != "03-fewer-gpus"], "03 leads"
    names = [attrs["aria-label"] for _, attrs in page.tags if attrs.get("role") == "region"]
    assert len(names) == len(set(names)) > 3


def test_a_short_reason_of_another_step_is_not_taken_for_the_answer():
    lead = samples.record(
        "06-timeouts",
        [
            Finding(
                "hang-told",
                Severity.BROKEN,
                "rank 2 never came",
                (Evidence("e", "x"),),
                (Remedy("you", "look"),),
                "collective-on-some-ranks-only",
                "likely",
            )
        ],
    )
    other = dataclasses.replace(
        samples.record("01-gpu-visibility", [Finding("z", Severity.UNKNOWN, "rank 2")]), status="unknown", reason="rank 2"
    )
    records = [dataclasses.replace(r, tables=[], facts={}, commands=[], parameters={}) for r in (lead, other)]
    page = render_index(verdict_document(samples.run_info(planned=[r.step for r in records]), records), records)
    section, = re.findall(r'<section class="step" id="[^"]*" aria-label="01-gpu-visibility">.*?</section>', page, re.S)
    assert "rank 2" in section


def test_a_possible_cause_stands_once_and_nothing_unexplained_beside_it():
    unknown = Finding("worlds", Severity.BROKEN, "two ranks hang", (), (NOTHING_KNOWN,))
    weak = samples.shared_gpu(Severity.UNKNOWN, "possible")
    alone, both = (
        Page(render_index(verdict_document(samples.run_info(planned=[r.step for r in found]), found), found))
        for found in (
            [samples.record("03-fewer-gpus", [unknown])],
            [samples.record("03-fewer-gpus", [unknown]), samples.record("04-transports", [weak])],
        )
    )
    assert NOTHING_KNOWN.text in alone.text and NOTHING_KNOWN.text not in both.text
    only = Page(render_index(verdict_document(samples.run_info(planned=["04-transports"]), [samples.record("04-transports", [weak])]), []))
    assert [only.text.count(r.text) for r in weak.remedy] == [1] * len(weak.remedy)
    assert "causes" in {a.get("id") for _, a in only.tags} and "The fix" not in only.text
    assert ["open" in a for name, a in only.tags if a.get("class") == "fold cause"] == [True], "the only one is open"


def test_causes_that_are_only_possible_are_one_line_each():
    weak = [
        dataclasses.replace(samples.shared_gpu(Severity.NOTE, "possible"), cause=cause, title=cause)
        for cause in ("peer-crashed", "rank-busy-on-host")
    ]
    log = Finding("log-undecided", Severity.BROKEN, "ranks waited", (), (Remedy("you", "First check it."),))
    found = [samples.record("07-logs", [log, *weak])]
    page = Page(render_index(verdict_document(samples.run_info(planned=["07-logs"]), found), found, fits=("a third cause",)))
    assert ["open" in a for name, a in page.tags if a.get("class") == "fold cause"] == [False, False]
    assert "The fix" not in page.text and "First check it." not in page.text and page.text.count("a third cause") == 1


def test_of_many_tables_only_the_first_are_open_and_empty_columns_are_left_out():
    found = [
        samples.record(
            "06-timeouts",
            [samples.shared_gpu()],
            tables=[to_json(Table(f"t{n}", ["a", "empty", "b"], [[f"row {n}", "", "x"]])) for n in range(6)],
        )
    ]
    page = Page(render_index(verdict_document(samples.run_info(planned=["06-timeouts"]), found), found))
    folds = [name for name, _ in page.tags if name in ("details", "caption")]
    assert folds == ["caption"] * 3 + ["details", "caption"] * 3, "one as the picture, two below"
    assert [page.text.count(f"row {n}") for n in range(6)] == [1] * 6 and page.text.count("empty") == 0
    assert "steps" not in {attrs.get("id") for _, attrs in page.tags}, "one step needs no table of steps"


def test_what_is_broken_is_shown_at_a_glance_as_a_picture_with_its_table_folded_behind_it():
    plain = Table("plain", ["a"], [["1"]])
    broken = Table("broken", ["rank"], [[Cell("5", "broken")]], "a note", Lanes({"rank 5": [(1.0, "broken", EVIL), (0.0, "ok", "x")]}))
    found = [samples.record("07-logs", [samples.shared_gpu()], tables=[to_json(plain), to_json(broken)])]
    html = render_index(verdict_document(samples.run_info(planned=["07-logs"]), found), found)
    part = Page(html.partition('id="picture"')[2].partition("</section>")[0])
    assert [name for name, _ in part.tags if name in ("svg", "details", "caption")] == [
        "svg",
        "details",
        "caption",
    ] and "plain" not in part.text
    assert part.named("svg")[0]["role"] == "img" and "rank 5" in part.named("svg")[0]["aria-label"]
    assert {"script", "img"} & {name for name, _ in Page(html).tags} == set()


def test_a_test_that_comes_next_is_on_the_page():
    run, found = samples.duplicate_gpu()
    page = Page(render_index(verdict_document(run, found), found, test=case.Test("nccl-runbook run --step 04-transports", EVIL, (), 30)))
    assert "nccl-runbook run --step 04-transports" in page.text and EVIL in page.text and "30 s" in page.text


def test_hostile_text_in_every_field_stays_text():
    run, found = evil_run()
    document = verdict_document(run, found)
    page = assert_harmless(render_index(document, found, {f"{EVIL}.html", "03-fewer-gpus.html"}))
    assert page.text.count("<script>alert(1)</script>") >= 40 and "{{7*7}}" in page.text
    assert "A table " in page.text, "one that cannot be shown is not left out in silence"


def test_hostile_text_stays_text_in_a_cell_and_in_a_notebook_page():
    run, found = evil_run()
    document = verdict_document(run, found)
    views = [
        StepView(found[0], Path(EVIL)),
        Answer(of_run(document)),
        steps_table(document),
        not_looked_at_table(document),
    ]
    for view in views:
        page = assert_harmless(view._repr_html_())
        assert not {"style", "svg"} & {name for name, _ in page.tags}, "an untrusted Lab strips these"
        assert not [a for _, attrs in page.tags for a in attrs if a in ("class", "role", "id") or a.startswith("aria")]
        assert "alert(1)" in page.text and "alert(1)" in repr(view)


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=40))
def test_any_text_in_every_field_gives_a_sound_page(text):
    run, found = evil_run(text)
    assert_harmless(render_index(verdict_document(run, found), found))


def _huge(step: str, text: str, count: int) -> Record:
    big = evil_record(step, text)
    return dataclasses.replace(
        big,
        findings=big.findings * count,
        tables=big.tables * count,
        commands=big.commands * count,
        not_looked_at=big.not_looked_at * count,
        facts={"log": [text] * count},
    )


@pytest.mark.parametrize(
    "text, count, steps", [("x" * 2_000_000, 1, 4), ("<&\"'>" * 4000, 20, 4), ("a line of a log\n", 20_000, 4), ("<'" * 500, 300, 60)]
)
def test_a_page_stays_under_its_limit_and_says_what_was_cut(text, count, steps):
    found = [_huge(f"{i:02d}-step", text, count) for i in range(steps)]
    run = samples.run_info(planned=[r.step for r in found])
    page = render_index(verdict_document(run, found), found)
    assert len(page.encode()) <= MAX_BYTES
    assert "[cut: " in assert_harmless(page).text


def test_an_ordinary_page_is_not_cut():
    assert "[cut: " not in render("healthy")


@pytest.mark.parametrize("commands", [[], [Command(label="x", line="python3 lib/nccl_runbook/ranks/check.py")]])
def test_lines_to_repeat_say_where_they_run(commands):
    run, found = samples.duplicate_gpu()
    found = [dataclasses.replace(record, **{"commands": commands}) for record in found]
    assert ("runbook's folder" in Page(render_index(verdict_document(run, found), found)).text) == bool(commands)


def test_a_long_text_keeps_its_head_and_its_tail():
    run, found = samples.duplicate_gpu()
    found[1].facts = {"log": "HEAD" + "x" * 100_000 + "TAIL"}
    text = Page(render_index(verdict_document(run, found), found)).text
    assert "HEAD" in text and "TAIL" in text and re.search(r"\[cut: \d+ of 1000\d\d\b", text)


def _colours(css: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", css))


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def _contrast(one: str, other: str) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_colour_can_be_read(scheme):
    light, dark = (TEMPLATES / "style.css").read_text().split("@media print")[0].split("@media (prefers-color-scheme: dark)")
    colours = _colours(light if scheme == "light" else dark)
    tones = ("ok", "note", "warn", "broken", "unknown", "muted")
    pairs = [(tone, f"{tone}-bg") for tone in tones] + [
        (c, back) for c in ("text", "muted", "link", *tones) for back in ("bg", "card", "pre")
    ]
    pairs += [("muted", f"{tone}-bg") for tone in tones] + [("text", f"{tone}-bg") for tone in tones]
    assert {pair: round(ratio, 2) for pair in pairs if (ratio := _contrast(*(colours[name] for name in pair))) < 4.5} == {}


def test_a_step_in_a_terminal_is_text():
    record = samples.duplicate_gpu()[1][1]
    text = repr(StepView(record, Path("/somewhere/outputs/run/03-fewer-gpus.json")))
    assert text.splitlines()[0] == f"\u2715 03-fewer-gpus: broken - {record.reason}"
    assert text.splitlines()[-1] == "record: outputs/run/03-fewer-gpus.json"
    assert "        torch.cuda.set_device(local_rank)" in text.splitlines()


def test_a_long_value_of_several_lines_is_printed_once_and_each_line_still_runs():
    shapes = shlex.quote(json.dumps({"layer": [["weight", [64, 64]]] * 20}))
    said = [Command(label=f"sync, {x}", line=f"echo {x} --spec {shapes}{more}") for x, more in (("a", ""), ("b", " -x"))]
    assert ["(sync, a)" in line or "(sync, b)" in line for line in _by_hand(said)] == [False, True, True]
    first, *lines = (line.partition(": ")[2] for line in _by_hand(said))
    assert [len(line) < 40 for line in lines] == [True, True]
    for command, line in zip(said, lines):
        told = [
            subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True).stdout
            for text in (command.line, f"{first}\n{line}")
        ]
        assert told[0] == told[1]
    assert [line.partition(": ")[2] for line in _by_hand(said[:1])] == [said[0].line], "what one line alone carries stays in it"


@pytest.mark.parametrize(
    "line",
    [f"echo 'a ' {'-x q ' * 80}'b'", f'echo "it\'s" {"x" * 320} \'b c\'', f"echo '{'x ' * 160}'\"'\"'tail'", f"echo \\' {'x' * 320} b\\'"],
)
def test_only_what_a_shell_reads_as_one_value_is_set_once(line):
    lines = [said.partition(": ")[2] for said in _by_hand([Command(label=x, line=line) for x in "ab"])]
    told = [
        subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True).stdout
        for text in (line, "\n".join([*lines[:-2], lines[-1]]))
    ]
    assert told[0] == told[1]


def test_a_table_that_is_too_wide_says_so():
    run, found = samples.healthy()
    found[0].tables = [to_json(Table("wide", [f"c{i}" for i in range(100)], [["x"] * 100]))]
    page = Page(render_index(verdict_document(run, found), found))
    assert "[cut: 28 more" in page.text and "c71" in page.text and "c72" not in page.text


@pytest.fixture(scope="module")
def pages():
    return NotebookPages()


def _notebook(tmp_path: Path, *cells) -> Path:
    path = tmp_path / "03-fewer-gpus.ipynb"
    nbformat.write(new_notebook(cells=list(cells)), path)
    return path


def _shown(**data: str):
    return new_output("display_data", data={kind.replace("_", "/", 1): value for kind, value in data.items()})


def test_a_notebook_page_folds_code_and_keeps_our_tables(pages, tmp_path):
    step = StepView(samples.duplicate_gpu()[1][1])
    path = _notebook(
        tmp_path,
        new_markdown_cell("# Fewer GPUs\n\nNext: [transports](04-transports.ipynb)"),
        new_code_cell("x = 1 < 2", execution_count=1),
        new_code_cell(
            "", outputs=[_shown(text_html=samples.topology()._repr_html_(), text_plain="not this"), _shown(text_html=step._repr_html_())]
        ),
    )
    html = pages.write(path).read_text()
    page = assert_harmless(html)
    assert page.named("html") == [{"lang": "en"}] and len(page.named("h1")) == len(page.named("main")) == 1
    assert {"class": "skip", "href": "#content"} in page.named("a") and {"href": "index.html"} in page.named("a")
    assert {"href": "04-transports.html"} in page.named("a")
    assert page.named("caption") and page.named("th")[0]["scope"] == "col" and "background:hsla(120,70%,45%,.3)" in html
    assert "<details><summary>Code [1]</summary>" in html and "not this" not in page.text
    assert "torch.cuda.set_device(local_rank)" in page.text


def test_what_would_lead_nowhere_is_plain_text(pages, tmp_path):
    links = "[next](04-transports.ipynb), [code](../lib/fast_disk.py), [NCCL](https://docs.nvidia.com/x#y), [up](#top)"
    html = pages.write(_notebook(tmp_path, new_markdown_cell("# Fewer GPUs {#top}\n\n" + links)))
    (tmp_path / "index.html").touch()
    without_dead_links(html)
    assert {a["href"] for a in Page(html.read_text()).named("a")} == {"#content", "index.html", "https://docs.nvidia.com/x#y", "#top"}
    assert "next, code, " in Page(html.read_text()).text
    (tmp_path / "04-transports.html").touch()
    without_dead_links(pages.write(_notebook(tmp_path, new_markdown_cell(links))))
    assert {"href": "04-transports.html"} in Page(html.read_text()).named("a")


@pytest.mark.parametrize("path", sorted((ROOT / "outputs/example").glob("*.html")), ids=lambda p: p.stem)
def test_every_link_of_a_page_that_we_show_leads_somewhere(path):
    page = Page(path.read_text())
    ids = {"#" + attrs["id"] for _, attrs in page.tags if "id" in attrs}
    dead = [
        a["href"]
        for a in page.named("a")
        if not a["href"].startswith("http") and a["href"] not in ids and not (path.parent / a["href"]).exists()
    ]
    assert not dead


@pytest.mark.filterwarnings("ignore:Your element with mimetype")
def test_a_notebook_page_runs_nothing_that_a_notebook_brings(pages, tmp_path):
    styles = ["background:url(http://evil.test/x)", "background:\\75rl(http://evil.test)", "background:image-set('http://evil.test/x' 1x)"]
    styles.append("position:fixed;color:red")
    evil = EVIL + "<style>@import 'http://evil.test'</style>" + "".join(f'<p style="{style}">styled</p>' for style in styles)
    path = _notebook(
        tmp_path,
        new_markdown_cell(f"# T\n\n{evil} ![x](http://evil.test/y.png) [z](javascript:alert(1)) $x^2$"),
        new_code_cell(
            evil,
            outputs=[
                _shown(text_html=evil),
                _shown(text_markdown=evil),
                _shown(text_plain=evil),
                _shown(**{"application_javascript": "alert(1)"}),
                new_output("display_data", data={"image/svg+xml": "<svg onload=alert(1)></svg>"}),
                new_output("display_data", data={"image/png": 'x" onerror="alert(1)'}, metadata={"image/png": {"alt": EVIL}}),
                new_output("stream", name="stderr", text=evil),
                new_output("error", ename="E", evalue=evil, traceback=[evil, "\x1b[31mred"]),
            ],
        ),
    )
    html = pages.render(path)
    styles = {attrs["style"] for _, attrs in assert_harmless(html).tags if "style" in attrs}
    assert styles == {"color:red;"} and "mathjax" not in html.lower() and "require.js" not in html.lower()


def test_a_notebook_page_has_no_secret_of_the_surroundings(tmp_path, monkeypatch):
    monkeypatch.setenv("HUB_TOKEN", "correct-horse-battery")
    path = _notebook(tmp_path, new_code_cell("a", outputs=[new_output("stream", name="stdout", text="got correct-horse-battery")]))
    assert "correct-horse" not in NotebookPages().render(path)


def test_the_second_notebook_page_is_cheap(pages, tmp_path):
    path = _notebook(tmp_path, new_markdown_cell("# T"))
    pages.render(path)
    assert quickest_s(lambda: pages.render(path), 0.5) < 0.5


def test_report_loads_neither_jupyter_nor_jinja_until_a_page_is_made():
    code = "import sys, nccl_runbook.report.tables; print({'nbformat', 'nbconvert', 'jinja2', 'bleach', 'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "set()"


def test_a_trial_without_a_gpu_was_on_the_cpu():
    run, found = samples.healthy()
    found[0].tried_by_hand.append({"at": "t", "env": {}, "gpus": [None, None], "passed": True, "wall_s": 0.5, "line": "x"})
    page = render_index(verdict_document(run, found), found)
    assert "CPU, CPU" in page and "None, None" not in page


def test_options_of_a_line_to_copy_do_not_break_at_their_dashes():
    line = "nccl-runbook soak --for 3s -x '<b>--no-option</b>' a-b --out=c/d-e"
    shown = framed(f"<pre>{html.escape(line)}</pre>", "healthy", "", "", "").partition("<pre>")[2].partition("</pre>")[0]
    assert re.findall(r'<span class="option">([^<]*)</span>', shown) == ["--for", "-x", "--no-option", "--out"] and "<b>" not in shown
    assert html.unescape(re.sub(r"</?span[^>]*>", "", shown)) == line, "it is copied as it was"


def told(step: str, rule: str, cause: str, status: str, title: str, fix: str) -> Record:
    return samples.record(
        step, [Finding(rule, Severity.BROKEN, title, (Evidence(f"seen of {title}", "x"),), (Remedy("you", fix),), cause, status)]
    )


def test_the_fix_of_what_leads_stands_first_and_other_proven_causes_are_open():
    """Dumps lead with a likely cause; the banner named it, while the first fix was that of an established one of the log."""
    lead = told("06-timeouts", "hang-told", "collective-on-some-ranks-only", "likely", "rank 2 never came", "fix of rank 2")
    log = told("07-logs", "a", "gpu-or-link-fault", "established", "a GPU is faulty", "replace the GPU")
    more = [Finding(f"f{n}", Severity.BROKEN, f"cause {n}", (), (Remedy("you", f"remedy {n}"),), cause, "likely")
            for n, cause in enumerate(("out-of-memory", "shm-too-small", "network-unreachable"))]
    found = [lead, dataclasses.replace(log, findings=[*log.findings, *more])]
    document = verdict_document(samples.run_info(planned=["06-timeouts", "07-logs"]), found)
    html = render_index(document, found)
    part = Page(html.partition('id="fix"')[2].partition("</section>")[0])
    assert document.sentence.startswith("Broken: rank 2 never came")
    assert part.text.index("fix of rank 2") < part.text.index("replace the GPU")
    cards = [name for name, attrs in part.tags if name == "article" or "told" in attrs.get("class", "")]
    assert cards == ["article"] * 3 + ["details"] * 2
    assert Page(html).text.count("rank 2 never came") == 2 + 1, "the title, the banner, and its piece of evidence"


def test_one_step_that_only_repeats_the_banner_says_so_once():
    first = told("06-timeouts", "hang-told", "rank-busy-on-host", "likely", "rank 3 never came", "wait")
    other = samples.record("07-logs", [Finding("n", Severity.UNKNOWN, "the log shows no fault")])
    found = [dataclasses.replace(first, tables=[], facts={}, commands=[], parameters={}), other]
    html = render_index(verdict_document(samples.run_info(planned=["06-timeouts", "07-logs"]), found), found)
    assert "rank 3 never came" not in Page(html.partition('id="steps"')[2]).text


def test_a_table_without_rows_is_one_line_in_a_terminal_and_a_notebook_and_not_on_a_page():
    empty = Table("Nodes that deviate", ["node", "why"], [], "Two nodes answered.", drawn="grid")
    assert repr(empty) == "Nodes that deviate: none. Two nodes answered." and empty.picture == ""
    page = str(macros("cells.html.j2").table(empty, ""))
    assert "<th" not in page and "<img" not in page and "none" in page and "Two nodes answered." in page
    found = [samples.record("06-timeouts", [samples.shared_gpu()], tables=[to_json(empty)])]
    html = render_index(verdict_document(samples.run_info(planned=["06-timeouts"]), found), found)
    assert "Nodes that deviate" not in html


def section(page: str, name: str) -> str:
    """The words of a section of a page; empty if it has none of this name."""
    return Page(page.partition(f'id="{name}"')[2].partition("</section>")[0]).text


@pytest.mark.parametrize("is_asked_next", [False, True])
@pytest.mark.parametrize("lines", [("nccl-runbook hang DUMPS",), ("py-spy dump --pid PID",)])
@pytest.mark.parametrize("status", ["likely", "possible"])
def test_what_would_decide_a_cause_is_no_evidence_and_is_asked_once(lines: tuple[str, ...], status: str, is_asked_next: bool) -> None:
    why = "the first collective that differs"
    check = (Remedy("you", f"First check {why}.", lines),) if status == "possible" else ()
    proof = (Evidence("rank 2 waited", "a.log line 1"), Evidence(f"decides: {why} ({lines[0]})", "hang"))
    cause = Finding(
        "log-points-to-cause",
        Severity.UNKNOWN if check else Severity.BROKEN,
        "calls differ",
        proof,
        (*check, Remedy("you", "call it on every rank")),
        "collective-on-some-ranks-only",
        status,
    )
    found = [samples.record("triage", [cause])]
    test = case.Test(f"nccl-runbook look   # while it hangs\n{lines[0]}", "where each rank is") if is_asked_next else None
    page = render_index(verdict_document(samples.run_info(planned=["triage"]), found), found, test=test)
    assert "rank 2 waited" in section(page, "evidence") and why not in section(page, "evidence")
    assert Page(page).text.count(lines[0]) == 1, "in what comes next, or in the card"
    assert not re.search("decides: |Check: ", Page(page).text)


@pytest.mark.parametrize("severity", ["ok", "note", "unknown"])
@pytest.mark.parametrize("steps", [1, 2])
def test_a_page_without_a_fix_says_what_to_do_next(severity: str, steps: int) -> None:
    """An unknown log, a plan that fits, variables that are right: the page ended with what was seen."""
    names = [f"0{n}-step" for n in range(steps)]
    found = [samples.record(name, [] if severity == "ok" else [Finding("f", Severity(severity), "4 lines read")]) for name in names]
    document = verdict_document(samples.run_info(planned=names), found)
    words = section(render_index(document, found), "fix")
    assert "nccl-runbook diagnose --html" in words and ("needs a change" in words) == (document.verdict == "healthy")
