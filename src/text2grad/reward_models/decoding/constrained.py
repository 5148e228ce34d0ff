"""Decoding of complete critiques whose quotes occur in the response, or that label each word; greedy or sampled.

Try the argmax token first: a lookup or a comparison of bytes decides whether it is valid. Mask the vocabulary only if
it is invalid. The result equals a masked argmax. A token is valid if the critique can still end within the tokens left.

Shapes: B rows, V ids of the model.
"""

import json
import math
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache, partial
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from text2grad.errors import ModelError
from text2grad.feedback import sampled_texts
from text2grad.models import Choose, most_likely, sample_inverse_cdf
from text2grad.reward_models.decoding.quotable import UNCHECKED, Listed, Quotable, Quote, QuotedWords, QuoteLimits
from text2grad.reward_models.decoding.skeleton import END, MARK, START, Skeleton
from text2grad.reward_models.decoding.vocabulary import DEAD, Ints, Vocabulary
from text2grad.reward_models.format import CritiqueFormat
from text2grad.reward_models.writing import OPENING, QUOTE


class State(NamedTuple):
    """The state of an incomplete critique.

    Attributes:
        skeleton: state of the skeleton.
        quote: the open quote of a list.
        listed: the quotes before it.
        words: the parser of the feedback, if its quotes are checked.
        place: in the labels of words.
        head: how much of the head of the open quote is written.
    """

    skeleton: int
    quote: Quote | None = None
    listed: Listed = ()
    words: QuotedWords = UNCHECKED
    place: int = 0
    head: bytes = b""


