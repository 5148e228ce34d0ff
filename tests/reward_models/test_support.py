"""Features of a probe for responses that must follow from their prompts."""

import json
from functools import wraps
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from text2grad.cli.__main__ import main
from text2grad.errors import ConfigError, ModelError
from text2grad.feedback import Annotation, words_of, write_annotations
from text2grad.reward_models import ProbeRewardModel, train_probe
from text2grad.reward_models.probe import Linear, fitting, rows_of
from text2grad.reward_models.support import (
    FEATURES,
    SupportRow,
    continuation_logprobs,
    empty_prompt,
    support_of,
)
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Critique, Example, Span

WORDS = [f"w{number}" for number in range(40)]
TEXTS = [" " + " ".join(WORDS), "".join(f"{word}.\n" for word in WORDS)]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return word_tokenizer(TEXTS)


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Any:
    return tiny_llama(tokenizer, seed=3, width=32, context=64)


@pytest.fixture(scope="module")
def start(tokenizer: Any, model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("start")
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def annotations(number: int, seed: int) -> list[Annotation]:
    """Responses to prompts of eight words; a word that the prompt lacks is negative."""
    rng = Random(seed)
    found = []
    for _ in range(number):
        prompt = rng.sample(WORDS, 8)
        response = " ".join(rng.choices(prompt, k=3) + rng.choices(WORDS, k=3))
        places = words_of(response)
        spans = [Span(*place, "negative") for place in places if response[slice(*place)] not in prompt]
        found.append(Annotation(" ".join(prompt), response, Critique("", tuple(spans))))
    return found


def features(tokenizer: Any, model: Any, prompt: str, response: str, unit: Any, rows_at_once: int = 8) -> torch.Tensor:
    rows = rows_of(tokenizer, [Example(prompt)], [response], unit, "plain", "support")
    [(_, found)] = support_of(model, rows, [0], rows_at_once)  # type: ignore[arg-type]
    return found[:, 0]


# Log-probs.


def logp_by_hand(model: Any, prompt: list[int], response: list[int]) -> torch.Tensor:
    """Log-probs by one forward pass of one response, without shared prompts, padding or tiles."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *response]])).logits[0].log_softmax(-1)
    return torch.stack([logits[len(prompt) - 1 + at, token] for at, token in enumerate(response)])


def test_features_are_means_over_the_words_of_a_unit_and_around_it(tokenizer: Any, model: Any) -> None:
    prompt, response = "w1 w2 w3", "w1 w2. w9 w3."
    ids = tokenizer(response, add_special_tokens=False)["input_ids"]
    assert len(ids) == 6  # w1, w2, ".", w9, w3, "."
    logp = logp_by_hand(model, tokenizer(prompt)["input_ids"], ids)
    gain = logp - logp_by_hand(model, [tokenizer.eos_token_id], ids)
    # pairs (w1, w2) known, (w2, w9) and (w9, w3) not
    absent = torch.tensor([[0, 0], [0, 0.5], [0, 0], [1, 1], [0, 1], [0, 0]])
    words = torch.cat([torch.stack([logp, gain], 1), absent], 1)
    first, second = words[:3].mean(0), words[3:].mean(0)
    expected = torch.stack([torch.cat([words[at], first if at < 3 else second]) for at in range(6)])
    torch.testing.assert_close(features(tokenizer, model, prompt, response, "words"), expected, rtol=1e-5, atol=1e-5)
    whole = words.mean(0)
    expected = torch.stack([torch.cat([first, whole]), torch.cat([second, whole])])
    found = features(tokenizer, model, prompt, response, "sentences")
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    expected = torch.cat([whole, whole])[None]
    torch.testing.assert_close(features(tokenizer, model, prompt, response, "lines"), expected, rtol=1e-5, atol=1e-5)


def test_a_word_has_the_mean_of_its_tokens() -> None:
    tokenizer = word_tokenizer(TEXTS, symbols=["x"])
    model = tiny_llama(tokenizer, seed=3, width=32, context=64)
    ids = tokenizer("xx w1", add_special_tokens=False)["input_ids"]
    assert len(ids) == 3
    logp = logp_by_hand(model, tokenizer("w2")["input_ids"], ids)
    gain = logp - logp_by_hand(model, [tokenizer.eos_token_id], ids)
    expected = torch.stack([torch.stack([one[:2].mean(), one[2]]) for one in (logp, gain)], 1)
    found = features(tokenizer, model, "w2", "xx w1", "words")
    torch.testing.assert_close(found[:, :2], expected, rtol=1e-5, atol=1e-5)


def test_equal_prompts_stand_together_and_change_nothing(
    tokenizer: Any, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [" ".join(WORDS[:20]), " ".join(WORDS[20:])]
    examples = [Example(prompts[number]) for number in (0, 1, 0, 1, 1)]
    responses = ["w1 w2", "w3 w4 w5", "w6", "w7", "w8 w9 w10"]
    rows = rows_of(tokenizer, examples, responses, "words", "plain", "support")
    fits, failed = fitting(rows, 64)
    assert not failed
    assert [examples[row].prompt for row in fits] in (
        [prompts[int(one)] for one in order] for order in ("00111", "11100")
    )
    alone = dict(support_of(model, rows, [4, 3, 2, 1, 0], 1))  # type: ignore[arg-type]
    read: list[int] = []
    forward = model.get_decoder().forward

    @wraps(forward)
    def counted(*args: Any, **more: Any) -> Any:
        read.append(more["input_ids"].numel())
        return forward(*args, **more)

    monkeypatch.setattr(model.get_decoder(), "forward", counted)
    together = dict(support_of(model, rows, fits, 8))  # type: ignore[arg-type]
    assert max(read) == 2 * 20  # two prompts of 20 tokens, not five
    assert sorted(together) == sorted(alone) == [0, 1, 2, 3, 4]
    for row, own in alone.items():
        torch.testing.assert_close(together[row], own, rtol=1e-5, atol=1e-5)


def test_a_continuation_has_a_log_prob_for_each_token(model: Any) -> None:
    found = continuation_logprobs(model, [(3,), (3,), (4,), (4,)], [(), (5, 6), (), (7,)])
    assert [len(one) for one in found] == [0, 2, 0, 1]
    torch.testing.assert_close(found[3], logp_by_hand(model, [4], [7]), rtol=1e-5, atol=1e-5)
    assert continuation_logprobs(model, [(3,)], [()])[0].shape == (0,)


def test_the_empty_prompt_is_an_empty_message_or_the_token_around_texts(tokenizer: Any) -> None:
    assert empty_prompt(tokenizer, "plain") == [tokenizer.eos_token_id]
    plain = rows_of(tokenizer, [Example(""), Example("w1")], ["w3", "w3"], "words", "plain", "support")
    assert [list(row.ids[:1]) for row in plain] == [[tokenizer.eos_token_id], tokenizer("w1").input_ids]
    chat = word_tokenizer(TEXTS)
    chat.chat_template = "w1{{ messages[0]['content'] }} w2"
    ids = chat("w1 w2", add_special_tokens=False)["input_ids"]
    assert empty_prompt(chat, "chat") == ids
    row = rows_of(chat, [Example("")], ["w3"], "words", "chat", "support")[0]
    assert isinstance(row, SupportRow)
    assert list(row.ids[: row.prompt]) == ids


def test_the_empty_prompt_has_no_token_that_stands_behind_texts() -> None:
    """Some tokenizers end every text: behind an end of sequence a response would begin a new text."""
    ends = word_tokenizer(TEXTS)
    begin, end = ends.convert_tokens_to_ids(["w7", ends.eos_token])
    special = [("w7", begin), (ends.eos_token, end)]
    ends.backend_tokenizer.post_processor = TemplateProcessing(f"w7 $A {ends.eos_token}", special_tokens=special)
    assert ends("w1").input_ids == [begin, *ends("w1", add_special_tokens=False).input_ids, end]
    assert empty_prompt(ends, "plain") == [begin]


def test_a_tokenizer_without_a_token_around_texts_has_no_empty_prompt() -> None:
    bare = word_tokenizer(TEXTS)
    bare.eos_token = None
    with pytest.raises(ModelError) as refused:
        rows_of(bare, [Example("w1")], ["w3"], "words", "plain", "support")
    assert str(refused.value) == (
        "the tokenizer has no token that begins or ends texts, so nothing predicts the first token of a response "
        'without a prompt, which the features "support" need; take the features "states", or give it such a token'
    )


def test_an_empty_response_has_no_units_and_a_long_one_fails(tokenizer: Any, model: Any, start: Path) -> None:
    linear = Linear(torch.zeros(2, FEATURES), torch.zeros(2), torch.zeros(FEATURES), torch.ones(FEATURES))
    probe = ProbeRewardModel(model, tokenizer, linear, base=str(start), layer=None, labels=(-1, 0), unit="words")
    empty, blank, long = probe([Example("w1")] * 3, ["", " ", " ".join(WORDS * 2)])
    assert empty == blank == Critique("")
    assert long.failed


# A probe of these features.


def test_it_learns_what_the_prompt_does_not_say(tokenizer: Any, start: Path, tmp_path: Path) -> None:
    model, report = train_probe(start, tokenizer, annotations(60, 0), unit="words", features="support")
    assert report.layer is None
    assert report.loss < 0.2 * report.loss_of_shares
    test = annotations(20, 1)
    asked = [Example(one.prompt) for one in test], [one.response for one in test]
    found = model(*asked)
    for critique, truth in zip(found, test, strict=True):
        marked = {at for span in critique.spans for at in range(span.start, span.end) if truth.response[at] != " "}
        assert marked == {at for span in truth.critique.spans for at in range(span.start, span.end)}
    model.save(tmp_path)
    assert json.loads((tmp_path / "probe.json").read_bytes())["layer"] is None
    assert ProbeRewardModel.load(tmp_path)(*asked) == found


def test_the_feedback_names_the_words_that_the_prompt_lacks(tokenizer: Any, model: Any) -> None:
    """The weights of this probe mark each word that the prompt lacks, or each one that it holds."""
    weight = torch.zeros(2, FEATURES)
    weight[0, 2] = 100.0
    base: dict[str, Any] = {"base": "base", "layer": None, "unit": "words"}
    linear = Linear(weight, torch.tensor([-50.0, 0.0]), torch.zeros(FEATURES), torch.ones(FEATURES))
    probe = ProbeRewardModel(model, tokenizer, linear, labels=(-1, 0), **base)
    [critique] = probe([Example("w1 w2")], ["w1 w3 w4 w3 w2"])
    assert critique == Critique('"w3 w4 w3": negative (1.00); not in the prompt: w3, w4', (Span(3, 11, "negative"),))
    linear = Linear(-weight, torch.tensor([50.0, 0.0]), torch.zeros(FEATURES), torch.ones(FEATURES))
    for label, words in ((-1, '"w1": negative (1.00)'), (1, '"w1": positive (1.00)')):
        [critique] = ProbeRewardModel(model, tokenizer, linear, labels=(label, 0), **base)([Example("w1")], ["w1 w9"])
        assert critique.feedback == words
    linear = Linear(0 * weight, torch.tensor([9.0, 0.0]), torch.zeros(FEATURES), torch.ones(FEATURES))
    [critique] = ProbeRewardModel(model, tokenizer, linear, labels=(1, 0), **base)([Example("w1")], ["w1 w9"])
    assert critique.feedback == '"w1 w9": positive (1.00)'


def test_another_base_and_another_number_of_features_are_refused(tokenizer: Any, tmp_path: Path) -> None:
    for seed in (3, 4):
        tiny_llama(tokenizer, seed=seed, width=32, context=64).save_pretrained(tmp_path / "base")
        tokenizer.save_pretrained(tmp_path / "base")
        if seed == 3:
            probe, _ = train_probe(tmp_path / "base", tokenizer, annotations(8, 0), unit="words", features="support")
            probe.save(tmp_path / "probe")
            ProbeRewardModel.load(tmp_path / "probe")
    with pytest.raises(ModelError, match=r"is another model than in training: its log-probs differ by \d+%"):
        ProbeRewardModel.load(tmp_path / "probe")
    other = word_tokenizer(TEXTS, symbols=["umbrella"])  # another number of tokens
    tiny_llama(other, seed=3, width=32, context=64).save_pretrained(tmp_path / "base")
    other.save_pretrained(tmp_path / "base")
    with pytest.raises(ModelError, match="is another model than in training"):
        ProbeRewardModel.load(tmp_path / "probe")
    linear = Linear(torch.zeros(2, 5), torch.zeros(2), torch.zeros(5), torch.ones(5))
    with pytest.raises(ModelError, match='without a layer reads the 8 features "support", got 5'):
        ProbeRewardModel(probe.model, tokenizer, linear, base="base", layer=None, labels=(-1, 0))
    with pytest.raises(ConfigError, match="features"):
        train_probe(tmp_path / "base", tokenizer, annotations(8, 0), features="entropy")  # type: ignore[arg-type]


def test_the_command_reads_the_support(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_annotations(tmp_path / "annotations.jsonl", annotations(40, 0))
    command = ["reward-baseline", "probe", str(tmp_path / "annotations.jsonl"), "--model", str(start)]
    command += ["--rule", "words", "--features", "support", "--out", str(tmp_path / "probe")]
    assert main(command) == 0
    assert "the support by the prompt, with the penalty" in " ".join(capsys.readouterr().out.split())
    assert json.loads((tmp_path / "probe" / "report.json").read_bytes())["layer"] is None
    write_annotations(tmp_path / "test.jsonl", annotations(10, 1))
    measure = ["evaluate-reward", str(tmp_path / "test.jsonl"), "--model", str(tmp_path / "probe"), "--no-words"]
    assert main([*measure, "--out", str(tmp_path / "e")]) == 0
    assert json.loads((tmp_path / "e" / "evaluation.json").read_bytes())["metrics"]["f1/negative"]["value"] > 0.9
    command[1], command[-1] = "process", str(tmp_path / "process")
    command[command.index("words")] = "lines"
    assert main(command) == 2
    assert "--features has no effect on a process" in " ".join(capsys.readouterr().err.split())
