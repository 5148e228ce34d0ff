"""The probe: which states it reads, that its regression is the right one, and that it learns to mark."""

import copy
import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

import small_run
from evidence.__main__ import main
from evidence.baselines import probe, probe_training
from evidence.baselines.probe import (
    Linear,
    ProbeRewardModel,
    ProbeSettings,
    UnitScore,
    mark_of,
    rows_of,
    states_of,
)
from evidence.baselines.probe_training import ProbeReport, fit, train_probe
from pretended_device import pretended_device
from text2grad.errors import ConfigError, DataError, ModelError
from text2grad.feedback.records import Annotation, write_annotations
from text2grad.reward_models.load import LocalRewardModel, critic_from_recipe
from text2grad.reward_models.refresh import Refresher
from text2grad.runs.dry_run.devices import device_named
from text2grad.runs.dry_run.plan import Planner
from text2grad.runs.recipe_run import run_recipe
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Critique, Example, Span

CRITIC = small_run.ColourCritic()


def annotations(number: int, seed: int, words: tuple[str, ...] = tuple(small_run.WORDS)) -> list[Annotation]:
    """Responses of six words, judged by the critic of the small run."""
    rng = Random(seed)
    responses = [" ".join(rng.choices(words, k=6)) for _ in range(number)]
    return [Annotation(f"cat {row % 20}", one, CRITIC.judge(one)) for row, one in enumerate(responses)]


def tokenizer_and_model() -> tuple[Any, Any]:
    """Those of the small run, which also know sentences and lines."""
    words = small_run.WORDS
    tokenizer = word_tokenizer(
        [" ".join(words), " " + " ".join(reversed(words)), "".join(f"{one}.\n" for one in words)]
    )
    return tokenizer, tiny_llama(tokenizer, seed=1, width=32, context=64)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tokenizer_and_model()[0]


