"""Grounded answers: the critic's findings, the metric that it never sees, prompts, refiner; laws on real passages."""

import ast
import json
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from evidence.tasks.grounded.answers import altered_answers
from evidence.tasks.grounded.critic import FEWEST_WORDS, GroundedCritic
from evidence.tasks.grounded.metric import Reading, grounded_metrics, read_grounded
from evidence.tasks.grounded.passages import Passage, Passages, read_passages
from evidence.tasks.grounded.prompts import cut_at_sentence, grounded_examples
from evidence.tasks.grounded.refining import refine_grounded
from evidence.tasks.grounded.sentences import sentence_ranges
from places import ROOT, SHARED
from text2grad.errors import ConfigError, DataError
from text2grad.tasks.base import TaskSettings
from text2grad.tasks.registry import built_in
from text2grad.types import Critique, Example

PASSAGE = (
    "The bridge of Avignon was built by Bénézet between 1177 and 1185. It had twenty-two arches and was 920 metres "
    "long. Ana M. Ruiz, a historian at the University of Lyon, wrote that floods destroyed four arches in 1668."
)
QUESTION = "When was the bridge of Avignon built?"


def example(passage: str = PASSAGE, question: str = QUESTION, gold: str | None = None) -> Example:
    return Example([{"role": "user", "content": passage}], gold, meta={"passage": passage, "question": question})


def judged(response: str, **changes: Any) -> tuple[Critique, list[tuple[str, str]]]:
    [critique] = GroundedCritic(truths=False)([example(**changes)], [response])
    return critique, [(response[span.start : span.end], span.label[:3]) for span in critique.spans]


@pytest.mark.parametrize(
    ("response", "found"),
    [
        (
            "Maybe it was Avignon in 1185, not Lyon in 1,186.",
            [("Avignon", "pos"), ("1185", "pos"), ("Lyon", "pos"), ("1,186", "neg")],
        ),
        ("It has 4 and five of something else now.", [("4", "pos"), ("five", "neg")]),
        ("There Ana Ruiz met Ana Gomez.", [("Ana Ruiz", "pos"), ("Gomez", "neg")]),
        ("We met Ruiz Bénézet there.", [("Ruiz Bénézet", "neg")]),  # each name is known, but far apart
        ("We went to the University of Lyon.", [("University of Lyon", "pos")]),
        (
            "It was built in 1185. It was Ana. It was built in 1185.",
            [("1185", "pos"), ("Ana", "pos"), ("It was built in 1185.", "neg")],
        ),
        ("Floods destroyed arches of the bridge.", [("Floods destroyed arches of the bridge", "pos")]),
        ("Wizards and dragons sang for pleasant kings.", [("and dragons sang for pleasant kings", "neg")]),
        (
            "Clever wizards painted wonderful golden towers.",
            [("Clever wizards painted wonderful golden towers", "neg")],
        ),
        ("Additionally, Ruiz wrote it.", [("Ruiz", "pos")]),
        ("So Ruiz met Ruiz. Then Zorn met Zorn.", [("Ruiz", "pos"), ("Zorn", "neg"), ("Zorn", "neg")]),
        ("1. It was long.\n2. It was in Lyon in 2.", [("Lyon", "pos"), ("2", "neg")]),
        ("", []),
    ],
)
def test_names_numbers_and_claims_are_marked(response: str, found: list[tuple[str, str]]) -> None:
    assert judged(response)[1] == found


