"""Learned words put in order what nothing better tells apart. They name nothing surely, say nothing of a sentence, and yield to what was printed."""
from __future__ import annotations

import json
import math
import re

import learn_words
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nccl_runbook.causes.causes import causes
from nccl_runbook.causes.toml import worked_out
from nccl_runbook.evidence import logs as reader
from nccl_runbook.knowledge.clues import hints
from nccl_runbook.knowledge.words import MOST, chances, mark, words_of
from nccl_runbook.rules import triage

LEARNED = worked_out("words")
# nobody's report: no message of a program that is known here, told in plain words, each with what decides it
PLAIN = {
    "uneven-minibatches": "Two machines train a tagger with DDP. The dataset was split by file, the second machine has a few hundred sentences less, and at the end of the "
    "first epoch it is done while the other one goes on with its last batches and waits; join() is not used and the sampler does not drop the remainder.",
    "roce-gid-wrong": "Bandwidth tests between two servers with RoCE cards work on the plain link, and fail as soon as the traffic shall use the routed VLAN: show_gids lists "
    "v1 and v2 entries with IPv4 at index 3 and 5, the job takes index 0 which is link local, and the switch drops it.",
    "container-gpu-access": "The image runs on the host of a colleague. On ours the pod starts without any card: nvidia-smi inside of it is not found, the toolkit is installed, "
    "but the runtime class was left out of the deployment and the device plugin lists nothing.",
}


def told(tmp_path, context, log="epoch 1 starts\nvalue of the loss is 2.5\n"):
    (tmp_path / "a.log").write_text(log)
    return triage.judge(reader.collect([str(tmp_path / "a.log")], context))


@pytest.mark.parametrize("cause", PLAIN)
def test_a_report_in_plain_words_names_its_cause_never_surely_and_says_by_which_words(tmp_path, cause):
    first, *_ = every = told(tmp_path, PLAIN[cause] + " It fails.")
    assert first.cause == cause and {h.status for h in every} == {"possible"}
    named = first.against[0].partition("usual with it: ")[2].split(", ")
    assert 0 < len(named) <= MOST and set(named) <= words_of(PLAIN[cause]), first.against


@pytest.mark.parametrize("cause", PLAIN)
def test_the_same_story_with_the_other_words_does_not(tmp_path, cause):
    other = next(words for name, words in PLAIN.items() if name != cause)
    assert told(tmp_path, other + " It fails.")[0].cause != cause


def test_a_sentence_is_no_report():
    assert chances(words_of("the dataset was split by file and one rank is done first")) == {}
    assert chances(words_of("quux " * 500)) == {} and chances([]) == {}


def test_what_a_job_printed_goes_before_words(tmp_path):
    """The words are those of another cause."""
    log = "n1:7:7 [0] NCCL WARN Error: cannot open shared memory: No space left on device\nn1:7:7 [0] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device\n"
    first = told(tmp_path, PLAIN["uneven-minibatches"] + " It fails.", log)[0]
    assert (first.cause, first.status) == ("shm-too-small", "established")


def test_what_a_job_printed_goes_before_what_is_told_of_another_cause(tmp_path):
    """Even where the message leaves several causes open."""
    log = "n1:7:7 [0] misc/nvmlwrap.cc:190 NCCL WARN nvmlDeviceGetHandleByPciBusId() failed: Not Found\n"
    words = "at the end of the first epoch it is done while the other one goes on with its last batches; join() is not used, drop_last is not set. It fails."
    assert [told(tmp_path, words)[0].cause, told(tmp_path, words, log)[0].cause] == ["uneven-minibatches", "nvml-call-failed"]


LIKELY = "GPU Direct RDMA Disabled for HCA 0 'mlx5_0', expected\n[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def words_for(cause, most=80):
    """Words that speak for a cause and that no hint of it has."""
    weights = {word: dict(zip(pairs[::2], pairs[1::2])).get(LEARNED["causes"].index(cause), 0) for word, (_, *pairs) in LEARNED["words"].items()}
    hinting = re.compile("|".join(f"(?:{e.removeprefix('(?i)')})" for e, causes in hints().items() if cause in causes), re.I)
    return " ".join(word for word in sorted(weights, key=weights.get, reverse=True)[:most] if not hinting.search(word))


def test_words_of_a_log_change_no_status_and_what_is_likely_goes_before_what_they_name(tmp_path):
    """Words of a third cause, that no hint has, beside the messages of two."""
    words = words_for("ulimit-too-low")
    assert chances(words_of(words))["ulimit-too-low"][0] > 0.5
    before, after = ({h.cause: h.status for h in told(tmp_path, "", LIKELY + more)} for more in ("", words + "\n"))
    likely = [cause for cause, status in before.items() if status == "likely"]
    assert [*after][:2] == likely == [cause for cause, status in after.items() if status == "likely"] and chances(reader.collect([str(tmp_path / "a.log")], "").words)["ulimit-too-low"][0] > 0.5


