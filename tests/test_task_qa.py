"""The question-answering task: its items and splits, its demonstrations, its metric and its critic."""

import re
import subprocess
import sys
from random import Random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from text2grad.errors import ConfigError, DataError
from text2grad.tasks import _qa_tables as tables
from text2grad.tasks import _qa_world as world
from text2grad.tasks._qa_metric import claims
from text2grad.tasks.base import Task, split_words
from text2grad.tasks.qa import DIFFICULTIES, QACritic, QATask, claim_f1, problem_of
from text2grad.types import Critique, Example

TRAIN, HELD_OUT = QATask("train"), QATask("held_out")
CRITIC = QACritic()
ROWS = tuple(
    dict(zip(("status", *world.SLOTS), row, strict=True))
    for row in (
        ("full", "Paul Chen", "yoga", "beach", "Friday", "50"),
        ("open", "Ann Weber", "chess", "library", "Monday", "40"),
        ("over", "Rosa Sato", "sewing", "park", "Sunday", "10"),
    )
)
EXAMPLE = Example("table", meta={"rows": ROWS, "target": 1, "asked": ("what", "where", "price")})
GOLD = "Ann Weber teaches chess at the library for 40 euros."
RECAP = rf"(The table says that|In short,|The truth:) {re.escape(GOLD)} "


def critique_of(response: str, example: Example = EXAMPLE) -> Critique:
    return CRITIC([example], [response])[0]


def quotes(response: str, label: str) -> list[str]:
    return [response[s.start : s.end] for s in critique_of(response).spans if s.label == label]


# Items


