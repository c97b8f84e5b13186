"""The table of environment variables: its shape, and what its small language of values takes."""
from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping

import pytest
from hypothesis import given, strategies as st
from nccl_runbook.causes import variables as table_variables
from nccl_runbook.causes.tables import table as load
from refresh_variables import TABLE, in_guide, in_sources, missing

VERSION = re.compile(r"\d+(\.\d+){0,2}")
# read by libtorch_cpu, libtorch_cuda and c10d of torch 2.11.0 (the wheel), for ranks, the flight recorder, elastic and Gloo
TORCH_2_11 = """TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_BCAST_UNIQUEID TORCH_NCCL_BLOCKING_WAIT
TORCH_NCCL_COORD_CHECK_MILSEC TORCH_NCCL_CUDA_EVENT_CACHE TORCH_NCCL_DEBUG_INFO_PIPE_FILE TORCH_NCCL_DEBUG_INFO_TEMP_FILE
TORCH_NCCL_DESYNC_DEBUG TORCH_NCCL_DUMP_ON_TIMEOUT TORCH_NCCL_ENABLE_MONITORING TORCH_NCCL_ENABLE_TIMING TORCH_NCCL_EXTRA_DUMP_ON_EXEC
TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC TORCH_NCCL_HIGH_PRIORITY TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN TORCH_NCCL_NAN_CHECK
TORCH_NCCL_NONBLOCKING_TIMEOUT TORCH_NCCL_PROPAGATE_ERROR TORCH_NCCL_RANKS_PER_ROOT TORCH_NCCL_RETHROW_CUDA_ERRORS
TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_NCCL_TRACE_CPP_STACK TORCH_NCCL_USE_COMM_NONBLOCKING
TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC TORCH_FR_BUFFER_SIZE TORCH_FR_CPP_STACK
TORCH_FR_DUMP_DYNAMIC_FILE_NAME TORCH_FR_DUMP_TEMP_FILE TORCH_INCLUDE_ONLY_ACTIVE TORCH_INCLUDE_STACK_TRACE TORCH_GLOO_LAZY_INIT
TORCH_DISTRIBUTED_DEBUG TORCH_CPP_LOG_LEVEL TORCH_SHOW_CPP_STACKTRACES TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES
TORCH_SYMM_MEM_DISABLE_MULTICAST TORCH_SYMMMEM TORCH_PROFILER_ENABLE_COLLECTIVE_PROFILING TORCH_DIST_INIT_BARRIER
TORCH_DISTRIBUTED_USE_TORCHCOMMS TORCH_DISTRIBUTED_COMPILE_ON_ONE_RANK TORCH_DISABLE_SHARE_RDZV_TCP_STORE TORCH_SYMMMEM_IMPLICIT_POOL
TORCH_ELASTIC_WORKER_IDENTICAL TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_ERROR_FILE TORCHELASTIC_SIGNALS_TO_HANDLE
TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE TORCHELASTIC_ENABLE_FILE_TIMER TORCHELASTIC_TIMER_FILE TORCHELASTIC_HEALTH_CHECK_PORT
TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS NCCL_ASYNC_ERROR_HANDLING NCCL_BLOCKING_WAIT NCCL_DESYNC_DEBUG NCCL_ENABLE_TIMING
NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK ENABLE_INTRA_NODE_COMM USE_LIBUV GLOO_DEVICE_TRANSPORT GLOO_DEVICE_TRANSPORT_TCP_TLS_CA_FILE
GLOO_DEVICE_TRANSPORT_TCP_TLS_CA_PATH GLOO_DEVICE_TRANSPORT_TCP_TLS_CERT GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY GLOO_DISABLE_CONNECTION_RETRIES
GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER GLOO_ENABLE_STORE_V2_API GLOO_LOG_LEVEL GLOO_SOCKET_IFNAME TP_SOCKET_IFNAME TP_VERBOSE_LOGGING
MASTER_ADDR MASTER_PORT RANK WORLD_SIZE LOCAL_RANK OMP_NUM_THREADS""".split()
# the options of torchrun that a variable may give (torch 2.13.0, torch.distributed.run.get_args_parser)
PET = """DUPLICATE_STDERR_FILTERS DUPLICATE_STDOUT_FILTERS EVENT_LOG_HANDLER LOCAL_ADDR LOCAL_RANKS_FILTER LOG_DIR MASTER_ADDR
    MASTER_PORT MAX_RESTARTS
MODULE MONITOR_INTERVAL NNODES NODE_RANK NO_PYTHON NPROC_PER_NODE RDZV_BACKEND RDZV_CONF RDZV_ENDPOINT RDZV_ID REDIRECTS ROLE RUN_PATH
SHUTDOWN_TIMEOUT SIGNALS_TO_HANDLE STANDALONE START_METHOD TEE VIRTUAL_LOCAL_RANK""".split()


