"""The code critic: against injected errors, by kind of fault, in its wording, against the unit tests, on garbage."""

import re
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from text2grad.errors import DataError
from text2grad.tasks import _code_world as world
from text2grad.tasks._code_expressions import parse
from text2grad.tasks._code_world import Step
from text2grad.tasks.code import CodeCritic, CodeTask, steps_of
from text2grad.types import Critique, Example

TRAIN, HELD_OUT = CodeTask("train"), CodeTask("held_out")
CRITIC = CodeCritic()
STEPS = [["above", 3], ["double", 0], ["first", 2], ["sum", 0]]
LINES = ["b = [i for i in a if i > 3]", "c = [j * 2 for j in b]", "d = c[:2]", "e = sum(d)", "return e"]
EXAMPLE = Example("a specification\ndef solve(a):\n", "\n ".join(LINES), meta={"steps": STEPS})
RIGHT = ["i > 3", "j * 2", "c[:2]", "sum(d)"]
REMARK = re.compile(
    r'(?:Step (?P<step>\w+) (?:needs|is) (?P<truth>[^".]+): )?(?P<verdicts>(?:"[^"]*"|[^".])+\.)(?: |$)'
)
VERDICT = re.compile(r'"(?P<quote>[^"]*)" (?P<said>[^"]+?)(?: and (?=")|\.$)')
PRAISE, MISSING = ("is right", "fits"), ("it is missing.", "it has no line.")
Verdict = tuple[str, str, int | None]  # the quote, what is said of it or its label, the place of the step if any


def critique_of(response: str, example: Example = EXAMPLE) -> Critique:
    return CRITIC([example], [response])[0]


def quotes(response: str, label: str, example: Example = EXAMPLE) -> list[str]:
    return [response[s.start : s.end] for s in critique_of(response, example).spans if s.label == label]


def remarks_of(feedback: str, example: Example = EXAMPLE) -> list[tuple[int | None, str]]:
    """Return of each remark the place of the step that it names, if any, and what follows the truth of that step.

    No word is left over, and what a step needs is what the reference has.
    """
    found = list(REMARK.finditer(feedback))
    assert "".join(match[0] for match in found) == feedback
    reference = str(example.reference)
    right = [reference[span.start : span.end] for span in critique_of(reference, example).spans]
    places = [world.ORDINALS.index(match["step"]) if match["step"] else None for match in found]
    assert [match["truth"] for match in found] == [None if place is None else right[place] for place in places]
    return [(place, match["verdicts"]) for place, match in zip(places, found, strict=True)]


def verdicts_of(feedback: str, example: Example = EXAMPLE) -> list[Verdict]:
    """Return what is said of each quote."""
    verdicts = []
    for place, text in remarks_of(feedback, example):
        found = list(VERDICT.finditer(text))
        assert not found or "".join(match[0] for match in found) == text
        assert place is not None or len(found) <= 1
        verdicts += [(match["quote"], match["said"], place) for match in found]
    return verdicts


def judged(feedback: str, example: Example = EXAMPLE) -> list[Verdict]:
    """Return the label that each quote gets by what is said of it."""
    verdicts = verdicts_of(feedback, example)
    return [(quote, "positive" if said in PRAISE else "negative", place) for quote, said, place in verdicts]


def omitted(feedback: str, example: Example = EXAMPLE) -> list[int | None]:
    return [place for place, text in remarks_of(feedback, example) if text in MISSING]


def with_line(place: int, line: str) -> str:
    return "\n ".join([*LINES[:place], line, *LINES[place + 1 :]])