def test_a_story_that_tells_of_another_cause_leaves_what_was_likely_only_possible_and_says_so(tmp_path):
    """But not what ended a rank itself: an exception stays likely."""
    asked = told(tmp_path, words_for("ulimit-too-low") + " It fails.", LIKELY)
    assert [h.cause for h in asked][:2] == ["gpu-memory-exhausted", "ulimit-too-low"] and [h.status for h in asked[:2]] == ["likely", "possible"]
    assert [("speaks more for another cause" in "".join(h.against), h.status) for h in asked if h.cause == "gdr-disabled"] == [(True, "possible")]


def test_a_story_that_tells_of_the_same_or_of_nothing_leaves_it_likely(tmp_path):
    memory = "The second epoch dies in the backward pass when a long sequence comes and the cards are full; with half of the batch and checkpointing it goes through."
    for story in (memory, "It fails."):
        assert [h.status for h in told(tmp_path, story, LIKELY) if h.cause == "gpu-memory-exhausted"] == ["likely"]


def test_every_mark_that_was_learned_is_that_of_a_hint_or_a_cause():
    named = {mark(expression) for expression in hints()}
    assert {name for name in LEARNED["marks"] if name[0] == "~"} <= named
    assert {name.split()[0] for name in LEARNED["marks"] if name[0] != "~"} <= causes().keys()


def test_a_hint_and_a_message_move_the_chances_and_an_unknown_mark_does_not():
    words = words_of(PLAIN["roce-gid-wrong"])
    hint = mark(max(hints(), key=lambda e: hints()[e].get("shm-too-small", 0)))
    plain, hinted, pointed = (chances(words, marks)["shm-too-small"][0] for marks in ((), [hint], ["shm-too-small likely"]))
    assert plain < hinted and plain < pointed and chances(words, ["~00000000", "no-cause likely"]) == chances(words)


@pytest.mark.parametrize("story", ["At the end of every run this warning is printed. Loss and results are fine, but the Slurm job never ends: one of the eight ranks stays until its limit.",
                                   "Since yesterday the throughput is a third of what it was; it hangs at times."])
def test_a_complaint_is_not_called_harmless_by_learned_words(tmp_path, story):
    warning = "[rank0]: Warning: destroy_process_group() was not called before program exit, which can leak resources.\n"
    assert [h.cause for h in told(tmp_path, story, warning)][:1] != ["benign"]
    assert told(tmp_path, "At the end of every run this warning is printed. Loss and results are fine.", warning)[0].cause == "benign"


@pytest.mark.parametrize(("story", "first"), [
    ("Every training of the model prints this warning once.", "benign"), ("Every training of the model ends in NCCL communication errors, before that it prints this.", ""),
    ("Every training of the model prints this and then stops for good.", ""), ("Training ends with no error. What does it mean?", "benign"), ("It ends with a lower validation error than before. Is the warning harmless?", "benign"),
    ("We never had to restart by force; what does it mean?", "benign"), ("After this line the server had to be restarted by force.", "")])
def test_whoever_says_that_a_job_ended_badly_is_heard(tmp_path, story, first):
    warning = "[rank0]: Warning: destroy_process_group() was not called before program exit, which can leak resources.\n"
    assert [h.cause for h in told(tmp_path, story, warning)][:1] == [first] * bool(first)


def test_a_message_tells_more_than_words_that_go_with_many_causes(tmp_path):
    """What was set in words of the reporter, and the limit that was printed; the near miss is the limit that was set."""
    story = ("Training of a robot's policy with FSDP and much gradient accumulation. TRAINER_TIMEOUT is left at its 180 minutes, and steps in which one rank computes for "
             "more than half an hour still end with a kill by the watchdog.")
    line = "WorkNCCL(SeqNum=1878, OpType=_ALLGATHER_BASE, NumelIn=8, NumelOut=64, Timeout(ms)={0}) ran for {0} milliseconds before timing out.\n"
    assert told(tmp_path, story, line.format(1_800_000))[0].cause == "timeout-on-other-group" != told(tmp_path, story, line.format(10_800_000))[0].cause


@pytest.mark.parametrize("line", ["n1:7:7 [0] NCCL INFO show_gids of RoCE v1 and v2, index 3, the routed VLAN: GID table is link local and the switch drops it\n",
                                  "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\n"])
