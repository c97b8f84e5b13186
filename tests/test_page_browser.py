"""index.html in a real browser: narrow, dark, printed, by keyboard, offline."""

import shutil
from pathlib import Path

import pytest
import report_samples as samples
from nccl_runbook.core.facts import to_json
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.logs.facts import LogLine
from nccl_runbook.messages.facts import Logs, RankLog, Timeout
from nccl_runbook.report.page import render_index
from nccl_runbook.report.tables import Table
from nccl_runbook.report.verdict import verdict_document
from nccl_runbook.triage.table import ranks_table

pytestmark = pytest.mark.browser
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = "--no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update --disable-sync".split()


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def file(tmp_path: Path) -> str:
    run, found = samples.duplicate_gpu()
    wide = Table("all pairs", [""] + [f"GPU {i}" for i in range(64)], [["GPU 0"] + ["355.6"] * 64])
    found[0].tables.append(to_json(wide))
    found[1].facts["word"] = "w" * 3000
    path = tmp_path / "index.html"
    path.write_text(render_index(verdict_document(run, found), found))
    return path.as_uri()


@pytest.mark.parametrize("width", [360, 1100])
def test_the_page_never_scrolls_sideways_and_its_tables_do(browser, file, width):
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(file)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("[...document.querySelectorAll('.scroll')].some(box => box.scrollWidth > box.clientWidth)")
    page.close()


def test_dark_and_light_differ_and_nothing_is_requested(browser, file):
    seen, colours = [], set()
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme)
        page.on("request", lambda request: seen.append(request.url))
        page.goto(file)
        colours.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.close()
    assert len(colours) == 2 and set(seen) == {file}


def test_the_first_tab_reaches_the_verdict_and_scroll_boxes_take_focus(browser, file):
    page = browser.new_page()
    page.goto(file)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#verdict"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.locator(".scroll").first.focus()
    assert page.evaluate("document.activeElement.className") == "scroll"
    page.close()


def test_it_prints(browser, file):
    page = browser.new_page()
    page.goto(file)
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible() and page.locator("h1").is_visible()
    weaker = page.locator("#causes ~ details").first
    assert weaker.locator("summary").is_visible() and not weaker.locator("p").first.is_visible(), "one line of a weaker cause"
    by_hand = page.locator("details", has_text="Repeat by hand").first
    assert not by_hand.evaluate("fold => fold.open") and by_hand.locator("pre").first.is_visible(), "nobody can unfold paper"
    assert not page.locator(".facts").first.is_visible(), "the records hold them; they would fill the paper"
    first = "getComputedStyle(document.querySelector('#steps ~ .scroll tbody tr')).breakBefore"
    assert page.evaluate(first) == "avoid", "the head of the table alone at the end of a sheet"
    page.close()


def test_paper_and_a_phone_cut_off_no_ordinary_table(browser, tmp_path: Path):
    """As 04 shows its arms: a browser shrinks a whole print, words included, to the widest table; a phone must show why without
    scrolling."""
    run, found = samples.duplicate_gpu()
    ways = [f"{op} GB/s" for op in ("all_reduce", "broadcast", "all_gather", "send_recv")]
    arms = Table("arms", ["test", "setting", "outcome", "used (NCCL's log)", *ways],
                 [["interface pinned", "NCCL_SOCKET_IFNAME=lo", "no proof", "NCCL logged nothing at NCCL_DEBUG=INFO", *["355.6"] * 4]])
    found[0].tables.append(to_json(arms))
    path = tmp_path / "index.html"
    path.write_text(render_index(verdict_document(run, found), found))
    page = browser.new_page(viewport={"width": 718, "height": 1000})  # A4 between usual margins
    page.goto(path.as_uri())
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= 718
    page.emulate_media(media="screen")
    page.set_viewport_size({"width": 360, "height": 800})
    assert page.evaluate("(box => box.scrollWidth - box.clientWidth)(document.querySelector('.steps').parentElement)") == 0
    page.close()


@pytest.mark.parametrize("gpus", [1, 6, 8, 16])
def test_the_words_of_a_grid_stay_within_their_boxes(browser, tmp_path: Path, gpus: int) -> None:
    """Two ranks on one GPU are two lines, which touched the edge of their box."""
    words = ("0 trainer, 1 engine", "10 trainer, 11 engine, 12 engine", "weight-update-group", "actor, rollout")
    plan = Table("plan", ["group", *(f"GPU {n}" for n in range(gpus))], [[word, *[word] * gpus] for word in words], drawn="grid")
    path = tmp_path / "grid.html"
    path.write_text(f"<body>{plan.picture}</body>")
    page = browser.new_page()
    page.goto(path.as_uri())
    distances = page.evaluate("""() => {
        const boxes = [...document.querySelectorAll('rect')].map(r => r.getBBox());
        const inside = (x, y) => boxes.find(b => b.x <= x && x <= b.x + b.width && b.y <= y && y <= b.y + b.height);
        return [...document.querySelectorAll('text')].map(t => t.getBBox()).map(t => [t, inside(t.x + t.width / 2, t.y + t.height / 2)])
            .filter(pair => pair[1]).map(([t, b]) => Math.min(
                t.x - b.x, t.y - b.y, b.x + b.width - t.x - t.width, b.y + b.height - t.y - t.height));
    }""")
    page.close()
    assert len(distances) >= 4 * gpus or (gpus > 14 and not distances)
    assert min(distances, default=1) > 0, "pixels between a word and the edge of its box"