def build(example: Example, rng: Random) -> tuple[str, list[Verdict], list[int]]:
    """Write a program with known errors; return it, its true quotes with labels and places, and the steps left out."""
    expected: list[Verdict] = []
    lines, missing, source = [], [], "a"
    for place, step in enumerate(steps_of(example)):
        choice, name = rng.random(), world.NAMES[place]
        other = Step("subtract", 99) if choice > 0.8 else world.slipped(step)
        if choice < 0.15 and len(missing) < 2:
            missing.append(place)
            continue
        written = step if choice < 0.5 else other
        lines.append(f"{name} = {world.right_side(written, place, source)}")
        label = "positive" if written == step else "negative"
        expected.append((world.expression(written, place, source), label, place))
        source = name
        if rng.random() < 0.08:
            lines.append(f"{name} = {world.right_side(step, place, 'a')}")
            expected.append((world.right_side(step, place, "a"), "negative", place))
        if rng.random() < 0.08:
            lines.append(rng.choice(["zebra", "g = 3", "b", "pass"]))
            expected.append((lines[-1], "negative", None))
    if rng.random() < 0.8:
        lines.append(f"return {source}")
    return "\n ".join(lines), expected, missing


def test_the_critic_finds_exactly_the_injected_errors() -> None:
    rng = Random(4)
    for example in TRAIN.examples(500) + HELD_OUT.examples(300):
        response, expected, missing = build(example, rng)
        critique = critique_of(response, example)
        found = judged(critique.feedback, example)
        assert [(response[s.start : s.end], s.label) for s in critique.spans] == [verdict[:2] for verdict in found]
        if "There is more like this." in critique.feedback:
            assert len(found) < len(expected)
            assert set(found) <= set(expected)
        else:
            assert found == expected, response
        assert omitted(critique.feedback, example) == (missing if response else [])
        assert ("return" in response) != bool(
            re.search("The return is missing|Nothing is ret|empty", critique.feedback)
        )


def test_a_right_program_gets_praise_only() -> None:
    for example in HELD_OUT.examples(150):
        critique = critique_of(str(example.reference), example)
        assert {span.label for span in critique.spans} == {"positive"}
        assert len(critique.spans) == len(steps_of(example))
        places = list(range(len(steps_of(example))))
        assert [place for place, _ in remarks_of(critique.feedback, example)] == places
        verdicts = verdicts_of(critique.feedback, example)
        assert [place for *_, place in verdicts] == places
        assert {said for _, said, _ in verdicts} <= {*PRAISE}


