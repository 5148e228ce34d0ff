"""Program refiners: by hand, and as laws on demonstrations; no refiner ever gets an example."""

from random import Random
from statistics import fmean

import pytest

from evidence.rivals.refining_tasks import program_refiner
from text2grad.tasks import TaskSettings, procedural_task
from text2grad.types import Critique, Span


def critique(words: str, response: str, *, right: tuple[str, ...] = (), wrong: tuple[str, ...] = ()) -> Critique:
    spans = [Span(response.index(q), response.index(q) + len(q), "positive") for q in right]
    spans += [Span(response.index(q), response.index(q) + len(q), "negative") for q in wrong]
    return Critique(words, tuple(sorted(spans)))


def test_a_summary_gets_the_stated_truths_the_missing_facts_and_loses_the_rest() -> None:
    response = " Maria Chen sold somewhere on Monday and it was fun."
    words = (
        'The first name is Anna: "Maria" is wrong. The last name is Chen: "Chen" is right. The verb is sold: "sold" is '
        'right. The place is the park: "somewhere" is vague. The day is Friday: "Monday" is wrong. "and it was fun" is '
        "chatter. The thing is the bike: it is missing. The reason is the race: it is missing."
    )
    refined = program_refiner("summarization")(response, Critique(words))
    assert refined == " Anna Chen sold the bike at the park on Friday because of the race."


def test_verdicts_without_truths_leave_the_right_phrases_alone() -> None:
    response = " Maria Chen sold the bike on Monday and it was fun."
    words = '"Maria" is right. "Chen" is wrong. "sold" is right. "the bike" is right. "Monday" is wrong.'
    given = critique(words, response, right=("Maria", "sold", "the bike"), wrong=("Chen", "Monday"))
    assert program_refiner("summarization")(response, given) == " sold the bike."


def test_a_critique_that_tells_nothing_changes_nothing() -> None:
    for task in ("summarization", "qa", "code"):
        assert program_refiner(task)(" x y", Critique("Bad.")) == " x y"
        assert program_refiner(task)(" x y", Critique("The place is the park: bad.", status="unparsable")) == " x y"


def test_each_labelled_line_is_refined_with_its_own_words() -> None:
    response = " A: Ann Berg teaches in Oslo.\nB: Karl Sato teaches on Monday."
    words = (
        'Line A. The first name is Ann: "Ann" is right. The last name is Berg: "Berg" is right. The city is Lyon: '
        '"Oslo" is wrong. Line B. Karl Khan teaches it: it is missing. The day is Friday: "Monday" is wrong. Line C is '
        "missing."
    )
    refined = program_refiner("qa")(response, Critique(words))
    assert refined == " A: Ann Berg teaches in Lyon.\nB: Karl Khan teaches on Friday."


def test_a_program_gets_the_stated_expressions_in_comprehensions_and_keeps_unnamed_lines() -> None:
    response = " b = [b for b in a if b >= 3]\n d = sum(b)\n g = d\n return b"
    words = (
        'Step b needs b > 3: "b >= 3" also keeps 3. Step c needs b[-5:]: it is missing. "g = d" is for no step. There '
        "is more like this."
    )
    refined = program_refiner("code")(response, critique(words, response, wrong=("b >= 3", "g = d")))
    assert refined == " b = [b for b in a if b > 3]\n c = b[-5:]\n d = sum(b)\n return d"


def test_a_story_loses_the_sentences_with_faults() -> None:
    response = " saw a dog. It was a nearck. He ran home."
    refine = program_refiner("stories")
    assert refine(response, critique("", response, wrong=("nearck",))) == " saw a dog. He ran home."
    assert refine(response, critique("", response, wrong=("dog", "nearck", "home"))) == response


@pytest.mark.parametrize(
    ("task", "length", "least"),
    [
        ("summarization", 0, 1.0),
        ("summarization", 4, 1.0),
        ("qa", 0, 1.0),
        ("qa", 16, 1.0),
        ("code", 0, 0.95),
        ("code", 8, 0.95),
    ],
)
def test_with_truths_in_the_critique_the_refined_answer_is_the_reference(task: str, length: int, least: float) -> None:
    made = procedural_task(task, "held_out", TaskSettings(length=length))
    examples, rng = made.examples(60), Random(1)
    responses = [" " + made.demonstration(example, rng) for example in examples]
    critiques = made.critic()(examples, responses)
    refined = map(program_refiner(task), responses, critiques)
    same = [new == f" {example.reference}" for new, example in zip(refined, examples, strict=True)]
    assert sum(same) / len(same) >= least  # a critique quotes a limited number of faults of a program


@pytest.mark.parametrize("task", ["summarization", "qa"])
def test_without_truths_a_refined_answer_is_better_and_far_from_the_reference(task: str) -> None:
    made = procedural_task(task, "held_out", TaskSettings(truths=False))
    examples, rng = made.examples(60), Random(1)
    responses = [" " + made.demonstration(example, rng) for example in examples]
    critiques = made.critic()(examples, responses)
    refined = list(map(program_refiner(task), responses, critiques))
    before, after = (
        fmean(score[made.metric] for score in made.score_many(examples, texts)) for texts in (responses, refined)
    )
    assert before < after < 0.9
