"""A night of a fleet: who deviates, what changed, who left no record, who fails often; and what is said of files that are none."""
from __future__ import annotations

import copy
import json
import os
import random
import re
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import machines
import pytest
from book_samples import run_cli
from hypothesis import given, strategies as st
from nccl_runbook.core.facts import to_json
from nccl_runbook.fleet import read
from nccl_runbook.fleet.facts import History, Line
from nccl_runbook.fleet.judge_rates import chance, flaky, rates
from nccl_runbook.hosts.on_node import node as on_node
from processes import slowness

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = json.loads((ROOT / "lib" / "nccl_runbook" / "schemas" / "fleet" / "fleet.json").read_text())
LINE_SCHEMA = json.loads((ROOT / "lib" / "nccl_runbook" / "schemas" / "fleet" / "line.json").read_text())
NIGHTS = ("2026-03-01", "2026-03-02")
Facts = dict[str, Any]
Change = Callable[[Facts], Any]


def record(node: str, night: str, change: Change = lambda facts: None, status: str = "ok", clock: str = "23:10:00") -> Facts:
    """The look of a node with eight GPUs at its network and them, unless ``change`` makes it another."""
    gpus = to_json(machines.machine(8))
    for view in ("nvml", "cuda"):
        for at, gpu in enumerate(gpus[view]["gpus"]):
            gpu["uuid"] = f"GPU-{node}-{at}"
    interfaces = {"eth0": {"mtu": "9000", "state": "up", "speed": "100000", "address": "10.0.0.7"}}
    facts = {"gpus": gpus, "network": {**on_node.network(), "host": node, "interfaces": interfaces, "boot_id": node}}
    change(facts)
    return {
        "schema": "nccl-runbook/record/2",
        "step": "01-gpu-visibility",
        "status": status,
        "reason": f"it is {status}",
        "started": f"{night}T{clock}+00:00",
        "ended": f"{night}T23:20:00Z",
        "judged": {"host": node},
        "facts": facts,
        "findings": [{"id": "made-up", "severity": status, "title": "it is", "remedy": [{"who": "you", "text": "Look."}]}],
    }


def driver(facts: Facts) -> None:
    facts["gpus"]["nvml"]["driver"] = "570.86.15"


def nccl(facts: Facts) -> None:
    facts["gpus"]["cuda"]["nccl"] = "2.27.3"


def mtu(facts: Facts) -> None:
    facts["network"]["interfaces"]["eth0"]["mtu"] = "1500"


def seven_gpus(facts: Facts) -> None:
    for view in ("nvml", "cuda"):
        del facts["gpus"][view]["gpus"][2]


PLANTED = {"n03": (driver, "GPU driver"), "n05": (nccl, "NCCL version"), "n07": (seven_gpus, "GPUs"), "n09": (mtu, "MTU of eth0")}


def write(folder: Path, *records: Facts, name: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name or records[0]['judged']['host']}.json"
    path.write_text(json.dumps(records[0] if len(records) == 1 else records))
    return path


def a_history(path: Path, nodes: int, nights: int, failed: dict[str, range]) -> Path:
    """Nights of February, in which nodes failed."""
    lines = [
        Line(f"2026-02-{at:02}", f"n{n:02}", "broken" if at in failed.get(f"n{n:02}", ()) else "ok")
        for at in range(1, nights + 1)
        for n in range(nodes)
    ]
    path.write_text(read.text_of(History({}), lines))
    return path


def a_night(folder: Path, night: str, count: int = 12, **changes: Any) -> Path:
    for at in range(count):
        write(folder, record(f"n{at:02}", night, *([changes[f"n{at:02}"]] if f"n{at:02}" in changes else [])))
    return folder


def answer_of(*arguments: object, **options: Any) -> Facts:
    ended = run_cli("fleet", *map(str, arguments), "--json", **options)
    assert ended.stdout, ended.stderr
    document = json.loads(ended.stdout)
    jsonschema.validate(document, SCHEMA)
    assert ended.returncode == document["exit_code"]
    return document


def ids(answer: Facts) -> set[str]:
    return {f["id"] for f in answer["findings"]}


@pytest.fixture(scope="module")
def two_nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """n05 differs in both nights; n03, n07 and n09 in the second, in which n11 leaves nothing."""
    folder = tmp_path_factory.mktemp("fleet")
    a_night(folder / "1", NIGHTS[0], n05=nccl)
    a_night(folder / "2", NIGHTS[1], **{node: change for node, (change, _) in PLANTED.items()})
    (folder / "2" / "n11.json").unlink()
    return folder


