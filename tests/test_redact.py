"""No secret is left in a text, whatever holds it; what only looks like one stays; no expression is slow on a text made for it."""
from __future__ import annotations

import base64
import random
import re
import string
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from nccl_runbook.core import redact, secret_values
from nccl_runbook.core.redact import Redactor, clipped, escaped, masked, plain
from nccl_runbook.core.secret_values import MASK, sounds_secret

DATA = Path(__file__).parent / "data"
SHAPES = [shape.strip("\n") for shape in (DATA / "secrets.txt").read_text().split("\n---\n")]  # "canary" is the secret, or in it
INNOCENT = (DATA / "innocent.txt").read_text().splitlines()
NAMES = """RAY_PWD PASSWORD CRED API_KEY TOKEN SECRET DSN WEBHOOK DB_PWD MYSQL_PWD SSHPASS GIT_CRED LDAP_BINDPW SLACK_WEBHOOK DATABASE_URL
    AZURE_STORAGE_CONNECTION_STRING OTEL_EXPORTER_OTLP_HEADERS PGPASSWORD REDIS_URL CELERY_BROKER_URL SENTRY_DSN CLICKHOUSE_PW SVC_CREDS
    KAFKA_SASL_PASSWD TLS_KEY_PASSPHRASE SESSION_COOKIE GRAFANA_JWT AZURE_CLIENT_SECRET STORAGE_ACCOUNT_KEY RCLONE_CONFIG_PASS
    SNOWFLAKE_PRIVATE_KEY ENCRYPTION_KEY FASTLANE_PSWD PROXY_AUTH WIFI_PSK DBPASS SMTP_OTP AIRFLOW_FERNET_KEY DECRYPTION_KEY
    spark.account.key x-function-key REGISTRY_USERPW clientSecret db.password hf-token apiKey""".split()
NOT_NAMES = """PWD OLDPWD key sort_key cache_key pad_token eos_token_id fwd_pass forward_pass pass_rate max_tokens TOKENIZER_PATH
    monkey author
    PASSED compass AUTHOR_NAME token_count password_file SECRET_NAME prompt_key KEYS bypass compile_pass token_shape master_key_dtype
    path pattern XAUTHORITY""".split()
INSIDE = re.compile("canary", re.I)


def test_a_line_of_a_private_key_by_itself() -> None:
    """As logs go by lines; a digest of as many signs stays."""
    line = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
    assert Redactor({}).text(f"a\n{line}\nb") == "a\n[redacted:key]\nb"


@pytest.mark.parametrize("text", SHAPES)
@pytest.mark.parametrize("around", ["{}", "[rank0]: RuntimeError: {} (see above)", "a\\n{}\\nb"])
def test_no_secret_of_a_known_shape_is_left(text: str, around: str) -> None:
    clean = Redactor({}).text(around.format(text))
    assert MASK in clean and not INSIDE.search(clean)
    assert Redactor({}).text(clean) == clean and masked(clean)


@pytest.mark.parametrize(
    "text",
    [
        "[wandb]\nmode = online\n[hub.credentials]\nuser = bob\nread = canary\nwrite = 'canary'\n[run]\nname = x9",
        "[passwords]\nbob = canary\n\namy = canary  # hers",
        '[[tool.secrets]]\nhub = "canary"\nfile = "/run/x"',
        "env:\n  Secrets:\n    hub: canary\n    deep:\n      hub2: 'canary'\n  NCCL_DEBUG: INFO",
        '{\n "credentials": {\n  "user": "bob",\n  "host": "h1",\n  "hub": "canary",\n  "last": "canary"\n },\n "rank": 1\n}',
        "apiVersion: v1\nkind: Secret\nmetadata:\n  name: hub\ndata:\n  hub: canary==\n  other: canary",
        "kind: Secret\nstringData:\n  hub: canary\ntype: Opaque",
        "[api_keys]\r\nlab = canary\r\n",
        "[tokens]\nlab = 4f1dcanary0a7c2b\nbos = 151643",
        '[auth]\nuser = "bob"\nvalue = "canary"',
        "[api-tokens]\nlab = 'canary-4f1d9a7c'",
        "[registry.auth]\nlab = canary",
        '[[hub.tokens]]\nlab = "canary/4f1d9a=="',
    ],
)
def test_a_section_of_secrets_has_them_under_names_of_their_own(text: str) -> None:
    clean = Redactor({}).text(text)
    assert "canary" not in clean and Redactor({}).text(clean) == clean
    assert "{" in text or [line for line in text.splitlines() if "canary" not in line] == [
        line for line in clean.splitlines() if MASK not in line
    ]


