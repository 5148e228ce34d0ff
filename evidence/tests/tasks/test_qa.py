"""The question-answering task: its items and splits, its demonstrations, its metric and its critic."""

import re
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise
from random import Random
from statistics import fmean

import pytest
from hypothesis import given, settings, strategies as st

import fact_critiques
from evidence.tasks.qa import tables, world
from evidence.tasks.qa.critic import QACritic
from evidence.tasks.qa.metric import METRIC
from evidence.tasks.qa.task import USUAL_FAULTS, QATask
from evidence.tasks.qa.world import problem_of
from fact_critiques import ABOUT_A_FACT, MISSING, Judged, judged, others, told_in
from task_texts import texts_of
from text2grad.errors import ConfigError, DataError
from text2grad.tasks.base import Task, split_words
from text2grad.types import Critique, Example

TRAIN, HELD_OUT = QATask("train"), QATask("held_out")
CRITIC = QACritic()
ROWS = tuple(
    dict(zip(("status", *world.SLOTS), row, strict=True))
    for row in (
        ("full", "Paul Chen", "yoga", "Turin", "Friday", "50"),
        ("open", "Ann Weber", "chess", "Lyon", "Monday", "40"),
        ("over", "Rosa Sato", "sewing", "park", "Sunday", "10"),
    )
)
EXAMPLE = Example("table", meta={"rows": ROWS, "target": 1, "asked": ("what", "where", "price")})
GOLD = "Ann Weber teaches chess in Lyon for 40 euros."

# Both styles: what is true of each slot, and what each judgement says. A full name is judged half by half.
TRUTHS = {
    "first": ("The first name is {}", "The name begins with {}"),
    "last": ("The last name is {}", "The surname is {}"),
    "who": ("{} teaches it", "The table says {}"),
    "what": ("The subject is {}", "It is {}"),
    "where": ("The city is {}", "It is in {}"),
    "when": ("The day is {}", "It is on {}"),
    "price": ("The price is {} euros", "It costs {} euros"),
}
NOUNS = {
    "first": "first name",
    "last": "last name",
    "who": "person",
    "what": "subject",
    "where": "city",
    "when": "day",
    "price": "price",
}
ABOUT_NONE = {"unasked": ("is not asked for", "answers no question"), **fact_critiques.ABOUT_NONE}

# An answer that claims a person and two or more details.
WHOLE = re.compile(
    r"(?P<who>\w+ \w+) teaches(?: (?P<what>\w+))??(?: in (?P<where>\w+))?(?: on (?P<when>\w+))?"
    r"(?: for (?P<price>\w+) euros)?\."
)
NAMES = [*world.FIRST_NAMES, *world.LAST_NAMES, *(f"{a} {b}" for a in world.FIRST_NAMES for b in world.LAST_NAMES)]
SLOT_OF = {
    **{value.lower(): slot for slot, values in world.VALUES.items() for value in values},
    **{text.lower(): slot for slot, text in world.FILLERS.items()},
    **{name.lower(): "who" for name in NAMES},
}


