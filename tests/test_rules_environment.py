"""Rules about environments: each fires where it should, and stays quiet beside it."""
from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from environments import NCCL, NOT_RUN, environment, host, library, role, with_set
from hypothesis import given, settings, strategies as st
from nccl_runbook.causes.tables import table
from nccl_runbook.causes.variables import unread, variables
from nccl_runbook.core.facts import Gap, to_json
from nccl_runbook.core.findings import Severity
from nccl_runbook.environment import judge as rules, read_file as environment_file
from nccl_runbook.environment.facts import WHOLE, Environment, Role
from nccl_runbook.environment.judge import judge
from nccl_runbook.environment.read_role import row_of, rows_of
from nccl_runbook.environment.table import variables_table
from packaging.specifiers import SpecifierSet
from pydantic import TypeAdapter

QUIET = (Severity.OK, Severity.NOTE)


def found(env, rule):
    return [f for f in judge(env) if f.id == rule]


def lines(finding):
    return [line for r in finding.remedy for line in r.lines]


def loud(env):
    return [f for f in judge(env) if f.severity not in QUIET]


# ---- the first table of FACTS.md: advice that circulates, found with its replacement ----------------------------------------------


@pytest.mark.parametrize(
    ("setting", "rule", "instead"),
    [
        ("NCCL_TIMEOUT=1800", "unread-variable", "init_process_group(timeout="),
        ("NCCL_DEBUG=ERROR", "wrong-value", "NCCL_DEBUG=WARN"),
        ("TORCH_NCCL_DEBUG=INFO", "unread-variable", "TORCH_CPP_LOG_LEVEL=INFO"),
        ("NCCL_LIBRARY=/x/libnccl.so.2", "unread-variable", "LD_PRELOAD="),
        ("NCCL_ASYNC_ERROR_HANDLING=1", "renamed-variable", "TORCH_NCCL_ASYNC_ERROR_HANDLING=1"),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE=67108864", "bytes-for-events", "TORCH_FR_BUFFER_SIZE=2000"),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE=2000", "renamed-variable", "TORCH_FR_BUFFER_SIZE=2000"),
        ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/tmp/x_", "renamed-variable", "TORCH_FR_DUMP_TEMP_FILE=/tmp/x_"),
        ("NCCL_MULTI_RANK_GPU_ENABLE=1", "not-yet-read", "unset NCCL_MULTI_RANK_GPU_ENABLE"),
        ("NCCL_THREAD_THRESHOLD=16384", "dead-variable", "unset NCCL_THREAD_THRESHOLD"),
        ("NCCL_RINGS=0 1 2 3", "dead-variable", "unset NCCL_RINGS"),
        ("NCCL_WORK_FIFO_DEPTH=65536", "dead-variable", "unset NCCL_WORK_FIFO_DEPTH"),
        ("NCCL_PROXY_PROFILE=/tmp/p", "dead-variable", "unset NCCL_PROXY_PROFILE"),
        ("NCCL_CUMEM_ENABLE=0", "cumem-must-agree", "unset NCCL_CUMEM_ENABLE"),
        ("NCCL_DEBUG=INFO", "debugging-left-on", "NCCL_DEBUG=WARN"),
    ],
)
def test_advice_that_is_wrong_is_found_with_what_to_do_instead(setting, rule, instead):
    name, _, value = setting.partition("=")
    finding, = found(with_set(**{name: value}), rule)
    assert finding.title.startswith(f"{name}: ") and any(instead in line for line in lines(finding))
    assert finding.evidence[0].source == f"environment.roles[0].variables.{name}"


# ---- quiet where nothing is wrong -------------------------------------------------------------------------------------------------

def test_a_clean_environment_says_what_was_right():
    assert {f.severity for f in judge(environment())} == {Severity.OK}
    assert {f.id for f in judge(environment())} == {"environment-fits", "library-named"}


SANE = {
    "NCCL_DEBUG": ["WARN", "VERSION"],
    "NCCL_SOCKET_IFNAME": ["eth0", "=eth0", "eth", "^docker,lo", "ib0,eth0", "^=docker0"],
    "NCCL_IB_HCA": ["mlx5", "=mlx5_0:1,mlx5_1:1", "^=mlx5_1", "mlx5_0,mlx5_1"],
    "NCCL_IB_TIMEOUT": ["18", "22", "23"],
    "NCCL_IB_RETRY_CNT": ["7"],
    "NCCL_IB_GID_INDEX": ["3", "-1"],
    "NCCL_IB_TC": ["106"],
    "NCCL_IB_SL": ["1"],
    "NCCL_CROSS_NIC": ["0", "1", "2"],
    "NCCL_NET": ["IB"],
    "NCCL_SOCKET_NTHREADS": ["4"],
    "NCCL_NSOCKS_PERTHREAD": ["4"],
    "NCCL_CUMEM_ENABLE": ["0", "1"],
    "NCCL_MIN_CTAS": ["4"],
    "NCCL_NVLS_ENABLE": ["0", "2"],
    "NCCL_MAX_CTAS": ["16"],
    "NCCL_BUFFSIZE": ["8388608"],
    "NCCL_TOPO_FILE": ["/etc/topo.xml"],
    "NCCL_NET_GDR_LEVEL": ["PHB", "SYS"],
    "NCCL_P2P_LEVEL": ["NVL", "SYS"],
    "NCCL_ALGO": ["Ring", "ring,tree"],
    "NCCL_RAS_ENABLE": ["1"],
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": ["1", "3"],
    "TORCH_NCCL_BLOCKING_WAIT": ["0", "1"],
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": ["600"],
    "TORCH_FR_BUFFER_SIZE": ["2000", "20000"],
    "TORCH_NCCL_DUMP_ON_TIMEOUT": ["1", "true"],
    "TORCH_DISTRIBUTED_DEBUG": ["OFF", "INFO"],
    "TORCH_NCCL_AVOID_RECORD_STREAMS": ["1"],
    "TORCH_NCCL_ENABLE_MONITORING": ["0", "1"],
    "GLOO_SOCKET_IFNAME": ["eth0", "ib0,eth0"],
    "OMP_NUM_THREADS": ["1", "8"],
    "MASTER_ADDR": ["node1", "10.0.0.1"],
    "MASTER_PORT": ["29500"],
    "RANK": ["0", "7"],
    "WORLD_SIZE": ["8"],
    "LOCAL_RANK": ["0"],
    "CUDA_VISIBLE_DEVICES": ["0,1,2,3", "GPU-ef50b440"],
    "CUDA_DEVICE_ORDER": ["PCI_BUS_ID"],
    "NCCL_VERSION": ["2.28.9-1"],
    "CUDA_DEVICE_MAX_CONNECTIONS": ["1"],
    "FI_PROVIDER": ["efa"],
    "FI_EFA_USE_DEVICE_RDMA": ["1"],
    "OFI_NCCL_PROTOCOL": ["RDMA"],
    "UCX_TLS": ["rc,cuda_copy"],
    "VLLM_HOST_IP": ["10.0.0.1"],
    "VLLM_WORKER_MULTIPROC_METHOD": ["spawn"],
    "PYTORCH_CUDA_ALLOC_CONF": ["expandable_segments:True"],
    "NCCL_SOME_PLUGIN_SETTING": ["on"],
    "LD_LIBRARY_PATH": ["/opt/lib"],
    "TORCHELASTIC_RUN_ID": ["none"],
    "NVIDIA_VISIBLE_DEVICES": ["all"],
}
one_sane = st.sampled_from(sorted(SANE)).flatmap(lambda n: st.tuples(st.just(n), st.sampled_from(SANE[n])))


