"""Hosts compared from records, and in a real Slurm allocation over two hosts: what each fault is called, and that nobody else is
accused."""
from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.facts_world import RankResult
from nccl_runbook.hosts import (
    ask,
    ask_paths,
    ask_worlds,
    judge as rules,
    judge_network,
    judge_paths,
    judge_worlds,
)
from nccl_runbook.hosts.facts import HostFacts, Hosts, HostWorld, TcpPath
from nccl_runbook.hosts.judge import broken_hosts, differences, exclude
from nccl_runbook.hosts.on_node import node
from nccl_runbook.hosts.read import flat, read
from processes import slowness
from slurm_hosts import SlurmHosts, wrong
from warm_cli import read_cli

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = json.loads((ROOT / "lib" / "nccl_runbook" / "schemas" / "hosts.json").read_text())
CLI = [sys.executable, "-m", "nccl_runbook", "hosts"]


def write_records(folder: Path, count: int, variables: int = 20, status: str = "ok", **odd: dict[str, Any]) -> list[Path]:
    """Records of alike hosts; ``odd``: host -> what its role has instead."""
    paths = []
    for at in range(count):
        role = {
            "variables": {f"NCCL_NUMBER_{n}": str(n) for n in range(variables)},
            "reported": "2.28.9",
            "torch": "2.11.0",
            **odd.get(f"n{at}", {}),
        }
        gpus = [{"uuid": f"GPU-{at}-{n}", "name": "H200"} for n in range(8)]
        facts = {"environment": {"roles": [role], "host": {"name": f"n{at}"}}, "gpus": {"nvml": {"driver": "580.1", "gpus": gpus}}}
        record = {
            "schema": "nccl-runbook/record/2",
            "step": "01-gpu-visibility",
            "status": status,
            "reason": "the driver is broken",
            "started": "2026-01-01T00:00:00Z",
            "judged": {"host": f"n{at}"},
            "facts": facts,
        }
        paths.append(folder / f"n{at}.json")
        paths[-1].write_text(json.dumps(record))
    return paths


def answer_of(*arguments: object) -> dict[str, Any]:
    ended = read_cli(*arguments, "--json")
    document = json.loads(ended.stdout)
    jsonschema.validate(document, SCHEMA)
    assert ended.returncode == document["exit_code"]
    return document


@pytest.mark.parametrize("command", ["run", "hosts"])
def test_records_of_several_nodes_are_compared_and_the_odd_ones_named(command: str, tmp_path: Path) -> None:
    paths = write_records(tmp_path, 5, n3={"reported": "2.27.3"})
    found = answer_of(command, "--record", *paths)
    assert (found["verdict"], found["failing"], found["exclude"]) == ("degraded", [], "")
    assert [(d["odd"], d["majority"]) for d in found["differences"]] == [(["n3"], "2.28.9")]


def test_a_host_without_shared_memory_still_gives_its_facts(monkeypatch):
    monkeypatch.setattr(os, "statvfs", lambda path: os.stat(path + "/not there"))  # as in a container without /dev/shm
    here = node.network()
    assert here["shm_bytes"]["reason"] == "absent" and "lo" in here["interfaces"]


def test_alike_records_accuse_nobody(tmp_path: Path) -> None:
    found = answer_of("hosts", "--record", *write_records(tmp_path, 3))
    assert (found["verdict"], found["failing"], found["differences"]) == ("healthy", [], [])


def test_hosts_that_are_broken_alike_are_broken_and_hosts_that_nobody_judged_are_unknown(tmp_path: Path) -> None:
    found = answer_of("hosts", "--record", *write_records(tmp_path, 3, status="broken"))
    assert (found["verdict"], found["failing"]) == ("broken", []) and "host-step-broken" in {f["id"] for f in found["findings"]}
    found = answer_of("hosts", "--record", *write_records(tmp_path, 3, status="unknown"))
    assert (found["verdict"], found["failing"]) == ("unknown", [])