@pytest.mark.parametrize("name", table_variables.variables())
def test_each_row_is_whole(name):
    row = table_variables.variables()[name]
    assert re.fullmatch(r"[A-Z][A-Z0-9_]+(_get_timeout)?", name) and 3 <= len(row.means) <= 110 and not row.means.endswith(".")
    assert all(not v or VERSION.fullmatch(v) for v in (row.since, row.until, row.renamed_in))
    assert not row.renamed_to or row.renamed_to in table_variables.variables()
    assert row.default == "" or row.accepts(row.default), f"{name} does not take its own default"
    assert row.accepts("") and row.accepts("$SOMETHING")
    kind = row.values.partition(":")[0]
    assert kind in {
        "text",
        "path",
        "devices",
        "bool",
        "int",
        "flag",
        "count",
        "words",
        "list",
        "re",
        "interfaces",
        "interfaces_exact",
        "hcas",
        "algorithms",
        "protocols",
    }
    if kind == "re":
        re.compile(row.values[3:])


def test_no_name_stands_twice_and_none_is_both_read_and_unread():
    rows = [name for key in table_variables.readers() for name in tomllib.loads(TABLE.read_text())[key]]
    assert len(rows) == len(set(rows)) == len(table_variables.variables())
    assert not set(table_variables.unread()) & set(rows)
    assert all(says and instead for says, instead in table_variables.unread().values())


def test_every_documented_name_of_nccl_2_30_and_those_of_its_sources_only_are_told_apart():
    nccl = [v for v in table_variables.variables().values() if v.reader.key == "nccl"]
    assert sum(v.documented for v in nccl) == 113  # 112 headings of the user guide and NCCL_NET_GDR_LEVEL, whose heading names its old name
    assert sum(not v.documented and not v.until for v in nccl) > 130
    assert all(v.documented for v in nccl if v.debugging)


