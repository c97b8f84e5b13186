"""Secrets that stand on the line below their name, with a prefix before each line or without; many shapes with values made anew;
and what only looks like one of them."""
from __future__ import annotations

import random
import re
import string
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from nccl_runbook.core.facts_world import WorldRequest
from nccl_runbook.core.redact import Redactor
from nccl_runbook.core.secret_lines import bodies, masked_below
from nccl_runbook.core.secret_values import MASK, is_numbered
from nccl_runbook.launch.running import Running
from warm_cli import read_cli

DATA = Path(__file__).parent / "data"
ALNUM = string.ascii_letters + string.digits
ALPHABETS = {
    "h": "0123456789abcdef",
    "a": ALNUM,
    "A": string.ascii_uppercase + string.digits,
    "l": string.ascii_lowercase + string.digits,
    "b": ALNUM + "+/",
    "d": string.digits,
    "u": ALNUM + "-_",
    "B": string.ascii_uppercase + "234567",
    "c": string.ascii_lowercase + "234567",
}
HIDDEN = Redactor({}).hidden
# what a logger, a launcher or a host puts before each line: of the first and of the next one
PREFIXES = [
    ("", ""),
    ("[rank0]: ", "[rank0]: "),
    ("[rank11]:", "[rank11]:"),
    ("2026-11-30 12:00:01,123 INFO ", "2026-11-30 12:00:01,124 WARNING "),
    ("(worker pid=412) ", "(worker pid=412) "),
    ("(Worker_TP0 pid=7, ip=10.0.0.3) ", "(Worker_TP0 pid=7, ip=10.0.0.3) "),
    ("node1: ", "node1: "),
    ("7: ", "7: "),
    ("[1,3]<stderr>: ", "[1,3]<stderr>: "),
    ("web-1  | ", "web-1  | "),
    ("[pod/job-0/main] ", "[pod/job-0/main] "),
    ("Nov 30 12:00:01 n1 app[77]: ", "Nov 30 12:00:02 n1 app[77]: "),
    ("2026-11-30T12:00:01.000000001Z stdout F ", "2026-11-30T12:00:01.100000001Z stdout F "),
    ("I1130 12:00:01.100000 77 login.cc:12] ", "I1130 12:00:01.200000 77 login.cc:13] "),
    ("INFO:root:", "INFO:root:"),
    ("[2026-11-30 12:00:01] [ERROR] ", "[2026-11-30 12:00:02] [ERROR] "),
    ("2026-11-30 12:00:01 - app.main - INFO - ", "2026-11-30 12:00:02 - app.main - INFO - "),
    ("12:00:01.5 | INFO | app:main:3 - ", "12:00:02.5 | INFO | app:main:4 - "),
    ("INFO 11-30 12:00:01 [api.py:12] ", "INFO 11-30 12:00:01 [api.py:12] "),
    ("12: n1: [rank3]: ", "13: n1: [rank3]: "),
    ("[12:00:01.1] ", "[12:00:01.2] "),
    ("ts=2026-11-30T12:00:01Z level=info msg=", "ts=2026-11-30T12:00:02Z level=warn msg="),
    ("+ ", "+ "),
    ("# ", "# "),
    ("Mon Nov 30 12:00:01 2026[1,0]<stdout>:", "Mon Nov 30 12:00:02 2026[1,0]<stdout>:"),
]
# a name and what stands below it; {} is the secret
BELOW = [
    "password:\n  {}",
    "HF_TOKEN:\n    {}",
    "secret =\n  {}",
    "token:\n\n  {}",
    "- name: DB_PASSWORD\n  value: {}",
    "api_keys:\n  - {}",
    "[credentials]\nuser = ann\nlab = {}",
    "password: >-\n  {}",
    "mysql --password \\\n  {} db",
    "<password>\n  {}\n</password>",
    "docker login --password-stdin <<EOF\n{}\nEOF",
    "kind: Secret\ndata:\n  lab: {}",
    "Your access token is:\n\n    {}",
    "'api_key':\n  '{}'",
    "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----",
    "passphrase\n{}",
]