def test_what_every_job_prints_and_what_is_known_as_harmless_is_not_taken_word_for_word(tmp_path, line):
    (tmp_path / "a.log").write_text(line + "the job ended\n")
    assert reader.collect([str(tmp_path / "a.log")], "it fails").words.keys() == {"it", "fails", "the", "job", "ended"}


def test_words_alone_are_no_complaint(tmp_path):
    """A job of which nobody says anything and that printed no failure: the words of its lines accuse nobody."""
    log = "".join(sentence + "\n" for sentence in PLAIN["uneven-minibatches"].split(". "))
    assert told(tmp_path, "", log) == [] != told(tmp_path, "it fails", log)


def test_of_a_long_log_the_last_kinds_of_lines_are_taken_word_for_word(tmp_path):
    names = ["".join(chr(97 + int(digit)) for digit in str(n)) for n in range(10_000, 10_400)]
    (tmp_path / "a.log").write_text("".join(f"begin {name}\n" for name in names) + "here it ended\n" * 9)
    words = reader.collect([str(tmp_path / "a.log")], "it fails").words
    assert {"fails", "ended", names[-1]} <= words.keys() and names[0] not in words
    assert (words["ended"].line, words["fails"].file) == (401, reader.CONTEXT)


@pytest.mark.parametrize(("words", "place"), [("", -1), ("Is this normal?", 0), ("It fails.", None)])
def test_what_is_told_in_words_of_a_fault_is_harmless_only_last(tmp_path, words, place):
    """Nobody complains, or only in the last case, and the only message is a harmless one."""
    story = "The dataset was split by file, the second machine has a few hundred sentences less; join() is not used, the sampler keeps the remainder of the epoch. "
    causes = [h.cause for h in told(tmp_path, story + words, "[rank0]: UserWarning: No device id is provided via `init_process_group`\n")]
    assert "uneven-minibatches" in causes[:2] and ("benign" in causes) is (place is not None) and (place is None or causes[place] == "benign")


@given(text=st.text(max_size=200))
@settings(max_examples=200, deadline=None)
def test_words_are_lower_case_letters_and_parts_of_names(text):
    words = words_of(text)
    assert all(len(word) > 1 and set(word) <= set("abcdefghijklmnopqrstuvwxyz_") for word in words)
    assert words == words_of(text.upper()) or not text.isascii()


def test_a_name_counts_as_a_whole_and_in_parts_and_an_address_is_no_word():
    assert words_of("NCCL_P2P_DISABLE=1 at 0x7fdeadbeef") == {"nccl_p", "nccl", "p_disable", "disable", "at"}


@given(words=st.lists(st.sampled_from(sorted(LEARNED["words"])) | st.text(max_size=9), max_size=90))
@settings(max_examples=100, deadline=None)
def test_chances_are_of_all_causes_together(words):
    told = chances(words)
    assert not told or math.isclose(sum(chance for chance, _ in told.values()), 1) and told.keys() == set(LEARNED["causes"])
    assert all(set(named) <= set(words) and len(named) <= MOST for _, named in told.values())


def test_the_table_is_of_known_causes_and_of_words_as_they_are_read():
    assert set(LEARNED["causes"]) <= {*causes(), "benign"} and len(LEARNED["base"]) == len(LEARNED["causes"]) == len(LEARNED["reports"])
    for word, (rarity, *pairs) in LEARNED["words"].items():
        assert word in words_of(word) and rarity >= 1 and len(pairs) % 2 == 0 < len(pairs), word
        assert all(0 <= number < len(LEARNED["causes"]) for number in pairs[::2]) and all(abs(weight) >= 10 * learn_words.LEAST for weight in pairs[1::2]), word


def test_what_is_learned_is_what_sets_reports_apart(tmp_path, monkeypatch, capsys):
    stories = {"data-stall": "the loader reads slowly from the shelf", "straggler": "one card is slow since it is hot"}
    rows = [{"id": f"{cause}{n}", "cause": cause, "context": f"{text}, it fails", "log": "epoch 1\n"} for cause, text in stories.items() for n in range(4)]
    (tmp_path / "reports.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.setattr(learn_words, "OUT", tmp_path / "words.json")
    monkeypatch.setattr("sys.argv", ["learn_words.py", str(tmp_path / "reports.jsonl")])
    learn_words.main()
    learned = json.loads((tmp_path / "words.json").read_text())
    stall = learned["causes"].index("data-stall")
    weights = {word: dict(zip(pairs[::2], pairs[1::2])) for word, (_, *pairs) in learned["words"].items()}
    assert weights["loader"][stall] > 0 > weights["hot"][stall] and "epoch" not in weights, "what all say tells nothing"
    assert learned["reports"] == {"data-stall": 4, "straggler": 4} and "8 reports" in capsys.readouterr().out