def halved(facts: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the claims with a first and a last name in place of the person."""
    first, last = facts["who"].split()
    return [("first", first), ("last", last), *((slot, value) for slot, value in facts.items() if slot != "who")]


def kinds(slot: str, style: int) -> dict[str, str]:
    """Return the kind of judgement by its words, of those that a remark on this slot, "" for none, can hold.

    A claim that nobody asked for can come twice or be out of place, too.
    """
    of_halves, of_names = ("right", "wrong"), ("vague", "half", "duplicate", "misplaced")
    of_others, of_none = {*ABOUT_A_FACT} - {"half"}, (*ABOUT_NONE, "duplicate", "misplaced")
    known = {"": of_none, "first": of_halves, "last": of_halves, "who": of_names}.get(slot, of_others)
    nouns = [NOUNS[slot]] if slot else [*NOUNS.values()]
    wordings = ABOUT_A_FACT | ABOUT_NONE
    return {wordings[kind][style].format(noun=noun): kind for kind in known for noun in nouns}


def told(feedback: str, facts: Mapping[str, str]) -> tuple[int, list[tuple[str, Judged | str]]]:
    return told_in(feedback, facts, TRUTHS, kinds)


def claim_f1(example: Example, response: str) -> float:
    return TRAIN.score(example, response)["claim_f1"]


def critique_of(response: str, example: Example = EXAMPLE) -> Critique:
    return CRITIC([example], [response])[0]


def told_by(response: str, prompt: str = EXAMPLE.prompt_text) -> tuple[int, list[tuple[str, Judged | str]]]:
    """Return how the example's table is told of an answer; each prompt draws its own style."""
    return told(critique_of(response, Example(prompt, meta=EXAMPLE.meta)).feedback, problem_of(EXAMPLE).facts)


def quotes(response: str, label: str) -> list[str]:
    return [response[s.start : s.end] for s in critique_of(response).spans if s.label == label]


# Items


def test_the_same_seed_gives_the_same_items_and_words_in_another_process() -> None:
    code = (
        "from random import Random\n"
        "from evidence.tasks.qa.task import QATask, QACritic\n"
        "task = QATask('held_out', seed=3)\n"
        "es = task.examples(5, seed=2)\n"
        "rs = [task.demonstration(e, Random(4)) for e in es]\n"
        "import sys; sys.stdout.write(repr([(e, r, c) for e, r, c in zip(es, rs, QACritic()(es, rs))]))"
    )
    environment = {"PYTHONHASHSEED": "7", "PATH": ""}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    task = QATask("held_out", seed=3)
    examples = task.examples(5, seed=2)
    answers = [task.demonstration(example, Random(4)) for example in examples]
    assert out.stdout == repr(list(zip(examples, answers, CRITIC(examples, answers), strict=True)))


def test_a_shorter_list_is_the_beginning_of_a_longer_one_and_seeds_differ() -> None:
    assert TRAIN.examples(40)[:10] == TRAIN.examples(10)
    assert not {e.prompt for e in TRAIN.examples(50)} & {e.prompt for e in TRAIN.examples(50, seed=1)}
    assert not {e.prompt for e in TRAIN.examples(50)} & {e.prompt for e in QATask(seed=1).examples(50)}


def test_a_hundred_thousand_distinct_items_are_within_reach() -> None:
    """Drawing them all takes ten seconds; that 20,000 draws never collide says as much."""
    rng = Random(0)
    drawn = [tables.write_prompt(tables.draw_problem("train", 3, rng), "train", rng) for _ in range(20_000)]
    assert len(set(drawn)) == 20_000  # from a pool of N, about 2e8 / N of them would collide
    assert len({example.prompt for example in TRAIN.examples(3000)}) == 3000


def test_an_item_that_comes_up_twice_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([Example("a"), Example("b"), Example("a"), Example("c")])
    monkeypatch.setattr(QATask, "draw", lambda self, rng: next(drawn))
    assert [example.prompt for example in TRAIN.examples(3)] == ["a", "b", "c"]


def test_the_splits_share_no_name_course_composition_template_or_column_order() -> None:
    train, held_out = TRAIN.examples(3000), HELD_OUT.examples(1500)

    def asked(examples: list[Example], *slots: str) -> set[tuple[str, ...]]:
        return {tuple(e.meta["rows"][e.meta["target"]][slot] for slot in slots) for e in examples}

    for slots in (("who",), ("what", "where")):
        assert (len(asked(train, *slots)), len(asked(held_out, *slots))) == (56, 8)
        assert not asked(train, *slots) & asked(held_out, *slots)
    assert {e.meta["asked"] for e in train} | {e.meta["asked"] for e in held_out} == {
        *world.compositions("train"),
        *world.compositions("held_out"),
    }
    assert not {e.meta["asked"] for e in train} & {e.meta["asked"] for e in held_out}
    text = "\n".join(example.prompt_text for example in train)
    assert not [name for (name,) in asked(held_out, "who") if name in text]

    def openings(examples: list[Example]) -> set[str]:
        return {e.prompt_text.split("Question: ")[1].split("who")[0].strip() for e in examples}

    assert (len(openings(train)), len(openings(held_out))) == (5, 2)
    assert not openings(train) & openings(held_out)
    assert not set(tables.COLUMNS["train"]) & set(tables.COLUMNS["held_out"])
    # Held-out prompts recombine: no word of theirs is new.
    assert {w for e in held_out for w in split_words(e.prompt_text)} <= set(split_words(text))


def test_a_table_has_one_open_row_and_no_value_twice() -> None:
    for example in QATask("held_out").examples(200) + QATask("train").examples(200):
        rows, target = example.meta["rows"], example.meta["target"]
        assert USUAL_FAULTS.rows[0] <= len(rows) <= USUAL_FAULTS.rows[1]
        assert [row["status"] == "open" for row in rows] == [i == target for i in range(len(rows))]
        for slot in world.DETAILS:
            assert len({row[slot] for row in rows}) == len(rows)
        assert len({name for row in rows for name in row["who"].split()}) == 2 * len(rows)
        lines = example.prompt_text.split("\n")
        for line, row in zip(lines, rows, strict=False):
            assert sorted(split_words(line)) == sorted(
                split_words(f"- {row['status']}: {' '.join(list(row.values())[1:])}")
            )
        assert 30 <= len(split_words(example.prompt_text)) <= 80
        assert 5 <= len(split_words(str(example.reference))) <= 25


def test_the_vocabulary_is_small_and_covers_every_text_of_both_splits() -> None:
    words = TRAIN.vocabulary()
    assert words == HELD_OUT.vocabulary() == sorted(set(words))
    assert 140 <= len(words) <= 200
    seen = {word for text in texts_of(TRAIN, 1500) for word in split_words(text)}
    odd = [critique_of(response).feedback for response in ("", "Ann", "the the", "on Friday on Friday. on Friday.")]
    odd += [critique_of("teaches chess Ann Weber at the").feedback, critique_of("See you " * 30).feedback]
    assert seen | {word for text in odd for word in split_words(text)} == set(words)
    for split in ("train", "held_out"):
        task = QATask(split)  # type: ignore[arg-type]
        assert task.vocabulary() == words
        assert {word for text in texts_of(task, 400) for word in split_words(text)} <= set(words)


def test_a_text_holds_a_prompt_an_answer_and_its_critique_of_at_most_a_hundred_words() -> None:
    lengths = []
    for text, example in zip(texts_of(TRAIN, 400, seed=5), TRAIN.examples(400, seed=5), strict=True):
        answer, feedback = text.removeprefix(example.prompt_text + " ").split("\n")
        assert critique_of(answer, example).feedback == feedback
        lengths.append(len(split_words(feedback)))
    assert sorted(lengths)[int(0.99 * len(lengths))] <= 100


def test_the_task_fits_the_protocol_and_refuses_unknown_settings() -> None:
    task: Task = TRAIN
    assert (task.name, task.metric) == ("qa", "claim_f1")
    assert task.critic() == QACritic()
    with pytest.raises(ConfigError, match=r"^the split of qa has no value 'test'"):
        QATask("test")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change", [{"rows": None}, {"rows": [{"who": "Ann Weber"}]}, {"target": 3}, {"target": None}, {"asked": ["who"]}]
)
def test_an_example_of_another_task_is_refused_by_name(change: dict[str, object]) -> None:
    broken = Example("x", meta={**EXAMPLE.meta, **change})
    with pytest.raises(DataError, match=r"^not a qa example: meta has rows="):
        claim_f1(broken, "")
    with pytest.raises(DataError, match=r"^not a qa example"):
        CRITIC([broken], [""])
    with pytest.raises(ValueError, match="longer"):
        CRITIC([EXAMPLE], ["a", "b"])


