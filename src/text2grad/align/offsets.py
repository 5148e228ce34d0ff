"""Sampled ids → the character range of each token in the decoded response.

In: a tokenizer and the sampled ids [T]. Out: one half-open character range per id [T], in the text of
`tokenizer.decode(ids)`. The text is not encoded again: encoding it often gives other ids than the sampled ones.

Method: concatenate the bytes of each id (`pieces.py`), count characters at their first byte, and remove the spaces that
the decoder removed (the leading space of SentencePiece, the clean-up of WordPiece). If the result is not the decoded
text, or the tokenizer tells no bytes, prefixes of the ids are decoded: slower, valid for any decoder.

The ranges cover the text and their ends never decrease. Ids that share the bytes of one character all have its range.
An id that adds no text (a special token, a removed space) has an empty range at the end of the previous range.
"""

from itertools import accumulate, groupby, pairwise
from operator import index
from typing import Any
from weakref import WeakKeyDictionary

from text2grad.align.pieces import Piece, PieceTable
from text2grad.align.prefixes import decoded_ranges
from text2grad.errors import AlignmentError

Range = tuple[int, int]


def token_offsets(tokenizer: Any, ids: Any, *, skip_special_tokens: bool = True) -> list[Range]:
    """Return the character range of each id in `tokenizer.decode(ids)`.

    Args:
        tokenizer: the policy's tokenizer.
        ids: the sampled ids [T]: a list, a tuple, or a one-dimensional array or tensor.
        skip_special_tokens: as in `decode`; if True, special tokens have empty ranges.

    Returns:
        T half-open ranges (start, end), in characters of the decoded text. Invalid UTF-8 bytes count as the U+FFFD
        that the tokenizer decodes them to.

    Raises:
        AlignmentError: if an id is not in the tokenizer's vocabulary, or `ids` is not a flat sequence.

    Example:
        >>> from tokenizers import Tokenizer, decoders, models
        >>> from transformers import PreTrainedTokenizerFast
        >>> core = Tokenizer(models.WordLevel({"Hi": 0, "Ġthere": 1}, unk_token="Hi"))
        >>> core.decoder = decoders.ByteLevel()
        >>> token_offsets(PreTrainedTokenizerFast(tokenizer_object=core), [0, 1])
        [(0, 2), (2, 8)]
    """
    plain = id_list(ids)
    if not plain:
        return []
    for renewed in (tokenizer not in _TABLES, True):  # tokens may have been added since the table was built
        table = _TABLES[tokenizer] = PieceTable.of(tokenizer) if renewed else _TABLES[tokenizer]  # of this thread
        if table is None:
            break
        pieces = table.pieces(tokenizer, plain, skip_special=skip_special_tokens)
        text = tokenizer.decode(plain, skip_special_tokens=skip_special_tokens)
        ranges = _locate(table, plain, pieces, text)
        if ranges is not None:
            return ranges
    return decoded_ranges(tokenizer, plain, skip_special_tokens=skip_special_tokens)


def id_list(ids: Any) -> list[int]:
    """Return sampled ids [T] as a list of Python integers.

    Raises:
        AlignmentError: if `ids` is not a flat sequence of integers.
    """
    try:
        return list(map(index, ids.tolist() if hasattr(ids, "tolist") else ids))
    except TypeError as error:
        shown = repr(ids) if len(repr(ids)) <= 60 else repr(ids)[:57] + "..."
        raise AlignmentError(
            f"response ids must be one flat sequence of integers, got {shown}. Align one response at a time"
        ) from error


_TABLES: WeakKeyDictionary[Any, PieceTable | None] = WeakKeyDictionary()
_BEGINS = bytes(byte & 0xC0 != 0x80 for byte in range(256))  # whether a byte of UTF-8 begins a character


def _locate(table: PieceTable, ids: list[int], pieces: list[Piece], text: str) -> list[Range] | None:
    """Return the range of each id in `text`, or None if the pieces do not join to this text."""
    if table.first:
        pieces = _with_first(table, ids, pieces)
    joined, ranges = _lay(table, ids, pieces)
    if joined == text:
        return ranges
    moved = _without_spaces(joined, text)
    return None if moved is None else [(moved[start], moved[end]) for start, end in ranges]


def _with_first(table: PieceTable, ids: list[int], pieces: list[Piece]) -> list[Piece]:
    """Replace the piece of the first visible id by its piece at the beginning of a text."""
    for k, (i, piece) in enumerate(zip(ids, pieces, strict=True)):
        if piece is not None:
            return [*pieces[:k], table.first.get(i, piece), *pieces[k + 1 :]]
    return pieces


def _lay(table: PieceTable, ids: list[int], pieces: list[Piece]) -> tuple[str, list[Range]]:
    """Return the text that pieces join to, and the range of each: characters count at the bytes that begin them."""
    data = b"".join([piece or b"" for piece in pieces])
    text, begins = data.decode("utf-8", "replace"), _beginnings(data)
    if "\ufffd" in text and not table.byte_level:
        text, begins = _join_runs(table, ids, pieces)
    count = [0, *accumulate(begins)]
    stops = accumulate([len(piece or b"") for piece in pieces], initial=0)
    return text, [(count[at] - (at < stop and not begins[at]), count[stop]) for at, stop in pairwise(stops)]


def _join_runs(table: PieceTable, ids: list[int], pieces: list[Piece]) -> tuple[str, bytearray]:
    """Decode byte tokens run by run: an invalid byte turns every byte of its run into U+FFFD."""
    text, begins = [], bytearray()
    visible = [(i, piece) for i, piece in zip(ids, pieces, strict=True) if piece is not None]
    for _, run in groupby(visible, key=lambda pair: pair[0] in table.raw):
        data = b"".join([piece for _, piece in run])
        try:
            text.append(data.decode())
            begins += _beginnings(data)
        except UnicodeDecodeError:
            text.append("\ufffd" * len(data))
            begins += b"\1" * len(data)
    return "".join(text), begins


def _beginnings(data: bytes) -> bytearray:
    """Return 1 for each byte that begins a character of the decoded text, U+FFFD included, else 0."""
    begins = bytearray(data.translate(_BEGINS))
    at = 0
    while True:
        try:
            data[at:].decode()
        except UnicodeDecodeError as bad:
            begins[at + bad.start] = 1
            at += bad.end
        else:
            return begins


def _without_spaces(raw: str, text: str) -> list[int] | None:
    """Return the position in `text` of each position of `raw`; None unless `text` is `raw` without some spaces."""
    lost = len(raw) - len(text)
    if raw.endswith(text) and raw[:lost].isspace():
        return [0] * lost + list(range(len(text) + 1))
    where = [0]
    for character in raw:
        at = where[-1]
        if text[at : at + 1] == character:
            where.append(at + 1)
        elif character == " ":
            where.append(at)
        else:
            return None
    return where if where[-1] == len(text) else None
