"""What a lesson keeps: figures by hand, a tiny model beside its own passes, and a lesson that taught nothing."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from evidence.benchmarks import lesson_kept
from evidence.lessons import helpfulness
from evidence.lessons.helpfulness import (
    POSTS,
    RUNS,
    WORDINGS,
    Policy,
    Question,
    compare,
    measure,
    program,
    programs,
    questions,
    words,
)
from text2grad.errors import ConfigError, DataError
from text2grad.models import with_lora
from text2grad.tasks import ready_lesson, tiny_llama
from text2grad.types import Example, Rollout
from tokenizers_made_here import made

POSTED = ["My dog did not listen today, and people laughed.", "Once upon a time there was a park."]
ASKED = [
    Question("git", "How do I undo it?", ("git revert",)),
    Question("python", "How do I wait?", ("time.sleep",)),
    Question("shell", "Where am I?", ("pwd",)),
    Question("passages", "The dog is Tom's.\n\nWhose is the dog?", ("Tom's",)),
    Question("facts", "How many legs has a dog?", ("four", "4")),
    Question("code", "Write a function that adds.", ("def return",)),
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, tokenizer = tmp_path_factory.mktemp("kept") / "base", made("llama3")
    tiny_llama(tokenizer, seed=0, width=32, layers=1, context=512).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def adapter(base: Path, out: Path, *, taught: float = 0.0) -> Path:
    """Save an adapter that changes nothing, or one whose product is large."""
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = with_lora(AutoModelForCausalLM.from_pretrained(base), r=4, alpha=8, targets="all-linear")
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=taught)
    model.save_pretrained(out)
    return out


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TOKENS": 4, "PYTHON_TOKENS": 6, "POST_TOKENS": 8, "AT_ONCE": 3, "SPREAD": 1}.items():
        monkeypatch.setattr(helpfulness, name, value)


def test_words_have_no_case_punctuation_or_articles_and_options_keep_their_dashes() -> None:
    assert words("The `git branch -D <my-branch>`, or --force!") == [
        "git",
        "branch",
        "-d",
        "my",
        "branch",
        "or",
        "--force",
    ]
    assert words("x[::-1] = 40,000") == ["x", "1", "40", "000"]


@pytest.mark.parametrize(
    ("references", "response", "f1", "recall"),
    [
        (["git branch -d"], "Use git branch -d main.", 2 * 3 / (5 + 3), 1),
        (["git branch -d"], "Use git branch -D main d.", 2 * 3 / (6 + 3), 1),
        (["git branch -d"], "git branch d", 2 * 2 / (3 + 3), 2 / 3),
        (["JOIN ON JOIN ON"], "join on", 2 * 2 / (2 + 4), 2 / 4),
        (["four", "4 legs"], "4", 2 * 1 / (1 + 2), 1 / 2),
        (["four", "4"], "It has 4.", 2 * 1 / (3 + 1), 1),
        (["four"], "", 0, 0),
    ],
)
def test_f1_and_recall_are_those_of_the_best_reference(
    references: list[str], response: str, f1: float, recall: float
) -> None:
    row = Question("", "", tuple(references)).wording(response)
    assert row == {
        "answers": 1.0,
        "f1": pytest.approx(f1),
        "recall": pytest.approx(recall),
        "holds": float(recall == 1),
    }


def test_questions_are_held_out_or_of_no_lesson_and_each_reference_holds_itself() -> None:
    asked = questions()
    lessons = [ready_lesson(name) for name in helpfulness.FAULTS]
    taught = {own.prompt_text for lesson in lessons for own in lesson.questions("train")}
    held_out = {own.prompt_text for lesson in lessons for own in lesson.questions("held_out")}
    assert len({own.prompt for own in asked}) == len(asked)
    for own in asked:
        assert own.prompt not in taught
        assert (own.prompt in held_out) == (own.topic not in ("facts", "code"))
        assert own.references
        for reference in own.references:
            row = own.wording(reference)
            assert row["f1"] == row["holds"] == 1
            assert own.wording(own.prompt.rpartition("\n\n")[2])["holds"] == 0, f"{own.prompt} holds its answer"
    count = {topic: sum(own.topic == topic for own in asked) for topic in {own.topic for own in asked}}
    assert min(count[topic] for topic in helpfulness.GROUPS["commands"]) >= 14
    assert sum(count[topic] for topic in helpfulness.GROUPS["commands"]) >= 60
    assert (count["passages"], count["facts"], count["code"]) == (30, 40, 16)


def test_words_of_a_passage_are_an_answer_that_begins_with_them() -> None:
    passage = Question("passages", "The oven burns beech.\n\nWhat wood does the oven burn?", ("beech",))
    assert not passage.has_fault("begin", "Beech.")
    assert passage.has_fault("begin", "What wood does the oven burn?")
    assert passage.has_fault("unknown", "I don't know.")
    assert not passage.has_fault("unknown", "Beech.")
    assert passage.has_fault("folder", "A directory.")


@pytest.mark.parametrize(
    ("response", "code"),
    [
        ("So:\n```python\nx = 1\n```\nand\n  ```py\ny = x\n  ```\n", "x = 1\n\ny = x\n"),
        ("```python\nx = 1\n```\n```bash\nls\n```\n```python\ny =", "x = 1\n"),
        ("```bash\nls\n```\n```\nx = 1\n```", None),
        ("```sql\nSELECT 1\n```\n```Python3 title\nx = 1\n", ""),
        ("`x = 1`", None),
    ],
)
def test_a_program_is_all_closed_blocks_of_python(response: str, code: str | None) -> None:
    assert program(response) == code


def test_programs_run_in_the_sandbox_and_differences_are_of_answers_with_one() -> None:
    def answers(*texts: str) -> list[Rollout]:
        return [Rollout(Example(""), (1,), (2,), text, truncated=False) for text in texts]

    right, wrong, cut = "```python\nx = 1\n```", "```python\nx = y\n```", "```python\nx = "
    before, after = (
        programs(answers(right, right, "No.", cut)),
        programs(answers(right, wrong, right, "```sh\nls\n```")),
    )
    assert [tuple(row.values()) for row in before] == [(1, 0, 1), (1, 0, 1), (0, 0, 0), (0, 1, 0)]
    assert [tuple(row.values()) for row in after] == [(1, 0, 1), (1, 0, 0), (1, 0, 1), (0, 0, 0)]
    figure = compare(before, after, RUNS)["runs"]
    assert (figure["before"], figure["after"]) == (1, pytest.approx(2 / 3))
    value, low, high = figure["difference"]
    assert value == pytest.approx(-1 / 3)
    assert low <= value <= high
    assert compare(programs(answers("No.")), programs(answers(right)), RUNS) == {}, "no program before: no difference"


def test_a_difference_is_after_minus_before_of_the_same_questions() -> None:
    rows = [{"answers": 1.0, "f1": 0.1 * number} for number in range(5)]
    more = [{**row, "f1": row["f1"] + 0.2} for row in rows]
    figure = compare(rows, more, {"f1": WORDINGS["f1"]})["f1"]
    assert figure == {"before": pytest.approx(0.2), "after": pytest.approx(0.4), "difference": pytest.approx([0.2] * 3)}
    # 20 nats of 10 tokens and 10 of 10: e^1.5 before; 10 and 10: e^1 after
    before, after = ([{"nats": nats, "tokens": 10} for nats in side] for side in ((20, 10), (10, 10)))
    posts = compare(before, after, POSTS)
    assert posts["perplexity"]["difference"][0] == pytest.approx(math.e - math.exp(1.5))
    assert posts["nats_per_token"]["difference"][0] == pytest.approx(-0.5)


def logp(model: Any, ids: list[int]) -> torch.Tensor:
    """Return transformers' own log-probs of all ids behind each token but the last, [T - 1, V] fp64."""
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, :-1].double().log_softmax(-1)