@pytest.mark.parametrize(
    ("response", "negative", "place", "said"),
    [
        (with_line(0, "b = [i for i in a if i >= 3]"), "i >= 3", 0, "is wrong|is not it|keeps 3 as well"),
        (with_line(0, "b = [i for i in a if i > 4]"), "i > 4", 0, "is wrong|is not it"),
        (with_line(0, "b = [i for i in a]"), "[i for i in a]", 0, "is wrong|is not it"),
        (with_line(0, "b = [i > 3 for i in a]"), "i > 3", 0, "is wrong|is not it"),
        (with_line(0, "b = [i * 2 for i in a if i > 3]"), "i * 2", 0, "is too much"),
        (with_line(1, "c = [j ** 2 for j in b]"), "j ** 2", 1, "is wrong|is not it|squares"),
        (with_line(1, "c = [i * 2 for j in b]"), "i * 2", 1, "has a wrong name"),
        (with_line(1, "c = [j * 2 for j in a]"), "j in a", 1, "reads an old list"),
        (with_line(1, "c = [j * 2 for j in e]"), "j in e", 1, "has no value"),
        (with_line(1, "c = [j * 2 for j in b if j]"), "j", 1, "is too much"),
        (with_line(1, "c = [j * 2 for in b]"), "[j * 2 for in b]", 1, "does not read"),
        (with_line(1, "c = [j * * 2 for j in b]"), "j * * 2", 1, "does not read"),
        (with_line(2, "d = b[:2]"), "b[:2]", 2, "reads an old list"),
        (with_line(2, "d = x[:2]"), "x[:2]", 2, "has no value"),
        (with_line(2, "d = c[2:]"), "c[2:]", 2, "is wrong|is not it|skips them"),
        (with_line(2, "d = c[:2]\n d = c[:2]"), "c[:2]", 2, "does it again|is a second line"),
        (with_line(2, "d = c[:2]\n b = c"), "c", 0, "does it again|is a second line"),
        (with_line(3, "e = len(d)"), "len(d)", 3, "is wrong|is not it|only counts"),
        (with_line(3, "e = sum(d)\n print(e)"), "print(e)", None, "is for no step|is a line too many"),
        (with_line(3, "e = sum(d)\n f = e"), "f = e", None, "is for no step|is a line too many"),
        (with_line(3, "e = sum(d)\nreturn e"), "return e", None, "is after the return|is too late"),
        (with_line(4, "return d"), "return d", None, "is not the last result|has the wrong name"),
        (with_line(4, "return 2"), "return 2", None, "is not the last result|has the wrong name"),
        (with_line(4, "return e\n e = 3"), "e = 3", None, "is after the return|is too late"),
        (with_line(2, "  d = c[:2]"), "d =", None, "is out of line|is at the wrong place"),
        (
            "\n ".join(LINES[:2] + LINES[3:4] + LINES[2:3] + ["return d"]),
            "c[:2]",
            2,
            "is too late|is out of order",
        ),
    ],
)
def test_each_kind_of_fault_is_quoted_and_named_beside_what_its_step_needs(
    response: str, negative: str, place: int | None, said: str
) -> None:
    assert negative in quotes(response, "negative")
    named = set()
    for prompt in "abcdefghijklmnopqrstuvwxyz":  # each draws its own wording
        example = Example(prompt, EXAMPLE.reference, meta=EXAMPLE.meta)
        verdicts = verdicts_of(critique_of(response, example).feedback, example)
        ((verdict, step),) = {(v, step) for quote, v, step in verdicts if quote == negative and v not in PRAISE}
        named.add(verdict)
        assert step == place
    assert named == set(said.split("|"))


def test_each_remark_first_says_what_the_step_needs_and_then_what_the_program_has() -> None:
    response = "b = [i * 2 for i in a if i >= 3]\n print(b)\n d = b[:2]\n e = len(d)\n return e"
    assert quotes(response, "positive") == ["b[:2]"]
    assert quotes(response, "negative") == ["i * 2", "i >= 3", "print(b)", "len(d)"]
    assert re.fullmatch(
        r'Step one (needs|is) i > 3: "i \* 2" is too much and "i >= 3" (is wrong|is not it|keeps 3 as well)\. '
        r'"print\(b\)" (is for no step|is a line too many)\. '
        r'Step three (needs|is) c\[:2\]: "b\[:2\]" (is right|fits)\. '
        r'Step four (needs|is) sum\(d\): "len\(d\)" (is wrong|is not it|only counts)\. '
        r"Step two (needs|is) j \* 2: (it is missing|it has no line)\.",
        critique_of(response).feedback,
    )