# Demonstrations


def test_demonstrations_err_as_often_as_the_difficulty_says_and_always_towards_the_first_row() -> None:
    rng, level = Random(0), USUAL_FAULTS
    examples = TRAIN.examples(3000)
    pairs = [(example, problem_of(example), TRAIN.demonstration(example, rng)) for example in examples]
    assert 0.6 <= fmean(claim_f1(example, answer) for example, _, answer in pairs) <= 0.72
    late = [(p, a) for _, p, a in pairs if p.target and "when" in p.asked]
    assert len(late) > 800
    true = fmean(f"on {p.rows[p.target]['when']}" in a for p, a in late)
    first = fmean(f"on {p.rows[0]['when']}" in a for p, a in late)
    assert first == pytest.approx(level.skim * (1 - level.drop), abs=0.05)
    assert true == pytest.approx((1 - level.skim) * (1 - level.vague), abs=0.05)
    assert first > true + 0.05
    persons = fmean(p.rows[0]["who"] in a for _, p, a in pairs if p.target)
    assert persons == pytest.approx(level.slip, abs=0.04)
    vague = fmean("at some point" in a for p, a in late)
    assert vague == pytest.approx((1 - level.skim) * level.vague, abs=0.03)
    assert fmean(bool(re.search("fun|welcome|deal|soon", a)) for *_, a in pairs) == pytest.approx(0.3, abs=0.04)
    missing = fmean("on " not in a and "at some point" not in a for p, a in late)
    assert missing == pytest.approx(level.drop, abs=0.02)


