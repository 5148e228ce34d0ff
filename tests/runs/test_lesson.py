"""A lesson on a tiny model: the answers it is given on, its steps, and its files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

import small_run
from text2grad.config import Recipe, make_recipe
from text2grad.errors import DataError
from text2grad.feedback import Annotation, write_annotations
from text2grad.models import Scores, collate
from text2grad.runs import lesson as module
from text2grad.runs.lesson import Judged, LessonRun, LessonTrainer, ReadOnce, give_lesson
from text2grad.types import Critique, Example, Rollout, Span


def recipe(out: Path, **sections: dict[str, Any]) -> Recipe:
    base: dict[str, dict[str, Any]] = {
        "model": {"value": "none", "lora_r": 4},
        "rollout": {"batch_size": 2, "max_new_tokens": 4},
        "ppo": {"gamma": 0.0, "epochs": 1, "whiten": "none", "kl_in": "loss", "beta": 0.05},
        "optim": {"lr": 1e-2, "schedule": "constant"},
        "data": {"eval_examples": 2},
        "run": {"steps": 4, "save_every": 2, "out": str(out), "threads": 1, "tracker": "none"},
    }
    return make_recipe({name: {**base.get(name, {}), **sections.get(name, {})} for name in {*base, *sections}})


def judged(tokenizer: Any, prompt: str, response: str, quote: str, label: Any = "negative") -> Judged:
    ids, prompt_ids = (tuple(tokenizer(text, add_special_tokens=False).input_ids) for text in (response, prompt))
    start = response.index(quote)
    critique = Critique("No numbers, please.", (Span(start, start + len(quote), label),))
    return Judged(Rollout(Example(prompt), prompt_ids, ids, response, True), critique)


def answers(tokenizer: Any) -> list[Judged]:
    return [
        judged(tokenizer, " red cat", " one cat runs", "one"),
        judged(tokenizer, " red cat", " red cat runs", "red", "positive"),
        judged(tokenizer, " blue dog", " two dog eats", "two"),
        judged(tokenizer, " green bird", " bird sleeps", "sleeps"),
    ]


def test_the_steps_are_taken_on_the_given_answers_and_move_the_marked_words(tmp_path: Path) -> None:
    tokenizer, model = small_run.tokenizer_and_model()
    given = answers(tokenizer)
    trainer = LessonTrainer(model, tokenizer, given, recipe(tmp_path))
    batch = trainer.collate([own.rollout for own in given])
    before = trainer.score(batch, kl="k1").logp
    step = trainer.train_step()
    taken = [rollout.response for rollout in step.rollouts]
    assert set(taken) <= {own.rollout.response for own in given}
    assert (" one cat runs" in taken) == (" red cat runs" in taken), "answers to a prompt stay together"
    assert len({rollout.prompt_ids for rollout in step.rollouts}) == 2
    assert step.metrics["engine/weight_mean"] == 1.0, "stored answers are no samples of another engine"
    assert step.metrics["update/ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    trainer.train(after_step=lambda _: None)
    moved = trainer.score(batch, kl="k1").logp - before
    assert moved[0, 0] < -0.1  # "one"
    assert moved[1, 0] > 0.1  # "red"
    assert moved[2, 0] < -0.1  # "two"


def test_the_reference_reads_the_answers_of_the_steps_once_and_others_when_they_come(tmp_path: Path) -> None:
    tokenizer, model = small_run.tokenizer_and_model()
    given = answers(tokenizer)
    trainer, reads = LessonTrainer(model, tokenizer, given, recipe(tmp_path, model={"lora_r": 0})), list[int]()
    first = trainer.reference.reference
    read = first.read
    first.read = lambda policy, batch: reads.append(len(batch.ids)) or read(policy, batch)
    trainer.train(after_step=lambda _: None)
    rollouts = [own.rollout for own in given][::-1]
    known, before = trainer.score(trainer.collate(rollouts), kl="k1"), list(reads)
    trainer.reference = first
    whole = trainer.score(trainer.collate(rollouts), kl="k1")
    assert before == []
    assert torch.allclose(known.logp_ref, whole.logp_ref, atol=1e-5)
    assert (known.logp - known.logp_ref).abs().max() > 0.1, "the policy has moved, and the reference has not"
    trainer.reference = ReadOnce(first, model, [trainer.collate(rollouts[:2])])
    reads.clear()
    trainer.score(trainer.collate(rollouts), kl="k1")
    assert reads == [4], "two are unknown"


def test_a_lesson_that_was_stopped_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    def run(out: Path, steps: int, *, resume: bool = False) -> None:
        tokenizer, model = small_run.tokenizer_and_model()
        settings = recipe(out, run={"steps": steps})
        LessonTrainer(model, tokenizer, answers(tokenizer), settings, resume=resume).train(after_step=lambda _: None)

    run(tmp_path / "whole", 4)
    run(tmp_path / "parts", 2)
    run(tmp_path / "parts", 4, resume=True)
    small_run.assert_same_run(tmp_path / "whole", tmp_path / "parts")


def lesson_run(tmp_path: Path, marks: list[Annotation]) -> LessonRun:
    small_run.save_base(tmp_path / "base")
    write_annotations(tmp_path / "marks.jsonl", marks)
    settings = recipe(tmp_path / "out", model={"path": str(tmp_path / "base"), "value": "none", "lora_r": 4})
    return LessonRun(settings, tmp_path / "marks.jsonl")


def annotations(given: list[Judged]) -> list[Annotation]:
    return [Annotation(own.rollout.example.prompt_text, own.rollout.response, own.critique) for own in given]


def test_answers_are_read_with_their_own_ids_and_those_of_a_person_are_encoded(tmp_path: Path) -> None:
    given = answers(small_run.critic_tokenizer())
    run = lesson_run(tmp_path, annotations(given))
    assert run.marked == given, "a person's texts are encoded"
    first, end = given[0], run.tokenizer.eos_token_id
    ended = replace(first.rollout, response_ids=(*first.rollout.response_ids, end), truncated=False)
    assert run.kept("own.jsonl", lambda: [Judged(ended, first.critique)]) == [Judged(ended, first.critique)]
    assert run.kept("own.jsonl", list) == [Judged(ended, first.critique)], "what is there is not made again"
    assert run.kept("none.jsonl", list) == []


def test_an_answer_whose_marks_were_withdrawn_is_no_evidence_that_it_is_good(tmp_path: Path) -> None:
    given = answers(small_run.critic_tokenizer())
    withdrawn = annotations(given[:1])[0]._replace(critique=Critique("", status="withdrawn"))
    assert lesson_run(tmp_path, [withdrawn, *annotations(given[1:])]).marked == given[1:]


def test_an_answer_that_the_tokenizer_changes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"marks\.jsonl:1: the policy's tokenizer changes the response 'purple'"):
        lesson_run(tmp_path, [Annotation("red", "purple", Critique("no", (Span(0, 6, "negative"),)))])


def test_the_answer_that_the_policy_would_rather_give_is_likelier(tmp_path: Path) -> None:
    run = lesson_run(tmp_path, annotations(answers(small_run.critic_tokenizer())))
    rollouts = [own.rollout for own in run.marked]
    logp = run.trainer(run.marked).score(collate(rollouts, pad_id=0), kl="k1").logp
    expected = [float(row[: len(r.response_ids)].sum()) for row, r in zip(logp, rollouts, strict=True)]
    assert run.likely(rollouts) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("feedback", "asked"),
    [
        ('Be kind.\n"one": rude\nAlways.', "red\n\nBe kind.\nAlways."),
        ('"one": rude', 'red\n\n"one": rude'),
        ("", "red"),
    ],
)
def test_the_comment_stands_under_the_prompt_and_notes_on_words_do_where_there_is_no_other(
    feedback: str, asked: str
) -> None:
    assert Judged(Rollout(Example("red"), (1,), (2,), "one", True), Critique(feedback)).asked_again.prompt == asked


def test_the_likeliest_acceptable_answer_is_an_alternative_on_the_prompt_without_the_comment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [*answers(tokenizer := small_run.critic_tokenizer()), judged(tokenizer, " two", " cat", "cat", "positive")]
    run, asked = lesson_run(tmp_path, annotations(given)), []

    def sample(self: LessonRun, examples: list[Example], *, seed: int) -> list[Rollout]:
        asked.extend(example.prompt for example in examples)
        assert seed == module.TRIES_SEED
        texts = [" one cat runs", " red cat runs", " blue cat runs", " green cat runs"] * (len(examples) // 4)
        return [Rollout(e, (9, 9), (n,), text, False) for n, (e, text) in enumerate(zip(examples, texts, strict=True))]

    def likely(self: LessonRun, rollouts: list[Rollout]) -> list[float]:
        assert all(rollout.prompt_ids != (9, 9) for rollout in rollouts), "on the prompt without the comment"
        return [{"red": -1.0, "green": -2.0, "one": 0.0}[rollout.response.split()[0]] for rollout in rollouts]

    class NoBlue:
        def critique(self, example: Example, response: str) -> Critique:
            return Critique("", (Span(0, 1, "negative"),) if "blue" in response else ())

    monkeypatch.setattr(LessonRun, "__call__", sample)
    monkeypatch.setattr(LessonRun, "likely", likely)
    run.ready = NoBlue()  # type: ignore[assignment]
    first, *_ = others = run.alternatives()
    assert asked[:5] == [" red cat\n\nNo numbers, please."] * 4 + [" blue dog\n\nNo numbers, please."]
    assert len(asked) == 4 * 3, "positive marks alone need no alternative"
    assert (first.rollout.example.prompt, first.rollout.prompt_ids) == (" red cat", given[0].rollout.prompt_ids)
    assert (first.rollout.response, first.rollout.response_ids) == (" red cat runs", (1,))
    assert first.critique == Critique("", (Span(1, 4, "positive"),))
    assert [own.rollout.response for own in others] == [" red cat runs", " one cat runs", " one cat runs"]
    run.marked = given[-1:]
    assert run.alternatives() == []


def test_tokens_without_a_reward_are_drawn_back_in_full_and_those_with_one_by_beta(tmp_path: Path) -> None:
    tokenizer, model = small_run.tokenizer_and_model()
    trainer = LessonTrainer(
        model, tokenizer, answers(tokenizer), recipe(tmp_path, ppo={"kl_in": "reward", "beta": 0.2})
    )
    gone = torch.tensor([[-3.0, 0.5, 0.0]])
    scores = Scores(gone - 1.0, torch.full((1, 3), -1.0), gone, gone, torch.zeros(1, 3), torch.zeros(1))
    rewards = torch.tensor([[-0.3, 0.0, 1.0]]) - 0.2 * gone  # δ of -0.3 on a marked token, of 0, and of 1 at the end
    batch = trainer.collate([answers(tokenizer)[0].rollout])  # of three tokens
    advantages = trainer.advantages(rewards, scores, batch, None).advantages
    # -0.3 + 0.2 · 3 = 0.3;   -0.5 without a reward;   1 - 0.2 · 0 = 1
    assert torch.allclose(advantages, torch.tensor([[0.3, -0.5, 1.0]]))


def test_a_person_s_marks_are_taught_from_a_file_and_the_answers_stand_side_by_side(tmp_path: Path) -> None:
    run = lesson_run(tmp_path, annotations(answers(small_run.critic_tokenizer())))
    run.kept("alternatives.jsonl", lambda: run.marked[1:2])
    figures = give_lesson(run.recipe, tmp_path / "marks.jsonl", mode="both")
    assert (figures["marked"], figures["alternatives"]) == (4, 1)
    assert figures["steps"] == module.PASSES * 2  # three prompts, two at a time
    assert figures["kl_per_token"] > 0
    assert (figures["marked_before"], figures["marked_after"]) == (0.0, 0.0), "a file has no critic"
    written = json.loads((tmp_path / "out" / "lesson.json").read_bytes())
    assert [row["prompt"] for row in written["before"]] == [row["prompt"] for row in written["after"]]
    assert "Held-out questions." in (tmp_path / "out" / "report.html").read_text("utf-8")
    weights = small_run.weights(tmp_path / "out" / "run")
    assert give_lesson(run.recipe, tmp_path / "marks.jsonl", mode="both") == figures, "what is done is not done again"
    after = small_run.weights(tmp_path / "out" / "run")
    assert all(torch.equal(weights[name], after[name]) for name in weights)


def test_answers_without_a_negative_mark_are_among_those_of_the_steps_whatever_the_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = answers(small_run.critic_tokenizer())
    fine = judged(small_run.critic_tokenizer(), " eats", " cat", "cat")._replace(critique=Critique(""))
    run, taken = lesson_run(tmp_path, annotations([*given, fine])), list[list[str]]()
    run.kept("alternatives.jsonl", lambda: run.marked[1:2])

    class Stop(Exception):
        pass

    def trainer(_: LessonRun, answers: list[Judged]) -> LessonTrainer:
        taken.append([own.rollout.response for own in answers])
        raise Stop

    monkeypatch.setattr(LessonRun, "trainer", trainer)
    for mode in get_args(module.Mode):
        with pytest.raises(Stop):
            give_lesson(run.recipe, tmp_path / "marks.jsonl", mode=mode)
    marked = [own.rollout.response for own in given]  # the second has no negative mark
    assert taken == [[*marked, " cat"], [" red cat runs", " cat", " red cat runs"], [*marked, " cat", " red cat runs"]]


def test_steps_are_taken_on_the_alternatives_alone_if_nothing_else_is_said(tmp_path: Path) -> None:
    run = lesson_run(tmp_path, annotations(answers(small_run.critic_tokenizer())))
    run.kept("alternatives.jsonl", list)
    with pytest.raises(DataError, match="no answer with the comment in its prompt is acceptable"):
        give_lesson(run.recipe, tmp_path / "marks.jsonl")
    (tmp_path / "out" / "alternatives.jsonl").unlink()
    run.kept("alternatives.jsonl", lambda: run.marked[1:2])
    assert give_lesson(run.recipe, tmp_path / "marks.jsonl")["steps"] == module.PASSES  # one prompt


def test_a_lesson_without_a_mark_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no answer of .*marks\.jsonl has a mark: nothing can be learned"):
        lesson_run(tmp_path, [Annotation("red", "cat", Critique("fine"))])
