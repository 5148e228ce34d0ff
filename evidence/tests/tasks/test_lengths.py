"""The knobs of the tasks: items of several parts or of many steps, fewer faults, critiques without truths."""

import re
from hashlib import sha256
from itertools import pairwise
from random import Random
from statistics import fmean

import pytest
from hypothesis import given, settings, strategies as st

from evidence.tasks.code.task import CodeTask, program_of
from evidence.tasks.code.unit_tests import run, separated
from evidence.tasks.code.world import NAMES, OPERATIONS, Step, body, known_constants, may_follow, slipped
from evidence.tasks.lengths import answer_tokens, count_tokens, training_lengths
from evidence.tasks.parts import LABELS, FactTask, lines_of, parts_of
from evidence.tasks.posts import PostsTask
from evidence.tasks.qa import world as qa_world
from evidence.tasks.qa.task import QATask
from task_texts import texts_of
from text2grad.errors import ConfigError, DataError
from text2grad.tasks.base import Task, TaskSettings, pairs, split_words
from text2grad.tasks.registry import PROCEDURAL, built_in, procedural_task
from text2grad.tasks.summarization import world as posts_world
from text2grad.tasks.tiny import word_tokenizer
from text2grad.types import Example, Span
from text2grad_sandbox import Sandbox

TRAIN, HELD_OUT = "train", "held_out"
SIZED = {name: task for name, task in PROCEDURAL.items() if hasattr(task, "lengths")}
LENGTHS = [(name, length) for name, task in SIZED.items() for length in task.lengths]
ANSWER_PARTS = {"summarization": {1: 1, 2: 2, 4: 4, 8: 8}, "qa": {2: 1, 4: 1, 8: 2, 12: 3, 16: 4}}
FACTS = {"who": "Maria Lopez", "did": "fixed", "what": "bike", "where": "park", "when": "Tuesday", "why": "race"}
OTHER = {"who": "Tom Chen", "did": "sold", "what": "bike", "where": "park", "when": "Friday", "why": "exam"}
NAMES_OF = {"summarization": posts_world.NAMES, "qa": qa_world.NAMES}
TWO = Example("A: ...\nB: ...\nTL;DR:", meta={"parts": {"A": {"facts": FACTS}, "B": {"facts": OTHER}}})
A = "A: Maria Lopez fixed the bike at the park on Tuesday because of the race."
B = "B: Tom Chen sold the bike at the park on Friday because of the exam."
POSTS = PostsTask(settings=TaskSettings(2))
BARE = PostsTask(settings=TaskSettings(2, truths=False))


def task_of(name: str, length: int, split: str = TRAIN, **more: object) -> Task:
    return procedural_task(name, split, TaskSettings(length, **more))  # type: ignore[arg-type]


def judged(task: Task, example: Example, response: str) -> tuple[str, list[tuple[str, str]]]:
    critique = task.critic()([example], [response])[0]
    return critique.feedback, [(response[s.start : s.end], s.label) for s in critique.spans]


# The usual items


@pytest.mark.parametrize(
    ("name", "digest"),
    [("summarization", "c08535dd6c06c460"), ("qa", "0cb4dd888a7ccbf1"), ("code", "84dc3ebcee15d57b")],
)
def test_a_task_without_settings_makes_the_items_that_the_results_of_the_quickstart_are_of(
    name: str, digest: str
) -> None:
    """The digests were taken before tasks had lengths."""
    found = []
    for split in (TRAIN, HELD_OUT):
        task, rng = procedural_task(name, split), Random(5)  # type: ignore[arg-type]
        examples = task.examples(40, seed=1)
        answers = [task.demonstration(example, rng) for example in examples]
        answers += [task.corruption(example, rng) for example in examples]
        critiques = [(c.feedback, c.spans) for c in task.critic()([*examples, *examples], answers)]
        items = [(e.prompt, e.reference, e.tests, e.meta) for e in examples]
        found.append((items, answers, critiques, task.vocabulary(), task.verdicts()))
    assert sha256(repr(found).encode()).hexdigest()[:16] == digest


# What every length of every task has


