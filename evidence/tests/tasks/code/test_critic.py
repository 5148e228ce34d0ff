"""The code critic: against injected errors, by kind of fault, in its wording, against the unit tests, on garbage."""

import re
from itertools import pairwise, product
from random import Random
from statistics import fmean
from typing import NamedTuple

import pytest
from hypothesis import given, settings, strategies as st

from evidence.tasks.code import world
from evidence.tasks.code.critic import CodeCritic
from evidence.tasks.code.expressions import parse
from evidence.tasks.code.task import CodeTask
from evidence.tasks.code.world import Step, steps_of
from text2grad.types import Critique, Example

TRAIN, HELD_OUT = CodeTask("train"), CodeTask("held_out")
CRITIC = CodeCritic()
STEPS = [["above", 3], ["double", 0], ["first", 2], ["sum", 0]]
LINES = ["b = [b for b in a if b > 3]", "c = [c * 2 for c in b]", "d = c[:2]", "e = sum(d)", "return e"]
EXAMPLE = Example("a specification\ndef solve(a):\n", "\n ".join(LINES), meta={"steps": STEPS})
RIGHT = ["b > 3", "c * 2", "d = c[:2]", "e = sum(d)"]

# Both styles: what a step needs, and what each judgement says.
NEEDS = ("Step {} needs ", "Step {} is ")
ABOUT_A_STEP = {
    "right": ("is right", "fits"),
    "wrong": ("is wrong", "is not it"),
    "surplus": ("is too much", "is too much"),
    "foreign": ("has a wrong name", "has a wrong name"),
    "stale": ("reads an old list", "reads an old list"),
    "undefined": ("has no value", "has no value"),
    "unreadable": ("does not read", "does not read"),
    "duplicate": ("does it again", "is a second line"),
    "misplaced": ("is too late", "is out of order"),
}
ABOUT_NONE = {
    "extra": ("is for no step", "is a line too many"),
    "late": ("is after the return", "is too late"),
    "indent": ("is out of line", "is at the wrong place"),
    "returned": ("is not the last result", "has the wrong name"),
}
SLIPS = {  # of the second style
    "above": "also keeps {}",
    "below": "also keeps {}",
    "at_least": "loses {}",
    "at_most": "loses {}",
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
MISSING = ("it is missing.", "it has no line.")
NO_RETURN = ("The return is missing.", "Nothing is returned.")
MORE = "There is more like this."
REMARK = re.compile(
    r'(?:(?P<opening>Step (?P<step>\w+) (?:needs|is) )(?P<truth>[^".]+): )?(?P<verdicts>(?:"[^"]*"|[^".])+\.)(?: |$)'
)
VERDICT = re.compile(r'"(?P<quote>[^"]*)" (?P<said>[^"]+?)(?: and (?=")|\.$)')
Verdict = tuple[str, str, int | None]  # the quote, what is said of it or its kind, the place of the step if any
PROMPTS = "abcdefghijklmnop"  # each draws its own style


def critique_of(response: str, example: Example = EXAMPLE) -> Critique:
    return CRITIC([example], [response])[0]


def quotes(response: str, label: str, example: Example = EXAMPLE) -> list[str]:
    return [response[s.start : s.end] for s in critique_of(response, example).spans if s.label == label]


def said_of(kind: str, style: int, step: Step | None) -> str:
    """Return what a critique of this style says of a piece of this kind in the line of a step."""
    if step is None:
        return ABOUT_NONE[kind][style]
    if kind != "slip":
        return ABOUT_A_STEP[kind][style]
    return SLIPS[step.operation].format(step.k) if style else "is wrong"


def sayings(style: int, step: Step | None) -> set[str]:
    """Return all that a critique of this style can say of a piece in the line of a step."""
    known = {said_of(kind, style, step) for kind in (ABOUT_NONE if step is None else ABOUT_A_STEP)}
    return known | ({said_of("slip", style, step)} if step and world.slipped(step) != step else set())


class Told(NamedTuple):
    """What a critique says, all of it in one style."""

    style: int
    verdicts: list[Verdict]
    missing: list[int | None]  # the steps that have no line
    rest: list[str]  # remarks on nothing that could be quoted


def told(feedback: str, example: Example = EXAMPLE) -> Told:
    """Return what a critique says.

    Every word of it belongs to one style; what it says that a step needs is what the reference has; the remarks that
    judge no quote come last, and two remarks in a row are never on one step.
    """
    found = list(REMARK.finditer(feedback))
    assert "".join(match[0] for match in found) == feedback
    reference, steps = str(example.reference), steps_of(example)
    praised = [reference[span.start : span.end] for span in critique_of(reference, example).spans]
    assert praised == [quoted(step, i, "abcde"[i]) for i, step in enumerate(steps)]
    right = [text.removeprefix(f"{name} = ") for text, name in zip(praised, world.NAMES, strict=False)]
    places = [world.NAMES.index(match["step"]) if match["step"] else None for match in found]
    assert [match["truth"] for match in found] == [None if place is None else right[place] for place in places]
    assert all(a != b or a is None for a, b in pairwise(places))
    readings = []
    for style in (0, 1):
        reading = Told(style, [], [], [])
        for place, match in zip(places, found, strict=True):
            reading = _read(reading, match, place, None if place is None else steps[place])
        readings += [reading] if reading.style == style else []
    (reading,) = readings
    return reading


def _read(told: Told, match: re.Match[str], place: int | None, step: Step | None) -> Told:
    """Return what is told together with one more remark; its style is -1 where the remark is of another style."""
    style, text = told.style, match["verdicts"]
    verdicts, known = list(VERDICT.finditer(text)), sayings(style, step) if style >= 0 else set()
    if style < 0 or (place is not None and match["opening"] != NEEDS[style].format(world.NAMES[place])):
        return told._replace(style=-1)
    if not verdicts and place is not None and text == MISSING[style]:
        return told._replace(missing=[*told.missing, place])
    if not verdicts and place is None and text in (MORE, NO_RETURN[style]):
        return told._replace(rest=[*told.rest, text])
    whole = "".join(verdict[0] for verdict in verdicts) == text and not told.missing and not told.rest
    if not verdicts or not whole or any(verdict["said"] not in known for verdict in verdicts):
        return told._replace(style=-1)
    assert place is not None or len(verdicts) == 1
    return told._replace(verdicts=told.verdicts + [(v["quote"], v["said"], place) for v in verdicts])


def labels(found: Told) -> list[tuple[str, str]]:
    """Return the label that each quote gets by what is said of it."""
    return [
        (q, "positive" if said == ABOUT_A_STEP["right"][found.style] else "negative") for q, said, _ in found.verdicts
    ]


def in_words(verdicts: list[Verdict], style: int, example: Example) -> list[Verdict]:
    """Return verdicts with what is said in place of their kinds."""
    steps = steps_of(example)
    return [(q, said_of(kind, style, None if i is None else steps[i]), i) for q, kind, i in verdicts]


def quoted(step: Step, place: int, source: str) -> str:
    """Return what is quoted of a step's line: its condition or new value, or else all of it."""
    written = world.expression(step, place, source)
    loops = world.OPERATIONS[step.operation].kind in ("filter", "map")
    return written if loops else f"{world.NAMES[place]} = {written}"


def with_line(place: int, line: str) -> str:
    return "\n ".join([*LINES[:place], line, *LINES[place + 1 :]])


def build(example: Example, rng: Random) -> tuple[str, list[Verdict], list[int]]:
    """Write a program with known errors; return it, its true quotes with kinds and places, and the steps left out."""
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
        kind = "right" if written == step else "slip" if written == world.slipped(step) else "wrong"
        expected.append((quoted(written, place, source), kind, place))
        source = name
        if rng.random() < 0.08:
            lines.append(f"{name} = {world.right_side(step, place, 'a')}")
            expected.append((lines[-1], "duplicate", place))
        if rng.random() < 0.08:
            lines.append(rng.choice(["zebra", "g = 3", "b", "pass"]))
            expected.append((lines[-1], "extra", None))
    if rng.random() < 0.8:
        lines.append(f"return {source if rng.random() < 0.9 else 'm'}")
        expected += [("return m", "returned", None)] if lines[-1] == "return m" else []
        if rng.random() < 0.1:
            lines.append("b = a")
            expected.append(("b = a", "late", None))
    return "\n ".join(lines), expected, missing


def test_the_critic_finds_and_names_exactly_the_injected_errors_and_omissions() -> None:
    rng, named, crowded = Random(4), set(), 0
    for example in TRAIN.examples(500) + HELD_OUT.examples(300):
        response, expected, missing = build(example, rng)
        critique = critique_of(response, example)
        if not response:
            assert critique == Critique("The program is empty.", ())
            continue
        found = told(critique.feedback, example)
        assert labels(found) == [(response[s.start : s.end], s.label) for s in critique.spans]
        wanted = in_words(expected, found.style, example)
        if MORE in found.rest:
            praise = [verdict for verdict, (_, kind, _) in zip(wanted, expected, strict=True) if kind == "right"]
            faults = [verdict for verdict in wanted if verdict not in praise]
            told_of = [verdict for verdict in found.verdicts if verdict not in praise]
            assert [verdict for verdict in found.verdicts if verdict in praise] == praise
            assert told_of == faults[: len(told_of)]
            assert 1 <= len(told_of) < len(faults)
            crowded += 1
        else:
            assert found.verdicts == wanted, response
        assert found.missing == missing
        assert found.rest == [MORE] * (MORE in found.rest) + [NO_RETURN[found.style]] * ("return" not in response)
        told_kinds = {(quote, place): kind for quote, kind, place in expected}
        named |= {(told_kinds[quote, place], found.style) for quote, _, place in found.verdicts}
    assert named == set(product(("right", "wrong", "slip", "duplicate", "extra", "late", "returned"), (0, 1)))
    assert crowded > 2


def test_a_right_program_gets_praise_only() -> None:
    styles = []
    for example in HELD_OUT.examples(150):
        critique = critique_of(str(example.reference), example)
        found, steps = told(critique.feedback, example), steps_of(example)
        right = [quoted(step, i, "abcde"[i]) for i, step in enumerate(steps)]
        assert found.verdicts == [(text, ("is right", "fits")[found.style], i) for i, text in enumerate(right)]
        assert [span.label for span in critique.spans] == ["positive"] * len(steps)
        assert found.missing == found.rest == []
        styles.append(found.style)
    assert 0.35 < fmean(styles) < 0.65


@pytest.mark.parametrize("name", SLIPS)
def test_in_one_style_each_habitual_mistake_is_called_by_its_name(name: str) -> None:
    step = Step(name, 5 if world.OPERATIONS[name].constants else 0)
    other = Step("double" if name == "square" else "square", 0)
    steps = [other, step] if world.OPERATIONS[name].kind == "reduce" else [step, other]
    written = [world.slipped(s) if s == step else s for s in steps]
    feedback, place = set(), steps.index(step)
    for prompt in PROMPTS:
        example = Example(prompt, world.body(steps), meta={"steps": [list(s) for s in steps]})
        found = told(critique_of(world.body(written), example).feedback, example)
        feedback |= {(found.style, said) for _, said, at in found.verdicts if at == place}
    assert feedback == {(0, "is wrong"), (1, SLIPS[name].format(5))}


def test_every_operation_with_a_habit_has_a_name_for_it() -> None:
    assert {*SLIPS} == {name for name in world.ASKED if world.OPERATIONS[name].slip}


@pytest.mark.parametrize(
    ("response", "negative", "place", "kind"),
    [
        (with_line(0, "b = [i for i in a if i >= 3]"), "i >= 3", 0, "slip"),
        (with_line(0, "b = [i for i in a if i > 4]"), "i > 4", 0, "wrong"),
        (with_line(0, "b = [i for i in a]"), "b = [i for i in a]", 0, "wrong"),
        (with_line(0, "b = [i > 3 for i in a]"), "i > 3", 0, "wrong"),
        (with_line(0, "b = [i * 2 for i in a if i > 3]"), "i * 2", 0, "surplus"),
        (with_line(1, "c = [j ** 2 for j in b]"), "j ** 2", 1, "slip"),
        (with_line(1, "c = [i * 2 for j in b]"), "i * 2", 1, "foreign"),
        (with_line(1, "c = [j * 2 for j in a]"), "j in a", 1, "stale"),
        (with_line(1, "c = [j * 2 for j in e]"), "j in e", 1, "undefined"),
        (with_line(1, "c = [j * 2 for j in b if j]"), "j", 1, "surplus"),
        (with_line(1, "c = [j * 2 for in b]"), "c = [j * 2 for in b]", 1, "unreadable"),
        (with_line(1, "c = [j * * 2 for j in b]"), "j * * 2", 1, "unreadable"),
        (with_line(2, "d = b[:2]"), "d = b[:2]", 2, "stale"),
        (with_line(2, "d = x[:2]"), "d = x[:2]", 2, "undefined"),
        (with_line(2, "d = c[2:]"), "d = c[2:]", 2, "slip"),
        (with_line(2, "d = c[:2]\n d = c[:2]"), "d = c[:2]", 2, "duplicate"),
        (with_line(2, "d = c[:2]\n b = c"), "b = c", 0, "duplicate"),
        (with_line(3, "e = len(d)"), "e = len(d)", 3, "slip"),
        (with_line(3, "e = sum(d)\n print(e)"), "print(e)", None, "extra"),
        (with_line(3, "e = sum(d)\n f = e"), "f = e", None, "extra"),
        (with_line(3, "e = sum(d)\nreturn e"), "return e", None, "late"),
        (with_line(4, "return d"), "return d", None, "returned"),
        (with_line(4, "return 2"), "return 2", None, "returned"),
        (with_line(4, "return e\n e = 3"), "e = 3", None, "late"),
        (with_line(2, "  d = c[:2]"), "d =", None, "indent"),
        (
            "\n ".join(LINES[:2] + LINES[3:4] + LINES[2:3] + ["return d"]),
            "d = c[:2]",
            2,
            "misplaced",
        ),
    ],
)
def test_each_kind_of_fault_is_quoted_and_named_beside_what_its_step_needs(
    response: str, negative: str, place: int | None, kind: str
) -> None:
    assert negative in quotes(response, "negative")
    named, step = set(), None if place is None else Step(*STEPS[place])  # type: ignore[arg-type]
    for prompt in PROMPTS:
        found = told(critique_of(response, Example(prompt, EXAMPLE.reference, meta=EXAMPLE.meta)).feedback)
        praise = ABOUT_A_STEP["right"][found.style]
        ((said, at),) = {(said, at) for quote, said, at in found.verdicts if quote == negative and said != praise}
        assert (said, at) == (said_of(kind, found.style, step), place)
        named.add(found.style)
    assert named == {0, 1}


def test_each_remark_first_says_what_the_step_needs_and_then_what_the_program_has() -> None:
    response = "b = [i * 2 for i in a if i >= 3]\n print(b)\n d = b[:2]\n e = len(d)\n return e"
    assert quotes(response, "positive") == ["d = b[:2]"]
    assert quotes(response, "negative") == ["i * 2", "i >= 3", "print(b)", "e = len(d)"]
    examples = [Example(prompt, EXAMPLE.reference, meta=EXAMPLE.meta) for prompt in PROMPTS]
    assert {critique_of(response, example).feedback for example in examples} == {
        'Step b needs b > 3: "i * 2" is too much and "i >= 3" is wrong. "print(b)" is for no step. '
        'Step d needs c[:2]: "d = b[:2]" is right. Step e needs sum(d): "e = len(d)" is wrong. '
        "Step c needs c * 2: it is missing.",
        'Step b is b > 3: "i * 2" is too much and "i >= 3" also keeps 3. "print(b)" is a line too many. '
        'Step d is c[:2]: "d = b[:2]" fits. Step e is sum(d): "e = len(d)" only counts. '
        "Step c is c * 2: it has no line.",
    }


def test_whatever_a_program_says_the_truths_are_those_of_its_specification() -> None:
    """`told` holds every truth against the reference, and what is said against the step that it is said of."""
    rng, styles = Random(3), []
    for example in TRAIN.examples(300) + HELD_OUT.examples(100):
        for write in (TRAIN.demonstration, TRAIN.corruption, TRAIN.corruption):
            response = write(example, rng)
            critique = critique_of(response, example)
            if not response.strip():
                assert critique == Critique("The program is empty.", ())
                continue
            found = told(critique.feedback, example)
            assert labels(found) == [(response[s.start : s.end], s.label) for s in critique.spans]
            places = {place for *_, place in found.verdicts} - {None}
            assert found.missing == sorted({*found.missing} - places)
            if MORE not in found.rest:
                assert {*found.missing} | places == {*range(len(steps_of(example)))}
            styles.append(found.style)
    assert 0.45 < fmean(styles) < 0.55


def test_what_follows_each_quote_begins_with_exactly_one_of_the_verdicts_and_each_of_them_occurs() -> None:
    verdicts = TRAIN.verdicts()
    said = {said_of(kind, style, None) for kind in ABOUT_NONE for style in (0, 1)}
    said |= {said_of(kind, style, Step("sum", 0)) for kind in ABOUT_A_STEP for style in (0, 1)}
    said |= {text.removesuffix(" {}") for text in SLIPS.values()}
    assert verdicts == HELD_OUT.verdicts() == sorted(f'" {text}' for text in said)
    found = set()
    responses = [(example, build(example, Random(i))[0]) for i, example in enumerate(TRAIN.examples(400))]
    responses += [(example, TRAIN.corruption(example, Random(i))) for i, example in enumerate(TRAIN.examples(1600))]
    copies = [Example(prompt, EXAMPLE.reference, meta=EXAMPLE.meta) for prompt in PROMPTS]
    responses += [(example, with_line(2, line)) for example in copies for line in ("  d = c[:2]", "d = b[:2]")]
    for example, response in responses:
        feedback = critique_of(response, example).feedback
        for match in re.finditer(r'"[^"]*"', feedback):
            (verdict,) = [verdict for verdict in verdicts if feedback.startswith(verdict, match.end() - 1)]
            assert re.match(r"\.| \d\.| (?:\d )?and \"| \d and \"", feedback[match.end() - 1 + len(verdict) :])
            found.add(verdict)
    assert found == {*verdicts}


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
    found = told(critique_of(response).feedback)
    assert [verdict[1:] for verdict in found.verdicts] == [(("is right", "fits")[found.style], i) for i in range(4)]
    assert found.missing == found.rest == []


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
        examples = task.examples(120)
        writers = (task.demonstration, task.corruption, lambda example, rng: str(example.reference))
        responses = [writers[i % 3](example, rng) for i, example in enumerate(examples)]
        scores, critiques = task.score_many(examples, responses), CodeCritic()(examples, responses)
        omission = re.compile("missing|has no line|Nothing is returned|is empty")
        omits = [omission.search(critique.feedback) for critique in critiques]
        faults = [any(span.label == "negative" for span in critique.spans) for critique in critiques]
        clean = [not lacks and not fault for lacks, fault in zip(omits, faults, strict=True)]
        passed = [score["pass_at_1"] == 1.0 for score in scores]
        assert all(ok for fine, ok in zip(clean, passed, strict=True) if fine)
        odd = [
            critique.feedback for critique, fine, ok in zip(critiques, clean, passed, strict=True) if ok and not fine
        ]
        assert len(odd) <= 4
        assert all(re.search("again|second line|does not read", feedback) for feedback in odd)


def test_omissions_are_told_in_words() -> None:
    short = "b = [i for i in a if i > 3]\n d = b[:2]"
    examples = [Example(prompt, EXAMPLE.reference, meta=EXAMPLE.meta) for prompt in PROMPTS]
    assert {critique_of(short, example).feedback for example in examples} == {
        'Step b needs b > 3: "i > 3" is right. Step d needs c[:2]: "d = b[:2]" is right. '
        "Step c needs c * 2: it is missing. Step e needs sum(d): it is missing. The return is missing.",
        'Step b is b > 3: "i > 3" fits. Step d is c[:2]: "d = b[:2]" fits. '
        "Step c is c * 2: it has no line. Step e is sum(d): it has no line. Nothing is returned.",
    }
    assert told(critique_of(str(EXAMPLE.reference)).feedback)[2:] == ([], [])
    assert quotes(short, "positive") == ["i > 3", "d = b[:2]"]
    assert critique_of(short).outcome is None


def test_an_empty_program_is_named_as_such() -> None:
    assert critique_of("") == critique_of(" \n") == Critique("The program is empty.", ())


def test_a_long_mess_is_quoted_in_part_and_the_critique_says_so() -> None:
    response = "\n ".join(["zebra " * 10] * 20)
    assert 1 <= len(critique_of(response).spans) <= 5
    found = told(critique_of(response).feedback)
    assert {said for _, said, _ in found.verdicts} == {ABOUT_NONE["extra"][found.style]}
    assert (found.missing, found.rest) == ([0, 1, 2, 3], [MORE, NO_RETURN[found.style]])
    assert "There is more" not in critique_of("zebra").feedback


def test_all_quotes_together_stay_short_beyond_the_first_fault() -> None:
    examples = TRAIN.examples(600)
    for i, example in enumerate(examples):
        response = TRAIN.corruption(example, Random(i))
        spans = critique_of(response, example).spans
        words = [len(re.findall(r"\w+|[^\w\s]", response[span.start : span.end])) for span in spans]
        assert sum(span.label == "negative" for span in spans) <= 1 or sum(words) <= 34


def test_critiques_vary_in_style_but_not_for_one_answer_and_stay_short() -> None:
    examples = TRAIN.examples(300)
    responses = [TRAIN.demonstration(example, Random(i)) for i, example in enumerate(examples)]
    critiques = CRITIC(examples, responses)
    assert critiques == CRITIC(examples, responses) == CRITIC(examples[::-1], responses[::-1])[::-1]
    # The style hangs on the specification and on the program, each alone.
    copies = [Example(prompt, EXAMPLE.reference, meta=EXAMPLE.meta) for prompt in "abcdefgh"]
    assert {told(critique_of(str(EXAMPLE.reference), example).feedback).style for example in copies} == {0, 1}
    assert {told(critique_of(with_line(1, f"c = [j * {k} for j in b]")).feedback).style for k in range(8)} == {0, 1}
    words = [len(re.findall(r"\w+|[^\w\s]", critique.feedback)) for critique in critiques]
    assert sorted(words)[int(0.99 * len(words))] <= 110


def test_as_many_responses_as_examples_are_needed() -> None:
    with pytest.raises(ValueError, match="shorter"):
        CRITIC([EXAMPLE], [])


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
    if response.strip() and '"' not in response:
        assert labels(told(critique.feedback)) == [(response[s.start : s.end], s.label) for s in critique.spans]