def made(kind: str, pick: random.Random) -> str:
    """A value: p: password, q: lower case, w: a word, s: with signs, J: a JSON web token; else a letter of ALPHABETS and a length."""
    word = "".join(pick.choice("bcdfgklmnprstvz") + pick.choice("aeiou") for _ in range(5)) + pick.choice("nrst")
    digits, letters = "".join(pick.choices(string.digits, k=4)), "".join(pick.choices(string.ascii_letters, k=8))
    simple = {
        "p": f"x{digits[0]}{letters[:3]}-{letters[3:5]}{digits[1:]}{letters[5:]}",
        "q": f"{word[:3]}{digits}{word[5:9]}",
        "w": word,
        "s": f"{letters[:4]}!{digits[:2]}#{letters[4:]}${digits[2]}x",
    }
    if kind in simple:
        return simple[kind]
    if kind[0] == "=":
        return kind[1:]
    if kind == "J":
        return f"eyJhbGciOiJIUzI1NiJ9.eyJ{made('a40', pick)}.{made('a43', pick)}"
    return "".join(pick.choices(ALPHABETS[kind[0]], k=max(int(kind[1:]) - 2, 1))) + {"d": "42", "A": "Q7", "h": "a7"}.get(kind[0], "k4")


def filled(shape: str, pick: random.Random) -> tuple[str, list[str]]:
    """The shape with a value in each place, and the values."""
    values: list[str] = []

    def value(match: re.Match[str]) -> str:
        values.append(made(match[1], pick))
        return values[-1]

    return re.sub("«(=?[^«»]+)»", value, shape).replace("⏎", "\n"), [v.replace("⏎", "\n") for v in values]


def left(text: str, values: list[str]) -> list[str]:
    """Values of which a part that says much is left."""
    return [
        value
        for value in values
        for part in (
            {value}
            if len(value) <= 14
            else {run[i : i + 9] for run in re.findall("[A-Za-z0-9]{9,}", value) for i in (0, len(run) - 9)} or {value}
        )
        if part in text
    ]


FRESH = [[part.strip("\n") for part in path.read_text().split("\n=====\n")[1:]] for path in sorted((DATA / "fresh").glob("*.txt"))]


@pytest.mark.parametrize("shape", [shape for shapes, _, _ in FRESH for shape in shapes.split("\n---\n")])
def test_a_shape_of_a_set_that_was_written_before_hides_its_value(shape: str) -> None:
    for seed in (1, 2):
        text, values = filled(shape, random.Random(f"{seed}{shape}"))
        clean = HIDDEN(text)
        assert MASK in clean and left(clean, [value for value in values if len(value) >= 6]) == []
        assert HIDDEN(clean) == clean


@pytest.mark.parametrize("name", [name for _, names, _ in FRESH for name in names.split()])
@pytest.mark.parametrize("form", ["export {}={}", "{}: {}", '"{}": "{}"', "--{} {}", "{} = '{}'"])
def test_a_name_of_a_set_that_was_written_before_hides_its_value(name: str, form: str) -> None:
    for kind in ("p", "w", "a32", "h40"):
        assert (value := made(kind, random.Random(name))) not in HIDDEN(form.format(name, value))


@pytest.mark.parametrize("line", [line for _, _, lines in FRESH for line in lines.split("\n")])
def test_what_was_written_before_as_no_secret_stays(line: str) -> None:
    for seed in (1, 2):
        text, _ = filled(line, random.Random(f"{seed}{line}"))
        assert HIDDEN(text) == text


SHAPES = (DATA / "shapes.txt").read_text().strip("\n").split("\n---\n")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("around", ["@", "[rank0]: @", "12:00:01 INFO @"])
def test_a_shape_hides_its_value_whatever_it_is(shape: str, around: str) -> None:
    for seed in (1, 2):
        text, values = filled(shape, random.Random(seed))
        clean = HIDDEN("\n".join(around.replace("@", line) for line in text.split("\n")))
        assert MASK in clean and left(clean, values) == []
        assert HIDDEN(clean) == clean and clean.count("\n") == text.count("\n")


@pytest.mark.parametrize("form", BELOW)
@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_value_below_its_name_is_masked_behind_every_prefix(form: str, prefix: tuple[str, str]) -> None:
    first, *rest = form.replace("{}", "k7Fq2xvT9dLm").split("\n")
    lines = [prefix[0] + first, *(prefix[1] + line for line in rest)]
    clean = HIDDEN("\n".join(lines))
    assert "k7Fq2xvT9dLm" not in clean and MASK in clean and HIDDEN(clean) == clean
    assert [line[: len(prefix[1])] for line in clean.split("\n")[1:]] == [prefix[1]] * len(rest)
    assert masked_below(lines, HIDDEN) == clean.split("\n")
    escaped = HIDDEN("\\n".join(lines))
    assert "k7Fq2xvT9dLm" not in escaped


@given(st.lists(st.text(st.characters(exclude_characters="\n")), min_size=1))
def test_lines_keep_their_number_and_prefixes_their_text(lines: list[str]) -> None:
    assert all(line.endswith(body) for line, body in zip(lines, bodies(lines), strict=True))
    assert len(masked_below(lines, HIDDEN)) == len(lines)
    assert HIDDEN("\n".join(lines)).count("\n") == len(lines) - 1


