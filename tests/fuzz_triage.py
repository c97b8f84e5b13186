"""Feeds triage random mixtures of what jobs print, what archives hold and what only looks like it, for as long as it is told.

    nice python tests/fuzz_triage.py 600        # seconds (60 unless told); a seed may follow

Ends 1 with the seed and the input of the first crash, of the first answer that is no clear sentence, and of the first that took too long.
"""
from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import sys
import tarfile
import tempfile
import time
import traceback
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
from nccl_runbook.against import judge as judge_against, read as read_profile  # noqa: E402
from nccl_runbook.logs.text import LINE_CHARACTERS  # noqa: E402
from nccl_runbook.messages import (
    lines as lines_file,  # noqa: E402
    read,
)
from nccl_runbook.messages.clues import catalogue, compiled  # noqa: E402
from nccl_runbook.messages.lines import EXPRESSIONS  # noqa: E402
from nccl_runbook.messages.matcher import alternatives  # noqa: E402
from nccl_runbook.triage.judge import answer  # noqa: E402
from triage_samples import SAMPLES  # noqa: E402

SLOW_S = 5.0  # CPU seconds for at most 200 kB: ordinary ones take less than a tenth
LINES = [line for _, log, context, miss in SAMPLES for line in (log + miss + context).splitlines()]
LITERALS = sorted(
    {literal.decode() for e in catalogue()["printed"].values() for needs in alternatives(e) for of in needs for literal in of}
)
GLUE = [
    "\n",
    "\n",
    "\n",
    " ",
    "\r",
    "\x00",
    "\x1b[31m",
    "\t",
    "[rank3]: ",
    "2026-01-02 03:04:05 ",
    "(W pid=7, ip=10.0.0.1) ",
    "\xff",
    "{",
    "é",
    "\u017f",
    "\u212a",
    "WARN ",
    "\rstep 5/9 [00:05<00:07, 1.2it/s]",
    '{"step": 7, "loss": 0.5, "id": "',
    "9" * 30,
    "Last error:\n",
    "[repeated 2x across cluster]\n",
]


def text(dice: random.Random) -> bytes:
    """A few thousand pieces at most, some of them cut, doubled, or very long."""
    parts = []
    for _ in range(dice.choice([1, 5, 50, 500])):
        kind = dice.random()
        piece = dice.choice(LINES) if kind < 0.5 else dice.choice(LITERALS) if kind < 0.75 else dice.choice(GLUE) * dice.choice([1, 1, 3])
        if dice.random() < 0.1:
            cut = dice.randrange(len(piece) + 1)
            piece = piece[cut:] + piece[:cut]
        parts += [piece * (dice.choice([1000, 4000]) if dice.random() < 0.002 else 1), dice.choice(GLUE)]
    raw = "".join(parts)[:200_000].encode("utf-8", "replace")
    return bytes(b ^ (1 << dice.randrange(8)) if dice.random() < 0.001 else b for b in raw) if dice.random() < 0.2 else raw


def naive(lines: list[str]) -> None:
    """AssertionError if the matcher leaves out what a search with every expression finds."""
    selected = lines_file.matcher().may_match([line.encode("utf-8", "replace") for line in lines])
    for index, line in enumerate(lines):
        found = {name for name, e in {**catalogue()["printed"], **EXPRESSIONS}.items() if compiled(e).search(line)}
        assert found <= {*selected.get(index, ())}, line


def packed(dice: random.Random, raw: bytes) -> bytes:
    """As it is, packed, packed twice, or packed and damaged."""
    for _ in range(dice.choice([0, 0, 1, 2])):
        kind = dice.choice(["gzip", "xz", "bzip2", "tar", "zip", "utf-16"])
        if kind == "tar":
            box = io.BytesIO()
            with tarfile.open(fileobj=box, mode=dice.choice(["w", "w:gz"])) as archive:
                member = tarfile.TarInfo(dice.choice(["rank0.log", "../../x", "a/" * 40 + "b", "\n"]))
                member.size = len(raw)
                archive.addfile(member, io.BytesIO(raw))
            raw = box.getvalue()
        elif kind == "zip":
            box = io.BytesIO()
            with zipfile.ZipFile(
                box, "w", dice.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
            ) as zipped:
                zipped.writestr(dice.choice(["rank0.log", "../../x", "a/" * 40 + "b", "\n", "\u0436"]), raw)
            raw = box.getvalue()
        else:
            raw = {
                "gzip": gzip.compress,
                "xz": lzma.compress,
                "bzip2": bz2.compress,
                "utf-16": lambda b: b.decode("utf-8", "replace").encode("utf-16", "replace"),
            }[kind](raw)
    if dice.random() < 0.2 and raw[:2] in (b"PK", b"BZ", b"\x1f\x8b"):  # one byte is another one, mostly near an end, where the tables are
        at = dice.choice([dice.randrange(len(raw)), dice.randrange(min(60, len(raw))), -1 - dice.randrange(min(160, len(raw)))])
        raw = raw[:at] + bytes([dice.randrange(256)]) + raw[at:][1:]
    return raw[: dice.randrange(len(raw) + 1)] if dice.random() < 0.1 else raw


def once(folder: Path, dice: random.Random) -> None:
    """One input through everything that reads logs; AssertionError where the answer is none."""
    names = [
        dice.choice(["rank0.log", "job.log", "x.gz", "x.zip", "x.zip", "a.env", "0/stderr.log"]) for _ in range(dice.choice([1, 1, 2, 3]))
    ]
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(packed(dice, text(dice)))
    naive([line[: LINE_CHARACTERS] for line in text(dice).decode("utf-8", "replace").split("\n")[:4]])
    began = time.process_time()
    given = answer(read.collect([str(folder)], dice.choice(["", "it hangs", dice.choice(LINES)])))
    assert all(f.title for f in given.findings) and given.findings and all(h.evidence and h.remedy for h in given.hypotheses)
    profile = read_profile.collect([str(folder)])
    assert judge_against.compare(profile, profile).differences == ()
    assert time.process_time() - began < SLOW_S * len(names), f"{time.process_time() - began:.1f} s"
    for name in set(names):
        (folder / name).unlink()


def main(seconds: float, seed: int) -> int:
    until, number = time.monotonic() + seconds, 0
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < until:
            number += 1
            try:
                once(Path(folder), random.Random(f"{seed}/{number}"))
            except Exception:  # noqa: BLE001  any at all is what is looked for
                traceback.print_exc()
                print(f"seed {seed}, input {number}", file=sys.stderr)
                return 1
    print(f"{number} inputs, seed {seed}: none crashed, none was slow")
    return 0


if __name__ == "__main__":
    seconds, seed, *_ = (*sys.argv[1:3], *("60", "1")[len(sys.argv) - 1 :])
    sys.exit(main(float(seconds), int(seed)))