def test_all_that_pytorch_2_11_reads_is_known():
    assert [n for n in [*TORCH_2_11, *(f"PET_{p}" for p in PET)] if n not in table_variables.variables()] == []
    assert all(table_variables.variables()[n].since in ("", "2.2", "2.9") for n in TORCH_2_11)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("NCCL_DEBUG", "WARN warn Info VERSION TRACE", "ERROR DEBUG 1"),
        ("NCCL_IB_TIMEOUT", "0 22 31 0x16", "32 -1 20s"),
        ("NCCL_P2P_DISABLE", "0 1", "true yes on"),
        ("TORCH_NCCL_BLOCKING_WAIT", "1 true Y f", "on 2"),
        ("NCCL_SOCKET_IFNAME", "eth0 =eth0,eth1 ^docker ^=docker0 lo", "eth0;eth1"),
        ("NCCL_P2P_LEVEL", "NVL PHB 3", "nvl NVLINK"),
        ("NCCL_IB_HCA", "mlx5 =mlx5_0:1,mlx5_1:1 ^=mlx5_1 =mlx5_0::0:0", "a|b"),
        ("NCCL_DEBUG_SUBSYS", "INIT,NET ^COLL all", "INIT,FOO"),
        ("NCCL_ALGO", "Ring ring,tree ^NVLS allreduce:tree;broadcast:ring allreduce:^tree", "rings 1"),
        ("NCCL_PROTO", "LL128 ^LL simple,ll", "LL256"),
        ("FI_HMEM_DISABLE_P2P", "0 on TRUE off", "y maybe"),
        ("FI_CXI_RDZV_PROTO", "default alt_read alt-read", "alt_write"),
        ("FI_MR_CACHE_MONITOR", "userfaultfd uffd disabled", "default"),
        ("PET_NNODES", "1 1:4", "1-4"),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "1 8 32", "0 64"),
        ("TORCH_FR_BUFFER_SIZE", "0 2000 67108864", "64MB"),
        (
            "CUDA_VISIBLE_DEVICES",
            "0 0,1 0,1,11,10 1,0,-1,1 -1,0,0 GPU-8932f937,GPU-8932f938 MIG-GPU-8/1/0,MIG-GPU-8/2/0 NoDevFiles 0,1,2,3,4,5,6,7",
            "0,1,1 0,0 1,0,1 3,2,03 GPU-8932f937,GPU-8932f937 0,1,2,3,4,5,6,7,0 0,1,1,2",
        ),
        ("NCCL_NETDEVS_POLICY", "auto MAX:2 ALL", "MAX"),
        ("NCCL_CTA_POLICY", "2 EFFICIENCY DEFAULT|ZERO", "3"),
    ],
)
def test_values_that_are_taken_and_values_that_are_not(name, good, bad):
    row = table_variables.variables()[name]
    assert [v for v in good.split(" ") if not row.accepts(v)] == []
    assert [v for v in bad.split(" ") if row.accepts(v)] == []


@given(st.sampled_from(sorted(table_variables.variables())), st.text(max_size=40))
def test_any_text_is_judged_without_an_error(name, value):
    assert table_variables.variables()[name].accepts(value) in (True, False)
    assert table_variables.variables()[name].values_in_words


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("NCCL_IB_HCAS", "NCCL_IB_HCA"),
        ("NCCL_SOCKET_IFACE", "NCCL_SOCKET_IFNAME"),
        ("NCCL_P2P_DISABLED", "NCCL_P2P_DISABLE"),
        ("NCCL_SOCKET_IFNAMES", "NCCL_SOCKET_IFNAME"),
        ("TORCH_NCCL_DUMP_ON_TIMOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT"),
        ("NCCL_FASTRAK_IFNAME", ""),
        ("NCCL_TIMEOUT", ""),
        ("NCLL_DEBUG", "NCCL_DEBUG"),
    ],
)
def test_the_nearest_name_is_a_slip_of_the_pen_not_a_guess(slip, meant):
    assert table_variables.nearest(slip) == meant


def test_what_is_an_enumeration_in_the_sources_is_no_variable():
    assert (
        "NCCL_GIN_CONNECTION_RAIL" not in table_variables.variables()
    )  # nccl_device/core.h of NCCL 2.30.7: a value, never asked of the environment


def test_the_refreshing_script_reads_an_unpacked_tree(tmp_path):
    guide = tmp_path / "docs/userguide/source/env.rst"
    guide.parent.mkdir(parents=True)
    guide.write_text(
        "NCCL_DEBUG\n----------\ntext\n\nNCCL_NET_GDR_LEVEL (formerly NCCL_IB_GDR_LEVEL)\n-----------\n\nNCCL_BRAND_NEW\n------\n(since"
        " 2.99)\n"
    )
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.cc").write_text('NCCL_PARAM(X, "UNHEARD_OF", 3);\nDEFINE_NCCL_PARAM(n, bool, NCCL_SET_THREAD_NAME, 0,\n'
                                       'getenv("NCCL_CONF_FILE"); ncclGetEnv("HOME")')
    assert in_guide(tmp_path) == {"NCCL_DEBUG": "", "NCCL_NET_GDR_LEVEL": "", "NCCL_BRAND_NEW": "2.99"}
    assert in_sources(tmp_path) == {"NCCL_UNHEARD_OF", "NCCL_SET_THREAD_NAME", "NCCL_CONF_FILE"}
    found = missing(tmp_path)
    assert (
        set(found) == {"NCCL_BRAND_NEW", "NCCL_UNHEARD_OF"} and "2.99" in found["NCCL_BRAND_NEW"] and "sources" in found["NCCL_UNHEARD_OF"]
    )


