"""Where tokens lie: ids of any kind, tokenizers that change, and decoders that no table describes."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import ByT5Tokenizer, PerceiverTokenizer, PreTrainedTokenizerFast
from transformers.tokenization_python import PreTrainedTokenizer

from text2grad.align.delta import pseudo_rewards
from text2grad.align.offsets import _TABLES, token_offsets
from text2grad.align.pieces import PieceTable
from text2grad.align.rollouts import policy_offsets
from text2grad.align.texts import encode, text_delta, text_offsets
from text2grad.errors import AlignmentError
from text2grad.types import Critique, Span
from tokenizers_made_here import CORPUS, FAMILIES, made, of_tokens, parameters, words


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


@pytest.mark.parametrize("family", parameters(FAMILIES))
@pytest.mark.parametrize("text", CORPUS[:5])
def test_a_response_of_a_known_kind_is_decoded_only_once(
    family: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = made(family)
    ids = [tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    expected = token_offsets(tokenizer, ids)  # learns the ids
    decoded = []
    decode = tokenizer.decode
    monkeypatch.setattr(tokenizer, "decode", lambda *args, **more: decoded.append(args) or decode(*args, **more))
    assert token_offsets(tokenizer, ids) == expected
    assert len(decoded) == 1


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


SHARED = [(0, 1), (0, 1), *((k, k + 1) for k in range(1, 9))]  # two bytes of "é", then one letter each
INVALID = [(0, 0), *((k, k + 1) for k in range(8))]  # ByT5 drops the first byte alone


@pytest.mark.parametrize(
    ("tokenizer", "cut", "expected"),
    [
        (ByT5Tokenizer(), None, SHARED),
        (PerceiverTokenizer(), None, SHARED),
        (ByT5Tokenizer(), 1, INVALID),
        (PerceiverTokenizer(), 1, [(k, k + 1) for k in range(9)]),  # Perceiver decodes it to U+FFFD
    ],
)
def test_tokens_of_single_bytes_share_a_character(tokenizer: Any, cut: Any, expected: list[tuple[int, int]]) -> None:
    # ByT5 and Perceiver of transformers 5.23, which raise TypeErrors for tokens that are no bytes
    ids = tokenizer("é in Lyon", add_special_tokens=False)["input_ids"]
    ids = ids if cut is None else [ids[0], *ids[2:]]
    assert token_offsets(tokenizer, ids) == expected
    assert token_offsets(tokenizer, [*ids, tokenizer.eos_token_id]) == [*expected, (expected[-1][1],) * 2]
    delta = pseudo_rewards(tokenizer, [*ids, tokenizer.eos_token_id], [Span(0, expected[-1][1], "positive")])
    assert delta == [float(start < end) for start, end in expected] + [0.0]


@pytest.mark.parametrize("text", ["é😀 " * 20, "naïve 我喜欢 " * 12, "\ufffd é " * 15])
def test_long_responses_of_bytes_are_read_in_halves(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = ByT5Tokenizer()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    at = [(k, k + 1) for k, character in enumerate(text) for _ in character.encode()]
    read, decode = [0], tokenizer.decode
    monkeypatch.setattr(tokenizer, "decode", lambda ids, **how: read.append(len(ids)) or decode(ids, **how))
    assert token_offsets(tokenizer, ids) == at
    assert sum(read) < len(ids) ** 2 / 3  # by prefixes alone it is more than T² / 2


class Mistral:
    """What `MistralCommonBackend` of transformers 5.23 with mistral-common 1.13.1 tells of its tokens."""

    def __init__(self) -> None:
        self.own, self.all_special_ids = made("gpt2"), made("gpt2").all_special_ids

    def __call__(self, text: str, *, split_special_tokens: bool = False, **how: Any) -> Any:
        if split_special_tokens:
            raise ValueError("`MistralCommonBackend` does not support `split_special_tokens`.")
        return self.own(text, split_special_tokens=True, **how)

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        if not set(ids) <= set(range(len(self.own))):
            raise KeyError(f"Invalid token for decoding: {max(ids)}")
        return str(self.own.decode(ids, skip_special_tokens=skip_special_tokens))

    def convert_ids_to_tokens(self, ids: int) -> str:
        return self.decode([ids])

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        raise NotImplementedError

    def added_tokens_decoder(self) -> Any:
        raise NotImplementedError("`MistralCommonBackend` does not implement `added_tokens_decoder`.")


def test_a_tokenizer_that_decodes_and_tells_nothing_else_is_followed() -> None:
    tokenizer: Any = Mistral()
    text = "The fair is in Lyon on Friday </s>, 😀 on 我喜欢北京."
    ids = [*encode(tokenizer, text), tokenizer.own.eos_token_id]
    assert token_offsets(tokenizer, ids) == token_offsets(tokenizer.own, ids)
    assert text_offsets(tokenizer, text)[1] == token_offsets(tokenizer.own, ids)[:-1]
    delta = text_delta(tokenizer, text, Critique("", (Span(12, 19, "positive"), Span(20, 29, "negative"))))
    assert delta == text_delta(tokenizer.own, text, Critique("", (Span(12, 19, "positive"), Span(20, 29, "negative"))))
    with pytest.raises(AlignmentError, match="id 99999 is not in the tokenizer's vocabulary"):
        token_offsets(tokenizer, [1, 99_999])
    assert policy_offsets(tokenizer, [ids[0], 99_999, ids[1]])[1] == (3, 3)


def test_the_tokens_of_mistral_common_lie_where_they_should() -> None:
    mistral_common = pytest.importorskip("mistral_common")  # 1.13.1
    from transformers.tokenization_mistral_common import MistralCommonBackend

    tokenizer = MistralCommonBackend(f"{Path(mistral_common.__file__).parent}/data/tekken_240911.json")
    text = "The fair is in Lyon on Friday 😀."
    ids = encode(tokenizer, text)  # The| fair| is| in| Lyon| on| Friday| \xf0|\x9f\x98|\x80|.
    delta = text_delta(tokenizer, text, Critique("", (Span(12, 19, "positive"), Span(20, 29, "negative"))))
    assert delta == [0, 0, 0, 1, 1, -1, -1, 0, 0, 0, 0]
    assert token_offsets(tokenizer, ids)[6:] == [(22, 29), (29, 31), (30, 31), (30, 31), (31, 32)]


class ShoutingTokenizer(PreTrainedTokenizerFast):
    """A tokenizer whose text is not what its decoder says, and another where special tokens are shown."""

    def _decode(self, *args: Any, **settings: Any) -> str:
        text = super()._decode(*args, **settings).upper().replace("X", "")
        return text if settings.get("skip_special_tokens") else text.replace("S", "$")


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


def test_a_table_that_another_thread_renews_meanwhile_changes_no_range(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = made("gpt2")
    ids = tokenizer("naïve 😀 words", add_special_tokens=False)["input_ids"]
    expected, pieces = token_offsets(tokenizer, ids), PieceTable.pieces

    def renewed(table: PieceTable, *given: Any, **how: Any) -> Any:
        read = pieces(table, *given, **how)
        _TABLES[tokenizer] = PieceTable(tokenizer)
        return read

    monkeypatch.setattr(PieceTable, "pieces", renewed)
    assert token_offsets(tokenizer, ids) == expected