def test_two_nights_name_who_deviates_what_changed_and_who_left_nothing(two_nights: Path) -> None:
    history = two_nights / "history.jsonl"
    first = answer_of(two_nights / "1", "--history", history)
    assert [(line["node"], line["odd"]) for line in first["deviating"]] == [("n05", ["NCCL version"])] and "fleet-members-unknown" in ids(
        first
    )
    second = answer_of(two_nights / "2", "--history", history)
    assert {line["node"]: line["odd"] for line in second["deviating"]} == {
        "n11": [],
        **{node: [name] for node, (_, name) in PLANTED.items()},
    }
    assert (second["missing"], second["nodes"], second["nights"]) == ({"n11": NIGHTS[0]}, 12, [*NIGHTS])
    assert {(c["name"], *c["nodes"], c["since"]) for c in second["changes"]} == {
        (name, node, NIGHTS[0]) for node, (_, name) in PLANTED.items() if node != "n05"
    }
    assert (second["verdict"], second["failing"]) == ("degraded", [])
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    for line in lines:
        jsonschema.validate(line, LINE_SCHEMA)
    assert [sum(line["night"] == night and "node" in line for line in lines) for night in NIGHTS] == [12, 12]
    again = history.read_text()
    assert answer_of(two_nights / "2", "--history", history) == second and history.read_text() == again


def test_both_nights_in_one_folder_give_the_same(two_nights: Path, tmp_path: Path) -> None:
    seen = answer_of(two_nights, "--history", tmp_path / "h.jsonl")
    assert seen["missing"] == {"n11": NIGHTS[0]} and {c["name"] for c in seen["changes"]} == {"GPU driver", "GPUs", "MTU of eth0"}


def test_nodes_that_are_alike_accuse_nobody(tmp_path: Path) -> None:
    names = tmp_path / "nodes.txt"
    names.write_text("n00 n01,n02  # the rack\nn03\n")
    seen = answer_of(a_night(tmp_path / "d", NIGHTS[0], 4), "--nodes", names)
    assert (seen["verdict"], seen["deviating"], seen["missing"], seen["changes"]) == ("healthy", [], {}, []) and (
        tmp_path / "d" / "fleet.jsonl"
    ).is_file()
    names.write_text("n00 n01 n02 n03 n77")
    seen = answer_of(tmp_path / "d", "--nodes", names)
    assert (seen["verdict"], seen["missing"]) == ("unknown", {"n77": ""})


def test_a_gpu_that_is_missing_is_one_difference_and_the_others_of_its_list_do_not_pair(two_nights: Path, tmp_path: Path) -> None:
    seen = answer_of(two_nights / "2", "--history", tmp_path / "h.jsonl")
    of_n07 = [d for d in seen["differences"] if "n07" in d["odd"] and d["severity"] == "warn"]
    assert [sorted(d["values"]) for d in of_n07] == [["7", "8"]]


def test_a_folder_per_node_is_read_without_what_a_run_writes_beside(tmp_path: Path) -> None:
    """Folders of `nccl-runbook run`."""
    for node in ("a", "b"):
        run_cli("run", "--step", "01-gpu-visibility", "--budget", "60s", "--out", str(tmp_path / node), "--json", cwd=ROOT)
    assert len([*tmp_path.rglob("world.json")]) > 1
    seen = answer_of(tmp_path)
    assert (seen["unread"], "fleet-node-repeated" in ids(seen)) == ({}, True)


FULL = "n0.example.org n1.example.org n2.example.org"


@pytest.mark.parametrize(
    "records, named, missing",
    [
        (FULL, "n0 n1 n2", {}),
        ("n0 n1 n2", FULL, {}),
        ("n0 n1.example.org n2", "n0.example.org n1 n2", {}),
        ("n0 n1", FULL, {"n2.example.org": ""}),
        (FULL, "n0 n1 n2 n3", {"n3": ""}),
        # one short name, two full ones: it may be either
        ("n0 n1 n2", f"{FULL} n0.other.org", {"n0.example.org": "", "n0.other.org": ""}),
        (f"{FULL} n0.other.org", "n0 n1 n2", {"n0": ""}),
        ("n0.example.org n1.example.org n2.example.org", "n0.other.org", {"n0.other.org": ""}),
        ("10.0.0.1 10.0.0.2", "10.0.0.1 10.0.0.2 10.0.0.3", {"10.0.0.3": ""}),
        ("n0 n1", "n0 n1 n10.example.org", {"n10.example.org": ""}),
    ],
)
def test_a_short_name_is_the_node_of_the_only_full_name_that_begins_with_it(
    records: str, named: str, missing: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "nodes.txt").write_text(named)
    for node in records.split():
        write(tmp_path / "d", record(node, NIGHTS[0]))
    for share in ((), ("--share",)):
        seen = answer_of(tmp_path / "d", "--nodes", tmp_path / "nodes.txt", *share)
        assert (len(seen["missing"]), seen["verdict"]) == (len(missing), "unknown" if missing else "healthy") and (
            share or seen["missing"] == missing
        )


