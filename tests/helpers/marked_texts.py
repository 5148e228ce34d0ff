"""Texts that are hard to quote, with spans of any kind: what critiques are written about in tests."""

from hypothesis import strategies as st

from text2grad.types import LABELS, Span

PIECES = [
    "a",
    "aa",
    "cat",
    "The cat",
    '"',
    "\\",
    "\n",
    "é",
    "e\u0301",
    "😀",
    " ",
    "\u00a0",
    "{",
    "]",
    ",",
    '"]}',
    "\0",
    "日本",
    "```",
    "it's",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text(max_size=12)


@st.composite
def marked(draw: st.DrawFn) -> tuple[str, tuple[Span, ...]]:
    """Return any text with any spans, overlapping, empty and blank ones among them."""
    response = draw(TEXTS)
    bound = st.integers(0, len(response))
    ends = draw(st.lists(st.tuples(bound, bound, st.sampled_from(LABELS)), max_size=5))
    return response, tuple(Span(min(a, b), max(a, b), label) for a, b, label in ends)
