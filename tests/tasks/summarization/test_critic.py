"""The summarization critic: against injected errors, by kind of fault, in its wording, and on garbage."""

import re
from collections.abc import Mapping
from itertools import pairwise
from random import Random
from statistics import fmean

import pytest
from hypothesis import given, settings, strategies as st

from fact_critiques import ABOUT_A_FACT, ABOUT_NONE, MISSING, Judged, judged, others, told_in
from text2grad.tasks.summarization import world
from text2grad.tasks.summarization.task import SummarizationTask, SummaryCritic
from text2grad.types import Critique, Example

TRAIN, HELD_OUT = SummarizationTask("train"), SummarizationTask("held_out")
CRITIC = SummaryCritic()
FACTS = {"who": "Maria Lopez", "did": "fixed", "what": "bike", "where": "park", "when": "Tuesday", "why": "race"}
DISTRACTORS = {"who": ["Tom Chen"], "did": [], "what": [], "where": ["beach"], "when": ["Friday"], "why": []}
POST = (
    "Tom Chen was at the beach on Friday. Maria Lopez fixed the bike. It happened at the park. "
    "The day was Tuesday. The reason was the race."
)
EXAMPLE = Example(POST + "\nTL;DR:", meta={"facts": FACTS, "distractors": DISTRACTORS})
GOLD = "Maria Lopez fixed the bike at the park on Tuesday because of the race."

# Both styles: what is true of each slot, and what each judgement says. A full name is judged half by half.
TRUTHS = {
    "first": ("The first name is {}", "The name begins with {}"),
    "last": ("The last name is {}", "The surname is {}"),
    "who": ("The person is {}", "It was {}"),
    "did": ("The verb is {}", "The post says {}"),
    "what": ("The thing is the {}", "It was the {}"),
    "where": ("The place is the {}", "It was at the {}"),
    "when": ("The day is {}", "It was on {}"),
    "why": ("The reason is the {}", "It was because of the {}"),
}
NOUNS = {
    "first": "first name",
    "last": "last name",
    "who": "person",
    "did": "verb",
    "what": "thing",
    "where": "place",
    "when": "day",
    "why": "reason",
}


def critique_of(response: str, example: Example = EXAMPLE) -> Critique:
    return CRITIC([example], [response])[0]


def quotes(response: str, label: str, example: Example = EXAMPLE) -> list[str]:
    return [response[s.start : s.end] for s in critique_of(response, example).spans if s.label == label]


def kinds(slot: str, style: int) -> dict[str, str]:
    """Return the kind of judgement by its words, of those that a remark on this slot, "" for none, can hold."""
    of_halves, of_names = ("right", "wrong"), ("vague", "half", "duplicate", "misplaced")
    of_others = tuple(kind for kind in ABOUT_A_FACT if kind != "half")
    known = {"": tuple(ABOUT_NONE), "first": of_halves, "last": of_halves, "who": of_names}.get(slot, of_others)
    return {(ABOUT_A_FACT | ABOUT_NONE)[kind][style].format(noun=NOUNS.get(slot)): kind for kind in known}


def told(feedback: str, facts: Mapping[str, str] = FACTS) -> tuple[int, list[tuple[str, Judged | str]]]:
    return told_in(feedback, facts, TRUTHS, kinds)


