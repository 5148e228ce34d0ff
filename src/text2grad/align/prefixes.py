"""Where ids lie in the text that they decode to, by decoding beginnings of them: slower than bytes, for any decoder."""

from collections.abc import Callable
from functools import partial
from typing import Any

from text2grad.align.pieces import skipped_ids

LEAST_APART = 32  # ids
LONGEST_CHARACTER = 4  # bytes in UTF-8, so that one of four cuts between ids of bytes is no cut in a character


def decoded_ranges(tokenizer: Any, ids: list[int], *, skip_special_tokens: bool) -> list[tuple[int, int]]:
    """Return the range of each id in `tokenizer.decode(ids)`, as `token_offsets` does."""
    decode = partial(tokenizer.decode, skip_special_tokens=skip_special_tokens)
    skipped, text = skipped_ids(tokenizer, set(ids)), decode(ids)
    if not skip_special_tokens or not text.startswith(decode([i for i in ids if i not in skipped])):
        skipped = set()  # the second: such as a mark between words (CTC)
    visible = [k for k, i in enumerate(ids) if i not in skipped]
    ranges = _by_prefixes(decode, [ids[k] for k in visible], text)
    return with_empty(dict(zip(visible, ranges, strict=True)), len(ids))


def _by_prefixes(decode: Callable[[list[int]], str], ids: list[int], text: str) -> list[tuple[int, int]]:
    """Return the range of each id by decoding prefixes of the ids, for any decoder.

    Halves are read apart where their texts, but for white space that a decoder removes at a beginning, are the text.
    """
    middle = len(ids) // 2
    for cut in range(middle, middle + LONGEST_CHARACTER if len(ids) > LEAST_APART else middle):
        left, right = decode(ids[:cut]), decode(ids[cut:])
        begin = len(text) - len(right)
        between = text[len(left) : begin]
        if len(left) <= begin and not between.strip() and text == left + between + right:
            first, *others = [(start + begin, end + begin) for start, end in _by_prefixes(decode, ids[cut:], right)]
            return [*_by_prefixes(decode, ids[:cut], left), (len(left), first[1]), *others]
    return _prefix_by_prefix(decode, ids, text)


def _prefix_by_prefix(decode: Callable[[list[int]], str], ids: list[int], text: str) -> list[tuple[int, int]]:
    """Return the range of each id by decoding every prefix.

    If a prefix is not a prefix of the text, its last id shares its characters with the ids after it: the one character
    that is decoded to U+FFFD so far, or all. So does an id of a character that is not decoded at all so far.
    """
    ranges: list[tuple[int, int]] = []
    waiting: list[tuple[int, int | None]] = []  # end None: the next end
    whole, start = "", 0  # the last prefix of the text, and the first character of the next id
    for stop in range(1, len(ids) + 1):
        prefix = decode(ids[:stop]) if stop < len(ids) else text
        alike = zip(prefix, text, strict=False)
        solid = next((at for at, pair in enumerate(alike) if pair[0] != pair[1]), min(len(prefix), len(text)))
        if len(prefix) < len(whole) or solid < len(prefix):
            shares = solid >= len(whole) and not prefix[solid:].strip("\ufffd")
            waiting.append((start, solid + 1 if shares else None))
            start = solid if shares else start
        elif prefix == whole and text[start : start + 1] > "\x7f" and decode(ids[: stop - 1] + ids[stop:]) != text:
            waiting.append((start, None))
        else:
            ranges += [(begin, len(prefix) if end is None else end) for begin, end in (*waiting, (start, None))]
            waiting, whole, start = [], prefix, len(prefix)
    return ranges


def with_empty(visible: dict[int, tuple[int, int]], total: int) -> list[tuple[int, int]]:
    """Return a range for each id: an id without text gets an empty range at the end of the previous range."""
    ranges, end = [], 0
    for k in range(total):
        ranges.append(visible.get(k, (end, end)))
        end = ranges[-1][1]
    return ranges