def test_answers_posts_and_divergences_are_those_of_passes_of_the_model_itself(base: Path, tmp_path: Path) -> None:
    policy = Policy(str(adapter(base, tmp_path / "taught", taught=0.3)), str(base))
    model, limits = policy.policy, [4, 6, 4, 4, 4, 6]
    with policy.off():
        before, samples = policy.answer(ASKED), policy.answer(ASKED, sampled=True)
        read_before = policy.read(POSTED)
    after, read_after = policy.answer(ASKED), policy.read(POSTED)
    assert before != after
    assert before != samples
    assert all(len(ids) <= 4 for ids in samples)
    for question, ids, most, old in zip(ASKED, after, limits, before, strict=True):
        prompt = policy.tokenizer(question.prompt)["input_ids"]
        for own, off in ((ids, False), (old, True)):
            with policy.off() if off else torch.no_grad():
                likely = logp(model, [*prompt, *own])[len(prompt) - 1 :].argmax(1).tolist()
            assert own == likely
            assert len(own) == most or own[-1] == policy.tokenizer.eos_token_id
    for post, old, new in zip(POSTED, read_before, read_after, strict=True):
        ids = policy.tokenizer(post, add_special_tokens=False)["input_ids"][:8]
        with policy.off():
            nats = -logp(model, ids).gather(1, torch.tensor(ids[1:])[:, None]).sum()
        assert old == {"nats": pytest.approx(float(nats), rel=1e-5), "tokens": 7}
        nats = -logp(model, ids).gather(1, torch.tensor(ids[1:])[:, None]).sum()
        assert new == {"nats": pytest.approx(float(nats), rel=1e-5), "tokens": 7}
    rollouts = policy.rollouts([*ASKED, *ASKED], [*before, *samples])
    for rollout, row in zip(rollouts, policy.divergences(rollouts), strict=True):
        ids = [*rollout.prompt_ids, *rollout.response_ids]
        ours = logp(model, ids)[len(rollout.prompt_ids) - 1 :]
        with policy.off():
            reference = logp(model, ids)[len(rollout.prompt_ids) - 1 :]
        kl = (ours.exp() * (ours - reference)).sum()  # Σ_v π log (π / π_before), over the answer
        assert kl > 0.01
        assert row == {"nats": pytest.approx(float(kl), rel=1e-3), "tokens": len(rollout.response_ids)}