@settings(max_examples=1000, deadline=None)
@given(
    st.dictionaries(st.sampled_from(sorted(SANE)), st.integers(0, 5), max_size=20).map(
        lambda d: {n: SANE[n][i % len(SANE[n])] for n, i in d.items()}
    )
)
def test_a_thousand_sane_environments_give_nothing_above_a_note(chosen):
    assert [f.title for f in loud(with_set(**chosen))] == []


@given(
    st.dictionaries(st.sampled_from(sorted({**variables(), **unread()})), st.text(max_size=20), max_size=8),
    st.sampled_from(["2.11.0", "2.1.2"]),
)
def test_any_environment_is_judged_without_an_error_and_every_warning_says_what_instead(chosen, torch):
    for finding in judge(with_set(torch=torch, **chosen)):
        assert finding.severity in QUIET or all(r.lines for r in finding.remedy)


def test_each_default_of_the_table_is_quiet_by_itself():
    skipped = {n for n, v in variables().items() if not v.default or v.until or v.renamed_to or v.since}
    told = {n: [f.title for f in loud(with_set(**{n: v.default}))] for n, v in variables().items() if n not in skipped}
    assert {n: t for n, t in told.items() if t} == {}


def test_a_sane_gpu_host_with_the_habits_of_data_centres_gives_nothing_above_a_note():
    """ACS with an IOMMU, old Xids of programs, 8 MiB of locked memory in a shell, no name in DNS, InfiniBand off where there is none."""
    habits = host(
        acs=["0000:00:01.0"],
        iommu="on",
        xids=["NVRM: Xid (PCI:0000:06:00): 43, pid=8"],
        addresses=Gap("failed", "Name or service not known"),
        hcas=[],
    )
    for on in (habits, dataclasses.replace(habits, hcas=["mlx5_0"])):
        sane = environment(
            role(variables={"NCCL_NVLS_ENABLE": "0"} | ({} if on.hcas else {"NCCL_IB_DISABLE": "1"}), memlock="8388608", nofile="1024"),
            on=on,
        )
        assert [f.title for f in loud(sane)] == []


# ---- one variable --------------------------------------------------------------------------------------------------------------

def test_unread_variable_fires_when_a_name_is_a_slip_and_stays_quiet_when_a_plugin_may_read_it():
    assert lines(found(with_set(NCCL_IB_HCAS="mlx5"), "unread-variable")[0]) == ["NCCL_IB_HCA=mlx5"]
    assert found(with_set(NCCL_FASTRAK_IFNAME="eth1"), "unread-variable") == []
    note, = found(with_set(NCCL_FASTRAK_IFNAME="eth1"), "unknown-names")
    assert note.severity is Severity.NOTE and "NCCL_FASTRAK_IFNAME" in note.title


def test_unknown_names_stays_quiet_when_every_name_is_known():
    assert found(with_set(NV_CUDA_LIB_VERSION="13.0.2-1"), "unknown-names") == []
    assert found(with_set(NCCL_DEBUG="WARN"), "unknown-names") == []


def test_nothing_read_fires_when_a_file_sets_nothing_at_all():
    assert found(Environment([environment_file.parse("echo hello", "x.sh")], NOT_RUN), "nothing-read")[0].severity is Severity.UNKNOWN
    for foreign in (
        "the loss=1",
        "#!/bin/sh\nexport GPUS_PER_NODE=4\nsrun accelerate launch t.py",
        "export PATH=/x:$PATH",
        "\x7fELF\0NCCL_DEBUG=INFO\0\1\0\2",
        "\x01\x02a=b" * 50,
    ):
        assert found(Environment([environment_file.parse(foreign, "x")], NOT_RUN), "nothing-read"), foreign
    for own in ("PATH=/bin\nHOME=/root\nFOO=1", "HOME=/root\0PATH=/bin\0FOO=1\0"):
        assert not found(Environment([environment_file.parse(own, "x")], NOT_RUN), "nothing-read"), own


def test_nothing_read_fires_for_a_process_without_settings_torch_and_nccl_and_with_one_of_them_it_does_not():
    none = Gap("absent", "no torch in an active environment")
    assert found(with_set(torch=none, nccl=none), "nothing-read")[0].severity is Severity.UNKNOWN
    for near in (with_set(torch=none), with_set(nccl=none), with_set(torch=none, nccl=none, NCCL_DEBUG="WARN")):
        assert not found(near, "nothing-read")


def test_what_ranks_cannot_meet_without_is_not_taken_out():
    wrong = found(environment(environment_file.parse("export MASTER_PORT=295000\nsrun python3 train.py\n", "x.sbatch")), "wrong-value")[0]
    assert lines(wrong)[0].startswith("MASTER_PORT=29500 ")
    assert wrong.remedy[0].text != found(with_set(NCCL_P2P_LEVEL="nvl"), "wrong-value")[0].remedy[0].text, "that one may be taken out"


def test_wrong_value_says_what_the_reader_does_with_it():
    assert "as 0" in found(with_set(NCCL_P2P_DISABLE="true"), "wrong-value")[0].title
    assert lines(found(with_set(NCCL_P2P_LEVEL="nvl"), "wrong-value")[0]) == ["NCCL_P2P_LEVEL=NVL"]
    assert "torch" in found(with_set(TORCH_NCCL_BLOCKING_WAIT="on"), "wrong-value")[0].title
    assert "as 0" not in found(with_set(NCCL_IB_RETRY_CNT="13"), "wrong-value")[0].title
    assert found(with_set(NCCL_P2P_LEVEL="NVL", NCCL_SOCKET_NTHREADS="$N"), "wrong-value") == []


@pytest.mark.parametrize(
    "setting", ["NCCL_IB_DISABLE=yes", "NCCL_IB_DISABLE=true", "NCCL_P2P_DISABLE=on", "NCCL_MULTI_RANK_GPU_ENABLE=yes"]
)
def test_a_word_that_nccl_reads_as_0_switches_nothing(setting):
    name, _, word = setting.partition("=")
    beside = {"NCCL_IB_HCA": "mlx5", "NCCL_P2P_LEVEL": "NVL", "NCCL_NVLS_ENABLE": "1"}
    told = {f.id for f in loud(with_set(nccl="2.30.7", **beside, **{name: word}))}
    assert told == {"wrong-value"} and not [f for f in judge(with_set(nccl="2.30.7", **{name: word})) if f.id == "debugging-left-on"]
    assert {f.id for f in judge(with_set(nccl="2.30.7", **beside, **{name: "1"}))} & {
        "contradiction",
        "debugging-left-on",
    }, "the number does"
    shown, plain = (str(variables_table(with_set(**{name: value}))) for value in (word, "1"))
    assert f"{word!r} is read as 0" in shown and variables()[name].means in plain and variables()[name].means not in shown


