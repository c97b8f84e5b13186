"""sync --will-it-pay: headers that anybody wrote, changes counted as a plain comparison does, the answer for any link."""

from __future__ import annotations

import json
import math
import resource
import shutil
import struct
import sys
from pathlib import Path

import pytest
import safetensors
from hypothesis import HealthCheck, given, settings, strategies as st
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Severity
from nccl_runbook.sync.pays import count, read
from nccl_runbook.sync.pays.ask import collect, link_rate
from nccl_runbook.sync.pays.facts import Comparison, Tensor
from nccl_runbook.sync.pays.judge import SMALL_S, judge
from nccl_runbook.sync.pays.table import kinds_table, methods_table
from warm_cli import read_cli

WIDTHS = {"BF16": 2, "F32": 4, "F64": 8, "U8": 1, "F8_E4M3": 1, "I64": 8}
PYTHONS = sorted({sys.executable, shutil.which("python3") or sys.executable})
Model = dict[str, tuple[str, list[int], bytes]]


def write(path: Path, model: Model) -> Path:
    header, at = {}, 0
    for name, (dtype, shape, data) in model.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at := at + len(data)]}
    path.write_bytes(raw(header, b"".join(data for _, _, data in model.values())))
    return path


def raw(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


@st.composite
def two_models(draw: st.DrawFn) -> tuple[Model, Model]:
    names = draw(
        st.lists(
            st.sampled_from([f"model.layers.{i}.{n}" for i in range(3) for n in ("q.weight", "norm.weight")]), unique=True, min_size=1
        )
    )
    first, second = {}, {}
    for name in names:
        dtype, shape = draw(st.sampled_from(sorted(WIDTHS))), draw(st.lists(st.integers(0, 40), max_size=3))
        size = math.prod(shape) * WIDTHS[dtype]
        data = draw(st.randoms(use_true_random=False)).randbytes(size)
        other = bytearray(data)
        for at in draw(st.lists(st.integers(0, max(0, size - 1)), max_size=30)) if size else []:
            other[at] ^= draw(st.integers(1, 255))
        first[name], second[name] = (dtype, shape, data), (dtype, shape, bytes(other))
    return first, second


def plainly(width: int, a: bytes, b: bytes) -> tuple[int, int]:
    return sum(a[i : i + width] != b[i : i + width] for i in range(0, len(a), width)), sum(x != y for x, y in zip(a, b, strict=True))


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(models=two_models(), python=st.sampled_from(PYTHONS))
def test_changes_are_those_of_a_plain_comparison(tmp_path: Path, models: tuple[Model, Model], python: str) -> None:
    first, second = models
    paths = [write(tmp_path / f"{i}.safetensors", model) for i, model in enumerate(models)]
    seen = collect(*map(str, paths), 10.0, [python], 60.0)
    assert isinstance(seen, Comparison) and seen.difference == ""
    library = {name: (t["dtype"], t["shape"]) for name, t in safetensors.deserialize(paths[0].read_bytes())}
    assert library == {t.name: (t.dtype, t.shape) for t in seen.tensors}
    found = {t.name: (t.dtype, t.shape, t.size, t.changed, t.changed_bytes) for t in seen.tensors}
    assert found == {n: (d, s, len(b), *plainly(WIDTHS[d], b, second[n][2])) for n, (d, s, b) in first.items()}
    assert (seen.total.count, seen.total.size) == (len(first), sum(len(b) for _, _, b in first.values()))
    assert sum(k.changed for k in seen.kinds) == seen.total.changed == sum(t.changed for t in seen.tensors)
    for tensor in seen.tensors:
        new = tensor.changed * WIDTHS[tensor.dtype]
        assert tensor.delta <= min(4 * tensor.changed + new, tensor.size) and (tensor.delta > 0) == (tensor.changed > 0)


@given(a=st.integers(0, 40_000).map(bytes), at=st.lists(st.integers(0, 99_999)), width=st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=50, deadline=None)
def test_whole_numbers_count_as_a_plain_comparison_does(a: bytes, at: list[int], width: int) -> None:
    a = a[: len(a) // width * width]
    b = bytearray(a)
    for i in at if a else []:
        b[i % len(a)] ^= (1, 128, 255)[i // 8 % 3]  # 128: the top bit alone
    _, by_python = count.by_python()
    assert tuple(by_python(a, bytes(b), width)) == plainly(width, a, bytes(b))


@given(
    data=st.one_of(
        st.binary(max_size=300),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=5),
            lambda v: st.lists(v) | st.dictionaries(st.sampled_from(["a", "dtype", "shape", "data_offsets", "__metadata__"]), v),
            max_leaves=8,
        ).map(raw),
    )
)
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_file_holds_it_is_read_or_refused_in_one_sentence(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    try:
        assert isinstance(read.header(str(path)), dict)
    except ValueError as error:
        assert str(path) in str(error) and "\n" not in str(error)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 200), byte=st.integers(0, 255), cut=st.integers(0, 400))