def test_the_words_quote_each_piece_and_state_the_truth() -> None:
    response = 'It was begun in 1150 by Bénézet. The "Pope" Leo was in Lyon in 1185.'
    [critique] = GroundedCritic()([example()], [response])
    built = "It says: The bridge of Avignon was built by Bénézet between 1177 and 1185."
    assert critique.feedback in (
        f'"1150" is not in the passage. "Bénézet" is in the passage. {built} "Pope" and "Leo" are not in the passage. '
        f'"Lyon" and "1185" are in the passage. {built}',
        f'The passage does not contain "1150". The passage supports "Bénézet". {built} The passage does not contain '
        f'"Pope" and "Leo". The passage supports "Lyon" and "1185". {built}',
    )
    [silent] = GroundedCritic(truths=False)([example()], [response])
    assert silent.spans == critique.spans
    # without truths each quote has a sentence of its own, the verdict last
    assert silent.feedback == (
        '"1150" is not in the passage. "Bénézet" is in the passage. "Pope" is not in the passage. "Leo" is not in the '
        'passage. "Lyon" is in the passage. "1185" is in the passage.'
    )


@pytest.mark.parametrize(
    ("passage", "word", "label"),
    [("He left Italy.", "Italian", "pos"), ("He left China.", "Chinese", "pos"), ("He left Peru.", "Chinese", "neg")],
)
def test_a_people_is_known_by_its_country(passage: str, word: str, label: str) -> None:
    assert judged(f"He saw an {word} there.", passage=passage, question="")[1] == [(word, label)]


@pytest.mark.parametrize(
    ("response", "outcome", "end"),
    [
        ("I do not know what to say about any of this.", -4.0, "The answer states nothing from the passage."),
        ("In 1185.", -4.0, "The answer is too short."),
        ("It was all done by the year of 1185.", 0.0, "."),
    ],
)
def test_saying_nothing_is_no_way_out(response: str, outcome: float, end: str) -> None:
    critique, _ = judged(response)
    assert critique.outcome == outcome
    assert critique.feedback.endswith(end)
    assert (len(response.split()) < FEWEST_WORDS) == ("too short" in end)


def test_the_critic_never_reads_the_gold_answer() -> None:
    for gold in (None, "Between 1177 and 1185, by Zacharias Moon."):
        assert judged("Zacharias Moon wrote it.", gold=gold)[1] == [("Zacharias Moon", "neg")]


def test_an_example_without_passage_is_refused() -> None:
    with pytest.raises(
        DataError, match='has no text "passage" in its meta; `python -m evidence prepare-grounded` writes'
    ):
        GroundedCritic()([Example("Who?")], ["Ana."])
    with pytest.raises(DataError, match=r"^the example 'Who\?' has no text \"passage\" in its meta; "):
        grounded_metrics([example(), Example("Who?")], ["Ana.", "Ana."])


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.text(max_size=120), st.text(max_size=120))
def test_spans_lie_in_any_response_to_any_passage(passage: str, response: str) -> None:
    one = example(passage or "x", "")
    [critique] = GroundedCritic()([one] if passage.strip() else [example("x")], [response])
    assert all(0 <= span.start < span.end <= len(response) for span in critique.spans)
    assert all(response[span.start : span.end] in critique.feedback for span in critique.spans)


@pytest.fixture(scope="module")
def passages() -> list[Passage]:
    path = SHARED / "data" / "qa_feedback" / "feedback.json"
    if not path.exists():
        pytest.skip("../shared/data/qa_feedback is absent")
    return read_passages(path, format="qa_feedback").kept


def test_no_sentence_of_a_passage_is_blamed_by_critic_or_metric(passages: list[Passage]) -> None:
    for one in passages[::24]:
        text = one.text[:1_000]
        sentences = [text[start:end] for start, end in sentence_ranges(text)]
        examples = [example(text, one.question)] * len(sentences)
        critiques = GroundedCritic()(examples, sentences)
        assert all(span.label == "positive" for critique in critiques for span in critique.spans)
        assert grounded_metrics(examples, sentences)[0]["unsupported"] == 0