@given(
    st.lists(st.sampled_from([*(line for form in BELOW for line in form.split("\n")), "step 12 loss 0.1", ""]), min_size=1),
    st.sampled_from(PREFIXES),
)
def test_lines_in_any_order_keep_their_places(lines: list[str], prefix: tuple[str, str]) -> None:
    clean = HIDDEN("\n".join(prefix[1] + line.replace("{}", "k7Fq2xvT9dLm") for line in lines))
    assert clean.count("\n") == len(lines) - 1
    assert all(line.startswith(prefix[1]) for line in clean.split("\n")) or not prefix[1]


@pytest.mark.parametrize("text", (DATA / "innocent_lines.txt").read_text().splitlines())
def test_what_follows_a_name_and_is_no_secret_stays(text: str) -> None:
    text = text.replace("\\n", "\n")
    assert HIDDEN(text) == text


@pytest.mark.parametrize(
    ("word", "is_name"),
    [
        ("encoder1layer2weights3", True),
        ("transformer2h3attn4qkv", True),
        ("EncoderLayer2Norm3Bias1", True),
        ("arrivalorder2step", True),
        ("q7hd82kz0p4mv6xw1r5t9", False),
        ("8f3a1c7d5e9b2046ad1c3f7b", False),
        ("", False),
        ("layer12345weights2bias", False),
        ("dEcOdEr1lAyEr2", False),
    ],
)
def test_words_and_numbers_are_told_from_random_words(word: str, is_name: bool) -> None:
    assert is_numbered(word) == is_name


def test_few_random_words_look_like_names_of_layers() -> None:
    pick = random.Random(3)
    for alphabet, most in ((ALPHABETS["h"], 0.01), (ALNUM, 0.01), (ALPHABETS["l"], 0.12)):
        words = ["".join(pick.choices(alphabet, k=20)) for _ in range(2000)]
        assert sum(map(is_numbered, words)) < most * len(words)


@pytest.mark.parametrize("prefix", [*PREFIXES[1:3], PREFIXES[4]])
def test_the_last_words_of_a_rank_hide_a_value_below_its_name(prefix: tuple[str, str], tmp_path: Path) -> None:
    known = "node0:1:1 [0] NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60"
    (tmp_path / "rank0.log").write_text(f"{known}\n{prefix[0]}password:\n{prefix[1]}  k7Fq2xvT9dLm\n")
    for more in ((), ("--json",)):
        ended = read_cli("triage", tmp_path / "rank0.log", "--html", tmp_path / "page.html", *more)
        assert not any("k7Fq2xvT9dLm" in text for text in (ended.stdout, ended.stderr, (tmp_path / "page.html").read_text()))
        assert MASK in ended.stdout and ended.returncode == 3


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_the_log_of_a_rank_hides_a_value_below_its_name(cut: int, tmp_path: Path) -> None:
    """Wherever the text was cut on its way here."""
    lines = ["step 1", "HF_TOKEN:", "  k7Fq2xvT9dLm", "step 2"]
    running = Running(1, WorldRequest("x", "check.py", [None], []), tmp_path, Redactor({}))
    for part in ("\n".join([*lines[: cut + 1], ""]), "\n".join([*lines[cut + 1 :], ""])):
        running.take({"rank": 0, "log": part})
    said = (tmp_path / "rank0.log").read_text().splitlines()
    assert len(said) == 4 and said[::3] == ["step 1", "step 2"] and "k7Fq2xvT9dLm" not in "".join([*said, *running.ranks[0].last_lines])


def test_lines_that_all_open_are_read_once() -> None:
    """A log of names alone costs no more than any other."""
    asked: list[int] = []

    def hidden(text: str) -> str:
        asked.append(text.count("\n") + 1)
        return text

    masked_below(["token:"] * 6000, hidden)
    assert sum(asked) <= 2 * 6000


@pytest.mark.parametrize(
    "name",
    [
        "Access keys:",
        "session keys",
        "SIGNING_KEYS =",
        "The tokens are:",
        "hf tokens",
        "Passcodes:",
        "jwts:",
        "cookies of ann:",
        "recovery codes:",
        "MFA codes are",
        "licence keys:",
        "ssh keys:",
        "wandb key:",
        "WANDB keys are",
        "key is",
        "your key is",
        "ERROR the new keys are",
        "ERROR key was",
        "the bearers:",
        "salts:",
    ],
)
@pytest.mark.parametrize("form", ["{} {}", "{}\n- {}"])
def test_the_plural_of_a_name_and_a_key_of_someone_are_names_of_secrets(name: str, form: str) -> None:
    pick = random.Random(name)
    words = ["".join(pick.choices(ALNUM, k=20)) for _ in range(100)]
    assert sum(word in HIDDEN(form.format(name, word)) for word in words) <= 25