def test_a_node_that_shows_its_full_name_from_one_night_on_is_not_missing(tmp_path: Path) -> None:
    for night, names in (("1", "n0 n1 n2"), ("2", "n0 n1.example.org n2"), ("3", "n0 n1.example.org")):
        for node in names.split():
            write(tmp_path / night, record(node, f"2026-03-0{night}"))
        missing = answer_of(tmp_path / night, "--history", tmp_path / "h.jsonl")["missing"]
        assert missing == ({"n2": "2026-03-02"} if night == "3" else {})


# --- links and folders that hide records

def link_to_a_folder(night: Path, real: Path) -> None:
    (night / "n6").symlink_to(real, target_is_directory=True)


def links_to_links(night: Path, real: Path) -> None:
    (night.parent / "other").symlink_to(real, target_is_directory=True)
    (night / "rack").mkdir()
    (night / "rack" / "n6").symlink_to("../../other")


def link_to_a_record(night: Path, real: Path) -> None:
    (night / "n6.json").symlink_to(real / "n6.json")


def two_links_and_a_circle(night: Path, real: Path) -> None:
    (night / "n6").symlink_to(real)
    (night / "latest").symlink_to(real)
    (night / "n6" / "up").symlink_to(night)


@pytest.mark.parametrize("hide", [link_to_a_folder, links_to_links, link_to_a_record, two_links_and_a_circle])
def test_records_behind_links_count_once(hide: Callable[[Path, Path], None], tmp_path: Path) -> None:
    real = write(tmp_path / "real", record("n6", NIGHTS[0], status="broken")).parent
    night = a_night(tmp_path / "night", NIGHTS[0], 5)
    hide(night, real)
    seen = answer_of(night)
    assert (seen["nodes"], seen["failing"], seen["unread"]) == (6, ["n6"], {}) and "fleet-node-repeated" not in ids(seen)


def unreadable(path: Path) -> None:
    write(path, record("n6", NIGHTS[0]))
    path.chmod(0)


def unreadable_below(path: Path) -> None:
    path.mkdir()
    unreadable(path / "records")


def link_to_nothing(path: Path) -> None:
    path.symlink_to(path.parent / "gone")


def link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def record_that_is_gone(path: Path) -> None:
    path.with_suffix(".json").symlink_to("gone.json")


def link_into_an_unreadable_folder(path: Path) -> None:
    unreadable(path.parent.parent / "closed")
    path.symlink_to(path.parent.parent / "closed" / "n6.json")


