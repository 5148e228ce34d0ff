"""A lesson on a tiny model: the answers it is given on, its steps, and its files."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file

import small_run
from text2grad.config import Recipe, make_recipe
from text2grad.errors import ConfigError, DataError, ModelError
from text2grad.feedback import Annotation, write_annotations
from text2grad.models import base_named_by, collate, load_policy, response_logprobs
from text2grad.rl.piece_sizes import PieceSizes
from text2grad.runs import lesson as module
from text2grad.runs.learned import lessons_in, weigh
from text2grad.runs.lesson import Judged, LessonRun, LessonTrainer, give_lesson
from text2grad.tasks import ready_lesson
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
    trainer = LessonTrainer(model, tokenizer, given, recipe(tmp_path, optim={"schedule": "linear"}))
    batch = trainer.collate([own.rollout for own in given])
    before = trainer.score(batch, kl="k1").logp
    shares, backward = list[torch.Tensor](), trainer.backward
    trainer.backward = lambda *parts: shares.append(parts[2]) or backward(*parts)  # type: ignore[method-assign]
    step = trainer.train_step()
    assert torch.equal(shares[0], module.token_shares(step.rollouts, step.span_rewards))
    taken = [rollout.response for rollout in step.rollouts]
    assert set(taken) <= {own.rollout.response for own in given}
    assert (" one cat runs" in taken) == (" red cat runs" in taken), "answers to a prompt stay together"
    assert len({rollout.prompt_ids for rollout in step.rollouts}) == 2
    assert step.metrics["update/policy_grad_norm"] > 0
    assert step.metrics["kl/beta"] == 0.05
    trainer.train(after_step=lambda _: None)
    rates = [step["optim/policy_lr"] for step in trainer.log.metrics()]
    assert rates == pytest.approx([1e-2, 0.75e-2, 0.5e-2, 0.25e-2])
    moved = trainer.score(batch, kl="k1").logp - before
    assert moved[0, 0] < -0.1  # "one"
    assert moved[1, 0] > 0.1  # "red"
    assert moved[2, 0] < -0.1  # "two"


def test_the_reference_reads_the_answers_of_the_steps_once_and_others_when_they_come(tmp_path: Path) -> None:
    tokenizer, model = small_run.tokenizer_and_model()
    given = answers(tokenizer)
    trainer, reads = LessonTrainer(model, tokenizer, given, recipe(tmp_path)), list[int]()
    first = trainer.reference.reference
    read = first.read
    first.read = lambda policy, batch: reads.append(len(batch.ids)) or read(policy, batch)
    trainer.train(after_step=lambda _: None)
    rollouts = [own.rollout for own in given][::-1]
    assert reads == []
    batch = trainer.collate(rollouts)
    scores = trainer.score(batch, kl="k1")
    assert reads == [4]
    assert torch.allclose(trainer.reference.of(batch)[0], scores.logp_ref[batch.response_mask], atol=1e-5)
    assert scores.kl.abs().max() > 0.1, "the policy has moved, and the reference has not"


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


def test_other_marks_in_the_directory_of_a_lesson_are_refused(tmp_path: Path) -> None:
    given = annotations(answers(small_run.critic_tokenizer()))
    assert lesson_run(tmp_path, given).marked == lesson_run(tmp_path, given).marked
    with pytest.raises(DataError, match=r"out holds a lesson on other marks than .*marks\.jsonl; choose another --out"):
        lesson_run(tmp_path, given[:-1])


def test_an_answer_that_the_tokenizer_changes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"marks\.jsonl:1: the policy's tokenizer changes the response 'purple'"):
        lesson_run(tmp_path, [Annotation("red", "purple", Critique("no", (Span(0, 6, "negative"),)))])


def moved_trainer(tmp_path: Path, **sections: dict[str, Any]) -> tuple[LessonTrainer, Any, torch.Tensor]:
    """Return a trainer whose policy has moved away from the reference, a batch, and log π_ref, [N, V]."""
    tokenizer, model = small_run.tokenizer_and_model()
    trainer = LessonTrainer(model, tokenizer, answers(tokenizer), recipe(tmp_path, **sections))
    batch = trainer.collate([own.rollout for own in answers(tokenizer)])
    with torch.no_grad():
        start = log_pi(trainer, batch)
        for number, weight in enumerate(trained(trainer)):
            weight += 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(number))
    return trainer, batch, start


def trained(trainer: LessonTrainer) -> list[torch.Tensor]:
    return [weight for weight in trainer.model.policy.parameters() if weight.requires_grad]


def log_pi(trainer: LessonTrainer, batch: Any) -> torch.Tensor:
    """Return log π of the whole vocabulary before each response token, [N, V], from all logits."""
    logits = trainer.model.policy(batch.ids).logits / trainer.recipe.rollout.temperature
    return batch.at_predictors(logits).log_softmax(-1)


def gradients(trainer: LessonTrainer, loss: torch.Tensor | None = None) -> list[torch.Tensor]:
    """Return the gradients that lie in the weights, or those of a loss."""
    if loss is not None:
        return list(torch.autograd.grad(loss, trained(trainer)))
    return [weight.grad.clone() for weight in trained(trainer) if weight.grad is not None]


def test_what_is_not_marked_is_held_still_by_the_exact_kl_to_the_reference(tmp_path: Path) -> None:
    trainer, batch, start = moved_trainer(tmp_path, rollout={"temperature": 0.7})
    scores, advantages = trainer.backward(batch, torch.zeros(batch.response_mask.shape), torch.ones(len(batch.ids)))
    assert not advantages.any()
    ours, now = gradients(trainer), log_pi(trainer, batch)
    for own, expected in zip(ours, gradients(trainer, (start.exp() * (start - now)).sum()), strict=True):
        assert torch.allclose(own, expected, atol=1e-4)
    assert max(float(own.abs().max()) for own in ours) > 0.1
    gone = (now - start).gather(1, batch.targets()[:, None])[:, 0]
    assert torch.allclose(scores.kl[batch.response_mask], gone, atol=1e-5)
    assert torch.allclose(scores.logp - scores.logp_ref, scores.kl, atol=1e-5)


def test_a_token_with_a_reward_moves_until_the_kl_term_outgrows_it(tmp_path: Path) -> None:
    trainer, batch, start = moved_trainer(tmp_path, ppo={"kl_in": "reward", "beta": 0.5})
    now, mask = log_pi(trainer, batch), batch.response_mask
    logp = now.gather(1, batch.targets()[:, None])[:, 0]
    gone = batch.unpack((logp - start.gather(1, batch.targets()[:, None])[:, 0]).detach())
    rewards, expected = torch.zeros(mask.shape), torch.zeros(mask.shape)
    # two tokens that go on, and two that rest: δ − β · gone has the sign of δ, or not
    rewards[0, 0], expected[0, 0] = 0.5 * gone[0, 0].abs() + 1.0, 0.5 * gone[0, 0].abs() + 1.0 - 0.5 * gone[0, 0]
    rewards[0, 1], expected[0, 1] = -0.5 * gone[0, 1].abs() - 0.2, -0.5 * gone[0, 1].abs() - 0.2 - 0.5 * gone[0, 1]
    rewards[1, 0] = 0.25 * gone[1, 0]  # of the same sign, and half as large as β · gone
    rewards[2, 0] = 0.25 * gone[2, 0]
    assert gone[mask].abs().min() > 0.01
    shares = torch.linspace(0.1, 0.4, len(batch.ids))
    _, advantages = trainer.backward(batch, rewards, shares)
    assert torch.allclose(advantages, expected, atol=1e-5)
    kl = (start.exp() * (start - now)).sum(1)[(rewards == 0)[mask]].sum()
    loss = kl / 4 - ((shares[:, None] * expected)[mask] * logp).sum()  # of four tokens with a reward
    for ours, theirs in zip(gradients(trainer), gradients(trainer, loss), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)


def test_words_that_are_blamed_again_and_again_are_not_held_where_the_reference_might_say_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, model = small_run.tokenizer_and_model()
    given = answers(tokenizer)
    [lost] = tokenizer(" cat", add_special_tokens=False).input_ids
    trainer = LessonTrainer(model, tokenizer, given, recipe(tmp_path / "held"))
    batch = trainer.collate([own.rollout for own in given])
    assert not trainer.reference.of(batch)[2].any()
    with torch.no_grad():
        said = log_pi(trainer, batch)[:, lost].exp()  # the policy is the reference still
    monkeypatch.setattr(module, "LOST", float(said.median()))
    trainer = LessonTrainer(trainer.model.policy, tokenizer, given, recipe(tmp_path / "free"), lost=[lost])
    free = trainer.reference.of(batch)[2]
    assert torch.equal(free, said > module.LOST)
    assert 0 < free.sum() < len(free)
    noise = torch.Generator().manual_seed(0)
    start = log_pi(trainer, batch).detach()
    for weight in trained(trainer):
        weight.data += 0.05 * torch.randn(weight.shape, generator=noise)
    trainer.backward(batch, torch.zeros(batch.response_mask.shape), torch.ones(len(batch.ids)))
    now = log_pi(trainer, batch)
    kl = (start.exp() * (start - now)).sum(1)[~free].sum()
    for ours, theirs in zip(gradients(trainer), gradients(trainer, kl), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)


def test_lost_words_are_those_that_several_marked_answers_share_and_none_is_praised_for(tmp_path: Path) -> None:
    tokenizer = small_run.critic_tokenizer()
    given = [
        judged(tokenizer, " red cat", " one cat runs", "cat"),
        judged(tokenizer, " blue dog", " two cat", "cat"),
        judged(tokenizer, " eats", " two dog runs", "runs"),  # once
        judged(tokenizer, " sleeps", " one cat dog", "dog"),
        judged(tokenizer, " bird", " two dog", "dog"),
    ]
    run = lesson_run(tmp_path, annotations(given))
    ids = {word: tokenizer(f" {word}", add_special_tokens=False).input_ids[0] for word in ("cat", "dog")}
    assert run.lost(given) == sorted(ids.values())
    praised = judged(tokenizer, " bird", " one dog", "dog", "positive")
    assert run.lost([*given, praised]) == [ids["cat"]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LessonTrainer", lambda *_, **how: how["lost"])
        assert run.trainer([*given, praised]) == [ids["cat"]]


def test_prompts_with_rewards_weigh_alike_whatever_their_number_of_tokens() -> None:
    rows = [
        Rollout(Example(prompt), (prompt_id,), (1, 2, 3), "", True)
        for prompt, prompt_id in zip("aabc", (1, 1, 2, 3), strict=True)
    ]
    rewards = torch.tensor([[0.5, -0.5, 1.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [0.0, 1e-9, 0.0]])
    shares = module.token_shares(rows, rewards)
    # two prompts with rewards: four tokens of one have 1/2 · 1/4 each, the only one of the other 1/2
    assert shares[:3].tolist() == [0.125, 0.125, 0.5]
    assert ((rewards.abs() > 0.1) * shares[:, None]).sum() == 1.0
    assert module.token_shares(rows[3:], rewards[3:]).tolist() == [1.0], "no token has a reward"


def test_pieces_of_a_step_add_up_to_its_gradient(tmp_path: Path) -> None:
    trainer, batch, _ = moved_trainer(tmp_path)
    rewards = 0.3 * batch.response_mask * torch.tensor([1.0, 0.0, -1.0, 0.0])[: batch.response_mask.shape[1]]
    shares = torch.linspace(0.05, 0.15, len(batch.ids))
    whole, (scores, advantages) = (trainer.backward(batch, rewards, shares) for _ in range(2))
    expected = gradients(trainer)
    trainer.sizes = PieceSizes(micro_batch_tokens=8)
    parts = trainer.backward(batch, rewards, shares)
    assert torch.allclose(parts[1], advantages, atol=1e-6)
    assert torch.allclose(parts[0].kl, scores.kl, atol=1e-6)
    assert torch.equal(whole[1], advantages), "nothing is left of a pass before"
    for ours, theirs in zip(gradients(trainer), expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize(
    ("feedback", "asked"),
    [
        ('Be kind.\n"one\ntwo": rude\nAlways.', "red\n\nBe kind.\nAlways."),
        ('"one\ntwo": rude', 'red\n\n"one\ntwo": rude'),
        ('"Cat" is what I want.', 'red\n\n"Cat" is what I want.'),
        ("", "red"),
    ],
)
def test_the_comment_stands_under_the_prompt_and_notes_on_words_do_where_there_is_no_other(
    feedback: str, asked: str
) -> None:
    rollout = Rollout(Example("red"), (1,), (2,), "say one\ntwo", True)
    assert Judged(rollout, Critique(feedback, (Span(4, 11, "negative"),))).asked_again.prompt == asked


def test_another_answer_begins_as_the_marked_one_and_has_a_likely_other_token_in_place_of_the_first_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = small_run.critic_tokenizer()
    given = [
        judged(tokenizer, " red cat", " one cat runs", "cat"),
        judged(tokenizer, " two", " cat", "cat", "positive"),
    ]
    run = lesson_run(tmp_path, annotations(given))
    asked = tuple(tokenizer(" red cat\n\nNo numbers, please.", add_special_tokens=False).input_ids)
    ids = given[0].rollout.response_ids
    logits = run.policy(torch.tensor([[*asked, ids[0]]])).logits[0, -1]
    logits[ids[1]] = -torch.inf
    others = run.alternatives()
    assert {own.rollout.response_ids[0] for own in others} == {ids[0]}
    tried = [own.rollout.response_ids[1] for own in others]
    assert torch.allclose(logits[tried], logits.topk(module.TRIES).values)
    assert {own.rollout.prompt_ids for own in others} == {given[0].rollout.prompt_ids}, (
        "the prompt is without the comment"
    )
    assert {own.rollout.example.prompt for own in others} == {" red cat"}, "positive marks alone need no alternative"
    ends = run.tokenizer.eos_token_id
    for own in others:
        ended = own.rollout.response_ids[1] == ends
        assert len(own.rollout.response_ids) == 2 if ended else len(own.rollout.response_ids) > 2
    assert run.alternatives() == others, "the random numbers follow from the seed"
    monkeypatch.setattr(module, "BACK", 0)
    sampled, sample = list[Any](), module.sample

    def watched(policy: Any, prompts: Any, uniforms: torch.Tensor, **how: Any) -> Any:
        assert uniforms.shape[1] == module.BEHIND
        sampled.extend(prompts)
        return sample(policy, prompts, uniforms, **how)

    monkeypatch.setattr(module, "sample", watched)
    run.alternatives()
    assert sampled
    assert all(prompt[: len(asked) + 1] == (*asked, ids[0]) for prompt in sampled), "the comment is in the prompt"
    never = {ids[1], *(token for token in run.tokenizer.all_special_ids if token != ends)}
    assert len(never) > 1
    monkeypatch.setattr(module, "TRIES", len(logits) - len(never))
    tried_of_all = {own.rollout.response_ids[1] for own in run.alternatives()}
    assert tried_of_all == {*range(len(logits))} - never, "not the marked token, nor one that says nothing"
    run.marked = run.marked[1:]
    assert run.alternatives() == []


@pytest.mark.parametrize(
    ("asked_for", "wanted"),
    [
        (
            {"dog": 0.3, "bird": 0.1, "runs": 0.07},
            ["dog", "bird"],
        ),  # ln 30 = 3.4, ln 10 = 2.3, ln 7 = 1.95: at least 2.04
        ({"dog": 0.6, "bird": 0.1, "runs": 0.07}, ["dog"]),  # 4.1: at least 0.6 of it, 2.46
        ({"dog": 0.07, "bird": 0.06, "runs": 0.05}, []),  # below 2
    ],
)
def test_a_comment_asks_for_the_tokens_that_it_makes_likelier(
    tmp_path: Path, asked_for: dict[str, float], wanted: list[str]
) -> None:
    tokenizer = small_run.critic_tokenizer()
    given = judged(tokenizer, " red cat", " one cat runs", "cat")
    run, ids = lesson_run(tmp_path, annotations([given])), given.rollout.response_ids

    class Policy:
        device = torch.device("cpu")

        def __call__(self, read: torch.Tensor) -> Any:
            """Return a probability of 0.01 for each word, or with the comment the given ones; "eats" has the rest."""
            shares = dict.fromkeys(("dog", "bird", "runs"), 0.01) if len(read[0]) == 3 else asked_for
            logp = torch.full((len(tokenizer),), 1e-9)
            for word, share in {**shares, "eats": 1 - sum(shares.values())}.items():
                logp[tokenizer(f" {word}", add_special_tokens=False).input_ids] = share
            return SimpleNamespace(logits=logp.log()[None, None])

    run.policy = Policy()
    asked = tuple(tokenizer(" red cat No numbers", add_special_tokens=False).input_ids)
    others = run.beginnings(given, asked, 1)
    assert {start[0] for start, _ in others} == {ids[0]}
    assert [tokenizer.decode(start[1]).strip() for start, own in others if own] == wanted
    alone = run.beginnings(given, given.rollout.prompt_ids, 1)
    assert all(own for _, own in alone), "without a comment all are wanted"


def test_a_good_alternative_is_one_that_a_comment_asks_for_unless_it_asks_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = small_run.critic_tokenizer()
    run = lesson_run(tmp_path, annotations([judged(tokenizer, " red cat", " one cat runs", "cat")]))
    beginnings = LessonRun.beginnings

    def praised(*, of: int) -> int:
        def some(run: LessonRun, own: Judged, asked: Any, place: int) -> Any:
            return [(start, n < of) for n, (start, _) in enumerate(beginnings(run, own, asked, place))]

        monkeypatch.setattr(LessonRun, "beginnings", some)
        return sum(own.praised for own in run.alternatives())

    everything = praised(of=module.TRIES)
    assert praised(of=1) == 1 < everything
    assert praised(of=0) == everything, "the policy heeds no comment"
    run.ready = NotOne()  # type: ignore[assignment]
    assert praised(of=1) == praised(of=module.TRIES) > 1, "a ready lesson's marks know good words"


def test_an_answer_begins_with_words_of_the_comment(tmp_path: Path) -> None:
    tokenizer = small_run.critic_tokenizer()
    own = judged(tokenizer, " red cat", " one cat runs", "cat")
    run, comment = lesson_run(tmp_path, annotations([own])), 'Rather say: "Two CAT runs, dog!" or "green".'

    def says(text: str, place: int, *wanted: str) -> bool:
        ids, *starts = (tuple(tokenizer(t, add_special_tokens=False).input_ids) for t in (text, *wanted))
        return run.says(comment, replace(own.rollout, response_ids=ids, response=text), place, starts)

    assert says(" two cat runs dog eats", 0), "four words are enough"
    assert not says(" two cat runs eats dog", 0)
    assert says(" one two cat runs dog", 1), "what stands before the token is the marked answer's"
    assert says(" green", 0), "it has no more words"
    assert not says(" bird", 0)
    assert not says(" green", 1), "it ends there"
    assert says(" one bird eats", 0, " bird")
    assert says(" one bird eats", 1, " dog", " one bird eats")
    assert not says(" one bird eats", 0, " eats"), "two words are before it"
    assert not says(" green", 0, " bird"), "the comment's other words are not wanted"
    assert not says(" green", 1, " one"), "an end is no word"


def said(own: Judged, comment: str) -> Judged:
    return own._replace(critique=replace(own.critique, feedback=comment))


def test_words_that_a_comment_quotes_are_tried_and_no_others_are_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = small_run.critic_tokenizer()
    beginnings, says, places, asked = LessonRun.beginnings, LessonRun.says, list[int](), set[int]()

    def all_wanted(run: LessonRun, own: Judged, asked: Any, place: int) -> Any:
        places.append(place)
        return [(start, True) for start, _ in beginnings(run, own, asked, place)]

    def counted(run: LessonRun, comment: str, rollout: Rollout, place: int, starts: Any) -> bool:
        asked.add(len(starts))
        return says(run, comment, rollout, place, starts)

    monkeypatch.setattr(LessonRun, "beginnings", all_wanted)
    monkeypatch.setattr(LessonRun, "says", counted)

    def tried(comment: str) -> list[Judged]:
        run = lesson_run(
            tmp_path / str(len(comment)),
            annotations([said(judged(tokenizer, " red cat", " one cat runs", "cat"), comment)]),
        )
        places.clear()
        asked.clear()
        return run.alternatives()

    good = [other.rollout.response for other in tried("Say 'bird sleeps'.") if other.praised]
    assert good
    assert all(text.startswith((" one bird sleeps", " one eats bird")) for text in good), "at most one word before it"
    assert (places, asked) == ([1], {1})
    assert sum(other.praised for other in tried("Say bird sleeps.")) > 1, "without a quote what the comment asks for"
    assert asked == {0}
    assert sum(other.praised for other in tried("Say 'cat'.")) > 1, "it is marked"
    monkeypatch.setattr(LessonRun, "verdict", lambda *_, **__: Critique("", (Span(0, 4, "negative"),)))
    tried("Say 'bird sleeps'.")
    assert (places, asked) == ([1, 0] * 2, {0, 1}), "from an earlier token on it is not tried again"


def test_the_mark_is_taught_from_where_the_wanted_words_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = small_run.critic_tokenizer()
    own = said(judged(tokenizer, " red cat", " one cat runs", "one cat"), "Say 'one dog'.")
    run, taught = lesson_run(tmp_path, annotations([own])), list[Judged]()
    end = tokenizer.eos_token_id
    run.ends = (end + 1, end, end - 1)
    moved, [start] = run.wished(own)
    assert tokenizer.decode(start) == " one dog"
    assert [own.rollout.response[span.start : span.end].strip() for span in moved.critique.spans] == ["cat"]
    cut = said(judged(tokenizer, " red cat", " one. cat runs", "cat runs"), "Stop.")
    assert run.wished(cut)[1] == [(*cut.rollout.response_ids[: run.places(cut)[0]], end)]
    parts = LessonRun.parts
    monkeypatch.setattr(LessonRun, "parts", lambda run, own, **how: taught.extend(own) or parts(run, own, **how))
    give_lesson(run.recipe, tmp_path / "marks.jsonl")
    assert moved.critique.spans in [own.critique.spans for own in taught]
    run.ready = NotOne()  # type: ignore[assignment]
    assert run.wished(own) == (own, []), "a ready lesson's marks know good words"


class NotOne:
    """Marks whole answers that begin with "one"."""

    comment = "Do not begin with one."

    def critique(self, example: Example, response: str) -> Critique:
        return Critique("", (Span(0, len(response), "negative"),) if response.startswith(" one") else ())


def test_an_answer_without_a_good_alternative_goes_on_from_an_earlier_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = small_run.critic_tokenizer()
    own = judged(tokenizer, " red cat", " one cat runs two", "runs")
    fine = judged(tokenizer, " blue dog", " two dog", "dog")  # has good ones where its mark begins
    run = lesson_run(tmp_path, annotations([own, fine]))
    run.ready = NotOne()  # type: ignore[assignment]
    ids = own.rollout.response_ids
    tried = run.alternatives()
    others = [other for other in tried if other.rollout.prompt_ids == own.rollout.prompt_ids]
    assert all(other.rollout.response_ids[0] != ids[0] for other in others)
    assert any(other.praised for other in others)
    firsts = {other.rollout.response_ids[0] for other in tried if other not in others}
    assert firsts == {fine.rollout.response_ids[0]}, "others are tried from their marks alone"
    moved = run.from_fork(own, others)
    assert [(span.start, span.end) for span in moved.critique.spans] == [(0, 8), (9, 13)]  # " one cat", "runs"
    assert run.places(moved) == [0]
    elsewhere = judged(tokenizer, " blue dog", own.rollout.response, "runs")
    assert run.from_fork(own, [*others, elsewhere]) == moved, "an answer to another prompt is no alternative"
    assert run.from_fork(own, []) == own
    assert run.from_fork(fine, tried) == fine
    monkeypatch.setattr(module, "BACK", 1)  # " one" stays: no token from "cat" on is good
    others = [other for other in run.alternatives() if other.rollout.prompt_ids == own.rollout.prompt_ids]
    assert {other.rollout.response_ids[:2] for other in others} == {ids[:2]}
    assert not any(other.praised for other in others)
    assert run.from_fork(own, others) == own
    taught, parts = list[Judged](), LessonRun.parts
    monkeypatch.setattr(LessonRun, "parts", lambda run, own, **how: taught.extend(own) or parts(run, own, **how))
    monkeypatch.setattr(LessonRun, "alternatives", lambda run: tried)
    give_lesson(run.recipe, tmp_path / "marks.jsonl")
    assert moved.critique.spans in [own.critique.spans for own in taught]


def test_an_alternative_is_good_if_nothing_is_blamed_in_its_first_other_words(tmp_path: Path) -> None:
    tokenizer = small_run.critic_tokenizer()
    run = lesson_run(tmp_path, annotations(answers(tokenizer)))

    given_one = judged(tokenizer, " red cat", " one cat", "one")

    class NoBlue:
        comment = "No blue."

        def critique(self, example: Example, response: str) -> Critique:
            at = response.find("blue")
            return Critique("", (Span(at, at + 4, "negative"),) if at >= 0 else ())

    run.ready = NoBlue()  # type: ignore[assignment]

    def judge(text: str, place: int, end: bool = False) -> Critique:
        own = given_one
        ids = (*tokenizer(text, add_special_tokens=False).input_ids, *([tokenizer.eos_token_id] if end else []))
        other = Rollout(own.rollout.example, own.rollout.prompt_ids, ids, text, False)
        return run.verdict(other, place, run.blamed_in(own, other), instead=instead)

    instead = ""
    assert judge(" green cat runs two dog", 0).spans == (Span(0, 19, "positive"),)  # four words
    assert judge(" green cat runs two blue", 0).spans == (Span(0, 19, "positive"),), "blue comes later"
    assert judge(" blue cat runs", 0).spans == (Span(0, 5, "negative"),), "the ready lesson marks it"
    assert judge(" one dog runs", 0).spans == (Span(0, 4, "negative"),), "the person's word is there again"
    assert judge(" red cat", 0).spans == (Span(0, 4, "negative"),), "it says what the question says"
    shouted = replace(given_one.rollout, response=" ONE dog")
    assert run.blamed_in(given_one, shouted) == [Span(1, 4, "negative")], "case does not matter"
    assert judge(" two", 1, end=True) == Critique("", outcome=1.0), "an end has no text"
    assert judge(" red", 1, end=True) == Critique("", outcome=-1.0)
    instead = "one two cat"
    assert judge(" two cat", 0).spans == (Span(0, 4, "negative"),), "it says some of the marked words"
    assert judge(" two dog", 0).spans == (Span(0, 8, "positive"),)
    assert judge(" two", 1, end=True) == Critique("", outcome=1.0)


def test_the_steps_read_some_tokens_from_the_first_token_of_a_negative_mark_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = small_run.critic_tokenizer()
    run = lesson_run(tmp_path, annotations(answers(tokenizer)))
    long = judged(tokenizer, " red cat", " one cat runs two dog eats", "cat runs")
    long = long._replace(rollout=replace(long.rollout, truncated=False))
    fine = long._replace(critique=Critique(""))
    liked = long._replace(critique=Critique("", (Span(1, 4, "positive"), Span(13, 16, "negative"))))
    ended = long._replace(critique=Critique("", outcome=1.0))
    (own,) = run.parts([long], behind=2)
    assert own.rollout.response == " one cat runs"
    assert (own.rollout.response_ids, own.rollout.truncated) == (long.rollout.response_ids[:3], True)
    assert own.critique.spans == (Span(4, 8, "negative"),), "what follows from it is no mark of its own"
    assert own.critique.feedback == "No numbers, please."
    texts = [own.rollout.response for own in run.parts([fine, liked, ended], behind=2)]
    assert texts == [" one cat", " one cat runs two dog", " one cat runs two dog eats"]
    assert run.parts([liked], behind=1)[0].critique.spans == (Span(1, 4, "positive"), Span(13, 17, "negative"))
    assert run.parts([long]) == [long._replace(critique=own.critique)], "a short answer stays whole"


def test_a_fault_in_new_words_is_shown_as_a_fault(tmp_path: Path) -> None:
    tokenizer = small_run.critic_tokenizer()
    run = lesson_run(tmp_path, annotations(answers(tokenizer)))
    sides = {
        "before": judged(tokenizer, " red cat", " one cat", "one"),
        "after": judged(tokenizer, " red cat", " two dog", "two"),
    }
    page = module._page(run, {name: [own] for name, own in sides.items()})
    for shown in ('δ -1"> one<', 'δ -1"> two<', 'δ 1"> dog<'):
        assert shown in page


def test_another_seed_asks_other_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_run.save_base(tmp_path / "base")
    monkeypatch.setattr(LessonRun, "__call__", lambda self, examples, seed: list(examples))
    monkeypatch.setattr(LessonRun, "judged", lambda self, rollouts: rollouts)
    taken: list[list[str]] = []

    def kept(self: LessonRun, name: str, make: Any) -> list[Judged]:
        taken.append([example.prompt for example in make()])
        return [judged(self.tokenizer, " red", " one", "one")]

    monkeypatch.setattr(LessonRun, "kept", kept)
    for seed in range(4):
        sections = {"model": {"path": str(tmp_path / "base"), "value": "none", "lora_r": 4}, "run": {"seed": seed}}
        LessonRun(recipe(tmp_path / "out", **sections), ready_lesson("begin"))
    questions = [example.prompt for example in ready_lesson("begin").questions("train")]
    assert taken[0] == questions[:20]
    assert taken[1] == questions[20:40]
    assert taken[2] == [*questions, *questions][40:60], "the list begins anew at its end"
    assert all(len(set(own)) == 20 for own in taken)


def test_a_person_s_marks_are_taught_from_a_file_and_the_answers_stand_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STEPS", 5)
    run = lesson_run(tmp_path, annotations(answers(small_run.critic_tokenizer())))
    run.kept("alternatives.jsonl", lambda: run.marked[1:2])
    figures = give_lesson(run.recipe, tmp_path / "marks.jsonl", mode="both")
    assert (figures["marked"], figures["alternatives"]) == (4, 1)
    assert figures["steps"] == module.PASSES * 2  # three prompts, two at a time
    assert figures["kl_per_token"] > 0
    assert (figures["marked_before"], figures["marked_after"]) == (0.0, 0.0), "a file has no critic"
    written = json.loads((tmp_path / "out" / "lesson.json").read_bytes())
    assert [row["prompt"] for row in written["before"]] == [row["prompt"] for row in written["after"]]
    assert "The marked questions, asked anew." in (tmp_path / "out" / "report.html").read_text("utf-8")
    weights = small_run.weights(tmp_path / "out" / "run")
    assert give_lesson(run.recipe, tmp_path / "marks.jsonl", mode="both") == figures, "what is done is not done again"
    after = small_run.weights(tmp_path / "out" / "run")
    assert all(torch.equal(weights[name], after[name]) for name in weights)


def test_a_lesson_on_the_adapter_of_another_goes_on_from_it_and_tells_contradictions_before_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = lesson_run(tmp_path, annotations(answers(small_run.critic_tokenizer())))
    give_lesson(first.recipe, tmp_path / "marks.jsonl", mode="marks")
    [taught] = (tmp_path / "out" / "run" / "checkpoints").glob(f"step-*{module.STEPS}/policy")  # more than the passes
    (tmp_path / "marks.jsonl").unlink()  # the lesson keeps what it was given
    praised = judged(small_run.critic_tokenizer(), " red cat", " one cat runs", "one", "positive")
    write_annotations(tmp_path / "second.jsonl", annotations([praised]))
    settings = recipe(tmp_path / "more", model={"path": str(taught)}, data={"eval_examples": 1})
    said, original = list[str](), LessonRun.trainer

    def trainer(run: LessonRun, given: list[Judged]) -> LessonTrainer:
        made = original(run, given)
        batch = made.collate([own.rollout for own in first.marked])
        with torch.no_grad():
            kept = made.score(batch, kl="k1").logp_ref
            expected = response_logprobs(load_policy(str(taught)), batch)[0]
        assert torch.allclose(kept, expected, atol=1e-4), "the reference is the policy after lesson one"
        said.append("steps")
        return made

    monkeypatch.setattr(LessonRun, "trainer", trainer)
    monkeypatch.setattr(module, "note", lambda text, warning=False: said.extend([text] if warning else []))
    give_lesson(settings, tmp_path / "second.jsonl")  # praise alone needs no alternative
    contradiction, steps = said
    assert contradiction.startswith('"one" is positive here, negative in out, the lesson of ')
    assert contradiction.endswith(": 1×, 1× on the same prompt")
    assert steps == "steps"
    [last] = (tmp_path / "more" / "run" / "checkpoints").glob(f"step-*{module.STEPS}/policy")
    assert base_named_by(last) == str(taught)
    assert [lesson["name"] for lesson in lessons_in(last)] == ["out", "more"]
    both = load_policy(str(last))  # it is the one that was saved: load_policy compares its log-probs
    batch = collate([praised.rollout], pad_id=0)
    alone = load_policy(str(taught))
    with torch.no_grad():
        after, before = (response_logprobs(policy, batch, temperature=1.0)[0][0, 0] for policy in (both, alone))
    assert after > before + 0.1  # "one" is praised by the second lesson


def policy_of(home: Path) -> Path:
    """Return the adapter of a lesson."""
    return max(home.glob("run/checkpoints/step-*/policy"))


def two_lessons(tmp_path: Path) -> list[Path]:
    """Teach the lessons "out" and, on top of it, "more"; return their adapters."""
    first = lesson_run(tmp_path, annotations(answers(small_run.critic_tokenizer())))
    give_lesson(first.recipe, tmp_path / "marks.jsonl", mode="marks")
    taught = policy_of(tmp_path / "out")
    praised = judged(small_run.critic_tokenizer(), " red cat", " one cat runs", "one", "positive")
    write_annotations(tmp_path / "second.jsonl", annotations([praised]))
    give_lesson(recipe(tmp_path / "more", model={"path": str(taught)}), tmp_path / "second.jsonl", mode="marks")
    return [taught, policy_of(tmp_path / "more")]


def test_lessons_are_weighed_and_taken_back(tmp_path: Path) -> None:
    adapters = two_lessons(tmp_path)
    base = str(base_named_by(adapters[0]))

    def by_hand(*weights: float) -> dict[str, torch.Tensor]:  # W + Σ w_i (α_i / r_i) B_i A_i
        state = {name: weight.clone() for name, weight in load_policy(base).state_dict().items()}
        for adapter, weight in zip(adapters, weights, strict=True):
            own = load_file(adapter / "adapter_model.safetensors")
            about = json.loads((adapter / "adapter_config.json").read_bytes())
            for name in (name for name in own if "lora_A" in name):
                layer = name.removeprefix("base_model.model.").replace("lora_A.", "")
                state[layer] += weight * about["lora_alpha"] / about["r"] * own[name.replace("_A.", "_B.")] @ own[name]
        return state

    for weights in ({"out": 0.5, "more": 2.0}, {"out": 0.0}, {"more": 0.0}):
        path = weigh(adapters[1], weights, tmp_path / "-".join(weights) / str(len(weights)))
        expected = by_hand(weights.get("out", 1.0), weights.get("more", 1.0))
        merged = load_policy(str(path)).state_dict()
        assert all(torch.allclose(merged[name], expected[name], atol=1e-6) for name in expected)
        lessons = lessons_in(path)
        assert [own["name"] for own in lessons] == [name for name in ("out", "more") if weights.get(name, 1.0)]
        assert [own["records"] for own in lessons] == [
            own["records"] for own in lessons_in(adapters[1]) if weights.get(own["name"], 1.0)
        ]
    (path / "adapter_model.safetensors").write_bytes((adapters[1] / "adapter_model.safetensors").read_bytes())
    with pytest.raises(ModelError, match="is not the model that was saved"):
        load_policy(str(path))


def test_weights_that_say_nothing_are_refused(tmp_path: Path) -> None:
    adapters = two_lessons(tmp_path)
    bad: list[tuple[dict[str, float], str]] = [
        ({"mine": 0.5}, "the lesson to weigh has no value 'mine'"),
        ({"out": -1.0}, "the weight of out is -1.0; it is a number from 0"),
        ({"out": float("nan")}, "the weight of out is nan"),
        ({"out": float("inf")}, "the weight of out is inf"),
        ({"out": 0.0, "more": 0.0}, "no lesson is left of .*: without them it is "),
    ]
    for weights, message in bad:
        with pytest.raises(ConfigError, match=message):
            weigh(adapters[1], weights, tmp_path / "weighed")
    with pytest.raises(DataError, match="exists; choose another directory"):
        weigh(adapters[1], {"out": 0.5}, tmp_path / "more")
    with pytest.raises(ConfigError, match="has learned no lesson"):
        weigh(str(base_named_by(adapters[0])), {"out": 0.5}, tmp_path / "weighed")
    assert not (tmp_path / "weighed").exists()


def test_answers_without_a_negative_mark_are_among_those_of_the_steps_whatever_the_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = answers(small_run.critic_tokenizer())
    fine = judged(small_run.critic_tokenizer(), " eats", " cat", "cat")._replace(critique=Critique(""))
    run, taken = lesson_run(tmp_path, annotations([*given, fine])), list[list[str]]()
    run.kept("alternatives.jsonl", lambda: run.marked[1:3])  # " red cat runs" is good, " two dog eats" is not

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
    others = [" red cat runs", " two"]  # of one that is not good its first other token
    assert taken == [[*marked, " cat"], [" red cat runs", " cat", *others], [*marked, " cat", *others]]


def test_a_lesson_without_a_good_alternative_is_refused(tmp_path: Path) -> None:
    given = answers(small_run.critic_tokenizer())
    run = lesson_run(tmp_path, annotations([given[0], *given[2:]]))
    run.kept("alternatives.jsonl", list)
    with pytest.raises(DataError, match="no answer with the comment in its prompt is acceptable"):
        give_lesson(run.recipe, tmp_path / "marks.jsonl")
    (tmp_path / "out" / "alternatives.jsonl").unlink()
    run.kept("alternatives.jsonl", lambda: given[1:2])
    assert give_lesson(run.recipe, tmp_path / "marks.jsonl")["alternatives"] == 1


def test_a_lesson_that_would_move_the_output_layer_is_refused(tmp_path: Path) -> None:
    tokenizer, model = small_run.tokenizer_and_model()
    with pytest.raises(ConfigError, match=r"give it to an adapter, with model\.lora_r = 16"):
        LessonTrainer(model, tokenizer, answers(tokenizer), recipe(tmp_path, model={"lora_r": 0}))


def test_a_lesson_without_a_mark_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no answer of .*marks\.jsonl has a mark: nothing can be learned"):
        lesson_run(tmp_path, [Annotation("red", "cat", Critique("fine"))])