def test_one_byte_that_differs_harms_nobody(tmp_path: Path, at: int, byte: int, cut: int) -> None:
    data = bytearray(raw({"a.weight": {"dtype": "BF16", "shape": [4, 8], "data_offsets": [0, 64]}}, bytes(64)))
    data[at % len(data)] = byte
    path = tmp_path / "x.safetensors"
    path.write_bytes(data[:cut] if cut < len(data) and cut % 3 == 0 else data)
    try:
        found = read.header(str(path))
    except ValueError:
        return
    assert all(p.start + p.size <= path.stat().st_size for p in found.values())


TENSOR = {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x08",
        raw({"a": TENSOR}, bytes(7)),
        raw({"a": TENSOR}, bytes(8), 1 << 40),
        raw({"a": TENSOR | {"shape": [5]}}, bytes(8)),
        raw({"a": TENSOR | {"dtype": "F7"}}, bytes(8)),
        raw({"a": TENSOR | {"data_offsets": [8, 0]}}, bytes(8)),
        raw([1]),
        raw(b"[" * 100_000),
        raw(b'{"a": %b, "a": %b}' % ((json.dumps(TENSOR).encode(),) * 2), bytes(8)),
        raw({"a": TENSOR | {"shape": [True, 4]}}, bytes(8)),
        raw({"a": TENSOR | {"shape": [2] * 65}}, bytes(8)),
        b"PK\x03\x04" + bytes(100),
        b"\x80\x02}q\x00." + bytes(100),
    ],
)
def test_a_file_that_is_not_whole_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.safetensors").write_bytes(data)
    with pytest.raises(ValueError, match="a.safetensors"):
        read.checkpoint(str(tmp_path))


def test_a_folder_is_all_of_its_shards_or_nothing(tmp_path: Path) -> None:
    for shard in ("1", "2"):
        write(tmp_path / f"{shard}.safetensors", {f"w{shard}": ("U8", [1], b"a")})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w1": "1.safetensors", "w2": "2.safetensors"}}))
    assert [*read.checkpoint(str(tmp_path))] == [*read.checkpoint(str(index))] == ["w1", "w2"]
    (tmp_path / "2.safetensors").unlink()
    with pytest.raises(ValueError, match="2.safetensors"):
        read.checkpoint(str(tmp_path))
    write(tmp_path / "2.safetensors", {"w1": ("U8", [1], b"a")})
    with pytest.raises(ValueError, match="same tensor"):
        read.checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"b": ("BF16", [2, 2], bytes(8))}, "a"),
        ({"a": ("BF16", [4], bytes(8))}, "[2, 2]"),
        ({"a": ("F32", [2, 2], bytes(16))}, "F32"),
        ({"a": ("BF16", [2, 2], bytes(8)), "c": ("U8", [1], b"x")}, "c"),
    ],
)
def test_the_first_tensor_that_differs_is_named(tmp_path: Path, other: Model, named: str) -> None:
    first = write(tmp_path / "1.safetensors", {"a": ("BF16", [2, 2], bytes(8))})
    seen = collect(str(first), str(write(tmp_path / "2.safetensors", other)), 1.0, [sys.executable], 60.0)
    assert named in seen.difference
    assert [(f.id, f.severity) for f in judge(seen)] == [("pays-different-tensors", Severity.BROKEN)]


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("25GB/s", 25.0),
        ("200Gb/s", 25.0),
        ("200 Gbps", 25.0),
        ("400Gbit/s", 50.0),
        ("1.5TB/s", 1500.0),
        ("800MB/s", 0.8),
        ("1GiB/s", 1.073741824),
    ],
)
def test_a_rate_has_a_unit(text: str, rate: float) -> None:
    assert link_rate(text) == pytest.approx(rate)


@given(text=st.text(max_size=20))
def test_any_other_text_is_no_rate(text: str) -> None:
    with pytest.raises(ValueError, match="--link"):
        link_rate("-" + text)


@pytest.mark.parametrize("text", ["", "25", "25GB", "0GB/s", "25gb/s", "25GB/s/s", "1e400GB/s", "infGB/s"])
def test_no_rate_without_a_unit(text: str) -> None:
    with pytest.raises(ValueError, match="--link"):
        link_rate(text)