@pytest.mark.parametrize(
    "text",
    [
        "kind: ConfigMap\ndata:\n  hub: seven",
        "[tokens]\npad = x9\n[keys]\nsort = arrival",
        "[tokens]\nbos = '<|im_start|>'\nmost = 131072\npath = '/data/qwen2/tokens.json'\nkind = \"byte-pairs\"",
        "[auth]\nmethod = oidc-v2-standard\nenabled = true\nttl = 3600",
        "secrets:\n  hub:\n    file: ./hub.txt\n    external: true",
        "volumes:\n- secret:\n    secretName: hub\n    optional: false",
    ],
)
def test_other_sections_stay(text: str) -> None:
    assert Redactor({}).text(text) == text


@given(st.text("0123456789abcdef", min_size=40, max_size=64))
def test_no_hash_is_taken_for_a_random_word(digest: str) -> None:
    text = f"commit {digest} Rev_{digest} layer sha256:{digest} GPU-{digest[:8]}-{digest[8:12]}-4000-8000-{digest[:12]} {digest.upper()}"
    assert Redactor({}).text(text) == text


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({"Authorization": "LabKey"}, "Authorization: LabKey 0f1e2d3c4b5a-canary # x"),
        ({"Cookie": "_xsrf=2"}, "> Cookie: _xsrf=2|0f1e2d3c|canary4b5a6978|1790000000"),
        ({"Password": "(string)"}, 'Password: (string) (len=9) "canary7xq"'),
    ],
)
def test_a_part_that_is_masked_by_value_hides_no_rest(env: dict[str, str], text: str) -> None:
    """A script is taken for variables first: of a header only the first word is a value."""
    assert "canary" not in Redactor(env).text(text)


@pytest.mark.parametrize(
    ("letters", "size", "least"),
    [
        (string.ascii_letters + string.digits, 32, 0.9),
        (string.ascii_letters + string.digits, 40, 0.9),
        (string.ascii_lowercase + string.digits, 32, 0.85),
        (string.ascii_uppercase + "234567", 32, 0.55),
        (string.ascii_letters + string.digits + "+/", 40, 0.9),
        (string.ascii_letters + string.digits + "-_", 43, 0.85),
    ],
)
def test_most_random_words_are_masked_whatever_issued_them(letters: str, size: int, least: float) -> None:
    made = random.Random(7)
    words = ["".join(made.choices(letters, k=size)) for _ in range(300)]
    assert sum(word not in Redactor({}).text(f"sent {word} to it") for word in words) > least * len(words)


LOW, MIXED = string.ascii_lowercase + string.digits, string.ascii_letters + string.digits


@pytest.mark.parametrize(
    ("text", "letters", "size", "least"),
    [
        ("sent k7F8Q~{} to it", MIXED + ".-_~", 34, 1),
        ("Password for ann on n7: {}", LOW, 10, 0.5),
        ("passphrase of the disk is this: {}", LOW, 9, 0.5),
        ("First root password generated for the server: {}", MIXED + "!#$%&*", 12, 0.6),
        ("the API key {} is wrong", MIXED, 10, 0.55),
        ("access key {} is unknown", string.ascii_uppercase + string.digits, 20, 0.95),
        ("authenticated with key {}", LOW, 22, 0.85),
        ("signed with key {}", MIXED, 24, 0.85),
        ("bad token {} for ann", LOW, 20, 0.85),
        ("token {} expired", MIXED, 12, 0.75),
        ("Value: {}", MIXED, 20, 0.9),
        ('value = "{}"', MIXED, 24, 0.9),
        ("your API key is:\n    {}", LOW, 24, 0.85),
        ("ldap_bind(ann, {}) failed", MIXED, 14, 0.9),
        ("curl --cert ann.p12:{} https://x.example", MIXED, 12, 0.9),
        ('URL.create("postgresql", "ann", "{}", "db")', MIXED, 12, 0.9),
    ],
)
def test_most_random_values_behind_a_name_are_masked(text: str, letters: str, size: int, least: float) -> None:
    made = random.Random(text)
    words = ["".join(made.choices(letters, k=size)) for _ in range(200)]
    assert sum(word not in Redactor({}).text(text.format(word)) for word in words) >= least * len(words)