@pytest.mark.parametrize(
    "hide", [unreadable, unreadable_below, link_to_nothing, link_to_itself, record_that_is_gone, link_into_an_unreadable_folder]
)
def test_a_node_whose_records_cannot_be_reached_is_not_healthy(hide: Callable[[Path], None], tmp_path: Path) -> None:
    night = a_night(tmp_path / "night", NIGHTS[0], 5)
    hide(night / "n6")
    # root without the capabilities that let it read everything
    become = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search") * (not os.geteuid())
    ended = subprocess.run(
        [*become, sys.executable, "-m", "nccl_runbook", "fleet", night, "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "lib")},
        timeout=100,
    )
    for folder in (night / "n6", tmp_path / "closed"):
        if folder.is_dir():
            folder.chmod(0o700)
    seen = json.loads(ended.stdout)
    assert (seen["nodes"], seen["verdict"], len(seen["unread"]), ended.returncode) == (5, "unknown", 1, 4) and "fleet-file-unread" in ids(
        seen
    )


# --- machines of one name

@pytest.mark.parametrize("name", ["localhost", "n1"])
@pytest.mark.parametrize("layout", ["{machine}/01-gpu-visibility", "rack-{machine}/node/01-gpu-visibility", "{machine}"])
@pytest.mark.parametrize("last", ["broken", "ok"])
def test_no_machine_of_one_name_hides_another(name: str, layout: str, last: str, tmp_path: Path) -> None:
    for machine in "abcde":
        path = tmp_path / f"{layout.format(machine=machine)}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        status = "broken" if machine == ("e" if last == "broken" else "c") else "ok"
        path.write_text(
            json.dumps({**record(machine, NIGHTS[0], mtu if machine == "d" else lambda facts: None, status), "judged": {"host": name}})
        )
    seen = answer_of(tmp_path)
    assert (seen["nodes"], seen["verdict"], len(seen["failing"]), len(seen["deviating"])) == (5, "broken", 1, 2)
    assert "fleet-node-repeated" not in ids(seen)


def test_records_without_gpus_belong_to_the_machine_of_their_folder(tmp_path: Path) -> None:
    """Steps of two machines of one name; the failure of the second is not that of the first."""
    for machine in "abc":
        (tmp_path / machine).mkdir()
        for step in ("01-gpu-visibility", "03-fewer-gpus"):
            made = {
                **record(machine, NIGHTS[0], status="broken" if (machine, step) == ("b", "03-fewer-gpus") else "ok"),
                "judged": {"host": "n1"},
                "step": step,
            }
            if step == "03-fewer-gpus":
                made["facts"] = {"ladder": {"worlds": "2"}}
            write(tmp_path / machine, made, name=step)
    seen = answer_of(tmp_path)
    line, = (line for line in seen["deviating"] if line["status"] == "broken")
    assert seen["nodes"] == 3 and line["node"] == "n1 (01-gpu-visibility.json)"


@pytest.mark.parametrize("name", ["n1; touch /tmp/made", "$(id)", "-x", "n1 n2", "n1,n2", "n1\nn2", "knoten-\u00e4"])
def test_what_is_no_host_name_is_in_no_command(name: str, tmp_path: Path) -> None:
    for at in range(3):
        write(tmp_path, record(f"m{at}", NIGHTS[0]))
    write(tmp_path, {**record("m7", NIGHTS[0], status="broken"), "judged": {"host": name}}, name="bad name; id")
    for command in (("fleet", tmp_path), ("hosts", "--record", *tmp_path.glob("*.json"))):
        seen = json.loads(run_cli(*map(str, command), "--json").stdout)
        assert (len(seen["failing"]), seen["exclude"]) == (1, "")
        assert not [line for f in seen["findings"] for line in f["fix"] if "--exclude" in line]
        record_line, = (line for f in seen["findings"] for line in f["fix"] if "run --record" in line)
        assert shlex.split(record_line)[-2:] == ["--record", str(tmp_path / "bad name; id.json")]


# --- what is no record

def torn(path: Path) -> None:
    path.write_text(path.read_text()[:2000])


def foreign(path: Path) -> None:
    path.write_text('{"name": "package", "version": "1"}')


def later(path: Path) -> None:
    path.write_text(path.read_text().replace("record/2", "record/7"))


def without_facts(path: Path) -> None:
    path.write_text("[]")


@pytest.mark.parametrize("spoil", [torn, foreign, later, without_facts])
def test_a_file_that_is_no_record_is_named_once_and_hides_nobody(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    a_night(tmp_path, NIGHTS[0], 5, n03=driver)
    spoil(tmp_path / "n02.json")
    seen = answer_of(tmp_path)
    assert [*seen["unread"]] == [str(tmp_path / "n02.json")] and [line["node"] for line in seen["deviating"]] == ["n03"]
    assert seen["exit_code"] == 3 and sum(f["id"] == "fleet-file-unread" for f in seen["findings"]) == 1
    (tmp_path / "n03.json").unlink()
    assert answer_of(tmp_path, "--history", tmp_path / "other.jsonl")["exit_code"] == 4
    if spoil is later:
        assert "record/7" not in seen["unread"][str(tmp_path / "n02.json")] and "schema 7" in seen["unread"][str(tmp_path / "n02.json")]


def test_only_files_that_are_none_are_unknown_and_an_empty_folder_is_wrong_usage(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    ended = run_cli("fleet", empty)
    assert (ended.returncode, len(ended.stderr.splitlines()), [*empty.iterdir()]) == (2, 1, [])
    (empty / "x.json").write_text("{")
    assert answer_of(empty, "--history", tmp_path / "h.jsonl")["exit_code"] == 4


@pytest.mark.parametrize(
    "arguments",
    [
        ("none",),
        ("file.txt",),
        (".", "--nodes", "none"),
        (".", "--nodes", "no-names.txt"),
        (".", "--nodes", "large.txt"),
        (".", "--history", "larger.txt"),
        (".", "--history", "file.txt"),
        (".", "--history", "none/x"),
    ],
)
def test_wrong_usage_is_one_sentence_and_changes_no_file(arguments: tuple[str, ...], tmp_path: Path) -> None:
    write(tmp_path, record("a", NIGHTS[0]))
    (tmp_path / "file.txt").write_text("not mine\n")
    (tmp_path / "no-names.txt").write_text("# nobody\n")
    (tmp_path / "large.txt").write_text("n01 " * 500_000)
    (tmp_path / "larger.txt").touch()
    os.truncate(tmp_path / "larger.txt", 65 << 20)
    before = {p.name: p.read_text() for p in tmp_path.iterdir()}
    ended = run_cli("fleet", *arguments, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT / "lib")})
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1), ended.stderr
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == before


