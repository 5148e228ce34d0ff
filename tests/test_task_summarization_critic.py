"""The summarization critic: against injected errors, by kind of fault, in its wording, and on garbage."""

import re
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from text2grad.tasks import _summarization_world as world
from text2grad.tasks.summarization import SummarizationTask, SummaryCritic
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
GOLD = r"Maria Lopez fixed the bike at the park on Tuesday because of the race\."
RECAP = rf"^(The post says that|In short,|What happened:) {GOLD} "


def critique_of(response: str, example: Example = EXAMPLE) -> Critique:
    return CRITIC([example], [response])[0]


def quotes(response: str, label: str, example: Example = EXAMPLE) -> list[str]:
    return [response[s.start : s.end] for s in critique_of(response, example).spans if s.label == label]


def build(example: Example, rng: Random) -> tuple[str, list[tuple[int, int, str]], int]:
    """Write a summary with known errors; return it, its true spans and how many facts it leaves out."""
    text, spans, missing = "", [], set()

    def add(lead: str, quote: str, label: str) -> None:
        nonlocal text
        text += (" " if text else "") + lead
        spans.append((len(text), len(text) + len(quote), label))
        text += quote

    for slot in world.SLOTS:
        value, choice = example.meta["facts"][slot], rng.random()
        lead = {"where": "at ", "when": "on ", "why": "because of "}.get(slot, "")
        stray = slot == "what" and "did" in missing and "who" not in missing  # a thing right after a person
        if choice < 0.4:
            add(lead, world.with_article(slot, value), "negative" if stray else "positive")
        elif choice < 0.7 or (slot == "did" and choice < 0.9):
            add(lead, world.with_article(slot, _other(slot, value, rng)), "negative")
        elif choice < 0.9:
            add("", world.FILLERS[slot], "negative")
        else:
            missing.add(slot)
            continue
        if rng.random() < 0.1 and slot in ("where", "when", "why"):
            add(lead, world.with_article(slot, rng.choice([value, _other(slot, value, rng)])), "negative")
        if rng.random() < 0.15:
            add("", rng.choice(["and the", "because of", "at the on", "zebra", "because at the"]), "negative")
    if rng.random() < 0.2:
        add("", rng.choice(world.CHATTER), "negative")
    text += rng.choice([".", " .", "!"])
    if rng.random() < 0.2:
        add("", rng.choice(["What a week.", "Maria Lopez fixed the bike.", "."]), "negative")
    return text, spans, len(missing)


def _other(slot: str, value: str, rng: Random) -> str:
    names = [f"{first} {last}" for first in world.FIRST_NAMES for last in world.LAST_NAMES]
    return rng.choice([other for other in (names if slot == "who" else world.VALUES[slot]) if other != value])


def test_the_critic_finds_exactly_the_injected_errors() -> None:
    rng = Random(4)
    for example in TRAIN.examples(700) + HELD_OUT.examples(300):
        response, expected, missing = build(example, rng)
        critique = critique_of(response, example)
        if sum(label == "negative" for *_, label in expected) > 6:
            assert "There is more like this." in critique.feedback
            continue
        assert [(s.start, s.end, s.label) for s in critique.spans] == expected, response
        assert all(f'"{response[start:end]}"' in critique.feedback for start, end, _ in expected)
        telling = {0: "", 1: r"(The \w+ is missing|Nothing names the \w+:)"}.get(missing, "(are missing|Nothing names)")
        assert re.search(telling, critique.feedback)
        assert bool(missing) == bool(re.search("missing|Nothing", critique.feedback))


def test_a_perfect_summary_gets_praise_only() -> None:
    for example in HELD_OUT.examples(200):
        response = str(example.reference)
        critique = critique_of(response, example)
        assert {span.label for span in critique.spans} == {"positive"}
        assert len(critique.spans) == 6
        assert re.search(r"\. (Everything|All of it) is right: ", critique.feedback)
        assert TRAIN.score(example, response) == {"fact_f1": 1.0, "rouge_l": 1.0, "exact": 1.0}