@pytest.mark.parametrize(("name", "length"), LENGTHS)
def test_an_answer_has_the_parts_that_the_length_says(name: str, length: int) -> None:
    for split in (TRAIN, HELD_OUT):
        for example in task_of(name, length, split).examples(20):
            lines = str(example.reference).split("\n")
            if name == "code":
                assert [line.split()[0] for line in lines] == [*NAMES[:length], "return"]
                assert example.prompt_text.count("Step ") == length
                continue
            assert [line.split(":")[0] for line in lines] == [*LABELS[: ANSWER_PARTS[name][length]]]
            prompts = re.findall(r"^([A-H])\b|^Question ([A-H])", example.prompt_text, re.MULTILINE)
            assert sorted({a + b for a, b in prompts}) == [*LABELS[: ANSWER_PARTS[name][length]]]
            assert len(prompts) == (length if name == "summarization" else 4 * ANSWER_PARTS[name][length])
            if name == "qa":  # a person, and the details
                assert sum(len(part.meta["asked"]) + 1 for part in parts_of(example).values()) == length


@pytest.mark.parametrize(("name", "length"), LENGTHS)
def test_the_reference_is_perfect_and_the_critic_finds_no_fault_in_it(name: str, length: int) -> None:
    task = task_of(name, length, HELD_OUT)
    examples = task.examples(8)
    for example, scores in zip(examples, task.score_many(examples, [str(e.reference) for e in examples]), strict=True):
        assert scores[task.metric] == scores["exact"] == 1.0
        _, spans = judged(task, example, str(example.reference))
        assert {label for _, label in spans} == {"positive"}
        # a full name is judged half by half
        assert len(spans) == (length if name == "code" else sum(1 + len(one) for one in facts_in(task, example)))


@pytest.mark.parametrize(("name", "length"), LENGTHS)
def test_the_splits_share_no_item_and_no_part(name: str, length: int) -> None:
    task, items = task_of(name, length), {s: task_of(name, length, s).examples(30) for s in (TRAIN, HELD_OUT)}
    assert not {e.prompt_text for e in items[TRAIN]} & {e.prompt_text for e in items[HELD_OUT]}
    for split, examples in items.items():
        for example in examples:
            if isinstance(task, FactTask):
                trained = [" ".join(name) for name in pairs(NAMES_OF[name], "train")]
                assert {facts["who"] in trained for facts in facts_in(task, example)} == {split == TRAIN}
            else:
                steps = [Step(*step) for step in example.meta["steps"]]
                assert all(may_follow(a.operation, b.operation, "train") for a, b in pairwise(steps)) == (
                    split == TRAIN
                )
                assert split == HELD_OUT or all(known_constants(steps))


@pytest.mark.parametrize(("name", "length"), LENGTHS)
@pytest.mark.parametrize("truths", [True, False])
def test_the_vocabulary_lists_every_word_and_a_tokenizer_of_it_counts_as_the_measure_does(
    name: str, length: int, truths: bool
) -> None:
    words: set[str] = set()
    for split in (TRAIN, HELD_OUT):
        task = task_of(name, length, split, truths=truths)
        texts = texts_of(task, 60)
        words |= {word for text in texts for word in split_words(text)}
    assert words <= set(task.vocabulary()) == set(task_of(name, length, truths=not truths).vocabulary())
    tokenizer = word_tokenizer(texts)
    assert all(len(tokenizer(text).input_ids) == count_tokens(text) for text in texts[:10])


@pytest.mark.parametrize(("name", "length"), LENGTHS)
def test_critiques_without_truths_have_the_same_spans_and_quote_nothing_but_the_answer(name: str, length: int) -> None:
    task, bare = task_of(name, length), task_of(name, length, truths=False)
    rng = Random(3)
    examples = task.examples(60)
    answers = [(task.corruption if i % 2 else task.demonstration)(e, rng) for i, e in enumerate(examples)]
    with_truths, without = task.critic()(examples, answers), bare.critic()(examples, answers)
    assert [one.spans for one in with_truths] == [one.spans for one in without]
    for example, answer, critique in zip(examples, answers, without, strict=True):
        said = re.sub(r'"[^"]*"', "", critique.feedback)
        values = (
            [OPERATIONS[step[0]].code.format(v="x", s="x", k=step[1]) for step in example.meta["steps"]]
            if name == "code"
            else [str(value) for facts in facts_in(task, example) for value in facts.values()]
        )
        assert not [value for value in values if re.search(rf"(?<!\w){re.escape(value)}(?!\w)", said)], critique
        assert critique.feedback.count('"') == 2 * len(critique.spans)
        assert not [s for s in re.findall(r'"([^"]*)"', critique.feedback) if s not in answer]