def test_a_changed_number_or_name_is_found_by_both(passages: list[Passage]) -> None:
    rng, tried = Random(0), 0
    for one in passages[::8]:
        text = one.text[:1_000]
        sentence = next((text[a:b] for a, b in sentence_ranges(text) if re.search(r"\b\d{4}\b", text[a:b])), None)
        if sentence is None:
            continue
        wrong = next(number for number in iter(lambda: str(rng.randrange(2100, 9999)), "") if number not in text)
        response = re.sub(r"\b\d{4}\b", wrong, sentence, count=1) + " Zorblax was there."
        [critique] = GroundedCritic()([example(text, one.question)], [response])
        blamed = [response[span.start : span.end] for span in critique.spans if span.label == "negative"]
        assert any(wrong in text for text in blamed)
        found = read_grounded(example(text, one.question), response)
        assert found.unsupported == 2
        tried += 1
    assert tried > 20


def test_critic_and_metric_share_no_code() -> None:
    place = ROOT / "evidence" / "tasks" / "grounded"

    def imported(name: str) -> set[str]:
        tree = ast.parse((place / f"{name}.py").read_text("utf-8"))
        return {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}

    of_critic = imported("critic") | imported("reading") | imported("sentences") | {"evidence.tasks.grounded.reading"}
    shared = {name for name in imported("metric") & of_critic if name.startswith(("text2grad", "evidence"))}
    assert shared == {"text2grad.types", "evidence.tasks.grounded.passage"}
    tree = ast.parse((place / "passage.py").read_text("utf-8"))
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert functions == ["passage_and_question"]  # the data of an example, and no judgement of a response
    assert imported("passage") == {"text2grad.errors", "text2grad.types"}


def test_metrics_by_hand() -> None:
    gold = "Bénézet built it from 1177 to 1185, at great cost."
    answers = ["Bénézet had it built before 1186. Arches stood.", "Nothing is known. Zorblax did 12 of them."]
    of_set, each = grounded_metrics([example(gold=gold)] * 2, answers)
    # names and numbers: Bénézet begins the answer and is in no dictionary, 1186; Zorblax, 12. Only Bénézet is given.
    assert [(one["unsupported"], one["names_and_numbers"]) for one in each] == [(1.0, 2.0), (2.0, 2.0)]
    # gold words of 4 letters or more in the passage and not in the question: bénézet, 1177, 1185
    assert [one["recall"] for one in each] == [1 / 3, 0.0]
    assert of_set == {
        "unsupported_share": 3 / 4,
        "answers_with_unsupported": 1.0,
        "unsupported": 1.5,
        "names_and_numbers": 2.0,
        "recall": pytest.approx(1 / 6),
        "mean_words": 8.0,
        "copied_share": 0.0,
        # 10 words of gold, 8 of each answer; shared: bénézet, it, built in the first, 2 · 3 / 18, none in the second
        "f1": pytest.approx(1 / 6),
    }
    assert read_grounded(example(question=""), "") == Reading(0, 0, 0.0, 0, 0.0, None)
    # runs of five words or more: "It had twenty-two arches and" is six words, "was 920" in other words is none
    copied = read_grounded(example(), "It had twenty-two arches and a saint lived on it.").copied
    assert copied == pytest.approx(6 / 11)
    assert read_grounded(example(gold="In 1185."), "1185 in").f1 == 1.0
    no_gold = example(gold="Xyz.")
    assert read_grounded(no_gold, "Avignon.").recall is None
    assert grounded_metrics([no_gold], ["Avignon."])[0]["recall"] == 0.0


def test_the_refiner_drops_blamed_sentences_alone() -> None:
    response = "It stood in Avignon. It had 99 arches. Floods came in 1668."
    [critique] = GroundedCritic()([example()], [response])
    assert refine_grounded(response, critique) == "It stood in Avignon. Floods came in 1668."
    [critique] = GroundedCritic()([example()], ["It had 99 arches."])
    assert refine_grounded("It had 99 arches.", critique) == "It had 99 arches."


