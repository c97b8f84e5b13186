"""Probes of 03 and 04 on real Gloo ranks, and the pure parts under them."""
from __future__ import annotations

import html
import json
import shlex
import urllib.parse

import pytest
from hypothesis import given, strategies as st
from nccl_runbook.core.facts import Gap, to_json
from nccl_runbook.core.records import Record, load, save
from nccl_runbook.core.redact import Redactor
from nccl_runbook.core.secret_values import MASK
from nccl_runbook.launch.gpu_lists import device_arguments, parse_gpus, rank_devices
from nccl_runbook.launch.running import Tally
from nccl_runbook.worlds import ask as worlds, judge as fewer_gpus
from nccl_runbook.worlds.facts import Ladder
from pydantic import TypeAdapter


def test_a_ladder_on_the_cpu_passes_and_survives_the_round_trip_through_a_record(engine):
    ladder = worlds.ladder(engine, [None, None, None], 60)
    assert [t.name for t in ladder.rungs] == ["1 rank", "2 ranks", "3 ranks"] and all(t.passed for t in ladder.rungs)
    assert TypeAdapter(Ladder | Gap).validate_python(to_json(ladder)) == ladder
    told = fewer_gpus.judge_worlds(ladder, Gap("not-run"), Gap("not-run"))[0]
    assert told.id == "rehearsed" and "Gloo" in told.title and "1, 2 and 3 ranks" in told.title


def test_the_last_seconds_of_a_ladder_go_to_the_world_of_all_ranks(engine):
    hurried = worlds.ladder(engine, [None] * 4, worlds.CPU_DEADLINE_S - 1)
    assert [t.world.request.world_size for t in hurried.rungs] == [1, 4] and hurried.wanted == [1, 2, 3, 4]
    assert [t.name for t in worlds.ladder(engine, [None] * 4, worlds.STALL_FIRST_S - 1).rungs] == ["1 rank"]