def test_of_two_hosts_that_differ_neither_is_called_odd(tmp_path: Path) -> None:
    found = answer_of("hosts", "--record", *write_records(tmp_path, 2, n1={"torch": "2.10.0"}))
    assert (found["verdict"], found["failing"]) == ("degraded", []) and found["differences"][0]["majority"] is None


def test_a_file_that_is_no_record_is_unknown_and_hides_nothing(tmp_path: Path) -> None:
    paths = write_records(tmp_path, 4, n0={"torch": "2.10.0"})
    paths[3].write_text("{")
    found = answer_of("hosts", "--record", *paths)
    assert [*found["unread"]] == [str(paths[3])] and found["differences"][0]["odd"] == ["n0"]
    assert {"host-not-seen", "hosts-differ"} <= {f["id"] for f in found["findings"]}


def test_a_page_is_written_for_records_of_several_nodes(tmp_path: Path) -> None:
    ended = read_cli("hosts", "--record", *write_records(tmp_path, 3, n1={"torch": "2.10.0"}), "--html", tmp_path / "page.html")
    assert ended.returncode == 3 and "n1" in (tmp_path / "page.html").read_text()


def test_1024_records_of_300_facts_within_ten_seconds_and_300_mb(tmp_path: Path) -> None:
    paths = write_records(tmp_path, 1024, 280, n7={"torch": "2.10.0"})
    code = (
        "import resource, subprocess, sys; c = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL);"
        " print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(c.returncode)"
    )
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", code, *CLI, "--json", "--record", *map(str, paths)], capture_output=True, text=True, timeout=120
    )
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 3, done.stderr
    assert (ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime) / slowness() < 10 and int(done.stdout) < 300 << 10


def test_differences_leave_out_what_is_each_hosts_own(tmp_path: Path) -> None:
    hosts = read(write_records(tmp_path, 4), lambda record: (record.status, record.reason)).answered
    assert differences(hosts) == [] and any("uuid" in path for path in hosts[0].facts)


def alike(*each: dict[str, Any]) -> tuple[list[tuple[str, list[str]]], dict[str, str]]:
    """Differences as (severity, odd hosts) and id -> severity, of hosts n0, n1, ... that show these facts."""
    hosts = [HostFacts(f"n{at}", "srun", dict(flat(facts))) for at, facts in enumerate(each)]
    found = differences(hosts)
    return [(d.severity, d.odd) for d in found], {
        f.id: f.severity.value for f in rules.judge_hosts(Hosts({h.host: h for h in hosts}), found)
    }


def test_names_that_not_every_host_was_asked_for_are_no_difference() -> None:
    assert alike(*({"network": {"mtu": 1, "names": {n: ["10.0.0.1"] for n in (f"n{at}", "n0")}}} for at in range(4))) == (
        [],
        {"hosts-alike": "ok"},
    )


def test_a_host_whose_probe_fails_differs_and_gaps_everywhere_are_not_compared() -> None:
    gpus, gap = [{"name": "H200"}] * 2, Gap("failed", "Unknown Error")
    assert ("warn", ["n2"]) in alike(*[{"network": {"gpus": gpus}}] * 2, {"network": {"gpus": gap}}, {"network": {"gpus": gpus}})[0]
    assert alike(*[{"network": {"gpus": gap}}] * 3) == ([], {"hosts-not-compared": "unknown"})
    assert alike({"a": "1"}, {"b": "1"})[1] == {"hosts-not-compared": "unknown"}


def test_a_list_of_another_length_differs_in_its_length_alone() -> None:
    """Without its third of eight GPUs, each later one of a host stands in another place."""
    gpus = [{"name": f"GPU {n}", "capability": str(n), "mig": {"is_enabled": n == 5}} for n in range(8)]
    whole, without = ({"network": {"gpus": listed}} for listed in (gpus, gpus[:2] + gpus[3:]))
    assert alike(whole, whole, without, whole)[0] == [("warn", ["n2"])]
    other = copy.deepcopy(whole)
    other["network"]["gpus"][6]["name"] = "another"
    assert sorted(alike(whole, other, without, whole)[0]) == [("warn", ["n1"]), ("warn", ["n2"])]