def mistaken(task: QATask, n: int) -> list[tuple[Example, str, dict[str, str]]]:
    """Return the corruptions of n tables that are not garbled, each with what it claims."""
    found = []
    for i, example in enumerate(task.examples(n)):
        if Random(i).random() < 2 / 3:
            corrupt = task.corruption(example, Random(i))
            match = WHOLE.fullmatch(corrupt)
            assert match is not None, corrupt
            found.append((example, corrupt, {slot: value for slot, value in match.groupdict().items() if value}))
    return found


@pytest.mark.parametrize("task", [TRAIN, HELD_OUT, QATask("train", "hard")])
def test_two_of_three_corruptions_claim_what_was_asked_for_often_with_other_values(task: QATask) -> None:
    rng = Random(0)
    whole = fmean(WHOLE.fullmatch(task.corruption(example, rng)) is not None for example in task.examples(1500))
    assert 2 / 3 - 0.03 < whole < 0.85  # of those that came out garbled, some are whole, too
    wrong: dict[str, list[bool]] = {slot: [] for slot in world.SLOTS}
    tabled: dict[str, list[bool]] = {slot: [] for slot in world.SLOTS}
    for example, corrupt, stated in mistaken(task, 1500):
        facts, rows = problem_of(example).facts, example.meta["rows"]
        assert {*stated} == {*facts}
        for slot, value in stated.items():
            wrong[slot].append(value != facts[slot])
            tabled[slot] += [value in {row[slot] for row in rows}] if value != facts[slot] else []
        right = sum(value == facts[slot] for slot, value in stated.items())
        assert claim_f1(example, corrupt) == pytest.approx(right / len(facts))
    for slot in world.SLOTS:
        assert 0.4 < fmean(wrong[slot]) < 0.54
        assert 0.2 < fmean(tabled[slot]) < 0.97  # of another row, but at times of none


def test_half_of_the_wrong_persons_share_a_name_with_the_right_one() -> None:
    shared = []
    for example, _, stated in mistaken(TRAIN, 3000):
        right = problem_of(example).facts["who"]
        if stated["who"] != right:
            shared.append([a == b for a, b in zip(stated["who"].split(), right.split(), strict=True)])
    assert 0.18 < fmean(first for first, _ in shared) < 0.33
    assert 0.18 < fmean(last for _, last in shared) < 0.33


def test_the_third_corruption_is_a_demonstration_gone_wrong() -> None:
    pairs = []
    for i, example in enumerate(TRAIN.examples(900)):
        rng = Random(i)
        if rng.random() >= 2 / 3:
            pairs.append((example, TRAIN.demonstration(example, rng), TRAIN.corruption(example, Random(i))))
    assert 250 < len(pairs) < 350
    assert fmean(set(corrupt.split()) <= set(clean.split()) for _, clean, corrupt in pairs) > 0.7
    assert fmean(corrupt != clean for _, clean, corrupt in pairs) > 0.75
    words = [(clean.split(), corrupt.split()) for _, clean, corrupt in pairs]
    assert any(set(after) == set(before) and len(after) > len(before) for before, after in words)  # doubled
    assert any(sorted(corrupt) == sorted(clean) and corrupt != clean for _, clean, corrupt in pairs)
    assert min(len(corrupt) for *_, corrupt in pairs) == 0
    assert fmean(claim_f1(e, corrupt) for e, _, corrupt in pairs) < fmean(claim_f1(e, d) for e, d, _ in pairs) - 0.15