@pytest.mark.parametrize(("value", "number"), [("0x1", "1"), ("0X0", "0"), ("1x", "1"), (" 1", "1"), ("x1", "0"), ("yes", "0")])
def test_nccl_reads_the_beginning_of_a_number_also_in_hexadecimal(value, number):
    assert variables()["NCCL_P2P_DISABLE"].as_read(value) == number


def test_only_the_leading_digits_of_a_number_count():
    assert found(with_set(NCCL_IB_DISABLE="1x", NCCL_IB_HCA="mlx5"), "contradiction") and found(
        with_set(NCCL_MIN_CTAS="9x", NCCL_MAX_CTAS="8"), "contradiction"
    )
    assert not found(with_set(NCCL_MIN_CTAS="x9", NCCL_MAX_CTAS="8"), "contradiction")


@pytest.mark.parametrize(("name", "value", "instead"), [
    ("NCCL_TIMEOUT", "7200", "seconds=7200"), ("TORCH_NCCL_TIMEOUT", "60", "seconds=60"), ("NCCL_COMM_TIMEOUT", "long", "seconds=1800")])
def test_a_timeout_keeps_the_value_that_was_meant(name, value, instead):
    assert instead in lines(found(with_set(**{name: value}), "unread-variable")[0])[0]


@pytest.mark.parametrize(("value", "meant"), [("INFOO", "INFO"), ("wran", "WARN"), ("TRCE", "TRACE"), ("ERROR", "WARN")])
def test_a_misspelt_word_is_the_nearest_valid_one(value, meant):
    assert lines(found(with_set(NCCL_DEBUG=value), "wrong-value")[0]) == [f"NCCL_DEBUG={meant}"]


def test_what_may_hang_leads_before_a_misspelt_word_and_says_what_it_is_for():
    first = [f for f in judge(with_set(NCCL_DEBUG="INFOO", CUDA_LAUNCH_BLOCKING="1")) if f.severity is Severity.WARN][0]
    assert first.setting == "CUDA_LAUNCH_BLOCKING=1" and "04-transports" not in first.remedy[0].text
    assert "04-transports" in found(with_set(NCCL_P2P_DISABLE="1"), "debugging-left-on")[0].remedy[0].text


@pytest.mark.parametrize(
    ("torch", "name", "rule"),
    [
        ("2.8.0", "TORCH_NCCL_TRACE_BUFFER_SIZE", None),
        ("2.9.0", "TORCH_NCCL_TRACE_BUFFER_SIZE", "renamed-variable"),
        (Gap("absent"), "TORCH_NCCL_TRACE_BUFFER_SIZE", "renamed-variable"),
        ("2.8.0", "TORCH_FR_BUFFER_SIZE", "not-yet-read"),
        ("2.9.1", "TORCH_FR_BUFFER_SIZE", None),
        (Gap("absent"), "TORCH_FR_BUFFER_SIZE", None),
    ],
)
def test_renamed_and_not_yet_read_go_by_the_torch_in_use(torch, name, rule):
    ids = {f.id for f in judge(with_set(torch=torch, **{name: "2000"}))} & {"renamed-variable", "not-yet-read"}
    assert ids == ({rule} if rule else set())


def test_not_yet_read_names_the_old_name_where_there_was_one():
    assert lines(found(with_set(torch="2.8.0", TORCH_FR_BUFFER_SIZE="2000"), "not-yet-read")[0]) == ["TORCH_NCCL_TRACE_BUFFER_SIZE=2000"]


def test_dead_variable_fires_when_the_version_is_past_its_last_reader():
    assert found(with_set(NCCL_LL_THRESHOLD="16384"), "dead-variable")[0].title.endswith(
        " NCCL 2.4 is the last version that reads this variable"
    )
    assert found(with_set(nccl="2.4.8", NCCL_LL_THRESHOLD="16384"), "dead-variable") == []
    seen = {
        nccl: [f.severity for f in found(with_set(nccl=nccl, NCCL_SHM_MEMCPY_MODE="1"), "dead-variable")]
        for nccl in ("2.30.7", "2.30.4", NOT_RUN)
    }
    assert list(seen.values()) == [[Severity.WARN], [], [Severity.NOTE]], "a file alone does not say which NCCL runs"
    assert found(with_set(NCCL_IB_CUDA_SUPPORT="1"), "renamed-variable")[0].severity is Severity.WARN


def test_bytes_for_events_fires_when_a_buffer_is_given_in_bytes_under_either_name():
    assert lines(found(with_set(torch="2.8", TORCH_NCCL_TRACE_BUFFER_SIZE="67108864"), "bytes-for-events")[0]) == [
        "TORCH_NCCL_TRACE_BUFFER_SIZE=2000"
    ]
    assert found(with_set(TORCH_FR_BUFFER_SIZE="67108864"), "bytes-for-events") and not found(
        with_set(TORCH_FR_BUFFER_SIZE="20000"), "bytes-for-events"
    )


def test_debugging_left_on_warns_when_a_transport_is_off_and_notes_chatter():
    assert found(with_set(NCCL_P2P_DISABLE="1"), "debugging-left-on")[0].severity is Severity.WARN
    assert found(with_set(NCCL_DEBUG="INFO"), "debugging-left-on")[0].severity is Severity.NOTE
    assert found(with_set(NCCL_P2P_DISABLE="0", NCCL_DEBUG="WARN"), "debugging-left-on") == []


def test_ranks_share_a_gpu_fires_when_it_is_on_and_the_version_reads_it():
    """And cumem-must-agree: rows of rules.has_a_side_effect."""
    assert found(with_set(NCCL_CUMEM_ENABLE="0"), "cumem-must-agree")[0].severity is Severity.NOTE and not found(
        with_set(NCCL_CUMEM_ENABLE=""), "cumem-must-agree"
    )
    assert found(with_set(nccl="2.30.7", NCCL_MULTI_RANK_GPU_ENABLE="1"), "ranks-share-a-gpu")
    assert not found(with_set(nccl="2.30.7", NCCL_MULTI_RANK_GPU_ENABLE="0"), "ranks-share-a-gpu")


# ---- several ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "NCCL_P2P_DISABLE=1 NCCL_P2P_LEVEL=NVL",
        "NCCL_IB_DISABLE=1 NCCL_IB_HCA=mlx5",
        "NCCL_IB_DISABLE=1 NCCL_NET=IB",
        "NCCL_NET_PLUGIN=none NCCL_NET=AWS",
        "NCCL_MIN_CTAS=32 NCCL_MAX_CTAS=4",
        "NCCL_CUMEM_ENABLE=0 NCCL_MNNVL_ENABLE=1",
        "NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=1",
        "NCCL_SOCKET_NTHREADS=16 NCCL_NSOCKS_PERTHREAD=8",
        "NCCL_MIN_NCHANNELS=32 NCCL_MAX_NCHANNELS=2",
        "TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_FR_BUFFER_SIZE=0",
        "NCCL_ASYNC_ERROR_HANDLING=1 TORCH_NCCL_ASYNC_ERROR_HANDLING=3",
        "NCCL_GRAPH_STREAM_ORDERING=0 NCCL_GRAPH_MIXING_SUPPORT=1",
        "TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_NCCL_TRACE_BUFFER_SIZE=0",
    ],
)
def test_contradiction_fires_when_one_setting_undoes_another_and_stays_quiet_when_it_is_alone(text):
    pair = dict(part.split("=") for part in text.split())
    assert found(with_set(**pair), "contradiction")
    for name, value in pair.items():
        assert not found(with_set(**{name: value}), "contradiction")


