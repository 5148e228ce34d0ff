"""The code task: its items and splits, its demonstrations, its unit tests and its metric."""

import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise, product
from random import Random
from statistics import fmean

import pytest

from evidence.tasks.code import specs, task as code, world
from evidence.tasks.code.critic import CodeCritic
from evidence.tasks.code.task import USUAL_FAULTS, CodeTask, lines_right, program_of
from evidence.tasks.code.unit_tests import separated, write_tests
from evidence.tasks.code.world import Step, steps_of
from task_texts import texts_of
from text2grad.errors import ConfigError, DataError
from text2grad.tasks.base import Task, split_words
from text2grad.types import Example
from text2grad_sandbox import Sandbox

TRAIN, HELD_OUT = CodeTask("train"), CodeTask("held_out")
STEPS = [Step("above", 3), Step("double", 0), Step("sum", 0)]
BODY = "b = [b for b in a if b > 3]\n c = [c * 2 for c in b]\n d = sum(c)\n return d"
EXAMPLE = Example(
    "Step b: keep the values above 3. Step c: double each value. Step d: return the sum.\ndef solve(a):\n",
    BODY,
    "assert solve([1, 3, 4, 5]) == 18\nassert solve([9, 0]) == 18",  # 2 · (4 + 5), 2 · 9
    {"steps": [list(step) for step in STEPS]},
)


# Items


def test_the_same_seed_gives_the_same_items_in_another_process() -> None:
    script = (
        "from evidence.tasks.code.task import CodeTask, CodeCritic\n"
        "es = CodeTask('held_out', seed=3).examples(5, seed=2)\n"
        "rs = ['b = a[:3]\\n return b'] * 5\n"
        "import sys; sys.stdout.write(repr([(e, c) for e, c in zip(es, CodeCritic()(es, rs))]))"
    )
    environment = {"PYTHONHASHSEED": "7", "PATH": ""}
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    examples = CodeTask("held_out", seed=3).examples(5, seed=2)
    critiques = CodeCritic()(examples, ["b = a[:3]\n return b"] * 5)
    assert out.stdout == repr(list(zip(examples, critiques, strict=True)))


def test_a_shorter_list_is_the_beginning_of_a_longer_one_and_seeds_differ() -> None:
    assert TRAIN.examples(40)[:10] == TRAIN.examples(10)
    assert len({e.prompt for s in (0, 1) for e in TRAIN.examples(50, seed=s)}) == 100
    assert not {e.prompt for e in TRAIN.examples(50)} & {e.prompt for e in CodeTask(seed=1).examples(50)}


