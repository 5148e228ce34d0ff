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
NAMES = [*world.FIRST_NAMES, *world.LAST_NAMES, *(f"{a} {b}" for a in world.FIRST_NAMES for b in world.LAST_NAMES)]
SLOT_OF = {
    **{world.said(slot, value).lower(): slot for slot, values in world.VALUES.items() for value in values},
    **{text.lower(): slot for slot, text in world.FILLERS.items()},
    **{name.lower(): "who" for name in NAMES},
}
REMARK = re.compile(r'(?:(?P<truth>[^":.]+): )?(?P<verdicts>(?:"[^"]*"|[^".])+\.)(?: |$)')
VERDICT = re.compile(r'"(?P<quote>[^"]*)" (?P<said>[^"]+?)(?: and (?=")|\.$)')
PRAISE = ("is right", "matches")
NOISE = ("is chatter", "adds nothing", "makes no sense", "is garbled", "is extra", "comes after the end")


def truths(slot: str, facts: dict[str, str]) -> tuple[str, str]:
    """Return both ways of saying what is true of one slot."""
    value = facts[slot]
    return {
        "who": (f"{value} teaches it", f"The table says {value}"),
        "what": (f"The subject is {value}", f"It is {value}"),
        "where": (f"The place is the {value}", f"It is at the {value}"),
        "when": (f"The day is {value}", f"It is on {value}"),
        "price": (f"The price is {value} euros", f"It costs {value} euros"),
    }[slot]


def remarks_of(feedback: str) -> list[tuple[str, str]]:
    """Return what each remark says before its colon, "" for nothing, and after it; no word is left over."""
    found = list(REMARK.finditer(feedback))
    assert "".join(match[0] for match in found) == feedback
    return [(match["truth"] or "", match["verdicts"]) for match in found]


def verdicts_of(verdicts: str) -> list[tuple[str, str]]:
    """Return each quote of a remark and what is said of it."""
    found = list(VERDICT.finditer(verdicts))
    assert not found or "".join(match[0] for match in found) == verdicts
    return [(match["quote"], match["said"]) for match in found]


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


def test_a_text_holds_a_prompt_an_answer_and_its_critique_of_at_most_a_hundred_words() -> None:
    lengths = []
    for text, example in zip(TRAIN.texts(400, seed=5), TRAIN.examples(400, seed=5), strict=True):
        answer, feedback = text.removeprefix(example.prompt_text + " ").split("\n")
        assert critique_of(answer, example).feedback == feedback
        lengths.append(len(split_words(feedback)))
    assert sorted(lengths)[int(0.99 * len(lengths))] <= 100


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
        facts = problem_of(example).facts
        for slot, (truth, verdicts) in zip(facts, remarks_of(critique.feedback), strict=True):
            assert truth in truths(slot, facts)
            assert re.fullmatch(rf'"{world.said(slot, facts[slot])}" (is right|matches)\.', verdicts)
        answer = TRAIN.demonstration(example, rng)
        praised = {answer[s.start : s.end].lower() for s in critique_of(answer, example).spans if s.label == "positive"}
        right = {world.said(slot, value) for slot, value in claims(answer) if facts.get(slot, "").lower() == value}
        assert praised == right


# The critic


@pytest.mark.parametrize(
    ("response", "negative", "slot", "said"),
    [
        ("Ann Weber teaches chess at the beach for 40 euros.", "the beach", "where", "is wrong|is the wrong place"),
        ("Ann Weber teaches chess at the school for 40 euros.", "the school", "where", "is wrong|is the wrong place"),
        ("Ann Weber teaches sewing at the library for 40 euros.", "sewing", "what", "is wrong|is the wrong subject"),
        ("Ann Weber teaches chess at the library for 50 euros.", "50 euros", "price", "is wrong|is the wrong price"),
        ("Rosa Sato teaches chess at the library for 40 euros.", "Rosa Sato", "who", "is wrong|is the wrong person"),
        ("Ann Sato teaches chess at the library for 40 euros.", "Ann Sato", "who", "is wrong|is the wrong person"),
        ("Ann teaches chess at the library for 40 euros.", "Ann", "who", "is only half a name"),
        ("Someone teaches chess at the library for 40 euros.", "Someone", "who", "is vague|hides the person"),
        ("Ann Weber teaches chess somewhere for 40 euros.", "somewhere", "where", "is vague|hides the place"),
        (
            "Ann Weber teaches chess at the library for 40 euros for 40 euros.",
            "40 euros",
            "price",
            "is one price too many|gives the price a second time",
        ),
        (
            "At the library chess for 40 euros Ann Weber teaches.",
            "chess",
            "what",
            "is out of place|is in the wrong place",
        ),
        ("Ann Weber at the library for 40 euros.", "Ann Weber", "who", "is out of place|is in the wrong place"),
        (
            "Ann Weber teaches chess at the library on Monday for 40 euros.",
            "Monday",
            "",
            "answers no question|was not asked for",
        ),
        (GOLD[:-1] + " and it is fun.", "and it is fun", "", "is chatter|adds nothing"),
        (
            "Ann Weber teaches chess at the in library for 40 euros.",
            "at the in library",
            "",
            "makes no sense|is garbled",
        ),
        (GOLD + "\nSee you soon.", "See you soon.", "", "is extra|comes after the end"),
    ],
)
def test_each_kind_of_fault_is_quoted_and_named_beside_the_truth(
    response: str, negative: str, slot: str, said: str
) -> None:
    assert quotes(response, "negative") == [negative]
    facts, named, stated = problem_of(EXAMPLE).facts, set(), set()
    for prompt in "abcdefghijklmnopqrst":  # each draws its own wording
        remarks = remarks_of(critique_of(response, Example(prompt, meta=EXAMPLE.meta)).feedback)
        told = [(truth, *verdict) for truth, verdicts in remarks for verdict in verdicts_of(verdicts)]
        ((truth, verdict),) = {(t, v) for t, quote, v in told if quote == negative and v not in PRAISE}
        named.add(verdict)
        stated.add(truth)
    assert named == set(said.split("|"))
    assert stated == (set(truths(slot, facts)) if slot else {""})