@pytest.fixture(scope="module")
def start(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("start")
    tokenizer_and_model()[1].save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def taught(tokenizer: Any, start: Path) -> tuple[ProbeRewardModel, ProbeReport]:
    return train_probe(start, tokenizer, annotations(80, 0), unit="words", held_out=annotations(20, 1))


# What the base reads.


def test_the_response_stands_behind_the_prompt_of_a_reward_model(tokenizer: Any) -> None:
    row = rows_of(tokenizer, [Example("cat")], ["red one. dog"], "words", "plain")[0]
    again = tokenizer("red one. dog", add_special_tokens=False)["input_ids"]
    assert list(row.ids) == [*tokenizer("catred one. dog\n")["input_ids"], *again]
    first = len(row.ids) - len(again)
    words = ["red", "one", ".", "dog"]
    assert row.tokens is not None
    assert len(row.tokens) == len(words)
    for word, tokens in zip(words, row.tokens, strict=True):
        assert word in tokenizer.decode([row.ids[token] for token in tokens])
        assert min(tokens) >= first


def test_rows_up_to_the_limit_fit_and_the_shortest_come_first() -> None:
    rows = [probe.Row([1] * length, [[0]]) for length in (3, 5, 2, 4)]
    fits, failed = probe.fitting(rows, 4)
    assert fits == [2, 0, 3]
    assert set(failed) == {1}


def test_states_are_means_over_the_tokens_of_a_unit_at_the_layer(tokenizer: Any, start: Path) -> None:
    model = tokenizer_and_model()[1].eval()
    asked = [Example("cat"), Example("one two three")]
    rows = rows_of(tokenizer, asked, ["red blue", "red. one two three cat dog."], "sentences", "plain")
    assert [len(row.tokens or ()) for row in rows] == [1, 2]
    assert len(rows[0].ids) < len(rows[1].ids)  # the first row is padded
    found = dict(states_of(model, rows, [0, 1], [1, 2], 2))
    for number, row in enumerate(rows):
        read = model(input_ids=torch.tensor([row.ids]), output_hidden_states=True).hidden_states
        for unit, tokens in enumerate(row.tokens or ()):
            for place, layer in enumerate((1, 2)):
                by_hand = sum(read[layer][0, token] for token in tokens) / len(tokens)
                torch.testing.assert_close(found[number][unit, place], by_hand, atol=1e-5, rtol=1e-4)


def test_a_response_that_cannot_be_read_gets_a_failed_critique(taught: tuple[ProbeRewardModel, ProbeReport]) -> None:
    long, unknown, empty, good = taught[0]([Example("cat")] * 4, [" ".join(["red"] * 80), "red bicycle", "", "red one"])
    assert long.status == unknown.status == "unparsable"
    assert "more than the reward model's context of 64" in long.feedback
    assert unknown.feedback == "the tokens of the response decode to another text in the probe's tokenizer"
    assert empty == Critique("")
    assert good.spans == (Span(0, 3, "positive"), Span(4, 7, "negative"))


# The regression.


@pytest.mark.parametrize("penalty", [0.01, 1.0])
def test_the_gradient_of_the_penalized_loss_is_zero(penalty: float) -> None:
    """L = Σ w/w̄ · CE(softmax(zW' + b), s) + H · p/2 · Σ W²: dL/dW = Σ w/w̄ · (softmax − s) z' + H · p · W."""
    rng = np.random.default_rng(0)
    states, words = rng.normal(3.0, 2.0, (60, 5)), rng.integers(1, 9, 60).astype(float)
    shares = rng.dirichlet([1.0, 1.0, 1.0], 60)
    found = fit(*(torch.tensor(one, dtype=torch.float32) for one in (states, shares, words)), penalty)
    z = (states - states.mean(0)) / states.std(0)
    logits = z @ found.weight.numpy().T + found.bias.numpy()
    predicted = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    error = (predicted - shares) * (words / words.mean())[:, None]
    assert np.abs(error.T @ z + 5 * penalty * found.weight.numpy()).max() < 0.02
    assert np.abs(error.sum(0)).max() < 0.02  # the bias has no penalty
    np.testing.assert_allclose(found(torch.tensor(states, dtype=torch.float32)).numpy(), predicted, atol=1e-5)


def test_a_higher_penalty_gives_smaller_weights() -> None:
    states = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    shares = torch.stack([(states[:, 0] > 0).float(), (states[:, 0] <= 0).float()], 1)
    sizes = [float(fit(states, shares, torch.ones(40), penalty).weight.norm()) for penalty in (0.01, 1.0, 100.0)]
    assert sizes == sorted(sizes, reverse=True)


def test_nothing_is_predicted_by_a_probe_that_saw_it() -> None:
    """States that tell the number of their unit alone: one that saw a unit knows its label, others do not."""
    units = torch.eye(24)[:, None]
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(12, 1)
    groups = torch.arange(24) // 6
    data = probe_training._Data(units, labels, torch.ones(24), groups)
    loss, predicted = probe_training._validated(data, 0, 0.001)
    assert float((predicted - 0.5).abs().max()) < 0.2
    assert loss == pytest.approx(float(-(labels * predicted.log()).sum() / 24), rel=1e-4)
    seen = fit(units[:, 0], labels, torch.ones(24), 0.001)(units[:, 0])
    assert float((seen * labels).sum(1).min()) > 0.9


def test_the_layer_and_the_penalty_with_the_smallest_loss_are_chosen() -> None:
    """The second layer tells the label, the others are noise."""
    made = torch.Generator().manual_seed(0)
    labels = torch.arange(80) % 2
    states = torch.randn(80, 3, 6, generator=made)
    states[:, 1, 2] += 4.0 * labels
    shares = torch.nn.functional.one_hot(labels, 2).float()
    data = probe_training._Data(states, shares, torch.ones(80), torch.arange(80) // 20)
    place, penalty, loss, predicted = probe_training._choose(data)
    losses = {one: probe_training._validated(data, 1, one)[0] for one in probe_training.PENALTIES}
    assert place == 1
    assert losses[penalty] == min(losses.values()) == loss
    assert float(((predicted[:, 1] > 0.5) == (labels == 1)).float().mean()) > 0.9


def test_the_shares_alone_have_the_entropy_of_the_shares_as_loss() -> None:
    """3 of 4 words negative: −(3/4 · ln 3/4 + 1/4 · ln 1/4) = 0.5623; the second unit has three words."""
    data = probe_training._Data(
        torch.zeros(2, 1, 1), torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([1.0, 3.0]), torch.arange(2)
    )
    assert probe_training._loss_of_shares(data) == pytest.approx(0.5623, abs=1e-4)


def test_the_threshold_has_the_best_f1_of_marked_words() -> None:
    """Marked from 0.3 on: 5 + 1 words, of which 5 are right, of 5: 2 · 5 / (6 + 5). From 0.7 on: 5 of 5."""
    predicted = torch.tensor([[0.7, 0.3], [0.3, 0.7], [0.1, 0.9]])
    shares = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    data = probe_training._Data(torch.zeros(3, 1, 1), shares, torch.tensor([5.0, 1.0, 9.0]), torch.arange(3))
    assert probe_training._best_threshold(predicted, data, [-1, 0]) == 0.5  # of 0.31 to 0.70 the nearest to 0.5
    missed = torch.tensor([[0.2, 0.8], [0.05, 0.95], [0.05, 0.95]])
    assert probe_training._best_threshold(missed, data, [-1, 0]) == 0.2
    long = data._replace(
        words=torch.tensor([1.0, 10.0, 9.0]), shares=torch.tensor([[1.0, 0.0], [0.6, 0.4], [0.0, 1.0]])
    )
    assert probe_training._best_threshold(predicted, long, [-1, 0]) == 0.3  # 2 · 7 / (11 + 7), above 2 · 1 / (1 + 7)
    swapped = probe_training._best_threshold(predicted.flip(1), data._replace(shares=shares.flip(1)), [0, 1])
    assert swapped == 0.5


@pytest.mark.parametrize(
    ("negative", "positive", "label"), [(0.5, 0.2, -1), (0.2, 0.5, 1), (0.49, 0.49, 0), (0.6, 0.6, -1), (0.1, 0.2, 0)]
)
def test_the_likelier_label_marks_from_the_threshold_on(negative: float, positive: float, label: int) -> None:
    assert mark_of(negative, positive, 0.5) == label


# Learning.


def test_it_learns_to_mark_as_the_critic_does(taught: tuple[ProbeRewardModel, ProbeReport]) -> None:
    model, report = taught
    assert report.learned_from == 80
    assert report.loss < 0.5 * report.loss_of_shares
    assert sum(report.right.values()) > 0.95 * sum(report.held_out.values()) == 0.95 * 120
    assert set(report.units) == {"negative", "neutral", "positive"}
    one = model([Example("cat 3")], ["red cat two dog"])[0]
    assert one.spans == (Span(0, 3, "positive"), Span(8, 11, "negative"))
    first, second = one.feedback.splitlines()
    assert first.startswith('"red": positive (0.')
    assert second.startswith('"two": negative (0.')


def test_units_next_to_each_other_with_one_label_are_one_span(taught: tuple[ProbeRewardModel, ProbeReport]) -> None:
    scores = [UnitScore(0, 3, 0.1, 0.8), UnitScore(4, 8, 0.2, 0.6), UnitScore(9, 12, 0.9, 0.05)]
    found = taught[0]._critique("red blue one", scores)
    assert found.spans == (Span(0, 8, "positive"), Span(9, 12, "negative"))
    assert found.feedback == '"red blue": positive (0.70)\n"one": negative (0.90)'


def test_scores_are_probabilities_of_each_word(taught: tuple[ProbeRewardModel, ProbeReport]) -> None:
    scores = taught[0].scores([Example("cat")], ["red one dog"])[0]
    assert not isinstance(scores, Critique)
    assert [(one.start, one.end) for one in scores] == [(0, 3), (4, 7), (8, 11)]
    assert scores[0].positive > 0.5 > scores[0].negative
    assert scores[1].negative > 0.5 > scores[1].positive
    assert scores[2].negative + scores[2].positive < 0.5


def test_a_label_that_nobody_gave_has_no_probability(tokenizer: Any, start: Path) -> None:
    given = annotations(30, 2, ("red", "cat", "dog"))
    model, report = train_probe(start, tokenizer, given, unit="words")
    assert model.settings.labels == (0, 1)
    assert set(report.units) == {"neutral", "positive"}
    assert all(one.negative == 0 for one in model.scores([Example("cat")], ["red one"])[0])  # type: ignore[union-attr]


def test_annotations_without_a_use_are_counted(tokenizer: Any, start: Path) -> None:
    given = [
        *annotations(20, 0),
        Annotation("cat", " ".join(["red"] * 40), Critique("")),  # longer than the context with its prompt
        Annotation("cat", "", Critique("")),
        Annotation("cat", "red", Critique("no answer", status="timed_out")),
    ]
    _, report = train_probe(start, tokenizer, given, unit="words")
    assert (report.learned_from, report.too_long, report.without_units) == (20, 1, 2)


def test_a_tokenizer_with_a_chat_template_reads_prompts_with_it(start: Path) -> None:
    tokenizer = tokenizer_and_model()[0]
    tokenizer.chat_template = "{{ messages[0]['content'][-16:] }}"  # the base has a short context
    model, _ = train_probe(start, tokenizer, annotations(20, 0), unit="words")
    assert model.settings.prompt_format == "chat"


def test_the_threshold_is_kept_and_failed_critiques_are_not_measured(
    tokenizer: Any, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_training, "_best_threshold", lambda *_: 0.37)
    held_out = [Annotation("cat", "red one", Critique("", status="timed_out")), *annotations(2, 1)]
    model, report = train_probe(start, tokenizer, annotations(20, 0), unit="words", held_out=held_out)
    assert model.settings.vote_threshold == report.vote_threshold == 0.37
    assert sum(report.held_out.values()) == 12


def test_held_out_units_are_marked_with_the_threshold(tokenizer: Any, start: Path) -> None:
    """Of every word P(negative) = 0.2, P(positive) = 0.1: from 0.2 on all are marked, above it none."""
    linear = Linear(torch.zeros(3, 32), torch.tensor([0.2, 0.7, 0.1]).log(), torch.zeros(32), torch.ones(32))
    held_out = [Annotation("cat", "red one", Critique("", (Span(0, 3, "negative"),)))]
    total = {"negative": 1, "neutral": 1}
    for threshold, right in ((0.19, {"negative": 1, "neutral": 0}), (0.21, {"negative": 0, "neutral": 1})):
        model = tokenizer_and_model()[1]
        one = ProbeRewardModel(
            model,
            tokenizer,
            linear,
            ProbeSettings(str(start), 1, (-1, 0, 1), "words", vote_threshold=threshold),
        )
        assert probe_training._measure(one, held_out) == (right, total)


def test_a_sentence_weighs_as_its_words_and_has_their_shares(tokenizer: Any) -> None:
    """ "red one." has a positive, a negative and a neutral word (the point); "cat" is neutral."""
    one = Annotation("a", "red one. cat", Critique("", (Span(0, 3, "positive"), Span(4, 7, "negative"))))
    data = probe_training._data([torch.zeros(2, 1, 3)], [one], "sentences", 0)
    assert data.words.tolist() == [3.0, 1.0]
    torch.testing.assert_close(data.shares, torch.tensor([[1 / 3, 1 / 3, 1 / 3], [0.0, 1.0, 0.0]]))


def test_units_are_words_sentences_or_lines() -> None:
    one = Annotation("a", "red one. cat\ndog", Critique("", (Span(0, 3, "positive"),)))
    assert probe_training._labels(one, "words") == [[1], [0], [0], [0], [0]]
    assert probe_training._labels(one, "sentences") == [[1, 0, 0], [0], [0]]
    assert probe_training._labels(one, "lines") == [[1, 0, 0, 0], [0]]


def test_the_chosen_layer_is_trained_and_read(tokenizer: Any, start: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of the base's two layers tells the word, the first nothing."""
    made: list[torch.Tensor] = []

    def words_at_layer_2(_: Any, rows: Any, chosen: Any, layers: list[int], __: int) -> Any:
        assert layers == [1, 2] or not chosen
        for row in chosen:
            words = torch.tensor([rows[row].ids[unit[-1]] for unit in rows[row].tokens])
            told = torch.nn.functional.one_hot(words % 32, 32).float()
            made.append(told)
            yield row, torch.stack([torch.zeros_like(told), told], 1)

    monkeypatch.setattr(probe, "states_of", words_at_layer_2)
    model, report = train_probe(start, tokenizer, annotations(40, 0), unit="words")
    assert model.settings.layer == report.layer == 2
    torch.testing.assert_close(model.linear.mean, torch.cat(made).mean(0))
    assert report.loss < 0.5 * report.loss_of_shares


def test_responses_to_one_prompt_are_in_one_fold() -> None:
    given = annotations(60, 0)
    data = probe_training._data([torch.zeros(6, 1, 2)] * 60, given, "words", 0)
    folds: dict[str, set[int]] = {}
    for row, one in enumerate(given):
        folds.setdefault(one.prompt, set()).update(data.groups[6 * row : 6 * row + 6].tolist())
    assert all(len(found) == 1 for found in folds.values())
    assert data.groups.unique().tolist() == [0, 1, 2, 3]
    of_one_prompt = [one._replace(prompt="cat") for one in given[:8]]
    assert probe_training._data([torch.zeros(6, 1, 2)] * 8, of_one_prompt, "words", 0).groups.unique().numel() == 4


def test_prompts_are_dealt_into_folds_by_the_seed() -> None:
    """In the same way in each process, where Python's order of a set differs."""
    given = [Annotation(prompt, one, Critique("")) for prompt in ("a", "b", "c", "d", "e", "f") for one in ("x", "y")]
    sixths = [probe_training._folds(given, seed)[::2] for seed in (0, 1)]
    assert sixths == [[3, 2, 1, 1, 0, 0], [3, 1, 0, 1, 0, 2]]
    assert probe_training._folds(given, 0)[1::2] == sixths[0]
    four = probe_training._folds(given[:8], 0)
    assert four[::2] == four[1::2]
    assert sorted(four[::2]) == [0, 1, 2, 3]


def test_annotations_of_one_response_are_in_one_fold() -> None:
    """Several people marked each response, without a prompt, as in exports of Label Studio."""
    three = [Annotation("", one, Critique("")) for one in ("red one", "cat", "two dog")]

    def folds(given: list[Annotation]) -> list[int]:
        found: list[int] = probe_training._data([torch.zeros(1, 1, 2)] * len(given), given, "lines", 0).groups.tolist()
        return found

    assert len(set(folds(three))) == 3
    dealt = dict(zip((annotation.response for annotation in three), folds(three), strict=True))
    several = [three[0], *three, three[1], three[0]]
    assert folds(several) == [dealt[annotation.response] for annotation in several]


def test_too_few_annotations_and_one_label_alone_are_refused(tokenizer: Any, start: Path) -> None:
    with pytest.raises(DataError, match=r"^1 of 1 annotations can be learned .* a probe needs at least two responses$"):
        train_probe(start, tokenizer, annotations(1, 0))
    with pytest.raises(DataError, match=r"^0 of 5 annotations can be learned \(5 are longer than 9 tokens, 0 have"):
        train_probe(start, tokenizer, annotations(5, 0), max_tokens=9)
    lengths = [len(row.ids) for row in rows_of(tokenizer, [Example("cat 0")], ["red " * 5 + "one"], "words", "plain")]
    _, report = train_probe(start, tokenizer, annotations(20, 0), unit="words", max_tokens=lengths[0])
    assert (report.learned_from, report.too_long, report.without_units) == (20, 0, 0)
    empty = [Annotation("cat", one, Critique("")) for one in ("", "red bicycle")]
    with pytest.raises(DataError, match=r"2 have no words, a failed critique, or tokens that decode to another text\)"):
        train_probe(start, tokenizer, [*empty, *annotations(1, 0)], unit="words")
    with pytest.raises(DataError, match=r"^all 60 words are neutral; at least two labels are needed$"):
        train_probe(start, tokenizer, annotations(10, 0, ("cat", "dog")), unit="words")
    with pytest.raises(ConfigError, match="unit"):
        train_probe(start, tokenizer, annotations(10, 0), unit="pages")  # type: ignore[arg-type]


def with_more_ids(tokenizer: Any, *, special: bool) -> Any:
    """A tokenizer with the word "violet", which the base does not know."""
    more = copy.deepcopy(tokenizer)
    more.add_tokens(["violet"], special_tokens=special)
    return more


BEYOND = (
    "has the id {id}, and the model's embedding has {id} rows; call model.resize_token_embeddings("
    "len(tokenizer)) and save the model, or take the tokenizer that belongs to it"
)


def test_a_base_without_ids_of_the_tokenizer_is_refused_before_it_reads(
    tokenizer: Any, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "states_of", lambda *_: pytest.fail("it read"))
    with pytest.raises(ModelError) as refused:
        train_probe(start, with_more_ids(tokenizer, special=False), annotations(20, 0), unit="words")
    assert str(refused.value).endswith(BEYOND.format(id=len(tokenizer)))
    chatty = with_more_ids(tokenizer, special=True)  # a special token, which the template writes
    chatty.chat_template = "violet"
    with pytest.raises(ModelError) as refused:
        train_probe(start, chatty, annotations(20, 0), unit="words")
    assert str(refused.value).endswith(BEYOND.format(id=len(tokenizer)))


def test_a_probe_is_not_loaded_with_a_tokenizer_of_more_ids_but_with_an_unused_special_token(
    taught: tuple[ProbeRewardModel, ProbeReport], tokenizer: Any, start: Path, tmp_path: Path
) -> None:
    taught[0].save(tmp_path / "probe")
    shutil.copytree(start, tmp_path / "base")
    saved = json.loads((tmp_path / "probe" / "probe.json").read_bytes())
    (tmp_path / "probe" / "probe.json").write_text(json.dumps({**saved, "base": str(tmp_path / "base")}))
    with_more_ids(tokenizer, special=True).save_pretrained(tmp_path / "base")
    assert ProbeRewardModel.load(tmp_path / "probe")([Example("cat")], ["red one"]) == taught[0](
        [Example("cat")], ["red one"]
    )
    with_more_ids(tokenizer, special=False).save_pretrained(tmp_path / "base")
    with pytest.raises(ModelError) as refused:
        ProbeRewardModel.load(tmp_path / "probe")
    assert str(refused.value).endswith(BEYOND.format(id=len(tokenizer)))


# On disk, and in a run.


def test_it_comes_back_as_it_was_and_by_a_recipe(taught: tuple[ProbeRewardModel, ProbeReport], tmp_path: Path) -> None:
    taught[0].save(tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "config.json",
        "probe.json",
        "probe.safetensors",
    ]
    asked, texts = [Example("cat")] * 2, ["red one", "cat two"]
    recipe = small_run.recipe(tmp_path, critic={"model": str(tmp_path / "model"), "kind": "probe"})
    loaded = critic_from_recipe(recipe)
    assert isinstance(loaded, ProbeRewardModel)
    assert isinstance(loaded, LocalRewardModel)
    assert loaded(asked, texts) == taught[0](asked, texts)
    assert loaded.settings == taught[0].settings


def test_other_bases_and_damaged_files_are_refused(
    taught: tuple[ProbeRewardModel, ProbeReport], tmp_path: Path, no_hub: None
) -> None:
    with pytest.raises(ModelError, match=r"holds no probe \(probe.json\); train one with"):
        ProbeRewardModel.load(tmp_path)
    taught[0].save(tmp_path)
    saved = json.loads((tmp_path / "probe.json").read_bytes())
    (tmp_path / "probe.json").write_text(json.dumps({**saved, "layer": 9}))
    with pytest.raises(ModelError, match=r"reads layer 9 with 32 dimensions, and .* has 2 layers with 32"):
        ProbeRewardModel.load(tmp_path)
    (tmp_path / "probe.json").write_text(json.dumps({**saved, "base": "moved/away"}))
    with pytest.raises(ModelError, match=r"command where the probe was trained, or change base in .*probe.json"):
        ProbeRewardModel.load(tmp_path)
    (tmp_path / "probe.json").write_text("[")
    with pytest.raises(ModelError, match="train the probe again"):
        ProbeRewardModel.load(tmp_path)
    (tmp_path / "probe.json").write_text(json.dumps(saved))
    (tmp_path / "probe.safetensors").write_bytes(b"damaged")
    with pytest.raises(ModelError, match="cannot load the probe of"):
        ProbeRewardModel.load(tmp_path)


@pytest.mark.parametrize(
    ("seed", "dtype"),
    [
        pytest.param(1, torch.float32, id="the same weights"),
        pytest.param(1, torch.bfloat16, id="rounded"),
        pytest.param(2, torch.float32, id="other weights"),
    ],
)
def test_a_base_that_became_another_model_is_refused(
    tokenizer: Any, tmp_path: Path, seed: int, dtype: torch.dtype
) -> None:
    def write_base(seed: int, dtype: torch.dtype) -> None:
        base = tiny_llama(tokenizer, seed=seed, width=32, context=64)
        base.to(dtype).save_pretrained(tmp_path / "base")
        tokenizer.save_pretrained(tmp_path / "base")

    write_base(1, torch.float32)
    train_probe(tmp_path / "base", tokenizer, annotations(8, 0), unit="words")[0].save(tmp_path / "probe")
    write_base(seed, dtype)
    if seed == 1:
        assert ProbeRewardModel.load(tmp_path / "probe").settings.base == str(tmp_path / "base")
        return
    with pytest.raises(ModelError, match=r"is another model than in training: its states differ by \d+% \(up to 20%"):
        ProbeRewardModel.load(tmp_path / "probe")


@pytest.mark.parametrize("context", [pytest.param(8, id="shorter than the text"), pytest.param(1, id="one token")])
def test_the_state_that_knows_the_base_fits_into_its_context(tokenizer: Any, tmp_path: Path, context: int) -> None:
    linear = Linear(torch.zeros(2, 32), torch.zeros(2), torch.zeros(32), torch.ones(32))
    base = tiny_llama(tokenizer, seed=1, width=32, context=context)
    one = ProbeRewardModel(base, tokenizer, linear, ProbeSettings("base", 1, (-1, 0)))
    assert torch.isfinite(one._witness()).all()


def test_a_threshold_of_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="vote_threshold must be above 0"):
        ProbeSettings("", 1, (0, 1), vote_threshold=0.0)


def test_a_plan_counts_the_base(taught: tuple[ProbeRewardModel, ProbeReport], start: Path, tmp_path: Path) -> None:
    taught[0].save(tmp_path)
    recipe = small_run.recipe(tmp_path, model={"path": str(start)}, critic={"model": str(tmp_path), "kind": "probe"})
    update = Planner(recipe, device_named("h100"), prompt_tokens=4).plan().phases["update"]
    assert update["reward model"] == update["policy"]


def test_it_is_not_refreshed(taught: tuple[ProbeRewardModel, ProbeReport], tmp_path: Path) -> None:
    refresh = {"steps": [1], "annotator": "a:b"}
    with pytest.raises(ConfigError, match="a ProbeRewardModel cannot be trained"):
        Refresher(small_run.recipe(tmp_path, refresh=refresh), taught[0], CRITIC)


def test_it_trains_and_judges_on_an_accelerator(start: Path, tmp_path: Path) -> None:
    write_annotations(tmp_path / "annotations.jsonl", annotations(20, 0))
    prompts = [json.dumps({"prompt": example.prompt}) for example in small_run.EXAMPLES[:8]]
    (tmp_path / "prompts.jsonl").write_text("\n".join(prompts))
    with pretended_device():
        assert main([*command(start, tmp_path), "--rule", "words", "--out", str(tmp_path / "probe")]) == 0
        recipe = small_run.recipe(
            tmp_path / "run",
            model={"path": str(start), "value": "none"},
            data={"train": str(tmp_path / "prompts.jsonl")},
            critic={"kind": "probe", "model": str(tmp_path / "probe"), "max_failure_rate": 1.0},
            run={"steps": 1},
        )
        run_recipe(recipe)
    assert len(small_run.untimed(tmp_path / "run" / "metrics.jsonl")) == 1


def test_a_policy_learns_from_it(taught: tuple[ProbeRewardModel, ProbeReport], tmp_path: Path) -> None:
    """Its words are those of the critic that it learned from: colours become more, numbers fewer."""
    small_run.trainer(tmp_path, taught[0], run={"steps": 12, "out": str(tmp_path)}).train()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    rewards = [row["reward/per_response"] for row in rows]
    assert sum(rewards[-3:]) > sum(rewards[:3]) + 3


# The command.


def command(base: Path, folder: Path) -> list[str]:
    """Return the command that trains a probe on the annotations of a folder."""
    return ["reward-baseline", "probe", str(folder / "annotations.jsonl"), "--model", str(base)]


def test_the_command_trains_a_probe_and_evaluate_critic_measures_it(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_annotations(tmp_path / "annotations.jsonl", annotations(60, 0))
    write_annotations(tmp_path / "test.jsonl", annotations(10, 5))
    out = tmp_path / "probe"
    assert main([*command(start, tmp_path), "--rule", "words", "--out", str(out)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "responses with words " in said
    assert "nats per word in cross-validation" in said
    assert f"--set critic.model={out} --set critic.kind=probe" in said
    report = json.loads((out / "report.json").read_bytes())
    assert (report["learned_from"], sum(report["held_out"].values())) == (54, 36)
    cost = json.loads((out / "costs.json").read_bytes())
    assert cost["phase"] == "reward"
    assert cost["prompt_tokens"] == report["tokens"] > 0
    assert ProbeRewardModel.load(out).settings.unit == "words"
    assert main([*command(start, tmp_path), "--out", str(tmp_path / "usual")]) == 0
    assert ProbeRewardModel.load(tmp_path / "usual").settings.unit == "sentences"
    measure = ["evaluate", "critic", str(tmp_path / "test.jsonl"), "--model", str(out), "--no-words"]
    measure += ["--set", "critic.kind=probe"]
    assert main([*measure, "--out", str(tmp_path / "e")]) == 0
    found = json.loads((tmp_path / "e" / "evaluation.json").read_bytes())
    assert found["metrics"]["f1/negative"]["value"] > 0.9
    capsys.readouterr()
    half = {"prompt": "cat", "response": "red \ud83d", "critique": {"feedback": "", "spans": []}}
    (tmp_path / "half.jsonl").write_text(json.dumps(half))
    measure[2] = str(tmp_path / "half.jsonl")
    assert main([*measure, "--out", str(tmp_path / "half")]) == 2
    assert "\"response\" holds '\\ud83d', half of a surrogate pair" in " ".join(capsys.readouterr().err.split())


def test_an_interrupted_training_begins_again(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_annotations(tmp_path / "annotations.jsonl", annotations(20, 0))
    asked = [*command(start, tmp_path), "--rule", "words", "--out"]

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(probe_training, "_choose", killed)
        assert main([*asked, str(tmp_path / "stopped")]) == 130
    assert main([*asked, str(tmp_path / "stopped")]) == 2
    assert "Go on with it by --resume" in " ".join(capsys.readouterr().err.split())
    assert main([*asked, str(tmp_path / "stopped"), "--resume"]) == 0
    assert main([*asked, str(tmp_path / "calm")]) == 0
    stopped, calm = ((tmp_path / name / "probe.safetensors").read_bytes() for name in ("stopped", "calm"))
    assert stopped == calm


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--steps", "10"], "--steps has no effect on a probe; leave it out"),
        (["--spans-are-steps"], "--spans-are-steps has no effect on a probe"),
        (["--out", "{taken}"], "exists; choose another --out"),
    ],
)
def test_options_without_effect_are_refused(
    more: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*command(Path("m"), tmp_path), "--out", str(tmp_path / "o"), *more]
    assert main([one.format(taken=tmp_path) for one in asked]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_process_reward_model_has_no_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["reward-baseline", "process", "a.jsonl", "--model", "m", "--rule", "words", "--out", str(tmp_path / "o")]
    assert main(asked) == 2
    assert "--rule words is not a unit of process: lines, sentences" in " ".join(capsys.readouterr().err.split())


def test_the_base_reads_on_the_accelerator(tokenizer: Any, start: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices: set[str] = set()

    def noted(model: Any, rows: Any, chosen: Any, layers: Any, rows_at_once: int) -> Any:
        devices.add(model.device.type)
        return [(row, torch.randn(len(rows[row].tokens), len(layers), 32)) for row in chosen]

    monkeypatch.setattr(probe, "states_of", noted)
    monkeypatch.setattr(probe_training, "best_device", lambda: torch.device("meta"))
    train_probe(start, tokenizer, annotations(8, 0), unit="words")
    assert devices == {"meta"}


def test_a_critic_is_evaluated_on_the_accelerator(
    taught: tuple[ProbeRewardModel, ProbeReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught[0].save(tmp_path / "probe")
    write_annotations(tmp_path / "test.jsonl", annotations(4, 5))
    devices: set[str] = set()

    def noted(self: ProbeRewardModel, _: Any, responses: list[str]) -> list[Critique]:
        devices.add(self.model.device.type)
        return [Critique("")] * len(responses)

    monkeypatch.setattr(ProbeRewardModel, "__call__", noted)
    monkeypatch.setattr("text2grad.models.best_device", lambda: torch.device("meta"))
    measure = ["evaluate", "critic", str(tmp_path / "test.jsonl"), "--model", str(tmp_path / "probe"), "--no-words"]
    assert main([*measure, "--set", "critic.kind=probe", "--out", str(tmp_path / "e")]) == 0
    assert devices == {"meta"}


def test_a_response_that_several_people_marked_is_read_once(
    tokenizer: Any, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def counted(model: Any, rows: Any, chosen: Any, *more: Any) -> Any:
        read.extend(len(rows[row].ids) for row in chosen)
        return states_of(model, rows, chosen, *more)

    monkeypatch.setattr(probe, "states_of", counted)
    given = annotations(10, 0)
    _, report = train_probe(start, tokenizer, [*given, *given], unit="words")
    assert report.learned_from == 20
    assert len(read) == 10
    assert report.tokens == sum(read)