@pytest.mark.parametrize(
    "text", ["NCCL_P2P_DISABLE=0 NCCL_P2P_LEVEL=NVL", "NCCL_ASYNC_ERROR_HANDLING=3 TORCH_NCCL_ASYNC_ERROR_HANDLING=3", "NCCL_NO_SUCH=1"]
)
def test_contradiction_stays_quiet_when_two_settings_agree_or_a_name_is_unknown(text):
    assert not found(with_set(**dict(part.split("=") for part in text.split())), "contradiction")


def test_contradiction_stays_quiet_when_the_two_stand_in_different_processes():
    apart = environment(role("trainer", {"NCCL_P2P_DISABLE": "1"}), role("engine", {"NCCL_P2P_LEVEL": "NVL"}))
    together = environment(*(role(n, {"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "NVL"}) for n in ("trainer", "engine")))
    assert not found(apart, "contradiction") and len(found(together, "contradiction")) == 1


def test_one_value_is_judged_for_every_version_that_reads_it():
    old, new = role("trainer", {"TORCH_FR_BUFFER_SIZE": "2000"}), role("engine", {"TORCH_FR_BUFFER_SIZE": "2000"}, torch="2.8.0")
    assert len(found(environment(old, new), "not-yet-read")) == 1 and not found(environment(old), "not-yet-read")


def test_cannot_act_fires_when_a_log_setting_has_no_log():
    assert found(with_set(NCCL_DEBUG_SUBSYS="NET"), "cannot-act") and not found(
        with_set(NCCL_DEBUG_SUBSYS="NET", NCCL_DEBUG="INFO"), "cannot-act"
    )


def test_conf_overridden_fires_when_the_environment_says_otherwise():
    conf = {"/home/a/.nccl.conf": {"NCCL_IB_HCA": "mlx5_0"}, "/etc/nccl.conf": {"NCCL_SOCKET_IFNAME": "nope0", "NCCL_IB_HCA": "mlx5_1"}}
    env = environment(role(variables={"NCCL_SOCKET_IFNAME": "eth0"}, conf=conf))
    assert [re.findall(r"NCCL_\w+|[/.\w]*nccl\.conf|nope0|eth0|mlx5_\d", f.title) for f in found(env, "conf-overridden")] == [
        ["NCCL_SOCKET_IFNAME", "/etc/nccl.conf", "nope0", "eth0"],
        ["NCCL_IB_HCA", "/etc/nccl.conf", "mlx5_1", "/home/a/.nccl.conf", "mlx5_0"]], "the loser, then the winner"
    assert loud(env) == []
    assert (
        found(environment(role(variables={"NCCL_IB_HCA": "mlx5_0"}, conf={"/etc/nccl.conf": {"NCCL_IB_HCA": "mlx5_0"}})), "conf-overridden")
        == []
    )


def test_a_setting_in_nccl_conf_is_judged_like_one_in_the_environment():
    env = environment(role(conf={"/etc/nccl.conf": {"NCCL_SOCKET_IFNAME": "nope0"}}))
    finding, = found(env, "interface-missing")
    assert finding.evidence[0].text.startswith("NCCL_SOCKET_IFNAME=nope0 (/etc/nccl.conf, ")


def test_roles_differ_fires_when_trainer_and_engine_are_set_differently():
    env = environment(role("trainer", {"NCCL_CUMEM_ENABLE": "0"}), role("engine"))
    assert re.fullmatch(r"NCCL_CUMEM_ENABLE: .* trainer \(0\), engine \(.*\D\)", found(env, "roles-differ")[0].title)
    assert not found(environment(role("a", {"NCCL_CUMEM_ENABLE": "0"}), role("b", {"NCCL_CUMEM_ENABLE": "0"})), "roles-differ")


@pytest.mark.parametrize(("one", "other", "told"), [
    ({"container": ["/.dockerenv"]}, {}, " a (/.dockerenv), b (none)"),
    ({"ipc_namespace": "ipc:[1]"}, {}, " a (ipc:[1]), b (ipc:[4026531839])"),
    ({"interfaces": ["lo"]}, {"interfaces": ["lo", "eth0"]}, " a (lo), b (lo eth0)"),
    ({"container": NOT_RUN, "ipc_namespace": NOT_RUN, "interfaces": NOT_RUN}, {}, "")])
def test_roles_differ_notes_other_namespaces_and_stays_quiet_where_one_is_not_known(one, other, told):
    differ = found(environment(role("a", **one), role("b", **other)), "roles-differ")
    assert [f.severity for f in differ] == ([Severity.NOTE] if told else []) and all(f.title.endswith(told) for f in differ)


def test_interface_missing_goes_by_the_network_of_each_process():
    pair = [role(n, {"NCCL_SOCKET_IFNAME": "eth0"}, interfaces=own) for n, own in (("a", ["lo", "eth0"]), ("b", ["lo"]))]
    assert [f.evidence[0].text for f in found(environment(*pair), "interface-missing")] == ["NCCL_SOCKET_IFNAME=eth0 (b)"]
    assert not found(environment(pair[0], dataclasses.replace(pair[1], interfaces=NOT_RUN)), "interface-missing")


# ---- the host --------------------------------------------------------------------------------------------------------------------

def test_interface_missing_fires_when_no_interface_fits_and_stays_quiet_for_prefixes_and_exclusions():
    broken, = found(with_set(NCCL_SOCKET_IFNAME="ens1f0"), "interface-missing")
    assert (broken.severity, broken.cause, lines(broken)) == (Severity.BROKEN, "socket-interface-wrong", ["NCCL_SOCKET_IFNAME=eth0"])
    assert found(with_set(NCCL_SOCKET_IFNAME="eth0,ens1f0"), "interface-missing")[0].severity is Severity.NOTE
    assert found(with_set(NCCL_SOCKET_IFNAME="=eth"), "interface-missing") and found(
        with_set(GLOO_SOCKET_IFNAME="eth"), "interface-missing"
    )
    for good in ("eth", "=eth0", "^ens", "^=ens1", "ib,eth"):
        assert not found(with_set(NCCL_SOCKET_IFNAME=good), "interface-missing")
    assert not found(with_set(on=NOT_RUN, NCCL_SOCKET_IFNAME="ens1f0"), "interface-missing")


def test_hca_missing_fires_when_no_adapter_fits():
    assert "sockets" in found(with_set(NCCL_IB_HCA="mlx4"), "hca-missing")[0].title
    assert found(with_set(NCCL_IB_HCA="=mlx5_0:1,mlx5_9:1"), "hca-missing")[0].severity is Severity.NOTE
    assert not found(with_set(NCCL_IB_HCA="mlx5_0:1"), "hca-missing") and not found(with_set(NCCL_IB_HCA="^mlx5_9"), "hca-missing")


def test_cannot_act_fires_when_the_network_is_not_there():
    bare = host(hcas=[])
    assert found(with_set(on=bare, NCCL_IB_TIMEOUT="22"), "cannot-act") and not found(with_set(NCCL_IB_TIMEOUT="22"), "cannot-act")
    assert found(with_set(FI_CXI_RX_MATCH_MODE="hybrid"), "cannot-act")
    assert not found(with_set(on=host(hcas=["cxi0"]), FI_CXI_RX_MATCH_MODE="hybrid"), "cannot-act")
    assert found(with_set(NCCL_SOCKET_IFNAME="lo"), "cannot-act") and not found(with_set(on=bare, NCCL_IB_DISABLE="1"), "cannot-act")


@pytest.mark.parametrize(
    ("changes", "rule", "severity"),
    [
        ({"addresses": Gap("failed", "Name or service not known")}, "name-not-resolved", Severity.NOTE),
        ({"acs": ["0000:00:01.0"], "iommu": "on"}, "peer-traffic-redirected", Severity.NOTE),
        ({"xids": ["NVRM: Xid (PCI:0000:06:00): 79, pid=1, GPU has fallen off the bus."]}, "xids-seen", Severity.WARN),
        ({"xids": ["NVRM: Xid (PCI:0000:06:00): 31, pid=7", "NVRM: Xid (PCI:0000:06:00): 79"]}, "xids-seen", Severity.WARN),
        (
            {"xids": ["NVRM: Xid (PCI:0000:06:00): 31, pid=7, name=python", "NVRM: Xid (PCI:0000:07:00): 43, pid=8"]},
            "xids-seen",
            Severity.NOTE,
        ),
    ],
)
def test_host_rules_fire_when_the_host_lacks_something(changes, rule, severity):
    assert found(environment(on=host(**changes)), rule)[0].severity is severity
    gaps = {name: Gap("no-permission", "root only") for name in changes if name != "addresses"}
    assert not found(environment(), rule) and not found(environment(on=host(**gaps)), rule)


def test_name_not_resolved_is_a_warning_where_the_job_meets_there():
    nameless = host(addresses=Gap("failed", "Name or service not known"))
    assert found(with_set(on=nameless, MASTER_ADDR="node1"), "name-not-resolved")[0].severity is Severity.WARN
    assert found(with_set(on=nameless, MASTER_ADDR="10.0.0.1"), "name-not-resolved")[0].severity is Severity.NOTE


def test_infiniband_off_costs_nothing_on_a_host_without_any():
    assert [f.severity for f in found(with_set(on=host(hcas=[]), NCCL_IB_DISABLE="1"), "debugging-left-on")] == [Severity.NOTE]
    assert [f.severity for f in found(with_set(NCCL_IB_DISABLE="1"), "debugging-left-on")] == [Severity.NOTE]
    assert [f.severity for f in found(with_set(on=host(hcas=[]), NCCL_P2P_DISABLE="1"), "debugging-left-on")] == [Severity.WARN]


SEVERAL = {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}


@pytest.mark.parametrize(
    ("settings", "several", "severity"),
    [
        ({"NCCL_NET": "Socket"}, True, Severity.WARN),
        ({"NCCL_NET": "Socket"}, False, Severity.NOTE),
        ({"NCCL_IB_DISABLE": "1"}, True, Severity.WARN),
        ({"NCCL_IB_DISABLE": "1", "NCCL_NET": "AWS Libfabric"}, True, None),
        ({"NCCL_IB_DISABLE": "1", "FI_PROVIDER": "cxi"}, True, None),
        ({"NCCL_IB_DISABLE": "1", "NCCL_NET_PLUGIN": "ofi"}, True, None),
        ({"NCCL_IB_DISABLE": "1", "NCCL_NET_PLUGIN": "none"}, True, Severity.WARN),
        ({"NCCL_IB_DISABLE": "0"}, True, None),
        ({"NCCL_NET": "IB"}, True, None),
        ({"NCCL_NET": "socket", "FI_PROVIDER": "cxi"}, True, Severity.WARN),
    ],
)
def test_sockets_that_are_forced_are_a_fault_only_between_nodes_that_have_better(settings, several, severity):
    seen = found(with_set(**settings, **(SEVERAL if several else {})), "debugging-left-on")
    assert [f.severity for f in seen] == ([severity] if severity else [])
    bare = found(with_set(on=host(hcas=[]), **settings, **SEVERAL), "debugging-left-on")
    assert all(f.severity is Severity.NOTE for f in bare)


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("#SBATCH --nodes=4\nexport NCCL_NET=Socket NCCL_IB_HCA=mlx5", Severity.WARN),
        ("#SBATCH -N 4\nexport NCCL_NET=Socket", Severity.NOTE),
        ("export NCCL_NET=Socket NCCL_IB_HCA=mlx5", Severity.NOTE),
        ("export NCCL_NET=Socket NCCL_IB_HCA=mlx5\nN=2\ntorchrun --nnodes $((N * 2)) t.py", Severity.WARN),
    ],
)
def test_a_script_shows_several_nodes_and_rdma_itself(text, severity):
    assert [f.severity for f in found(Environment([environment_file.parse(text, "x")], NOT_RUN), "debugging-left-on")] == [severity]


@pytest.mark.parametrize("name", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"])
def test_the_loopback_breaks_a_job_of_several_nodes_and_no_other(name):
    assert found(with_set(**{name: "lo"}, **SEVERAL), "cannot-act")[0].severity is Severity.BROKEN
    assert found(with_set(**{name: "lo"}), "cannot-act")[0].severity is Severity.NOTE
    script = environment_file.parse(f"srun -N 2 env {name}==lo torchrun t.py", "x")
    assert [f.severity for f in judge(Environment([script], NOT_RUN)) if f.id == "cannot-act"] == [Severity.BROKEN]
    for nodes, severity in (
        ("NNODES=2", Severity.BROKEN),
        ("SLURM_JOB_NUM_NODES=16", Severity.BROKEN),
        ("NNODES=1", Severity.NOTE),
        ("OTHER=2", Severity.NOTE),
    ):
        dump = environment_file.parse(f"{name}=lo\n{nodes}\n", "x")
        assert [f.severity for f in judge(Environment([dump], NOT_RUN)) if f.id == "cannot-act"] == [severity]
    assert not found(with_set(**{name: "lo,eth0"}, **SEVERAL), "cannot-act") and not found(
        with_set(**{name: "^lo"}, **SEVERAL), "cannot-act"
    )


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1", "127.0.1.1", "::1", "[::1]:29500", "localhost:29500"])
@pytest.mark.parametrize("name", ["MASTER_ADDR", "PET_RDZV_ENDPOINT"])
def test_an_address_of_each_node_itself_breaks_a_job_of_several_nodes_and_no_other(name, address):
    [wrong] = found(with_set(**{name: address}, **SEVERAL), "cannot-act")
    assert (wrong.severity, wrong.cause, wrong.status) == (Severity.BROKEN, "rendezvous-misconfigured", "likely")
    assert not found(with_set(**{name: address}), "cannot-act") and not found(
        with_set(**{name: "node-127.0.0.1.example"}, **SEVERAL), "cannot-act"
    )


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("source /x/env.sh", Severity.UNKNOWN),
        (". env.sh\nexport MASTER_PORT=29500", Severity.UNKNOWN),
        ("source env.sh\nexport NCCL_DEBUG=WARN", Severity.NOTE),
        ("if [ -f env.sh ]; then source env.sh; fi", Severity.UNKNOWN),
        ("docker run --env-file env.sh i", Severity.UNKNOWN),
        ("source .venv/bin/activate\nexport NCCL_DEBUG=WARN", None),
        ("echo source env.sh\nexport NCCL_DEBUG=WARN", None),
    ],
)
def test_a_file_that_a_script_sources_is_named_and_is_unknown_where_all_may_stand_in_it(text, severity):
    seen = found(Environment([environment_file.parse(text + "\nsrun python t.py", "x")], NOT_RUN), "not-followed")
    assert [f.severity for f in seen] == ([severity] if severity else [])
    assert not seen or "env.sh" in seen[0].title


def test_a_deprecated_default_is_a_note_from_the_version_that_says_so():
    on = {"TORCH_NCCL_AVOID_RECORD_STREAMS": "1"}
    assert [f.severity for f in found(with_set(torch="2.8.0", **on), "deprecated-variable")] == [Severity.NOTE]
    assert not found(with_set(torch="2.7.1", **on), "deprecated-variable") and not found(
        with_set(TORCH_NCCL_AVOID_RECORD_STREAMS="0"), "deprecated-variable"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "0"), ("FI_LOG_LEVEL", "1"), ("FI_CXI_DISABLE_CQ_HUGETLB", "1"), ("TP_SIZE", "8")],
)
def test_what_is_read_or_is_nobody_elses_business_is_no_fault(name, value):
    assert not [f for f in judge(with_set(on=host(hcas=["cxi0"]), **{name: value})) if f.id in ("wrong-value", "debugging-left-on")]
    assert "TP_SIZE" not in environment_file.parse("TP_SIZE=8\nNCCL_DEBUG=WARN").variables