def test_the_task_has_no_prompts_of_its_own_and_refuses_other_tasks_knobs() -> None:
    task = built_in("grounded", TaskSettings(truths=False))
    assert task.metric == "unsupported_share"
    assert task.critic() == GroundedCritic(truths=False)
    with pytest.raises(ConfigError, match=r"name files in data\.train and data\.held_out; `python -m evidence"):
        task.train(1, 0)
    with pytest.raises(
        ConfigError, match=r"world\.length = 2: the task grounded has no such setting; the length of an"
    ):
        built_in("grounded", TaskSettings(length=2))


def words(text: str) -> int:
    return len(text.split())


def test_passages_are_cut_at_a_sentence_and_subjects_stay_on_one_side() -> None:
    made = [
        Passage(f"f:{n}", f"Text {n} is here. More of {n} follows now.", f"Why {n}{q}?", "gold", f"Subject {n}")
        for n in range(20)
        for q in "ab"
    ]
    made.append(Passage("f:99", "One sentence that is longer than the limit", "Why?", None, "long"))
    found = grounded_examples(made, count=words, passage_tokens=6, held_out=0.25)
    assert (len(found.train), len(found.held_out), found.cut) == (30, 10, 40)
    assert found.left_out == {"records whose first sentence is longer than the limit": 1}
    sides = [{one.meta["question"][4:-2] for one in part} for part in (found.train, found.held_out)]
    assert sides[0].isdisjoint(sides[1])
    first = found.train[0]
    assert first.meta["passage"] == f"Text {first.meta['question'][4:-2]} is here."
    assert first.prompt == [
        {
            "role": "user",
            "content": "Answer the question in one or two sentences. Use only what the passage says.\n\nPassage: "
            f"{first.meta['passage']}\n\nQuestion: {first.meta['question']}",
        }
    ]
    assert first.reference == "gold"
    whole = grounded_examples(made, count=words, passage_tokens=0, held_out=0.25)
    assert (whole.cut, sum(whole.left_out.values())) == (0, 0)


def test_texts_that_the_cut_makes_equal_stay_on_one_side() -> None:
    texts = [f"Town {n} is here. It has tail {tail}." for n in range(20) for tail in range(2)]
    made = [Passage(f"f:{k}", text, f"Why {k}?", None, text) for k, text in enumerate(texts)]
    found = grounded_examples(made, count=words, passage_tokens=4, held_out=0.25)
    sides = [{one.meta["passage"] for one in part} for part in (found.train, found.held_out)]
    assert [len(side) for side in sides] == [15, 5]
    assert sides[0].isdisjoint(sides[1])
    alone = grounded_examples(made[::2], count=words, passage_tokens=4, held_out=0.25)  # the first of each alone
    assert {one.meta["passage"] for one in alone.held_out} == sides[1]


def test_a_cut_ends_at_the_last_sentence_that_fits() -> None:
    text = "Dr. Lee left. She came back at 3.5 p.m. in May! Why?"
    assert [text[a:b] for a, b in sentence_ranges(text)] == [
        "Dr. Lee left.",
        "She came back at 3.5 p.m.",
        "in May!",
        "Why?",
    ]
    assert cut_at_sentence(text, 9, words) == "Dr. Lee left. She came back at 3.5 p.m."
    assert cut_at_sentence(text, 2, words) == ""


def read(path: Path, records: list[dict[str, Any]], **settings: Any) -> Passages:
    path.write_text("\n".join(map(json.dumps, records)), "utf-8")
    return read_passages(path, **settings)


def test_any_table_with_passages_is_read_and_records_without_are_counted(tmp_path: Path) -> None:
    records = [{"context": "Ana left.", "question": "Who?", "answer": "Ana"}, {"context": ""}, {"context": "Ana left."}]
    records += [{"question": "Where?"}, {"context": "Ana left.", "question": "Who?"}]
    found = read(tmp_path / "a.jsonl", records, columns={"passage": "context"})
    assert found.kept == [
        Passage("a.jsonl:1", "Ana left.", "Who?", "Ana", "Ana left."),
        Passage("a.jsonl:3", "Ana left.", "", None, "Ana left."),
    ]
    assert found.left_out == {"records without a passage": 2, "records whose text came before": 1}
    with pytest.raises(DataError, match=r'a\.jsonl:1: "passage" must be a text; the record has'):
        read(tmp_path / "a.jsonl", records)
    with pytest.raises(ConfigError, match="text"):
        read(tmp_path / "a.jsonl", records, columns={"text": "context"})


