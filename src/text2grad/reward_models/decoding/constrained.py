"""Greedy decoding that can only write whole critiques, with quotes that stand in the response.

The model's most likely token is asked about first, and taken if it may stand there: that is a look-up, or a comparison
of bytes. Only where it may not are the allowed ones gathered and the likeliest of them taken, which is the arg max of
the masked logits all the same. A token may stand where the critique can still be ended within the tokens that are left.

Shapes: B rows, V ids of the model.
"""

import json
from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from text2grad.errors import ModelError
from text2grad.models import sample_inverse_cdf
from text2grad.reward_models.decoding.quotable import Listed, Quotable, Quote, QuoteLimits
from text2grad.reward_models.decoding.skeleton import END, LISTS, START, Skeleton
from text2grad.reward_models.decoding.verbatim import MARK, OVER, Said, hear, to_close
from text2grad.reward_models.decoding.vocabulary import Vocabulary
from text2grad.reward_models.writing import GOOD, OPENING


class State(NamedTuple):
    """How far a critique is written.

    Attributes:
        where: the skeleton's state.
        quote: the quote of a list that is open there.
        listed: the quotes before it.
        said: the words, while they are to be heard.
    """

    where: int
    quote: Quote | None = None
    listed: Listed = ()
    said: Said = OVER


class ConstrainedCritique:
    """The critique of one response, written token by token.

    Attributes:
        text: what is written so far.
    """

    def __init__(
        self, skeleton: Skeleton, response: str, *, eos_ids: Sequence[int], room: int, limits: QuoteLimits
    ) -> None:
        """Begin a critique.

        Args:
            skeleton: of the tokenizer.
            response: what is quoted from.
            eos_ids: one of them follows the critique, if there is room.
            room: the most tokens that it may have, at least `skeleton.cost[START]`.
            limits: on the quotes.
        """
        self.skeleton, self.eos_ids, self.room = skeleton, eos_ids, room
        self.quotable = Quotable(response, limits, skeleton.vocabulary)
        self.state: State | None = State(START, said=Said(before=len(OPENING)) if limits.verbatim else OVER)
        self._label = {skeleton.open[label]: label for label in LISTS}
        self._written: list[bytes] = []
        self._heard = False

    @property
    def text(self) -> str:
        """What is written so far."""
        return b"".join(self._written).decode()

    def take(self, token: int) -> bool:
        """Write a token if it may stand here; any may stand after the end."""
        if self.state is None:
            return True
        if self.state.where == END:
            self.state = None if token in self.eos_ids else self.state
            return self.state is None
        spelled = self.skeleton.vocabulary
        heard = self._heard or self._hear(token)
        after = self.step(self.state, token, self.room - 1)
        if after is None:
            if heard and not self._heard:
                self.quotable.support(None)  # the words go on after all
            return False
        self._heard = heard
        self._written.append((spelled.first if self.state.where == START else spelled.data)[token])
        self.state, self.room = after, self.room - 1
        return True

    def take_best(self, scores: NDArray[np.float32]) -> int:
        """Write the allowed token with the highest of the scores, [V], and return it."""
        return self._take_one(scores, lambda among: int(among.argmax()))

    def take_drawn(self, scores: NDArray[np.float32], numbers: Random) -> int:
        """Write one of the allowed tokens, drawn by the softmax of their scores, [V], and return it."""

        def draw(among: NDArray[np.float32]) -> int:
            mass = np.exp((among - among.max()).astype(np.float64)).cumsum()
            return min(int(mass.searchsorted(numbers.random() * mass[-1], side="right")), len(mass) - 1)

        return self._take_one(scores, draw)

    def _take_one(self, scores: NDArray[np.float32], choose: Callable[[NDArray[np.float32]], int]) -> int:
        """Write the first choice among the scores that may stand here; those that may not are −∞."""
        among = np.where(self._barred(), -np.inf, np.fmax(scores, np.finfo(np.float32).min))  # NaN and −∞ come last
        while not self.take(token := choose(among)):
            among[token] = -np.inf
        return token

    def step(self, state: State, token: int, room: int) -> State | None:
        """Return the state after a token; None where it may not stand, or leaves more to write than there is room."""
        where, _, listed, _ = state
        if where in self._label:
            after = self._quote(state, self.skeleton.vocabulary.data.get(token, b""))
        else:
            move = self.skeleton.move(where, token)
            said = OVER if state.said.over or move is None else self._said(state, token)
            if move is None or said is None:
                return None
            after = State(move.state, None, listed, said)
            if said.over and move.state not in self.skeleton.opens:  # most tokens, and nothing more to ask
                return after if self.skeleton.cost[move.state] <= room else None
            if move.rest:
                after = self._quote(after, move.rest)
        return after if after is not None and self.needed(after) <= room else None

    def _said(self, state: State, token: int) -> Said | None:
        """Return the words after a token, None where it misquotes."""
        spelled = self.skeleton.vocabulary
        return hear(state.said, (spelled.first if state.where == START else spelled.data)[token], self.quotable)

    def _hear(self, token: int) -> bool:
        """Let the words say what may be quoted, if this token may stand here and ends them; tell whether it does."""
        data = self.skeleton.vocabulary.data.get(token, b"")
        if not self.quotable.limits.quoted_in_feedback or b"[" not in data:
            return False
        if self.state is None or self.skeleton.move(self.state.where, token) is None:
            return False
        words, over, _ = b"".join([*self._written, data]).partition(GOOD.encode())
        if over:
            self.quotable.support(json.loads(words + b'"}')["textual_feedback"])
        return bool(over)

    def needed(self, state: State) -> float:
        """Return a number of tokens in which the critique can be ended; infinite where it cannot."""
        where, quote, listed, said = state
        label = self.skeleton.opens.get(where)
        if said.quote is not None:
            return to_close(said, self.quotable) + self.skeleton.cost[self.skeleton.text]
        if label is None:
            return self.skeleton.cost[where]
        if quote is None and not self.quotable.may_open(label, listed):
            return float("inf")
        closing = self.skeleton.cost[self.skeleton.inside[label]]
        return self.skeleton.to_open[where] + self.quotable.needed(quote, label, listed) + closing

    def _quote(self, state: State, data: bytes) -> State | None:
        """Read bytes inside a quote, and what follows its closing mark."""
        where, quote, listed, _ = state
        label = self._label[where]
        if not data or (quote is None and not self.quotable.may_open(label, listed)):
            return None
        at = data.find(b'"')
        while at >= 0:
            whole = self.quotable.advance(quote, data[:at]) if at else quote
            if whole is None:
                return None
            text = self.quotable.text(whole)
            if text is not None:
                if not self.quotable.may_end(whole, label, listed):
                    return None
                move = self.skeleton.read(self.skeleton.inside[label], data[at:])
                if move is None:
                    return None
                after = State(move.state, None, (*listed, (label, text)))
                return self._quote(after, move.rest) if move.rest else after
            at = data.find(b'"', at + 1)  # this one is a character of the response, behind a backslash
        longer = self.quotable.advance(quote, data)
        return None if longer is None else State(where, longer, listed)

    def _barred(self) -> NDArray[np.bool_]:
        """Return which ids may not stand here, [V]; a few others may not either, which `take` finds out."""
        assert self.state is not None  # after the end, any token is taken
        where, quote, _, said = self.state
        spelled, before = self.skeleton.vocabulary.spelled, self.skeleton.vocabulary.before_quote
        found = np.ones(self.skeleton.vocabulary.size, np.bool_)
        if said.quote is not None and not said.tail:
            found[before.get(MARK[:1], ())] = False
            found[spelled.get(MARK[:1], ())] = False
            for data in self.quotable.tokens(said.quote):
                found[[*spelled.get(data, ()), *before.get(data + MARK[:1], ())]] = False
            return found
        if where not in self._label and where != END:
            return self.skeleton.barred(where, self.room)
        if where == END:
            found[list(self.eos_ids)] = False
            return found
        found[self.skeleton.next(self.skeleton.inside[self._label[where]])[0]] = False
        for data in self.quotable.tokens(quote):
            found[[*spelled.get(data, ()), *before.get(data, ())]] = False
        return found