def test_each_remark_first_says_what_is_true_and_then_what_of_it_the_answer_has() -> None:
    response = "Rosa Sato teaches chess at the beach at the library on Sunday and it is fun."
    assert quotes(response, "positive") == ["chess"]
    assert quotes(response, "negative") == ["Rosa Sato", "the beach", "the library", "Sunday", "and it is fun"]
    assert re.fullmatch(
        r'(Ann Weber teaches it|The table says Ann Weber): "Rosa Sato" is (wrong|the wrong person)\. '
        r'(The subject is|It is) chess: "chess" (is right|matches)\. '
        r'(The place is|It is at) the library: "the beach" is (wrong|the wrong place) and '
        r'"the library" (is one place too many|gives the place a second time)\. '
        r'"Sunday" (answers no question|was not asked for)\. "and it is fun" (is chatter|adds nothing)\. '
        r"(The price is|It costs) 40 euros: (the price is missing|nothing names the price)\.",
        critique_of(response).feedback,
    )


def slot_of(quote: str, said: str) -> str:
    """Return the slot that a verdict is about, "" for none; the noun in it has to be that slot's."""
    slot = "" if said in NOISE else SLOT_OF[quote.lower()]
    assert {*re.findall(r"(?:is the wrong|hides the|is one|gives the) (\w+)", said)} <= {world.NOUNS.get(slot)}
    return slot


def omitted(verdicts: str) -> list[str]:
    found = re.fullmatch(r"(?:the (\w+) is missing|nothing names the (\w+))\.", verdicts)
    return [slot for slot, noun in world.NOUNS.items() if found and noun in found.groups()]


def test_whatever_an_answer_says_each_remark_states_the_truth_of_the_very_claim_that_it_judges() -> None:
    rng = Random(3)
    for example in TRAIN.examples(400) + HELD_OUT.examples(200):
        facts = problem_of(example).facts
        for answer in (TRAIN.demonstration(example, rng), TRAIN.corruption(example, rng)):
            critique, labelled, judged, missing = critique_of(answer, example), [], set(), []
            for truth, verdicts in remarks_of(critique.feedback):
                found = verdicts_of(verdicts)
                labelled += [(quote, "positive" if said in PRAISE else "negative") for quote, said in found]
                slots = {slot_of(quote, said) for quote, said in found} or {*omitted(verdicts)}
                missing += omitted(verdicts)
                judged |= slots if found else set()
                if slots & set(facts):
                    assert [truth in truths(slot, facts) for slot in slots] == [True]
                else:
                    assert (truth, len(found) <= 1) == ("", True)
            assert labelled == [(answer[s.start : s.end], s.label) for s in critique.spans]
            assert missing == [slot for slot in facts if slot in missing and slot not in judged]
            if answer and "There is more like this." not in critique.feedback:
                assert judged | set(missing) >= set(facts)


def test_omissions_and_breaks_are_told_in_words_and_omissions_can_be_charged() -> None:
    short, full = QACritic(omission_penalty=0.5)([EXAMPLE] * 2, ["Ann Weber teaches chess.", GOLD])
    assert (short.outcome, full.outcome, critique_of(GOLD).outcome) == (-1.0, 0.0, None)
    place = r"(The place is|It is at) the library: (the place is missing|nothing names the place)\."
    price = r"(The price is|It costs) 40 euros: (the price is missing|nothing names the price)\."
    assert re.search(rf"\. {place} {price}$", short.feedback)
    assert len(remarks_of(short.feedback)) == 4
    one = critique_of("Ann Weber teaches chess for 40 euros.").feedback
    assert re.search(rf"\. {place}$", one)
    assert not re.search(price, one)
    assert "The sentence breaks off." in critique_of(GOLD[:-1]).feedback
    assert "breaks off" not in critique_of(GOLD).feedback


def test_an_empty_answer_is_named_as_such() -> None:
    assert critique_of("").spans == critique_of(" \n").spans == ()
    assert critique_of("").feedback == critique_of(" \n").feedback == "The answer is empty."


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
    remarks = [remarks_of(critique.feedback) for critique in critiques]
    values = "|".join(value for example in examples for value in problem_of(example).facts.values())
    wordings = {re.sub(values, "V", truth) for found in remarks for truth, _ in found if truth}
    assert wordings == {text for slot in world.SLOTS for text in truths(slot, dict.fromkeys(world.SLOTS, "V"))}
    frames = {tuple(re.sub(r'"[^"]*"', "Q", verdicts) for _, verdicts in found) for found in remarks}
    assert len(frames) > 60


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
