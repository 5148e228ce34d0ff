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
from text2grad.runs.lesson import Judged, LessonRun, LessonTrainer, ReadOnce, at_forks, give_lesson
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


def test_an_answer_that_the_tokenizer_changes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"marks\.jsonl:1: the policy's tokenizer changes the response 'purple'"):
        lesson_run(tmp_path, [Annotation("red", "purple", Critique("no", (Span(0, 6, "negative"),)))])


def test_the_log_probs_of_answers_are_those_that_the_steps_score(tmp_path: Path) -> None:
    run = lesson_run(tmp_path, annotations(answers(small_run.critic_tokenizer())))
    rollouts = [own.rollout for own in run.marked]
    logp = run.trainer(run.marked).score(collate(rollouts, pad_id=0), kl="k1").logp
    for row, rollout, own in zip(logp.tolist(), rollouts, run.logprobs(rollouts), strict=True):
        assert own == pytest.approx(row[: len(rollout.response_ids)], abs=1e-5)


def test_a_negative_mark_counts_at_its_first_token_where_the_answer_goes_the_wrong_way() -> None:
    tokenizer = small_run.critic_tokenizer()
    own = judged(tokenizer, " red", " one two cat runs", "one two")
    spans = (*own.critique.spans, Span(9, 12, "positive"), Span(13, 17, "negative"))  # "cat" and "runs"
    cut, places = at_forks(tokenizer, own._replace(critique=Critique("no", spans)))
    assert [own.rollout.response[span.start : span.end].strip() for span in cut.critique.spans] == [
        "one",
        "cat",
        "runs",
    ]
    assert [span.label for span in cut.critique.spans] == ["negative", "positive", "negative"]
    assert places == [0, 3]
    assert cut.rollout == own.rollout
    cut, places = at_forks(tokenizer, own)
    assert (cut.rollout.response, cut.rollout.response_ids) == (" one", own.rollout.response_ids[:1]), (
        "no more is taught"
    )
    assert places == [0]
    assert at_forks(tokenizer, own._replace(critique=Critique(""))) == (own._replace(critique=Critique("")), [])


def test_tokens_without_a_reward_are_drawn_back_in_full_and_those_at_forks_by_beta(tmp_path: Path) -> None:
    tokenizer, model = small_run.tokenizer_and_model()
    trainer = LessonTrainer(
        model, tokenizer, answers(tokenizer), recipe(tmp_path, ppo={"kl_in": "reward", "beta": 0.2})
    )
    gone = torch.tensor([[-3.0, 0.5, 0.0]])
    scores = Scores(gone - 1.0, torch.full((1, 3), -1.0), gone, gone, torch.zeros(1, 3), torch.zeros(1))
    rewards = torch.tensor([[-0.3, 0.0, 1.0]]) - 0.2 * gone  # δ of -0.3 at a fork, of 0, and of 1 at the end
    batch = trainer.collate([answers(tokenizer)[0].rollout])  # of three tokens
    advantages = trainer.advantages(rewards, scores, batch, None).advantages
    # -0.3 + 0.2 · 3 = 0.3;   -0.5 without a reward;   1 - 0.2 · 0 = 1
    assert torch.allclose(advantages, torch.tensor([[0.3, -0.5, 1.0]]))


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


class NoBlue:
    def critique(self, example: Example, response: str) -> Critique:
        return Critique("", (Span(0, 1, "negative"),) if "blue" in response else ())


def test_the_policy_goes_on_from_the_fork_with_the_comment_and_prompts_without_success_are_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = small_run.critic_tokenizer()
    given = [
        judged(tokenizer, " red cat", " red one runs", "one"),
        judged(tokenizer, " blue dog", " two dog eats", "two"),
        judged(tokenizer, " two", " cat", "cat", "positive"),
    ]
    run, asked = lesson_run(tmp_path, annotations(given)), list[Any]()
    words = {word: tokenizer(f" {word}", add_special_tokens=False).input_ids[0] for word in small_run.WORDS}

    def sample(examples: list[Example], *, seed: int, step: int, begun: list[tuple[int, ...]]) -> list[Rollout]:
        assert seed == module.TRIES_SEED
        asked.append((step, [example.prompt for example in examples], begun))
        rows = [[*ids, words["blue"]] for ids in begun] if step == 0 else [[*ids, words["cat"]] for ids in begun]
        rows[0][-1] = words["green"]  # of the first prompt that is asked
        texts = [tokenizer.decode(ids) for ids in rows]
        return [Rollout(e, (9,), tuple(i), t, False) for e, i, t in zip(examples, rows, texts, strict=True)]

    monkeypatch.setattr(LessonRun, "__call__", lambda _, examples, **how: sample(examples, **how))
    run.ready = NoBlue()  # type: ignore[assignment]
    others = run.alternatives()
    red, comment = given[0].rollout.response_ids[0], "\n\nNo numbers, please."
    assert asked == [
        (0, [f" red cat{comment}"] * 4 + [f" blue dog{comment}"] * 4, [(red,)] * 4 + [()] * 4),
        (1, [f" blue dog{comment}"] * 4, [()] * 4),
    ], "positive marks alone need no alternative"
    assert others[0].rollout.response == " red green"
    assert {own.rollout.response for own in others[1:]} == {" green", " cat"}
    assert [own.rollout.prompt_ids for own in others] == [given[at].rollout.prompt_ids for at in (0, 1, 1)]
    assert others[0].rollout.example.prompt == " red cat", "on the prompt without the comment"
    assert others[0].critique.spans == (Span(4, 10, "positive"),)