class ConstrainedCritique:
    """The critique of one response, decoded token by token.

    Attributes:
        written: the text so far, as bytes, which may end within a character.
        quotable: the response, which the feedback may quote; `turns` are what lists may quote: it, or each turn of a
            conversation that the policy wrote, if the skeleton is for turns.
        labels: the valid labels of the response's words, in a form with word labels; limits then concern the feedback.
        room: number of tokens left, without the least number of the labels' tokens, which is set aside.
    """

    def __init__(
        self, skeleton: Skeleton, response: str, *, eos_ids: Sequence[int], room: int, limits: QuoteLimits
    ) -> None:
        """Begin a critique of at most `room` tokens, at least `skeleton.least_tokens(response)`, before an eos id."""
        self.skeleton, self.eos_ids, self.written = skeleton, eos_ids, b""
        quotable = partial(Quotable, limits=limits, vocabulary=skeleton.vocabulary, labelled=len(skeleton.open) == 1)
        self.quotable = quotable(response)
        texts = sampled_texts(response) if skeleton.turns else {}
        turns = [quotable(text, head=f"{turn}{QUOTE}".encode()) for turn, text in texts.items()]
        self.turns = turns or [self.quotable]
        self.labels = skeleton.labels(response)
        self.room = room - (int(self.labels.cost[0]) if self.labels else 0)
        self.state: State | None = State(START, words=QuotedWords() if limits.verbatim else UNCHECKED)

    @property
    def text(self) -> str:
        """The text so far."""
        return self.written.decode()

    def take(self, token: int) -> bool:
        """Append a token if it is valid, and return whether it is; after the end every token is."""
        if self.state is None:
            return True
        if self.state.skeleton == END:
            self.state = None if token in self.eos_ids else self.state
            return self.state is None
        data = self.skeleton.spelled(self.state.skeleton, token)
        if self.quotable.limits.quoted_in_feedback and self.skeleton.read(self.state.skeleton, data)[0] != DEAD:
            feedback, ended, _ = (self.written + data).partition(self.skeleton.lists.encode())
            said = json.loads(feedback + b'"}')["textual_feedback"] if ended else None
            for turn in self.turns:
                turn.restrict_to(said)
        if (after := self.step(self.state, token, self.room - 1)) is None:
            return False
        self.written += data
        self.state, self.room = after, self.room - 1
        return True

    def take_from(self, scores: NDArray[np.float32], numbers: Random | None = None) -> int:
        """Append the valid token with the highest score, [V], or one sampled from their softmax, and return it."""
        among = np.full(len(scores), -np.inf, np.float32)
        for ids in self._candidates():
            among[ids] = np.fmax(scores[ids], np.finfo(np.float32).min)  # NaN and −∞ rank last
        while not self.take(token := _choice(among, numbers)):
            among[token] = -np.inf
        return token

    def step(self, state: State, token: int, room: int) -> State | None:
        """Return the state after a token; None if it is invalid, or if the critique could not end within `room`."""
        data = self.skeleton.spelled(state.skeleton, token)
        if state.skeleton in self.skeleton.open:
            after = self._read_inside(state, data)
        else:
            place, rest = self.skeleton.read(state.skeleton, data)
            words = self.quotable.read_words(state.words, data[max(0, len(OPENING) - len(self.written)) :])
            if place == DEAD or words is None:
                return None
            after = State(place, None, state.listed, words)
            if rest:
                after = self._read_inside(after, rest)
        return after if after is not None and self.tokens_to_end(after) <= room else None

    def tokens_to_end(self, state: State) -> float:
        """Return a number of tokens that suffices to end the critique; infinite if it cannot end."""
        skeleton, where = self.skeleton, state.skeleton
        if self.labels and (where == END or where in skeleton.open):
            return self.labels.cost[state.place] - self.labels.cost[0]
        if state.words.quote is not None:
            closing = self.quotable.tokens_to_close(state.words.quote, state.words.tail)
            return closing + skeleton.cost[skeleton.text]
        if (label := skeleton.opens.get(where)) is None:
            return skeleton.cost[where]
        turns = ((turn, turn.to_quote[len(state.head)]) for turn in self._turns(state.head))
        quoted = (before + turn.tokens_to_end(state.quote, label, state.listed) for turn, before in turns)
        return skeleton.to_open[where] + min(quoted, default=math.inf) + skeleton.cost[skeleton.inside[label]]

    def _turns(self, head: bytes) -> list[Quotable]:
        """Return the turns that may be quoted behind so much of a head; the response, if it has none."""
        return [turn for turn in self.turns if turn.head.startswith(head)]

    def _read_inside(self, state: State, data: bytes) -> State | None:
        """Return the state after bytes that begin inside a quote or the labels, and may go beyond its closing mark."""
        where, quote, listed, head = state.skeleton, state.quote, state.listed, state.head
        if not data:
            return None
        if self.labels:
            place = self.labels.advance(state.place, data)
            return None if place is None else State(END if place == self.labels.end else where, place=place)
        turn = next((turn for turn in self.turns if (head + data).startswith(turn.head)), None)
        if turn is None or (head + data) == turn.head:
            return State(where, None, listed, head=head + data) if self._turns(head + data) else None
        label, data, head = self.skeleton.open[where], data[len(turn.head) - len(head) :], turn.head
        for at in (at for at, byte in enumerate(data) if byte == ord('"')):
            whole = turn.advance(quote, data[:at]) if at else quote
            if whole is None:
                return None
            text = turn.text(whole)
            if text is None:  # this mark is escaped: a character of the response
                continue
            place, rest = self.skeleton.read(self.skeleton.inside[label], data[at:])
            if place == DEAD or not turn.may_end(whole, label, listed):
                return None
            after = State(place, None, (*listed, (label, text, head)))
            return self._read_inside(after, rest) if rest else after
        longer = turn.advance(quote, data)
        return None if longer is None else State(where, longer, listed, head=head)

    def _candidates(self) -> Iterator[Sequence[int] | Ints]:
        """Yield the ids that may be valid, and perhaps a few that `take` refuses."""
        assert self.state is not None  # after the end, any token is taken
        where, quote, _, words, place, head = self.state
        spelled, before = self.skeleton.vocabulary.spelled, self.skeleton.vocabulary.before_quote
        if words.quote is not None and not words.tail:
            yield from (spelled.get(MARK[:1], []), before.get(MARK[:1], []))
            for data in self.quotable.tokens(words.quote):
                yield from (spelled.get(data, []), before.get(data + MARK[:1], []))
        elif where == END:
            yield list(self.eos_ids)  # numpy takes a tuple for one place
        elif where not in self.skeleton.open:
            ids, after = self.skeleton.next(where)
            yield ids[self.skeleton.least_cost[after] < self.room]
        elif self.labels:
            yield from (spelled.get(data, []) for data, _ in self.labels.tokens[place])
        else:
            yield self.skeleton.next(self.skeleton.inside[self.skeleton.open[where]])[0]
            for turn in self._turns(head):
                for data in turn.tokens(quote, turn.head[len(head) :]):
                    yield from (spelled.get(data, []), before.get(data, []))