def parts(value):
    """A value and everything inside it."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else ()
    return [value, *(part for each in inner for part in parts(each))]


@pytest.mark.parametrize("name", ["causes/variables", "causes/causes"])
def test_no_caller_can_change_what_others_get_of_a_table(name):
    assert not [part for part in parts(load(name)) if isinstance(part, (dict, list, set))]
    with pytest.raises(TypeError):
        load(name)["new"] = 1
    assert "new" not in load(name) and len(parts(load(name))) > 100


# ---- what a remedy sets or unsets ------------------------------------------------------------------------------------------------

PACKAGE = TABLE.parents[1]
# no reader here: LD_DEBUG is the loader's, TORCH_CUDA_ARCH_LIST is read where an extension is built;
# HCCL, oneCCL, Horovod and XLA read theirs in programs without NCCL
OF_OTHERS = {
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "HTTPS_PROXY",
    "OPENBLAS_NUM_THREADS",
    "TMPDIR",
    "CUDA_DISABLE_CONTROL",
    "ROCR_VISIBLE_DEVICES",
    "MPI_HOME",
    "LD_DEBUG",
    "TORCH_CUDA_ARCH_LIST",
    "ASCEND_LAUNCH_BLOCKING",
    "HCCL_CONNECT_TIMEOUT",
    "HCCL_NPU_SOCKET_PORT_RANGE",
    "CCL_ZE_IPC_EXCHANGE",
    "HOROVOD_GPU_OPERATIONS",
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
}
# early torch has the recorder off; torch 2.7.0 has nonblocking communicators on with device_id; GDRCopy's message needs 1
NOT_THE_DEFAULT_ALWAYS = {"TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_USE_COMM_NONBLOCKING",
                          "NCCL_GDRCOPY_ENABLE"}
SET = re.compile(r"(?:^|(?<=[ '\"]))([A-Z][A-Z0-9]*_[A-Z0-9_]+)=([^\s'\"]*)")
UNSET = re.compile(r"\bunset ((?:[A-Z][A-Z0-9_]+ ?)+)")


def lines_to_copy(value, key=""):
    """Every line of a table that somebody may copy."""
    if isinstance(value, Mapping):
        return [line for name, inner in value.items() for line in lines_to_copy(inner, name if key != "decides" else f"decides.{name}")]
    if isinstance(value, list):
        return [line for inner in value for line in lines_to_copy(inner, key)]
    return [value] if isinstance(value, str) and key in ("lines", "decides.line") else []


REMEDIES = sorted({(file.name, line) for file in PACKAGE.rglob("*.toml") for line in lines_to_copy(tomllib.loads(file.read_text()))})
SETTINGS = sorted({(name, value) for _, line in REMEDIES for name, value in SET.findall(line)
                   if name not in OF_OTHERS and not re.search("[<{]", value)})


def test_a_remedy_unsets_only_names_that_somebody_reads():
    names = {name for _, line in REMEDIES for found in UNSET.findall(line) for name in found.split()}
    assert len(names) > 15 and names - set(table_variables.variables()) <= OF_OTHERS


@pytest.mark.parametrize(("name", "value"), SETTINGS)
def test_a_remedy_sets_what_its_reader_takes_and_does_not_have_already(name, value):
    row = table_variables.variables()[name]
    assert row.accepts(value) and not row.until
    assert value != row.default or name in NOT_THE_DEFAULT_ALWAYS