class ConstrainedProcessor:
    """Leaves generate's arg max no choice but the best token that each row's critique allows, or one drawn of them.

    A token is drawn among all, and again among the allowed ones where it is none: the same as drawing among those.
    """

    def __init__(self, critiques: Sequence[ConstrainedCritique], numbers: Sequence[Random] = ()) -> None:
        """Take the critiques of the rows, of which nothing is written, and each row's random numbers to draw by."""
        self.critiques, self.numbers = critiques, numbers

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Choose each row's next token by the scores, [B, V], and give it the highest."""
        chosen = draw(scores, self.numbers) if self.numbers else self._best(scores)
        for row, critique in enumerate(self.critiques):
            if critique.take(chosen[row]):
                continue
            own = scores[row].float().cpu().numpy()
            chosen[row] = critique.take_drawn(own, self.numbers[row]) if self.numbers else critique.take_best(own)
        return scores.scatter_(1, torch.tensor(chosen, device=scores.device)[:, None], torch.inf)

    def _best(self, scores: Tensor) -> list[int]:
        on_cpu = scores.device.type == "cpu"
        best: list[int] = (scores.numpy() if on_cpu else scores).argmax(-1).tolist()  # numpy's takes a quarter
        return best


class DrawingProcessor:
    """Leaves generate's arg max no choice but a token that is drawn by each row's random numbers."""

    def __init__(self, numbers: Sequence[Random]) -> None:
        """Take the random numbers of the rows."""
        self.numbers = numbers

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Draw each row's next token by the scores, [B, V], and give it the highest."""
        return scores.scatter_(1, torch.tensor(draw(scores, self.numbers), device=scores.device)[:, None], torch.inf)


def draw(scores: Tensor, numbers: Sequence[Random]) -> list[int]:
    """Return one token per row, drawn by the softmax of its scores, [B, V]."""
    uniform = torch.tensor([own.random() for own in numbers], device=scores.device)
    tokens: list[int] = sample_inverse_cdf(scores, uniform).tolist()
    return tokens


def skeleton_of(tokenizer: Any, *, size: int, eos_ids: Collection[int], write_feedback: bool) -> Skeleton:
    """Return the skeleton for a tokenizer, made once.

    Args:
        tokenizer: the reward model's.
        size: how many ids the model has.
        eos_ids: ids that end a critique and are no text.
        write_feedback: False leaves the critique in words empty.

    Raises:
        ModelError: if the tokenizer cannot write a critique's JSON.
    """
    made = _SKELETONS.setdefault(tokenizer, {})
    key = (len(tokenizer), size, frozenset(eos_ids), write_feedback)
    if key not in made:
        skeleton = Skeleton(Vocabulary(tokenizer, size=size, banned=eos_ids), write_feedback=write_feedback)
        if skeleton.cost[START] == float("inf"):
            raise ModelError(
                "the tokenizer has no tokens for the JSON of a critique, so constrained decoding cannot write one. "
                "Take a tokenizer that can, or switch it off: GenerativeRewardModel(..., constrain=False), in a "
                "recipe critic.constrain = false."
            )
        made[key] = skeleton
    return made[key]


_SKELETONS: WeakKeyDictionary[Any, dict[Any, Skeleton]] = WeakKeyDictionary()