def test_limit_too_low_fires_when_few_files_or_little_locked_memory_are_allowed():
    low = role(nofile="1024", memlock="65536")
    assert [f.severity for f in found(environment(low), "limit-too-low")] == [Severity.NOTE, Severity.NOTE]
    many = dataclasses.replace(low, variables={"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"})
    assert [f.severity for f in found(environment(many), "limit-too-low")] == [Severity.NOTE, Severity.WARN]
    assert len(found(environment(low, on=host(hcas=[])), "limit-too-low")) == 1
    assert not found(environment(role(nofile=NOT_RUN, memlock=NOT_RUN)), "limit-too-low") and not found(environment(), "limit-too-low")


def test_shm_too_small_is_told_once_for_each_mount():
    small = [64 << 20, 64 << 20, 30]
    env = environment(
        role("trainer", shm=small), role("engine"), role("engine 2", shm=small), role("engine 3", shm=[64 << 20, 64 << 20, 31])
    )
    assert [f.title.partition(": /dev/shm ")[0] for f in found(env, "shm-too-small")] == ["engine 3", "trainer"]
    assert all("64 of 64 MiB" in f.title for f in found(env, "shm-too-small"))
    assert not found(environment(), "shm-too-small") and not found(environment(role(shm=Gap("no-permission", "x"))), "shm-too-small")


