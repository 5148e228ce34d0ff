"""The critic of programs: findings → English sentences that quote each expression exactly."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from evidence.tasks.code.reading import Reading, read
from evidence.tasks.code.world import INPUT, NAMES, USUAL, Step, expression, steps_of
from text2grad.tasks.base import split_words
from text2grad.tasks.program_critic import STYLES, Finding, ProgramCritic, bare, judged, sentences
from text2grad.types import Critique, Example

NEEDS = ("Step {step} needs {truth}", "Step {step} is {truth}")
RIGHT = ("{quote} is right", "{quote} fits")
SLIPS = {
    "above": "also keeps {k}",
    "below": "also keeps {k}",
    "at_least": "loses {k}",
    "at_most": "loses {k}",
    "double": "squares",
    "square": "only doubles",
    "subtract": "is the wrong way round",
    "first": "skips them",
    "skip": "keeps only them",
    "last": "drops them",
    "drop_last": "keeps only them",
    "rising": "sorts the wrong way",
    "falling": "sorts the wrong way",
    "reverse": "sorts them as well",
    "sum": "only counts",
    "count": "adds them up",
    "largest": "takes the wrong end",
    "smallest": "takes the wrong end",
}
FAULTS: dict[str, tuple[str, ...]] = {
    "wrong": ("{quote} is wrong", "{quote} is not it"),
    "surplus": ("{quote} is too much",),
    "foreign": ("{quote} has a wrong name",),
    "stale": ("{quote} reads an old list",),
    "undefined": ("{quote} has no value",),
    "unreadable": ("{quote} does not read",),
    "duplicate": ("{quote} does it again", "{quote} is a second line"),
    "misplaced": ("{quote} is too late", "{quote} is out of order"),
    "extra": ("{quote} is for no step", "{quote} is a line too many"),
    "late": ("{quote} is after the return", "{quote} is too late"),
    "indent": ("{quote} is out of line", "{quote} is at the wrong place"),
    "returned": ("{quote} is not the last result", "{quote} has the wrong name"),
}
MISSING = ("it is missing", "it has no line")
MISSING_UNSTATED = ("Step {step} is missing", "Step {step}: it has no line")  # where the truth is not stated
NO_RETURN = ("The return is missing.", "Nothing is returned.")
EMPTY = "The program is empty."
MORE = "There is more like this."
MOST_FAULTS, MOST_WORDS = 5, 34  # quoted faults, and words in all quotes together, for up to five steps


@dataclass(frozen=True, slots=True)
class CodeCritic(ProgramCritic):
    """Judges programs in words, each line against its step, without running them."""

    def judge(self, example: Example, response: str, rng: Random) -> Critique:
        """Judge one program."""
        steps = steps_of(example)
        reading = read(response, steps)
        feedback = _write(reading, response, steps, rng, truths=self.truths)
        return judged(feedback, _quotable(reading, response, len(steps)))


def _quotable(reading: Reading, response: str, steps: int) -> list[Finding]:
    """Return the findings that the critique quotes: all positive ones, the first fault, and the next that fit."""
    most_faults, most_words = (most * max(steps, USUAL) // USUAL for most in (MOST_FAULTS, MOST_WORDS))
    sizes = {finding: len(split_words(response[finding.start : finding.end])) for finding in reading.findings}
    faults = [finding for finding in reading.findings if finding.kind != "right"]
    kept = [finding for finding in reading.findings if finding.kind == "right"] + faults[:1]
    room = most_words - sum(map(sizes.__getitem__, kept))
    for finding in faults[1:most_faults]:
        room -= sizes[finding]
        if room < 0:
            break
        kept.append(finding)
    return sorted(kept, key=lambda finding: finding.start)


def _write(reading: Reading, response: str, steps: Sequence[Step], rng: Random, *, truths: bool) -> str:
    """Return the critique; each quotable finding is quoted exactly as it stands in the response."""
    if not response.strip():
        return EMPTY
    kept, style = _quotable(reading, response, len(steps)), rng.randrange(STYLES)
    needs = [_truth(step, place, style) for place, step in enumerate(steps)]

    def stated(finding: Finding) -> str | None:
        return needs[finding.about] if truths and finding.about is not None else None

    text = sentences(kept, stated, lambda finding: _verdict(finding, response, steps, style, truths=truths))
    text += [MORE] if len(kept) < len(reading.findings) else []
    for place in reading.missing:
        text.append(f"{needs[place]}: {MISSING[style]}." if truths else _left_out(place, style))
    return " ".join(text if reading.returns else [*text, NO_RETURN[style]])


def _left_out(place: int, style: int) -> str:
    """Return the remark on a step without a line that does not state what the step needs."""
    return f"{MISSING_UNSTATED[style].format(step=NAMES[place])}."


def _truth(step: Step, place: int, style: int) -> str:
    """Return the expression that a step needs, in words and with the names of a right program."""
    needed = expression(step, place, NAMES[place - 1] if place else INPUT)
    return NEEDS[style].format(step=NAMES[place], truth=needed)


def _verdict(finding: Finding, response: str, steps: Sequence[Step], style: int, *, truths: bool) -> str:
    """Return the judgement of one quote; one style names a habitual mistake, which tells what is right."""
    choice, k = RIGHT if finding.kind == "right" else FAULTS[finding.kind if finding.kind != "slip" else "wrong"], 0
    if finding.kind == "slip" and truths:
        operation, k = steps[finding.about]
        choice = (choice[0], "{quote} " + SLIPS[operation])
    return choice[style % len(choice)].format(quote=f'"{response[finding.start : finding.end]}"', k=k)


def judgements() -> list[str]:
    """Return every wording of a judgement."""
    slips = ("{quote} " + slip for slip in SLIPS.values())
    return [*RIGHT, *slips, *(text for choices in FAULTS.values() for text in choices)]


def words() -> list[str]:
    """Return texts that hold every word of critiques, apart from expressions and quotes."""
    wordings = [
        *NEEDS,
        *RIGHT,
        *MISSING,
        *MISSING_UNSTATED,
        *SLIPS.values(),
        *(text for choices in FAULTS.values() for text in choices),
    ]
    return [*map(bare, wordings), *NO_RETURN, EMPTY, MORE, '" and: ']