@pytest.mark.parametrize("form", ["{}: rank 3 exited", "host={}", "loaded {}", "NCCL_ALGO={}", "/ckpt/{}/7.pt"])
def test_no_random_word_of_less_than_32_characters_is_masked_where_nothing_names_it(form: str) -> None:
    """It may as well be a host, a model or a run."""
    made = random.Random(form)
    for size in range(8, 32):
        text = form.format("".join(made.choices(MIXED, k=size)))
        assert Redactor({}).text(text) == text
        assert Redactor({}).json({"host": text, "facts": [{"hostname": text}]}) == {"host": text, "facts": [{"hostname": text}]}


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        ('{"model": "qwen3", "tp": 8}', True),
        ("tp: 8\npp: 2\ndtype: bf16", True),
        ('{"user": "ann", "password": "x4canary"}', False),
        ('{"api_address": "https://x", "api_key": "k7Fq2xvT9dLm"}', False),
        ("export HF_TOKEN=k7Fq2xvT9dLm\n", False),
    ],
)
@pytest.mark.parametrize("form", ["{}", "config {} of n1", "CONFIG={}", '"conf": "{}"'])
def test_base64_of_a_text_is_judged_by_the_text(text: str, stays: bool, form: str) -> None:
    line = form.format(base64.b64encode(text.encode()).decode())
    assert (Redactor({}).text(line) == line) == stays


@pytest.mark.parametrize("name", ["id", "etag", "digest", "x-amz-id-2", "checksum", "request id", "sha512"])
@pytest.mark.parametrize("sign", ["=", ": ", '": "'])
def test_a_word_that_is_named_as_an_id_or_a_hash_stays(name: str, sign: str) -> None:
    made = random.Random(name)
    for size in (32, 54, 88):
        text = f'x {name}{sign}{"".join(made.choices(MIXED + "+/", k=size))}'
        assert Redactor({}).text(text) == text


@pytest.mark.parametrize(
    "word",
    [
        "isAllDirectP2p",
        "P2P_and_SHM_off",
        "ConvBnReLU2dAndLinearReLU1d",
        "Qwen3.5-35B-A3B",
        "Mixtral-8x22B-v0.1",
        "04-gpt175B.sh",
        "Standard_ND96isr_H100_v5",
        "01K6FYH98Z7BS2BDFTM1P0972N",
        "0x0F0F0F0F0F0F0F0FULL",
        "worker-7d9f8b6c5d-x2k4q",
        "sm90_256x192x64gemm_bf16xe4m3",
        "GPT2LMHeadModelV2Wrapper",
        "avx512vp2intersect",
        "fp8e4m3b11fnuz",
        "H100-SXM5-80GB-x8",
        "enP2p1s0f0np0",
        "roceP2p1s0f1",
        "Wav2Vec2ForCTC",
        "Speech2Text2ForCausalLM",
        "TP8PP4DP2EP1CP2",
        "tp8xpp4xdp2xep4xcp2",
        "cudaD3D11GetDevice",
        "01d02h03m04s05ms",
        "raysubmit_Wq7ZkN4vGm2XtR9b",
        "N3c1010TensorImplE",
        "St6vectorIiSaIiEE",
    ],
)
@pytest.mark.parametrize("around", ["{}", "loaded {} at rank 3", "/cache/{}/x.py", "bad token for {}"])
def test_names_with_digits_inside_are_not_random(word: str, around: str) -> None:
    assert Redactor({}).text(around.format(word)) == around.format(word)


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("token for n1 rejected: {}", True),
        ("rank 1 rejected: {}", False),
        ("Password\n--------\n{}", True),
        ("Password: [redacted:named]\n{}", False),
        ("password\na\nb\n{}", False),
        ("{} is no password", True),
        (f"password {'x ' * 1500} {{}}", False),
    ],
)
def test_a_short_random_word_is_a_secret_near_a_name_of_one(text: str, hidden: bool) -> None:
    assert ("k7Fq2xvT" not in Redactor({}).text(text.format("k7Fq2xvT"))) == hidden