@pytest.mark.parametrize(("changes", "severity"), [
    ({"nofile": "1024"}, Severity.NOTE), ({"memlock": "65536"}, Severity.NOTE), ({"shm": [64 << 30, 60 << 30, 24]}, Severity.WARN),
    ({"shm": [64 << 30, 1 << 30, 23]}, None), ({"shm": Gap("no-permission", "not yours")}, None), ({"nofile": NOT_RUN}, None)])
def test_roles_differ_in_limits_and_mounts(changes, severity):
    told = found(environment(role("trainer"), role("engine", **changes)), "roles-differ")
    assert [f.severity for f in told] == ([severity] if severity else []) and all("engine (" in f.title for f in told)


def test_a_file_of_one_value_is_read():
    assert row_of("1\n", WHOLE) == "1" and row_of("\n", WHOLE).reason == "absent"


ROWS = {f.name: f for f in dataclasses.fields(Role) if f.metadata.get("row")}


@pytest.mark.parametrize("separator", [f"{'':<10}", ":\t"])  # of /proc/PID/limits and of /proc/PID/status
@pytest.mark.parametrize("field", ROWS)
def test_each_row_of_a_file_of_proc_is_read_and_compared(field, separator):
    """Such a figure is a field of Role: no other code reads it, or compares the ranks of a job."""
    metadata = ROWS[field].metadata
    path = metadata["reads"].replace("{pid}", "41")
    others = {f.metadata["reads"].replace("{pid}", "41"): NOT_RUN for f in ROWS.values()}
    name = metadata["row"]
    other = f"Other {name}{separator}1\n"
    text = "4017 5\n" if name == WHOLE else f"{other}{name}{separator}4017   unlimited   units\n{name} more 2\n"
    assert rows_of({**others, path: text})[field] == "4017" and rows_of(others) == dict.fromkeys(ROWS, NOT_RUN)
    assert rows_of({**others, path: "\n" if name == WHOLE else other})[field].reason == "absent"
    differ = found(environment(role("trainer", **{field: "4017"}), role("engine", **{field: "17"})), "roles-differ")
    assert [f.evidence[-1].source for f in differ] == [f"environment.roles[1].{field}"] * metadata["alike"]


LEAST = {name: row["least"] for name, row in table("environment/environment")["limits"].items()}


@pytest.mark.parametrize("field", LEAST)
def test_each_limit_of_the_table_is_judged_by_its_least(field):
    low, enough = (found(environment(role(**{field: str(LEAST[field] - less)})), "limit-too-low") for less in (1, 0))
    assert [f.evidence[0].source for f in low] == [f"environment.roles[0].{field}"] and not enough


# ---- libnccl ---------------------------------------------------------------------------------------------------------------------

def test_wheel_disagrees_fires_when_two_wheels_claim_one_path():
    lib = library(version="2.27.5", cuda="12.9", wheels={"nvidia-nccl-cu13 2.28.9": "other", "nvidia-nccl-cu12 2.27.5": "same"})
    finding, = found(environment(on=host(libraries=[lib])), "wheel-disagrees")
    assert re.findall(r"(?:libnccl|nvidia-nccl-cu\d+) [\d.]+", finding.title) == [
        "libnccl 2.27.5",
        "nvidia-nccl-cu12 2.27.5",
        "nvidia-nccl-cu13 2.28.9",
    ]
    assert not found(environment(), "wheel-disagrees")
    elsewhere = library("/opt/libnccl.so.2", wheels={"nvidia-nccl-cu12 2.19.3": "other"})
    assert not found(environment(on=host(libraries=[library(), elsewhere])), "wheel-disagrees"), "not mapped: nobody runs it"


