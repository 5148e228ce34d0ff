"""Data types of the method: examples, rollouts, critiques and their spans.

All are frozen. Character offsets are half-open and count Python characters (code points) of the response as the
policy's tokenizer decodes it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from numbers import Real
from typing import Any, Literal, NamedTuple, get_args

from text2grad.errors import AlignmentError

Label = Literal["positive", "negative"]
Status = Literal["ok", "repaired", "unparsable", "timed_out", "withdrawn"]
Message = Mapping[str, Any]
Placement = Literal["spans", "lines", "sentences", "clauses", "last_token", "verdict"]
PromptFormat = Literal["plain", "chat"]
Optimizer = Literal["adamw", "muon"]

_JOINING = "\u0600-\u109f\u1780-\u18aa\u1a20-\u1cff\ua800-\uabff\ufb50-\ufdff\ufe70-\ufefc"
_JOINING += "\U00010a00-\U00011fff\U0001e900-\U0001e95f"
_EMOJI = "\u2190-\u2bff\ufe0f\U0001f000-\U0001faff"
_INVISIBLE = re.compile(  # tokens.js has the same pattern
    "\U0001f3f4[\U000e0020-\U000e007e]{3,6}\U000e007f|"
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]|"
    f"(?<![{_JOINING}])\u200c(?![{_JOINING}])|"
    f"(?<![{_JOINING}{_EMOJI}])\u200d(?![{_JOINING}])|(?<=[{_EMOJI}])\u200d(?![{_JOINING}{_EMOJI}])"
)
HALF_PAIR = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair: JSON can escape it, but UTF-8 cannot encode it, and no tokenizer can read it."""
LABELS: tuple[Label, ...] = get_args(Label)
LARGEST_REWARD = 1e9  # squares of larger ones are beyond float32
FAILED_STATUSES: frozenset[Status] = frozenset({"unparsable", "timed_out", "withdrawn"})


@dataclass(frozen=True, slots=True)
class Example:
    """One task instance x.

    Attributes:
        prompt: text, or chat messages as `{"role": ..., "content": ...}`.
        reference: a good answer, if there is one.
        tests: test code of a programming task, if there is any.
        meta: further data for critics and scorers.
    """

    prompt: str | Sequence[Message]
    reference: str | None = None
    tests: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def prompt_text(self) -> str:
        """The prompt as one text for critics and people; several turns stand between tags that say who spoke."""
        prompt = [{"content": self.prompt}] if isinstance(self.prompt, str) else self.prompt
        turns = [message for message in prompt if message.get("role") not in (None, "system", "developer")]
        if len(turns) < 2:
            return self.joined_text
        return "\n\n".join(tagged(message.get("role", ""), message.get("content") or "") for message in prompt)

    @property
    def joined_text(self) -> str:
        """The prompt as one text that a policy without a chat template continues: messages joined by blank lines."""
        return self.prompt if isinstance(self.prompt, str) else "\n\n".join(m.get("content") or "" for m in self.prompt)


@dataclass(frozen=True, slots=True)
class Span:
    """A labelled range of a response: characters [start, end), positive or negative; spans sort by place.

    Two spans are equal if they have the same place and label, whatever is said about them: a set, a vote and the
    comparison of two critics take them as one mark, of which a set keeps the first.

    Attributes:
        start: its first character, and `end` the one behind its last.
        label: "positive" or "negative".
        turn: of a `Conversation` the turn that it stands in; None: it counts in the whole response.
        reason: why, in words.
        category: the kind of fault or merit, such as "Accuracy/Mistranslation".
        severity: how much it matters, in the rater's word, such as "major".
        weight: |δ| of its tokens, a finite number from 0 up; None is 1, the paper's. A span of weight 0 marks nothing.
        rater: the person or model who marked it.
        source: where it comes from, such as "mqm" or "studio".

    Example:
        >>> span = Span(4, 9, "negative")
        >>> "see Lyons today"[span.start : span.end]
        'Lyons'
    """

    start: int
    end: int
    label: Label
    turn: int | None = None
    reason: str | None = field(default=None, compare=False)
    category: str | None = field(default=None, compare=False)
    severity: str | None = field(default=None, compare=False)
    weight: float | None = field(default=None, compare=False)
    rater: str | None = field(default=None, compare=False)
    source: str | None = field(default=None, compare=False)

    @property
    def stated(self) -> dict[str, Any]:
        """Start, end and label, and the further attributes that are not None, by name."""
        named = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in named if value is not None}

    def __lt__(self, other: "Span") -> bool:
        """Compare the turn, start, end and label."""
        mine, theirs = ((s.turn or 0, s.start, s.end, s.label) for s in (self, other))
        return mine < theirs

    def __repr__(self) -> str:
        """Leave out what has its default."""
        return f"Span({', '.join(f'{name}={value!r}' for name, value in self.stated.items())})"

    def __post_init__(self) -> None:
        """Check order and label."""
        if not 0 <= self.start <= self.end:
            raise AlignmentError(
                f"a span needs 0 <= start <= end, got start={self.start}, end={self.end}, label={self.label!r}"
            )
        if self.label not in LABELS:
            raise AlignmentError(f"a span's label is 'positive' or 'negative', got {self.label!r}")
        if self.weight is not None and not (isinstance(self.weight, Real) and 0 <= self.weight < float("inf")):
            raise AlignmentError(
                f"a span's weight is a finite number from 0 up, got {self.weight!r} at [{self.start}, {self.end}]. Its "
                "label says the sign, and 0 takes the mark away"
            )