def of(link: float, size: int = 16 * 10**9, share: float = 0.02, find_s: float = 8.0) -> Comparison:
    values = size // 2
    changed = int(values * share)
    total = Tensor(
        "all", count=10, values=values, changed=changed, changed_bytes=changed, size=size, delta=min(6 * changed, size), fp8=size // 2
    )
    return Comparison(link, "", "numpy", find_s, find_s, total)


@pytest.mark.parametrize(
    ("seen", "answer"),
    [
        (of(0.125), "pays-delta"),
        (of(1.0), "pays-delta"),
        (of(12.5), "pays-full-unless-found-fast"),
        (of(450.0), "pays-small"),
        (of(1.0, share=0.9), "pays-full"),
        (of(1.0, share=0.0), "pays-nothing-changed"),
        (of(12.5, size=10**9), "pays-small"),
        (of(1.0, find_s=20.0), "pays-full-unless-found-fast"),
    ],
)
def test_which_method_pays_follows_from_bytes_link_and_search(seen: Comparison, answer: str) -> None:
    assert [f.id for f in judge(seen)] == [answer, "pays-fp8"]
    assert len(methods_table(seen).rows) == 3 and kinds_table(seen).rows[-1][0].text == "all"


@given(link=st.floats(0.01, 2000), size=st.integers(1, 10**13), share=st.floats(0, 1), find_s=st.floats(0, 1000))
def test_a_delta_is_never_called_fastest_if_it_is_not(link: float, size: int, share: float, find_s: float) -> None:
    seen = of(link, size, share, find_s)
    if judge(seen)[0].id == "pays-delta":
        assert seen.on_link_s(seen.total.delta) + find_s < seen.on_link_s(seen.total.size) >= SMALL_S


def run(*words: object) -> tuple[int, str, str]:
    done = read_cli("sync", *map(str, words))
    return done.returncode, done.stdout, done.stderr


def test_the_command_answers_as_json_and_page(tmp_path: Path) -> None:
    data = bytes(range(256)) * 64
    a = write(tmp_path / "a.safetensors", {"w": ("BF16", [64, 128], data)})
    b = write(tmp_path / "b.safetensors", {"w": ("BF16", [64, 128], b"x" + data[1:])})
    code, out, error = run("--will-it-pay", a, b, "--link", "10MB/s", "--json", "--html", tmp_path / "p.html")
    assert code == 0, error
    total = json.loads(out)["facts"]["pays"]["total"]
    assert {n: total[n] for n in ("values", "changed", "size", "delta", "fp8")} == {
        "values": 8192,
        "changed": 1,
        "size": 16384,
        "delta": 6,
        "fp8": 8196,
    }
    assert "What changed" in (tmp_path / "p.html").read_text()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--will-it-pay", "A", "B", "--link", "1GB/s"], 3),
        (["--will-it-pay", "A", "missing", "--link", "1GB/s"], 2),
        (["--will-it-pay", "A", "A"], 2),
        (["--link", "1GB/s"], 2),
        (["--will-it-pay", "A", "A", "--link", "1GB/s", "--trace", "x"], 2),
        (["--will-it-pay", "A", "A", "--link", "1GB/s", "--python", "no-such"], 2),
    ],
)
def test_exit_codes(tmp_path: Path, words: list[str], code: int) -> None:
    files = {
        "A": write(tmp_path / "a.safetensors", {"a": ("U8", [1], b"a")}),
        "B": write(tmp_path / "b.safetensors", {"b": ("U8", [1], b"a")}),
    }
    got, out, error = run(*(files.get(word, word) for word in words))
    assert got == code and (error.count("\n") == 1 if code == 2 else "verdict: broken" in out)


def test_without_time_the_answer_is_a_gap(tmp_path: Path) -> None:
    a = str(write(tmp_path / "a.safetensors", {"a": ("U8", [1 << 20], bytes(1 << 20))}))
    seen = collect(a, a, 1.0, [sys.executable], 0.0)
    assert isinstance(seen, Gap) and seen.reason == "timed-out" and judge(seen) == []


def test_a_large_file_needs_little_memory(tmp_path: Path) -> None:
    """Sparse files of 512 MiB: neither this process nor the child grows with them."""
    tensors = {f"w{i}": {"dtype": "BF16", "shape": [1 << 25], "data_offsets": [i << 26, (i + 1) << 26]} for i in range(8)}
    for name in "ab":
        (tmp_path / name).write_bytes(raw(tensors))
        with open(tmp_path / name, "r+b") as file:
            file.truncate(len(raw(tensors)) + (1 << 29))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seen = collect(str(tmp_path / "a"), str(tmp_path / "b"), 1.0, [sys.executable], 120.0)
    assert isinstance(seen, Comparison) and (seen.total.values, seen.total.changed) == (1 << 28, 0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10
