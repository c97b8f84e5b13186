"""Launch scripts as text: heredocs, quotes and comments as the shell takes them, and a script made to be slow is read in time."""
from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from nccl_runbook.core.facts import Gap
from nccl_runbook.environment import read_file
from nccl_runbook.environment.facts import Environment
from nccl_runbook.environment.judge import judge
from nccl_runbook.scripts.read import MOST_BYTES, read
from processes import quickest_s

LAUNCH = "torchrun --nproc_per_node 4 train.py"
HEREDOCS = {
    "unquoted": "cat <<EOF\n{0}\nEOF\n",
    "quoted": "cat <<'EOF'\n{0}\nEOF\n",
    "double quotes": 'cat <<"EOF"\n{0}\nEOF\n',
    "backslash": "cat <<\\EOF\n{0}\nEOF\n",
    "tabs": "cat <<-EOF\n\t{0}\n\tEOF\n",
    "glued": "cat<<EOF\n{0}\nEOF\n",
    "a blank": "cat << EOF\n{0}\nEOF\n",
    "several": "cat <<A <<-'B'\n{0}\nA\n{0}\n\tB\n",
    "a file": "cat > hosts <<EOF\n{0}\nEOF\n",
    "behind it": "cat <<EOF > hosts\n{0}\nEOF\n",
    "two commands": "cat <<A; cat <<B\n{0}\nA\n{0}\nB\n",
    "Python": "python3 - <<EOF\n{0}\nEOF\n",
    "CRLF": "cat <<EOF\r\n{0}\r\nEOF\r\n",
    "in a function": "usage() {{\ncat <<EOF\n{0}\nEOF\n}}\n",
    "in a condition": "if [ -z $1 ]; then cat <<EOF\n{0}\nEOF\nfi\n",
    "other words": "cat <<EOF-1\nEOF\n{0}\nEOF-1\n",
    "longer": "cat <<E\nEE\n{0}\nE\n",
}
TEXTS = ["it doesn't matter", 'a " quote', "`", "$(", "\\", "# it's", "a 'b", "don\"t 'x"]


def words(text: str) -> list[str]:
    return [c.text for c in read(text).commands]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("form", HEREDOCS)
def test_no_quote_of_a_heredoc_swallows_the_commands_after_it(form: str, text: str) -> None:
    script = HEREDOCS[form].format(text) + LAUNCH + "\nsrun -N 2 x\n"
    assert LAUNCH in words(script) and read(script).spread == 2


@pytest.mark.parametrize(("script", "is_there"), [
    (f"sbatch <<EOT\n#!/bin/bash\n{LAUNCH}\nEOT", True), (f"bash -s <<'E'\n{LAUNCH}\nE\n", True), (f"ssh n1 bash <<E\n{LAUNCH}\nE\n", True),
    (f"cat <<E > run.sh\n{LAUNCH}\nE\nbash run.sh", True), (f"cat <<E | sbatch\n{LAUNCH}\nE\n", True), (f"cat <<E\n{LAUNCH}\nE\n", False),
    (f"python3 - <<E\n{LAUNCH}\nE\n", False), (f"tee run.sh <<E\nit's\n{LAUNCH}\nE\n", True)])
def test_commands_of_a_heredoc_count_where_somebody_may_run_them(script: str, is_there: bool) -> None:
    assert (LAUNCH in words(script)) is is_there


@pytest.mark.parametrize(
    "script",
    [
        "x=$((1 << 4))\n{0}",
        "x=$((1<<n))\n{0}\nn\n",
        "cat <<< EOF\n{0}\nEOF",
        "cat <<<EOF\n{0}\nEOF",
        "echo '<<EOF'\n{0}",
        'echo "<<EOF"\n{0}',
        "# <<EOF\n{0}\nEOF",
        "cat <<EOF\n{0}",
        "a << 2\n{0}\n2",
    ],
)
def test_what_begins_no_heredoc_hides_no_command(script: str) -> None:
    assert LAUNCH in words(script.format(LAUNCH))