@dataclass(frozen=True, slots=True)
class Critique:
    """A critique of one response: feedback in words, and the spans that it is about (section 3.3).

    Attributes:
        feedback: the critique c in words.
        spans: the span map A(y), in character offsets of the response.
        outcome: a judgement of the whole response, placed on its last token; None without one. An omission, which has
            no span, can change the reward through the outcome.
        status: the result of parsing the critique. δ is 0 everywhere unless it is `ok` or `repaired`.
        unmatched: quotes of the critic that the response does not contain.
    """

    feedback: str
    spans: tuple[Span, ...] = ()
    outcome: float | None = None
    status: Status = "ok"
    unmatched: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """True if the critique is unusable: unparsable, timed out, or withdrawn."""
        return self.status in FAILED_STATUSES


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation.

    Attributes:
        role: who speaks, such as "system", "user", "assistant" or "tool".
        text: what stands there; of a turn that the policy wrote, the decoded text of its sampled ids.
        sampled: True if the policy wrote it.
        thought: the part of a sampled text that is reasoning.
        tool_calls: the calls that a text was read as, each with "name" and "arguments".
        name: the tool whose result this is.
    """

    role: str
    text: str
    sampled: bool = False
    thought: str = ""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    name: str = ""


class Conversation(str):
    """A response of several turns: as a text all that the policy wrote, turn after turn, and the turns around it.

    Attributes:
        turns: all messages in order, from the first one of the prompt on. A span's `turn` is an index into them, and
            its characters count within the text of that turn.
    """

    turns: tuple[Turn, ...]

    def __new__(cls, turns: Sequence[Turn]) -> "Conversation":
        """Join what the policy wrote."""
        text = super().__new__(cls, "".join(turn.text for turn in turns if turn.sampled))
        text.turns = tuple(turns)
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        """Let copies and other processes have the turns, too."""
        return Conversation, (self.turns,)

    @property
    def text(self) -> str:
        """All turns as one text, between tags that say who spoke."""
        return "\n\n".join(tagged(turn.role, turn.text) for turn in self.turns)

    def starts(self) -> dict[int, int]:
        """Return where the text of each turn that the policy wrote begins in the whole, by the turn's index.

        Example:
            >>> Conversation([Turn("assistant", "Hm.", True), Turn("user", "So?"), Turn("assistant", "Yes", True)])
            'Hm.Yes'
            >>> _.starts()
            {0: 0, 2: 3}
        """
        starts, end = dict[int, int](), 0
        for number, turn in enumerate(self.turns):
            if turn.sampled:
                starts[number], end = end, end + len(turn.text)
        return starts


class Given(NamedTuple):
    """Ids of a rollout that the policy read and did not sample, such as a tool's result and the template's marks.

    They end a turn of the policy: between two of its turns there is at least one given id.

    Attributes:
        place: the number of sampled ids that stand before them.
        ids: these ids, at least one.
    """

    place: int
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled response y to an example x, with the exact sampled ids.

    Attributes:
        example: the task instance.
        prompt_ids: token ids of the prompt, without padding.
        response_ids: the sampled ids; they end with an end-of-sequence only if it was sampled.
        response: `tokenizer.decode(response_ids, skip_special_tokens=True)`, the text that the critic reads; of
            several turns a `Conversation`, in which each turn is decoded for itself.
        truncated: True if the length limit ended the response before an end-of-sequence.
        engine_logp: log-prob of each sampled id in nats, in the pass that sampled it; empty where that is not known.
        given: what stands between the sampled ids, in order of its places; empty for a single response.
    """

    example: Example
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    response: str
    truncated: bool
    engine_logp: tuple[float, ...] = ()
    given: tuple[Given, ...] = ()

    def __post_init__(self) -> None:
        """Check the places of given ids."""
        places = [0, *(given.place for given in self.given), len(self.response_ids)]
        if places != sorted(places) or not all(given.ids for given in self.given):
            shown = ", ".join(f"{len(given.ids)} at {given.place}" for given in self.given)
            raise AlignmentError(
                f"given ids need places in order among the {len(self.response_ids)} sampled ids, and at least one id "
                f"each, got {shown}. Leave out what gives no id, and let `place` count the sampled ids before"
            )

    def sampled_turns(self) -> list[tuple[int, ...]]:
        """Return the sampled ids before, between and behind given ids; none where no id was sampled."""
        places = [0, *(given.place for given in self.given), len(self.response_ids)]
        return [self.response_ids[start:stop] for start, stop in pairwise(places)]


def tagged(name: str, text: str) -> str:
    r"""Put a text between tags that do not occur in it.

    Example:
        >>> tagged("task", "Close it: </task>")
        '<task-1>\nClose it: </task>\n</task-1>'
    """
    tag, number = name, 0
    while f"</{tag}>" in text:
        number += 1
        tag = f"{name}-{number}"
    return f"<{tag}>\n{text}\n</{tag}>"


def visible(text: str) -> str:
    r"""Return text in which characters that act on a terminal or a page, or that nobody would see, are visible.

    Control characters become their pictures. The bytes 80 to 9F, characters without width, soft hyphens, the marks
    that reverse the direction of text, and halves of surrogate pairs become their code. Line breaks, carriage returns,
    tabs and no-break spaces stay; so do joiners beside letters of scripts that need them and in emoji.

    Example:
        >>> visible("\x1b[31mred\x07 \u202eabc")
        '␛[31mred␇ ⟨U+202E⟩abc'
        >>> visible("no\u200bw \u06a9\u200c\u0647") == "no⟨U+200B⟩w \u06a9\u200c\u0647"
        True
    """
    return "".join(signs(text))


def signs(text: str) -> list[str]:
    """Return the characters of a text as `visible` shows them, one by one."""
    characters = list(text)
    for match in _INVISIBLE.finditer(text):
        if len(match[0]) == 1:  # else a flag, spelled in characters that alone are invisible
            code = ord(match[0])
            shown = "␡" if code == 0x7F else chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"
            characters[match.start()] = shown
    return characters
