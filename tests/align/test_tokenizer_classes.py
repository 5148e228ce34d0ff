"""Every tokenizer class that can be made here: where its tokens lie, for texts and for ids that no text encodes to.

`tests/matrices/tokenizers.md` is the table of the last run, with the packages that `make test-full` installs for it.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import transformers

from matrices import write_matrix
from text2grad.align import encode, policy_offsets, text_offsets, token_offsets
from text2grad.align.pieces import PieceTable, spelling
from text2grad.errors import AlignmentError
from tokenizer_classes import classes, make, tokenizers

TEXTS = [
    "The fair is in Lyon on Friday é 😀.",
    "def f(x):\n\treturn  x\r\n    # 我喜欢北京, ça va? 👨‍👩‍👧",
    " two  spaces before it's over </s> <unk> ",
]
SAMPLE = (
    "ByT5Tokenizer",
    "PerceiverTokenizer",
    "MyT5Tokenizer",
    "CanineTokenizer",
    "Wav2Vec2CTCTokenizer",
    "T5Tokenizer",
)
NO_TEXT = ("LayoutLMv2", "LayoutLMv3", "LayoutXLM", "MarkupLM", "Udop")  # they read words with boxes, or nodes of HTML


def misplaced(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return what is wrong with the ranges of ids; an empty text if nothing is.

    They cover the decoded text in order; and where the first k ids decode to a beginning of it (but for white space,
    which decoders remove at the end), the k-th ends there or in the characters that it shares with later ids.
    """
    ids = list(ids)
    text, ranges = tokenizer.decode(ids, skip_special_tokens=True), token_offsets(tokenizer, ids)
    reached = 0
    for start, end in ranges:
        if not start <= reached <= end or start > end:
            return f"the ranges {ranges} do not cover {text!r} in order"
        reached = end
    if reached != len(text):
        return f"the ranges end at {reached} of {len(text)} characters"
    for k in range(1, len(ids)):
        prefix = tokenizer.decode(ids[:k], skip_special_tokens=True)
        solid = max(at for at in range(len(prefix) + 1) if text.startswith(prefix[:at]))
        low, high = sorted((solid, ranges[k - 1][1]))
        if not prefix[solid:].strip("\ufffd") and len(text[low:high].strip()) > max(1, len(prefix) - solid):
            return f"the first {k} ids decode to {prefix!r}, and the {k}th ends at {ranges[k - 1][1]} of {text!r}"
    return ""


def checked(tokenizer: Any, draws: int = 10) -> str:
    """Return how a tokenizer's tokens are placed; raise an error that says what is wrong."""
    drawn = random.Random(0)
    texts = [list(encode(tokenizer, text)) for text in TEXTS]
    pool = [i for i in range(min(len(tokenizer), 100 * draws)) if spelling(tokenizer, i) is not None]
    for ids in [
        *texts,
        *(drawn.choices(pool, k=20) for _ in range(draws)),
        *(drawn.choices(texts[1], k=40) for _ in "ab"),
    ]:
        wrong = misplaced(tokenizer, ids)
        assert not wrong, (wrong, ids)
    outside = 2**31
    if spelling(tokenizer, outside):  # as the token of what is unknown
        assert not misplaced(tokenizer, [texts[0][0], outside])
    else:
        with pytest.raises(AlignmentError, match="is not in the tokenizer's vocabulary"):
            token_offsets(tokenizer, [texts[0][0], outside])
    assert len(policy_offsets(tokenizer, [texts[0][0], outside])) == 2
    _, places = text_offsets(tokenizer, TEXTS[0])
    return ("as bytes, or by prefixes" if PieceTable.of(tokenizer) else "by prefixes") + (
        "" if places else "; no places in a text that it changes"
    )


@pytest.mark.filterwarnings("ignore")  # MyT5 leaves its file open
@pytest.mark.parametrize("name", SAMPLE)
def test_tokens_of_a_class_lie_where_they_decode_to(name: str) -> None:
    assert checked(make(classes()[name]), draws=2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_tokens_of_every_class_lie_where_they_decode_to() -> None:
    rows = {name: _row(name, maker) for name, maker in tokenizers()}
    write_matrix("tokenizers", ("class", "tokens are placed"), rows.items(), transformers)
    assert len(rows) > 90
    assert [row for row in rows.items() if row[1].startswith("WRONG")] == []


def _row(name: str, maker: Callable[[], Any]) -> str:
    if name.startswith(NO_TEXT):
        return "reads no plain text"
    try:
        tokenizer = maker()
        encode(tokenizer, "a")
    except (ImportError, ValueError) as error:
        return f"not made here: {' '.join(str(error).split())[:90]}"
    try:
        return checked(tokenizer)
    except BaseException as error:  # noqa: BLE001 - a row of the table
        return f"WRONG: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