@pytest.mark.parametrize("count", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_items_are_distinct(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the search for inputs, which takes most of the time and refuses about half."""
    monkeypatch.setattr(code, "write_tests", lambda steps, rng: "")
    assert len({example.prompt for example in TRAIN.examples(count)}) == count


def test_a_prompt_that_comes_up_twice_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([Example("a"), Example("b"), Example("a"), Example("c")])
    monkeypatch.setattr(CodeTask, "draw", lambda self, rng: next(drawn))
    assert [example.prompt for example in TRAIN.examples(3)] == ["a", "b", "c"]


def pairs(examples: Sequence[Example]) -> list[set[tuple[str, str]]]:
    return [{(p.operation, q.operation) for p, q in pairwise(steps_of(e))} for e in examples]


def constants(examples: Sequence[Example]) -> list[set[tuple[int, int]]]:
    return [set(pairwise(step.k for step in steps_of(e) if step.k)) for e in examples]


def test_what_is_held_out_never_occurs_in_training_and_in_every_held_out_item() -> None:
    train, held_out = TRAIN.examples(2500), HELD_OUT.examples(1000)
    for what in (pairs, constants):
        known: set[object] = set().union(*what(train))
        assert all(found - known for found in what(held_out) if found)
    assert len(set().union(*pairs(train))) > 200
    assert {step.operation for e in train for step in steps_of(e)} == set(world.ASKED)
    assert {step.operation for e in held_out for step in steps_of(e)} == set(world.ASKED)
    fresh = {s.format(k=k) for name in world.ASKED for s in specs.templates(name, "held_out") for k in range(10)}
    assert not any(sentence in fresh for e in train for sentence in sentences(e))
    assert all(sentences(e)[0] in fresh for e in held_out)
    known_words = {word for e in train for word in split_words(e.prompt_text)}
    assert {word for e in held_out for word in split_words(e.prompt_text)} <= known_words


def sentences(example: Example) -> list[str]:
    lines = example.prompt_text.split("\n")[0].removesuffix(".").split(". ")
    return [line.split(": ")[1] for line in lines]


@pytest.mark.parametrize("name", world.ASKED)
def test_the_two_splits_share_no_sentence(name: str) -> None:
    train, held_out = (set(specs.templates(name, split)) for split in ("train", "held_out"))
    assert train
    assert held_out
    assert not train & held_out


@pytest.mark.parametrize(("task", "sizes"), [(TRAIN, {2, 3, 4, 5}), (HELD_OUT, {2, 3, 4, 5})])
def test_a_prompt_names_its_steps_in_order_and_ends_with_the_head(task: CodeTask, sizes: set[int]) -> None:
    examples = task.examples(400)
    assert {len(steps_of(e)) for e in examples} == sizes
    for example in examples:
        steps = steps_of(example)
        names = world.NAMES[: len(steps)]
        said, lines, head = example.prompt_text.removesuffix("\n").split("\n")
        assert (lines, head) == (f"Lines: {', '.join(names)}, return.", "def solve(a):")
        assert [sentence.split(":")[0] for sentence in said.split(". ")] == [f"Step {name}" for name in names]
        assert all(str(step.k) in sentence for step, sentence in zip(steps, sentences(example), strict=True) if step.k)
        assert len({step.operation for step in steps}) == len(steps)
        assert len(split_words(example.prompt_text)) <= 70
        assert len(split_words(str(example.reference))) <= 70


def test_a_reference_by_hand() -> None:
    assert world.body(STEPS) == BODY
    assert world.body([Step("falling", 0), Step("drop_last", 2)]) == (
        "b = sorted(a, reverse=True)\n c = b[:-2]\n return c"
    )
    assert world.body([Step("last", 4), None, Step("reverse", 0)]) == "b = a[-4:]\n d = b[::-1]\n return d"


def test_it_is_a_task_with_its_names() -> None:
    task: Task = TRAIN
    assert (task.name, task.metric) == ("code", "pass_at_1")
    assert isinstance(task.critic(), CodeCritic)


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^the split of code has no value 'test'"):
        CodeTask("test")  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [None, 3, [["above", 3]], [["above", 3], ["sums", 0]], [["above"], ["sum", 0]]])
def test_an_example_of_another_task_is_refused(steps: object) -> None:
    with pytest.raises(DataError) as caught:
        steps_of(Example("x", meta={"steps": steps}))
    assert str(caught.value) == (
        f"not a code example: meta['steps'] is {steps!r}, need two to twelve pairs [operation, constant]"
    )


def test_every_constant_and_operation_has_its_words() -> None:
    step = {name: Step(name, 4 if world.OPERATIONS[name].constants else 0) for name in world.ASKED}
    said = {name: {t.format(k=4) for t in specs.templates(name, "train")} for name in step}
    assert "drop the last 4 values" in said["drop_last"]
    assert "multiply all numbers by 4" in said["multiply"]
    assert "keep only numbers of at most 4" in said["at_most"]
    assert sum(map(len, said.values())) == len(set().union(*said.values()))  # no sentence means two things


def test_every_word_is_in_the_vocabulary_and_the_vocabulary_is_small() -> None:
    known = set(TRAIN.vocabulary())
    assert TRAIN.vocabulary() == HELD_OUT.vocabulary() == sorted(known)
    assert 130 <= len(known) <= 200
    seen = {word for task in (TRAIN, HELD_OUT) for text in texts_of(task, 700) for word in split_words(text)}
    copies = [Example(prompt, BODY, meta=EXAMPLE.meta) for prompt in "abcdefgh"]
    programs = ["b = [b * 2 for b in a if b > 3]\n   c = b", "return a\n d"]
    odd = [critique for program in programs for critique in CodeCritic()(copies, [program] * 8)]
    assert seen | {word for critique in odd for word in split_words(critique.feedback)} == known


def test_texts_hold_a_prompt_an_answer_and_its_critique() -> None:
    texts = texts_of(TRAIN, 6)
    assert texts == texts_of(TRAIN, 6)
    for text, example in zip(texts, TRAIN.examples(6), strict=True):
        assert text.startswith(example.prompt_text + " ")
        answer, feedback = text.removeprefix(example.prompt_text + " ").rsplit("\n", 1)
        assert CodeCritic()([example], [answer])[0].feedback == feedback


# Demonstrations


def test_demonstrations_slip_in_more_than_half_of_the_steps_that_have_a_habit() -> None:
    rng, slips, taken = Random(0), [], []
    for example in TRAIN.examples(1500):
        steps, lines = steps_of(example), TRAIN.demonstration(example, rng).split("\n ")
        if len(lines) <= len(steps):
            taken.append(1)
            continue
        taken.append(0)
        for place, (step, line) in enumerate(zip(steps, lines, strict=False)):
            source = world.NAMES[place - 1] if place else "a"
            written = line.split(" = ", 1)[1]
            right, slip = (world.right_side(s, place, source) for s in (step, world.slipped(step)))
            assert written in (right, slip)
            slips += [written == slip] if right != slip else []
    assert fmean(slips) == pytest.approx(USUAL_FAULTS.slip, abs=0.03)
    assert fmean(taken) == pytest.approx(USUAL_FAULTS.drop, abs=0.015)


# What the line of a step can assign, by its place.
KNOWN_LINES = [
    {
        world.right_side(Step(name, k), place, source)
        for name, operation in world.OPERATIONS.items()
        for k in operation.constants or (range(10) if name == "subtract_from" else (0,))
    }
    for place, source in enumerate(("a", *world.NAMES[:-1]))
]


def mistaken(task: CodeTask, n: int) -> list[tuple[Example, list[str]]]:
    """Return the corruptions of n specifications that are not garbled, each with what its lines assign."""
    found = []
    for i, example in enumerate(task.examples(n)):
        rng = Random(i)
        world.draw_steps(task.split, len(steps_of(example)), rng)
        if rng.random() < 2 / 3:
            found.append((example, assigned(task.corruption(example, Random(i)))))
    return found


def assigned(program: str) -> list[str]:
    """Return what the lines of a whole program assign, each to the next name, the last of which is returned."""
    *lines, last = program.split("\n ")
    names = world.NAMES[: len(lines)]
    assert last == f"return {names[-1]}"
    assert [line.split(" = ", 1)[0] for line in lines] == [*names]
    return [line.split(" = ", 1)[1] for line in lines]


@pytest.mark.parametrize("task", [TRAIN, HELD_OUT])
def test_two_of_three_corruptions_do_something_else_in_some_steps(task: CodeTask) -> None:
    n = 500
    found = mistaken(task, n)
    assert len(found) == pytest.approx(2 / 3 * n, rel=0.1)
    sources = ("a", *world.NAMES)
    slips: list[bool] = []
    wrong: list[bool] = []
    for example, lines in found:
        steps = steps_of(example)
        assert len(lines) == len(steps)
        for place, (step, line) in enumerate(zip(steps, lines, strict=True)):
            right, slip = (world.right_side(s, place, sources[place]) for s in (step, world.slipped(step)))
            assert line in KNOWN_LINES[place]
            wrong.append(line != right)
            slips += [line == slip] if line != right and slip != right else []
    assert 0.38 < fmean(wrong) < 0.52
    assert 0.4 < fmean(slips) < 0.65  # as often what is no habit
    assert fmean(lines == assigned(str(example.reference)) for example, lines in found) < 0.35


def test_the_third_corruption_is_a_demonstration_gone_wrong() -> None:
    both = []
    for i, example in enumerate(TRAIN.examples(1000)):
        rng = Random(i)
        world.draw_steps("train", len(steps_of(example)), rng)
        if rng.random() >= 2 / 3:
            both.append((TRAIN.demonstration(example, rng), TRAIN.corruption(example, Random(i))))
    assert 280 < len(both) < 390
    assert fmean(clean != corrupt for clean, corrupt in both) > 0.8
    assert min(len(corrupt) for _, corrupt in both) == 0
    assert any(len(corrupt) > len(clean) for clean, corrupt in both)
    assert any(sorted(corrupt) == sorted(clean) and corrupt != clean for clean, corrupt in both)


def test_corruptions_depend_on_the_generator_alone_and_hold_known_words() -> None:
    for task in (TRAIN, HELD_OUT):
        corrupt = [task.corruption(example, Random(i)) for i, example in enumerate(task.examples(200))]
        assert corrupt == [task.corruption(example, Random(i)) for i, example in enumerate(task.examples(200))]
        assert {word for text in corrupt for word in split_words(text)} <= {*task.vocabulary()}


# Unit tests and the metric


def variants(steps: Sequence[Step]) -> list[str]:
    """Return the body of every mixture of slips, and with every single step left out; the right one first."""
    choices = [(step, world.slipped(step)) if world.slipped(step) != step else (step,) for step in steps]
    slips = [world.body(mixture) for mixture in product(*choices)]
    return slips + [world.body([None if i == gap else s for i, s in enumerate(steps)]) for gap in range(len(steps))]


def test_the_reference_passes_and_every_demonstration_error_fails() -> None:
    jobs, expected = [], []
    for example in [*TRAIN.examples(12), *HELD_OUT.examples(12)]:
        bodies = variants(steps_of(example))
        assert bodies[0] == example.reference
        jobs += [(program_of(body), str(example.tests)) for body in bodies]
        expected += [i == 0 for i in range(len(bodies))]
    with Sandbox() as sandbox:
        assert [outcome.passed for outcome in sandbox.run_many(jobs, timeout_s=120)] == expected


def test_inputs_that_tell_nothing_apart_are_refused() -> None:
    inputs = [[5, 1, 9], [4, 2, 8]]
    assert separated([Step("above", 3), Step("sum", 0)], inputs) is None  # no 3: `>=` does the same
    assert separated([Step("above", 4), Step("sum", 0)], inputs) == (14, 8)  # 5 + 9; 8 without the 4
    assert separated([Step("rising", 0), Step("sum", 0)], inputs) is None  # the order does not matter
    assert separated([Step("largest", 0)], [[], [1, 2]]) == (None, 2)
    lowest = [Step("rising", 0), Step("first", 2), Step("sum", 0)]
    assert separated(lowest, [[4, 1, 3, 2], [9, 5, 7, 1]]) is None  # falling and then [2:] is the same two
    assert separated(lowest, [[4, 6, 3, 2, 9], [9, 5, 7, 1, 2]]) == (5, 3)
    assert (
        write_tests([Step("above", 9), Step("subtract", 3), Step("at_most", 5), Step("largest", 0)], Random(0)) is None
    )


def test_every_list_of_tests_has_varied_results() -> None:
    for example in HELD_OUT.examples(200):
        results = [line.split(" == ")[1] for line in str(example.tests).split("\n")]
        assert len(results) == 6
        assert len(set(results)) >= 3
        assert "None" not in results


def test_scores_in_the_sandbox_by_hand() -> None:
    responses = [
        BODY,
        "  \n" + BODY + "\n\n",
        "b = [x for x in a if x >= 4]\n return 2 * sum(b)",  # another way
        BODY.replace(">", ">="),
        BODY.replace("return d", "return e"),
        "",
        "import os\n os._exit(0)",
        "while True: pass",
        "zebra é \x00",
    ]
    scores = TRAIN.score_many([EXAMPLE] * len(responses), responses)
    assert [score["pass_at_1"] for score in scores] == [1, 1, 1, 0, 0, 0, 0, 0, 0]
    assert [score["lines_right"] for score in scores] == [1, 1, 0, 0.75, 0.75, 0, 0, 0, 0]
    assert [score["exact"] for score in scores] == [1, 1, 0, 0, 0, 0, 0, 0, 0]
    assert TRAIN.score(EXAMPLE, BODY) == {"pass_at_1": 1.0, "lines_right": 1.0, "exact": 1.0}


def test_all_programs_go_to_one_runner_which_can_be_another() -> None:
    calls = []

    def runner(jobs: Sequence[tuple[str, str]]) -> list[bool]:
        calls.append(jobs)
        return [True, False]

    scores = CodeTask(runner=runner).score_many([EXAMPLE] * 2, [BODY, "x"])
    assert [score["pass_at_1"] for score in scores] == [1.0, 0.0]
    assert calls == [[("def solve(a):\n " + BODY + "\n", EXAMPLE.tests), ("def solve(a):\n x\n", EXAMPLE.tests)]]


def test_nothing_runs_where_there_is_nothing_to_score() -> None:
    with pytest.raises(DataError) as caught:
        TRAIN.score_many([EXAMPLE], [])
    assert str(caught.value) == "got 1 examples and 0 responses"
    with pytest.raises(DataError) as caught:
        TRAIN.score(Example("x"), "y")
    assert str(caught.value) == "an example without tests or reference cannot be scored: 'x'"


def test_lines_right_by_hand() -> None:
    assert lines_right("a\n b\n c", " a\nb\n  c ") == 1.0
    assert lines_right("a\n b\n c", "a\n c") == pytest.approx(1 / 3)
    assert lines_right("a\n b", "a\n b\n c\n d") == 2 / 4
    assert lines_right("a\n b", "") == 0.0