def test_an_empty_value_that_most_hosts_have_accuses_only_the_others() -> None:
    facts, other = ({"gpus": {"nvml": {"gpus": [{"mig": {"instances": listed}}]}}} for listed in ([], ["MIG-1"]))
    assert alike(facts, facts, other)[0] == [("warn", ["n2"])]


@pytest.mark.parametrize(
    "facts", [{"environment": {"roles": [{"reported": "{}"}]}}, {"network": {"interfaces": {"eth0": {"mtu": "{}", "address": "10.0.0.1"}}}}]
)
def test_three_values_on_three_hosts_are_a_difference(facts: dict[str, Any]) -> None:
    assert alike(*(json.loads(json.dumps(facts).replace("{}", v)) for v in "123"))[0] == [("warn", ["n0", "n1", "n2"])]


@pytest.mark.parametrize(
    "facts, other",
    [
        ({"network": {"interfaces": {"veth1": {"mtu": "1", "state": "up"}}}}, {"network": {"interfaces": {"eth0": {"address": ""}}}}),
        (
            {"network": {"interfaces": {"eth1": {"state": "up", "address": ""}}}},
            {"network": {"interfaces": {"eth1": {"state": "down", "address": ""}}}},
        ),
        ({"network": {"hcas": {"mlx5_0/1": {"gids": ["a"]}}}}, {"network": {"hcas": {"mlx5_0/1": {"gids": ["a", "b"]}}}}),
        (
            {"gpus": {"nvml": {"gpus": [{"ecc": {"corrected_volatile": 0}}]}}},
            {"gpus": {"nvml": {"gpus": [{"ecc": {"corrected_volatile": 1}}]}}},
        ),
        (
            {"environment": {"roles": [{"variables": {"CUDA_VISIBLE_DEVICES": "0"}}]}},
            {"environment": {"roles": [{"variables": {"CUDA_VISIBLE_DEVICES": "1"}}]}},
        ),
        (
            {"environment": {"roles": [{"name": "a", "torch": "1"}, {"name": "b", "torch": "2"}]}},
            {"environment": {"roles": [{"name": "b", "torch": "2"}, {"name": "a", "torch": "1"}]}},
        ),
    ],
)
def test_what_is_no_fault_is_a_note_at_most(facts: dict[str, Any], other: dict[str, Any]) -> None:
    assert "warn" not in [severity for severity, _ in alike(facts, other, facts)[0]]


def test_only_the_name_below_host_is_each_hosts_own() -> None:
    assert alike(*({"environment": {"host": {"name": f"n{at}", "iommu": "on" if at == 1 else "off"}}} for at in range(3)))[0] == [
        ("note", ["n1"])
    ]


@pytest.mark.parametrize(
    "name, own",
    [
        *(
            (name, True)
            for name in (
                "RAY_JOB_ID",
                "RAY_RAYLET_PID",
                "PET_NODE_RANK",
                "VLLM_HOST_IP",
                "SGLANG_HOST_IP",
                "VLLM_DP_RANK_LOCAL",
                "TORCHELASTIC_ERROR_FILE",
                "SLURM_NODEID",
            )
        ),
        *(
            (name, False)
            for name in ("RAY_ADDRESS", "RAY_CGRAPH_get_timeout", "PET_NNODES", "VLLM_PORT", "NCCL_SOCKET_IFNAME", "VLLM_HOST_IPS")
        ),
    ],
)
def test_variables_that_a_launcher_gives_each_host_are_not_compared(name: str, own: bool) -> None:
    differing = alike(*({"environment": {"roles": [{"variables": {name: str(at)}}]}} for at in range(3)))[0]
    assert differing == ([] if own else [("warn", ["n0", "n1", "n2"])])


