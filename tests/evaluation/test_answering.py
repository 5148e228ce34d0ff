"""Answers: the same whatever was interrupted, from the model's own distribution, refused where they do not belong."""

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from places import STORIES
from text2grad.costs import TokenCount
from text2grad.errors import ConfigError, DataError
from text2grad.evaluation import answering
from text2grad.evaluation.answering import (
    AnswerFile,
    Sampling,
    check_room,
    cut_at,
    sample_answers,
)
from text2grad.evaluation.subjects import load, outline, read_subjects
from text2grad.evaluation.suite import Answer, AnsweredSuite, Question, Scores, SuiteOptions, mean_of


class Talk(AnsweredSuite):
    """Questions of one and of two turns; a score is the length of the answer."""

    name = "talk"
    max_new_tokens = 6

    def __init__(self, questions: Sequence[Question]) -> None:
        self.questions, self.options = questions, SuiteOptions()
        self.measures = {"length": mean_of("length")}

    def score(self, answers: Sequence[Answer], folder: Path) -> list[Scores]:
        return [{"length": len(one.text), "why": "counted"} for one in answers]


QUESTIONS = [
    Question("one", "Once upon a time"),
    Question("two", "Tell me", then=("And then?",)),
    Question("greedy", "A dog", temperature=0.0),
    Question("four", "The end of"),
]
HOT = Sampling(temperature=1.0, samples=2, rows_at_once=3)


def asked(path: Path, out: Path, suite: Talk, sampling: Sampling = HOT) -> AnswerFile:
    """Sample what is missing, and return the file."""
    [subject] = read_subjects([str(path)])
    file = AnswerFile(out, suite, subject, sampling)
    file.open(force=False)
    if file.missing:
        check_room(outline(subject), file)
        sample_answers(load(outline(subject)), file, TokenCount())
    file.answers(chat=False)
    return file


class Killed(Exception):
    """Stands for the end of the process."""


