r"""A byte automaton for a critique's JSON, without the content of its quotes and without its word labels.

    {"textual_feedback": "TEXT", "good_spans": ["QUOTE", ...], "poor_spans": [...]}
    {"textual_feedback": "TEXT", "spans": [["QUOTE", "good"], ["QUOTE", "poor"], ...], "outcome": NUMBER}
    {"textual_feedback": "TEXT", "word_tags": "LABELS

TEXT is the content of a JSON string: UTF-8 without control characters, and JSON's escapes. NUMBER is null, or a number
with at most `DIGITS` digits before the point and `DECIMALS` after it. The automaton is the same for every response, so
the transition of each token from each state is computed once per tokenizer. So is the cost of a state: the least number
of tokens from there to the end of the critique.

A state is a small integer. In the states `Skeleton.open`, the response decides about the next bytes: inside a quote
`Quotable`, where LABELS begin `WordLabels`, which reads on to the end.

In a conversation, {"turn": stands in place of a quote's first mark; the number of the turn, as far as the mark before
QUOTE, is the head of the quote, about which the response decides, too. A brace follows QUOTE, or its label.
"""

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from text2grad.reward_models.decoding.labels import Automaton, WordLabels, word_labels
from text2grad.reward_models.decoding.vocabulary import DEAD, Ints, Vocabulary
from text2grad.reward_models.writing import CLOSING, FORMS, NO_OUTCOME, OPENING, OUTCOME, POOR, TURN, WORDS
from text2grad.types import Label

MARK = b'\\"'
IN_QUOTE, START, END = 1, 2, 3  # IN_QUOTE: the token continues inside a quote, where `Quotable` decides
_ENTRIES = {  # quotes name turns, have labels → the texts before a quote, between it and its label, and behind both
    (False, False): ('"', "", '"'),
    (False, True): ('["', '", "', '"]'),
    (True, False): (TURN, "", '"}'),
    (True, True): (TURN, '", "label": "', '"}'),
}
_UTF8 = (  # ranges of characters beyond ASCII (RFC 3629): first byte, second byte, and number of bytes after the first
    (0xC2, 0xDF, 0x80, 0xBF, 1),
    (0xE0, 0xE0, 0xA0, 0xBF, 2),
    (0xE1, 0xEC, 0x80, 0xBF, 2),
    (0xED, 0xED, 0x80, 0x9F, 2),  # the rest would be surrogates
    (0xEE, 0xEF, 0x80, 0xBF, 2),
    (0xF0, 0xF0, 0x90, 0xBF, 3),
    (0xF1, 0xF3, 0x80, 0xBF, 3),
    (0xF4, 0xF4, 0x80, 0x8F, 3),
)