def build(example: Example, rng: Random) -> tuple[str, list[tuple[str, str, str]], list[tuple[int, int]], list[str]]:
    """Write a summary with known errors.

    Return it, its pieces with their kinds and slots, where these are, and the slots that it leaves out.
    """
    text, pieces, places, missing = "", [], [], []

    def add(lead: str, quote: str, kind: str, slot: str = "") -> None:
        nonlocal text
        text += (" " if text else "") + lead
        pieces.append((quote, kind, slot))
        places.append((len(text), len(text) + len(quote)))
        text += quote

    def add_name(name: str, truth: str) -> None:
        for half, true, slot in zip(name.split(), truth.split(), ("first", "last"), strict=True):
            add("", half, "right" if half == true else "wrong", slot)

    for slot in world.SLOTS:
        value, choice = example.meta["facts"][slot], rng.random()
        lead = {"where": "at ", "when": "on ", "why": "because of "}.get(slot, "")
        stray = slot == "what" and "did" in missing and "who" not in missing  # a thing right after a person
        if slot == "who" and (choice < 0.4 or 0.5 <= choice < 0.7):
            add_name(value if choice < 0.4 else _other(slot, value, rng), value)
        elif choice < 0.4:
            add(lead, world.with_article(slot, value), "misplaced" if stray else "right", slot)
        elif slot == "who" and choice < 0.5:
            add("", rng.choice(value.split()), "half", slot)
        elif choice < 0.7 or (slot == "did" and choice < 0.9):
            add(lead, world.with_article(slot, _other(slot, value, rng)), "misplaced" if stray else "wrong", slot)
        elif choice < 0.9:
            add("", world.FILLERS[slot], "misplaced" if stray else "vague", slot)
        else:
            missing.append(slot)
            continue
        if rng.random() < 0.1 and slot in ("where", "when", "why"):
            add(lead, world.with_article(slot, rng.choice([value, _other(slot, value, rng)])), "duplicate", slot)
        if rng.random() < 0.15:
            add("", rng.choice(["and the", "because of", "at the on", "zebra", "because at the"]), "garbled")
    if rng.random() < 0.2:
        add("", rng.choice(world.CHATTER), "chatter")
    if rng.random() < 0.9:
        text += rng.choice([".", " .", "!"])
        if rng.random() < 0.2:
            add("", rng.choice(["What a week.", "Maria Lopez fixed the bike.", "."]), "extra")
    return text, pieces, places, missing


def _other(slot: str, value: str, rng: Random) -> str:
    names = [f"{first} {last}" for first in world.FIRST_NAMES for last in world.LAST_NAMES]
    return rng.choice([other for other in (names if slot == "who" else world.VALUES[slot]) if other != value])


def test_the_critic_finds_and_names_exactly_the_injected_errors_and_omissions() -> None:
    rng, named, crowded = Random(4), set(), 0
    for example in TRAIN.examples(700) + HELD_OUT.examples(300):
        response, pieces, places, missing = build(example, rng)
        critique = critique_of(response, example)
        faults = [i for i, (_, kind, _) in enumerate(pieces) if kind != "right"]
        kept = [i for i in range(len(pieces)) if i not in faults[7:]]
        style, remarks = told(critique.feedback, example.meta["facts"])
        assert judged(remarks) == [pieces[i] for i in kept], response
        assert [(s.start, s.end, s.label) for s in critique.spans] == [
            (*places[i], "positive" if pieces[i][1] == "right" else "negative") for i in kept
        ]
        rest = [("", "There is more like this.")] * (len(faults) > 7)
        rest += [("", "The sentence breaks off.")] * (not re.search(r"[.!]", response))
        assert others(remarks) == rest + [(slot, MISSING[style]) for slot in missing]
        assert remarks[len(remarks) - len(others(remarks)) :] == others(remarks), "they come last"
        told_of = [slot for slot, _ in remarks]
        assert all(a != b or not a for a, b in pairwise(told_of)), "one remark for one slot"
        assert all(len(verdicts) == 1 for slot, verdicts in remarks if not slot and not isinstance(verdicts, str))
        named |= {(kind, style) for _, kind, _ in judged(remarks)}
        crowded += len(faults) > 7
    assert named == {(kind, style) for kind in (*ABOUT_A_FACT, *ABOUT_NONE) for style in (0, 1)}
    assert crowded > 3


def test_a_perfect_summary_gets_praise_only() -> None:
    styles = []
    for example in HELD_OUT.examples(200):
        response, facts = str(example.reference), example.meta["facts"]
        critique = critique_of(response, example)
        style, remarks = told(critique.feedback, facts)
        halves = list(zip(("first", "last"), facts["who"].split(), strict=True))
        stated = halves + [(slot, world.with_article(slot, facts[slot])) for slot in world.SLOTS[1:]]
        assert remarks == [(slot, [(value, "right")]) for slot, value in stated]
        assert [span.label for span in critique.spans] == ["positive"] * 7
        assert TRAIN.score(example, response) == {"fact_f1": 1.0, "exact": 1.0}
        styles.append(style)
    assert 0.35 < fmean(styles) < 0.65