@pytest.mark.parametrize(
    ("response", "negative", "said"),
    [
        ("Maria Lopez fixed the bike at the park on Friday because of the race.", ["Friday"], r'day|"Friday" is in'),
        ("Maria Chen fixed the bike at the park on Tuesday because of the race.", ["Maria Chen"], "person|never names"),
        ("Maria fixed the bike at the park on Tuesday because of the race.", ["Maria"], "only half a name"),
        ("Maria Lopez sold the bike at the park on Tuesday because of the race.", ["sold"], "verb|never names"),
        (
            "Maria Lopez fixed the bike somewhere on Tuesday because of the race.",
            ["somewhere"],
            "vague|hides the place",
        ),
        (
            "Maria Lopez fixed the bike at the park on Tuesday on Tuesday because of the race.",
            ["Tuesday"],
            "one day too many|the day a second time",
        ),
        (
            "At the park fixed the bike on Tuesday because of the race Maria Lopez.",
            ["fixed"],
            "is out of place|is in the wrong place",
        ),
        (
            "Maria Lopez fixed the bike at the park on Tuesday because of the race and it was fun.",
            ["and it was fun"],
            "is chatter|adds nothing",
        ),
        (
            "Maria Lopez fixed the bike at the park on the Tuesday because of the race.",
            ["on the Tuesday"],
            "makes no sense|is garbled",
        ),
        (
            "Maria Lopez fixed the bike at the park on Tuesday because of the race.\nWhat a week.",
            ["What a week."],
            "is extra|comes after the end",
        ),
    ],
)
def test_each_kind_of_fault_is_quoted_and_named(response: str, negative: list[str], said: str) -> None:
    critique = critique_of(response)
    assert quotes(response, "negative") == negative
    assert re.search(f'"{re.escape(negative[0])}"', critique.feedback)
    assert re.search(said, critique.feedback)


def test_the_wording_names_the_truth_and_the_critique_begins_with_it() -> None:
    response = "Tom Chen fixed something at the beach on Sunday."
    critique = critique_of(response)
    assert re.match(RECAP, critique.feedback + " ")
    assert quotes(response, "positive") == ["fixed"]
    assert quotes(response, "negative") == ["Tom Chen", "something", "the beach", "Sunday"]
    assert re.search(r"(The reason is missing|Nothing names the reason: the post says the race)\.$", critique.feedback)


def test_wordings_of_a_wrong_fact_stay_true() -> None:
    """Only what the post does not name is "never named", and only what it names is "in the post"."""
    for example in TRAIN.examples(600):
        for slot in world.SLOTS:
            wrong = _other(slot, example.meta["facts"][slot], Random(example.prompt_text + slot))
            response = world.summary_of({**example.meta["facts"], slot: wrong})
            feedback = critique_of(response, example).feedback
            if "The post never names" in feedback:
                assert not re.search(rf"\b({wrong}|{world.BASE_FORMS.get(wrong, wrong)})\b", example.prompt_text)
            if "is in the post, but not as the" in feedback:
                assert re.search(rf"\b{wrong}\b", example.prompt_text)


def test_omissions_are_told_in_words_and_can_be_charged_to_the_outcome() -> None:
    critic = SummaryCritic(omission_penalty=0.5)
    short, full = critic([EXAMPLE] * 2, ["Maria Lopez fixed the bike.", world.summary_of(FACTS)])
    assert (short.outcome, full.outcome) == (-1.5, 0.0)
    assert re.search(
        r"(The place, the day and the reason are missing|Nothing names the place, the day and the reason)\.$",
        short.feedback,
    )
    assert critique_of("Maria Lopez fixed the bike.").outcome is None


def test_empty_and_broken_off_summaries_are_named_as_such() -> None:
    assert critique_of("").spans == critique_of(" \n").spans == ()
    assert re.fullmatch(RECAP.rstrip(" ") + r" The summary is empty\.", critique_of("").feedback)
    broken = "Maria Lopez fixed the bike at the"
    assert quotes(broken, "negative") == ["at the"]
    assert "The sentence breaks off." in critique_of(broken).feedback
    assert "breaks off" not in critique_of("Maria Lopez fixed the bike.").feedback


def test_quotes_stay_within_a_line_and_commas_between_phrases_are_no_fault() -> None:
    response = "Maria Lopez fixed the bike, at the park, on Tuesday, because of the race.\nWhat a\nweek."
    assert quotes(response, "negative") == ["What a", "week."]
    assert len(quotes(response, "positive")) == 6


def test_a_long_mess_is_quoted_in_part_and_the_critique_says_so() -> None:
    response = " ".join(["zebra"] * 100) + "."
    spans = critique_of(response).spans
    assert len(spans) == 6
    assert all(response[s.start : s.end] == " ".join(["zebra"] * 8) for s in spans)
    assert "There is more like this." in critique_of(response).feedback
    assert "There is more" not in critique_of("zebra.").feedback


def test_critiques_vary_in_words_but_not_for_one_answer() -> None:
    examples = TRAIN.examples(60)
    responses = [TRAIN.demonstration(example, Random(i)) for i, example in enumerate(examples)]
    critiques = CRITIC(examples, responses)
    assert critiques == CRITIC(examples, responses)
    recaps = {critique.feedback.split()[0] for critique in critiques}
    assert recaps == {"The", "In", "What"}
    frames = {re.sub(r'"[^"]*"', "Q", critique.feedback.split(". ", 1)[1]) for critique in critiques}
    assert len(frames) > 30


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
    assert sum(span.label == "negative" for span in critique.spans) <= 6
    assert all(0 <= value <= 1 for value in TRAIN.score(EXAMPLE, response).values())
