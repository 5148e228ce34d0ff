"""benchmarks/people_reward.py: joined marks, words, baselines and counts by hand."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from places import ROOT
from text2grad.critics import CachedDraws
from text2grad.evaluation.intervals import estimate
from text2grad.feedback import Annotation, read_annotations, write_annotations
from text2grad.reward_models.probe import UnitScore
from text2grad.reward_models.probe_training import ProbeReport
from text2grad.reward_models.writing import inputs_of
from text2grad.types import Critique, Example, Span


@pytest.fixture(scope="module")
def bench() -> Iterator[object]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import people_reward

        yield people_reward
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


def answers(directory: Path, questions: str) -> Path:
    """Write a file with the answer "in Lyon" to each question, of which people marked "in"; return its path."""
    error = {"error type": "Irrelevant", "start": 0, "end": 2, "explanation": ""}
    feedback = {"errors": [error], "missing-info": []}
    records = [{"question": one, "prediction 1": "in Lyon", "passages": [], "feedback": feedback} for one in questions]
    path = directory / "qa.json"
    path.write_text(json.dumps(records))
    return path


def test_marks_of_several_people_are_joined(bench) -> None:
    one = Annotation("p", "in Lyon on Friday", Critique("City.", (Span(3, 7, "negative"),)))
    two = Annotation("p", "in Lyon on Friday", Critique("Day.", (Span(11, 17, "negative"),)))
    [found] = bench.joined([one, two, one])
    assert found.critique == Critique("City.\nDay.", (Span(3, 7, "negative"), Span(11, 17, "negative")))
    words = bench.words_of(found.response, found.critique)
    assert [(word.text, word.place, word.length, word.true) for word in words] == [
        ("in", 0.0, 4, False),
        ("lyon", 0.25, 4, True),
        ("on", 0.5, 4, False),
        ("friday", 0.75, 4, True),
    ]


def test_look_up_and_its_threshold(bench) -> None:
    """Of four words two are marked: mean 1/2. "bad" 2 of 2: (2 + 2 · ½) / (2 + 2) = ¾, "good" 0 of 2: 1/4."""
    train = [bench.Word(text, 0.0, 4, text == "bad") for text in ("bad", "good", "bad", "good")]
    score = bench.look_up(train)
    assert (score(train[0]), score(train[1])) == (0.75, 0.25)
    assert score(bench.Word("new", 0.0, 4, False)) == 0.5
    assert bench.best_threshold(train, score) == 0.75
    assert bench.best_threshold(train, lambda word: 1.0) == 1.0  # all or none: F1 2 · 2 / (4 + 2)


def test_counts_give_f1_and_area(bench) -> None:
    """Marked: words 1 and 2, true: 1 and 4: F1 2 · 1 / (2 + 2). Scores: 1 > ½, 1 > 0, 0 < ½, 0 = 0."""
    words = [bench.Word("w", 0.0, 4, true) for true in (True, False, False, True)]
    row = bench.counts(words, [1.0, 0.5, 0.0, 0.0], [True, True, False, False])
    found = estimate([row], {"f1": bench.F1, "auroc": bench.AUROC}, draws=1)
    assert found["f1"].value == 0.5
    assert found["auroc"].value == 2.5 / 4


def test_the_prior_knows_place_and_length(bench) -> None:
    train = [bench.Word("w", place, 20, place < 0.5) for place in (0.0, 0.05, 0.5, 0.9)]
    score = bench.prior(train)
    assert score(train[0]) > score(train[2]) == score(train[3])
    assert score(bench.Word("w", 0.0, 200, False)) == 0.5  # no response of this length was seen


def test_absent_words_are_counted_in_the_sentence_of_a_word(bench) -> None:
    """Prompt: the fair opens. "The fair closes" lacks one of three words, "Bring it" both."""
    words = bench.words_of("The fair closes. Bring it!", Critique(""), (), "The Fair opens")
    assert [(word.text, word.absent) for word in words] == [
        *(("the", 1 / 3), ("fair", 1 / 3), ("closes", 1 / 3)),
        *(("bring", 1.0), ("it", 1.0)),
    ]
    score, threshold = bench.baselines([word._replace(true=word.absent > 0.5) for word in words])["absent words"]
    assert ([score(word) for word in words], threshold) == ([1 / 3] * 3 + [1.0] * 2, 1.0)


def test_the_prompt_of_an_annotation_tells_which_words_are_absent(bench, tmp_path) -> None:
    """The second sentence is marked, and its word is not in the prompt."""
    one = Annotation("It was in Paris.", "In. Lyon.", Critique("", (Span(4, 9, "negative"),)))
    scores = [[UnitScore(0, 2, 0.1, 0.0), UnitScore(4, 8, 0.2, 0.0)]]
    (tmp_path / bench.PROBE_SCORES).write_text(json.dumps({"threshold": 0.5, "scores": scores}))
    rows = bench.rows_of_fold(tmp_path, [one], [one], {one.response: []})
    found = estimate([dict(rows["absent words"][one.prompt])], {"f1": bench.F1, "auroc": bench.AUROC}, draws=1)
    assert (found["f1"].value, found["auroc"].value) == (1.0, 1.0)


def test_f1_of_a_type_leaves_out_words_marked_with_other_types_alone(bench) -> None:
    """Words 1 (a), 2 (b), 3 (a and b), 4 (none); the model marks 1, 2 and 4. Type a looks at 1, 3 and 4, type b at 2, 3
    and 4. A word that nobody marked counts for every type, in responses without the type, too."""
    kinds = [{"a"}, {"b"}, {"a", "b"}, set()]
    words = [bench.Word("w", 0.0, 4, bool(kind), frozenset(kind)) for kind in kinds]
    row = bench.counts(words, [0.0] * 4, [True, True, False, True], ["a", "b"])
    assert (row["a/both"], row["a/marked"], row["a/true"]) == (1, 2, 2)
    assert (row["b/both"], row["b/marked"], row["b/true"]) == (1, 2, 2)
    assert (row["both"], row["marked"], row["true"]) == (2, 3, 3)
    other = bench.counts([bench.Word("w", 0.0, 1, False)], [0.0], [True], ["a", "b"])
    assert (other["a/both"], other["a/marked"], other["a/true"]) == (0, 1, 0)


def test_types_of_marks_come_from_the_published_files(bench, tmp_path) -> None:
    error = {"error type": "Irrelevant", "start": 3, "end": 7}
    records = [{"prediction 1": "in Lyon on Friday", "feedback": {"errors": [error]}}]
    (tmp_path / "qa.json").write_text(json.dumps(records))
    [(response, marks)] = bench.marks_of(str(tmp_path / "qa.json"), "qa_feedback").items()
    assert (response, marks) == ("in Lyon on Friday", [bench.Mark(3, 7, "Irrelevant")])
    critique = Critique("", (Span(3, 7, "negative"),))
    assert [set(word.kinds) for word in bench.words_of(response, critique, marks)] == [
        set(),
        {"Irrelevant"},
        set(),
        set(),
    ]
    labels = (["Unwanted", "Unwanted.Intrinsic"], ["Questionable", "Unwanted"], ["Benign"])
    annotations = [{"labels": one, "start": number, "end": number + 1} for number, one in enumerate(labels)]
    (tmp_path / "fb.jsonl").write_text(json.dumps({"summary": "abc", "annotations": annotations}) + "\n")
    found = bench.marks_of(str(tmp_path / "fb.jsonl"), "faithbench")
    assert found["abc"] == [bench.Mark(0, 1, "Unwanted.Intrinsic"), bench.Mark(1, 2, "Unwanted")]
    assert bench.kinds_of({"x": found["abc"], "y": found["abc"][1:]}) == ["Unwanted", "Unwanted.Intrinsic"]


@pytest.mark.parametrize("free_votes", [1, 16])
def test_the_command_writes_every_fold_below_its_name(bench, tmp_path, monkeypatch, free_votes: int) -> None:
    """Four questions in two folds; of each answer "in Lyon" people marked "in", and the model marks all of it.

    Most sampled critiques mark "in" with the constraint and "Lyon" without it.
    """
    data = answers(tmp_path, "abcd")
    whole = Critique("", (Span(0, 7, "negative"),))

    def fold_of_model(options, directory, train, test) -> None:
        assert not {one.prompt for one in train} & {one.prompt for one in test}
        for name in ("votes", "free"):
            predictions = directory / name / "predictions.jsonl"
            predictions.parent.mkdir(parents=True)
            write_annotations(predictions, [Annotation(one.prompt, one.response, whole) for one in test])
            if name == "votes" or options.free_votes > 1:
                (directory / name / "samples.jsonl").touch()

    def votes_of(path, test) -> list[list[float]]:
        return [[0.25, 0.75] if path.parent.name == "free" else [0.75, 0.25] for _ in test]

    monkeypatch.setattr(bench, "fold_of_model", fold_of_model)
    monkeypatch.setattr(bench, "votes_of", votes_of)
    out, work = tmp_path / "found.json", tmp_path / "work"
    asked = ["qa_feedback", "--data", str(data), "--folds", "2", "--no-words", "--called", "twice"]
    asked += ["--free-votes", str(free_votes)]
    monkeypatch.setattr(sys, "argv", ["people_reward.py", *asked, "--json", str(out), "--work", str(work)])
    bench.main()
    assert sorted(one.name for one in (work / "qa_feedback" / "without-words-twice").iterdir()) == ["fold-0", "fold-1"]
    [(name, found)] = json.loads(out.read_bytes()).items()
    assert name == "qa_feedback, without words, twice"
    assert (found["texts"], found["responses"], found["words"]) == (4, 4, {"Irrelevant": 4})
    assert found["figures"]["model"]["auroc"]["value"] == 1.0
    assert found["figures"]["model, free"]["auroc"]["value"] == (0.5 if free_votes == 1 else 0.0)
    lead = found["figures"]["model, free"]["auroc"]["value"] - found["figures"]["look-up"]["auroc"]["value"]
    assert found["model, free ahead of"]["look-up"]["auroc"]["value"] == pytest.approx(lead)
    assert "model, free" not in found["model, free ahead of"]
    assert found["f1 by type"]["model"]["Irrelevant"]["value"] == pytest.approx(2 / 3)  # 2 · 4 / (8 + 4)
    assert found["f1 by type"]["look-up"]["Irrelevant"]["value"] == 1.0


@pytest.mark.parametrize(("votes", "measured"), [(0, ["free"]), (8, ["votes", "free"])])
def test_no_votes_leave_out_the_constraint(bench, tmp_path, monkeypatch, votes: int, measured: list[str]) -> None:
    """Two folds of one question each; people marked "in", and so do the critiques."""
    data = answers(tmp_path, "ab")
    critique = Critique('Irrelevant: "in"', (Span(0, 2, "negative"),))
    asked: dict[str, list[str]] = {}

    class Drawn:
        def draw(self, examples, responses):
            return [[critique] * 4 for _ in responses]

    def text2grad(command, *words) -> None:
        if command == "evaluate-reward":
            settings = list(map(str, words))
            out = Path(settings[-1])
            asked.setdefault(out.name, settings)
            out.mkdir(parents=True)
            test = list(read_annotations(Path(settings[0])))
            write_annotations(out / "predictions.jsonl", [one._replace(critique=critique) for one in test])
            CachedDraws(Drawn(), out / "samples.jsonl")(*inputs_of(test))

    monkeypatch.setattr(bench, "text2grad", text2grad)
    out = tmp_path / "found.json"
    words = ["qa_feedback", "--data", str(data), "--folds", "2", "--free-votes", "4"]
    words += ["--votes", str(votes), "--json", str(out), "--work", str(tmp_path / "work")]
    monkeypatch.setattr(sys, "argv", ["people_reward.py", *words])
    bench.main()
    assert list(asked) == measured
    assert ["--no-constrain" in asked[name] for name in measured] == [name == "free" for name in measured]
    assert asked["free"][asked["free"].index("--votes") + 1] == "4"
    [found] = json.loads(out.read_bytes()).values()
    ours = [{"free": "model, free", "votes": "model"}[name] for name in measured]
    assert [name for name in found["figures"] if name.startswith("model")] == ours
    assert found["figures"]["model, free"]["auroc"]["value"] == 1.0
    assert [name for name in found if name.endswith("ahead of")] == [f"{name} ahead of" for name in ours]
    assert list(found["feedback"]) == [*ours, "people"]
    monkeypatch.setattr(sys, "argv", ["people_reward.py", *words, "--votes", "0", "--free-votes", "1"])
    with pytest.raises(SystemExit):
        bench.main()


def test_the_probe_of_every_fold_is_measured_in_place_of_a_model(bench, tmp_path, monkeypatch) -> None:
    """Four questions in two folds; people marked "in", the probe sees it at odds of 0.8 and 0.3 for the other word."""
    data = answers(tmp_path, "abcd")
    stores: list[Path] = []

    class Probe:
        vote_threshold = 0.5

        def scores(self, examples, responses, *, store):
            assert store == stores[-1]
            return [[UnitScore(0, 2, 0.8, 0.1), UnitScore(3, 7, 0.3, 0.6)] for _ in responses]

        def save(self, directory) -> None:
            directory.mkdir(parents=True)

    def train_probe(base, tokenizer, annotations, *, unit, features, max_tokens, store):
        assert (base, unit, features, len(annotations)) == ("models/smollm2", "words", "support", 2)
        stores.append(store)
        return Probe(), ProbeReport(2, {}, 0, 0, 9, 1, 1.0, 0.5, 0.6, 0.7, {}, {})

    monkeypatch.setattr(bench, "load_tokenizer", lambda path: None)
    monkeypatch.setattr(bench, "train_probe", train_probe)
    out = tmp_path / "found.json"
    asked = [
        "qa_feedback",
        "--data",
        str(data),
        "--folds",
        "2",
        "--probe",
        "words",
        "--features",
        "support",
    ]
    monkeypatch.setattr(sys, "argv", ["people_reward.py", *asked, "--json", str(out), "--work", str(tmp_path / "work")])
    bench.main()
    bench.main()  # nothing is trained again
    assert len(stores) == 2
    assert len(set(stores)) == 1
    [(name, found)] = json.loads(out.read_bytes()).items()
    assert name == "qa_feedback, probe of words, support"
    assert found["figures"]["probe"]["auroc"]["value"] == 1.0
    assert found["figures"]["probe"]["f1"]["value"] == 1.0
    assert found["probe ahead of"]["everything"]["auroc"]["value"] == 0.5


def test_texts_with_marks_and_half_as_many_others_are_learned(bench) -> None:
    # Of the first sentence half is marked in "some", less in "little".
    whole = [Annotation(f"p{n}", "It is so. No.", Critique("", (Span(0, 9, "negative"),))) for n in range(4)]
    some = Annotation("some", "It is. No.", Critique("", (Span(0, 5, "negative"),)))
    little = Annotation("little", "It is so. No.", Critique("", (Span(0, 2, "negative"),)))
    without = [little, *(Annotation(f"q{n}", "It is so. No.", Critique("")) for n in range(9))]
    every = [*without, *whole, some]
    kept = bench.balanced(every, seed=0)
    assert {one.prompt for one in kept if one in [*whole, some]} == {"p0", "p1", "p2", "p3", "some"}
    assert (len(kept), sum(one in without for one in kept)) == (7, 2)
    assert kept == bench.balanced(every, seed=0)
    assert {one.prompt for one in kept} != {one.prompt for one in bench.balanced(every, seed=1)}
    assert bench.balanced(without, seed=0) == []


def test_critiques_with_a_mark_that_the_prompt_does_not_show_are_left_out(bench) -> None:
    """Sentences "It is so." and "No."; a mark of half a sentence shows the sentence, one word of four does not."""

    def one(*spans: Span) -> Annotation:
        return Annotation("p", "It is so. No.", Critique("Well.", spans))

    half, word, no = Span(0, 5, "negative"), Span(0, 2, "negative"), Span(10, 13, "negative")
    good = Span(0, 9, "positive")
    kept = [one(half), one(no), one(half, no), one(), one(half, Span(6, 8, "negative")), one(no, good)]
    assert bench.shown_whole([*kept, one(word), one(word, no), one(good, word)]) == kept
    lines = (
        ('Irrelevant: "No."\nMissing-Answer: "Yes."', 'Irrelevant: "No."'),
        ('Missing-Answer: "Yes."', "No errors marked."),
    )
    for feedback, rest in lines:
        [found] = bench.shown_whole([one(no)._replace(critique=Critique(feedback, (no,)))])
        assert found.critique == Critique(rest, (no,))


def test_the_critiques_of_each_person_are_learned_apart_without_the_fold_that_is_measured(
    bench, tmp_path, monkeypatch
) -> None:
    """Two people marked each of four summaries, the second one word of four; both are measured together."""
    texts = [f"Text {number}. It rained." for number in range(4)]
    labels = ["Unwanted"]
    whole = {"labels": labels, "annotator": "a", "note": "No.", "start": 0, "end": 9, "text": "It is so."}
    word = {"labels": labels, "annotator": "b", "note": "Hm.", "start": 0, "end": 2, "text": "It"}
    records = [
        {"id": str(number), "source": text, "summary": "It is so.", "annotations": [whole, word]}
        for number, text in enumerate(texts)
    ]
    (tmp_path / "fb.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))
    learned: dict[bool, list[list[Annotation]]] = {True: [], False: []}

    class Stop(Exception):
        """Ends the command behind the first fold."""

    def fold_of_model(options, directory, train, test) -> None:
        assert len(test) == 2
        assert not {one.prompt for one in train} & {one.prompt for one in test}
        learned[options.apart].append(train)
        raise Stop

    monkeypatch.setattr(bench, "fold_of_probe", lambda *_: None)
    monkeypatch.setattr(bench, "fold_of_model", fold_of_model)
    asked = ["faithbench", "--data", str(tmp_path / "fb.jsonl"), "--folds", "2", "--probe", "sentences", "--write"]
    for apart in ([], ["--apart"]):
        words = ["people_reward.py", *asked, *apart, "--json", str(tmp_path / "o.json"), "--work", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(Stop):
            bench.main()
    [joined], [apart] = learned[False], learned[True]
    assert [len(one.critique.spans) for one in joined] == [2, 2]
    assert [one.critique.spans for one in apart] == [(Span(0, 9, "negative"),)] * 2
    assert all("No." in one.critique.feedback and "Hm." not in one.critique.feedback for one in apart)


def test_quotes_of_the_feedback_are_counted_in_the_sentences_of_the_marks(bench) -> None:
    """Sentence 2 of 3 is marked: two quotes of it, one of sentence 3, one of another text."""
    response = "It is so. We saw a big dog. It is so, too."
    marks = (Span(10, 27, "negative"),)
    feedback = 'Irrelevant: "We saw …" and "a big dog.", not "too" and not "a cat".'
    assert bench.told(Critique(feedback, marks), response) == {
        **{"quotes": 3, "right": 2, "told": 1, "marked": 1, "sentences": 3},
    }
    assert bench.told(Critique('"It is so"', ()), response) == {"quotes": 1, "sentences": 3} | dict.fromkeys(
        ("right", "told", "marked"), 0
    )
    both = (Span(0, 9, "negative"), Span(10, 27, "negative"), Span(28, 42, "positive"))
    found = bench.told(Critique('"big" "dog" "…" "too"', both), response)
    assert (found["quotes"], found["right"], found["told"], found["marked"]) == (3, 2, 1, 2)


def test_words_are_told_of_each_method_and_of_people(bench, tmp_path) -> None:
    """The critiques with the constraint quote the marked sentence, those without it the other in one of two."""
    response, marks = "So am I. No.", (Span(9, 12, "negative"),)
    test = [Annotation("p", response, Critique('"So am I."', marks))]
    right, wrong = Critique('"No."', marks), Critique('"So am I."', marks)
    for name, drawn in (("votes", [right, right]), ("free", [right, wrong])):

        class Drawn:
            def draw(self, examples, responses, drawn=drawn):
                return [drawn for _ in responses]

        (tmp_path / name).mkdir()
        CachedDraws(Drawn(), tmp_path / name / "samples.jsonl")([Example("p")], [response])
    found = bench.told_of_fold(tmp_path, test)
    shares = {
        name: estimate(list(one.values()), bench.TOLD, draws=1)["quotes in marked sentences"].value
        for name, one in found.items()
    }
    assert shares == {"model": 1.0, "model, free": 0.5, "people": 0.0}


def test_words_have_the_probabilities_of_the_unit_in_which_they_begin(bench) -> None:
    scores = [[0, 10, 0.9, 0.05], [11, 20, 0.2, 0.1]]
    assert bench.of_words("It rained. Not here, no.", scores) == [(0.9, 0.05)] * 2 + [(0.2, 0.1)] * 3