def test_two_records_of_one_node_in_one_night_count_both(tmp_path: Path) -> None:
    """The facts are those of the later one, whichever is read first; a failure is not undone."""
    a_night(tmp_path, NIGHTS[0], 4)
    for name in ("a-first", "z-last"):
        write(tmp_path, record("n01", NIGHTS[0], driver, "broken", "21:00:00"), name=name)
        seen = answer_of(tmp_path, "--history", tmp_path / f"{name}.jsonl")
        (tmp_path / f"{name}.json").unlink()
        assert {"fleet-node-repeated", "fleet-node-failed-once"} <= ids(seen) and seen["differences"] == []
        assert [(line["node"], line["status"]) for line in seen["deviating"]] == [("n01", "broken")] and seen["failing"] == ["n01"]


def test_records_of_two_machines_of_one_name_are_two_nodes(tmp_path: Path) -> None:
    a_night(tmp_path, NIGHTS[0], 3)
    write(tmp_path, {**record("x", NIGHTS[0], status="broken"), "judged": {"host": "n01"}}, name="other")
    seen = answer_of(tmp_path)
    assert seen["nodes"] == 4 and "fleet-node-repeated" not in ids(seen)
    assert len([line for line in seen["deviating"] if line["status"] == "broken"]) == 1


def test_a_fault_of_all_nodes_puts_none_into_exclude(tmp_path: Path) -> None:
    for at in range(4):
        write(tmp_path, record(f"n{at}", NIGHTS[0], status="broken"))
    seen = answer_of(tmp_path)
    assert (seen["verdict"], seen["failing"], seen["exclude"], seen["rates"]) == ("broken", [], "", [])


@pytest.mark.parametrize(
    "statuses, failing, deviating",
    [
        ("broken " * 9 + "ok", 0, 0),
        ("broken broken ok", 0, 0),
        ("broken " * 3 + "ok ok unknown", 3, 4),
        ("broken ok", 1, 1),
        ("broken", 0, 0),
        ("unknown " * 5 + "broken", 1, 1),
        ("broken " * 5 + "unknown", 0, 1),
    ],
)
def test_a_fault_of_most_nodes_puts_none_into_exclude_and_the_page_counts_them(
    statuses: str, failing: int, deviating: int, tmp_path: Path
) -> None:
    nodes = statuses.split()
    for at, status in enumerate(nodes):
        write(tmp_path, record(f"n{at}", NIGHTS[0], status=status))
    seen = answer_of(tmp_path, "--html", tmp_path / "p.html")
    assert (len(seen["failing"]), bool(seen["exclude"]), len(seen["deviating"])) == (failing, bool(failing), deviating)
    usual = next((status for status in {*nodes} if 2 * nodes.count(status) > len(nodes)), "")
    count = f"{nodes.count(usual)} of {len(nodes)} node" if usual not in ("", "ok") else f"{deviating} of {len(nodes)} node"
    page = (tmp_path / "p.html").read_text()
    assert f"{seen['verdict'].capitalize()}: {count}" in page and not re.search("\\b1 of [0-9]+ nodes? deviate\\b|1 node deviate\\b", page)


def test_lines_of_a_history_that_cannot_be_read_stay_and_are_counted(tmp_path: Path) -> None:
    a_night(tmp_path, NIGHTS[0], 3)
    answer_of(tmp_path)
    history = tmp_path / "fleet.jsonl"
    before = '{"torn": \n' + history.read_text().replace("fleet-node/1", "fleet-node/9", 1)[:-5]
    history.write_text(before)
    seen = answer_of(tmp_path)
    assert "fleet-history-unread" in ids(seen) and seen["exit_code"] == 4
    assert history.read_text().startswith(before + "\n") and len(read.history(history).unread) == 3