@pytest.mark.parametrize("text", INNOCENT)
def test_what_is_no_secret_stays(text: str) -> None:
    assert Redactor({"PWD": "/home/me", "SORT_KEY": "timestamp", "NCCL_KEY": "1"}).text(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "pullSecrets: [{name: registry-nvcr}, {name: other}]",
        "webhookToken: {path: /srv/kube/hook/token, mode: 420}",
        '{\\"secrets\\": {\\"name\\": \\"regcred-7\\"}}',
        "auth: {tls: true, method: oauth2, url: https://sso.example/login}",
        "TOKEN_POOL_SIZE=134217728",
        "secretCacheCapacity: 8388608",
        "auth_token_retry_count=10000000",
        "/cache/graph/c4zd6xw2ozv3bnqahjt7eylfrkgmui25spzx4dobw7tqhnvk6pw  (job3.log line 5, rank 0)",
    ],
)
def test_names_in_a_list_and_sizes_are_no_secrets(text: str) -> None:
    assert Redactor({}).text(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "secrets: {user: bob, token: canary7x}",
        'apiKeys: {name: "a", value: "canary7x"}',
        "password: {value: canary7x}",
        '{"credentials": {"host": "db1", "pass": "canary7x"}}',
        '{"private_key_id": "canary0a1b2c3d4e5f60718293a4b5c6d7e8f9"}',
    ],
)
def test_what_stands_beside_names_in_a_list_is_a_secret(text: str) -> None:
    assert "canary" not in Redactor({}).text(text)


@pytest.mark.parametrize("name", NAMES)
def test_names_of_secrets(name: str) -> None:
    assert sounds_secret(name)
    for value in ("s3cr", "correct horse", "x/y+z=1"):
        assert value not in Redactor({}).text(f"export {name}='{value}'")
        assert value not in str(Redactor({}).json({name: value, "list": [{name: [value]}]}))
    assert "correct-horse" not in Redactor({name: "correct-horse"}).text("it said correct-horse")


@pytest.mark.parametrize("name", NOT_NAMES)
def test_names_of_other_things(name: str) -> None:
    assert Redactor({}).text(f"{name}=/a/b {name}: blue") == f"{name}=/a/b {name}: blue"


@given(st.text(), st.sampled_from(SHAPES), st.text())
def test_any_text_is_taken_and_masked_once(before: str, shape: str, after: str) -> None:
    clean = Redactor({}).text(f"{before}\n{shape}\n{after}")
    assert Redactor({}).text(clean) == clean


def test_the_table_is_toml_and_read_as_such() -> None:
    path = Path(redact.__file__).with_name("secrets.toml")
    assert secret_values.TABLES == tomllib.loads(path.read_text())


