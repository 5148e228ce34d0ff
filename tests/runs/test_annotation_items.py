"""What a recipe wants judged: responses of a file, of the policy, and what their unit tests say."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from text2grad.config.recipe import Recipe, make_recipe
from text2grad.critics.servers import annotation
from text2grad.critics.servers.annotation import Item, with_word_of_people
from text2grad.critics.servers.store import Store
from text2grad.errors import ConfigError, DataError
from text2grad.feedback.records import Annotation, write_annotations
from text2grad.runs import annotation_items as items_module
from text2grad.runs.annotation_items import RESPONSES, annotated_examples, items_of
from text2grad.tasks.registry import built_in
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Critique, Example, Span

PROMPTS = ["please say yes", "say no", "maybe later please"]


def recipe(path: Path, *records: dict[str, Any], **sections: Any) -> Recipe:
    data = path / "data.jsonl"
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    return make_recipe({"data": {"train": str(data), **sections.pop("data", {})}, **sections})


def items(path: Path, wanted: Recipe, *, limit: int | None = None) -> list[Item]:
    with Store(path / "answers.sqlite") as store:
        return items_of(wanted, path, store, annotated_examples(wanted, limit))


def test_the_word_of_people_stays_unless_there_is_no_critique() -> None:
    critique, failed = Critique("No.", (Span(0, 1, "negative"),), -1.0), Critique("?", status="unparsable")
    assert with_word_of_people(critique, "Yes.", None) == Critique("Yes.", critique.spans, -1.0)
    assert with_word_of_people(critique, "", 0.0) == Critique("", critique.spans, 0.0)
    assert with_word_of_people(failed, "Yes.", 1.0) == failed


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    path, tokenizer = tmp_path_factory.mktemp("policy"), word_tokenizer(PROMPTS)
    tiny_llama(tokenizer, seed=0, width=16, layers=1, context=32).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


def test_a_file_of_responses_is_taken_in_order_with_names_references_and_feedback(tmp_path: Path) -> None:
    wanted = recipe(
        tmp_path,
        {"prompt": "Who?", "response": "Me.", "reference": "You.", "id": "q7", "feedback": "Wrong."},
        {"prompt": [{"role": "user", "content": "When?"}], "response": "", "meta": {"id": 3}},
        {"prompt": "Why?", "response": "So."},
    )
    found = items(tmp_path, wanted)
    assert found[0] == Item("q7", Example("Who?", reference="You."), "Me.", "Wrong.")
    assert [(one.id, one.example.prompt_text, one.response) for one in found[1:]] == [
        ("3", "When?", ""),
        ("3", "Why?", "So."),
    ]
    assert items(tmp_path, wanted, limit=1) == found[:1]


def test_the_words_of_annotations_are_feedback_whose_places_are_asked_for(tmp_path: Path) -> None:
    wanted = recipe(tmp_path, {"prompt": "x", "response": "y"})
    said = [Critique("The day is wrong.", (Span(0, 2, "negative"),)), Critique("")]
    write_annotations(tmp_path / "data.jsonl", [Annotation("Who?", "Me today.", critique) for critique in said])
    assert [(one.response, one.feedback) for one in items(tmp_path, wanted)] == [
        ("Me today.", "The day is wrong."),
        ("Me today.", None),
    ]


def test_outcomes_of_people_stay_whether_or_not_they_said_more(tmp_path: Path) -> None:
    beside = {"prompt": "a", "response": "b", "outcome": -1}
    both = {**beside, "critique": {"feedback": "No.", "outcome": 1.0}}
    wanted = recipe(tmp_path, beside, both, {"prompt": "c", "response": "d"})
    assert [(one.feedback, one.outcome) for one in items(tmp_path, wanted)] == [(None, -1), ("No.", -1), (None, None)]
    said = [Critique("Good.", outcome=1.0), Critique("", outcome=-0.5)]
    write_annotations(tmp_path / "data.jsonl", [Annotation("Who?", "Me.", critique) for critique in said])
    assert [(one.feedback, one.outcome) for one in items(tmp_path, wanted)] == [("Good.", 1.0), (None, -0.5)]


def test_feedback_that_stands_beside_a_critique_is_what_the_person_said(tmp_path: Path) -> None:
    wanted = recipe(
        tmp_path, {"prompt": "a", "response": "b", "feedback": "Mine.", "critique": {"feedback": "Not mine."}}
    )
    assert [one.feedback for one in items(tmp_path, wanted)] == ["Mine."]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"prompt": "a", "response": "b"}, {"prompt": "c"}], 'example 2 has no "response", but other examples have'),
        ([{"prompt": "a", "response": 3}], "\"response\" of the example 'a' must be a text, got '3'"),
        ([{"prompt": "a", "response": "b", "feedback": ["c"]}], "\"feedback\" of the example 'a' must be a text"),
        (
            [{"prompt": "a", "response": "b", "outcome": "up"}],
            "\"outcome\" of the example 'a' must be a number (feedback import --map)",
        ),
        (
            [{"prompt": p, "response": "b", "id": i} for p, i in (("a", "q1"), ("b", 2), ("c", "q1"))],
            ":3: the id 'q1' belongs to line 1 already, so the two could not be told apart; change one of them",
        ),
    ],
)
def test_data_that_cannot_be_judged_are_refused(tmp_path: Path, records: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(DataError) as caught:
        items(tmp_path, recipe(tmp_path, *records))
    assert message in str(caught.value)


def test_a_recipe_without_data_or_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[data\] names neither a task nor a train file"):
        items(tmp_path, make_recipe({}))
    with pytest.raises(ConfigError, match=r"\[model\] path names no policy to generate one"):
        items(tmp_path, recipe(tmp_path, {"prompt": "a"}))


def test_without_responses_the_policy_responds_and_its_responses_are_kept(tmp_path: Path, policy: str) -> None:
    wanted = recipe(
        tmp_path,
        *({"prompt": prompt} for prompt in PROMPTS),
        model={"path": policy},
        rollout={"max_new_tokens": 4},
    )
    first = items(tmp_path, wanted, limit=2)
    assert [one.example.prompt for one in first] == PROMPTS[:2]
    assert all(one.response for one in first)
    whole = items(tmp_path, wanted)  # the third is sampled now, the others stay as they were asked about
    assert (len(whole), whole[:2]) == (3, first)
    kept = (tmp_path / RESPONSES).read_bytes()
    other_seed = wanted.model_copy(update={"run": wanted.run.model_copy(update={"seed": 5})})
    assert items(tmp_path, other_seed) == whole
    assert (tmp_path / RESPONSES).read_bytes() == kept


def test_a_prompt_that_a_later_run_finds_again_gets_another_response(tmp_path: Path, policy: str) -> None:
    wanted = recipe(tmp_path, *[{"prompt": PROMPTS[0]}] * 2, model={"path": policy}, rollout={"max_new_tokens": 12})
    (first,) = items(tmp_path, wanted, limit=1)
    assert first.response != items(tmp_path, wanted)[1].response


def test_responses_to_a_prompt_share_a_batch_and_each_batch_is_kept(
    tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections = {"model": {"path": policy}, "rollout": {"max_new_tokens": 6, "rows_at_once": 4}}
    wanted = recipe(tmp_path, *({"prompt": prompt} for prompt in PROMPTS), **sections)
    examples = annotated_examples(wanted) * 2
    calm = items_module.sampled_responses(wanted, examples, tmp_path / "calm.jsonl")
    assert [one.prompt for one in calm[0]] == PROMPTS * 2
    assert len(set(calm[1])) == 6
    other = recipe(tmp_path, *({"prompt": prompt} for prompt in PROMPTS), **sections, run={"seed": 1})
    assert items_module.sampled_responses(other, examples, tmp_path / "other.jsonl")[1] != calm[1]
    append, batches = items_module.append_records, list[list[dict[str, Any]]]()

    def killed(path: Path, records: Iterable[dict[str, Any]]) -> None:
        batches.append(list(records))
        append(path, batches[-1])
        if len(batches) == 2:  # the first is of prompts that are too long
            raise KeyboardInterrupt

    monkeypatch.setattr(items_module, "append_records", killed)
    with pytest.raises(KeyboardInterrupt):
        items_module.sampled_responses(wanted, examples, tmp_path / "run.jsonl")
    assert [one["prompt"] for one in batches[1]] == [PROMPTS[0], PROMPTS[0], PROMPTS[1], PROMPTS[1]]
    with (tmp_path / "run.jsonl").open("ab") as file:
        file.write(b'\n{"row": 5, "pro')  # cut off by the kill
    assert items_module.sampled_responses(wanted, examples, tmp_path / "run.jsonl") == calm
    assert [one["row"] for one in batches[-1]] == [2, 5]


def test_a_prompt_that_is_too_long_is_refused_before_anything_is_sampled(tmp_path: Path, policy: str) -> None:
    sections = {"model": {"path": policy}, "rollout": {"max_new_tokens": 4, "rows_at_once": 1}}
    wanted = recipe(tmp_path, {"prompt": PROMPTS[0]}, {"prompt": "please " * 40}, **sections)
    with pytest.raises(DataError, match="token"):
        items(tmp_path, wanted)
    assert not (tmp_path / RESPONSES).exists()


def test_responses_of_another_policy_or_to_other_prompts_are_not_mixed_in(tmp_path: Path, policy: str) -> None:
    sections = {"model": {"path": policy}, "rollout": {"max_new_tokens": 4}}
    items(tmp_path, recipe(tmp_path, {"prompt": PROMPTS[0]}, **sections))
    for prompt, path in ((PROMPTS[1], policy), (PROMPTS[0], "elsewhere")):
        changed = recipe(tmp_path, {"prompt": prompt}, **{**sections, "model": {"path": path}})
        with pytest.raises(DataError, match="contains responses to other prompts, or of another policy"):
            items(tmp_path, changed)


@pytest.mark.parametrize(
    ("section", "changed"),
    [
        ("rollout", {"max_new_tokens": 5}),
        ("rollout", {"temperature": 0.5}),
        ("rollout", {"eos_token_ids": [3]}),
        ("model", {"prompt_format": "plain"}),
    ],
)
def test_responses_of_another_sampling_are_not_taken_for_these(
    tmp_path: Path, policy: str, section: str, changed: dict[str, Any]
) -> None:
    sections: dict[str, Any] = {"model": {"path": policy}, "rollout": {"max_new_tokens": 4}}
    first = items(tmp_path, recipe(tmp_path, {"prompt": PROMPTS[0]}, **sections))
    assert items(tmp_path, recipe(tmp_path, {"prompt": PROMPTS[0]}, **sections)) == first
    other = {**sections, section: {**sections[section], **changed}}
    with pytest.raises(DataError, match=r"of other weights, or with other settings of \[rollout\]"):
        items(tmp_path, recipe(tmp_path, {"prompt": PROMPTS[0]}, **other))


def test_responses_of_a_policy_that_was_trained_again_are_not_taken_for_its_own(tmp_path: Path, policy: str) -> None:
    copied = tmp_path / "policy"
    shutil.copytree(policy, copied)
    wanted = recipe(tmp_path, {"prompt": PROMPTS[0]}, model={"path": str(copied)}, rollout={"max_new_tokens": 4})
    items(tmp_path, wanted)
    model = AutoModelForCausalLM.from_pretrained(copied)
    model.lm_head.weight.data += 1.0
    model.save_pretrained(copied)
    with pytest.raises(DataError, match="of other weights"):
        items(tmp_path, wanted)


def test_prompts_that_are_too_long_are_passed_over_where_the_recipe_says_so(tmp_path: Path, policy: str) -> None:
    wanted = recipe(
        tmp_path,
        {"prompt": "please " * 40},
        {"prompt": PROMPTS[0]},
        data={"too_long": "skip"},
        model={"path": policy},
        rollout={"max_new_tokens": 4},
    )
    for _ in range(2):
        (one,) = items(tmp_path, wanted)
        assert (one.id, one.example.prompt) == ("1", PROMPTS[0])


def test_a_built_in_task_gives_its_training_prompts_to_the_policy(tmp_path: Path, policy: str) -> None:
    wanted = make_recipe({"data": {"task": "summarization"}, "quickstart": {"examples": 2}, "model": {"path": policy}})
    with pytest.raises(DataError, match="token"):  # they are longer than this policy's context of 32 tokens
        items(tmp_path, wanted, limit=2)


def test_the_prompts_of_a_built_in_task_follow_from_the_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sampled(recipe: object, examples: list[Example], path: Path) -> tuple[list[Example], list[str]]:
        return examples, ["So."] * len(examples)

    monkeypatch.setattr(items_module, "sampled_responses", sampled)
    recipe_of_task = make_recipe({"data": {"task": "summarization"}, "quickstart": {"examples": 3}, "run": {"seed": 7}})
    found = items(tmp_path, recipe_of_task, limit=2)
    assert [one.example.prompt for one in found] == [one.prompt for one in built_in("summarization").train(3, 7)[:2]]
    assert [one.id for one in found] == ["1", "2"]


def test_unit_tests_run_once_and_their_outcome_and_traceback_go_to_the_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = recipe(
        tmp_path,
        {
            "prompt": "twice",
            "response": "Here:\n```python\ndef twice(x):\n    return 2 * x\n```",
            "tests": "assert twice(2) == 4",
        },
        {"prompt": "twice", "response": "def twice(x):\n    return x", "tests": "assert twice(2) == 4"},
        {"prompt": "twice", "response": "def twice(x): ..."},
        annotate={"template": "code"},
    )
    passed, failed, untested = (one.tests for one in items(tmp_path, wanted))
    assert (passed, untested) == ("All tests passed.", None)
    assert failed is not None
    assert failed.startswith("The tests did not pass (failed).\nTraceback")
    assert "assert twice(2) == 4" in failed
    monkeypatch.setattr(annotation, "Sandbox", None)  # it is not started again
    assert [one.tests for one in items(tmp_path, wanted)] == [passed, failed, None]