@pytest.mark.parametrize(
    "text",
    [
        "tokens: 512",
        "max_tokens=131072 at step 12",
        "cache keys are model2layers4",
        "unexpected keys: decoder1layer2norm3",
        "12 tokens for worker-7d9f8b6c5d-x2k4q",
        "keys are compared in order",
        "the sort key is layer4expert17shard3x2",
        "foreign key is q7hd82kz0p4mv6xw1r5t9",
        "error codes: NET2",
        "loaded 128 tokens from shard A1b2C3d4E5F6",
        "total tokens 8192 /ckpt/A1b2C3d4E5F6/model.pt",
        "num_tokens: 4 run aB3dE5fG7h",
        "max_new_tokens=512 A1b2C3d4E5F6",
        "prompt tokens 812 on gke-lab-a3mega-np-7c2e91f4-q7zk",
    ],
)
def test_plurals_beside_numbers_and_names_hide_nothing(text: str) -> None:
    assert HIDDEN(text) == text


@pytest.mark.parametrize(
    "form", ["pwd: {}", "pwd={}", "Pwd={}", "PWD = {}", "user ann pwd {}", "login ann/pwd: {}", "{{'pwd': '{}'}}", 'pwd":"{}']
)
@pytest.mark.parametrize("size", [8, 12, 16, 31])
def test_a_random_word_behind_pwd_is_a_password(form: str, size: int) -> None:
    pick = random.Random(f"{form}{size}")
    words = ["".join(pick.choices(ALNUM, k=size)) for _ in range(200)]
    assert sum(word in HIDDEN(form.format(word)) for word in words) <= (120 if size == 8 else 70)


@pytest.mark.parametrize(
    "text",
    [
        "PWD=/home/ann/k7Fq2xvT9dLm/ckpt",
        "pwd: ~/runs/k7Fq2xvT9dLm",
        "'pwd': './k7Fq2xvT9dLm'",
        "OLDPWD=/w/k7Fq2xvT9dLm",
        "cd $PWD k7Fq2xvT9dLm",
        "pwd=runs/step12",
        "pwd: command not found",
        "pwd = os.getcwd()",
        "PWD=llama3_70b_tp8pp4 HOST=gpu-a3u-7k2m9x4q-sw2z",
    ],
)
def test_a_folder_behind_pwd_stays(text: str) -> None:
    assert HIDDEN(text) == text
    assert Redactor({"PWD": "/home/ann/k7Fq2xvT9dLm/ckpt", "OLDPWD": "/w/k7Fq2xvT9dLm"}).text(text) == text


@pytest.mark.parametrize(
    "form",
    [
        "secret_id={}",
        '"secret_id": "{}"',
        "SECRET_ID={}",
        "role_id=lab secret_id={}",
        "client secret id: {}",
        "session_id={}",
        "session id: {}",
        "auth-id: {}",
        "token id: {}",
        "token_id={}",
        "cookie_id: {}",
    ],
)
@pytest.mark.parametrize("size", [20, 40])
def test_the_id_of_a_secret_is_one(form: str, size: int) -> None:
    pick = random.Random(form)
    words = ["".join(pick.choices(ALNUM, k=size)) for _ in range(100)]
    assert sum(word in HIDDEN(form.format(word)) for word in words) <= 25


@pytest.mark.parametrize(
    "form", ["client_id={}", "request id: {}", "run-id={}", "tenant id: {}", "gpu_uid={}", "the commit: {}", "id={}", "trace_id: {}"]
)
def test_other_ids_stay(form: str) -> None:
    pick = random.Random(form)
    for size in (20, 40):
        text = form.format("".join(pick.choices(ALNUM, k=size)))
        assert HIDDEN(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "eos_token_id=151643 model Qwen2ForCausalLM",
        "session_id=9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d",
        "session id: train-2026-11-30-a",
        "pad_token_id: 151645abcdef",
    ],
)
def test_ids_of_tokens_and_sessions_that_are_not_random_stay(text: str) -> None:
    assert HIDDEN(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "/mnt/t/experiment2024baseline01/ckpt",
        "/home/t/Llama3instructtuned8B/x",
        "/data/t/2026-11-30-12-00-00-01/rank0.log",
        "~/t/lr-1e-4-warmup-100-steps/7.pt",
        "./t/0f1e2d3c4b5a69788796a5b4/x",
        "scp n7:/w/t/run20260102lr1e4batch8/x .",
        "file:///w/t/run20260102lr1e4batch8/x",
    ],
)
def test_a_folder_below_t_stays(text: str) -> None:
    assert HIDDEN(text) == text