# lines that a word from the page occupies: an option on two lines is cut at one of its dashes
CUT_OPTIONS = r"""() => {
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), cut = [];
    while (walk.nextNode()) for (const found of walk.currentNode.data.matchAll(/(?<![\w-])--?[a-z][\w-]*/g)) {
        const range = document.createRange();
        range.setStart(walk.currentNode, found.index);
        range.setEnd(walk.currentNode, found.index + found[0].length);
        if (new Set([...range.getClientRects()].map(r => Math.round(r.top))).size > 1) cut.push(found[0]);
    }
    return cut;
}"""


@pytest.mark.parametrize("media", ["screen", "print"])
def test_no_option_breaks_at_its_dashes(browser, tmp_path: Path, media: str) -> None:
    """In the banner, in titles, evidence, remedies, cells and the footer, at widths of a phone and of paper."""
    words = "more ranks (--nproc-per-node 8) than --num_gpus=4, with (-pg-x) or --dist-timeout-s as on rank-local-0; "
    lead = Finding(
        "r",
        Severity.BROKEN,
        words * 3,
        (Evidence(words * 4, f"x.sh --nproc-per-node {words}"),),
        (Remedy("you", words * 4),),
        "wrong-launch",
        "likely",
    )
    found = [samples.record("01-env", [lead, Finding("s", Severity.NOTE, f"also {words * 3}")])]
    found[0].tables.append(to_json(Table(words, [words, "b"], [[words, words * 3]], words)))
    path = tmp_path / "index.html"
    path.write_text(render_index(verdict_document(samples.run_info(planned=["01-env"]), found), found))
    page = browser.new_page()
    page.goto(path.as_uri())
    page.emulate_media(media=media)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    for width in range(380, 420, 3) if media == "screen" else range(680, 720, 3):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(CUT_OPTIONS) == [], f"at {width} px"
    page.close()


def test_what_heads_something_is_never_the_last_line_of_a_sheet(browser, file):
    """A heading, the name of a table or picture, a summary, and a sentence that a block to copy follows."""
    page = browser.new_page()
    page.goto(file)
    page.emulate_media(media="print")
    heads = page.evaluate("""() => [...document.querySelectorAll('h2, h3, h4, summary, caption, thead, .label, p')]
        .filter(e => e.localName != 'p' || e.classList.contains('label') || e.nextElementSibling?.localName == 'pre')
        .map(e => [e.localName + '.' + e.className, getComputedStyle(e).breakAfter])""")
    assert {name for name, _ in heads} >= {"h2.", "caption.", "p."} and {after for _, after in heads} == {"avoid"}
    whole = page.evaluate("[...document.querySelectorAll('svg, footer p, pre, tr')].map(e => getComputedStyle(e).breakInside)")
    assert set(whole) == {"avoid"}
    page.close()


def test_a_phone_shows_the_numbers_of_two_set_ups_and_the_first_error_without_scrolling(browser, tmp_path: Path) -> None:
    """Both lay at the right of a box that scrolls, so that a phone showed names alone."""
    head = ["set-up", "figure", "runs", "median", "least", "most"]
    sides = Table(
        "A against B",
        head,
        [["A: .", "s", "3", "1.006", "1", "1.1"], ["B: NCCL_P2P_DISABLE=1 and more", "s", "3", "1.315", "1", "1.4"]],
        drawn="spread",
    )
    work = Timeout(LogLine("a.log", 8, "", 0), "ALLREDUCE", 2201, None, 600_000, 600_004, "0")
    ranks = ranks_table(Logs([], "", {}, [RankLog(n, ["gpu-b1"], [], timeouts=[work], nccl="2.21.5", enqueued={"0": 9}, completed={"0": 8},
                                            first_error=LogLine("a.log", 9, "RuntimeError: shape", n)) for n in range(2)]))
    run, found = samples.healthy()
    found[0].tables[:] = [to_json(sides), to_json(ranks)]
    path = tmp_path / "index.html"
    path.write_text(render_index(verdict_document(run, found), found))
    page = browser.new_page(viewport={"width": 400, "height": 900})
    page.goto(path.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    for words in ("1.006", "1.315", "first error"):
        edge = page.evaluate("""words => { const e = [...document.querySelectorAll('svg text, thead th')].find(e => e.textContent == words);
            return [e.getBoundingClientRect().right, e.closest('.scroll').getBoundingClientRect().right]; }""", words)
        assert 0 < edge[0] <= edge[1], words
    page.close()