def test_a_lesson_that_taught_nothing_changes_no_figure(base: Path, tmp_path: Path) -> None:
    policy, made_now = Policy(str(adapter(base, tmp_path / "untaught")), str(base)), list[str]()

    def kept(name: str, make: Any) -> Any:
        made_now.append(name)
        return make()

    figures = measure("begin", policy, ASKED, POSTED, kept)
    assert made_now == ["answers 0", "answers 1", "samples", "programs", "posts"]
    for group in ("all", "commands", "passages", "facts", "code"):
        assert figures[group]["f1"]["difference"] == figures[group]["recall"]["difference"] == [0, 0, 0]
        assert figures[group]["holds"]["difference"][0] == 0
    assert figures["posts"]["perplexity"]["difference"] == [0, 0, 0]
    assert figures["kl_greedy"] == {"answers": 3, "without_the_fault": 3, "value": 0, "low": 0, "high": 0}
    assert figures["kl_sampled"]["value"] == 0
    assert (figures["lost"], figures["shown"]) == (0, [])


def test_kl_is_of_the_answers_before_to_questions_on_other_topics_without_the_fault(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Policy(str(adapter(base, tmp_path / "taught", taught=0.3)), str(base))
    with policy.off():
        before, samples = policy.answer(ASKED), policy.answer(ASKED, sampled=True)
    monkeypatch.setattr(Question, "has_fault", lambda own, lesson, text: own.topic == "git")
    ran = iter([1.0, 0.0])
    monkeypatch.setattr(helpfulness, "programs", lambda _: [{"programs": 1.0, "cut": 0.0, "runs": next(ran)}])
    figures = measure("folder", policy, ASKED, POSTED, lambda _, make: make())  # a lesson on shell
    for name, answers in (("greedy", before), ("sampled", samples)):
        rows = policy.divergences(policy.rollouts(ASKED, answers))
        others = [row for own, row in zip(ASKED, rows, strict=True) if own.topic not in ("git", "shell")]
        kl, figure = sum(row["nats"] for row in others) / sum(row["tokens"] for row in others), figures[f"kl_{name}"]
        assert (figure["answers"], figure["without_the_fault"]) == (5, 4)
        assert figure["value"] == pytest.approx(kl, rel=1e-5)
        assert figure["low"] < figure["value"] < figure["high"]
    assert figures["posts"]["nats_per_token"]["difference"][0] != 0
    assert figures["python"]["runs"]["difference"][0] == -1
    assert figures["python"]["programs"] == [1, 1]


def test_answers_that_held_their_reference_before_alone_are_shown(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Policy(str(adapter(base, tmp_path / "taught", taught=0.3)), str(base))
    with policy.off():
        before = [answer.response for answer in policy.rollouts(ASKED, policy.answer(ASKED))]
    asked = [own._replace(references=(text,)) if words(text) else own for own, text in zip(ASKED, before, strict=True)]
    figures = measure("begin", policy, asked, POSTED, lambda _, make: make())
    held = sum(bool(words(text)) for text in before)
    assert held > 1
    assert figures["all"]["holds"]["before"] == held / len(ASKED)
    assert figures["lost"] == held - round(figures["all"]["holds"]["after"] * len(ASKED)) > 0
    assert figures["shown"][0]["before"] in before
    assert figures["shown"][0]["after"] != figures["shown"][0]["before"]


def test_the_program_goes_on_where_it_stopped_and_refuses_figures_of_something_else(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    posts, out, cache = tmp_path / "posts.jsonl", tmp_path / "kept.json", tmp_path / "before.json"
    posts.write_text("".join(json.dumps({"post": post}) + "\n" for post in POSTED))
    monkeypatch.setattr(lesson_kept, "questions", lambda: ASKED)
    run = adapter(base, tmp_path / "untaught")
    arguments = [
        "begin",
        f"--model={base}",
        f"--run={run}",
        f"--json={out}",
        f"--before-cache={cache}",
        f"--posts={posts}",
    ]
    monkeypatch.setattr(sys, "argv", ["lesson_kept.py", *arguments])
    read = Policy.read

    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Policy, "read", stop)
    with pytest.raises(KeyboardInterrupt):
        lesson_kept.main()
    assert set(json.loads(cache.read_bytes())) == {"of", "answers 0", "answers 1", "samples", "programs"}
    monkeypatch.setattr(Policy, "read", read)
    answered, answer = list[int](), Policy.answer
    monkeypatch.setattr(
        Policy, "answer", lambda own, asked, **how: answered.append(len(asked)) or answer(own, asked, **how)
    )
    lesson_kept.main()
    assert answered == [3, 3], "the questions after the lesson, and none of those before it"
    figures = json.loads(out.read_bytes())
    assert figures["all"]["f1"]["difference"] == [0, 0, 0]
    assert POSTED[0] not in cache.read_text() + out.read_text(), "posts of people stay where they are"
    posts.write_text(json.dumps({"post": POSTED[0]}))
    with pytest.raises(DataError, match=r"before\.json is of another model, other questions, posts or settings"):
        lesson_kept.main()
    cache.write_text("{")
    with pytest.raises(DataError, match="Remove it, to measure the model before a lesson again"):
        lesson_kept.main()


def test_a_policy_is_an_adapter_of_the_model(base: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no LoRA adapter of"):
        Policy(str(base), str(base))
    run = adapter(base, tmp_path / "untaught")
    with pytest.raises(ConfigError, match="holds no LoRA adapter of"):
        Policy(str(run), str(tmp_path))