@pytest.mark.parametrize(
    "name, value, wrong",
    [
        ("NCCL", "bond0.42", False),
        ("NCCL", "", False),
        ("NCCL", "=bond0.42", False),
        ("NCCL", "bond", False),
        ("NCCL", "=bond", True),
        ("NCCL", "^lo", False),
        ("NCCL", "^lo,bond", True),
        ("NCCL", "x,bond", False),
        ("GLOO", "", False),
        ("GLOO", "eth0", True),
    ],
)
def test_values_of_socket_ifname(name: str, value: str, wrong: bool) -> None:
    facts = {
        "network": {"interfaces": {"bond0.42": {"mtu": "9000"}, "lo": {"mtu": "65536"}}},
        "environment": {"roles": [{"variables": {f"{name}_SOCKET_IFNAME": value}}]},
    }
    assert bool(judge_network.judge_network([HostFacts(h, "srun", dict(flat(facts))) for h in ("n0", "n1")])) is wrong


def events(finished: int, began: int = 0) -> list[dict[str, Any]]:
    done = [e for n in range(finished) for e in ({"event": "begin", "what": f"op{n}"}, {"event": "op", "op": f"op{n}"})]
    return [{"event": "begin", "what": "init"}, {"event": "init"}, *done, *[{"event": "begin", "what": f"op{finished}"}] * began]


def error(text: str) -> list[dict[str, Any]]:
    return [*events(0), {"event": "error", "type": "RuntimeError", "text": text}]


def judged(hosts: list[str], *ranks: RankResult) -> tuple[list[str], list[str]]:
    """ids of the findings of one world, and the hosts that it accuses."""
    worlds = [HostWorld("test", hosts, list(ranks), 1.0, "nccl")]
    return [f.id for f in judge_worlds.judge_host_worlds(worlds)], [*judge_worlds.failing(worlds)]


@pytest.mark.parametrize(("ends", "cause"), [(("timed-out", "timed-out"), None), (("signalled", "timed-out"), "peer-crashed")])
def test_ranks_that_hang_on_one_host_are_not_said_to_have_been_killed(ends: tuple[str, str], cause: str | None) -> None:
    """The memory killer ends a rank; one that waits until the deadline was not ended by it."""
    ranks = [RankResult(n, end, 9 if end == "signalled" else None, events=events(1, 1)) for n, end in enumerate(ends)]
    finding, = judge_worlds.judge_host_worlds([HostWorld("n2 alone", ["n2", "n2"], ranks, 1.0, "nccl")])
    assert (finding.id, finding.cause, finding.severity.value) == ("host-rank-failed", cause, "broken")
    assert any("oom" in line.lower() for r in finding.remedy for line in (r.text, *r.lines)) == (cause is not None)


INFO = ["n2:1:2 [0] NCCL INFO Connected all rings", "n2:1:2 [0] NCCL INFO via NET/Socket/0"]


@pytest.mark.parametrize(
    "second",
    [
        RankResult(1, "signalled", 11, events=events(1, 1), last_lines=INFO),
        RankResult(1, "exited", 1, events=error("CUDA error: uncorrectable ECC error encountered"), last_lines=INFO),
    ],
)
def test_a_rank_that_died_by_itself_is_not_freed_by_lines_of_nccl(second: RankResult) -> None:
    first = RankResult(0, "exited", 1, events=error("NCCL error: remote process exited or there was a network error"))
    assert judged(["n1", "n2"], first, second) == (["host-rank-failed"], ["n2"])