def test_qa_feedback_and_faithbench_are_read(tmp_path: Path) -> None:
    qa = {"question": "Who?", "gold": "Ana.", "passages": [["Ana", "Ana\n\nAna left.", "She came."], ["Bo", "Bo ran."]]}
    empty = {**qa, "passages": []}
    found = read(tmp_path / "q.jsonl", [qa, empty], format="qa_feedback")
    assert found.kept == [Passage("q.jsonl:1", "Ana: Ana left. She came.\nBo: Bo ran.", "Who?", "Ana.", "Ana")]
    assert found.left_out == {"records without a passage": 1}
    faith = [{"source": "Ana left.", "summary": "a"}, {"source": "Ana left.", "summary": "b"}]
    found = read(tmp_path / "f.jsonl", faith, format="faithbench")
    assert found.kept == [Passage("f.jsonl:1", "Ana left.", "", None, "Ana left.")]
    assert found.left_out == {"records whose text came before": 1}


OTHER = "Port Grimaud lies in France. François Spoerry drew it in 1966, beside 2 marinas of Saint-Tropez."


def altered(*passages: str, seed: int = 0) -> list[tuple[str, str]]:
    prompts = [example(passage, "") for passage in passages]
    made = list(altered_answers(prompts, seed=seed))
    assert all(one.prompt == prompts[0].prompt for one in made if one.meta["passage"] == passages[0])
    return [(one.meta["id"].split()[-1], one.meta["response"]) for one in made]


@pytest.mark.parametrize("seed", range(20))
def test_altered_answers_have_the_faults_that_their_names_say(seed: int) -> None:
    (swapped, foreign, repeated), theirs = (
        altered(PASSAGE, OTHER, seed=seed)[:3],
        altered(PASSAGE, OTHER, seed=seed)[3:],
    )
    assert [swapped[0], foreign[0], repeated[0]] == ["swapped", "foreign", "repeated"] == [name for name, _ in theirs]
    # two sentences with Avignon, Bénézet, 1177, 1185, twenty-two and 920; three of the first five or six are replaced
    assert swapped[1].count(" ") >= 20
    assert "The bridge of" in swapped[1]
    _, found = judged(swapped[1])
    faults = [text for text, label in found if label == "neg"]
    assert len(faults) in (2, 3)
    assert all(fault in OTHER for fault in faults)
    assert len(re.findall(r"\d+", swapped[1])) == 3  # 1177, 1185 and 920: numbers replace numbers
    theirs_first = foreign[1].startswith(("Port", "François"))
    own, other = foreign[1].split(". ", 1)[:: -1 if theirs_first else 1]
    assert own.rstrip(".") in PASSAGE
    assert other.rstrip(".") in OTHER
    _, found = judged(repeated[1])
    again = [text for text, label in found if label == "neg"]
    assert len(again) == 2 * len(set(again)) > 0
    assert all(repeated[1].count(text) == 3 for text in again)


def test_altered_answers_are_drawn_anew_for_each_seed_and_cut() -> None:
    assert altered(PASSAGE, OTHER) == altered(PASSAGE, OTHER)
    assert len({tuple(altered(PASSAGE, OTHER, seed=seed)) for seed in range(8)}) > 4
    made = altered_answers([example(), example(OTHER)], lambda text: text[:30])
    assert max(len(one.meta["response"]) for one in made) == 30


def test_a_passage_alone_has_only_repetition_to_offer() -> None:
    assert [name for name, _ in altered(PASSAGE)] == ["repeated"]
    assert [name for name, _ in altered("It was so.", "They were not.")] == ["foreign", "foreign"]  # no names; short