@pytest.mark.parametrize(
    "form",
    [
        "https://conda.example/t/{}/lab",
        "channels: [http://repo.lab.example:8080/conda/t/{}/main]",
        "conda.anaconda.org/t/{}/noarch",
        "https://x.example/api/conda/lab/t/{}",
    ],
)
@pytest.mark.parametrize("kind", ["h40", "a24", "l32"])
def test_a_token_below_t_of_a_channel_is_masked(form: str, kind: str) -> None:
    for seed in range(20):
        value = "ab" + made(kind, random.Random(seed))
        assert value not in HIDDEN(form.format(value)) and value not in HIDDEN(form.format(f"tk-{value}"))


@pytest.mark.parametrize(
    "text",
    [
        "srun --login n1 -p h100",
        "bash --login -p h200x",
        "salloc on login node -p a100",
        "ssh login srun -p gpu8",
        "n_live_1234567890abcdef12",
        "x_live_ab12cd34ef56ab78cd90 tensors",
        "num_live_bytes0000000000001",
        "pad_token is set to eos_token1",
        "token was replaced by llama3tok",
        "bos token has been changed to im_start2",
        "--use-commit 0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c",
        "--report-commit=0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c",
        "--use-sha 0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c",
        "su --login ann -p h200b",
    ],
)
def test_a_partition_a_tensor_a_special_token_and_a_commit_stay(text: str) -> None:
    assert HIDDEN(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "cf login -u ann -p k7Fq2xvT",
        "conan remote login lab ann -p k7Fq2xvT",
        "rzp_live_k7Fq2xvT9dLm4Rz8",
        "the token was changed to k7Fq2xvT9dLm",
        "token is set to 'k7Fq2xvT9dLm'",
        "password was replaced by k7Fq2xvT",
        "--use_wandb k7Fq2xvT",
        "--report_to=k7Fq2xvT",
        "--wandb-key k7Fq2xvT",
    ],
)
def test_what_looks_like_them_and_is_secret_is_masked(text: str) -> None:
    text = text.replace("k7Fq2xvT", "0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c") if text.startswith("--") else text
    assert MASK in HIDDEN(text) and not re.search("k7Fq2xvT|0f1e2d3c", HIDDEN(text))


@pytest.mark.parametrize("start", ["sk", "csk", "key", "apikey", "tok", "pat", "glpat", "nvapi", "secret", "token", "auth"])
@pytest.mark.parametrize("size", [32, 40, 48])
def test_letters_of_a_key_before_hexadecimal_digits_make_it_one(start: str, size: int) -> None:
    pick = random.Random(f"{start}{size}")
    words = [start + "".join(pick.choices(ALPHABETS["h"], k=size)) for _ in range(50)]
    assert sum(word in HIDDEN(f"sent {word} to it") for word in words) <= 6


@pytest.mark.parametrize("start", ["pod", "task", "run", "disk", "node", "worker", "path"])
def test_an_id_with_letters_before_it_stays(start: str) -> None:
    text = f"sent {start}{''.join(random.Random(start).choices(ALPHABETS['h'], k=32))} to it"
    assert HIDDEN(text) == text


@pytest.mark.parametrize("head", ["Access keys:", "api keys:", "backup codes:", "Passcodes:", "the jwts:", "hub tokens:"])
@pytest.mark.parametrize("item", ["- ", "  * ", "{}. ", "{}) ", "  "])
def test_every_item_of_a_list_below_a_plural_is_masked(head: str, item: str) -> None:
    pick = random.Random(head)
    values = ["".join(pick.choices(ALNUM, k=24)) + "4k7x2" for _ in range(6)]
    text = "\n".join([head, *(item.format(number) + value for number, value in enumerate(values, 1)), "end"])
    assert sum(value in HIDDEN(text) for value in values) <= 1
    assert HIDDEN(text).endswith("end")


@pytest.mark.parametrize(
    "text",
    [
        "token embedding weight 128256x8192 on cuda:3",
        "token buffer 4096x128x2bf16",
        "bad token for 8x7168x4fp8",
        "password policy 16x4096 pages",
        "error codes:\n- NET2\n- node7eth2port3speed400",
        "sort keys:\\n 9f8e7d6c5b4a3928",
        "missing keys: [9f8e7d6c5b4a3928]",
    ],
)
def test_a_size_near_a_name_of_a_secret_stays(text: str) -> None:
    assert HIDDEN(text) == text