def test_whatever_a_program_says_the_truths_are_those_of_its_specification() -> None:
    """`remarks_of` holds every truth against the reference."""
    rng = Random(3)
    for example in TRAIN.examples(300) + HELD_OUT.examples(100):
        for response in (TRAIN.demonstration(example, rng), TRAIN.corruption(example, rng)):
            critique = critique_of(response, example)
            found = judged(critique.feedback, example)
            assert [(response[s.start : s.end], s.label) for s in critique.spans] == [verdict[:2] for verdict in found]
            missing, told = omitted(critique.feedback, example), {place for *_, place in found} - {None}
            assert missing == sorted({*missing} - told)
            if response.strip() and "There is more like this." not in critique.feedback:
                assert {*missing} | told == {*range(len(steps_of(example)))}


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (0, "b = [i for i in a if 3 < i]"),
        (0, "b = [i for i in a if i >= 4]"),
        (0, "b=[ x for x in a if x>3 ]"),
        (1, "c = [2 * j for j in b]"),
        (1, "c = [j + j for j in b]"),
        (2, "d = c[0:2]"),
        (2, "d = c[:2:1]"),
        (3, "return sum(d)"),
    ],
)
def test_what_means_the_same_is_right(place: int, line: str) -> None:
    response = with_line(place, line) if place < 3 else "\n ".join([*LINES[:3], line])
    assert quotes(response, "negative") == []
    assert len(quotes(response, "positive")) == 4
    feedback = critique_of(response).feedback
    assert [verdict[1:] for verdict in judged(feedback)] == [("positive", place) for place in range(4)]
    assert len(remarks_of(feedback)) == 4


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("[i for i in a if i % 2 == 0]", "[i for i in a if 0 == i % 2]", True),
        ("[i for i in a if i % 2]", "[i for i in a if i % 2 == 1]", True),
        ("[i for i in a if i % 2]", "[i for i in a if i % 2 != 1]", False),
        ("[i for i in a if i]", "[i for i in a if i != 0]", True),
        ("[i - 3 for i in a]", "[-3 + i for i in a]", True),
        ("[i - 3 for i in a]", "[3 - i for i in a]", False),
        ("[i - 3 for i in a]", "[i --3 for i in a]", False),
        ("[i ** 2 for i in a]", "[i * i for i in a]", True),
        ("[i ** 2 for i in a]", "[-i ** 2 for i in a]", False),
        ("sorted(a, reverse=True)", "sorted(a)[::-1]", True),
        ("sorted(a, reverse=True)[::-1]", "sorted(a, reverse=False)", True),
        ("sorted(a)", "a[::-1]", False),
        ("a[-3:]", "a[:-3]", False),
        ("max(a)", "min(a)", False),
    ],
)
def test_right_sides_are_compared_by_meaning(left: str, right: str, same: bool) -> None:
    meanings = [[(part.role, part.meaning) for part in parse(text).parts] for text in (left, right)]  # type: ignore[union-attr]
    assert (meanings[0] == meanings[1]) is same


@pytest.mark.parametrize(
    "text", ["", "a", "a[2]", "a[::0]", "[i for i in a", "sum(a, b)", "list(a)", "[i for i in a]\r", "[ab for ab in a]"]
)
def test_what_the_grammar_does_not_know_means_nothing(text: str) -> None:
    right = parse(text)
    assert right is None or right.parts[0].meaning is None


@pytest.mark.parametrize("text", ["i 2", "i > = 3", "i < 3 < 5", "i * 2 * 2", "0 ** i", "i % 0", "03", "i is 3", "i."])
def test_a_formula_that_the_grammar_does_not_know_means_nothing(text: str) -> None:
    right = parse(f"[i for i in a if {text}]")
    assert right is not None
    assert [part.meaning for part in right.parts] == [None]


def test_praise_and_unit_tests_agree() -> None:
    """A program without a fault passes; one with a fault fails, but for harmless doubles."""
    rng = Random(5)
    for task in (TRAIN, HELD_OUT):
        examples = task.examples(240)
        writers = (task.demonstration, task.corruption, lambda example, rng: str(example.reference))
        responses = [writers[i % 3](example, rng) for i, example in enumerate(examples)]
        scores, critiques = task.score_many(examples, responses), CodeCritic(1.0)(examples, responses)
        clean = [c.outcome == 0 and all(s.label == "positive" for s in c.spans) for c in critiques]
        passed = [score["pass_at_1"] == 1.0 for score in scores]
        assert all(ok for fine, ok in zip(clean, passed, strict=True) if fine)
        odd = [
            critique.feedback for critique, fine, ok in zip(critiques, clean, passed, strict=True) if ok and not fine
        ]
        assert len(odd) <= 4
        assert all(re.search("again|second line|does not read", feedback) for feedback in odd)