@pytest.mark.parametrize("status, unread", [("ok", 0), ("missing", 0), ("", 0), ("flaky", 1), ("OK", 1), (None, 1), (["ok"], 1)])
def test_a_line_with_an_unknown_status_is_not_read(status: object, unread: int) -> None:
    known = read.history_of(json.dumps({"schema": read.LINE_SCHEMA, "night": NIGHTS[0], "node": "n1", "status": status}))
    assert (len(known.unread), len(known.lines)) == (unread, 1 - unread)


@given(st.text(max_size=200))
def test_any_text_is_a_history(text: str) -> None:
    known = read.history_of(text)
    assert len(known.unread) + sum(map(len, known.lines.values())) <= text.count("\n") + 1


@given(st.dictionaries(st.text(max_size=9), st.none() | st.text(max_size=9), max_size=4), st.text(max_size=9), st.text(max_size=9))
def test_a_line_is_read_as_it_was_written(facts: dict[str, str | None], node: str, reason: str) -> None:
    line = Line(NIGHTS[0], node, "ok", reason, {"01": "ok"}, ["GPUs"], facts)
    assert read.history_of(read.text_of(History({}), [line])).lines == {NIGHTS[0]: {node: line}}


@pytest.mark.parametrize(
    "started, night",
    [
        ("2026-03-01T23:59:00", "2026-03-01"),
        ("2026-03-02T00:01:00", "2026-03-01"),
        ("2026-03-02T11:59:00", "2026-03-01"),
        ("2026-03-02T12:00:00", "2026-03-02"),
        ("yesterday", ""),
        ("9999-99-99T00:00:00", ""),
    ],
)
def test_a_night_lasts_from_noon_to_noon(started: str, night: str) -> None:
    assert read.night_of(f'{{"started": "{started}"'.encode()) == night


def test_a_night_is_that_of_the_local_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    for zone, night in (("UTC", "2026-03-02"), ("Etc/GMT+8", "2026-03-01")):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        assert read.night_of(b'{"started": "2026-03-02T14:00:00Z"') == night
    monkeypatch.undo()
    time.tzset()