def test_a_rank_is_behind_only_if_another_finished_what_it_never_began() -> None:
    waits = RankResult(1, "timed-out", None, events=events(1, 1))
    assert judged(["n1", "n2"], RankResult(0, "exited", 0, events=events(2)), waits)[1] == []
    assert judged(["n1", "n2"], RankResult(0, "timed-out", None, events=events(2)), RankResult(1, "timed-out", None, events=events(1)))[
        1
    ] == ["n2"]


@pytest.mark.parametrize(
    "text", ["CUDA out of memory. Tried", "CUDA error: invalid device ordinal", "CUDA-capable device(s) is/are busy or unavailable"]
)
def test_a_gpu_that_somebody_uses_accuses_no_host(text: str) -> None:
    assert judged(["n1", "n1"], RankResult(0, "exited", 0), RankResult(1, "exited", 1, events=error(text))) == (["hosts-world-unclear"], [])


class FakeAgents:
    """Hosts that answer and cannot run a world."""

    def __init__(self, *hosts: str) -> None:
        self.agents = {h: type("A", (), {"host": h, "why_gone": "", "is_warm": True})() for h in hosts}
        self.here = [*self.agents.values()]

    def left(self, seconds: float) -> float:
        return 0.0


def test_a_world_without_its_time_is_not_started_and_a_host_without_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    over = ask_worlds.Worlds(FakeAgents("n1", "n2"), {})
    monkeypatch.setattr(over, "warm", lambda: {"n3": Gap("failed", "no torch")})
    found = ask_worlds.ladder(over, 5.0)
    assert {w.hosts[0] for w in found if w.not_run} == {"n1", "n2", "n3"} and judge_worlds.failing(found) == {}
    assert {(f.id, f.severity.value) for f in judge_worlds.judge_host_worlds(found)} == {("hosts-world-not-run", "unknown")}


def test_an_agent_that_is_lost_before_the_facts_is_a_gap() -> None:
    with ask.Agents(["h1", "h2"], lambda host: [sys.executable]) as agents:
        agents.agents["h2"].lose("gone")
        found = ask.facts(agents, "{}", lambda said: {})
    assert isinstance(found["h1"], HostFacts) and isinstance(found["h2"], Gap)