def test_the_same_seed_gives_the_same_items_and_words_in_another_process() -> None:
    code = (
        "from random import Random\n"
        "from text2grad.tasks.qa import QATask, QACritic\n"
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
    monkeypatch.setattr(QATask, "_example", lambda self, rng: next(drawn))
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


@pytest.mark.parametrize("level", ["easy", "normal", "hard"])
def test_a_table_has_one_open_row_and_no_value_twice(level: str) -> None:
    for example in QATask("held_out", level).examples(200) + QATask("train", level).examples(200):
        rows, target = example.meta["rows"], example.meta["target"]
        assert DIFFICULTIES[level].rows[0] <= len(rows) <= DIFFICULTIES[level].rows[1]
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
    assert {word for text in TRAIN.texts(1500) for word in split_words(text)} == set(words)
    assert {word for text in HELD_OUT.texts(800) for word in split_words(text)} <= set(words)
    odd = [critique_of(response).feedback for response in ("", "Ann", "the the", "on Friday on Friday. on Friday.")]
    odd += [critique_of("teaches chess Ann Weber at the").feedback, critique_of("See you " * 30).feedback]
    assert {word for text in odd for word in split_words(text)} <= set(words)


def test_a_text_holds_a_prompt_an_answer_and_its_critique_of_at_most_ninety_words() -> None:
    lengths = []
    for text, example in zip(TRAIN.texts(400, seed=5), TRAIN.examples(400, seed=5), strict=True):
        answer, feedback = text.removeprefix(example.prompt_text + " ").split("\n")
        assert critique_of(answer, example).feedback == feedback
        lengths.append(len(split_words(feedback)))
    assert sorted(lengths)[int(0.99 * len(lengths))] <= 90


def test_the_task_fits_the_protocol_and_refuses_unknown_settings() -> None:
    task: Task = TRAIN
    assert (task.name, task.metric) == ("qa", "claim_f1")
    assert task.critic() == QACritic()
    with pytest.raises(ConfigError, match=r"^qa has no split 'test'; known: train, held_out$"):
        QATask("test")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^qa has no difficulty 'mad'; known: easy, normal, hard$"):
        QATask("train", "mad")


@pytest.mark.parametrize(
    "change", [{"rows": None}, {"rows": [{"who": "Ann Weber"}]}, {"target": 3}, {"target": None}, {"asked": ["who"]}]
)
def test_an_example_of_another_task_is_refused_by_name(change: dict[str, object]) -> None:
    broken = Example("x", meta={**EXAMPLE.meta, **change})
    with pytest.raises(DataError, match=r"^not a qa example: meta has rows="):
        claim_f1(broken, "")
    with pytest.raises(DataError, match=r"^not a qa example"):
        CRITIC([broken], [""])
    with pytest.raises(DataError, match=r"^got 1 examples and 2 responses$"):
        CRITIC([EXAMPLE], ["a", "b"])


# Demonstrations


def test_demonstrations_err_as_often_as_the_difficulty_says_and_always_towards_the_first_row() -> None:
    rng, level = Random(0), DIFFICULTIES["normal"]
    examples = TRAIN.examples(3000)
    pairs = [(example, problem_of(example), TRAIN.demonstration(example, rng)) for example in examples]
    assert 0.6 <= fmean(claim_f1(example, answer) for example, _, answer in pairs) <= 0.72
    late = [(p, a) for _, p, a in pairs if p.target and "when" in p.asked]
    assert len(late) > 800
    true = fmean(f"on {p.rows[p.target]['when']}" in a for p, a in late)
    first = fmean(f"on {p.rows[0]['when']}" in a for p, a in late)
    assert first == pytest.approx(level.skim * (1 - level.drop), abs=0.05)
    assert true == pytest.approx((1 - level.skim) * (1 - level.vague), abs=0.05)
    assert first > 0.5 > 0.4 > true > 0.2
    persons = fmean(p.rows[0]["who"] in a for _, p, a in pairs if p.target)
    assert persons == pytest.approx(level.slip, abs=0.04)
    vague = fmean("at some point" in a for p, a in late)
    assert vague == pytest.approx((1 - level.skim) * level.vague, abs=0.03)
    assert fmean(bool(re.search("fun|welcome|deal|soon", a)) for *_, a in pairs) == pytest.approx(0.3, abs=0.04)
    missing = fmean("on " not in a and "at some point" not in a for p, a in late)
    assert missing == pytest.approx(level.drop, abs=0.02)


def test_corruptions_are_demonstrations_gone_wrong() -> None:
    pairs = [
        (e, TRAIN.demonstration(e, Random(i)), TRAIN.corruption(e, Random(i)))
        for i, e in enumerate(TRAIN.examples(300))
    ]
    assert all(set(split_words(corrupt)) <= set(TRAIN.vocabulary()) for *_, corrupt in pairs)
    assert fmean(corrupt != clean for _, clean, corrupt in pairs) > 0.75
    assert fmean(claim_f1(e, corrupt) for e, _, corrupt in pairs) < fmean(claim_f1(e, d) for e, d, _ in pairs) - 0.15


# The metric


@pytest.mark.parametrize(
    ("response", "right", "stated"),
    [
        (GOLD, 4, 4),
        ("ann weber teaches chess at the library for 40 euros .", 4, 4),
        ("Ann Weber teaches chess at the beach for 40 euros.", 3, 4),
        ("Ann Weber teaches chess somewhere for some price.", 2, 2),
        ("Ann Weber teaches chess at the library on Monday for 40 euros.", 4, 5),  # nobody asked for the day
        ("Ann Weber teaches chess at the library at the library.", 3, 4),
        ("Paul Chen teaches yoga.", 0, 2),
        ("Ann Weber chess library 40", 0, 0),
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
        assert re.search(r"\. (Everything|All of it) is right: ", critique.feedback)
        answer = TRAIN.demonstration(example, rng)
        praised = {answer[s.start : s.end].lower() for s in critique_of(answer, example).spans if s.label == "positive"}
        facts = problem_of(example).facts
        right = {world.said(slot, value) for slot, value in claims(answer) if facts.get(slot, "").lower() == value}
        assert praised == right


# The critic


@pytest.mark.parametrize(
    ("response", "negative", "said"),
    [
        ("Ann Weber teaches chess at the beach for 40 euros.", ["the beach"], "place|row that is full|to Paul Chen"),
        ("Ann Weber teaches chess at the school for 40 euros.", ["the school"], "place|never names"),
        ("Rosa Sato teaches chess at the library for 40 euros.", ["Rosa Sato"], "person|row that is over"),
        ("Ann Sato teaches chess at the library for 40 euros.", ["Ann Sato"], "person|never names"),
        ("Ann teaches chess at the library for 40 euros.", ["Ann"], "only half a name"),
        ("Someone teaches chess at the library for 40 euros.", ["Someone"], "vague|hides the person"),
        ("Ann Weber teaches chess somewhere for 40 euros.", ["somewhere"], "vague|hides the place"),
        ("Ann Weber teaches chess at the library for 40 euros for 40 euros.", ["40 euros"], "one price|second time"),
        ("At the library chess for 40 euros Ann Weber teaches.", ["chess"], "out of place|wrong place"),
        ("Ann Weber at the library for 40 euros.", ["Ann Weber"], "out of place|wrong place"),
        ("Ann Weber teaches chess at the library on Monday for 40 euros.", ["Monday"], "Nobody asked|no question"),
        (GOLD[:-1] + " and it is fun.", ["and it is fun"], "is chatter|adds nothing"),
        ("Ann Weber teaches chess at the in library for 40 euros.", ["at the in library"], "no sense|is garbled"),
        (GOLD + "\nSee you soon.", ["See you soon."], "is extra|comes after the end"),
    ],
)
def test_each_kind_of_fault_is_quoted_and_named(response: str, negative: list[str], said: str) -> None:
    critique = critique_of(response)
    assert re.match(RECAP, critique.feedback)
    assert quotes(response, "negative") == negative
    assert f'"{negative[0]}"' in critique.feedback
    assert re.search(said, critique.feedback)


def test_wordings_of_a_wrong_claim_stay_true() -> None:
    for i, example in enumerate(TRAIN.examples(600)):
        problem, rng = problem_of(example), Random(i)
        slot = rng.choice(list(problem.facts))
        pool = ["Ann Khan", *(row["who"] for row in problem.rows)] if slot == "who" else world.VALUES[slot]
        wrong = rng.choice([value for value in pool if value != problem.facts[slot]])
        feedback = critique_of(world.answer_of({**problem.facts, slot: wrong}), example).feedback
        if "The table never names" in feedback:
            assert not re.search(rf"\b{wrong}\b", example.prompt_text)
        if found := re.search(r"row that is (\w+)\.", feedback):
            assert re.search(rf"^- {found[1]}: .*\b{wrong}\b", example.prompt_text, re.MULTILINE)
        if found := re.search(r"belongs to (\w+ \w+)\.", feedback):
            assert re.search(rf"^- \w+: {found[1]} .*\b{wrong}\b", example.prompt_text, re.MULTILINE)


def test_omissions_and_breaks_are_told_in_words_and_omissions_can_be_charged() -> None:
    short, full = QACritic(omission_penalty=0.5)([EXAMPLE] * 2, ["Ann Weber teaches chess.", GOLD])
    assert (short.outcome, full.outcome, critique_of(GOLD).outcome) == (-1.0, 0.0, None)
    assert re.search(r"(The place and the price are missing|Nothing names the place and the price)\.$", short.feedback)
    one = critique_of("Ann Weber teaches chess for 40 euros.").feedback
    assert re.search(r"(The place is missing|Nothing names the place: the table says the library)\.$", one)
    assert "The sentence breaks off." in critique_of(GOLD[:-1]).feedback
    assert "breaks off" not in critique_of(GOLD).feedback
    assert re.fullmatch(RECAP + r"The answer is empty\.", critique_of(" \n").feedback)


def test_a_long_mess_is_quoted_in_part_and_the_critique_says_so() -> None:
    response = " ".join(["zebra"] * 100) + "."
    assert quotes(response, "negative") == [" ".join(["zebra"] * 6)] * 5
    assert "There is more like this." in critique_of(response).feedback
    assert "There is more" not in critique_of("zebra.").feedback


def test_critiques_vary_in_words_but_not_for_one_answer() -> None:
    examples = TRAIN.examples(80)
    responses = [TRAIN.demonstration(example, Random(i)) for i, example in enumerate(examples)]
    critiques = CRITIC(examples, responses)
    assert critiques == CRITIC(examples, responses)
    assert {" ".join(critique.feedback.split()[:2]) for critique in critiques} == {
        "The table",
        "In short,",
        "The truth:",
    }
    assert len({re.sub(r'"[^"]*"', "Q", critique.feedback.split(". ", 1)[1]) for critique in critiques}) > 40


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
    assert sum(span.label == "negative" for span in critique.spans) <= 5
    assert all(0 <= value <= 1 for value in TRAIN.score(EXAMPLE, response).values())
