"""The summarization task: items, demonstrations, the metric, and a critic checked against injected errors."""

import re
import subprocess
import sys
from random import Random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from text2grad.errors import ConfigError, DataError
from text2grad.tasks import _summarization_posts as posts
from text2grad.tasks import _summarization_world as world
from text2grad.tasks._summarization_metric import claims, rouge_l
from text2grad.tasks.base import Task, split_words
from text2grad.tasks.summarization import DIFFICULTIES, SummarizationTask, SummaryCritic, fact_f1
from text2grad.types import Critique, Example

TRAIN, HELD_OUT = SummarizationTask("train"), SummarizationTask("held_out")
CRITIC = SummaryCritic()
FACTS = {"who": "Maria Lopez", "did": "fixed", "what": "bike", "where": "park", "when": "Tuesday", "why": "race"}
DISTRACTORS = {"who": ["Tom Chen"], "did": [], "what": [], "where": ["beach"], "when": ["Friday"], "why": []}
POST = (
    "Tom Chen was at the beach on Friday. Maria Lopez fixed the bike. It happened at the park. "
    "The day was Tuesday. The reason was the race."
)
EXAMPLE = Example(POST + "\nTL;DR:", meta={"facts": FACTS, "distractors": DISTRACTORS})
GOLD = r"Maria Lopez fixed the bike at the park on Tuesday because of the race\."
RECAP = rf"^(The post says that|In short,|What happened:) {GOLD} "


def critique_of(response: str, example: Example = EXAMPLE) -> Critique:
    return CRITIC([example], [response])[0]


def quotes(response: str, label: str, example: Example = EXAMPLE) -> list[str]:
    return [response[s.start : s.end] for s in critique_of(response, example).spans if s.label == label]


# Items