@pytest.mark.parametrize(
    ("script", "wanted"),
    [
        ("a 'b c' \"d  e\" f\\ g", [("a", "b c", "d  e", "f g")]),
        ("a 'x'\"y\"z ''", [("a", "xyz", "")]),
        ('a "\\$b \\" \\\\ \\n"', [("a", '\\$b " \\ \\n')]),
        ("a b \\\n c \\  \n d", [("a", "b", "c", "d")]),
        ("a # b\nc#d #e", [("a",), ("c#d",)]),
        ("a && b||c; d | e", [("a",), ("b",), ("c",), ("d",), ("e",)]),
        ("a -- b -- c", [("a",), ("b",), ("c",)]),
        ("-- a -- b", [("a",), ("b",)]),
        ("a \\&\\& b", [("a",), ("b",)]),
        ("don't # x\ny", [("don't",), ("y",)]),
    ],
)
def test_words_are_those_of_the_shell(script: str, wanted: list[tuple[str, ...]]) -> None:
    assert [c.words for c in read(script).commands] == wanted


SEVEN = "export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6\n"
FOUR = "#SBATCH -N 2\n#SBATCH --gres=gpu:h100:4\n"


@pytest.mark.parametrize(
    ("script", "wanted"),
    [
        (SEVEN + "torchrun --nproc_per_node 8 t.py", (8, 7)),
        (SEVEN + "N=8\npython -m torch.distributed.run --nproc-per-node=$N t.py", (8, 7)),
        (FOUR + "srun --nodes 2 --ntasks 2 --ntasks-per-node 1 torchrun --nnodes 2 --nproc_per_node=${NGPU:-8} t.py", (8, 4)),
        ("#SBATCH -N 2\n#SBATCH --gpus=8\naccelerate launch --num_machines 2 --num_processes 16 t.py", (8, 4)),
        ("CUDA_VISIBLE_DEVICES=GPU-1a2b,GPU-3c4d torchrun --nproc_per_node 4 t.py", (4, 2)),
        (FOUR + "bash -c 'torchrun --nproc_per_node 5 t.py'", (5, 4)),
        (SEVEN + "torchrun --nproc_per_node 7 t.py", ()),
        (SEVEN + "torchrun --nproc_per_node gpu t.py", ()),
        (FOUR + "torchrun --nproc_per_node $N t.py", ()),
        ("CUDA_VISIBLE_DEVICES=$LIST torchrun --nproc_per_node 8 t.py", ()),
        ("CUDA_VISIBLE_DEVICES= torchrun --nproc_per_node 8 t.py", ()),
        ("CUDA_VISIBLE_DEVICES=-1 torchrun --nproc_per_node 8 t.py", ()),
        (FOUR + "accelerate launch --num_machines $N --num_processes 80 t.py", ()),
        ("#SBATCH --gpus-per-node=8\n#SBATCH --gres=lscratch:2\ntorchrun --nproc_per_node 8 t.py", ()),
        ("#SBATCH --gres=nvme:1,gpu:8\ntorchrun --nproc_per_node 8 t.py", ()),
        ("#SBATCH --gres=gpu:1g.10gb:4\ntorchrun --nproc_per_node 4 t.py", ()),
        (SEVEN + "accelerate launch --cpu --num_machines 1 --num_processes 8 t.py", ()),
        ("if x; then\nexport CUDA_VISIBLE_DEVICES=0\nfi\ntorchrun --nproc_per_node 8 t.py", ()),
        (SEVEN + "unset CUDA_VISIBLE_DEVICES\ntorchrun --nproc_per_node 8 t.py", ()),
        ("cat > e.sh <<'EOF'\nexport CUDA_VISIBLE_DEVICES=0\nEOF\ntorchrun --nproc_per_node 8 t.py", ()),
        (SEVEN + "docker run --gpus all i torchrun --nproc_per_node 8 t.py", ()),
        (SEVEN + "torchrun --nproc_per_node 7 t.py --nproc_per_node 16", ()),
        ("sbatch --gpus-per-node=1 prep.sh\ntorchrun --nproc_per_node 8 t.py", ()),
        (SEVEN + "pkill -f torchrun --nproc_per_node 8", ()),
        ("#SBATCH -N 2\n#SBATCH --gres=gpu:8\naccelerate launch --num_processes 16 t.py", ()),
        ("export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}\ntorchrun --nproc_per_node 8 t.py", ()),
        (FOUR + "accelerate launch --config_file two.yaml --num_processes 8 t.py", ()),
        (SEVEN + "echo torchrun --nproc_per_node 8 t.py", ()),
        (FOUR + "pip install deepspeed\nCUDA_VISIBLE_DEVICES=0 python one.py\ntorchrun --nproc_per_node 4 t.py", ()),
        # srun starts each launcher once for each of its tasks
        (FOUR + "#SBATCH --ntasks-per-node=4\nsrun torchrun --nproc_per_node 4 t.py", (16, 4)),
        (FOUR + "srun --ntasks-per-node=2 torchrun --nproc_per_node 4 t.py", (8, 4)),
        (FOUR + "#SBATCH --ntasks-per-node=4\nsrun --ntasks-per-node=1 torchrun --nproc_per_node 4 t.py", ()),
        (FOUR + "#SBATCH --ntasks-per-node=4\nsrun -n1 torchrun --nproc_per_node 4 t.py", ()),
        (FOUR + "#SBATCH --ntasks-per-node=4\nsrun torchrun --nproc_per_node 1 t.py", ()),
        (FOUR + "#SBATCH --ntasks-per-node=4\ntorchrun --nproc_per_node 4 t.py", ()),
        (FOUR + "#SBATCH --ntasks-per-node=4\nsrun python t.py", ()),
        # accelerate that is not told on how many machines: on those of the job
        ("#SBATCH -N 1\n#SBATCH --gpus-per-node=4\nsrun accelerate launch --num_processes 8 t.py", (8, 4)),
        (SEVEN + "accelerate launch --multi_gpu --num-processes=8 t.py", (8, 7)),
        ("accelerate launch --gpu_ids 0,1 --num_processes 4 t.py", (4, 2)),
        ("accelerate launch --gpu_ids all --num_processes 4 t.py", ()),
        (FOUR + "accelerate launch --machine_rank 0 --num_processes 16 t.py", ()),
        ("distributed_type: MULTI_GPU\ngpu_ids: 0,1,2,3\nnum_machines: 1\nnum_processes: 8\n", (8, 4)),
        ("distributed_type: FSDP\ngpu_ids: '0,1'\nnum_machines: 2\nnum_processes: 8\n", (4, 2)),
        ("distributed_type: DEEPSPEED\ngpu_ids: all\nnum_machines: 1\nnum_processes: 8\n", ()),
        ("distributed_type: MULTI_GPU\ngpu_ids: 0,1,2,3\nnum_machines: 1\nnum_processes: 4\n", ()),
    ],
)
def test_more_ranks_than_gpus(script: str, wanted: tuple[int, ...], tmp_path: Path) -> None:
    assert read(script).crowded == wanted
    (tmp_path / "job.sh").write_text(script)
    role = read_file.read(str(tmp_path / "job.sh"))
    found = [f for f in judge(Environment([role], Gap("not-run", "a file"))) if f.cause == "more-ranks-than-gpus"]
    assert [f.severity.value for f in found] == ["broken"] * bool(wanted)


