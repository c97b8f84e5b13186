"""Curves and the limits of links."""
from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings, strategies as st
from nccl_runbook.core.facts import Gap, to_json
from nccl_runbook.machine.facts import GpuLinks
from nccl_runbook.machine.link_limits import limit
from nccl_runbook.plan.allocation.areal_rules import newest
from nccl_runbook.plan.areal import parse
from nccl_runbook.plan.groups import Site, place
from nccl_runbook.plan.table import groups_table
from nccl_runbook.report.markup import TONES
from nccl_runbook.report.page import _table
from nccl_runbook.report.pictures import MOST_LANES, Bars, Curve, Lanes, size_words
from nccl_runbook.report.tables import Cell, Table
from nccl_runbook.worlds.table import bandwidth_table
from world_samples import NET, P2P, SHM, arms, hung

H200 = GpuLinks("NVIDIA H200", 18, 5, 16)
NUMBERS = st.one_of(st.floats(), st.integers(-10, 10**12))


@settings(max_examples=80)
@given(st.dictionaries(st.text(max_size=40), st.lists(st.tuples(NUMBERS, NUMBERS), max_size=60), max_size=20), st.text(max_size=20))
def test_any_figures_and_names_give_a_picture_that_is_xml_without_script(series, label):
    names = {re.sub(r"[^\t\n\r -\ud7ff\ue000-\ufffd]", "", k): v for k, v in series.items()}
    picture = Curve(re.sub(r"[^ -\ud7ff]", "", label), "GB/s", names).svg()
    if picture:
        tags = {e.tag.partition("}")[2] for e in ElementTree.fromstring(picture).iter()}
        assert tags <= {"svg", "path", "polyline", "circle", "text"} and len(picture) < 60_000


def elements(picture: str) -> list[str]:
    """Names of the elements of a picture, which is XML."""
    return [e.tag.partition("}")[2] for e in ElementTree.fromstring(picture).iter()]


XML_TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"), max_size=30)


@settings(max_examples=80)
@given(
    st.dictionaries(
        XML_TEXT, st.lists(st.tuples(NUMBERS, st.sampled_from(["ok", "warn", "broken", "x"]), XML_TEXT), max_size=50), max_size=40
    )
)
def test_any_marks_give_lanes_that_are_xml_without_script_and_bounded(lanes):
    if picture := Lanes(lanes).svg():
        assert set(elements(picture)) <= {"svg", "path", "rect", "circle", "text"} and len(picture) < 200_000
        assert elements(picture).count("text") <= 2 * MOST_LANES + 4


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.one_of(XML_TEXT, NUMBERS.map(str)), max_size=40), max_size=40),
    st.lists(XML_TEXT, max_size=40),
    st.sampled_from(["grid", "spread", "strip"]),
)
def test_any_table_is_drawn_as_xml_without_script_and_bounded(rows, columns, drawn):
    if picture := Table("all", columns, rows, drawn=drawn).picture:
        assert set(elements(picture)) <= {"svg", "g", "path", "rect", "circle", "text"} and len(picture) < 300_000


def test_a_map_of_gpus_has_a_box_for_each_cell_and_names_each_rank_of_a_shared_one():
    placed = place(parse("sglang:d4+fsdp:d4", newest()), Site(4, "local", 1, "xccl"))
    drawn = ElementTree.fromstring(groups_table(placed.groups).picture)
    words = [e.text for e in drawn.iter() if e.tag.endswith("text")]
    shared = [e for e in drawn.iter() if e.tag.endswith("rect") and e.get("fill") == TONES["broken"]]
    assert elements(groups_table(placed.groups).picture).count("rect") == len(placed.groups) * 4
    assert drawn.get("width") == "338", "as narrow as a phone"
    assert len(shared) == sum(len(g.shared) for g in placed.groups) > 0 and {"GPU 3", "0 trainer", "weight-update"} <= {*words}


def test_two_set_ups_are_drawn_on_one_scale():
    head = ["set-up", "figure", "runs", "median", "least", "most"]
    table = Table(
        "A against B",
        head,
        [["A: old", "s", "3", "2", "1", "4"], ["B: new", "s", "3", "1", "1", "1"], ["A: run 2", "", "hung", "", "", ""]],
        drawn="spread",
    )
    dots = [float(e.get("cx")) for e in ElementTree.fromstring(table.picture).iter() if e.tag.endswith("circle")]
    assert dots == [167.0, 85.5], "half and a quarter of the most, between 4 and 330"


@settings(max_examples=80)
@given(st.dictionaries(XML_TEXT, st.lists(st.tuples(XML_TEXT, NUMBERS), max_size=50), max_size=40), XML_TEXT)
def test_any_parts_give_bars_that_are_xml_without_script(bars, unit):
    if picture := Bars(unit, bars).svg():
        assert set(elements(picture)) <= {"svg", "rect", "text"}


def test_lanes_and_bars_show_each_name_and_mark_once_and_nothing_without_an_extent():
    marks = Lanes({"rank 5": [(20.0, "broken", "first error"), (0.0, "ok", "last progress")], "rank 0": [(60.0, "warn", "waited")]}).svg()
    assert (marks.count("<circle"), marks.count("<rect"), marks.count("l8 8m0 -8"), marks.count(">rank 5<"), marks.count(">rank 0<")) == (
        1,
        1,
        1,
        1,
        1,
    )
    assert "first error +20.000 s" in marks and Lanes({"rank 0": [(0.0, "ok", "x")]}).svg() == Lanes({}).svg() == ""
    assert "and 6 more" in Lanes({f"rank {n}": [(n + 1.0, "ok", "x")] for n in range(MOST_LANES + 6)}).svg()
    bars = Bars("s", {"disk": [("write", 1.5), ("read", 0.5)], "ipc": [("read", 0.25)]}).svg()
    widths = [float(w) for w in re.findall(r'<rect x="[\d.]+" y="\d+" width="([\d.]+)" height="16"', bars)]
    assert widths == [300.0, 100.0, 50.0] and ">2 s<" in bars and Bars("s", {"a": []}).svg() == ""


