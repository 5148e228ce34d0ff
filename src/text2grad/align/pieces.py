"""Ids of a tokenizer → the bytes that each id adds to a decoded text.

In: a tokenizer and ids. Out: the UTF-8 bytes of each id. No tokenizer is known by name: a `PieceTable` decodes each
token between two letters and caches the result. Test decodings detect three properties of a decoder: bytes in GPT-2's
alphabet (byte-level BPE), bytes as `<0xE2>` (byte fallback of SentencePiece), and another form of the first token (the
leading space of SentencePiece and WordPiece).
"""

import re
from typing import Any

from text2grad.errors import AlignmentError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_ANCHOR = "a"  # a letter that is decoded beside tokens
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = sorted(set(range(256)) - set(_PRINTABLE))
_BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + k): byte for k, byte in enumerate(_OTHERS)}
"""Letter of GPT-2's alphabet → its byte."""


Piece = bytes | None
"""The bytes that one id adds to a text; None of an id that decoding skips."""


class PieceTable:
    """The pieces of one tokenizer, computed on first use.

    Attributes:
        shown: the piece of an id that is not the first.
        skipped: likewise, with None for the ids that `skip_special_tokens` removes.
        first: the piece of an id at the beginning of a text, for decoders where it can differ.
        raw: ids of single bytes (byte fallback).
        byte_level: True if the vocabulary spells bytes in GPT-2's alphabet.
        byte_fallback: True if the vocabulary spells bytes as `<0xE2>`.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Detect how the tokenizer joins tokens."""
        join = tokenizer.convert_tokens_to_string
        self.shown: dict[int, bytes] = {}
        self.skipped: dict[int, Piece] = {}
        self.first: dict[int, bytes] = {}
        self.raw: set[int] = set()
        self.byte_level = join([_ANCHOR, "âĤ", "¬Ġ"]).endswith("€ ")
        self.byte_fallback = join([_ANCHOR, "<0xE2>", "<0x82>", "<0xAC>"]).endswith("€")
        self._anchor_width = len(join([_ANCHOR, _ANCHOR])) - len(_ANCHOR)  # width of an anchor after another token

    @classmethod
    def of(cls, tokenizer: Any) -> "PieceTable | None":
        """Return the pieces of a tokenizer; None if it joins no tokens but those that its own texts become.

        Such are tokenizers of bytes (ByT5, Perceiver), with errors of their own, and those of mistral-common.
        """
        try:
            return cls(tokenizer)
        except (AttributeError, LookupError, NotImplementedError, TypeError, ValueError):
            return None

    def pieces(self, tokenizer: Any, ids: list[int], *, skip_special: bool) -> list[Piece]:
        """Return the piece of each id that is not the first in its text; compute new ones.

        Raises:
            AlignmentError: if an id is not in the vocabulary.
        """
        known = self.skipped if skip_special else self.shown
        try:
            return [known[i] for i in ids]
        except KeyError:
            self._add(tokenizer, set(ids) - known.keys())
            return [known[i] for i in ids]

    def _add(self, tokenizer: Any, ids: set[int]) -> None:
        """Compute and cache the pieces of ids."""
        skipped = skipped_ids(tokenizer, ids)
        for i in sorted(ids):
            self.shown[i] = self._bytes(tokenizer, i, str(spelling(tokenizer, i)))
            self.skipped[i] = None if i in skipped else self.shown[i]

    def _bytes(self, tokenizer: Any, i: int, token: str) -> bytes:
        """Return the bytes of one token; record a byte token in `raw`, and its piece at a beginning in `first`."""
        if self.byte_level:
            known = all(character in _BYTE_OF for character in token)
            return bytes(map(_BYTE_OF.__getitem__, token)) if known else _utf8(token)
        byte = _BYTE_TOKEN.fullmatch(token) if self.byte_fallback else None
        if byte:
            self.raw.add(i)
            return bytes([int(byte[1], 16)])
        join, width = tokenizer.convert_tokens_to_string, self._anchor_width
        self.first[i] = _utf8(join([token, _ANCHOR])[:-width])
        return _utf8(join([_ANCHOR, token, _ANCHOR])[len(_ANCHOR) : -width])


def skipped_ids(tokenizer: Any, ids: set[int]) -> set[int]:
    """Return the ids that `skip_special_tokens` removes.

    Raises:
        AlignmentError: if an id is not in the vocabulary.
    """
    for i in sorted(ids):
        if spelling(tokenizer, i) is None:
            raise AlignmentError(
                f"id {i} is not in the tokenizer's vocabulary. Sample from the tokenizer's ids only, or give the "
                "tokenizer that belongs to this policy"
            )
    candidates = ids & {*added_tokens(tokenizer), *tokenizer.all_special_ids}
    return {i for i in candidates if tokenizer.decode([i, i], skip_special_tokens=True) == ""}


def added_tokens(tokenizer: Any) -> dict[int, Any]:
    """Return the added tokens by id; none where a tokenizer does not tell them (mistral-common)."""
    added = getattr(tokenizer, "added_tokens_decoder", None)
    return added if isinstance(added, dict) else {}


def spelling(tokenizer: Any, i: int) -> str | None:
    """Return the vocabulary entry of an id, or None: ids may have gaps, and an embedding more rows than ids.

    Tokenizers in Python alone spell ids that they cannot decode.
    """
    try:
        token = tokenizer.convert_ids_to_tokens(i)
        if not getattr(tokenizer, "is_fast", False):
            tokenizer.decode([i])
    except (OverflowError, LookupError, TypeError, ValueError):
        return None
    return None if token is None or i < 0 else str(token)


def _utf8(text: str) -> bytes:
    """Encode a text with lone surrogates as question marks; the comparison with the decoded text detects them."""
    return text.encode("utf-8", "replace")