@given(st.text("a \"'\\\n;&|<>$(){}#=-E\t\r", max_size=80))
def test_any_text_is_read(text: str) -> None:
    assert all(c.words for c in read(text).commands)


PIECES = {
    "doubling": "A=$A$A\n",
    "doubled": "A=$A$A$A; b $A\n",
    "dashes": "a -- ",
    "lines": "\n",
    "blanks": " ",
    "tabs": "\t",
    "returns": "\r",
    "dots": "a.",
    "env": "env A=1 ",
    "heredocs": "cat <<EOF\n",
    "open": "<<A ",
    "many": "<<'E'\nx\nE\n",
    "shifts": "<<2",
    "continued": "a \\\n",
    "variables": "$A ",
    "quotes": "\"'",
    "odd": "echo don't\n",
    "escaped": '\\"',
    "arithmetic": "$((1+1)) ",
    "exports": "export NCCL_DEBUG=INFO\n",
    "comments": "# it's\n",
    "parentheses": "$((" + "(" * 90,
    "nested": "bash -c 'bash -c ",
    "backslashes": "\\ ",
    "flags": "--a b ",
    "slashes": "\\\n",
}


@pytest.mark.parametrize("name", PIECES)
def test_a_script_made_to_be_slow_is_read_in_time(name: str, tmp_path: Path) -> None:
    """A quarter of the largest text: 0.5 s each on a quiet machine, more than a minute for what takes the square."""
    path = tmp_path / "run.sh"
    path.write_text("A=" + "x" * 60_000 + "\n" * (name == "variables") + PIECES[name] * (MOST_BYTES // 4 // len(PIECES[name])))
    assert quickest_s(lambda: (read(path.read_text()), read_file.read(str(path))), 3.0, tries=2) < 3.0


def test_nested_heredocs_end(tmp_path: Path) -> None:
    depth = 5000
    text = "".join(f"bash <<A{n}\n" for n in range(depth)) + "".join(f"A{n}\n" for n in reversed(range(depth))) + LAUNCH
    assert LAUNCH in words(text)