def test_names_are_not_in_what_is_shared_and_no_history_is_written(two_nights: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    ended = run_cli("fleet", two_nights / "2", "--history", tmp_path / "h.jsonl", "--share", "--html", page)
    assert ended.returncode == 3 and "GPU driver" in page.read_text()
    assert not [node for node in PLANTED if node in ended.stdout + page.read_text()] and not (tmp_path / "h.jsonl").exists()


@pytest.mark.parametrize("name", ["n{:02}", "gpu{:03}.pod7.example.org", "ip-10-0-3-{}", "worker-{}-gpu", "Node{}"])
def test_share_changes_only_names(name: str, tmp_path: Path) -> None:
    """Neither nodes of --nodes nor those of the history become others than those of the records."""
    nodes = [name.format(at) for at in range(1, 7)]
    for at, node in enumerate(nodes[:5]):
        for night in NIGHTS[:1] if at == 4 else NIGHTS:
            write(tmp_path / night, record(node, night, driver if at == 2 and night == NIGHTS[1] else lambda facts: None))
    (tmp_path / "nodes.txt").write_text("\n".join(nodes))
    history = tmp_path / "h.jsonl"
    answer_of(tmp_path / NIGHTS[0], "--history", history)
    for more in ((), ("--nodes", tmp_path / "nodes.txt")):
        plain, shared = (answer_of(tmp_path / NIGHTS[1], "--history", history, *more, *share) for share in ((), ("--share",)))
        assert [len(answer["missing"]) for answer in (plain, shared)] == [1 + bool(more)] * 2
        assert sorted(plain["missing"].values()) == sorted(shared["missing"].values()) and not [
            node for node in nodes if node in json.dumps(shared)
        ]
        for field in ("verdict", "nodes", "nights"):
            assert plain[field] == shared[field]
        for field in ("deviating", "changes", "differences", "rates"):
            assert len(plain[field]) == len(shared[field])
        assert ids(plain) == ids(shared)


def test_share_gives_a_node_that_only_its_file_names_one_name(tmp_path: Path) -> None:
    for night in NIGHTS:
        for at in range(3):
            write(tmp_path / night, {**record(f"m{at}", night), "judged": {}}, name=f"m{at}")
        seen = [answer_of(tmp_path / night, "--history", tmp_path / "h.jsonl", *share) for share in ((), ("--share",))]
        assert [(answer["nodes"], answer["missing"]) for answer in seen] == [(3, {})] * 2


def test_the_page_is_small_however_many_nodes_deviate(tmp_path: Path) -> None:
    def other(at: int) -> Change:
        return lambda facts: facts["gpus"]["nvml"].update(driver=f"5{at}.0")

    for at in range(200):
        write(tmp_path, record(f"node-{at:04}", NIGHTS[0], other(at) if at % 2 else nccl, "broken" if at % 3 else "ok"))
    ended = run_cli("fleet", tmp_path, "--html", tmp_path / "p.html")
    assert ended.returncode == 3 and (tmp_path / "p.html").stat().st_size <= 300_000


def test_1024_records_within_ten_seconds_and_300_mb(tmp_path: Path) -> None:
    made = record("n0000", NIGHTS[0])
    for at in range(1024):
        own = copy.deepcopy(made)
        own["judged"]["host"] = own["facts"]["network"]["host"] = f"n{at:04}"
        for gpu in own["facts"]["gpus"]["nvml"]["gpus"]:
            gpu["uuid"] = f"{at}-{gpu['nvml_index']}"
        if at == 700:
            mtu(own["facts"])
        write(tmp_path, own)
    code = (
        "import resource, subprocess, sys; c = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL);"
        " print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(c.returncode)"
    )
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", code, sys.executable, "-m", "nccl_runbook", "fleet", str(tmp_path), "--html", str(tmp_path / "p.html")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 3, done.stderr
    assert (ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime) / slowness() < 10 and int(done.stdout) < 300 << 10


def test_lines_of_a_history_share_their_names() -> None:
    """Else 32 MiB of them take 600 MB."""
    row = '{"schema": "nccl-runbook/fleet-node/1", "night": "2026-11-%02d", "node": "n1", "status": "ok"}\n'
    first, second = (nodes["n1"] for nodes in read.history_of("".join(row % day for day in (1, 2))).lines.values())
    assert first.node is second.node and not hasattr(first, "__dict__")


# --- nodes that fail in some nights

def simulated(seed: int, nodes: int, nights: int, flaky_rate: float, others: float) -> History:
    """Node "bad" among good ones; every node fails by chance with the rate of the others."""
    chosen = random.Random(seed)
    lines: dict[str, dict[str, Line]] = {}
    for at in range(nights):
        night = f"2026-03-{at + 1:02}"
        failed = {node: chosen.random() < (flaky_rate if node == "bad" else others) for node in ("bad", *map(str, range(nodes - 1)))}
        lines[night] = {node: Line(night, node, "broken" if is_broken else "ok") for node, is_broken in failed.items()}
    return History(lines)


def test_a_node_that_fails_in_a_third_of_the_nights_is_named_with_its_rate() -> None:
    named = [[rate.node for rate in flaky(rates(simulated(seed, 64, 20, 0.3, 0.0)), 64)] for seed in range(40)]
    assert named.count(["bad"]) >= 38 and not [n for n in named if n not in ([], ["bad"])]
    within = [rates(simulated(seed, 64, 20, 0.3, 0.0))[0] for seed in range(40)]
    assert sum(rate.low <= 0.3 <= rate.high for rate in within) >= 34


def test_nodes_that_all_fail_alike_are_seldom_named() -> None:
    """At most in 5 of 100 fleets, whatever the number of nodes."""
    named = [bool(flaky(rates(simulated(seed, 200, 10, 0.02, 0.02)), 200)) for seed in range(40)]
    assert sum(named) <= 4


def test_a_night_in_which_most_nodes_failed_accuses_nobody() -> None:
    lines = {
        f"2026-03-{at:02}": {node: Line(f"2026-03-{at:02}", node, "broken" if at == 4 and node != "a" else "ok") for node in "abcdef"}
        for at in range(1, 9)
    }
    assert rates(History(lines)) == []


def test_nights_without_a_result_are_no_trials() -> None:
    statuses = ["broken", "missing", "unknown", "running", "ok", "broken"]
    lines = {
        f"2026-03-0{at}": {"a": Line(f"2026-03-0{at}", "a", status), **{n: Line("", n, "ok") for n in "bcd"}}
        for at, status in enumerate(statuses, 1)
    }
    rate, = rates(History(lines))
    assert (rate.failed, rate.tested, rate.last) == (2, 3, "2026-03-06")


def test_the_chance_is_that_of_fishers_exact_test() -> None:
    """Three of the three failures among 40 nights fall on the ten of one node: 10 over 3 of 40 over 3."""
    assert chance(3, 10, 3, 40) == pytest.approx(120 / 9880) and chance(0, 10, 3, 40) == pytest.approx(1)


def test_a_node_that_failed_in_some_nights_is_named_by_the_command(tmp_path: Path) -> None:
    history, folder = tmp_path / "h.jsonl", tmp_path / "d"
    lines = [
        Line(f"2026-02-{at:02}", f"n{n:02}", "broken" if n == 2 and at in (3, 5, 9) else "ok") for at in range(1, 11) for n in range(12)
    ]
    history.write_text(read.text_of(History({}), lines))
    seen = answer_of(a_night(folder, NIGHTS[0]), "--history", history)
    rate, = seen["rates"]
    assert (rate["node"], rate["failed"], rate["tested"], rate["last"]) == ("n02", 3, 11, "2026-02-09") and rate["low"] < 3 / 11 < rate[
        "high"
    ]
    assert [line["node"] for line in seen["deviating"]] == ["n02"] and "fleet-node-fails-sometimes" in ids(seen) and seen["exit_code"] == 3


@pytest.mark.parametrize("status, failed, tested", [("unknown", 12, 12), ("ok", 12, 13), ("broken", 13, 13)])
def test_a_node_that_fails_in_every_night_fails_more_often_than_the_others(status: str, failed: int, tested: int, tmp_path: Path) -> None:
    history = a_history(tmp_path / "h.jsonl", 6, 12, {"n03": range(1, 13)})
    a_night(tmp_path / "d", NIGHTS[0], 6)
    write(tmp_path / "d", record("n03", NIGHTS[0], status=status))
    seen = answer_of(tmp_path / "d", "--history", history)
    rate, = seen["rates"]
    found, = (f for f in seen["findings"] if f["id"] == "fleet-node-fails-sometimes")
    assert (rate["failed"], rate["tested"]) == (failed, tested) and "--exclude=n03" in found["fix"]
    assert [line["node"] for line in seen["deviating"]] == ["n03"] and seen["exit_code"] == 3
    assert "(by chance: " not in run_cli("fleet", tmp_path / "d", "--history", history).stdout


def test_a_node_that_left_the_fleet_is_accused_no_more(tmp_path: Path) -> None:
    history = a_history(tmp_path / "h.jsonl", 10, 12, {"n09": range(1, 13)})
    a_night(tmp_path / "d", NIGHTS[0], 9)
    (tmp_path / "nodes.txt").write_text(" ".join(f"n{at:02}" for at in range(9)))
    seen = answer_of(tmp_path / "d", "--history", history, "--nodes", tmp_path / "nodes.txt")
    assert (seen["verdict"], seen["nodes"], seen["deviating"], seen["rates"]) == ("healthy", 9, [], [])
    # without the names it may have failed to answer
    seen = answer_of(tmp_path / "d", "--history", history)
    assert (seen["missing"], "fleet-node-fails-sometimes" in ids(seen)) == ({"n09": "2026-02-12"}, True)


@pytest.mark.parametrize("nights, failed", [(12, 2), (12, 3), (12, 4), (5, 2), (5, 3)])
@pytest.mark.parametrize("left", [0, 200])
def test_table_and_findings_name_the_same_nodes(nights: int, failed: int, left: int, tmp_path: Path) -> None:
    """However many nodes of the history have left, some of which failed once."""
    others = {f"n{at:02}": range(2, 3) for at in range(10, 20)} if left else {}
    history = a_history(tmp_path / "h.jsonl", 6 + left, nights, {"n03": range(1, failed + 1), **others})
    (tmp_path / "nodes.txt").write_text(" ".join(f"n{at:02}" for at in range(6)))
    arguments = (a_night(tmp_path / "d", NIGHTS[0], 6), "--history", history, "--nodes", tmp_path / "nodes.txt")
    seen = answer_of(*arguments)
    named = "fleet-node-fails-sometimes" in ids(seen)
    assert bool(seen["deviating"]) == named == ("(by chance: " not in run_cli("fleet", *map(str, arguments)).stdout)


def test_a_night_without_deviation_has_no_empty_table(tmp_path: Path) -> None:
    shown = run_cli("fleet", a_night(tmp_path / "d", NIGHTS[0], 4)).stdout
    assert "Nodes that deviate: none." in shown and " 4 nodes do not deviate" in shown
    assert "Facts that differ" not in shown and "odd hosts" not in shown