def test_answers_are_equal_wherever_a_run_was_killed(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = Talk(QUESTIONS)
    whole = asked(policy, tmp_path / "whole", suite).path.read_bytes()
    assert len(whole.splitlines()) == 2 * 5
    own, out = answering.append_records, tmp_path / "killed"
    for cut in (0, 1, 40, 10_000):  # bytes of each batch that reach the disk before the process ends

        def append(path: Path, lines: Sequence[Any], cut: int = cut) -> None:
            own(path, lines)
            with path.open("rb+") as opened:
                size = len(path.read_bytes())
                opened.truncate(max(0, size - cut) if cut < 10_000 else size)
            raise Killed

        monkeypatch.setattr(answering, "append_records", append)
        with pytest.raises(Killed):
            asked(policy, out, suite)
    monkeypatch.setattr(answering, "append_records", own)
    assert asked(policy, out, suite).path.read_bytes() == whole


def test_finished_answers_need_no_model(policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked(policy, tmp_path, Talk(QUESTIONS))
    monkeypatch.setattr(answering, "sample", None)
    asked(policy, tmp_path, Talk(QUESTIONS))


def test_a_missing_answer_is_sampled_with_its_batch_and_no_other(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, own, sampled = asked(policy, tmp_path, Talk(QUESTIONS)).path, answering._sample_batch, list[int]()
    whole = path.read_bytes()
    path.write_bytes(b"\n".join(whole.splitlines()[:-1]))  # without the second of the two last turns

    def counted(model: Any, file: AnswerFile, batch: Sequence[answering.Turn]) -> Any:
        sampled.append(len(batch))
        return own(model, file, batch)

    monkeypatch.setattr(answering, "_sample_batch", counted)
    with caplog.at_level(logging.INFO, logger="text2grad"):
        assert asked(policy, tmp_path, Talk(QUESTIONS)).path.read_bytes() == whole
    assert sampled == [2]
    assert any(message.endswith(": 10 answers, 9 done before") for message in caplog.messages)


def test_an_answer_follows_from_its_own_question_and_sample(policy: Path, tmp_path: Path) -> None:
    """Neither the order of the questions nor the size of a batch changes the random numbers."""
    first = asked(policy, tmp_path / "a", Talk(QUESTIONS)).path.read_text("utf-8").splitlines()
    turned = replace(HOT, rows_at_once=2)
    second = asked(policy, tmp_path / "b", Talk(QUESTIONS[::-1]), turned).path.read_text("utf-8").splitlines()
    assert sorted(first) == sorted(second)
    texts = [json.loads(line)["text"] for line in first if '"one"' in line]
    assert len(set(texts)) == 2  # two samples differ


def test_another_seed_gives_other_answers(policy: Path, tmp_path: Path) -> None:
    first = asked(policy, tmp_path / "a", Talk(QUESTIONS)).path.read_bytes()
    again = asked(policy, tmp_path / "b", Talk(QUESTIONS), replace(HOT, seed=0)).path.read_bytes()
    other = asked(policy, tmp_path / "c", Talk(QUESTIONS), replace(HOT, seed=1)).path.read_bytes()
    assert first == again != other


def test_the_second_turn_holds_the_answer_to_the_first(chat: Path, tmp_path: Path) -> None:
    suite, [subject] = Talk(QUESTIONS[1:2]), read_subjects([str(chat)])
    file = asked(chat, tmp_path, suite)
    said = file.said
    [_, second] = [json.loads(line) for line in file.path.read_bytes().splitlines()][1:3]
    assert second["turn"] == 1
    assert said["two", 0, 0]["text"] != said["two", 1, 0]["text"]
    for number in (0, 1):
        assert file.prompt(answering.Turn(QUESTIONS[1], number, 1), chat=True) == [
            {"role": "user", "content": "Tell me"},
            {"role": "assistant", "content": said["two", number, 0]["text"]},
            {"role": "user", "content": "And then?"},
        ]
    answers = file.answers(chat=True)
    assert [len(one.texts) for one in answers] == [2, 2]
    assert not answers[0].continues
    assert subject.name == chat.name


def test_temperature_zero_is_the_models_own_greedy_text(policy: Path, tmp_path: Path) -> None:
    [subject] = read_subjects([str(policy)])
    loaded = load(outline(subject))
    said = asked(policy, tmp_path, Talk(QUESTIONS)).said
    ids = loaded.tokenizer("A dog", return_tensors="pt")
    greedy = loaded.model.generate(**ids, max_new_tokens=6, do_sample=False, pad_token_id=loaded.pad_id)
    text = loaded.tokenizer.decode(greedy[0, ids.input_ids.shape[1] :], skip_special_tokens=True)
    assert said["greedy", 0, 0]["text"] == said["greedy", 1, 0]["text"] == text


def test_an_answer_ends_before_a_text_that_ends_it(policy: Path, tmp_path: Path) -> None:
    """The text is taken from the middle of the answer without it: the answer then ends there, and no token follows."""
    free = asked(policy, tmp_path / "free", Talk(QUESTIONS[:1]), Sampling()).said["one", 0, 0]
    stop = free["text"][3:5]
    ended = replace(QUESTIONS[0], stop=(stop,))
    beside = replace(QUESTIONS[3], stop=(stop,))  # goes on in the same batch
    cut = asked(policy, tmp_path / "cut", Talk([ended, beside]), Sampling()).said["one", 0, 0]
    assert cut["text"] == free["text"][: free["text"].index(stop)]
    assert cut["finish"] == "stop"
    assert cut["tokens"] < free["tokens"]
    assert cut_at("abcabc", ["c", "b"]) == "a"


def test_a_continuation_keeps_its_indentation(tmp_path: Path) -> None:
    """SentencePiece drops the first space of what it decodes; a body of a function would lose its indentation."""
    if not STORIES.exists():
        pytest.skip("needs ../shared/models, which is not part of the project")
    [subject] = read_subjects([str(STORIES)])
    loaded = load(outline(subject))
    body = "    return 1"
    prompt, whole = (tuple(loaded.tokenizer(text).input_ids) for text in ("def one():", "def one():" + body))
    response = whole[len(prompt) :]
    assert loaded.tokenizer.decode(list(response)) != body  # alone
    assert answering._texts(loaded, [prompt], [response]) == [body]
    assert answering._texts(loaded._replace(chat=True), [prompt], [response]) == ["   return 1"]


def test_prompts_without_room_are_refused_or_empty(policy: Path, tmp_path: Path) -> None:
    suite = Talk([Question("short", "a"), Question("long", "word " * 600)])
    with pytest.raises(
        DataError,
        match=r"^1 of 2 prompts of suite talk leave no room for 6 new tokens in the context of 512 tokens of .*; the "
        r"first is question 'long' with \d+ tokens\. Lower --max-new-tokens, or count them as failed with --set",
    ):
        asked(policy, tmp_path / "a", suite, Sampling())
    with pytest.raises(
        DataError, match=r"^1 of 1 prompts of suite talk leave no room for 500 new tokens in the context"
    ):
        asked(policy, tmp_path / "c", Talk([Question("near", "word " * 20)]), Sampling(max_new_tokens=500))
    said = asked(policy, tmp_path / "b", suite, Sampling(too_long="empty")).said
    assert said["long", 0, 0] == {"id": "long", "sample": 0, "turn": 0, "text": "", "tokens": 0, "finish": "too_long"}
    assert said["short", 0, 0]["tokens"] == 6


def test_answers_of_others_are_refused(policy: Path, other: Path, tmp_path: Path) -> None:
    [mine], [theirs] = read_subjects([f"m={policy}"]), read_subjects([f"m={other}"])
    suite = Talk(QUESTIONS[:1])
    AnswerFile(tmp_path, suite, mine, HOT).open(force=False)
    with pytest.raises(ConfigError, match=r'holds talk\.m\.jsonl, answers of another model.*: \{"subject": '):
        AnswerFile(tmp_path, suite, theirs, HOT).open(force=False)
    with pytest.raises(ConfigError, match=r'"seed": 0.*"questions": .*, now .*"seed": 1.*, or add --force to replace'):
        AnswerFile(tmp_path, Talk(QUESTIONS), mine, replace(HOT, seed=1)).open(force=False)
    replaced = AnswerFile(tmp_path, suite, theirs, HOT)
    replaced.open(force=True)
    assert replaced.said == {}


def test_several_greedy_samples_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^--samples 3 at --temperature 0 would give the same answer 3 times; set a"):
        Sampling(samples=3)