def test_corruptions_depend_on_the_generator_alone_and_hold_known_words() -> None:
    for task in (QATask("train"), QATask("held_out")):
        corrupt = [task.corruption(example, Random(i)) for i, example in enumerate(task.examples(300))]
        assert corrupt == [task.corruption(example, Random(i)) for i, example in enumerate(task.examples(300))]
        assert {word for text in corrupt for word in split_words(text)} <= set(task.vocabulary())


# The metric


def test_claims_are_the_stated_slots_and_values() -> None:
    found = METRIC.claims("Ann Weber teaches chess somewhere for 40 euros .")
    assert found == [("who", "ann weber"), ("what", "chess"), ("price", "40")]


@pytest.mark.parametrize(
    ("response", "right", "stated"),
    [
        (GOLD, 4, 4),
        ("ann weber teaches chess in Lyon for 40 euros .", 4, 4),
        ("Ann Weber teaches chess in Turin for 40 euros.", 3, 4),
        ("Ann Weber teaches chess somewhere for some price.", 2, 2),
        ("Ann Weber teaches chess in Lyon on Monday for 40 euros.", 4, 5),  # nobody asked for the day
        ("Ann Weber teaches chess in Lyon in Lyon.", 3, 4),
        ("Paul Chen teaches yoga.", 0, 2),
        ("Ann Weber chess Lyon 40", 0, 0),
        ("", 0, 0),
    ],
)
def test_claim_scores_are_right_by_hand(response: str, right: int, stated: int) -> None:
    score = TRAIN.score(EXAMPLE, response)
    assert score["claim_f1"] == pytest.approx(2 * right / (stated + 4))
    assert score["claim_precision"] == pytest.approx(right / max(stated, 1))
    assert score["claim_recall"] == pytest.approx(right / 4)
    assert score["exact"] == float(response.lower().replace(" .", ".") == GOLD.lower())


def test_critic_and_metric_agree_on_clean_answers_and_references_score_one() -> None:
    rng = Random(1)
    for example in TRAIN.examples(300) + HELD_OUT.examples(300):
        reference = str(example.reference)
        assert TRAIN.score(example, reference) == dict.fromkeys(TRAIN.score(example, ""), 1.0)
        critique = critique_of(reference, example)
        assert {span.label for span in critique.spans} == {"positive"}
        facts = problem_of(example).facts
        _, remarks = told(critique.feedback, facts)
        assert remarks == [(slot, [(value, "right")]) for slot, value in halved(facts)]
        answer = TRAIN.demonstration(example, rng)
        praised = {answer[s.start : s.end].lower() for s in critique_of(answer, example).spans if s.label == "positive"}
        right = {value for slot, value in METRIC.claims(answer) if facts.get(slot, "").lower() == value}
        names = [value.split() for slot, value in METRIC.claims(answer) if slot == "who"]
        halves = {a for name in names for a, b in zip(name, facts["who"].lower().split(), strict=True) if a == b}
        assert praised == halves | (right - {facts["who"].lower()})


# The critic