def test_the_likeliest_acceptable_answers_are_taken_and_positive_where_the_comment_makes_them_likelier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = small_run.critic_tokenizer()
    own = judged(tokenizer, " red cat", " one cat runs", "one")
    run = lesson_run(tmp_path, annotations([own]))
    run.ready = NoBlue()  # type: ignore[assignment]
    end, told = run.tokenizer.eos_token_id, (9,)

    def rollout(text: str, *, ended: bool = False) -> Rollout:
        ids = tuple(tokenizer(text, add_special_tokens=False).input_ids)
        return Rollout(Example("asked"), told, (*ids, end) if ended else ids, text, not ended)

    plain = {" red cat runs": [-2.0, -1.0, -3.0], " green cat": [-9.0, -1.0], " red dog": [-1.0, -1.0, -1.0]}
    gained = {" red cat runs": [0.1, 0.9, 1.0], " green cat": [0.0, 5.0], " red dog": [0.5, 0.0, 1.5]}

    def logprobs(_: LessonRun, rollouts: list[Rollout]) -> list[list[float]]:
        with_comment = rollouts[0].prompt_ids == told
        assert all(r.prompt_ids == (told if with_comment else own.rollout.prompt_ids) for r in rollouts)
        more = [gained[r.response] if with_comment else [0.0] * 3 for r in rollouts]
        return [
            [a + b for a, b in zip(plain[r.response], m, strict=False)] for r, m in zip(rollouts, more, strict=True)
        ]

    monkeypatch.setattr(LessonRun, "logprobs", logprobs)
    refused = [rollout(text) for text in (" one cat", " one dog", " blue cat", " cat one cat runs", "")]
    good = [rollout(" green cat"), rollout(" red cat runs"), rollout(" red dog", ended=True), rollout(" red cat runs")]
    # Means of the log-probs: -5, -2, -1; two are kept. The mark "one" is kept in " cat one cat runs".
    first, second = run.likeliest(own, 0, [*refused, *good])
    assert (first.rollout.response, second.rollout.response) == (" red dog", " red cat runs")
    assert first.critique == Critique("", (Span(0, 4, "positive"),), outcome=1.0), "the end is likelier by 1.5 nats"
    assert second.critique == Critique("", (Span(0, 4, "positive"), Span(8, 13, "positive")))
    assert (first.rollout.example, first.rollout.prompt_ids) == (own.rollout.example, own.rollout.prompt_ids)
    assert run.likeliest(own, 0, refused) == []


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
    marked = [" one", " red cat runs", " two", " bird sleeps"]  # up to the last mark; the second has no negative one
    assert taken == [[*marked, " cat"], [" red cat runs", " cat", " red cat runs"], [*marked, " cat", " red cat runs"]]


def test_steps_on_the_alternatives_alone_need_some(tmp_path: Path) -> None:
    run = lesson_run(tmp_path, annotations(answers(small_run.critic_tokenizer())))
    run.kept("alternatives.jsonl", list)
    with pytest.raises(DataError, match="no answer with the comment in its prompt is acceptable"):
        give_lesson(run.recipe, tmp_path / "marks.jsonl")
    (tmp_path / "out" / "alternatives.jsonl").unlink()
    run.kept("alternatives.jsonl", lambda: run.marked[1:2])
    given = give_lesson(run.recipe, tmp_path / "marks.jsonl", mode="alternatives")
    assert given["steps"] == module.PASSES  # one prompt


def test_a_lesson_without_a_mark_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no answer of .*marks\.jsonl has a mark: nothing can be learned"):
        lesson_run(tmp_path, [Annotation("red", "cat", Critique("fine"))])