@pytest.mark.parametrize("port, python", [("99999", "python3"), ("abc", "python3"), ("", "'x")])
def test_a_port_or_a_prefix_that_is_none_is_wrong_usage(port: str, python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", port)
    ended = read_cli("hosts", "--python", python)
    assert ended.returncode == 2 and "Traceback" not in ended.stderr


def test_the_agent_answers_nobody_without_the_token_and_bounds_what_it_reads() -> None:
    with ask.Agents(["localhost", "127.0.0.1"], lambda host: [sys.executable]) as agents:
        assert {p.kind for p in ask_paths.paths(agents, 0)} == {"passes"}
        said = agents.ask({"localhost": {"do": "listen", "ports": [0], "token": "secret"}}, 5.0)["localhost"]
        address = ("127.0.0.1", said["ports"]["0"])
        for sent in (b"1\nx", b"secret\n-1\n", b"secret\n9999999\n", b"secret\n" + b"1" * 64):
            with socket.create_connection(address, 5.0) as stranger:
                stranger.sendall(sent)
                with contextlib.suppress(ConnectionResetError):
                    assert stranger.recv(99) == b""
        with socket.create_connection(address, 5.0) as known:
            known.sendall(b"secret\n1\nx")
            assert known.recv(99)
            agents.ask({"localhost": {"do": "hush"}}, 5.0)
            assert known.recv(99) in (b"", b"x")


def records(folder: Path, *each: tuple[str, str, dict[str, Any]]) -> dict[str, Any]:
    """The answer for unjudged records: (host, status, facts)."""
    for at, (host, status, facts) in enumerate(each):
        record = {
            "schema": "nccl-runbook/record/2",
            "step": "03-fewer-gpus",
            "status": status,
            "reason": "",
            "started": f"202{9 - at}-01-01T00:00:00Z",
            "judged": {"host": host},
            "facts": facts,
        }
        (folder / f"{at}.json").write_text(json.dumps(record))
    return answer_of("hosts", "--record", *sorted(folder.glob("*.json")))


def test_unjudged_records_are_not_healthy_by_themselves(tmp_path: Path) -> None:
    gap = {"ladder": {"reason": "failed", "detail": "x"}}
    assert records(tmp_path, ("n1", "unknown", gap), ("n2", "unknown", gap))["verdict"] == "unknown"
    edge = {"edges": {"edges": [{"source": 0, "outcome": "wrong values"}]}}
    assert records(tmp_path, ("n1", "unknown", edge), ("n2", "unknown", edge))["verdict"] == "broken"


@pytest.mark.parametrize("broken, option", [(0, ""), (1, "--exclude=n0"), (5, "--exclude=n0,n1,n2,n3,n4"), (6, ""), (9, ""), (10, "")])
def test_what_most_hosts_share_is_the_fault_of_no_single_host(broken: int, option: str, tmp_path: Path) -> None:
    asked = Hosts(
        {f"n{n}": HostFacts(f"n{n}", "file", {}) for n in range(10)},
        judged={f"n{n}": {"03": ("broken" if n < broken else "ok", "it is")} for n in range(10)},
    )
    assert exclude(broken_hosts(asked)) == option


def test_the_page_names_the_option_that_leaves_out_the_broken_host_as_a_remedy(tmp_path: Path) -> None:
    for name, status in (("n1", "ok"), ("n2", "broken"), ("n3", "ok")):
        record = {
            "schema": "nccl-runbook/record/2",
            "step": "03-fewer-gpus",
            "status": status,
            "reason": "it is",
            "started": "2026-03-01T23:00:00Z",
            "ended": "2026-03-01T23:01:00Z",
            "judged": {"host": name},
            "facts": {"a": "1"},
            "findings": [{"id": "made-up", "severity": status, "title": "it is", "remedy": [{"who": "you", "text": "Look."}]}],
        }
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    ended = subprocess.run(
        [*CLI, "--record", *map(str, sorted(tmp_path.glob("*.json"))), "--html", str(tmp_path / "p.html"), "--json"],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
    )
    page, found = re.sub("<[^>]*>", "", (tmp_path / "p.html").read_text()), json.loads(ended.stdout)
    assert "--exclude=n2" in page and "Not looked at" not in page
    assert f"nccl-runbook run --record {tmp_path / 'n2.json'}" in page and found["exclude"] == "--exclude=n2"
    assert any(line.endswith(f"--record {tmp_path / 'n2.json'}") for f in found["findings"] for line in f["fix"])


def test_two_machines_of_one_name_are_both_kept(tmp_path: Path) -> None:
    found = records(tmp_path, ("localhost", "ok", {"a": "1"}), ("localhost", "broken", {"a": "1"}), ("n3", "ok", {"a": "1"}))
    assert len(found["hosts"]) == 3 and found["verdict"] == "broken"


# --- a real allocation

def command(cluster: SlurmHosts, *arguments: str, python: str = sys.executable) -> list[str]:
    return [*CLI, "--job", cluster.job, "--python", python, "--json", *arguments]


def asked(cluster: SlurmHosts, *arguments: str, python: str = sys.executable, **env: str) -> dict[str, Any]:
    done = subprocess.run(
        command(cluster, *arguments, python=python),
        env={**cluster.env, **env},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    found = json.loads(done.stdout or "{}")
    assert found, done.stderr
    jsonschema.validate(found, SCHEMA)
    return found


def tried(cluster: SlurmHosts, monkeypatch: pytest.MonkeyPatch) -> tuple[list[TcpPath], dict[str, str], list[str]]:
    """TCP paths between the hosts: all of them, id -> cause of what is wrong, and the lines of the first remedy."""
    monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
    with ask.Agents(["n1", "n2"], ask.srun(cluster.job, [sys.executable])) as agents:
        found = ask_paths.paths(agents, 29500)
    findings = [f for f in judge_paths.judge_paths(found) if f.severity.value == "broken"]
    return found, {f.id: f.cause for f in findings}, [line for f in findings for r in f.remedy for line in r.lines]


@pytest.mark.slow
def test_two_healthy_hosts_accuse_nobody(cluster: SlurmHosts) -> None:
    found = asked(cluster)
    assert (wrong(found), found["failing"], found["exclude"]) == ({}, [], "")
    assert all(p["kind"] == "passes" for p in found["paths"]) and [w["passed"] for w in found["worlds"]] == [True] * 3
    assert {r["host"] for r in found["worlds"][-1]["ranks"]} == {"n1", "n2"} and not cluster.left()


@pytest.mark.slow
def test_a_name_that_is_loopback(cluster: SlurmHosts) -> None:
    with cluster.resolves(1, "n1", "127.0.1.1"), cluster.resolves(2, "n1", "127.0.1.1"):
        found = asked(cluster, "--no-ranks")
    assert wrong(found)["host-name-is-loopback"] == wrong(found)["name-is-loopback"] == "rendezvous-name-resolution"


@pytest.mark.slow
@pytest.mark.parametrize("target, name", [("DROP", "tcp-dropped"), ("REJECT", "tcp-refused")])
def test_a_blocked_rendezvous_port(target: str, name: str, cluster: SlurmHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster.rule(1, "-p", "tcp", "--dport", "29500", "-j", target):
        paths, found, _ = tried(cluster, monkeypatch)
    assert found == {name: "network-path-blocked"} and {p.purpose for p in paths if p.kind != "passes"} == {"rendezvous"}


@pytest.mark.slow
def test_dropped_data_ports(cluster: SlurmHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster.rule(1, "-s", f"{cluster.net}.2", "-p", "tcp", "--dport", "30000:65535", "--syn", "-j", "DROP"):
        paths, found, _ = tried(cluster, monkeypatch)
    assert found == {"tcp-dropped": "network-path-blocked"} and {p.purpose for p in paths if p.kind != "passes"} == {"data"}


@pytest.mark.slow
def test_an_mtu_black_hole(cluster: SlurmHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster.rule(1, "-s", f"{cluster.net}.2", "-p", "tcp", "-m", "length", "--length", "1200:65535", "-j", "DROP"):
        _, found, lines = tried(cluster, monkeypatch)
    assert found == {"tcp-mtu": "mtu-black-hole"} and any(line.startswith("ping -M do -s SIZE") for line in lines)


@pytest.mark.slow
def test_no_route(cluster: SlurmHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.inside(2, "ip", "route", "add", "prohibit", f"{cluster.net}.1/32")
    try:
        _, found, _ = tried(cluster, monkeypatch)
    finally:
        cluster.inside(2, "ip", "route", "del", "prohibit", f"{cluster.net}.1/32")
    assert found["tcp-no-route"] == "no-route-between-hosts"


@pytest.mark.slow
def test_a_wrong_interface(cluster: SlurmHosts) -> None:
    found = asked(cluster, "--no-ranks", GLOO_SOCKET_IFNAME="lo")
    assert wrong(found) == {"hosts-interface-wrong": "socket-interface-wrong"}


@pytest.mark.slow
def test_another_variable_on_one_node(cluster: SlurmHosts, tmp_path: Path) -> None:
    script = tmp_path / "python.sh"
    script.write_text(f'[ "$(hostname)" = n2 ] && export NCCL_IB_DISABLE=1\nexec {sys.executable} "$@"\n')
    found = asked(cluster, "--no-ranks", python=f"sh {script}")
    assert [*wrong(found)] == ["hosts-differ"] and [d["name"].split()[-1] for d in found["differences"]] == ["NCCL_IB_DISABLE"]


@pytest.mark.slow
@pytest.mark.parametrize("fault, name", [("raise@3", "host-rank-failed"), ("skip@3", "host-rank-stuck"), ("stop@2", "host-rank-stuck")])
def test_a_rank_that_fails_or_hangs_on_one_host(fault: str, name: str, cluster: SlurmHosts) -> None:
    found = asked(cluster, "--fault", fault, "--budget", "45s")
    assert ([*wrong(found)], found["failing"], found["exclude"]) == ([name], ["n2"], "--exclude=n2")


def running(cluster: SlurmHosts) -> tuple[subprocess.Popen, list[int]]:
    """The command while a rank on n2 hangs, and our processes there: the agent, its warm process, two ranks."""
    process = subprocess.Popen(
        command(cluster, "--fault", "skip@3"),
        env=cluster.env,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    cluster.until(lambda: len(cluster.pids(2, "sys.stdin.buffer.readline")) == 4, 60)
    time.sleep(2.5)  # each host alone takes half a second; what hangs is the world over both
    return process, sorted(cluster.pids(2, "sys.stdin.buffer.readline"))


def answered(process: subprocess.Popen) -> dict[str, Any]:
    return json.loads(process.communicate(timeout=60)[0])


def seconds_until_gone(cluster: SlurmHosts, began: float) -> float:
    cluster.until(lambda: not cluster.left(), 40)
    return time.monotonic() - began


@pytest.mark.slow
def test_a_killed_agent_is_no_dead_rank(cluster: SlurmHosts) -> None:
    process, pids = running(cluster)
    began = time.monotonic()
    os.kill(pids[0], signal.SIGKILL)
    found, took = answered(process), time.monotonic() - began
    assert (wrong(found), found["failing"], [*found["worlds"][-1]["lost"]]) == ({"host-agent-lost": "node-failed"}, ["n2"], ["n2"])
    print(f"verdict {took:.1f} s after kill -9 of the agent")
    assert took < 10 and seconds_until_gone(cluster, began) < 30


@pytest.mark.slow
def test_a_host_that_is_cut_off_is_named_and_cleans_up_by_itself(cluster: SlurmHosts) -> None:
    process, _ = running(cluster)
    began = time.monotonic()
    with cluster.cut(2):
        found, took = answered(process), time.monotonic() - began
        gone = seconds_until_gone(cluster, began)
    print(f"verdict {took:.1f} s, nothing left {gone:.1f} s after the cut")
    assert (wrong(found), found["failing"]) == ({"host-agent-lost": "node-failed"}, ["n2"]) and gone < 30


@pytest.mark.slow
def test_a_killed_runner_leaves_nothing(cluster: SlurmHosts) -> None:
    process, _ = running(cluster)
    began = time.monotonic()
    process.kill()
    process.communicate(timeout=10)
    gone = seconds_until_gone(cluster, began)
    print(f"nothing left {gone:.1f} s after kill -9 of the runner")
    assert gone < 30


@pytest.mark.slow
def test_a_killed_runner_behind_a_cut_network_leaves_nothing(cluster: SlurmHosts) -> None:
    process, _ = running(cluster)
    with cluster.cut(2):
        began = time.monotonic()
        process.kill()
        process.communicate(timeout=10)
        gone = seconds_until_gone(cluster, began)
    print(f"nothing left {gone:.1f} s after the cut and kill -9 of the runner")
    assert gone < 30


@pytest.mark.slow
def test_a_host_without_an_agent_is_named_with_the_words_of_srun(cluster: SlurmHosts) -> None:
    with cluster.cut(2):
        found = asked(cluster, "--no-ranks", "--budget", "20s")
    hosts = {h["host"]: h for h in found["hosts"]}
    assert (hosts["n1"]["answered"], hosts["n2"]["answered"]) == (True, False) and hosts["n2"]["why"]
    assert found["verdict"] == "unknown" and "host-not-seen" in {f["id"] for f in found["findings"]}