@pytest.mark.parametrize(
    ("response", "negative", "slot", "kind"),
    [
        (GOLD.replace("Lyon", "Turin"), "Turin", "where", "wrong"),  # of another row
        (GOLD.replace("Lyon", "Oslo"), "Oslo", "where", "wrong"),  # of none
        (GOLD.replace("chess", "sewing"), "sewing", "what", "wrong"),
        (GOLD.replace("40", "50"), "50", "price", "wrong"),
        (GOLD.replace("Ann", "Rosa"), "Rosa", "first", "wrong"),
        (GOLD.replace("Weber", "Sato"), "Sato", "last", "wrong"),
        (GOLD.replace("Ann Weber", "Ann"), "Ann", "who", "half"),
        (GOLD.replace("Ann Weber", "Sato"), "Sato", "who", "half"),
        (GOLD.replace("Ann Weber", "Someone"), "Someone", "who", "vague"),
        (GOLD.replace("chess", "something"), "something", "what", "vague"),
        (GOLD.replace("in Lyon", "somewhere"), "somewhere", "where", "vague"),
        (GOLD.replace("40 euros", "some price"), "for some price", "price", "vague"),
        (GOLD[:-1] + " for 40 euros.", "40", "price", "duplicate"),
        (GOLD[:-1] + " in Turin.", "Turin", "where", "duplicate"),
        ("In Lyon chess for 40 euros Ann Weber teaches.", "chess", "what", "misplaced"),
        ("Ann Weber in Lyon for 40 euros.", "Ann Weber", "who", "misplaced"),
        (GOLD.replace("for", "on Monday for"), "Monday", "", "unasked"),  # right, yet nobody asked
        (GOLD.replace("for", "at some point for"), "at some point", "", "unasked"),
        (GOLD[:-1] + " and it is fun.", "and it is fun", "", "chatter"),
        (GOLD.replace("in Lyon", "for in Lyon"), "for", "", "garbled"),
        (GOLD + "\nSee you soon.", "See you soon.", "", "extra"),
    ],
)
def test_each_kind_of_fault_is_quoted_and_named_beside_the_truth(
    response: str, negative: str, slot: str, kind: str
) -> None:
    assert quotes(response, "negative") == [negative]
    named = set()
    for prompt in "abcdefghijklmnop":  # each draws its own style
        style, remarks = told_by(response, prompt)
        assert [found for found in judged(remarks) if found[1] != "right"] == [(negative, kind, slot)]
        named.add(style)
    assert named == {0, 1}


@pytest.mark.parametrize(
    ("name", "verdicts"),
    [
        ("Ann Weber teaches", [("Ann", "right", "first"), ("Weber", "right", "last")]),
        ("ann WEBER teaches", [("ann", "right", "first"), ("WEBER", "right", "last")]),
        ("Ann Sato teaches", [("Ann", "right", "first"), ("Sato", "wrong", "last")]),
        ("Rosa Weber teaches", [("Rosa", "wrong", "first"), ("Weber", "right", "last")]),
        ("Rosa Sato teaches", [("Rosa", "wrong", "first"), ("Sato", "wrong", "last")]),
        ("Weber teaches", [("Weber", "half", "who")]),
        ("Weber Ann teaches", [("Weber", "half", "who"), ("Ann", "duplicate", "who")]),
        ("Ann Weber", [("Ann Weber", "misplaced", "who")]),
    ],
)
def test_the_halves_of_a_full_name_are_judged_each_on_its_own(name: str, verdicts: list[tuple[str, str, str]]) -> None:
    response = GOLD.replace("Ann Weber teaches", name)
    remarks, critique = told_by(response)[1], critique_of(response)
    assert judged(remarks)[: len(verdicts)] == verdicts
    starts = [(span.start, span.label == "positive") for span in critique.spans]
    assert starts[: len(verdicts)] == [(response.index(quote), kind == "right") for quote, kind, _ in verdicts]
    assert "who" not in [slot for slot, _ in others(remarks)]


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (
            "Ann Weber teaches in Lyon for 40 euros on Monday on Sunday.",
            {
                ': "40" is right. "Monday" is not asked for. "Sunday" is one day too many.',
                ': "40" is correct. "Monday" answers no question. "Sunday" is a second day.',
            },
        ),
        (
            "Ann Weber teaches for 40 euros in Lyon chess.",
            {
                ': "Lyon" is right. "chess" is out of place.',
                ': "Lyon" is correct. "chess" is in the wrong place.',
            },
        ),
    ],
)
def test_a_claim_that_nobody_asked_for_is_named_beside_no_truth_also_where_it_comes_twice_or_out_of_place(
    response: str, said: set[str]
) -> None:
    meta, starts = {**EXAMPLE.meta, "asked": ("where", "price")}, []
    for prompt in "abcdefgh":
        feedback = critique_of(response, Example(prompt, meta=meta)).feedback
        starts += [text for text in said if feedback.endswith(text)]
    assert len(starts) == 8
    assert {*starts} == said


