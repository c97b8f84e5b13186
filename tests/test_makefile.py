"""What `make` says on a machine that lacks something: one sentence with the way out, and no half-made .venv."""
from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
# real interpreters seen through a script: one that says 3.9, one without ensurepip
OLD = '#!/bin/sh\ncase "$2" in *print*) echo 3.9;; *) exit 1;; esac\n'
BARE = f'#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; *) exec {sys.executable} "$@";; esac\n'
WHOLE = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
NO_VENV = f'#!/bin/sh\ncase "$1" in -m) exit 1;; *) exec {sys.executable} "$@";; esac\n'
TOOLS = (
    "bash",
    "make",
    "env",
    "dirname",
    "rm",
    "mktemp",
    "grep",
    "tail",
    "touch",
    "mkdir",
    "sed",
    "date",
    "id",
    "cat",
    "cp",
    "find",
    "mv",
    "head",
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that `make` reads, and a PATH of its own with nothing but tools."""
    for name in ("Makefile", "pyproject.toml", "requirements.txt"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    shutil.copytree(ROOT / "lib", tmp_path / "lib", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or pytest.skip(f"{tool} is not installed"))
    return tmp_path


def make(checkout: Path, *arguments: str, python: dict[str, str] | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    for name, source in (python or {}).items():
        (checkout / "bin" / name).write_text(source)
        (checkout / "bin" / name).chmod(0o755)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "MAKE", "MFLAGS", "VIRTUAL_ENV"))}
    return subprocess.run(["make", *arguments], cwd=checkout, env={**clean, "PATH": str(checkout / "bin"), **env}, capture_output=True,
                          text=True, timeout=240)


def sentence(ended: subprocess.CompletedProcess[str], checkout: Path) -> str:
    """The one line that is ours; make adds one of its own."""
    assert ended.returncode == 2 and not (checkout / ".venv").exists()
    ours = [line for line in ended.stderr.splitlines() if not line.startswith(("make: ***", "setting up"))]
    assert len(ours) == 1, ended.stderr
    return ours[0]


def test_no_python_at_all(checkout: Path) -> None:
    said = sentence(make(checkout, "report"), checkout)
    assert "Python 3.11 to 3.14 is needed, no python3 was found: install one" in said


@pytest.mark.parametrize("version", [(3, 9), (3, 15)])
def test_a_python_that_the_lock_does_not_cover(version: tuple[int, int], checkout: Path) -> None:
    """A real interpreter that claims another version."""
    claims = f'#!/bin/sh\nexec {sys.executable} -c "import sys; sys.version_info = (*{version}, 0); exec(sys.argv.pop(1))" "$2"\n'
    said = sentence(make(checkout, "report", python={"python3": claims}), checkout)
    assert f"python3 is {version[0]}.{version[1]}" in said


def test_no_ensurepip(checkout: Path) -> None:
    said = sentence(make(checkout, "report", python={"python3": BARE}), checkout)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"python3 ({version}) cannot make a virtual environment" in said and f"sudo apt install python{version}-venv" in said


@pytest.mark.slow
def test_no_network(checkout: Path) -> None:
    """The second interpreter on PATH is taken where the first is too old; pip then finds an index that nobody serves."""
    pip = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "0",
        "PIP_TIMEOUT": "1",
        "PIP_NO_COMPILE": "1",
    }
    said = sentence(make(checkout, "report", python={"python3": OLD, "python3.12": WHOLE}, **pip), checkout)
    assert (
        "packages could not be fetched" in said
        and "make report WHEELHOUSE=wheelhouse" in said
        and "PIP_INDEX_URL or PIP_FIND_LINKS" in said
    )


OFFLINE = {
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    "PIP_RETRIES": "0",
    "PIP_TIMEOUT": "1",
    "PIP_NO_COMPILE": "1",
}


def old_pydantic(folder: Path) -> Path:
    """What a job's PYTHONPATH may name."""
    folder.mkdir()
    (folder / "pydantic.py").write_text("raise ImportError('not ours')\n")
    return folder


@pytest.mark.parametrize(("flags", "named", "sees"), [((), "theirs", ["found", "ours theirs"]), ((), os.pathsep, ["found", "ours theirs"]),
                                                      (("-E",), "theirs", ["ours"])])
def test_what_pythonpath_names_comes_behind_our_libraries(flags: tuple[str, ...], named: str, sees: list[str], tmp_path: Path) -> None:
    """As .ci/setup puts it into .venv; an empty entry is the working directory. What acts at the start finds the old order, as the builds
    of pip need it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "own"], check=True)
    [site] = tmp_path.glob("own/lib/python3*/site-packages")
    (site / "pydantic.py").write_text("whose = 'ours'\n")
    shutil.copy(ROOT / ".ci" / "pythonpath_last.py", site)
    (site / "pythonpath_last.pth").write_text("import pythonpath_last\n")
    theirs = old_pydantic(tmp_path / "theirs")
    (theirs / "sitecustomize.py").write_text(f"import sys\nprint('found' * (sys.path[0] == {str(theirs)!r}))\n")
    (theirs / "only.py").touch()
    code = "import importlib.util as i, pydantic; print(pydantic.whose + ' theirs' * bool(i.find_spec('only')))"
    (tmp_path / "script.py").write_text(code)
    said = subprocess.run(
        [tmp_path / "own" / "bin" / "python", *flags, tmp_path / "script.py"],
        cwd=theirs,
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(theirs) if named == "theirs" else named},
    )
    assert said.stdout.splitlines() == sees


def wheelhouse(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, ROOT / ".ci" / "wheelhouse", *arguments], capture_output=True, text=True, timeout=240)


@pytest.mark.slow
def test_a_wheelhouse_is_all_that_a_machine_without_network_and_ensurepip_needs(checkout: Path) -> None:
    filled = wheelhouse(str(checkout / "wheels"), "", "")
    if "could not be fetched" in filled.stderr:
        pytest.skip("no package index can be reached from here")
    assert filled.returncode == 0 and f"CPython {sys.version_info.major}.{sys.version_info.minor}" in filled.stdout, filled.stderr
    bill = json.loads((checkout / "wheels" / "bom.cdx.json").read_text())["components"]
    wheels = {hashlib.sha256(w.read_bytes()).hexdigest(): w.name.partition("-")[0].lower() for w in checkout.glob("wheels/*.whl")}
    assert {c["hashes"][0]["content"]: re.sub("[-.]", "_", c["name"]).lower() for c in bill} == wheels and len(bill) == len(wheels)
    licences = (checkout / "wheels" / "licences.txt").read_text().splitlines()
    assert len(licences) == len(bill) and f"papermill {version('papermill')}: BSD" in "\n".join(licences)
    theirs = {"PYTHONPATH": str(old_pydantic(checkout / "theirs"))}
    (checkout / "constraints").write_text("pydantic<2\n")
    astray = {
        "PIP_USER": "1",
        "PIP_TARGET": str(checkout / "astray"),
        "PIP_PREFIX": str(checkout / "astray"),
        "PIP_CONSTRAINT": str(checkout / "constraints"),
    }
    made = make(checkout, ".venv/.headless", "WHEELHOUSE=wheels", python={"python3": BARE}, **OFFLINE, **theirs, **astray)
    assert made.returncode == 0 and not (checkout / "astray").exists(), made.stderr
    asked = subprocess.run(
        [checkout / ".venv" / "bin" / "nccl-runbook", "run", "--help"], env={**os.environ, **theirs}, capture_output=True, text=True
    )
    assert asked.returncode == 0 and "--record" in asked.stdout
    tested = make(checkout, ".venv/.test", "WHEELHOUSE=wheels", **OFFLINE)
    assert tested.returncode == 2 and 'EXTRAS="lab test torch"' in tested.stderr and not (checkout / ".venv/.test").exists()
    shutil.rmtree(checkout / ".venv")
    lock = checkout / ".ci" / "headless.txt"
    whole = lock.read_text()
    lock.write_text(re.sub(r"sha256:\w{8}", "sha256:00000000", whole))
    assert "pip could not install what is needed" in sentence(make(checkout, "report", "WHEELHOUSE=wheels", **OFFLINE), checkout)
    lock.write_text(whole)
    next(checkout.glob("wheels/pyyaml-*")).unlink()
    said = sentence(make(checkout, "report", "WHEELHOUSE=wheels", **OFFLINE), checkout)
    assert "the wheelhouse wheels lacks what is needed here" in said and "TARGET_PYTHON=" in said and "pyyaml" in said


def test_a_wheelhouse_that_is_not_there(checkout: Path) -> None:
    said = sentence(make(checkout, "report", "WHEELHOUSE=nowhere", python={"python3": WHOLE}), checkout)
    assert "WHEELHOUSE=nowhere is no folder" in said


def test_a_wheelhouse_without_wheels(checkout: Path) -> None:
    (checkout / "empty").mkdir()
    said = sentence(make(checkout, "report", "WHEELHOUSE=empty", python={"python3": WHOLE}), checkout)
    assert "WHEELHOUSE=empty holds no wheels: make wheelhouse" in said


@pytest.mark.parametrize(
    ("python", "says"),
    [("/nosuch", "/nosuch cannot be run: no such file or directory"), ("/bin/sh -c 'exit 1'", "is not a Python that runs on this machine")],
)
def test_a_wrong_python_is_refused_before_anything_is_set_up(python: str, says: str, checkout: Path) -> None:
    assert says in sentence(make(checkout, "report", f"PYTHON={python}", python={"python3": WHOLE}), checkout)


def test_a_python_with_torch_is_not_refused(checkout: Path) -> None:
    (checkout / "apps" / "torch" / "distributed").mkdir(parents=True)
    (checkout / "apps" / "torch" / "__init__.py").touch()
    said = sentence(
        make(checkout, "report", f"PYTHON={sys._base_executable}", python={"python3": NO_VENV}, PYTHONPATH=str(checkout / "apps")), checkout
    )
    assert "python3 -m venv .venv failed" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("w", "3.9", "x86_64"), "TARGET_PYTHON=3.9"),
        (("w", "3.12", "sparc"), "TARGET_ARCH=sparc"),
        (("w", "3.12", "x86_64", "gpu"), "EXTRAS=gpu"),
        (("w", "3.12", "aarch64", "torch"), "EXTRAS=torch"),
        (("file/w", "3.12", "x86_64"), "cannot be made: Not a directory"),
    ],
)
def test_a_wheelhouse_for_nothing_we_run_on(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = wheelhouse(str(tmp_path / arguments[0]), *arguments[1:])
    assert said.returncode == 1 and says in said.stderr and len(said.stderr.splitlines()) == 1 and not (tmp_path / "w").exists()


def test_two_at_once_wait_for_each_other(checkout: Path) -> None:
    """The other one holds the lock, sets up, and ends: nothing is left to do."""
    (checkout / ".venv").mkdir()
    with open(checkout / ".venv.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (checkout / "bin" / "python3").symlink_to(sys.executable)
        env = {**os.environ, "PATH": str(checkout / "bin")}
        second = subprocess.Popen(["make", ".venv/.headless"], cwd=checkout, env=env, stderr=subprocess.PIPE, text=True)
        assert "another set-up of this .venv is under way: waiting for it" in second.stderr.readline()
        (checkout / ".venv" / ".headless").write_text(f"{checkout.resolve()}\n")
    assert (second.communicate(timeout=60)[1], second.returncode) == ("", 0)


def test_the_venv_of_a_copied_or_moved_checkout_is_made_anew(checkout: Path) -> None:
    """With a Python that makes none, so that nothing is fetched: then the old one is there as it was."""
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / ".headless").write_text("/elsewhere/checkout\n")
    made = make(checkout, "report", python={"python3": NO_VENV})
    assert "this .venv was made for another folder: it is made anew\nmake: python3 -m venv .venv failed" in made.stderr
    assert (checkout / ".venv/.headless").read_text() == "/elsewhere/checkout\n" and not (checkout / ".venv.old").exists()


def test_a_venv_that_was_made_here_before_its_stamp_held_the_folder_is_kept(checkout: Path) -> None:
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / ".headless").touch()
    (checkout / ".venv" / "bin" / "nccl-runbook").write_text(f"#!{checkout.resolve()}/.venv/bin/python\n")
    assert (
        "made for another folder" not in make(checkout, "report", python={"python3": NO_VENV}).stderr
        and (checkout / ".venv/bin/nccl-runbook").exists()
    )


@pytest.mark.parametrize(("code", "ends"), [(0, 0), (3, 0), (4, 0), (1, 2), (2, 2)])
def test_make_report_ends_0_whenever_the_report_was_written(code: int, ends: int, checkout: Path) -> None:
    """A stand-in for the command in a .venv that counts as made; it shows what it was given."""
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / ".headless").write_text(f"{checkout.resolve()}\n")
    command = checkout / ".venv" / "bin" / "nccl-runbook"
    command.write_text(f'#!/bin/sh\necho "[$*]"\necho "last line"\nexit {code}\n')
    command.chmod(0o755)
    ended = make(checkout, "report", "PYTHON=docker exec -i it's python3", "ARGS=--step 03-fewer-gpus")
    assert ended.returncode == ends
    assert ended.stdout.splitlines()[:2] == ["[run --python docker exec -i it's python3 --step 03-fewer-gpus]", "last line"]


def test_make_setup_installs_and_starts_nothing(checkout: Path) -> None:
    """Neither the notebooks nor a look for torch; on a machine that lacks something it says so like the others."""
    assert "Python 3.11 to 3.14 is needed" in sentence(make(checkout, "setup"), checkout)
    assert [line for line in make(checkout, "-n", "setup").stdout.splitlines() if not line.startswith("echo")] == [".ci/setup headless "]
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / ".headless").write_text(f"{checkout.resolve()}\n")
    command = checkout / ".venv" / "bin" / "nccl-runbook"
    command.write_text("#!/bin/sh\ntouch started\n")
    command.chmod(0o755)
    ended = make(checkout, "setup")
    assert (ended.returncode, ended.stderr) == (0, "") and ".venv/bin/nccl-runbook" in ended.stdout and not (checkout / "started").exists()


def test_python_of_the_environment_is_not_the_jobs(checkout: Path) -> None:
    assert "--python" not in make(checkout, "-n", "report", PYTHON="/usr/bin/python3").stdout
    assert "--python '/usr/bin/python3'" in make(checkout, "-n", "report", "PYTHON=/usr/bin/python3").stdout


def test_newest_leaves_the_venv_of_the_lock_alone(checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    made = make(checkout, "newest", python={"python3": NO_VENV})
    assert made.returncode == 2 and ".venv-newest failed" in made.stderr and not list((checkout / ".venv").iterdir())


def lock_lines(*files: str) -> list[str]:
    """The lines of the lock, each joined with its hashes."""
    return "".join((ROOT / ".ci" / f"{name}.txt").read_text() for name in files).replace(" \\\n   ", "").splitlines()


def test_every_line_of_the_lock_is_a_version_with_hashes_and_names_no_address() -> None:
    lines = lock_lines("headless", "lab", "test")
    assert len(lines) > 100
    assert [x for x in lines if not re.fullmatch(r"[a-z0-9-]+==[\w.]+( ; [^:/\\]+)?( --hash=sha256:[0-9a-f]{64})+", x)] == []


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("python", ["3.11.0", "3.11.9", "3.12.9", "3.13.9", "3.14.9"])
def test_the_lock_holds_each_direct_need_once_and_within_its_range(python: str, machine: str) -> None:
    """`make lock` was run after the last change of pyproject.toml. Each extra is locked in the files up to its own."""
    environment = {"python_version": python.rpartition(".")[0], "python_full_version": python, "platform_machine": machine}
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = data["project"]["optional-dependencies"]
    needs = {"headless": [*data["project"]["dependencies"], *data["build-system"]["requires"], "pip"], **extras}
    assert list(needs) == ["headless", "lab", "test"]
    pins: dict[str, set[str]] = {}
    for name, direct in needs.items():
        for line in map(Requirement, (x.partition(" --hash")[0] for x in lock_lines(name))):
            if line.marker is None or line.marker.evaluate(environment):
                pins.setdefault(canonicalize_name(line.name), set()).add(str(line.specifier).removeprefix("=="))
        for need in map(Requirement, direct):
            [version] = pins[canonicalize_name(need.name)]
            assert version in need.specifier, need
    assert {n: v for n, v in pins.items() if len(v) > 1} == {} and "torch" not in pins


def test_make_alone_tells_the_targets(checkout: Path) -> None:
    told = make(checkout).stdout
    assert [line.split()[1] for line in told.splitlines()] == [
        "setup",
        "report",
        "lab",
        "test",
        "newest",
        "knowledge",
        "mutants",
        "scorecard",
        "gym",
        "bench",
        "look",
        "wheelhouse",
        "lock",
        "clean",
    ]
