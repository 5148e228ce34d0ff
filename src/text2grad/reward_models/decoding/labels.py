"""Byte automata in the making, and that of the word labels of one response.

The latter reads a label for each word, the text of the form around them, and its outcome. A state is a place in this
text, as a small integer. Where a label stands, several bytes are possible; elsewhere one is.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

from text2grad.reward_models.decoding.vocabulary import Vocabulary
from text2grad.reward_models.writing import FORMS, NO_OUTCOME

DIGITS, DECIMALS = 6, 2  # most of an outcome


class Automaton:
    """States as small integers, and the state after each byte; a byte without a next state is invalid."""

    def __init__(self, states: int) -> None:
        """Create so many states, without transitions."""
        self._rows: list[dict[int, int]] = [{} for _ in range(states)]

    def _new(self) -> int:
        self._rows.append({})
        return len(self._rows) - 1

    def _chain(self, state: int, text: str, goal: int | None = None) -> int:
        """Add a path from a state through a text, to a goal or to a new state; return its last state."""
        data = text.encode()
        for position, byte in enumerate(data):
            after = goal if goal is not None and position == len(data) - 1 else self._new()
            self._rows[state][byte] = after
            state = after
        return state

    def _link(self, state: int, first: int, last: int, goal: int) -> None:
        """Let a state read the bytes from `first` to `last`."""
        self._rows[state] |= dict.fromkeys(range(first, last + 1), goal)

    def _number(self, start: int, goal: int | None = None) -> int:
        """Let a state read null or a JSON number, and the brace after it; return the goal, by default a new state.

        Every byte leads to a higher state, but for a goal that is given.
        """
        null, sign, zero = self._chain(start, "null"), self._new(), self._new()
        digits = [self._new() for _ in range(DIGITS)]
        point, *decimals = [self._new() for _ in range(DECIMALS + 1)]
        goal = self._new() if goal is None else goal
        self._link(start, ord("-"), ord("-"), sign)
        for state in (start, sign):
            self._link(state, ord("0"), ord("0"), zero)
            self._link(state, ord("1"), ord("9"), digits[0])
        for before, after in (*pairwise(digits), *pairwise([point, *decimals])):
            self._link(before, ord("0"), ord("9"), after)
        for state in (zero, *digits):
            self._link(state, ord("."), ord("."), point)
        for state in (null, zero, *digits, *decimals):
            self._link(state, ord("}"), ord("}"), goal)
        return goal


class WordLabels(Automaton):
    """The automaton of the labels of one response.

    Attributes:
        end: the state after the critique; the first state is 0.
        tokens: the byte strings that may follow each state, and their states: whole tokens and prefixes of tokens.
        cost: least number of tokens from each state to the end; infinite if the vocabulary cannot spell the text.
    """

    def __init__(self, response: str, form: str, vocabulary: Vocabulary, outcomes: bool) -> None:
        """Build the automaton: a chain of bytes, which branches at each label and, with `outcomes`, at the outcome."""
        super().__init__(states=1)
        self._vocabulary, known = vocabulary, FORMS[form]
        first, *later = known.around(response)
        self.end = self._chain(0, first)
        for part in later:
            lasts = [(self._chain(self.end, sign[:-1]), ord(sign[-1])) for sign in known.signs]
            labelled = self._new()
            for state, byte in lasts:
                self._rows[state][byte] = labelled
            self.end = self._chain(labelled, part)
        if known.outcome:
            self.end = self._number(self.end) if outcomes else self._chain(self.end, NO_OUTCOME)
        self.tokens = [list(self._walk(b"", state)) for state in range(len(self._rows))]
        self.cost = [math.inf] * len(self._rows)
        self.cost[self.end] = 0
        for state in reversed(range(self.end)):  # every byte leads to a higher state
            whole = (after for data, after in self.tokens[state] if data in vocabulary.spelled)
            self.cost[state] = 1 + min((self.cost[after] for after in whole), default=math.inf)

    def advance(self, state: int | None, data: bytes) -> int | None:
        """Return the state after bytes; None if they are invalid."""
        for byte in data:
            state = None if state is None else self._rows[state].get(byte)
        return state

    def _walk(self, before: bytes, state: int) -> Iterator[tuple[bytes, int]]:
        for byte, after in self._rows[state].items():
            data = before + bytes([byte])
            if data in self._vocabulary.prefixes:
                yield data, after
                yield from self._walk(data, after)


word_labels = lru_cache(maxsize=128)(WordLabels)  # made once for all critiques of a response