def test_each_remark_first_says_what_is_true_and_then_what_of_it_the_answer_has() -> None:
    response = "Rosa Sato teaches chess in Turin in Lyon on Sunday and it is fun."
    assert quotes(response, "positive") == ["chess"]
    assert quotes(response, "negative") == ["Rosa", "Sato", "Turin", "Lyon", "Sunday", "and it is fun"]
    assert {critique_of(response, Example(prompt, meta=EXAMPLE.meta)).feedback for prompt in "abcdefghijklmnop"} == {
        'The first name is Ann: "Rosa" is wrong. The last name is Weber: "Sato" is wrong. '
        'The subject is chess: "chess" is right. '
        'The city is Lyon: "Turin" is wrong and "Lyon" is one city too many. '
        '"Sunday" is not asked for. "and it is fun" is chatter. The price is 40 euros: it is missing.',
        'The name begins with Ann: "Rosa" is the wrong first name. '
        'The surname is Weber: "Sato" is the wrong last name. It is chess: "chess" is correct. '
        'It is in Lyon: "Turin" is the wrong city and "Lyon" is a second city. '
        '"Sunday" answers no question. "and it is fun" is no fact. It costs 40 euros: nothing names it.',
    }


def test_whatever_an_answer_says_each_remark_states_the_truth_of_the_very_claim_that_it_judges() -> None:
    rng, styles, named = Random(3), [], set()
    for example in TRAIN.examples(400) + HELD_OUT.examples(200) + QATask("train", "hard").examples(100):
        facts = problem_of(example).facts
        for answer in (
            TRAIN.demonstration(example, rng),
            TRAIN.corruption(example, rng),
            TRAIN.corruption(example, rng),
        ):
            critique = critique_of(answer, example)
            if not answer.strip():
                assert critique == Critique("The answer is empty.", ())
                continue
            style, remarks = told(critique.feedback, facts)
            found, rest = judged(remarks), others(remarks)
            assert [(quote, "positive" if kind == "right" else "negative") for quote, kind, _ in found] == [
                (answer[s.start : s.end], s.label) for s in critique.spans
            ]
            true = dict(halved(facts))
            for quote, kind, slot in found:
                about = "" if kind in ("chatter", "garbled", "extra") else SLOT_OF[quote.lower()]
                if about == "who" and kind in ("right", "wrong"):
                    about = "first" if quote in world.FIRST_NAMES else "last"
                assert slot == (about if about in facts or about in true else "")
                assert kind not in ("right", "wrong") or (kind == "right") == (quote == true[slot])
                assert kind != "unasked" or about not in facts
                wording = (ABOUT_A_FACT | ABOUT_NONE)[kind][style].format(noun=NOUNS.get(about))
                assert f'"{quote}" {wording}' in critique.feedback
            mentioned = {"who" if slot in ("first", "last") else slot for *_, slot in found} - {""}
            missing = [slot for slot, _ in rest if slot]
            assert not mentioned & {*missing}
            assert remarks[len(remarks) - len(rest) :] == rest, "they come last"
            assert all(a != b or not a for a, b in pairwise(slot for slot, _ in remarks)), "one remark for one slot"
            assert all(len(verdicts) == 1 for slot, verdicts in remarks if not slot and not isinstance(verdicts, str))
            if ("", "There is more like this.") not in rest:
                assert missing == [slot for slot in facts if slot not in mentioned]
            styles.append(style)
            named |= {(kind, style) for _, kind, _ in found}
    assert 0.45 < fmean(styles) < 0.55
    assert named == {(kind, style) for kind in (*ABOUT_A_FACT, *ABOUT_NONE) for style in (0, 1)}


