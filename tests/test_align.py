"""Characters to tokens: conformance cases derived by hand, settings, and every error word for word."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast
from transformers.tokenization_python import PreTrainedTokenizer

from text2grad.align import pseudo_rewards, span_tokens
from text2grad.errors import AlignmentError, ConfigError
from text2grad.offsets import token_offsets
from text2grad.types import Span
from text2grad.weighting import linear_decay, token_importance, uniform
from tokenizers_made_here import made, of_tokens

CASES = json.loads((Path(__file__).parent / "data" / "alignment.json").read_text())["cases"]
SETTINGS = ("mode", "weighting", "overlap", "span_mass")


def words(*tokens: str, special: str | None = None) -> tuple[PreTrainedTokenizerFast, list[int]]:
    """Return a byte-level tokenizer of these tokens and their ids."""
    return of_tokens("byte_level", [*tokens, *([{"special": special}] if special else [])])


@pytest.fixture(params=CASES, ids=lambda case: case["name"].replace(" ", "_"))
def case(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


def spans_of(case: dict[str, Any]) -> list[Span]:
    return [Span(*span) for span in case["spans"]]


def test_there_are_conformance_cases_for_every_family_and_setting() -> None:
    assert len(CASES) >= 80
    assert {case["family"] for case in CASES} == {"byte_level", "llama", "gemma", "metaspace", "wordpiece"}
    assert {setting for case in CASES for setting in SETTINGS if setting in case} == set(SETTINGS)


def test_a_case_decodes_to_its_text_and_its_tokens_lie_where_they_should(case: dict[str, Any]) -> None:
    tokenizer, ids = of_tokens(case["family"], case["tokens"])
    assert tokenizer.decode(ids, skip_special_tokens=True) == case["text"]
    assert token_offsets(tokenizer, ids) == [tuple(pair) for pair in case["ranges"]]


def test_a_case_gives_its_pseudo_rewards(case: dict[str, Any]) -> None:
    tokenizer, ids = of_tokens(case["family"], case["tokens"])
    settings = {name: case[name] for name in SETTINGS if name in case}
    delta = pseudo_rewards(tokenizer, ids, spans_of(case), **settings)
    assert delta == pytest.approx(case["delta"], abs=1e-9)


def test_span_tokens_tells_the_tokens_of_each_span_in_their_order() -> None:
    offsets = [(0, 2), (2, 7), (7, 7), (7, 8), (8, 12)]
    spans = [Span(9, 12, "positive"), Span(3, 8, "negative"), Span(4, 4, "negative")]
    assert span_tokens(offsets, spans) == [[4], [1, 3], []]
    assert span_tokens(offsets, spans, mode="contract") == [[], [3], []]
    assert span_tokens(offsets, [Span(2, 8, "negative")], mode="strict") == [[1, 3]]


def test_special_tokens_have_text_when_they_are_not_skipped() -> None:
    tokenizer, ids = words("a", special="<end>")
    assert token_offsets(tokenizer, ids) == [(0, 1), (1, 1)]
    assert token_offsets(tokenizer, ids, skip_special_tokens=False) == [(0, 1), (1, 6)]


@pytest.mark.parametrize("convert", [list, tuple, np.array, torch.tensor, lambda ids: map(np.int64, ids)])
def test_ids_may_be_any_flat_sequence_of_integers(convert: Any) -> None:
    tokenizer, ids = words("one", " two")
    assert token_offsets(tokenizer, convert(ids)) == [(0, 3), (3, 7)]
    assert pseudo_rewards(tokenizer, convert(ids), [Span(0, 3, "negative")]) == [-1.0, 0.0]


@pytest.mark.parametrize(
    ("ids", "shown"),
    [
        ([[1, 2]], "[[1, 2]]"),
        (torch.tensor([[1, 2]]), "tensor([[1, 2]])"),
        ([1.0, 2.0], "[1.0, 2.0]"),
        (7, "7"),
        ("a response", "'a response'"),
        ([None] * 50, "[None, None, None, None, None, None, None, None, None, No..."),
    ],
)
def test_ids_that_are_no_flat_sequence_of_integers_are_refused(ids: Any, shown: str) -> None:
    tokenizer, _ = words("one")
    with pytest.raises(AlignmentError) as caught:
        token_offsets(tokenizer, ids)
    assert str(caught.value) == (
        f"response ids must be one flat sequence of integers, got {shown}. Align one response at a time"
    )


@pytest.mark.parametrize("outside", [999, -1, 2**70])
@pytest.mark.parametrize("maker", [lambda: words("one")[0], lambda: LetterTokenizer()])
def test_an_id_outside_the_vocabulary_is_refused(maker: Any, outside: int) -> None:
    with pytest.raises(AlignmentError) as caught:
        token_offsets(maker(), [1, outside])
    assert str(caught.value) == (
        f"id {outside} is not in the tokenizer's vocabulary. Sample from the tokenizer's ids only, or give the "
        "tokenizer that belongs to this policy"
    )


def test_a_span_beyond_the_response_is_refused() -> None:
    tokenizer, ids = words("one", " two", special="<end>")
    with pytest.raises(AlignmentError) as caught:
        pseudo_rewards(tokenizer, ids, [Span(4, 8, "positive")])
    assert str(caught.value) == (
        "Span(start=4, end=8, label='positive') reaches beyond its response, which has 7 characters. Spans count "
        "characters of tokenizer.decode(response_ids, skip_special_tokens=True), neither stripped nor encoded "
        "again"
    )


def test_a_span_of_an_empty_response_is_refused() -> None:
    tokenizer, _ = words("one")
    with pytest.raises(AlignmentError, match="which has 0 characters"):
        pseudo_rewards(tokenizer, [], [Span(0, 1, "positive")])


def test_offsets_of_another_response_are_refused() -> None:
    tokenizer, ids = words("one", " two")
    with pytest.raises(AlignmentError) as caught:
        pseudo_rewards(tokenizer, ids, [], offsets=[(0, 3)])
    assert str(caught.value) == (
        "offsets has 1 ranges for 2 response ids. Give what token_offsets(tokenizer, response_ids) returns, or "
        "leave offsets out"
    )


def test_given_offsets_are_used() -> None:
    tokenizer, ids = words("one", " two")
    assert pseudo_rewards(tokenizer, ids, [Span(0, 1, "negative")], offsets=[(0, 0), (0, 7)]) == [0.0, -1.0]


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("mode", "expnd", '\'expnd\'. Did you mean "expand"? Known values: strict, contract, expand'),
        ("mode", "all", "'all'. Known values: strict, contract, expand"),
        ("weighting", "linear", "'linear'. Did you mean \"linear_decay\"? Known values: uniform, linear_decay, "
         "token_importance"),
        ("overlap", "cancle", '\'cancle\'. Did you mean "cancel"? Known values: cancel, negative_wins, last_wins'),
        ("span_mass", None, "None. Known values: token, span, response"),
    ],
)  # fmt: skip
def test_a_setting_without_such_a_value_names_the_nearest_and_all(setting: str, value: Any, told: str) -> None:
    tokenizer, ids = words("one")
    with pytest.raises(ConfigError) as caught:
        pseudo_rewards(tokenizer, ids, [], **{setting: value})
    assert str(caught.value) == f"{setting} has no value {told}"


def test_linear_decay_follows_the_paper() -> None:
    # appendix I.1: r_i = 1 − (i − 1)·0.9/(n − 1), here n = 5
    assert linear_decay(list("abcde")) == pytest.approx([1.0, 0.775, 0.55, 0.325, 0.1])
    assert linear_decay(["a"]) == [1.0]
    assert linear_decay([]) == []
    assert uniform(["a", "b"]) == [1.0, 1.0]


def test_a_weighting_of_your_own_sees_each_span_with_its_spaces_and_weighs_it() -> None:
    tokenizer, ids = of_tokens("byte_level", ["a", " b", {"bytes": "f09f"}, {"bytes": "9880"}, " c"])
    seen = []

    def weigh(texts: list[str]) -> list[float]:
        seen.append(texts)
        return [0.5, 0.25, 0.0][: len(texts)]

    spans = [Span(2, 4, "negative"), Span(0, 1, "positive"), Span(6, 6, "positive")]
    assert pseudo_rewards(tokenizer, ids, spans, weighting=weigh) == [0.5, -0.5, -0.25, 0.0, 0.0]
    assert seen == [[" b", "😀", ""], ["a"]]


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ([1.0], "the weighting gave 1 weights for 2 tokens; give one per token"),
        ([1.0, 1.5], "the weighting gave 1.5 for the token ' two'; weights lie in [0, 1]"),
        ([-0.1, 1.0], "the weighting gave -0.1 for the token 'one'; weights lie in [0, 1]"),
        ([float("nan"), 1.0], "the weighting gave nan for the token 'one'; weights lie in [0, 1]"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights: list[float], told: str) -> None:
    tokenizer, ids = words("one", " two")
    with pytest.raises(ConfigError) as caught:
        pseudo_rewards(tokenizer, ids, [Span(0, 7, "positive")], weighting=lambda texts: weights)
    assert str(caught.value) == told


def test_a_span_whose_weights_are_all_zero_gives_zero_whatever_its_mass() -> None:
    tokenizer, ids = words("one", " two")
    delta = pseudo_rewards(tokenizer, ids, [Span(0, 7, "negative")], weighting=lambda texts: [0, 0], span_mass="span")
    assert [str(value) for value in delta] == ["0.0", "0.0"]  # and never −0.0


def test_a_token_that_weighs_nothing_still_lies_in_its_span() -> None:
    tokenizer, ids = words("a", " b")
    spans = [Span(0, 1, "positive"), Span(0, 3, "negative")]
    by_length = {1: [1.0], 2: [0.0, 1.0]}
    delta = pseudo_rewards(tokenizer, ids, spans, weighting=lambda texts: by_length[len(texts)])
    assert delta == [0.0, -1.0]


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
    'weighting "token_importance" needs nltk and its English tagger: `pip install nltk` and `python -m '
    "nltk.downloader averaged_perceptron_tagger_eng`, or a tagger of your own: weighting=token_importance(tagger)"
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


def test_a_token_added_after_the_first_use_is_seen() -> None:
    tokenizer, ids = words("one", " two")
    assert token_offsets(tokenizer, ids) == [(0, 3), (3, 7)]
    tokenizer.add_tokens([AddedToken("<new>", special=False)])
    new = tokenizer.convert_tokens_to_ids("<new>")
    assert token_offsets(tokenizer, [*ids, new]) == [(0, 3), (3, 7), (7, 12)]


def test_a_token_that_becomes_special_after_the_first_use_is_seen() -> None:
    tokenizer, ids = words("one", "<new>")
    assert token_offsets(tokenizer, ids) == [(0, 3), (3, 8)]
    tokenizer.add_tokens(["<new>"], special_tokens=True)
    assert token_offsets(tokenizer, ids) == [(0, 3), (3, 3)]


def test_a_tokenizer_that_changed_is_still_aligned_exactly() -> None:
    # Decoded prefixes, the last resort, would give both tokens of the emoji the letter too.
    tokenizer, ids = of_tokens("byte_level", [{"bytes": "f09f"}, {"bytes": "988062"}, "<new>"])
    assert token_offsets(tokenizer, ids) == [(0, 1), (0, 2), (2, 7)]
    tokenizer.add_tokens(["<new>"], special_tokens=True)
    assert token_offsets(tokenizer, ids) == [(0, 1), (0, 2), (2, 2)]
    assert token_offsets(tokenizer, ids, skip_special_tokens=False) == [(0, 1), (0, 2), (2, 7)]


def test_a_tokenizer_is_forgotten_with_its_last_user() -> None:
    from text2grad.offsets import _TABLES

    tokenizer, ids = words("one")
    before = len(_TABLES)
    token_offsets(tokenizer, ids)
    assert len(_TABLES) == before + 1
    del tokenizer
    assert len(_TABLES) == before


def test_text_cleaned_up_by_transformers_loses_its_spaces_in_the_ranges_too() -> None:
    tokens = ["i", "do", "n't", "'", "it", "'", "i", "'m"]
    tokenizer, ids = of_tokens("wordpiece", tokens)
    assert tokenizer.decode(ids) == "i don't ' it ' i'm"
    tokenizer.clean_up_tokenization_spaces = True
    text = tokenizer.decode(ids)
    assert text == "i don't'it'i'm"
    pieces = [text[start:end] for start, end in token_offsets(tokenizer, ids)]
    assert pieces == ["i", " do", "n't", "'", "it", "'", "i", "'m"]
    delta = pseudo_rewards(tokenizer, ids, [Span(8, 10, "positive"), Span(0, 7, "negative")])
    assert delta == [-1.0, -1.0, -1.0, 0.0, 1.0, 0.0, 0.0, 0.0]


class LetterTokenizer(PreTrainedTokenizer):
    """A tokenizer in Python alone: one id per letter, no decoder to ask."""

    vocab_files_names: dict[str, str] = {}  # noqa: RUF012 - as transformers declares it
    letters = "abc def"

    @property
    def vocab_size(self) -> int:
        return len(self.letters)

    def get_vocab(self) -> dict[str, int]:
        return {letter: i for i, letter in enumerate(self.letters)} | self.added_tokens_encoder

    def _convert_id_to_token(self, index: int) -> str:
        if index < 0:
            raise IndexError(index)
        return self.letters[index]

    def _convert_token_to_id(self, token: str) -> int:
        return self.letters.index(token)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens)


def test_a_tokenizer_without_a_rust_core_is_followed() -> None:
    tokenizer = LetterTokenizer(eos_token="<end>")
    end = tokenizer.eos_token_id
    assert tokenizer.decode([0, 3, 4, end], skip_special_tokens=True) == "a d"
    assert token_offsets(tokenizer, [0, 3, 4, end]) == [(0, 1), (1, 2), (2, 3), (3, 3)]
    assert pseudo_rewards(tokenizer, [0, 3, 4, end], [Span(2, 3, "negative")]) == [0.0, 0.0, -1.0, 0.0]


class ShoutingTokenizer(PreTrainedTokenizerFast):
    """A tokenizer whose text is not what its decoder says."""

    def _decode(self, *args: Any, **settings: Any) -> str:
        return super()._decode(*args, **settings).upper().replace("X", "")


def shouting(*tokens: str | dict[str, str]) -> tuple[ShoutingTokenizer, list[int]]:
    plain, ids = of_tokens("byte_level", list(tokens))
    return ShoutingTokenizer(tokenizer_object=plain.backend_tokenizer, unk_token="<unk>"), ids


def test_a_decoder_of_any_kind_is_followed_by_its_prefixes() -> None:
    tokenizer, ids = shouting("straße", " ex", "x", " b", {"special": "<end>"}, "c")
    assert tokenizer.decode(ids, skip_special_tokens=True) == "STRASSE E BC"
    assert token_offsets(tokenizer, ids) == [(0, 7), (7, 9), (9, 9), (9, 11), (11, 11), (11, 12)]
    assert token_offsets(tokenizer, ids, skip_special_tokens=False)[4:] == [(11, 16), (16, 17)]


class ErasingTokenizer(PreTrainedTokenizerFast):
    """A tokenizer with a token that takes back the character before it."""

    def _decode(self, *args: Any, **settings: Any) -> str:
        text = super()._decode(*args, **settings)
        while "<" in text:
            text = re.sub("(^|[^<])<", "", text)
        return text


def test_a_decoder_that_takes_characters_back_never_makes_ranges_run_backwards() -> None:
    plain, ids = words("a", "b", "<", "b", "c")
    tokenizer = ErasingTokenizer(tokenizer_object=plain.backend_tokenizer, unk_token="<unk>")
    assert tokenizer.decode(ids) == "abc"
    assert token_offsets(tokenizer, ids) == [(0, 1), (1, 2), (2, 2), (2, 2), (2, 3)]


class ClosingTokenizer(PreTrainedTokenizerFast):
    """A tokenizer whose text tells of a special token that it does not show."""

    def _decode(self, token_ids: Any, **settings: Any) -> str:
        text = super()._decode(token_ids, **settings).upper()
        return text + "." if text and self.eos_token_id in token_ids else text


def test_a_decoder_that_looks_at_special_tokens_is_followed_to_the_end_of_its_text() -> None:
    plain, ids = words("a", "b", special="<end>")
    tokenizer = ClosingTokenizer(tokenizer_object=plain.backend_tokenizer, unk_token="<unk>", eos_token="<end>")
    assert tokenizer.decode(ids, skip_special_tokens=True) == "AB."
    assert token_offsets(tokenizer, ids) == [(0, 1), (1, 3), (3, 3)]


def test_ids_that_only_make_sense_together_share_their_characters() -> None:
    tokenizer, ids = shouting("a", {"bytes": "f09f"}, {"bytes": "9880"}, "b")
    assert token_offsets(tokenizer, ids) == [(0, 1), (1, 2), (1, 2), (2, 3)]


def test_a_decoder_that_drops_repeated_tokens_is_followed() -> None:
    core = Tokenizer(models.WordLevel({"a": 0, "b": 1, "|": 2, "<pad>": 3}, unk_token="a"))
    core.decoder = decoders.CTC()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    ids = [0, 0, 1, 2, 1]
    assert tokenizer.decode(ids) == "ab b"
    assert token_offsets(tokenizer, ids) == [(0, 1), (1, 1), (1, 2), (2, 3), (3, 4)]


def test_a_decoder_that_ends_words_with_a_mark_is_followed() -> None:
    core = Tokenizer(models.WordLevel({"go": 0, "ing</w>": 1, "on</w>": 2}, unk_token="go"))
    core.decoder = decoders.BPEDecoder()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    assert tokenizer.decode([0, 1, 2]) == "going on"
    assert token_offsets(tokenizer, [0, 1, 2]) == [(0, 2), (2, 6), (6, 8)]


def test_without_a_decoder_tokens_are_words_behind_spaces() -> None:
    core = Tokenizer(models.WordLevel({"one": 0, "two": 1}, unk_token="one"))
    assert token_offsets(PreTrainedTokenizerFast(tokenizer_object=core), [0, 1]) == [(0, 3), (3, 7)]


def test_the_ids_are_never_encoded_again() -> None:
    tokenizer = made("gpt2")
    letters = [tokenizer.convert_tokens_to_ids(letter) for letter in "the dog".replace(" ", "Ġ")]
    assert tokenizer("the dog")["input_ids"] != letters
    delta = pseudo_rewards(tokenizer, letters, [Span(4, 7, "positive")])
    assert delta == [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0]


def test_aligning_loads_neither_torch_nor_transformers() -> None:
    check = "import sys, text2grad.align; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
