"""token_importance, with taggers made here, and by its name in recipes."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

import small_run
from evidence import register
from evidence.baselines.weightings import token_importance
from text2grad.align.delta import pseudo_rewards
from text2grad.errors import ConfigError
from text2grad.types import Span
from tokenizers_made_here import of_tokens, words

register()


def tag_by_list(found: list[str]) -> list[str]:
    """Tag words by a short list, in both conventions."""
    known = {"dogs": "NNS", "barked": "VERB", "it's": "PRP", "Rome": "PROPN", "café": "NOUN", "runs": "VBZ"}
    return [known.get(word, "X") for word in found]


def test_token_importance_pays_nouns_and_verbs_in_full() -> None:
    weigh = token_importance(tag_by_list)
    assert weigh(["The", " do", "gs", " loudly", " bark", "ed", "."]) == [0.2, 1.0, 1.0, 0.2, 1.0, 1.0, 0.2]
    assert weigh(["it", "'s", " Rome", " ", "!"]) == [0.2, 0.2, 1.0, 0.2, 0.2]
    assert weigh([" loudly runs"]) == [1.0]  # a piece of a verb is enough
    assert weigh(["(", "dogs", ")", " "]) == [0.2, 1.0, 0.2, 0.2]


def test_token_importance_gives_the_tagger_words_with_their_signs_and_apostrophes() -> None:
    seen: list[str] = []
    token_importance(lambda found: seen.extend(found) or ["X"] * len(found))(["दिल्ली में", " don't 'a’b’c'' d', 東京'x।"])
    assert seen == ["दिल्ली", "में", "don't", "'", "a’b’c", "'", "'", "d", "'", ",", "東京'x", "।"]


def test_token_importance_weighs_tokens_that_share_a_character_alike() -> None:
    tokenizer, ids = of_tokens("byte_level", ["a", " caf", {"bytes": "c3"}, {"bytes": "a9"}, " 😀"])
    weigh = token_importance(tag_by_list)
    delta = pseudo_rewards(tokenizer, ids, [Span(0, 8, "negative")], weighting=weigh)
    assert delta == [-0.2, -1.0, -1.0, -1.0, -0.2]


def test_a_tagger_that_loses_words_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        token_importance(lambda found: ["NN"])(["two", " words"])
    assert str(caught.value) == "the tagger gave 1 tags for 2 words; give one tag per word"


WAY_OUT = (
    'weighting "token_importance" needs nltk and its English tagger: `pip install nltk` and '
    "`python -m nltk.downloader averaged_perceptron_tagger_eng`, or a tagger of your own: "
    "weighting=token_importance(tagger)"
)


def test_token_importance_by_name_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nltk", None)  # as if it were not installed
    tokenizer, ids = words("one")
    with pytest.raises(ConfigError) as caught:
        pseudo_rewards(tokenizer, ids, [], weighting="token_importance")
    assert str(caught.value) == WAY_OUT


def test_token_importance_by_name_says_when_only_the_data_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = ModuleType("nltk")

    def pos_tag(found: list[str]) -> list[tuple[str, str]]:
        raise LookupError("Resource averaged_perceptron_tagger_eng not found")

    stand_in.pos_tag = pos_tag  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nltk", stand_in)
    with pytest.raises(ConfigError) as caught:
        token_importance()
    assert str(caught.value) == WAY_OUT


def test_token_importance_by_name_asks_nltk(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = ModuleType("nltk")
    stand_in.pos_tag = lambda found: list(zip(found, tag_by_list(found), strict=True))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nltk", stand_in)
    tokenizer, ids = words("The", " dogs")
    delta = pseudo_rewards(tokenizer, ids, [Span(0, 8, "positive")], weighting="token_importance")
    assert delta == [0.2, 1.0]


def test_a_weighting_without_its_tagger_is_refused_before_work_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nltk", None)  # as if it were not installed
    with pytest.raises(ConfigError, match="pip install nltk"):
        small_run.trainer(tmp_path / "run", reward={"weighting": "token_importance"})
    assert not (tmp_path / "run").exists()
