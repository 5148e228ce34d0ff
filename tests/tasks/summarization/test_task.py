"""The summarization task: its items and splits, its demonstrations and its metric; the critic has a file of its own."""

import re
import subprocess
import sys
from collections.abc import Iterable
from random import Random
from statistics import fmean

import pytest

from task_texts import texts_of
from text2grad.errors import ConfigError, DataError
from text2grad.tasks.base import Task, pairs, split_words
from text2grad.tasks.facts import half_of_both
from text2grad.tasks.summarization import posts, world
from text2grad.tasks.summarization.task import (
    CHATTER,
    DROP,
    METRIC,
    SKIM,
    VAGUE,
    SummarizationTask,
    SummaryCritic,
)
from text2grad.types import Critique, Example

TRAIN, HELD_OUT = SummarizationTask("train"), SummarizationTask("held_out")
SPLITS = {"train": TRAIN, "held_out": HELD_OUT}
CRITIC = SummaryCritic()
FACTS = {"who": "Maria Lopez", "did": "fixed", "what": "bike", "where": "park", "when": "Tuesday", "why": "race"}
DISTRACTORS = {"who": ["Tom Chen"], "did": [], "what": [], "where": ["beach"], "when": ["Friday"], "why": []}
POST = (
    "Tom Chen was at the beach on Friday. Maria Lopez fixed the bike. It happened at the park. "
    "The day was Tuesday. The reason was the race."
)
EXAMPLE = Example(POST + "\nTL;DR:", meta={"facts": FACTS, "distractors": DISTRACTORS})
# A summary that states six facts.
WHOLE = re.compile(r"(\w+ \w+) (\w+) the (\w+) at the (\w+) on (\w+) because of the (\w+)\.")


def fact_f1(example: Example, response: str) -> float:
    return TRAIN.score(example, response)["fact_f1"]


def critique_of(response: str, example: Example = EXAMPLE) -> Critique:
    return CRITIC([example], [response])[0]


# Items


def test_the_same_seed_gives_the_same_items_in_another_process() -> None:
    code = (
        "from text2grad.tasks.summarization.task import SummarizationTask, SummaryCritic\n"
        "task = SummarizationTask('held_out', seed=3)\n"
        "es = task.examples(5, seed=2)\n"
        "rs = ['Someone fixed the bike on Friday.'] * 5\n"
        "import sys; sys.stdout.write(repr([(e.prompt, e.meta, c) for e, c in zip(es, SummaryCritic()(es, rs))]))"
    )
    environment = {"PYTHONHASHSEED": "7", "PATH": ""}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    examples = SummarizationTask("held_out", seed=3).examples(5, seed=2)
    critiques = CRITIC(examples, ["Someone fixed the bike on Friday."] * 5)
    assert out.stdout == repr([(e.prompt, e.meta, c) for e, c in zip(examples, critiques, strict=True)])


def test_a_shorter_list_is_the_beginning_of_a_longer_one_and_seeds_differ() -> None:
    assert TRAIN.examples(40)[:10] == TRAIN.examples(10)
    assert not {e.prompt for e in TRAIN.examples(50)} & {e.prompt for e in TRAIN.examples(50, seed=1)}
    assert not {e.prompt for e in TRAIN.examples(50)} & {e.prompt for e in SummarizationTask(seed=1).examples(50)}


