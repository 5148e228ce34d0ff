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
RECAP = r"Step one (needs|is|should be) i > 3, step two j \* 2, step three c\[:2\] and step four sum\(d\)\. "


def critique_of(response: str, example: Example = EXAMPLE) -> Critique:
    return CRITIC([example], [response])[0]


def quotes(response: str, label: str, example: Example = EXAMPLE) -> list[str]:
    return [response[s.start : s.end] for s in critique_of(response, example).spans if s.label == label]


def with_line(place: int, line: str) -> str:
    return "\n ".join([*LINES[:place], line, *LINES[place + 1 :]])


def build(example: Example, rng: Random) -> tuple[str, list[tuple[str, str]], list[int]]:
    """Write a program with known errors; return it, its true quotes with their labels, and the steps left out."""
    lines, expected, missing, source = [], [], [], "a"
    for place, step in enumerate(steps_of(example)):
        choice, name = rng.random(), world.NAMES[place]
        other = Step("subtract", 99) if choice > 0.8 else world.slipped(step)
        if choice < 0.15 and len(missing) < 2:
            missing.append(place)
            continue
        written = step if choice < 0.5 else other
        lines.append(f"{name} = {world.right_side(written, place, source)}")
        label = "positive" if written == step else "negative"
        expected.append((world.expression(written, place, source), label))
        source = name
        if rng.random() < 0.08:
            lines.append(f"{name} = {world.right_side(step, place, 'a')}")
            expected.append((world.right_side(step, place, "a"), "negative"))
        if rng.random() < 0.08:
            lines.append(rng.choice(["zebra", "g = 3", "b", "pass"]))
            expected.append((lines[-1], "negative"))
    if rng.random() < 0.8:
        lines.append(f"return {source}")
    return "\n ".join(lines), expected, missing


def test_the_critic_finds_exactly_the_injected_errors() -> None:
    rng = Random(4)
    for example in TRAIN.examples(500) + HELD_OUT.examples(300):
        response, expected, missing = build(example, rng)
        critique = critique_of(response, example)
        found = [(response[s.start : s.end], s.label) for s in critique.spans]
        if "There is more like this." in critique.feedback:
            assert set(found) < set(expected) or len(found) < len(expected)
        elif response:
            assert found == expected, response
            assert all(f'"{quote}"' in critique.feedback for quote, _ in expected)
            told = re.search(
                r"Steps? ([\w, ]+) (?:is missing|has no line|are missing|have no line)\.", critique.feedback
            )
            assert re.split(", | and ", told[1] if told else "") == ([world.ORDINALS[i] for i in missing] or [""])
        assert ("return" in response) != bool(
            re.search("The return is missing|Nothing is ret|empty", critique.feedback)
        )


def test_a_right_program_gets_praise_only() -> None:
    for example in HELD_OUT.examples(150):
        critique = critique_of(str(example.reference), example)
        assert {span.label for span in critique.spans} == {"positive"}
        assert len(critique.spans) == len(steps_of(example))
        assert re.search(r"\. (Every step|All of it) is right: ", critique.feedback)


@pytest.mark.parametrize(
    ("response", "negative", "said"),
    [
        (with_line(0, "b = [i for i in a if i >= 3]"), "i >= 3", "wrong in step one|wrong with|keeps 3 as well"),
        (with_line(0, "b = [i for i in a if i > 4]"), "i > 4", "(is wrong in step one|Step one is wrong with)"),
        (with_line(0, "b = [i for i in a]"), "[i for i in a]", "step one|Step one"),
        (with_line(0, "b = [i > 3 for i in a]"), "i > 3", "step one|Step one"),
        (with_line(0, "b = [i * 2 for i in a if i > 3]"), "i * 2", "too much for step one|is not in step one"),
        (with_line(1, "c = [j ** 2 for j in b]"), "j ** 2", "wrong in step two|wrong with|in step two squares"),
        (with_line(1, "c = [i * 2 for j in b]"), "i * 2", "wrong name"),
        (with_line(1, "c = [j * 2 for j in a]"), "j in a", "reads an old list"),
        (with_line(1, "c = [j * 2 for j in e]"), "j in e", "has no value|not there"),
        (with_line(1, "c = [j * 2 for j in b if j]"), "j", "too much for step two|is not in step two"),
        (with_line(1, "c = [j * 2 for in b]"), "[j * 2 for in b]", "does not read"),
        (with_line(1, "c = [j * * 2 for j in b]"), "j * * 2", "does not read"),
        (with_line(2, "d = b[:2]"), "b[:2]", "reads an old list"),
        (with_line(2, "d = x[:2]"), "x[:2]", "has no value|not there"),
        (with_line(2, "d = c[2:]"), "c[2:]", "wrong|skips them"),
        (with_line(2, "d = c[:2]\n d = c[:2]"), "c[:2]", "again|second line"),
        (with_line(2, "d = c[:2]\n b = c"), "c", "again|second line"),
        (with_line(3, "e = len(d)"), "len(d)", "wrong|only counts"),
        (with_line(3, "e = sum(d)\n print(e)"), "print(e)", "is for no step|a line too many"),
        (with_line(3, "e = sum(d)\n f = e"), "f = e", "is for no step|a line too many"),
        (with_line(3, "e = sum(d)\nreturn e"), "return e", "after the return|too late"),
        (with_line(4, "return d"), "return d", "not the last result|wrong name"),
        (with_line(4, "return 2"), "return 2", "not the last result|wrong name"),
        (with_line(4, "return e\n e = 3"), "e = 3", "after the return|too late"),
        (with_line(2, "  d = c[:2]"), "d =", "out of line|wrong place"),
        ("\n ".join(LINES[:2] + LINES[3:4] + LINES[2:3] + ["return d"]), "c[:2]", "too late|out of order"),
    ],
)
def test_each_kind_of_fault_is_quoted_and_named(response: str, negative: str, said: str) -> None:
    found = quotes(response, "negative")
    assert negative in found
    feedback = critique_of(response).feedback
    assert re.match(RECAP, feedback)
    assert [s for s in re.split(r"(?<=\.) (?=[A-Z\"])", feedback) if f'"{negative}"' in s and re.search(said, s)]


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
    assert re.search("Every step is right|All of it is right", critique_of(response).feedback)


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
    assert re.search(
        r"Steps two and four (are missing|have no line)\. (The return is missing|Nothing is returned)\.$",
        found[0].feedback,
    )
    assert quotes(short, "positive") == ["i > 3", "b[:2]"]
    assert critique_of(short).outcome is None


def test_an_empty_program_is_named_as_such() -> None:
    assert critique_of("").spans == critique_of(" \n").spans == ()
    assert re.fullmatch(RECAP + r"The program is empty\.", critique_of("").feedback)


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
    frames = {re.sub(r'"[^"]*"', "Q", critique.feedback.split(". ", 1)[1]) for critique in critiques}
    assert len(frames) > 60
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