@pytest.mark.parametrize(
    ("response", "negative", "slot", "kind"),
    [
        (GOLD.replace("Tuesday", "Friday"), "Friday", "when", "wrong"),  # another's day
        (GOLD.replace("Tuesday", "Sunday"), "Sunday", "when", "wrong"),  # nobody's
        (GOLD.replace("park", "beach"), "the beach", "where", "wrong"),
        (GOLD.replace("race", "storm"), "the storm", "why", "wrong"),
        (GOLD.replace("bike", "boat"), "the boat", "what", "wrong"),
        (GOLD.replace("fixed", "sold"), "sold", "did", "wrong"),
        (GOLD.replace("Maria", "Tom"), "Tom", "first", "wrong"),
        (GOLD.replace("Lopez", "Chen"), "Chen", "last", "wrong"),
        (GOLD.replace("Maria Lopez", "Maria"), "Maria", "who", "half"),
        (GOLD.replace("Maria Lopez", "Weber"), "Weber", "who", "half"),
        (GOLD.replace("Maria Lopez", "Someone"), "Someone", "who", "vague"),
        (GOLD.replace("the bike", "something"), "something", "what", "vague"),
        (GOLD.replace("at the park", "somewhere"), "somewhere", "where", "vague"),
        (GOLD.replace("on Tuesday", "at some point"), "at some point", "when", "vague"),
        (GOLD.replace("because of the race", "for some reason"), "for some reason", "why", "vague"),
        (GOLD.replace("on Tuesday", "on Tuesday on Sunday"), "Sunday", "when", "duplicate"),
        (GOLD.replace("at the park", "at the park somewhere"), "somewhere", "where", "duplicate"),
        ("At the park fixed the bike on Tuesday because of the race Maria Lopez.", "fixed", "did", "misplaced"),
        ("Maria Lopez the bike at the park on Tuesday because of the race.", "the bike", "what", "misplaced"),
        ("Fixed Maria Lopez at the park on Tuesday because of the race.", "Maria Lopez", "who", "misplaced"),
        (GOLD[:-1] + " and it was fun.", "and it was fun", "", "chatter"),
        (GOLD.replace("on Tuesday", "on Tuesday which is a long story"), "which is a long story", "", "chatter"),
        (GOLD.replace("on Tuesday", "on the Tuesday"), "on the Tuesday", "", "garbled"),
        (GOLD + "\nWhat a week.", "What a week.", "", "extra"),
    ],
)
def test_each_kind_of_fault_is_quoted_and_named_beside_the_truth(
    response: str, negative: str, slot: str, kind: str
) -> None:
    assert quotes(response, "negative") == [negative]
    named = set()
    for prompt in "abcdefghijklmnop":  # each draws its own style
        style, remarks = told(critique_of(response, Example(prompt, meta=EXAMPLE.meta)).feedback)
        assert [found for found in judged(remarks) if found[1] != "right"] == [(negative, kind, slot)]
        named.add(style)
    assert named == {0, 1}


@pytest.mark.parametrize(
    ("name", "verdicts"),
    [
        ("Maria Lopez", [("Maria", "right", "first"), ("Lopez", "right", "last")]),
        ("maria LOPEZ", [("maria", "right", "first"), ("LOPEZ", "right", "last")]),
        ("Maria Chen", [("Maria", "right", "first"), ("Chen", "wrong", "last")]),
        ("Tom Lopez", [("Tom", "wrong", "first"), ("Lopez", "right", "last")]),
        ("Tom Chen", [("Tom", "wrong", "first"), ("Chen", "wrong", "last")]),
        ("Lopez", [("Lopez", "half", "who")]),
        ("Lopez Maria", [("Lopez", "half", "who"), ("Maria", "duplicate", "who")]),
        (
            "Maria Lopez Tom Chen",
            [("Maria", "right", "first"), ("Lopez", "right", "last"), ("Tom Chen", "duplicate", "who")],
        ),
    ],
)
def test_the_halves_of_a_full_name_are_judged_each_on_its_own(name: str, verdicts: list[tuple[str, str, str]]) -> None:
    response = GOLD.replace("Maria Lopez", name)
    assert judged(told(critique_of(response).feedback)[1])[: len(verdicts)] == verdicts
    starts = [(span.start, span.label == "positive") for span in critique_of(response).spans]
    assert starts[: len(verdicts)] == [(response.index(quote), kind == "right") for quote, kind, _ in verdicts]
    assert "who" not in [slot for slot, _ in others(told(critique_of(response).feedback)[1])]