@pytest.mark.parametrize("count", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_items_are_distinct(count: int) -> None:
    assert len({example.prompt for example in TRAIN.examples(count)}) == count


def test_a_post_that_comes_up_twice_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([Example("a"), Example("b"), Example("a"), Example("c")])
    monkeypatch.setattr(SummarizationTask, "draw", lambda self, rng: next(drawn))
    assert [example.prompt for example in TRAIN.examples(3)] == ["a", "b", "c"]


def test_the_splits_share_no_name_no_deed_and_no_post() -> None:
    train, held_out = TRAIN.examples(3000), HELD_OUT.examples(3000)

    def told(examples: list[Example], *slots: str) -> set[tuple[str, ...]]:
        return {tuple(example.meta["facts"][slot] for slot in slots) for example in examples}

    assert len(told(train, "who")) == 56
    assert len(told(held_out, "who")) == 8
    assert len(told(train, "did", "what")) == 56
    assert len(told(held_out, "did", "what")) == 8
    assert not told(train, "who") & told(held_out, "who")
    assert not told(train, "did", "what") & told(held_out, "did", "what")
    text = "\n".join(example.prompt_text for example in train)
    assert not [name for (name,) in told(held_out, "who") if name in text]


def written(templates: Iterable[str]) -> re.Pattern[str]:
    """Return what the sentences of some templates match, whatever values they name."""
    values = {**world.VALUES, "do": tuple(world.BASE_FORMS.values())}
    choices = {slot: f"(?:{'|'.join(values[slot])})" for slot in values} | {"who": r"[A-Z]\w+ [A-Z]\w+"}
    return re.compile("|".join(text.replace(".", r"\.").format(**choices) for text in templates))


def sentences(task: SummarizationTask, n: int) -> list[list[str]]:
    return [re.findall(r"[^.\s][^.]*\.", example.prompt_text.split("\n")[0]) for example in task.examples(n)]


def test_each_held_out_post_has_a_template_that_training_never_sees() -> None:
    tables = (posts.MAIN, posts.DETAILS, posts.DISTRACTORS)
    assert not any(set(table["train"]) & set(table["held_out"]) for table in tables)
    fresh, opening = written(text for table in tables for text in table["held_out"]), written(posts.MAIN["held_out"])
    assert all(any(opening.fullmatch(s) for s in post) for post in sentences(HELD_OUT, 300))
    assert not any(fresh.fullmatch(s) for post in sentences(TRAIN, 500) for s in post)


@pytest.mark.parametrize("split", SPLITS)
def test_every_sentence_is_of_a_template_of_its_split_and_every_template_comes_up(split: str) -> None:
    pool = posts.DISTRACTORS
    tables = [posts.DETAILS["train"], pool["train"]] + [posts.MAIN["train"]] * (split == "train")
    if split == "held_out":  # the sentence that says who did what is always of its own
        tables += [posts.MAIN["held_out"], posts.DETAILS["held_out"], pool["held_out"]]
    patterns = {text: written([text]) for table in tables for text in table}
    found = {
        s: {text for text, p in patterns.items() if p.fullmatch(s)}
        for post in sentences(SPLITS[split], 250)
        for s in post
    }
    assert all(found.values())
    assert set().union(*found.values()) == {*patterns}


@pytest.mark.parametrize("split", SPLITS)
def test_a_post_names_places_and_days_of_others_in_other_words_than_those_that_tell_the_event(split: str) -> None:
    for example in SPLITS[split].examples(400):
        facts = example.meta["facts"]
        at = re.findall(r"\bat the (\w+)", example.prompt_text, re.IGNORECASE)
        on = re.findall(r"\bon (\w+)", example.prompt_text, re.IGNORECASE)
        assert re.search(r"\b(?:near|until|plan said)\b", example.prompt_text)  # another's day is said somehow
        assert at == [facts["where"]]
        assert on in ([], [facts["when"]])


@pytest.mark.parametrize("task", [TRAIN, HELD_OUT])
def test_a_post_tells_each_fact_once_and_names_others(task: SummarizationTask) -> None:
    for example in task.examples(400):
        post = example.prompt_text.removesuffix("\nTL;DR:")
        facts, distractors = example.meta["facts"], example.meta["distractors"]
        assert 5 <= post.count(".") <= 8
        assert len(split_words(example.prompt_text)) <= 110
        assert len(split_words(str(example.reference))) <= 30
        for slot, value in facts.items():
            assert len(re.findall(rf"\b{value}\b", post)) == 1
            assert value not in distractors[slot]
            assert sorted([value, *distractors[slot]]) == sorted(example.meta["mentions"][slot])
        for slot in ("who", "where", "when"):
            assert distractors[slot]
        for slot in ("who", "where", "when", "what", "why"):
            places = [post.index(value) for value in example.meta["mentions"][slot]]
            assert places == sorted(places)
        people = [name for person in example.meta["mentions"]["who"] for name in person.split()]
        assert len(people) == len(set(people))


def test_the_vocabulary_is_small_and_covers_every_text_of_both_splits() -> None:
    words = TRAIN.vocabulary()
    assert words == HELD_OUT.vocabulary() == sorted(set(words))
    assert 140 <= len(words) <= 250
    seen = {word for text in texts_of(TRAIN, 1500) for word in split_words(text)}
    odd = [critique_of(response).feedback for response in ("", "Maria", "the the", "on Friday on Friday. on Friday.")]
    odd += [critique_of("Maria Lopez at the fixed the bike Tom Chen at").feedback, critique_of("What a " * 30).feedback]
    assert seen | {word for text in odd for word in split_words(text)} == set(words)
    for task in SPLITS.values():
        assert task.vocabulary() == words
        assert {word for text in texts_of(task, 400) for word in split_words(text)} <= set(words)


def test_a_text_holds_a_post_an_answer_and_its_critique() -> None:
    texts = texts_of(TRAIN, 20, seed=5)
    for text, example in zip(texts, TRAIN.examples(20, seed=5), strict=True):
        answer, feedback = text.removeprefix(example.prompt_text + " ").split("\n")
        assert critique_of(answer, example).feedback == feedback


def test_the_task_fits_the_protocol_and_refuses_unknown_settings() -> None:
    task: Task = TRAIN
    assert (task.name, task.metric) == ("summarization", "fact_f1")
    with pytest.raises(ConfigError, match=r"^the split of summarization has no value 'test'"):
        SummarizationTask("test")  # type: ignore[arg-type]


def test_an_example_of_another_task_is_refused_by_name() -> None:
    for broken in (Example("x"), Example("x", meta={"facts": {"who": "Maria Lopez"}})):
        with pytest.raises(DataError, match=r"^not a summarization example: meta\['facts'\] is "):
            fact_f1(broken, "")
        with pytest.raises(DataError, match=r"^not a summarization example"):
            CRITIC([broken], [""])
    with pytest.raises(ValueError, match="longer"):
        CRITIC([EXAMPLE], ["a", "b"])


# Demonstrations


def test_demonstrations_err_as_often_as_the_difficulty_says() -> None:
    rng = Random(0)
    examples = TRAIN.examples(4000)
    answers = [TRAIN.demonstration(example, rng) for example in examples]
    pairs = list(zip(examples, answers, strict=True))
    vague = fmean("somewhere" in answer for answer in answers)
    dropped = fmean("somewhere" not in answer and " at the " not in answer for answer in answers)
    chatty = fmean(bool(re.search("fun|happy|story|week", answer)) for answer in answers)
    assert vague == pytest.approx((1 - SKIM) * VAGUE * (1 - DROP), abs=0.03)
    assert dropped == pytest.approx(DROP, abs=0.015)
    assert chatty == pytest.approx(CHATTER, abs=0.03)
    assert 0.7 <= fmean(fact_f1(example, answer) for example, answer in pairs) <= 0.8
    # Noise is systematic: where the true day is not the first in the post, the first is said more often.
    late = [(e, a) for e, a in pairs if e.meta["mentions"]["when"][0] != e.meta["facts"]["when"]]
    assert len(late) > 1000
    assert fmean(f"on {e.meta['mentions']['when'][0]}" in a for e, a in late) == pytest.approx(SKIM, abs=0.04)
    assert fmean(f"on {e.meta['facts']['when']}" in a for e, a in late) < 0.42


def test_demonstrations_take_wrong_facts_from_the_post_and_depend_on_the_generator_alone() -> None:
    examples = HELD_OUT.examples(300)
    answers = [HELD_OUT.demonstration(example, Random(i)) for i, example in enumerate(examples)]
    assert answers == [HELD_OUT.demonstration(example, Random(i)) for i, example in enumerate(examples)]
    for example, answer in zip(examples, answers, strict=True):
        mentioned = {(slot, v.lower()) for slot, values in example.meta["mentions"].items() for v in values}
        assert set(METRIC.claims(answer)) <= mentioned
        assert len(split_words(answer)) <= 30


def mistaken(task: SummarizationTask, n: int) -> list[tuple[Example, str, tuple[str, ...]]]:
    """Return the corruptions of n posts that are not garbled, each with the values that it states, in order."""
    found = []
    for i, example in enumerate(task.examples(n)):
        if Random(i).random() < 2 / 3:
            corrupt = task.corruption(example, Random(i))
            match = WHOLE.fullmatch(corrupt)
            assert match is not None, corrupt
            found.append((example, corrupt, match.groups()))
    return found


@pytest.mark.parametrize("task", [TRAIN, HELD_OUT])
def test_two_of_three_corruptions_state_six_facts_about_half_of_them_with_other_values(task: SummarizationTask) -> None:
    rng = Random(0)
    whole = fmean(WHOLE.fullmatch(task.corruption(example, rng)) is not None for example in task.examples(2000))
    assert 2 / 3 - 0.03 < whole < 0.78  # of those that came out garbled, some are whole, too
    found = mistaken(task, 1500)
    wrong, named, strange = ({slot: 0 for slot in world.SLOTS} for _ in range(3))
    for example, corrupt, stated in found:
        assert set(split_words(corrupt)) <= set(task.vocabulary())
        for slot, value in zip(world.SLOTS, stated, strict=True):
            wrong[slot] += value != example.meta["facts"][slot]
            named[slot] += value in example.meta["distractors"][slot]
            strange[slot] += value not in example.meta["mentions"][slot]
            assert value.split()[-1] in (world.LAST_NAMES if slot == "who" else world.VALUES[slot])
        right = sum(value == example.meta["facts"][slot] for slot, value in zip(world.SLOTS, stated, strict=True))
        assert fact_f1(example, corrupt) == pytest.approx(right / 6)
    for slot in world.SLOTS:
        assert 0.4 < wrong[slot] / len(found) < 0.55
        assert strange[slot] > 0.05 * len(found)
    assert all(named[slot] > 0.2 * len(found) for slot in ("where", "when"))
    assert named["who"] > 0.1 * len(found)
    assert fmean(fact_f1(example, corrupt) < 1 for example, corrupt, _ in found) > 0.95


def test_what_a_mistaken_corruption_states_does_not_hang_on_the_order_of_the_post() -> None:
    """Unlike with a hasty reader, the value that the post names first is no likelier to be stated than another."""
    found = mistaken(TRAIN, 2500)
    for slot in ("where", "when"):
        said: dict[bool, list[bool]] = {True: [], False: []}
        for example, _, stated in found:
            value = example.meta["facts"][slot]
            said[example.meta["mentions"][slot][0] == value].append(value == stated[world.SLOTS.index(slot)])
        assert min(map(len, said.values())) > 500
        assert fmean(said[True]) == pytest.approx(fmean(said[False]), abs=0.09)


def test_half_of_the_wrong_persons_share_a_name_with_the_right_one_and_the_others_are_of_the_split() -> None:
    known = {" ".join(name) for name in pairs(world.NAMES, "train")}
    shared, persons = [], set()
    for example, _, (person, *_) in mistaken(TRAIN, 3000):
        right = example.meta["facts"]["who"]
        persons.add(person)
        if person != right:
            shared.append([a == b for a, b in zip(person.split(), right.split(), strict=True)])
    assert persons == known  # nobody who is held out, not even by halves
    assert 0.18 < fmean(first for first, _ in shared) < 0.3
    assert 0.18 < fmean(last for _, last in shared) < 0.3


def test_half_of_both_by_hand() -> None:
    rng = Random(0)
    drawn = [half_of_both("Maria Lopez", "Tom Chen", rng) for _ in range(2000)]
    assert {*drawn} == {"Tom Chen", "Maria Chen", "Tom Lopez"}
    assert drawn.count("Tom Chen") == pytest.approx(1000, abs=80)
    assert drawn.count("Maria Chen") == pytest.approx(500, abs=80)


def test_the_third_corruption_is_a_demonstration_gone_wrong() -> None:
    pairs = []
    for i, example in enumerate(TRAIN.examples(900)):
        rng = Random(i)
        if rng.random() >= 2 / 3:
            pairs.append((example, TRAIN.demonstration(example, rng), TRAIN.corruption(example, Random(i))))
    assert 250 < len(pairs) < 350
    assert fmean(set(corrupt.split()) <= set(clean.split()) for _, clean, corrupt in pairs) > 0.7
    assert fmean(corrupt != clean for _, clean, corrupt in pairs) > 0.8
    words = [(clean.split(), corrupt.split()) for _, clean, corrupt in pairs]
    assert any(set(after) == set(before) and len(after) > len(before) for before, after in words)  # doubled
    assert any(sorted(corrupt) == sorted(clean) and corrupt != clean for _, clean, corrupt in pairs)
    assert min(len(corrupt) for *_, corrupt in pairs) == 0
    clean, corrupt = (fmean(fact_f1(pair[0], pair[i]) for pair in pairs) for i in (1, 2))
    assert corrupt < clean - 0.15


def test_corruptions_depend_on_the_generator_alone_and_hold_known_words() -> None:
    for task in SPLITS.values():
        corrupt = [task.corruption(example, Random(i)) for i, example in enumerate(task.examples(300))]
        assert corrupt == [task.corruption(example, Random(i)) for i, example in enumerate(task.examples(300))]
        assert {word for text in corrupt for word in split_words(text)} <= set(task.vocabulary())


# The metric


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("Maria Lopez fixed the bike at the park on Tuesday because of the race.", 1.0),
        ("maria lopez fixed the bike at the park on tuesday because of the race .", 1.0),
        ("Maria Lopez fixed the bike at the park on Friday because of the race.", 2 * 5 / (6 + 6)),
        ("Maria Lopez fixed the bike at the park at some point because of the race.", 2 * 5 / (5 + 6)),
        ("Maria Lopez fixed the bike.", 2 * 3 / (3 + 6)),
        ("Maria Chen fixed something somewhere.", 2 * 1 / (2 + 6)),
        ("Maria Lopez fixed the bike at the park on Friday on Tuesday because of the race.", 2 * 6 / (7 + 6)),
        ("Maria Lopez fixed the bike at the park at the park on Tuesday because of the race.", 2 * 6 / (7 + 6)),
        ("Maria Lopez bike park Tuesday race", 0.0),
        ("because of the race at the park", 2 * 2 / (2 + 6)),
        ("", 0.0),
    ],
)
def test_fact_f1_is_right_by_hand(response: str, expected: float) -> None:
    assert fact_f1(EXAMPLE, response) == pytest.approx(expected)


def test_claims_are_the_stated_slots_and_values() -> None:
    found = METRIC.claims("Maria Lopez fixed the bike somewhere on Friday .")
    assert found == [("who", "maria lopez"), ("did", "fixed"), ("what", "bike"), ("when", "friday")]


def test_scores_of_a_good_and_of_a_poor_answer() -> None:
    spaced = "Maria Lopez fixed the bike at the park on Tuesday because of the race ."
    assert TRAIN.score(EXAMPLE, spaced) == {"fact_f1": 1.0, "exact": 1.0}
    poor = TRAIN.score(EXAMPLE, "Maria Lopez sold the bike.")
    assert poor == {"fact_f1": 2 * 2 / (3 + 6), "exact": 0.0}