def facts_in(task: Task, example: Example) -> list[dict[str, str]]:
    assert isinstance(task, FactTask)
    return [dict(task.facts(part)) for part in parts_of(example).values()]


@pytest.mark.parametrize(("name", "length"), LENGTHS)
def test_faults_scale_the_share_of_wrong_facts_and_leave_the_items_alone(name: str, length: int) -> None:
    means, count = [], 240 // length + 20
    for share in (0.0, 0.5, 1.0):
        task, rng = task_of(name, length, faults=share), Random(1)
        examples = task.examples(count)
        assert examples == task_of(name, length).examples(count)
        spans = [judged(task, e, task.demonstration(e, rng))[1] for e in examples]
        means.append(fmean(label == "positive" for one in spans for _, label in one))
    assert means[0] == 1.0
    assert means[1] - 0.02 > means[2] > 0.4
    assert (1 - means[1]) / (1 - means[2]) == pytest.approx(0.5, abs=0.15)  # a wrong value hides a vague one


@pytest.mark.parametrize(("name", "length"), LENGTHS)
def test_the_measured_answers_bound_the_references(name: str, length: int) -> None:
    task = task_of(name, length)
    shortest, longest = answer_tokens(task, 50)
    sizes = [1 + count_tokens(f" {e.reference}") for e in task.examples(50)]
    assert (shortest, max(sizes)) == (min(sizes), max(sizes))
    assert longest >= max(sizes) >= length


@pytest.mark.parametrize(
    ("name", "length", "expected"), [("qa", 12, [2, 4, 12]), ("qa", 16, [4, 8, 16]), ("code", 12, [2, 6, 12])]
)
def test_fine_tuning_begins_with_short_items(name: str, length: int, expected: list[int]) -> None:
    assert training_lengths(procedural_task(name, TRAIN, TaskSettings(length))) == expected


def test_a_longer_item_is_longer() -> None:
    for name, task in SIZED.items():
        means = [fmean(count_tokens(str(e.reference)) for e in task_of(name, n).examples(30)) for n in task.lengths]
        assert means == sorted(means)
        if name == "summarization":  # 17 tokens a line with its label, and the line breaks
            assert means == [17 * n + n - 1 for n in task.lengths]