class Skeleton(Automaton):
    """The automaton for one vocabulary.

    Attributes:
        table: next state by state and byte, int16 [S, 256].
        text: state inside TEXT.
        escape: state after a backslash in TEXT; `DEAD` if TEXT is empty.
        turns: whether quotes name turns of a conversation.
        lists: the text between TEXT and the first quote or label.
        open: the list of a quote, by the state inside the quote; the list of labelled quotes, and the text that
            `WordLabels` reads, count as the positive one.
        inside: state just after a quote's last byte, by list: only the closing quotation mark may follow.
        opens: the list of the quote that must follow, by state.
        cost: least number of tokens to the end, or to the labels of words, by state; infinite if every path passes
            through a quote. Quotation marks in TEXT are left out: they may be invalid where quotes are checked.
        least_cost: lower bounds of the costs by state, 0 where the cost depends on the response, float64 [S].
        to_open: least number of tokens to the content of the quote that must follow, by state.
    """

    def __init__(
        self, vocabulary: Vocabulary, *, write_feedback: bool, form: str, outcomes: bool, turns: bool = False
    ) -> None:
        """Build the automaton of a form.

        Without `write_feedback` TEXT is empty; without `outcomes` each NUMBER is null; with `turns` quotes name turns.
        """
        super().__init__(states=4)
        self.vocabulary, self.turns, self._form, self._outcomes = vocabulary, turns, form, outcomes
        self._link(IN_QUOTE, 0, 255, IN_QUOTE)
        self.open: dict[int, Label] = {}
        self.inside: dict[Label, int] = {}
        self.opens: dict[int, Label] = {}
        self.escape = DEAD
        self.text = self._chain(START, OPENING)
        if write_feedback:
            self._text(self.text)
        self.lists = FORMS[form].opening
        opened, goal = self._chain(self.text, self.lists), END
        if FORMS[form].quotes:
            self._quotes(opened)
        else:
            self._link(opened, 0, 255, IN_QUOTE)
            self.open[opened], self.opens[opened], goal = "positive", "positive", opened
        self.table: NDArray[np.int16] = np.full((len(self._rows), 256), DEAD, np.int16)
        for number, row in enumerate(self._rows):
            self.table[number, list(row)] = list(row.values())
        self._next: dict[int, tuple[Ints, NDArray[np.int16]]] = {}
        self.cost = self._distances(goal)
        to_open = {label: self._distances(state) for state, label in self.open.items()}
        self.to_open = {state: to_open[label][state] for state, label in self.opens.items()}
        bounds = (0.0 if s in self.opens or s == IN_QUOTE else cost for s, cost in enumerate(self.cost))
        self.least_cost: NDArray[np.float64] = np.fromiter(bounds, np.float64)

    def labels(self, response: str) -> WordLabels | None:
        """Return the valid labels of a response's words; None for a form that quotes."""
        quotes = FORMS[self._form].quotes
        return None if quotes else word_labels(response, self._form, self.vocabulary, self._outcomes)

    def least_tokens(self, response: str) -> float:
        """Return the number of tokens of the shortest critique of a response."""
        labels = self.labels(response)
        return self.cost[START] + (0 if labels is None else labels.cost[0])

    def spelled(self, state: int, token: int) -> bytes:
        """Return the bytes of a token; none for an id that is not text."""
        return (self.vocabulary.first if state == START else self.vocabulary.data).get(token, b"")

    def read(self, state: int, data: bytes) -> tuple[int, bytes]:
        """Read bytes up to the content of a quote; return the next state, `DEAD` if they are invalid, and the rest."""
        for position, byte in enumerate(data):
            if state in self.open:
                return state, data[position:]
            state = self._rows[state].get(byte, DEAD)
        return state if data else DEAD, b""

    def next(self, state: int) -> tuple[Ints, NDArray[np.int16]]:
        """Return the ids that are valid in a state, and their next states; IN_QUOTE means possibly valid."""
        if state not in self._next:
            if state == START:
                begins = {i: data for i, data in self.vocabulary.first.items() if data[:1] == b"{"}
                reached = ((i, self.read(START, data)[0]) for i, data in begins.items())
                pairs = np.array([pair for pair in reached if pair[1] != DEAD], np.int64).reshape(-1, 2)
                self._next[state] = pairs[:, 0], pairs[:, 1].astype(np.int16)
            else:
                after = self.vocabulary.run(self.table, state)
                self._next[state] = self.vocabulary.ids[after != DEAD], after[after != DEAD]
        return self._next[state]

    def _distances(self, goal: int) -> list[float]:
        """Return the least number of tokens from each state to the goal, by breadth-first search from the goal."""
        distances, depth, last = [math.inf] * len(self._rows), 0, {goal}
        while last:
            for state in last:
                distances[state] = depth
            depth += 1
            last = {s for s, after in self._edges.items() if distances[s] == math.inf and not last.isdisjoint(after)}
        return distances

    @cached_property
    def _edges(self) -> dict[int, list[int]]:
        """The next states of one token without a quotation mark of TEXT, by state; no edge passes through a quote."""
        spelled = self.vocabulary.data
        marked = np.zeros(self.vocabulary.size, np.bool_)
        marked[[i for i, data in spelled.items() if MARK in data]] = True
        ending = np.zeros(self.vocabulary.size, np.bool_)  # tokens that end a mark begun by the token before
        ending[[i for i, data in spelled.items() if data[:1] == MARK[1:]]] = True
        edges = {}
        for state in range(START, len(self._rows)):
            ids, after = self.next(state)
            kept = ~(marked[ids] | ending[ids]) if state == self.escape else ~marked[ids]
            edges[state] = np.unique(after[kept]).tolist()
        return edges

    def _text(self, text: int) -> None:
        """Let a state read the content of any JSON string (RFC 8259)."""
        self._link(text, 0x20, 0x7F, text)
        self.escape = escape = self._rows[text][ord("\\")] = self._new()
        for byte in b'"\\/bfnrt':
            self._link(escape, byte, byte, text)
        digit = text
        for _ in range(4):
            after, digit = digit, self._new()
            for first, last in (b"09", b"af", b"AF"):
                self._link(digit, first, last, after)
        self._link(escape, ord("u"), ord("u"), digit)
        for first, last, low, high, more in _UTF8:
            state = text
            for rank in range(more):
                after, state = state, self._new()
                bounds = (low, high) if rank == more - 1 else (0x80, 0xBF)
                self._link(state, *bounds, after)
            self._link(text, first, last, state)

    def _quotes(self, start: int) -> None:
        """Let a state read the quotes of the form, and all that follows them."""
        goal, closing = END, CLOSING
        if FORMS[self._form].outcome and self._outcomes:
            goal, closing = self._new(), OUTCOME
            self._number(goal, END)
        elif FORMS[self._form].outcome:
            closing = OUTCOME + NO_OUTCOME
        if self._form == "labelled_spans":
            self._list("positive", start, closing, goal, labelled=True)
        else:
            between = self._new()
            self._list("positive", start, POOR, between)
            self._list("negative", between, closing, goal)

    def _list(self, label: Label, start: int, close: str, goal: int, *, labelled: bool = False) -> None:
        """Let a state read a list of quotes, or of quotes with labels; `close` is the text after the entries."""
        after, inside, opened = self._new(), self._new(), self._new()
        begin, middle, end = _ENTRIES[self.turns, labelled]
        between = self._chain(inside, middle) if labelled else inside
        for word in WORDS.values() if labelled else [""]:
            self._chain(between, f"{word}{end}", after)
        self._link(opened, 0, 255, IN_QUOTE)
        self._chain(start, begin, opened)
        self._chain(after, f", {begin}", opened)
        self._chain(start, close, goal)
        self._rows[after][ord("]")] = self._rows[start][ord("]")]
        self.open[opened], self.inside[label], self.opens[opened] = label, inside, label
        for state, text in ((start, begin[:-1]), (after, f", {begin[:-1]}")):  # a quote must follow
            for byte in text.encode():
                state = self._rows[state][byte]
                self.opens[state] = label