def test_omissions_are_told_in_words_and_can_be_charged_to_the_outcome() -> None:
    critic, short = CodeCritic(omission_penalty=0.5), "b = [i for i in a if i > 3]\n d = b[:2]"
    found = critic([EXAMPLE] * 2, [short, str(EXAMPLE.reference)])
    assert [critique.outcome for critique in found] == [-1.5, 0.0]  # steps two and four, and the return
    assert re.fullmatch(
        r'Step one (needs|is) i > 3: "i > 3" (is right|fits)\. '
        r'Step three (needs|is) c\[:2\]: "b\[:2\]" (is right|fits)\. '
        r"Step two (needs|is) j \* 2: (it is missing|it has no line)\. "
        r"Step four (needs|is) sum\(d\): (it is missing|it has no line)\. "
        r"(The return is missing|Nothing is returned)\.",
        found[0].feedback,
    )
    assert not re.search("missing|no line|[Nn]othing", found[1].feedback)
    assert quotes(short, "positive") == ["i > 3", "b[:2]"]
    assert critique_of(short).outcome is None


def test_an_empty_program_is_named_as_such() -> None:
    assert critique_of("").spans == critique_of(" \n").spans == ()
    assert critique_of("").feedback == critique_of(" \n").feedback == "The program is empty."


def test_a_long_mess_is_quoted_in_part_and_the_critique_says_so() -> None:
    response = "\n ".join(["zebra " * 10] * 20)
    assert 1 <= len(critique_of(response).spans) <= 5
    assert "There is more like this." in critique_of(response).feedback
    assert "There is more" not in critique_of("zebra").feedback


def test_all_quotes_together_stay_short_beyond_the_first_fault() -> None:
    examples = TRAIN.examples(600)
    for i, example in enumerate(examples):
        response = TRAIN.corruption(example, Random(i))
        spans = critique_of(response, example).spans
        words = [len(re.findall(r"\w+|[^\w\s]", response[span.start : span.end])) for span in spans]
        assert sum(span.label == "negative" for span in spans) <= 1 or sum(words) <= 34


def test_critiques_vary_in_words_but_not_for_one_answer_and_stay_short() -> None:
    examples = TRAIN.examples(300)
    responses = [TRAIN.demonstration(example, Random(i)) for i, example in enumerate(examples)]
    critiques = CRITIC(examples, responses)
    assert critiques == CRITIC(examples, responses)
    frames = {
        tuple(re.sub(r'"[^"]*"', "Q", text) for _, text in remarks_of(critique.feedback, example))
        for critique, example in zip(critiques, examples, strict=True)
    }
    assert len(frames) > 60
    openings = {match[1] for critique in critiques for match in re.finditer(r"Step \w+ (\w+) ", critique.feedback)}
    assert openings == {"needs", "is"}
    words = [len(re.findall(r"\w+|[^\w\s]", critique.feedback)) for critique in critiques]
    assert sorted(words)[int(0.99 * len(words))] <= 110


def test_as_many_responses_as_examples_are_needed() -> None:
    with pytest.raises(DataError) as caught:
        CRITIC([EXAMPLE], [])
    assert str(caught.value) == "got 1 examples and 0 responses"


WORDS = st.lists(st.sampled_from([*TRAIN.vocabulary(), "\n", "\n ", "  ", "zebra", "é", "😀", "\t"]), max_size=40)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.one_of(WORDS.map(" ".join), WORDS.map("".join), st.text(max_size=60), st.sampled_from(LINES).map("\n".join)))
def test_garbage_gets_ordered_spans_within_it_each_quoted_word_for_word(response: str) -> None:
    critique = critique_of(response)
    end = 0
    for span in critique.spans:
        assert end <= span.start < span.end <= len(response)
        assert f'"{response[span.start : span.end]}"' in critique.feedback
        assert "\n" not in response[span.start : span.end]
        end = span.end
    assert critique.status == "ok"
    assert sum(span.label == "negative" for span in critique.spans) <= 5