def test_the_same_seed_gives_the_same_items_in_another_process() -> None:
    code = (
        "from text2grad.tasks.summarization import SummarizationTask, SummaryCritic\n"
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


def test_a_hundred_thousand_items_are_distinct() -> None:
    assert len({example.prompt for example in TRAIN.examples(100_000)}) == 100_000


def test_a_post_that_comes_up_twice_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([Example("a"), Example("b"), Example("a"), Example("c")])
    monkeypatch.setattr(SummarizationTask, "_example", lambda self, rng: next(drawn))
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


def test_each_held_out_post_has_a_template_that_training_never_sees() -> None:
    def pattern(templates: list[str]) -> re.Pattern[str]:
        return re.compile("|".join(re.sub(r"\\{\w+\\}", r"[A-Z]?\\w+( [A-Z]\\w+)?", re.escape(t)) for t in templates))

    fresh = pattern([*posts.MAIN["held_out"], *posts.DETAILS["held_out"], *posts.DISTRACTORS["held_out"]])
    opening = pattern(list(posts.MAIN["held_out"]))

    def sentences(task: SummarizationTask) -> list[list[str]]:
        return [re.findall(r"[^.]+\.", example.prompt_text.split("\n")[0]) for example in task.examples(500)]

    assert all(any(opening.fullmatch(s.strip()) for s in post) for post in sentences(HELD_OUT))
    assert not any(fresh.fullmatch(s.strip()) for post in sentences(TRAIN) for s in post)


@pytest.mark.parametrize(
    "task", [TRAIN, HELD_OUT, SummarizationTask("train", "easy"), SummarizationTask("train", "hard")]
)
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


def test_harder_posts_hold_more_sentences_beside_the_event() -> None:
    def distraction(level: str) -> float:
        examples = SummarizationTask("train", level).examples(300)
        return fmean(sum(map(len, example.meta["distractors"].values())) for example in examples)

    assert distraction("easy") < distraction("normal") < distraction("hard")


def test_the_vocabulary_is_small_and_covers_every_text_of_both_splits() -> None:
    words = TRAIN.vocabulary()
    assert words == HELD_OUT.vocabulary() == sorted(set(words))
    assert 140 <= len(words) <= 250
    assert {word for text in TRAIN.texts(1500) for word in split_words(text)} == set(words)
    assert {word for text in HELD_OUT.texts(1000) for word in split_words(text)} <= set(words)
    odd = [critique_of(response).feedback for response in ("", "Maria", "the the", "on Friday on Friday. on Friday.")]
    odd += [critique_of("Maria Lopez at the fixed the bike Tom Chen at").feedback, critique_of("What a " * 30).feedback]
    assert {word for text in odd for word in split_words(text)} <= set(words)


def test_a_text_holds_a_post_an_answer_and_its_critique() -> None:
    texts = TRAIN.texts(20, seed=5)
    for text, example in zip(texts, TRAIN.examples(20, seed=5), strict=True):
        answer, feedback = text.removeprefix(example.prompt_text + " ").split("\n")
        assert critique_of(answer, example).feedback == feedback


def test_the_task_fits_the_protocol_and_refuses_unknown_settings() -> None:
    task: Task = TRAIN
    assert (task.name, task.metric) == ("summarization", "fact_f1")
    with pytest.raises(ConfigError, match=r"^summarization has no split 'test'; known: train, held_out$"):
        SummarizationTask("test")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^summarization has no difficulty 'mad'; known: easy, normal, hard$"):
        SummarizationTask("train", "mad")


def test_an_example_of_another_task_is_refused_by_name() -> None:
    for broken in (Example("x"), Example("x", meta={"facts": {"who": "Maria Lopez"}})):
        with pytest.raises(DataError, match=r"^not a summarization example: meta\['facts'\] is "):
            fact_f1(broken, "")
        with pytest.raises(DataError, match=r"^not a summarization example"):
            CRITIC([broken], [""])
    with pytest.raises(DataError, match=r"^got 1 examples and 2 responses$"):
        CRITIC([EXAMPLE], ["a", "b"])


# Demonstrations


def test_demonstrations_err_as_often_as_the_difficulty_says() -> None:
    rng = Random(0)
    examples = TRAIN.examples(4000)
    answers = [TRAIN.demonstration(example, rng) for example in examples]
    level = DIFFICULTIES["normal"]
    pairs = list(zip(examples, answers, strict=True))
    vague = fmean("somewhere" in answer for answer in answers)
    dropped = fmean("somewhere" not in answer and " at the " not in answer for answer in answers)
    chatty = fmean(bool(re.search("fun|happy|story|week", answer)) for answer in answers)
    assert vague == pytest.approx((1 - level.skim) * level.vague * (1 - level.drop), abs=0.03)
    assert dropped == pytest.approx(level.drop, abs=0.015)
    assert chatty == pytest.approx(level.chatter, abs=0.03)
    assert 0.7 <= fmean(fact_f1(example, answer) for example, answer in pairs) <= 0.8
    # Noise is systematic: where the true day is not the first in the post, the first is said more often.
    late = [(e, a) for e, a in pairs if e.meta["mentions"]["when"][0] != e.meta["facts"]["when"]]
    assert len(late) > 1000
    assert fmean(f"on {e.meta['mentions']['when'][0]}" in a for e, a in late) == pytest.approx(level.skim, abs=0.04)
    assert fmean(f"on {e.meta['facts']['when']}" in a for e, a in late) < 0.42


def test_demonstrations_take_wrong_facts_from_the_post_and_depend_on_the_generator_alone() -> None:
    examples = HELD_OUT.examples(300)
    answers = [HELD_OUT.demonstration(example, Random(i)) for i, example in enumerate(examples)]
    assert answers == [HELD_OUT.demonstration(example, Random(i)) for i, example in enumerate(examples)]
    for example, answer in zip(examples, answers, strict=True):
        mentioned = {(slot, v.lower()) for slot, values in example.meta["mentions"].items() for v in values}
        assert set(claims(answer)) <= mentioned
        assert len(split_words(answer)) <= 30


def test_corruptions_use_the_words_of_a_demonstration_and_the_critic_finds_fault() -> None:
    examples = TRAIN.examples(300)
    pairs = [(e, TRAIN.demonstration(e, Random(i)), TRAIN.corruption(e, Random(i))) for i, e in enumerate(examples)]
    assert all(set(corrupt.split()) <= set(clean.split()) for _, clean, corrupt in pairs)
    assert fmean(corrupt != clean for _, clean, corrupt in pairs) > 0.8
    assert any(len(corrupt) > len(clean) for _, clean, corrupt in pairs)
    assert any(sorted(corrupt) == sorted(clean) and corrupt != clean for _, clean, corrupt in pairs)
    assert min(len(corrupt) for *_, corrupt in pairs) == 0
    clean, corrupt = (fmean(fact_f1(pair[0], pair[i]) for pair in pairs) for i in (1, 2))
    assert corrupt < clean - 0.15


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


@pytest.mark.parametrize(
    ("reference", "response", "expected"),
    [
        ("a b c d", "a b c d", 1.0),
        ("a b c d", "b d", 2 * 2 / 6),
        ("a b c d", "d c b a", 2 * 1 / 8),
        ("a b a b", "b a b a", 2 * 3 / 8),
        ("A b, c.", "a b c", 1.0),
        ("a b", "x y", 0.0),
        ("a b", "", 0.0),
        ("", "", 0.0),
    ],
)
def test_rouge_l_is_right_by_hand(reference: str, response: str, expected: float) -> None:
    assert rouge_l(reference, response) == pytest.approx(expected)


@settings(deadline=None, derandomize=True)
@given(st.text("ab ", max_size=14), st.text("ab ", max_size=14))
def test_rouge_l_agrees_with_a_recursive_definition(left: str, right: str) -> None:
    def common(a: list[str], b: list[str]) -> int:
        if not a or not b:
            return 0
        return common(a[1:], b[1:]) + 1 if a[0] == b[0] else max(common(a[1:], b), common(a, b[1:]))

    a, b = left.split(), right.split()
    assert rouge_l(left, right) == pytest.approx(2 * common(a, b) / max(1, len(a) + len(b)))


def test_scores_of_a_good_and_of_a_poor_answer() -> None:
    spaced = "Maria Lopez fixed the bike at the park on Tuesday because of the race ."
    assert TRAIN.score(EXAMPLE, spaced) == {"fact_f1": 1.0, "rouge_l": 1.0, "exact": 1.0}
    poor = TRAIN.score(EXAMPLE, "Maria Lopez sold the bike.")  # 4 of 5 words, in 14
    assert poor == {"fact_f1": 2 * 2 / (3 + 6), "rouge_l": pytest.approx(2 * 4 / (5 + 14)), "exact": 0.0}


# The critic


def build(example: Example, rng: Random) -> tuple[str, list[tuple[int, int, str]], int]:
    """Write a summary with known errors; return it, its true spans and how many facts it leaves out."""
    text, spans, missing = "", [], set()

    def add(lead: str, quote: str, label: str) -> None:
        nonlocal text
        text += (" " if text else "") + lead
        spans.append((len(text), len(text) + len(quote), label))
        text += quote

    for slot in world.SLOTS:
        value, choice = example.meta["facts"][slot], rng.random()
        lead = {"where": "at ", "when": "on ", "why": "because of "}.get(slot, "")
        stray = slot == "what" and "did" in missing and "who" not in missing  # a thing right after a person
        if choice < 0.4:
            add(lead, world.with_article(slot, value), "negative" if stray else "positive")
        elif choice < 0.7 or (slot == "did" and choice < 0.9):
            add(lead, world.with_article(slot, _other(slot, value, rng)), "negative")
        elif choice < 0.9:
            add("", world.FILLERS[slot], "negative")
        else:
            missing.add(slot)
            continue
        if rng.random() < 0.1 and slot in ("where", "when", "why"):
            add(lead, world.with_article(slot, rng.choice([value, _other(slot, value, rng)])), "negative")
        if rng.random() < 0.15:
            add("", rng.choice(["and the", "because of", "at the on", "zebra", "because at the"]), "negative")
    if rng.random() < 0.2:
        add("", rng.choice(world.CHATTER), "negative")
    text += rng.choice([".", " .", "!"])
    if rng.random() < 0.2:
        add("", rng.choice(["What a week.", "Maria Lopez fixed the bike.", "."]), "negative")
    return text, spans, len(missing)


def _other(slot: str, value: str, rng: Random) -> str:
    names = [f"{first} {last}" for first in world.FIRST_NAMES for last in world.LAST_NAMES]
    return rng.choice([other for other in (names if slot == "who" else world.VALUES[slot]) if other != value])


def test_the_critic_finds_exactly_the_injected_errors() -> None:
    rng = Random(4)
    for example in TRAIN.examples(700) + HELD_OUT.examples(300):
        response, expected, missing = build(example, rng)
        critique = critique_of(response, example)
        if sum(label == "negative" for *_, label in expected) > 6:
            assert "There is more like this." in critique.feedback
            continue
        assert [(s.start, s.end, s.label) for s in critique.spans] == expected, response
        assert all(f'"{response[start:end]}"' in critique.feedback for start, end, _ in expected)
        telling = {0: "", 1: r"(The \w+ is missing|Nothing names the \w+:)"}.get(missing, "(are missing|Nothing names)")
        assert re.search(telling, critique.feedback)
        assert bool(missing) == bool(re.search("missing|Nothing", critique.feedback))


def test_a_perfect_summary_gets_praise_only() -> None:
    for example in HELD_OUT.examples(200):
        response = str(example.reference)
        critique = critique_of(response, example)
        assert {span.label for span in critique.spans} == {"positive"}
        assert len(critique.spans) == 6
        assert re.search(r"\. (Everything|All of it) is right: ", critique.feedback)
        assert TRAIN.score(example, response) == {"fact_f1": 1.0, "rouge_l": 1.0, "exact": 1.0}


@pytest.mark.parametrize(
    ("response", "negative", "said"),
    [
        ("Maria Lopez fixed the bike at the park on Friday because of the race.", ["Friday"], r'day|"Friday" is in'),
        ("Maria Chen fixed the bike at the park on Tuesday because of the race.", ["Maria Chen"], "person|never names"),
        ("Maria fixed the bike at the park on Tuesday because of the race.", ["Maria"], "only half a name"),
        ("Maria Lopez sold the bike at the park on Tuesday because of the race.", ["sold"], "verb|never names"),
        (
            "Maria Lopez fixed the bike somewhere on Tuesday because of the race.",
            ["somewhere"],
            "vague|hides the place",
        ),
        (
            "Maria Lopez fixed the bike at the park on Tuesday on Tuesday because of the race.",
            ["Tuesday"],
            "one day too many|the day a second time",
        ),
        (
            "At the park fixed the bike on Tuesday because of the race Maria Lopez.",
            ["fixed"],
            "is out of place|is in the wrong place",
        ),
        (
            "Maria Lopez fixed the bike at the park on Tuesday because of the race and it was fun.",
            ["and it was fun"],
            "is chatter|adds nothing",
        ),
        (
            "Maria Lopez fixed the bike at the park on the Tuesday because of the race.",
            ["on the Tuesday"],
            "makes no sense|is garbled",
        ),
        (
            "Maria Lopez fixed the bike at the park on Tuesday because of the race.\nWhat a week.",
            ["What a week."],
            "is extra|comes after the end",
        ),
    ],
)
def test_each_kind_of_fault_is_quoted_and_named(response: str, negative: list[str], said: str) -> None:
    critique = critique_of(response)
    assert quotes(response, "negative") == negative
    assert re.search(f'"{re.escape(negative[0])}"', critique.feedback)
    assert re.search(said, critique.feedback)


def test_the_wording_names_the_truth_and_the_critique_begins_with_it() -> None:
    response = "Tom Chen fixed something at the beach on Sunday."
    critique = critique_of(response)
    assert re.match(RECAP, critique.feedback + " ")
    assert quotes(response, "positive") == ["fixed"]
    assert quotes(response, "negative") == ["Tom Chen", "something", "the beach", "Sunday"]
    assert re.search(r"(The reason is missing|Nothing names the reason: the post says the race)\.$", critique.feedback)


def test_wordings_of_a_wrong_fact_stay_true() -> None:
    """Only what the post does not name is "never named", and only what it names is "in the post"."""
    for example in TRAIN.examples(600):
        for slot in world.SLOTS:
            wrong = _other(slot, example.meta["facts"][slot], Random(example.prompt_text + slot))
            response = world.summary_of({**example.meta["facts"], slot: wrong})
            feedback = critique_of(response, example).feedback
            if "The post never names" in feedback:
                assert not re.search(rf"\b({wrong}|{world.BASE_FORMS.get(wrong, wrong)})\b", example.prompt_text)
            if "is in the post, but not as the" in feedback:
                assert re.search(rf"\b{wrong}\b", example.prompt_text)


def test_omissions_are_told_in_words_and_can_be_charged_to_the_outcome() -> None:
    critic = SummaryCritic(omission_penalty=0.5)
    short, full = critic([EXAMPLE] * 2, ["Maria Lopez fixed the bike.", world.summary_of(FACTS)])
    assert (short.outcome, full.outcome) == (-1.5, 0.0)
    assert re.search(
        r"(The place, the day and the reason are missing|Nothing names the place, the day and the reason)\.$",
        short.feedback,
    )
    assert critique_of("Maria Lopez fixed the bike.").outcome is None


def test_empty_and_broken_off_summaries_are_named_as_such() -> None:
    assert critique_of("").spans == critique_of(" \n").spans == ()
    assert re.fullmatch(RECAP.rstrip(" ") + r" The summary is empty\.", critique_of("").feedback)
    broken = "Maria Lopez fixed the bike at the"
    assert quotes(broken, "negative") == ["at the"]
    assert "The sentence breaks off." in critique_of(broken).feedback
    assert "breaks off" not in critique_of("Maria Lopez fixed the bike.").feedback


def test_quotes_stay_within_a_line_and_commas_between_phrases_are_no_fault() -> None:
    response = "Maria Lopez fixed the bike, at the park, on Tuesday, because of the race.\nWhat a\nweek."
    assert quotes(response, "negative") == ["What a", "week."]
    assert len(quotes(response, "positive")) == 6


def test_a_long_mess_is_quoted_in_part_and_the_critique_says_so() -> None:
    response = " ".join(["zebra"] * 100) + "."
    spans = critique_of(response).spans
    assert len(spans) == 6
    assert all(response[s.start : s.end] == " ".join(["zebra"] * 8) for s in spans)
    assert "There is more like this." in critique_of(response).feedback
    assert "There is more" not in critique_of("zebra.").feedback


def test_critiques_vary_in_words_but_not_for_one_answer() -> None:
    examples = TRAIN.examples(60)
    responses = [TRAIN.demonstration(example, Random(i)) for i, example in enumerate(examples)]
    critiques = CRITIC(examples, responses)
    assert critiques == CRITIC(examples, responses)
    recaps = {critique.feedback.split()[0] for critique in critiques}
    assert recaps == {"The", "In", "What"}
    frames = {re.sub(r'"[^"]*"', "Q", critique.feedback.split(". ", 1)[1]) for critique in critiques}
    assert len(frames) > 30


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