def test_wheel_disagrees_fires_when_one_version_number_has_another_hash():
    assert found(environment(on=host(libraries=[library(wheels={"nvidia-nccl-cu13 2.28.9": "other"})])), "wheel-disagrees")
    assert not found(environment(on=host(libraries=[library(wheels={"nvidia-nccl-cu13 2.28.9": "unknown"})])), "wheel-disagrees")


def test_two_libraries_fires_when_one_process_has_two_copies():
    second = library("/opt/nccl/libnccl.so.2", sha256="b6" * 32, version="2.27.5")
    env = environment(role(mapped=[NCCL, second.path, "/opt/libnccl-net.so"]), on=host(libraries=[library(), second]))
    assert [e.text for e in found(env, "two-libraries")[0].evidence] == [NCCL, second.path]
    assert not found(environment(role(mapped=[NCCL, "/opt/libnccl-net.so"])), "two-libraries")


@pytest.mark.parametrize(("known", "severity", "status", "unknown"), [
    ([library(), library("/opt/nccl/libnccl.so.2", version="2.27.5")], Severity.NOTE, "possible", 0),
    ([library(), library("/opt/nccl/libnccl.so.2", sha256="b6" * 32)], Severity.WARN, "likely", 0),
    ([library()], Severity.WARN, "likely", 1),
    ([library(sha256=NOT_RUN), library("/opt/nccl/libnccl.so.2", sha256=NOT_RUN)], Severity.WARN, "likely", 0)])
def test_two_libraries_of_one_content_are_only_noted_and_of_unknown_content_they_may_differ(known, severity, status, unknown):
    two, = found(environment(role(mapped=[NCCL, "/opt/nccl/libnccl.so.2"]), on=host(libraries=known)), "two-libraries")
    assert (two.severity, two.status, two.title.count("version unknown")) == (severity, status, unknown)


def test_cuda_differs_fires_when_the_major_version_is_another():
    assert found(environment(on=host(libraries=[library(cuda="12.9")])), "cuda-differs")
    assert not found(environment(on=host(libraries=[library(cuda="13.1")])), "cuda-differs")
    assert not found(environment(role(torch_cuda=NOT_RUN), on=host(libraries=[library(cuda="12.9")])), "cuda-differs")


def test_preload_tells_whether_it_is_at_work_or_ignored():
    env = environment(role(variables={"LD_PRELOAD": "/opt/libnccl.so.2"}))
    assert found(env, "preload")[0].severity is Severity.WARN
    note, = found(environment(role(variables={"LD_PRELOAD": f"libx.so:{NCCL}"}, preloaded=[NCCL])), "preload")
    assert note.severity is Severity.NOTE and note.title.endswith(NCCL) and not note.remedy
    assert not found(environment(role(variables={"LD_PRELOAD": "libjemalloc.so"})), "preload")
    ignored, = found(environment(role(variables={"LD_PRELOAD": "/nope/libnccl.so.2"}, mapped=[])), "preload")
    assert ignored.severity is Severity.WARN and len(ignored.evidence) == 1 and "/nope/libnccl.so.2" in ignored.title
    assert not found(environment(role(variables={"LD_PRELOAD": "/nope/libnccl.so.2"}, mapped=NOT_RUN)), "preload"), "of a file nobody knows"


def test_a_preloaded_copy_beside_the_wheels_is_the_one_that_counts():
    """torch maps its wheel's libnccl by path, too (seen with torch 2.11, NCCL 2.28.9): both are there, and the preloaded one is called."""
    second = library("/tmp/x/libnccl.so.2", sha256="b6" * 32)
    trainer = role("trainer", variables={"LD_PRELOAD": second.path}, mapped=[NCCL, second.path], preloaded=[second.path])
    env = environment(trainer, role("engine"), on=host(libraries=[library(), second]))
    assert f"trainer: 2.28.9 ({second.path}), engine: 2.28.9 ({NCCL})" in found(env, "roles-libraries-differ")[0].title
    for rule in ("preload", "library-named"):
        assert (title := found(env, rule)[0].title).startswith("trainer: ") and title.endswith(f" {second.path}"), title
    assert "2.28.9" in found(env, "library-named")[0].title
    two, = found(env, "two-libraries")
    assert [e.text for e in two.evidence] == [second.path, NCCL] and "LD_PRELOAD" in two.title, "first the one that is called"


def test_library_replaced_fires_when_the_mapped_file_is_gone():
    assert found(environment(role(mapped=[f"{NCCL} (deleted)"])), "library-replaced")
    assert not found(environment(), "library-replaced")


def test_roles_libraries_differ_fires_when_one_version_number_has_two_contents():
    other = library("/opt/libnccl.so.2", sha256="b6" * 32)
    env = environment(role("trainer"), role("engine", mapped=["/opt/libnccl.so.2"]), on=host(libraries=[library(), other]))
    assert found(env, "roles-libraries-differ")[0].severity is Severity.WARN
    assert not found(environment(role("trainer"), role("engine")), "roles-libraries-differ")
    copy = library("/opt/libnccl.so.2")
    env = environment(role("trainer", mapped=[copy.path]), role("engine"), on=host(libraries=[library(), copy]))
    note, = found(env, "roles-libraries-differ")
    assert note.severity is Severity.NOTE and "trainer: 2.28.9 (/opt/libnccl.so.2)" in note.title


@pytest.mark.parametrize(
    ("requires", "severity"),
    [
        ({"vllm 0.10.0": ["torch==2.7.1"]}, Severity.WARN),
        ({"vllm 0.20.2": ["torch==2.11.0"]}, None),
        ({"deepspeed 0.19.6": ["torch>=2.0.0"]}, None),
        ({"vllm 0.11.1": ["ray[cgraph]>=2.48.0"], "ray 2.40.0": []}, Severity.WARN),
        ({"vllm 0.11.0": ["ray[cgraph]>=2.48.0"]}, Severity.NOTE),
        ({"torch 2.11.0": ['nvidia-nccl-cu13==2.28.9; platform_system == "Linux"'], "nvidia-nccl-cu13 2.30.4": []}, Severity.NOTE),
        ({"torch 2.11.0": ["nvidia-nccl-cu13==2.28.9"], "nvidia-nccl-cu13 2.28.9": []}, None),
        ({"x 1": ["torch<2.11,>=2.4"]}, Severity.WARN),
        ({"x 1": ["torch (>=2.4,!=2.11.*)"]}, Severity.WARN),
        ({"x 1": ["torch~=2.10"]}, None),
        ({"x 1": ["torch==2.*"]}, None),
        ({"x 1": ["torch==2.7.1; extra == 'old'"]}, None),
        ({"x 1": ["torch==2.7.1 ; sys_platform == 'darwin'"]}, None),
        ({"x 1": ["torchvision==0.1"]}, None),
    ],
)
def test_framework_version_incompatible_fires_by_the_metadata_beside_torch(requires, severity):
    told = found(environment(role(requires=requires)), "framework-version-incompatible")
    assert [f.severity for f in told] == ([severity] if severity else [])
    assert (
        not found(environment(role(requires=requires, torch=NOT_RUN)), "framework-version-incompatible")
        or "ray" in str(requires)
        or "nvidia" in str(requires)
    )