def _choice(scores: NDArray[np.float32], numbers: Random | None) -> int:
    """Return the token with the highest score, [V], or one sampled from the softmax of all scores."""
    if numbers is None:
        return int(scores.argmax())
    mass = np.exp((scores - scores.max()).astype(np.float64)).cumsum()
    return min(int(mass.searchsorted(numbers.random() * mass[-1], side="right")), len(mass) - 1)


def free_choice(numbers: Sequence[Random]) -> Choose:
    """Return what samples any token of each row by the row's own random generator, for `decode`."""

    def choose(logits: Tensor, rows: Tensor, step: int) -> Tensor:
        uniforms = [numbers[row].random() for row in rows.tolist()]
        return sample_inverse_cdf(logits, torch.tensor(uniforms, device=logits.device))

    return choose


def valid_choice(critiques: Sequence[ConstrainedCritique], numbers: Sequence[Random] = ()) -> Choose:
    """Return what chooses the best (or a sampled) valid token of each row's critique and appends it, for `decode`.

    A token is sampled from all tokens, and sampled again from the valid tokens if it is invalid: the distribution is
    the softmax of the valid tokens.

    Args:
        critiques: the empty critique of each row.
        numbers: the random generator of each row, for sampling.
    """
    first_choice = free_choice(numbers) if numbers else most_likely

    def choose(logits: Tensor, rows: Tensor, step: int) -> Tensor:
        chosen = first_choice(logits, rows, step).tolist()
        for place, row in enumerate(rows.tolist()):
            if not critiques[row].take(chosen[place]):
                scores = logits[place].cpu().numpy()
                chosen[place] = critiques[row].take_from(scores, numbers[row] if numbers else None)
        return torch.tensor(chosen, device=logits.device)

    return choose


def skeleton_of(
    tokenizer: Any, format: CritiqueFormat, *, size: int, eos_ids: Collection[int], turns: bool = False
) -> Skeleton:
    """Return the skeleton of a tokenizer for a model with `size` ids, which is cached; `eos_ids` are not text.

    With `turns` its quotes name turns of a conversation.

    Raises:
        ModelError: if the tokenizer cannot encode a critique's JSON.
    """
    vocabulary = _vocabulary(tokenizer, len(tokenizer), size, frozenset(eos_ids))
    return _skeleton(vocabulary, format.write_feedback, format.form, format.outcomes, turns)


@lru_cache(maxsize=8)
def _vocabulary(tokenizer: Any, ids: int, size: int, banned: frozenset[int]) -> Vocabulary:
    return Vocabulary(tokenizer, size=size, banned=banned)


@lru_cache(maxsize=8)
def _skeleton(vocabulary: Vocabulary, write_feedback: bool, form: str, outcomes: bool, turns: bool) -> Skeleton:
    skeleton = Skeleton(vocabulary, write_feedback=write_feedback, form=form, outcomes=outcomes, turns=turns)
    if skeleton.cost[START] == float("inf"):
        raise ModelError(
            "the tokenizer has, or tells, no tokens for the JSON of a critique, so constrained decoding is impossible. "
            "Use another tokenizer, or switch it off: CritiqueFormat(constrain=False), in a recipe critic.constrain = "
            "false."
        )
    return skeleton