def test_a_ladder_stops_at_the_first_size_that_fails_and_tries_that_twice(own_engine, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nothing9")
    ladder = worlds.ladder(own_engine, [None, None], 60)
    assert ladder.first_failing.name == "1 rank" and not ladder.first_failing.again.passed
    assert fewer_gpus.judge_worlds(ladder, Gap("not-run"), Gap("not-run"))[0].cause == "socket-interface-wrong"


@given(st.integers(2, 40))
def test_rounds_meet_every_pair_once_in_disjoint_rounds(n):
    rounds = worlds.rounds(list(range(n)))
    pairs = [p for r in rounds for p in r]
    assert sorted(pairs) == [(a, b) for a in range(n) for b in range(a + 1, n)] and len(rounds) == n - 1 + n % 2
    assert all(len({g for p in r for g in p}) == 2 * len(r) for r in rounds)


@given(st.integers(1, 200))
def test_world_sizes_grow_from_one_to_all(most):
    sizes = worlds.world_sizes(most)
    assert sizes[0] == 1 and sizes[-1] == most and sizes == sorted(set(sizes))


@given(st.text(max_size=30), st.integers(0, 16))
def test_parse_gpus_gives_indices_that_exist_or_one_sentence(text, count):
    try:
        assert all(0 <= g < count for g in parse_gpus(text, count))
    except ValueError as error:
        assert str(error).startswith("gpus: ")


@pytest.mark.parametrize("text", ["0-", "3-1", ",", "0,,1", "x", "-1", "0-999999999999", "²"])
def test_gpus_that_mean_nothing_are_refused_with_and_without_gpus(text):
    for count in (4, 0):
        with pytest.raises(ValueError, match="gpus: "):
            rank_devices(text, 0, count)


def test_a_huge_range_costs_nothing_and_a_rehearsal_stays_small():
    with pytest.raises(ValueError, match=r"\bGPU 4\b"):
        parse_gpus("0-999999", 4)
    assert len(rank_devices("", 100_000, 0)) == 64


def test_parse_gpus_reads_lists_ranges_and_repeats():
    assert parse_gpus("0-2, 2", 4) == [0, 1, 2, 2] and parse_gpus("", 3) == parse_gpus("all", 3) == [0, 1, 2]


def test_rank_devices_rehearses_on_two_cpu_ranks_without_a_gpu():
    assert rank_devices("", 0, 0) == rank_devices("", 0, Gap("failed", "no driver")) == [None, None]
    assert rank_devices("", 3, 0) == [None] * 3 and rank_devices("", 2, 4) == [0, 1]


@given(st.lists(st.integers(0, 7), min_size=1, max_size=8), st.one_of(st.none(), st.permutations(list("01234567")).map(",".join)))
def test_device_arguments_give_every_rank_the_gpu_it_was_meant_to_have(devices, visible):
    env, args = device_arguments(devices, visible)
    shown = env["CUDA_VISIBLE_DEVICES"].split(",")
    surroundings = visible.split(",") if visible is not None else list("01234567")
    assert [shown[int(i)] for i in args[1].split(",")] == [surroundings[d] for d in devices] and len(set(shown)) == len(shown)


def test_device_arguments_leave_an_index_that_is_not_visible_to_cuda():
    assert device_arguments([0, 5], "3") == ({}, ["--devices", "0,5"]) and device_arguments([None], "3") == ({}, [])


LOG = """vm:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
vm:1:1 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
vm:1:1 [0] NCCL INFO Channel 01/0 : 1[1] -> 0[0] [send] via NET/Socket/0
vm:1:1 [0] NCCL INFO Channel 01/0 : 1[1] -> 0[0] [receive] via NET/IB/0/GDRDMA
vm:1:1 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1
vm:1:1 [0] NCCL INFO NCCL_NVLS_ENABLE set by environment to 0.
a line of the program: Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
vm:1:1 [0] NCCL INFO Connected via nothing"""


def test_tally_counts_transports_and_variables_of_nccls_own_lines_only():
    tally = Tally()
    tally.add(LOG.splitlines())
    transports, taken = tally.summary()
    assert transports == {"P2P/CUMEM": 1, "SHM/direct/direct": 1, "NET/Socket": 1, "NET/IB/GDRDMA": 1}
    assert taken == ["NCCL_NVLS_ENABLE=0", "NCCL_P2P_DISABLE=1"]


@given(st.lists(st.text()))
def test_tally_takes_any_text(lines):
    tally = Tally()
    tally.add(lines)
    transports, taken = tally.summary()
    assert isinstance(transports, (dict, Gap)) and isinstance(taken, (list, Gap))


SECRETS = {
    "WANDB_API_KEY": "abc123def456",
    "HF_TOKEN": "hunter2hunter2",
    "DB_PASSWORD": "p@ss word!",
    "AWS_SECRET_ACCESS_KEY": "x/y+z=1234567",
}


WRITTEN = [
    str,
    json.dumps,
    lambda s: json.dumps(s, ensure_ascii=False),
    repr,
    html.escape,
    lambda s: html.escape(s, quote=False),
    shlex.quote,
    lambda s: html.escape(shlex.quote(s)).replace("&quot;", "&#34;").replace("&#x27;", "&#39;"),
    lambda s: html.escape(json.dumps(s)),
    lambda s: s.encode("unicode_escape").decode().replace('"', '\\"'),
    lambda s: urllib.parse.quote(s, safe=""),
]


@given(st.text(alphabet=st.characters(codec="utf-8"), min_size=1), st.sampled_from(WRITTEN))
def test_a_secret_value_does_not_survive_as_something_else_writes_it(odd, write):
    """A page, a notebook's source and the line that repeats a run hold a value in the spelling of HTML, Python and a shell."""
    value = "swordfish" + odd + "canary"
    said = Redactor({"MY_TOKEN": value}).text(f"a {write(value)} b")
    assert "swordfish" not in said and "canary" not in said


@pytest.mark.parametrize("word", ["status", "findings", "unknown", "timed-out"])
def test_a_secret_that_is_a_word_of_ours_leaves_the_record_readable(word, tmp_path):
    record = Record(step="03-fewer-gpus", status="unknown", started="2026-01-01T00:00:00Z", facts={"a": to_json(Gap("timed-out"))})
    save(record, tmp_path / "r.json", Redactor({"MY_TOKEN": word}))
    assert load(tmp_path / "r.json") == record


def test_a_secret_of_many_lines_is_known_by_each():
    key = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0\n-----END PRIVATE KEY-----"
    assert "MIIEvQ" not in Redactor({"MY_PRIVATE_KEY": key}).text("line 2 is MIIEvQIBADANBgkqhkiG9w0")


@given(st.text(), st.text(), st.sampled_from(sorted(SECRETS)))
def test_a_secret_value_never_survives(before, after, name):
    redactor = Redactor(SECRETS)
    assert SECRETS[name] not in redactor.text(before + SECRETS[name] + after)
    assert SECRETS[name] not in str(redactor.json({"a": [before + SECRETS[name]], SECRETS[name]: 1}))


@pytest.mark.parametrize(
    "text",
    [
        "sk-abcdefghijklmnop1234",
        "ghp_abcdefghijklmnopqrst12",
        "hf_abcdefghijklmnopq",
        "AKIAABCDEFGHIJKLMNOP",
        "https://user:secretpw@host/x",
        "Authorization: Bearer abcdef1234567890",
        "MY_API_KEY=abcdef123456",
        "train.py --hf-token abcdef123",
        "train.py --wandb_key 0123456789abcdef",
        "WANDB_KEY=0123456789abcdef",
        '{"api_key": "abcdef123"}',
        "-e PASSWORD='abc def 123'",
        "--api-key=abcdef",
        "Authorization: Basic YWJjOmRlZmdo",
        "https://acct.example/data/1.mds?sv=2023-11-03&sig=k3JxQ9vYb2m8%3D",
        "https://b.example/1?X-Amz-Signature=deadbeef&X-Amz-Expires=60",
    ],
)
def test_a_secret_is_known_by_its_shape(text):
    assert MASK in Redactor({}).text(text) and text not in Redactor({}).text(text)


@pytest.mark.parametrize(
    "text",
    [
        "NCCL_P2P_DISABLE=1",
        "GPU-ef50b440-0000-4000-8000-000000000000",
        "https://host:8080/path",
        "rank 0 token 5 of 12",
        "tokens=4096",
        "--max-tokens 4096000",
        "--tokenizer /models/qwen",
        "--token --other-option",
        "max_new_tokens: 128",
        "KeyError: 'model.embed_tokens.weight'",
    ],
)
def test_redaction_leaves_what_is_no_secret(text):
    assert Redactor({"TOKENIZERS_PARALLELISM": "false", "NCCL_KEY": "1"}).text(text) == text