def test_each_remark_first_says_what_is_true_and_then_what_of_it_the_response_has() -> None:
    response = "Tom Chen fixed something at the beach on Tuesday on Sunday and it was fun. What a week."
    assert quotes(response, "positive") == ["fixed", "Tuesday"]
    assert quotes(response, "negative") == [
        "Tom",
        "Chen",
        "something",
        "the beach",
        "Sunday",
        "and it was fun",
        "What a week.",
    ]
    assert {critique_of(response, Example(prompt, meta=EXAMPLE.meta)).feedback for prompt in "abcdefghijklmnop"} == {
        'The first name is Maria: "Tom" is wrong. The last name is Lopez: "Chen" is wrong. '
        'The verb is fixed: "fixed" is right. The thing is the bike: "something" is vague. '
        'The place is the park: "the beach" is wrong. '
        'The day is Tuesday: "Tuesday" is right and "Sunday" is one day too many. '
        '"and it was fun" is chatter. "What a week." is extra. The reason is the race: it is missing.',
        'The name begins with Maria: "Tom" is the wrong first name. '
        'The surname is Lopez: "Chen" is the wrong last name. The post says fixed: "fixed" is correct. '
        'It was the bike: "something" is too vague. It was at the park: "the beach" is the wrong place. '
        'It was on Tuesday: "Tuesday" is correct and "Sunday" is a second day. '
        '"and it was fun" is no fact. "What a week." is after the end. It was because of the race: nothing names it.',
    }


def test_whatever_a_response_says_the_truths_are_those_of_the_post_and_every_slot_is_told_of() -> None:
    rng, styles = Random(3), []
    for example in TRAIN.examples(300) + HELD_OUT.examples(200) + SummarizationTask("train", "hard").examples(100):
        for response in (TRAIN.demonstration(example, rng), TRAIN.corruption(example, rng)):
            critique = critique_of(response, example)
            if not response.strip():
                assert critique == Critique("The summary is empty.", ())
                continue
            style, remarks = told(critique.feedback, example.meta["facts"])
            found, missing = judged(remarks), [slot for slot, _ in others(remarks) if slot]
            assert [(quote, "positive" if kind == "right" else "negative") for quote, kind, _ in found] == [
                (response[s.start : s.end], s.label) for s in critique.spans
            ]
            mentioned = {"who" if slot in ("first", "last") else slot for *_, slot in found} - {""}
            if ("", "There is more like this.") not in remarks:
                assert missing == [slot for slot in world.SLOTS if slot not in mentioned]
            assert not mentioned & {*missing}
            styles.append(style)
    assert 0.45 < fmean(styles) < 0.55


def test_what_follows_each_quote_begins_with_exactly_one_of_the_verdicts_and_each_of_them_occurs() -> None:
    verdicts = TRAIN.verdicts()
    wordings = [text for choices in (ABOUT_A_FACT | ABOUT_NONE).values() for text in choices]
    assert verdicts == HELD_OUT.verdicts() == sorted({'" ' + text.split(" {")[0] for text in wordings})
    assert {'" is right', '" is the wrong', '" is one', '" is only half a name', '" is no fact'} < {*verdicts}
    rng, found = Random(6), set()
    for example in TRAIN.examples(500):
        feedback = critique_of(build(example, rng)[0], example).feedback
        for match in re.finditer(r'"[^"]*"', feedback):
            (verdict,) = [verdict for verdict in verdicts if feedback.startswith(verdict, match.end() - 1)]
            assert re.match(
                r"\W|$| (?:person|first name|last name|verb|thing|place|day|reason)\b",
                feedback[match.end() - 1 + len(verdict) :],
            )
            found.add(verdict)
    assert found == {*verdicts}