@pytest.mark.parametrize(
    ("name", "length", "possible"),
    [
        ("summarization", 3, "3 posts; possible: 1, 2, 4, 8, and 0 for its usual items"),
        ("qa", 10, "10 claims; possible: 2, 4, 8, 12, 16, and 0 for its usual items"),
        ("code", 13, "13 steps; possible: 2, 4, 6, 8, 10, 12, and 0 for its usual items"),
    ],
)
def test_a_length_that_a_task_cannot_make_is_refused_with_the_possible_ones(
    name: str, length: int, possible: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        built_in(name, TaskSettings(length))
    assert str(caught.value) == f"world.length = {length}: the task {name} has no items of {possible}"


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (
            TaskSettings(4),
            "world.length = 4: the task stories has no such setting; the length of a story is rollout.max_new_tokens",
        ),
        (
            TaskSettings(faults=0.5),
            "world.faults = 0.5: the task stories has no such setting; its policy is a trained model, without "
            "demonstrations",
        ),
        (
            TaskSettings(truths=False),
            "world.truths = false: the task stories has no such setting; its critiques state no true fact",
        ),
    ],
)
def test_stories_refuse_the_settings_and_say_where_their_length_is(chosen: TaskSettings, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        built_in("stories", chosen)
    assert str(caught.value) == message


# Answers of several parts


def test_each_part_is_judged_by_its_own_truth_also_where_parts_have_the_same_words() -> None:
    said = f"{A}\n{B}".replace("on Friday", "on Tuesday")  # right in A, wrong in B
    feedback, spans = judged(POSTS, TWO, said)
    assert spans[5] == ("Tuesday", "positive")
    assert spans[12] == ("Tuesday", "negative")
    assert len(spans) == 14
    assert sum(label == "negative" for _, label in spans) == 1
    a, b = feedback.removeprefix("Line A. ").split(" Line B. ")
    assert re.search(r'Tuesday: "Tuesday" is (right|correct)\.', a)
    assert re.search(r'Friday: "Tuesday" is (wrong|the wrong day)\.', b)
    places = [s.start for s in POSTS.critic()([TWO], [said])[0].spans if said[s.start : s.end] == "Tuesday"]
    assert places == [m.start() for m in re.finditer("Tuesday", said)]


@given(st.lists(st.integers(0, 2**32), min_size=4, max_size=4))
@settings(max_examples=40, deadline=None)
def test_the_spans_of_an_answer_are_those_of_its_lines_judged_alone(seeds: list[int]) -> None:
    for task, usual in ((PostsTask, PostsTask()), (QATask, QATask())):
        long = task(settings=TaskSettings(8), seed=seeds[0] % 1000)
        [example] = long.examples(1)
        parts = parts_of(example)
        texts = [
            (usual.corrupt_part if seed % 2 else usual.demonstrate_part)(part, Random(seed))
            for seed, part in zip(seeds, parts.values(), strict=False)
        ]
        response = "\n".join(f"{label}: {text}" for label, text in zip(parts, texts, strict=False))
        expected, start = [], 0
        for part, text in zip(parts.values(), texts, strict=False):
            [alone] = usual.critic()([part], [text])
            expected += [Span(s.start + start + 3, s.end + start + 3, s.label) for s in alone.spans]
            start += 3 + len(text) + 1
        assert list(long.critic()([example], [response])[0].spans) == expected


@pytest.mark.parametrize(
    ("said", "wrong", "remark"),
    [
        (f"{B}\n{A}", ["A: Maria Lopez fixed the bike at", "the park on Tuesday because of the race", "."], "Line A"),
        (f"{A}\n{A}", ["A: Maria Lopez fixed the bike at", "the park on Tuesday because of the race", "."], "Line B"),
        (f"{A}\nC: no", ["C: no"], "Line B"),
        (f"{A}\nTom Chen", ["Tom Chen"], "Line B"),
        (f"{A}\nAB: Tom", ["AB: Tom"], "Line B"),
        (A, [], "Line B"),
        (B, [], "Line A"),
    ],
)
def test_a_line_out_of_order_twice_or_without_a_label_is_out_of_place_and_its_part_missing(
    said: str, wrong: list[str], remark: str
) -> None:
    feedback, spans = judged(POSTS, TWO, said)
    assert len([one for one, label in spans if label == "positive"]) == 7
    assert " ".join(one for one, label in spans if label == "negative") == " ".join(wrong)
    assert re.search(rf"{remark}( is missing|: nothing names it)\.$", feedback)
    assert len(re.findall(r'" is (?:out of place|in the wrong place)\.', feedback)) == sum(
        label == "negative" for _, label in spans
    )


def test_an_empty_answer_and_an_empty_line() -> None:
    assert judged(POSTS, TWO, " \n") == ("The summary is empty.", [])
    feedback, spans = judged(POSTS, TWO, f"{A}\nB:")
    assert feedback.endswith(" Line B. The summary is empty.")
    assert len(spans) == 7


def test_a_critique_without_truths_names_what_is_missing_and_no_value() -> None:
    feedback, _ = judged(BARE, TWO, f"{A.replace(' on Tuesday', '')}\n{B}")
    assert re.search(r"The day is missing\.|The day: nothing names it\.", feedback)
    one = PostsTask(settings=TaskSettings(truths=False))
    feedback, spans = judged(one, Example("x", meta={"facts": FACTS}), "Maria Lopez fixed the bike on Thursday.")
    assert spans[-1] == ("Thursday", "negative")
    assert "Tuesday" not in feedback
    assert re.search(r'"Thursday" is (wrong|the wrong day)\.', feedback)


def test_the_metric_counts_a_claim_for_the_part_of_its_line() -> None:
    def f1(said: str) -> float:
        return POSTS.score(TWO, said)["fact_f1"]

    assert f1(f"{A}\n{B}") == f1(f"{B}\n{A}") == 1.0
    assert f1(A) == pytest.approx(2 * 6 / (6 + 12))
    assert f1(f"{A}\n{A}") == pytest.approx(2 * 6 / (12 + 12))  # claims that nobody needs
    assert f1(f"{A[3:]}\n{B[3:]}") == 0.0
    # swapped labels: thing and place are right by chance
    assert f1(f"A{B[1:]}\nB{A[1:]}") == pytest.approx(2 * 4 / 24)
    assert POSTS.score(TWO, f"{A}\n{B}")["exact"] == 1.0


@pytest.mark.parametrize("parts", [{"B": {}}, {"A": {}, "C": {}}, 3])
def test_an_item_with_other_parts_is_refused(parts: object) -> None:
    with pytest.raises(DataError, match=r"^not an item of several parts: meta\['parts'\] is "):
        POSTS.critic()([Example("x", meta={"parts": parts})], [""])


def test_lines_are_found_with_their_labels() -> None:
    assert [tuple(line) for line in lines_of(" A: x\n\n \nB\nC :y")] == [
        ("A", 1, 3, 5),
        ("", 9, 9, 10),
        ("C", 11, 14, 15),
    ]


def test_half_of_the_lines_of_corruptions_are_corrupt_and_some_are_meddled_with() -> None:
    task, rng = PostsTask(settings=TaskSettings(4)), Random(0)
    examples = task.examples(300)
    answers = [task.corruption(example, rng) for example in examples]
    whole = fmean([line[:2] for line in answer.split("\n")] == ["A:", "B:", "C:", "D:"] for answer in answers)
    assert 0.7 < whole < 0.85  # 3/4, and exchanges of a line with itself
    wrong = fmean(
        label == "negative" for e, a in zip(examples, answers, strict=True) for _, label in judged(task, e, a)[1]
    )
    assert 0.3 < wrong < 0.6


# Programs of many steps


def test_long_programs_are_tested_so_that_single_faults_fail_in_the_sandbox_and_in_the_oracle() -> None:
    jobs, expected = [], []
    for example in CodeTask("held_out", settings=TaskSettings(12)).examples(6):
        steps = [Step(*step) for step in example.meta["steps"]]
        bodies = [body(steps), body([slipped(step) for step in steps])]
        for i, step in enumerate(steps):
            bodies += [body([*steps[:i], slipped(step), *steps[i + 1 :]])] if slipped(step) != step else []
            bodies += [body([*steps[:i], None, *steps[i + 1 :]])]
        jobs += [(program_of(text), str(example.tests)) for text in bodies]
        expected += [True] + [False] * (len(bodies) - 1)
    with Sandbox() as sandbox:
        assert [outcome.passed for outcome in sandbox.run_many(jobs, timeout_s=120)] == expected


def test_short_programs_of_a_set_length_pass_the_test_of_all_combinations_mostly() -> None:
    found = []
    for example in CodeTask(settings=TaskSettings(4)).examples(60):
        steps = [Step(*step) for step in example.meta["steps"]]
        inputs = [list(map(int, text.split(", "))) for text in re.findall(r"solve\(\[(.*?)\]\)", str(example.tests))]
        results = tuple(inputs)
        for step in steps:
            results = run(step, results)  # type: ignore[assignment, arg-type]
        assert [str(value) for value in results] == re.findall(r" == (.*)", str(example.tests))
        found.append(separated(steps, inputs) is not None)
    assert fmean(found) > 0.9


def test_neighbouring_steps_are_distinct_with_at_most_three_comprehensions() -> None:
    for example in CodeTask(settings=TaskSettings(12)).examples(40):
        names = [step[0] for step in example.meta["steps"]]
        for i in range(8):
            assert len(set(names[i : i + 5])) == 5
            assert sum(OPERATIONS[name].kind in ("filter", "map") for name in names[i : i + 5]) <= 3
        assert all(OPERATIONS[name].kind != "reduce" for name in names[:-1])


def test_the_critique_of_a_long_program_quotes_every_line() -> None:
    task = CodeTask(settings=TaskSettings(12))
    for example in task.examples(30):
        wrong = body([slipped(Step(*step)) for step in example.meta["steps"]])
        _, spans = judged(task, example, wrong)
        assert len(spans) == 12
        assert len(judged(task, example, str(example.reference))[1]) == 12