@pytest.mark.parametrize("picture", [Lanes({"rank 1": [(0.5, "ok", "x"), (2.0, "broken", "y")]}), Bars("s", {"disk": [("write", 1.5)]})])
def test_every_kind_of_picture_survives_the_record(picture):
    again = _table(json.loads(json.dumps(to_json(Table("t", ["a"], [["1"]], curve=picture)))))
    assert again.curve == picture and again.picture == picture.svg() != ""


def test_names_are_escaped():
    picture = Curve("bytes", "GB/s", {"<script>alert(1)</script>": [(1, 1), (2, 2)]}).svg()
    assert "<script" not in picture and "&lt;script&gt;" in picture


def test_a_table_with_a_curve_is_nothing_but_json():
    """Else pydantic warns in the middle of the page (seen with 2.14: a tuple in a record)."""
    made = to_json(Table("t", ["a"], [["1", Cell("2", "ok")]], curve=Curve("bytes", "GB/s", {"control": [(4, 0.1), (1024, 9.0)]})))
    assert json.loads(json.dumps(made)) == made


def test_a_table_with_a_curve_survives_the_record_and_is_drawn_in_page_and_notebook():
    table = bandwidth_table(arms(), [H200] * 2)
    again = _table(json.loads(json.dumps(to_json(table))))
    assert again.picture == table.picture and "<svg" in table.picture and "data:image/svg+xml;base64," in table._repr_html_()
    assert [row[0].text for row in table.rows] == ["control", "P2P off", "SHM off", "P2P and SHM off", "interface pinned"]
    assert "of NVLink's 450 GB/s" in repr(table) and "of PCIe's 63 GB/s" in repr(table)


@pytest.mark.parametrize(
    "curve", [{"series": 3}, {"x_label": "x", "y_label": "y", "series": {"a": [[1, "x"]]}}, {"series": {"a": [[1]]}}, "curve"]
)
def test_a_curve_of_a_foreign_record_that_cannot_be_drawn_says_so(curve):
    told = _table({**to_json(Table("t", ["a"], [["1"]])), "curve": curve})
    assert told.caption not in ("", "t") and not told.picture


def test_limits_are_lines_within_the_picture():
    table = bandwidth_table(arms(), [H200] * 2)
    lines = re.findall(r'<path d="M54 ([\d.]+)H510"[^>]* stroke-dasharray', table.picture)
    assert sorted(table.curve.limits.values()) == [pytest.approx(3.938 * 16), 450.0] and len(lines) == 2
    assert all(22 <= float(y) <= 234 for y in lines)
    assert bandwidth_table(arms(), Gap("absent", "no NVML")).curve.limits == {}


def test_a_control_that_hangs_leaves_a_table_of_what_passed():
    table = bandwidth_table(arms(control=hung(), shm=hung()), Gap("absent", "no NVML"))
    assert [row[0].text for row in table.rows] == ["P2P off", "P2P and SHM off", "interface pinned"] and not re.search(
        r"\d GB/s", table.note
    ), "no limit is named"


@pytest.mark.parametrize(
    ("gpus", "via", "told"),
    [
        ([H200, H200], P2P, ("NVLink", 450.0)),
        ([H200], SHM, ("PCIe", 3.938 * 16)),
        ([H200], NET, ("PCIe", 3.938 * 16)),
        ([H200], {**P2P, **SHM}, ("PCIe", 3.938 * 16)),
        ([GpuLinks("NVIDIA A100-SXM4-80GB", 12, 4, 16)], P2P, ("NVLink", 300.0)),
        ([GpuLinks("NVIDIA H20", 18, 5, 16)], P2P, ("NVLink", 450.0)),
        ([GpuLinks("NVIDIA L4", Gap("unsupported"), 4, 16)], P2P, ("PCIe", 1.969 * 16)),
        ([H200, GpuLinks("NVIDIA H200", 17, 5, 16)], P2P, ("NVLink", 425.0)),
        ([GpuLinks("NVIDIA Future", 18, 9, 16)], P2P, None),
        ([GpuLinks("x", 0, Gap("failed"), 16)], P2P, None),
        (Gap("absent"), P2P, None),
        ([H200], {}, None),
        ([H200], Gap("absent"), None),
        ([Gap("failed")], P2P, None),
    ],
)
def test_the_limit_is_that_of_the_slowest_link_on_the_way(gpus, via, told):
    assert limit(gpus, via) == (told and (told[0], pytest.approx(told[1])))


def test_sizes_in_words():
    assert [size_words(s) for s in (4, 65536, 1 << 24, 1 << 30)] == ["4 B", "64 KiB", "16 MiB", "1 GiB"]


@pytest.mark.parametrize("label", ["GPU", "rank"])
def test_a_map_of_eight_is_as_narrow_as_a_phone_and_nothing_in_it_is_cut(label):
    rows = [[f"{label} {a}", *(Cell("289.9, 107.9" if a != b else "", heat=0.9) for b in range(8))] for a in range(8)]
    drawn = ElementTree.fromstring(Table("Pairs", ["", *(f"{label} {b}" for b in range(8))], rows, drawn="grid").picture)
    words = [e.text for e in drawn.iter() if e.tag.endswith("text")]
    assert drawn.get("width") == "338" and {"289.9", "107.9", f"{label} 7"} == {w for w in words if w and w[-1] in "79"}
