"""What a version changes in marked words, and lessons of the studio: the words move, others stay, versions follow."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from places import STORIES
from text2grad.config import Recipe
from text2grad.errors import DataError
from text2grad.feedback import Annotation, annotation_to_json, item_of
from text2grad.files import json_lines
from text2grad.models import POLICY_ADAPTER, adapter_parameters, with_lora
from text2grad.runs import read_judged
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Critique, Span
from text2grad_studio.teaching import Taught, measured
from text2grad_studio.worker import Worker
from tokenizers_made_here import made

TEXT = "the cat sat on the mat"


def changed(tmp_path: Path, model: Any, tokenizer: Any, *marks: Span, text: str = TEXT, ids: Any = None) -> Taught:
    """Return what a model's adapter changes in an answer to "say where ."."""
    record = annotation_to_json(Annotation("say where .", text, Critique("", marks)))
    (tmp_path / "marks.jsonl").write_bytes(json_lines([record | ({"ids": ids} if ids else {})]))
    recipe = Recipe.model_validate({"model": {"prompt_format": "plain"}})
    return measured(model, tokenizer, read_judged(tmp_path / "marks.jsonl", model, tokenizer, recipe))


@pytest.fixture
def tiny() -> tuple[Any, Any]:
    """A model whose adapter is no longer zero."""
    torch.manual_seed(0)
    tokenizer = word_tokenizer([TEXT, "say where ."])
    model = with_lora(tiny_llama(tokenizer, seed=0), r=4, alpha=8, targets="all-linear")
    for parameter in adapter_parameters(model, POLICY_ADAPTER).values():
        torch.nn.init.normal_(parameter.data, std=0.1)
    return model.eval(), tokenizer


def test_the_change_of_each_token_is_the_adapters(tmp_path: Path, tiny: tuple[Any, Any]) -> None:
    """Exact KL by hand: Σ_v π(v) (log π(v) − log π_before(v)) at each of the six tokens, then their mean."""
    model, tokenizer = tiny
    taught = changed(tmp_path, model, tokenizer, Span(4, 7, "negative"), Span(19, 22, "positive"))
    [change] = taught.changes
    ids = tokenizer("say where .").input_ids + tokenizer(TEXT).input_ids
    tokens = torch.tensor([ids])
    with torch.no_grad():
        after = model(tokens).logits[0, 2:-1].log_softmax(-1)  # [6, V]
        with model.disable_adapter():
            before = model(tokens).logits[0, 2:-1].log_softmax(-1)
    own = torch.tensor(ids[3:])[:, None]
    moved = (after - before).gather(1, own)[:, 0]
    assert change.item == item_of("say where .", TEXT)
    assert change.delta == [0, -1, 0, 0, 0, 1]
    assert change.before == pytest.approx(before.gather(1, own)[:, 0].tolist(), abs=2e-5)
    assert change.after == pytest.approx(after.gather(1, own)[:, 0].tolist(), abs=2e-5)
    assert taught.negative == pytest.approx(float(moved[1]), abs=1e-5)
    assert taught.positive == pytest.approx(float(moved[5]), abs=1e-5)
    assert taught.unmarked == pytest.approx(float(moved[[0, 2, 3, 4]].mean()), abs=1e-5)
    assert taught.kl == pytest.approx(float((after.exp() * (after - before)).sum(-1).mean()), rel=1e-4)
    assert abs(float(moved[1])) > 1e-3


def test_the_sampled_ids_are_taken_where_they_are_the_policys_own(tmp_path: Path, tiny: tuple[Any, Any]) -> None:
    model, tokenizer = tiny
    ids, mark = tokenizer(TEXT).input_ids, Span(4, 7, "negative")
    lengths = [
        len(changed(tmp_path, model, tokenizer, mark, ids=given).changes[0].delta)
        for given in ([*ids, tokenizer.eos_token_id], [1, 2, 10**6], None)
    ]
    assert lengths == [7, 6, 6]


def test_texts_that_the_tokenizer_changes_and_marks_on_nothing_are_refused(
    tmp_path: Path, tiny: tuple[Any, Any]
) -> None:
    model, tokenizer = tiny
    with pytest.raises(DataError, match="tokenizer changes the response"):
        changed(tmp_path, model, tokenizer, Span(0, 1, "negative"), text="a word that is unknown")
    with pytest.raises(DataError, match="no token is marked"):
        changed(tmp_path, model, tokenizer)


def test_a_special_token_that_a_response_spells_is_text(tmp_path: Path) -> None:
    tokenizer, text = made("gpt2"), "the dog <end> the park"
    model = with_lora(tiny_llama(tokenizer, seed=0), r=4, alpha=8, targets="all-linear")
    [change] = changed(tmp_path, model, tokenizer, Span(8, 13, "negative"), text=text).changes
    marked = [text[slice(*place)] for place, delta in zip(change.offsets, change.delta, strict=True) if delta]
    assert "".join(marked).strip() == "<end>"


@pytest.mark.skipif(not STORIES.exists(), reason="models/stories260k is not in the shared folder")
def test_one_marked_word_is_unlearned_and_the_words_around_it_stay(tmp_path: Path) -> None:
    story = "Once upon a time, there was a little cliws. It was very happy."
    start = story.index("cliws")
    mark = Critique("No such word.", (Span(start, start + 5, "negative"),))
    request = {
        "kind": "teach",
        "policy": {
            "path": str(STORIES),
            "sampling": {"max_new_tokens": 99, "temperature": 1.0, "eos_token_ids": [1], "prompt_format": "plain"},
        },
        "versions": str(tmp_path / "versions"),
        "parent": 0,
        "annotations": [annotation_to_json(Annotation("Tell me a story.", story, mark))],
    }
    taught = Worker().answer(request, lambda **_: None)
    assert (taught["kind"], taught["responses"], taught["spans"]) == ("lesson", 1, 1)
    assert taught["negative"] < -1.5
    assert abs(taught["unmarked"]) < 0.3
    answers = json.loads((tmp_path / "versions" / "0001" / "lesson.json").read_text())
    assert all(50 < len(own["response"]) < 300 for own in answers["before"]), "64 tokens"
    files = {path.name for path in (tmp_path / "versions" / "0001").iterdir()}
    assert files >= {"adapter_config.json", "marks.jsonl", "alternatives.jsonl", "report.html", "version.json"}