def test_omissions_are_told_in_words() -> None:
    assert others(told(critique_of(GOLD).feedback)[1]) == []
    assert critique_of("Maria Lopez fixed the bike.").outcome is None
    endings = {
        re.split(r'"the bike" is \w+\. ', critique_of("Maria Lopez fixed the bike.", example).feedback)[1]
        for example in (Example(prompt, meta=EXAMPLE.meta) for prompt in "abcdefghijklmnop")
    }
    assert endings == {
        "The place is the park: it is missing. The day is Tuesday: it is missing. "
        "The reason is the race: it is missing.",
        "It was at the park: nothing names it. It was on Tuesday: nothing names it. "
        "It was because of the race: nothing names it.",
    }


@pytest.mark.parametrize("slot", world.SLOTS)
def test_each_slot_that_is_left_out_is_told_of(slot: str) -> None:
    response = " ".join(world.phrase(name, FACTS[name]) for name in world.SLOTS if name != slot) + "."
    style, remarks = told(critique_of(response).feedback)
    assert remarks[-1] == (slot, MISSING[style])
    assert len(remarks) == (6 if slot == "who" else 7)


def test_empty_and_broken_off_summaries_are_named_as_such() -> None:
    assert critique_of("") == critique_of(" \n") == Critique("The summary is empty.", ())
    broken = "Maria Lopez fixed the bike at the"
    assert quotes(broken, "negative") == ["at the"]
    style, remarks = told(critique_of(broken).feedback)
    assert remarks[4:] == [
        ("", [("at the", "garbled")]),
        ("", "The sentence breaks off."),
        *((slot, MISSING[style]) for slot in ("where", "when", "why")),
    ]
    assert "breaks off" not in critique_of("Maria Lopez fixed the bike.").feedback


def test_quotes_stay_within_a_line_and_commas_between_phrases_are_no_fault() -> None:
    response = "Maria Lopez fixed the bike, at the park, on Tuesday, because of the race.\nWhat a\nweek."
    assert quotes(response, "negative") == ["What a", "week."]
    assert len(quotes(response, "positive")) == 7


def test_a_long_mess_is_quoted_in_part_and_the_critique_says_so() -> None:
    response = " ".join(["zebra"] * 100) + "."
    assert quotes(response, "negative") == [" ".join(["zebra"] * 8)] * 7
    style, remarks = told(critique_of(response).feedback)
    assert judged(remarks) == [(" ".join(["zebra"] * 8), "garbled", "")] * 7
    assert others(remarks) == [("", "There is more like this."), *((slot, MISSING[style]) for slot in world.SLOTS)]
    assert "There is more" not in critique_of("zebra.").feedback


def test_critiques_vary_in_style_but_not_for_one_answer() -> None:
    examples = TRAIN.examples(200)
    responses = [TRAIN.demonstration(example, Random(i)) for i, example in enumerate(examples)]
    critiques = CRITIC(examples, responses)
    assert critiques == CRITIC(examples, responses) == CRITIC(examples[::-1], responses[::-1])[::-1]
    # The style hangs on the post and on the answer, each alone.
    assert {told(critique_of(GOLD, Example(prompt, meta=EXAMPLE.meta)).feedback)[0] for prompt in "abcdefgh"} == {0, 1}
    assert {told(critique_of(GOLD.replace("park", place)).feedback)[0] for place in world.PLACES} == {0, 1}


WORDS = st.lists(st.sampled_from([*TRAIN.vocabulary(), "\n", "  ", "zebra", "é", "😀", '"']), max_size=40)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.one_of(WORDS.map(" ".join), WORDS.map("".join), st.text(max_size=60)))
def test_garbage_gets_ordered_spans_within_it_each_quoted_word_for_word(response: str) -> None:
    critique = critique_of(response)
    end = 0
    for span in critique.spans:
        assert end <= span.start < span.end <= len(response)
        assert f'"{response[span.start : span.end]}"' in critique.feedback
        assert "\n" not in response[span.start : span.end]
        end = span.end
    assert critique.status == "ok"
    assert sum(span.label == "negative" for span in critique.spans) <= 7
    assert all(0 <= value <= 1 for value in TRAIN.score(EXAMPLE, response).values())
    if response.strip() and '"' not in response:
        assert [(quote, kind == "right") for quote, kind, _ in judged(told(critique.feedback)[1])] == [
            (response[s.start : s.end], s.label == "positive") for s in critique.spans
        ]
