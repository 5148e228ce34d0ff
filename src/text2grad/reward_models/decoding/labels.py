"""The valid word labels of one response: one label for each word, the text of the form around them, and its outcome.

A state is a place in this text, as a small integer. Where a label stands, several bytes are possible; elsewhere one is.
Where the spans of a critique are decided before it is written, by the marks of a probe, there is no choice but that of
the outcome, in any form.

In: a response, a form with word labels, or any form with the spans, a vocabulary. Out: the state after more bytes, and
the least number of tokens to the end of the critique.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

from text2grad.reward_models.decoding.automaton import Automaton
from text2grad.reward_models.decoding.vocabulary import Vocabulary
from text2grad.reward_models.writing import LABEL_FORMS, NO_OUTCOME, WITH_OUTCOME, spelled_spans
from text2grad.types import CritiqueForm, Span


class WordLabels(Automaton):
    """The automaton of the labels of one response.

    Attributes:
        end: the state after the critique; the first state is 0.
        cost: least number of tokens from each state to the end; infinite if the vocabulary cannot spell the text.
    """

    def __init__(
        self,
        response: str,
        form: CritiqueForm,
        vocabulary: Vocabulary,
        spans: Sequence[Span] | None = None,
        *,
        outcomes: bool = True,
    ) -> None:
        """Build the automaton: a chain of bytes, which branches at each label, and at the outcome.

        With `spans` the critique has these, and without `outcomes` none; then the chain does not branch there.
        """
        super().__init__(states=1)
        self._vocabulary = vocabulary
        signs: Mapping[str, int] = LABEL_FORMS[form].signs if spans is None else {}
        first, *later = LABEL_FORMS[form].around(response) if spans is None else [spelled_spans(response, spans, form)]
        self._signs, self._labelled = [sign.encode() for sign in signs], list[int]()
        self.end = self._chain(0, first)
        for part in later:
            lasts = [(self._chain(self.end, sign[:-1]), ord(sign[-1])) for sign in signs]
            labelled = self._new()
            self._labelled.append(labelled)
            for state, byte in lasts:
                self._rows[state][byte] = labelled
            self.end = self._chain(labelled, part)
        if form in WITH_OUTCOME:
            self.end = self._number(self.end) if outcomes else self._chain(self.end, NO_OUTCOME)
        self._tokens: dict[int, list[tuple[bytes, int]]] = {}
        self.cost = [math.inf] * len(self._rows)
        self.cost[self.end] = 0
        for state in reversed(range(self.end)):  # every byte leads to a higher state
            whole = (after for data, after in self.tokens(state) if data in vocabulary.spelled)
            self.cost[state] = 1 + min((self.cost[after] for after in whole), default=math.inf)

    def advance(self, state: int, data: bytes) -> int | None:
        """Return the state after bytes; None if they are invalid."""
        for byte in data:
            after = self._rows[state].get(byte)
            if after is None:
                return None
            state = after
        return state

    def tokens(self, state: int) -> list[tuple[bytes, int]]:
        """Return the byte strings that may follow, and their states: whole tokens and prefixes of tokens, each once."""
        if state not in self._tokens:
            self._tokens[state] = list(self._walk(b"", state))
        return self._tokens[state]

    def text_before_label(self, state: int) -> bytes | None:
        """Return the text that must follow before the next choice; None if that choice is not a label."""
        before = self.forced(state)
        at = self.advance(state, before)
        labelled = [at is not None and self.advance(at, sign) == self._next_label(at) for sign in self._signs]
        return before if sum(labelled) > 1 else None

    def _next_label(self, state: int) -> int:
        """Return the state after the next label; that after the critique if none is left."""
        number = bisect_right(self._labelled, state)
        return self._labelled[number] if number < len(self._labelled) else self.end

    def label_tokens(self, before: bytes) -> list[int]:
        """Return one token for each sign, which spells a text and the sign behind it; none if one has no token."""
        spelled = [self._vocabulary.spelled.get(before + sign) for sign in self._signs]
        return [ids[0] for ids in spelled if ids] if all(spelled) else []

    def _walk(self, before: bytes, state: int) -> Iterator[tuple[bytes, int]]:
        for byte, after in self._rows[state].items():
            data = before + bytes([byte])
            if data in self._vocabulary.prefixes:
                yield data, after
                yield from self._walk(data, after)