def test_what_follows_each_quote_begins_with_exactly_one_of_the_verdicts_and_each_of_them_occurs() -> None:
    verdicts = TRAIN.verdicts()
    wordings = [text for choices in (ABOUT_A_FACT | ABOUT_NONE).values() for text in choices]
    assert verdicts == HELD_OUT.verdicts() == sorted({'" ' + text.split(" {")[0] for text in wordings})
    assert {'" is right', '" is the wrong', '" is one', '" is only half a name', '" answers no question'} < {*verdicts}
    found = set()
    for example, text in zip(TRAIN.examples(1500), texts_of(TRAIN, 1500), strict=True):
        feedback = text.removeprefix(example.prompt_text).split("\n")[-1]
        for match in re.finditer(r'"[^"]*"', feedback):
            (verdict,) = [verdict for verdict in verdicts if feedback.startswith(verdict, match.end() - 1)]
            rest = feedback[match.end() - 1 + len(verdict) :]
            assert re.match(r"\W|$| (?:person|first name|last name|subject|city|day|price)\b", rest)
            found.add(verdict)
    assert found == {*verdicts}


def test_omissions_and_breaks_are_told_in_words() -> None:
    endings = {
        re.split(r'"chess" is \w+\. ', critique_of("Ann Weber teaches chess.", example).feedback)[1]
        for example in (Example(prompt, meta=EXAMPLE.meta) for prompt in "abcdefghijklmnop")
    }
    assert endings == {
        "The city is Lyon: it is missing. The price is 40 euros: it is missing.",
        "It is in Lyon: nothing names it. It costs 40 euros: nothing names it.",
    }
    style, remarks = told_by(GOLD[:-1])
    assert remarks == [*told_by(GOLD)[1], ("", "The sentence breaks off.")]
    style, remarks = told_by(GOLD[: GOLD.index(" for")])
    assert others(remarks) == [("", "The sentence breaks off."), ("price", MISSING[style])]


@pytest.mark.parametrize("slot", ["who", "what", "where", "price"])
def test_each_claim_that_is_left_out_is_told_of(slot: str) -> None:
    facts = problem_of(EXAMPLE).facts
    phrases = {name: world.phrase(name, value) for name, value in facts.items() if name != slot}
    response = world.sentence(phrases if slot != "who" else {k: phrases[k] for k in ("where", "price")}) + "."
    style, remarks = told_by(response)
    assert others(remarks) == [
        (name, MISSING[style]) for name in facts if name == slot or (name, slot) == ("what", "who")
    ]


def test_an_empty_answer_is_named_as_such() -> None:
    assert critique_of("") == critique_of(" \n") == Critique("The answer is empty.", ())


def test_a_long_mess_is_quoted_in_part_and_the_critique_says_so() -> None:
    response = " ".join(["zebra"] * 100) + "."
    assert quotes(response, "negative") == [" ".join(["zebra"] * 6)] * 6
    style, remarks = told_by(response)
    assert judged(remarks) == [(" ".join(["zebra"] * 6), "garbled", "")] * 6
    missing = [(slot, MISSING[style]) for slot in ("who", "what", "where", "price")]
    assert others(remarks) == [("", "There is more like this."), *missing]
    assert "There is more" not in critique_of("zebra.").feedback


def test_critiques_vary_in_style_but_not_for_one_answer() -> None:
    examples = TRAIN.examples(200)
    responses = [TRAIN.demonstration(example, Random(i)) for i, example in enumerate(examples)]
    critiques = CRITIC(examples, responses)
    assert critiques == CRITIC(examples, responses) == CRITIC(examples[::-1], responses[::-1])[::-1]
    # The style hangs on the prompt and on the answer, each alone.
    assert {told_by(GOLD, prompt)[0] for prompt in "abcdefgh"} == {0, 1}
    assert {told_by(GOLD.replace("Lyon", place))[0] for place in world.VALUES["where"]} == {0, 1}


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
    if response.strip() and '"' not in response:
        _, remarks = told(critique.feedback, problem_of(EXAMPLE).facts)
        assert [(quote, kind == "right") for quote, kind, _ in judged(remarks)] == [
            (response[s.start : s.end], s.label == "positive") for s in critique.spans
        ]