FAMILIES = [
    *{piece for shape in SHAPES for piece in (shape, shape[: len(shape) * 2 // 3], f"-{shape[:8]}", shape[:4])},
    *(made for start in secret_values.TABLES["token"] for made in (f"-{start}aaaaaaaaaaaa", f" {start}")),
    "-eyJaaaaaaaaaaaa",
    "a",
    "0",
    "aA0",
    "--a",
    "a=",
    "a:",
    "://a:",
    "http://a:b",
    "'",
    '"',
    '\\"',
    "\\n",
    "-----BEGIN PRIVATE KEY-----",
    "mysql -",
    "a,",
    "password=",
    "password='",
    'password="a\\',
    "(",
    " ",
    "\t",
    "\n",
    "ENV ",
    "setenv ",
    "a-",
    "a.",
    '", "',
    "MII0a",
    "tp8",
    "TP8",
    "xpp4",
    "enP2p1",
    "1d2h",
    "Ab1",
    "N3c1",
]


def took(text: str) -> float:
    """Seconds of a new redactor, as one remembers its texts."""
    redactor = Redactor({"MY_TOKEN": "aaaaaaaaab"})
    began = time.process_time()
    redactor.text(text)
    return time.process_time() - began


def grows(piece: str, characters: int, times: int) -> bool:
    """Whether eight times so many characters take more than so many times as long; of four tries, as on a busy machine one says little."""
    short = piece * (characters // len(piece) + 1)
    return all(took(short * 8) > times * took(short) for _ in range(4))


@pytest.mark.parametrize("families", [FAMILIES[i::8] for i in range(8)], ids=range(8))
def test_every_expression_grows_with_the_text_and_not_with_its_square(families: list[str]) -> None:
    """Eight times the text: 64 times the time where an expression is quadratic, which a long text shows. What looks linear gets no long
    one."""
    assert [piece for piece in families if grows(piece, 2_000, 10) and grows(piece, 8_000, 24)] == []


@pytest.mark.parametrize("first", ["", "token ", "password {} "])
@pytest.mark.parametrize(("size", "between"), [(8, " "), (24, " "), (24, "/"), (40, "-"), (8, "\n"), (60, "token=")])
def test_a_line_of_random_words_takes_time_by_its_length(first: str, size: int, between: str) -> None:
    """Eight times the text: 64 times the time if each word asks the whole line."""
    made = random.Random(f"{size}{between}")

    def took(characters: int) -> float:
        words = ["".join(made.choices(MIXED, k=size)) for _ in range(characters // size)]
        began = time.process_time()
        Redactor({}).text(first + between.join(words))
        return time.process_time() - began

    assert min(took(160_000), took(160_000)) < 24 * max(min(took(20_000), took(20_000)), 0.005)


def test_a_script_made_for_the_redactor_is_quick(tmp_path: Path) -> None:
    (tmp_path / "r.sh").write_text("export NCCL_DEBUG=" + "-eyJaaaaaaaaaaaa" * 40_000)
    ended = subprocess.run([sys.executable, "-m", "nccl_runbook", "env", tmp_path / "r.sh"], capture_output=True, text=True, timeout=20)
    assert ended.returncode in (0, 3, 4)


def test_no_character_that_a_terminal_obeys_is_left() -> None:
    odd = "".join(map(chr, [7, 27, 0x9B, 0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]))
    assert not set(odd) & set(plain(f"a{odd}b")) and not set(odd) & set(escaped(f"a{odd}b"))
    assert escaped("\u202e\n") == "\\u202e\n" and plain("a\tb\n") == "a\tb\n"


@pytest.mark.parametrize("most", [300, 400, 1000])
def test_a_cut_leaves_no_half_of_a_secret(most: int) -> None:
    for at in range(most - 30, most, 3):
        assert "canary" not in clipped("x " * (at // 2) + "ghp_canary" + "a1B2" * 8, most)


@pytest.mark.parametrize(
    "form",
    ["tokens:\n  - {}\n  - {}\n", "tokens: [{}, '{}']", 'api_keys = ["{}", "{}"]', "TOKENS=({} {})", "password\n{}", "API key:\n   {}"],
)
def test_lists_of_secrets_and_a_value_below_its_name_are_masked(form):
    values = ["q7hd82kz0p4mv6xw1r5t9", "8f3a1c7d5e9b2046ad1c3f7b"]
    shown = Redactor({}).text(form.format(*values))
    assert not any(value in shown for value in values) and shown.split("[")[0][:3] == form[:3]


@pytest.mark.parametrize("end", ["", "\n", "\r\nrank 0 started", "  | x |", "\"}"])
def test_letters_alone_in_the_last_cell_of_a_row_are_masked(end):
    assert Redactor({}).text(f"LAB_PASSWORD   correcthorse{end}") == f"LAB_PASSWORD   [redacted:named]{end}"


@pytest.mark.parametrize(
    "text",
    [
        "special_tokens: ['<|reserved_special_token_1|>', '<|image|>']",
        "keys:\n  - model.layers.12.self_attn.q_proj\n  - lm_head_weights_1",
        "max_tokens: 4096",
        "missing keys: ['decoderlayernorm1weight']",
        "tokens\n12345678901234567890",
    ],
)
def test_vocabularies_and_layers_stay(text):
    assert Redactor({}).text(text) == text