def test_framework_version_incompatible_names_both_versions_and_a_way_out():
    finding, = found(environment(role("trainer", requires={"vllm 0.10.0": ["torch==2.7.1"]})), "framework-version-incompatible")
    assert re.findall(r"\w+(?: |==)[\d.+cu]+\d", finding.title) == ["vllm 0.10.0", "torch==2.7.1", "torch 2.11.0+cu130"]
    assert finding.title.startswith("trainer: ") and lines(finding)[0].endswith(" 'vllm==0.10.0'")
    silent, = found(environment(role("trainer", requires={"vllm 0.8.5": []})), "framework-version-incompatible")
    assert lines(silent)[0].endswith(" 'vllm==0.8.5' 'torch==2.6.0'"), "pip cannot know the torch of a wheel that requires none"


def version_findings(torch, *lines, **markers):
    told = found(environment(role(torch=torch, requires={"x 1": list(lines)}, markers=markers)), "framework-version-incompatible")
    return [f.severity for f in told]


@pytest.mark.parametrize(("torch", "specifier", "severity"), [
    ("2.11.0", "<=2.11", None), ("2.11.0", ">2.11", Severity.WARN), ("2.11.0+cu130", "==2.11", None),
    ("2.9.0rc3", ">=2.9", Severity.NOTE), ("2.9.0rc3", "<2.9", Severity.WARN), ("2.9.0.post1", ">2.9.0", Severity.WARN),
    ("2.9.0.post1", "==2.9.0", Severity.NOTE), ("2.10.1", "~=2.10.0", None), ("2.11.0", "!=2.11.*", Severity.WARN),
    ("2.7.0a0+79aa17489c.nv25.4", ">=2.6,<2.8", None)])
def test_versions_compare_as_pep_440_says(torch, specifier, severity):
    assert version_findings(torch, f"torch{specifier}") == ([severity] if severity else [])


releases = st.builds("{}{}{}{}".format, st.from_regex(r"[0-3](\.[0-3]){0,3}", fullmatch=True),
                     st.sampled_from(["", "a0", "rc1"]), st.sampled_from(["", ".post1"]), st.sampled_from(["", ".dev2"]))


@settings(max_examples=200, deadline=None)
@given(releases, st.sampled_from(["", "+cu130"]),
       st.lists(st.builds("{}{}".format, st.sampled_from(["==", "!=", "<=", ">=", "<", ">"]), releases), min_size=1, max_size=3))
def test_a_finding_stands_for_each_requirement_that_packaging_calls_unmet(release, local, clauses):
    met = SpecifierSet(",".join(clauses)).contains(release + local, prereleases=True)
    assert bool(version_findings(release + local, f"torch{','.join(clauses)}")) is not met


@pytest.mark.parametrize(
    ("marker", "markers", "severity"),
    [
        ("sys_platform == 'linux' and python_version >= '3.10'", {"python_version": "3.11"}, Severity.WARN),
        ("sys_platform == 'linux' and python_version >= '3.10'", {"python_version": "3.9"}, None),
        ("sys_platform == 'linux' and python_version >= '3.10'", {}, Severity.UNKNOWN),
        ("python_version >= '3.8'", {}, Severity.WARN),
        ("python_full_version < '3.11.4'", {"python_version": "3.11"}, Severity.UNKNOWN),
        ("python_full_version < '3.11.4'", {"python_version": "3.12"}, None),
        ("platform_machine == 'aarch64'", {"platform_machine": "x86_64"}, None),
        ("platform_machine == 'aarch64'", {}, Severity.UNKNOWN),
        ("platform_release >= '5'", {"python_version": "3.11", "platform_machine": "x86_64"}, Severity.UNKNOWN),
        ("python_version ~= 'new'", {"python_version": "3.11"}, Severity.UNKNOWN),
        ("extra == 'old'", {}, None),
        ("cuda > 12", {}, Severity.UNKNOWN),
    ],
)
def test_a_marker_is_judged_for_the_interpreter_of_the_job(marker, markers, severity):
    assert version_findings("2.11.0", f"torch==2.7.1; {marker}", **markers) == ([severity] if severity else [])


def test_a_version_that_cannot_be_read_leaves_the_requirement_undecided():
    assert version_findings("unknown", "torch>=2.4") == [Severity.UNKNOWN]


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=30),
        st.lists(st.text(max_size=60) | st.from_regex(r"torch(\[x\])? ?(==|>=|~=|<) ?[0-9.]{0,9}(\*|a0)?(; .{0,20})?"), max_size=4),
        max_size=4,
    )
)
def test_any_metadata_is_judged_without_an_error(requires):
    assert judge(environment(role(requires=requires)))


def test_library_named_is_unknown_when_torch_is_mapped_without_nccl():
    env = environment(role(mapped=["/v/torch/lib/libtorch_cpu.so"]))
    assert found(env, "library-named")[0].severity is Severity.UNKNOWN
    assert found(environment(role(mapped=[])), "library-named") == []


def test_facts_survive_json():
    for env in (environment(), Environment([dataclasses.replace(role(), mapped=NOT_RUN, nofile=NOT_RUN)], NOT_RUN)):
        assert TypeAdapter(Environment | Gap).validate_python(to_json(env)) == env


NOTES = {
    "export NCCL_DEBUG=ERROR\nexport NCCL_CUMEM_ENABLE=0\nNCCL_LIBRARY=$VENV/libnccl.so.2\nLD_PRELOAD=$NCCL_LIBRARY python grpo.py": {
        "NCCL_DEBUG",
        "NCCL_LIBRARY",
    },
    "export NCCL_DEBUG=INFO          # Verbose\nexport NCCL_TIMEOUT=1800        # 30 min\ndeepspeed --num_gpus=4 t.py": {"NCCL_TIMEOUT"},
    "beaker experiment create x.yml \\\n --env TORCH_NCCL_DEBUG=INFO \\\n --env NCCL_DEBUG=INFO \\\n"
    " --env TORCH_NCCL_TRACE_BUFFER_SIZE=67108864 \\\n --env NCCL_ASYNC_ERROR_HANDLING=1": {
        "TORCH_NCCL_DEBUG",
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
    },
}


@pytest.mark.parametrize("text", NOTES)
def test_launch_lines_as_they_are_written_in_the_field_are_found(text):
    seen = Environment([environment_file.parse(text)], NOT_RUN)
    assert {f.title.split(":")[0] for f in loud(seen)} == NOTES[text]


def test_every_rule_is_named_in_a_test():
    text = Path(__file__).read_text()
    assert [r.__name__ for r in rules.RULES if r.__name__.replace("_", "-") not in text and f"rules.{r.__name__}" not in text] == []


@pytest.mark.parametrize(("others", "words"), [(1, "1 further variable."), (40, "40 further variables.")])
def test_what_was_not_looked_at_is_counted_in_words(others, words):
    assert f" {words}" in variables_table(environment(role(others=others))).note


def test_of_a_number_with_a_unit_nccl_reads_the_number():
    for value, said in (("4M", "(4)"), ("x4", " as 0")):
        assert found(with_set(NCCL_BUFFSIZE=value), "wrong-value")[0].title.endswith(said)
