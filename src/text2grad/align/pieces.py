"""What each id of a tokenizer adds to a decoded text.

In: a tokenizer and ids. Out: one `Piece` per id: the UTF-8 bytes it adds, and how many characters begin in
them. Nothing here knows a tokenizer by name: a `PieceTable` asks the tokenizer's own decoder, by decoding each
token between two letters, and remembers the answer. Three things a decoder may do are told apart by trying
them: spelling bytes in GPT-2's alphabet (byte-level BPE), spelling them as `<0xE2>` (SentencePiece's byte
fallback), and writing the first token otherwise than the rest (the leading space of SentencePiece and
WordPiece).
"""

import re
from typing import Any, NamedTuple, Protocol

from text2grad.errors import AlignmentError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_ANCHOR = "a"  # an ordinary letter to decode tokens beside


class Tokenizer(Protocol):
    """What is needed of a tokenizer: every `transformers` tokenizer has it."""

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of the special tokens."""

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        """Added tokens by id."""

    def decode(self, token_ids: Any, skip_special_tokens: bool = False) -> Any:
        """Turn ids into text."""

    def convert_ids_to_tokens(self, ids: Any) -> Any:
        """Turn ids into the vocabulary's spelling of them."""

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Turn the vocabulary's spelling into text."""


class Piece(NamedTuple):
    """What one id adds to a text.

    Attributes:
        data: its UTF-8 bytes.
        characters: how many characters begin in them.
        tail: 1 if the first byte goes on with a character begun before, else 0.
    """

    data: bytes
    characters: int
    tail: int


HIDDEN = Piece(b"", 0, 0)  # of an id that decoding skips


class PieceTable:
    """What the ids of one tokenizer add to a text, learned as they are met.

    Attributes:
        shown: the piece of an id that follows others.
        skipped: the same, and `HIDDEN` for the ids that `skip_special_tokens` hides.
        first: the piece of an id that begins the text, for decoders where that can differ.
        tails: ids whose piece has a tail.
        raw: ids that stand for one byte (byte fallback).
        byte_level: True when the vocabulary spells bytes in GPT-2's alphabet.
        byte_fallback: True when the vocabulary spells bytes as `<0xE2>`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Find out how this tokenizer joins tokens."""
        join = tokenizer.convert_tokens_to_string
        self.shown: dict[int, Piece] = {}
        self.skipped: dict[int, Piece] = {}
        self.first: dict[int, Piece] = {}
        self.tails: set[int] = set()
        self.raw: set[int] = set()
        self.byte_level = join([_ANCHOR, "âĤ", "¬Ġ"]).endswith("€ ")
        self.byte_fallback = join([_ANCHOR, "<0xE2>", "<0x82>", "<0xAC>"]).endswith("€")
        self._anchor_width = len(join([_ANCHOR, _ANCHOR])) - len(_ANCHOR)  # of an anchor behind another token

    def pieces(self, tokenizer: Tokenizer, ids: list[int], *, skip_special: bool) -> list[Piece]:
        """Return the piece of each id where others stand before it, learning the ids not met before.

        Raises:
            AlignmentError: if an id is not in the vocabulary.
        """
        known = self.skipped if skip_special else self.shown
        try:
            return [known[i] for i in ids]
        except KeyError:
            self._learn(tokenizer, set(ids) - known.keys())
            return [known[i] for i in ids]

    def _learn(self, tokenizer: Tokenizer, ids: set[int]) -> None:
        """Learn what these ids add to a text."""
        candidates = ids & {*tokenizer.added_tokens_decoder, *tokenizer.all_special_ids}
        for i in sorted(ids):
            piece = _piece(self._bytes(tokenizer, i, _spelling(tokenizer, i)))
            special = i in candidates and tokenizer.decode([i, i], skip_special_tokens=True) == ""
            self.shown[i], self.skipped[i] = piece, HIDDEN if special else piece
            if piece.tail:
                self.tails.add(i)

    def _bytes(self, tokenizer: Tokenizer, i: int, token: str) -> bytes:
        """Return the bytes of one token; note on the way if it is a byte token or begins a text differently."""
        if self.byte_level:
            known = all(character in _BYTE_OF for character in token)
            return bytes(map(_BYTE_OF.__getitem__, token)) if known else _utf8(token)
        byte = _BYTE_TOKEN.fullmatch(token) if self.byte_fallback else None
        if byte:
            self.raw.add(i)
            return bytes([int(byte[1], 16)])
        join, width = tokenizer.convert_tokens_to_string, self._anchor_width
        self.first[i] = _piece(_utf8(join([token, _ANCHOR])[:-width]))
        return _utf8(join([_ANCHOR, token, _ANCHOR])[len(_ANCHOR) : -width])


def begins_character(byte: int) -> bool:
    """Tell whether a byte of UTF-8 begins a character."""
    return byte & 0xC0 != 0x80


def _piece(data: bytes) -> Piece:
    """Count the characters of a piece."""
    tail = data != b"" and not begins_character(data[0])
    return Piece(data, sum(map(begins_character, data)), int(tail))


def _byte_alphabet() -> dict[str, int]:
    """Return the byte that each letter of GPT-2's alphabet stands for."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(byte): byte for byte in printable} | {chr(256 + k): byte for k, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _spelling(tokenizer: Tokenizer, i: int) -> str:
    """Return the vocabulary's spelling of an id, or refuse an id that has none."""
    try:
        token = tokenizer.convert_ids_to_tokens(i)
    except (OverflowError, IndexError, KeyError):
        token = None
    if token is None:
        raise AlignmentError(
            f"id {i} is not in the tokenizer's vocabulary. Sample from the tokenizer's ids only, or give the "
            "tokenizer that belongs to this policy"
        )
    return str(token)


def _utf8(text: str) -> bytes:
    """Encode a text, lone surrogates as a question mark: the check against the decoded text sees them."""
    return text.encode("utf-8", "replace")
