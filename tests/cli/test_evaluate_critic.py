"""`text2grad evaluate critic` from its command line: what it writes, what it asks again, and what it refuses."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from places import SHARED
from text2grad.cli.__main__ import main
from text2grad.feedback.records import Annotation, read_annotations, write_annotations
from text2grad.feedback.spans import Match
from text2grad.reward_models.format import CritiqueFormat
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.writing import SYMBOLS
from text2grad.runs.critic_quality.pairs import read_predictions, read_truth
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Critique, Span

TEXT = "I live in Lyon on Friday ."
CITY, DAY = Span(10, 14, "positive"), Span(18, 24, "negative")
QA = SHARED / "data" / "qa_feedback" / "feedback.json"

CRITIC = """
from pathlib import Path
from text2grad import Critique, Span

def critic(examples, responses):
    assert not any(example.meta or example.reference for example in examples)
    calls = Path("calls")
    calls.write_text((calls.read_text() if calls.exists() else "") + "x" * len(responses))
    if Path("broken").exists() and len(calls.read_text()) > 16:
        raise RuntimeError("the line is dead")
    return [
        '{"feedback": "Lyon <b>is</b> right.", "good_spans": ["Lyon", "nowhere"]}' if n % 2 == 0
        else Critique("", (Span(18, 24, "positive"),)) for n in range(len(responses))
    ]

def never(examples, responses):
    raise AssertionError("asked")
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twenty annotations and a critic that says one of two things in turn."""
    monkeypatch.chdir(tmp_path)
    name = f"critic_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(CRITIC)
    monkeypatch.setattr("sys.path", [str(tmp_path), *__import__("sys").path])
    (tmp_path / "name").write_text(name)
    write_annotations(
        tmp_path / "truth.jsonl",
        [Annotation(f"Where {n}?", TEXT, Critique("Lyon is right, Friday is not.", (CITY, DAY))) for n in range(20)],
    )
    return tmp_path


def command(here: Path, *options: str, critic: str = "critic") -> list[str]:
    who = f"{(here / 'name').read_text()}:{critic}"
    return ["evaluate", "critic", "truth.jsonl", "--critic", who, "--out", "out", *options]


def result(here: Path) -> dict[str, Any]:
    return json.loads((here / "out" / "evaluation.json").read_text())  # type: ignore[no-any-return]


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    capsys.readouterr()
    assert main(list(args)) == 2
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("drawn_pictures")
def test_a_critic_is_measured_and_everything_is_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(here)) == 0
    found = result(here)
    rates = {name: one["value"] for name, one in found["metrics"].items()}
    # of each two responses: "Lyon" rightly, then "Friday" as positive; truth: one word positive, one negative in each
    assert (rates["precision/positive"], rates["recall/positive"]) == (1 / 2, 1 / 2)
    assert rates["recall/negative"] == 0.0
    assert "precision/negative" not in rates
    assert rates["unmatched_rate"] == 10 / 30  # "nowhere" ten times, beside twenty spans
    assert (found["unit"], found["responses"]) == ("words", 20)
    assert found["metrics"]["rouge1"]["low"] <= rates["rouge1"] <= found["metrics"]["rouge1"]["high"]
    said = read_annotations(here / "out" / "predictions.jsonl")
    assert [one.critique.unmatched for one in said] == [("nowhere",), ()] * 10
    page = (here / "out" / "evaluation.html").read_text()
    assert re.search(r"<dd>\d\.\d{3}<small>\d\.\d{3} to \d\.\d{3}</small>", page)
    assert "Lyon <b>" not in page
    assert "Lyon &lt;b&gt;is&lt;/b&gt; right." in page
    assert page.count('<p class="where as-is">Annotation</p>') == 20
    assert '<span class="t p4" title="δ 1"> Lyon</span>' in page
    assert (here / "out" / "tables.txt").read_text().rstrip() in capsys.readouterr().out


def test_a_killed_evaluation_asks_only_for_what_is_not_known(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "broken").touch()
    assert "the line is dead" in refused(capsys, *command(here))
    assert not (here / "out" / "evaluation.json").exists()
    (here / "broken").unlink()
    (here / "calls").unlink()
    assert main(command(here)) == 0
    assert (here / "calls").read_text() == "xxxx"  # one batch of sixteen was kept
    before = result(here)
    assert main(command(here)) == 0
    assert (here / "calls").read_text() == "xxxx"
    assert result(here) == before


def test_a_directory_belongs_to_one_critic(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(here)) == 0
    said = refused(capsys, *command(here, critic="never"))
    assert "out holds critiques of another critic:" in said
    assert "Choose another --out, or remove" in said


def test_measurements_on_other_annotations_and_other_files_are_not_overwritten(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(here)) == 0
    (here / "more.jsonl").write_bytes((here / "truth.jsonl").read_bytes())
    before = (here / "out" / "evaluation.json").read_bytes()
    other = ["more.jsonl" if word == "truth.jsonl" else word for word in command(here)]
    said = refused(capsys, *other)
    assert "holds results about truth.jsonl, and would be overwritten; choose another --out, or add --force" in said
    assert (here / "out" / "evaluation.json").read_bytes() == before
    assert main([*other, "--force"]) == 0
    assert result(here)["annotations"] == "more.jsonl"
    (here / "full").mkdir()
    (here / "full" / "notes.txt").write_text("mine")
    assert "full holds other files (notes.txt); choose" in refused(capsys, *command(here), "--out", "full")


def test_predictions_of_a_file_give_what_their_critic_gave(here: Path) -> None:
    assert main(command(here, "--tokenizer", "characters")) == 0
    first = result(here)
    shuffled = read_annotations(here / "out" / "predictions.jsonl")[::-1]
    write_annotations(here / "said.jsonl", shuffled)
    args = ["--predictions", "said.jsonl", "--tokenizer", "characters", "--out", "out2"]
    assert main(["evaluate", "critic", "truth.jsonl", *args]) == 0
    second = json.loads((here / "out2" / "evaluation.json").read_text())
    assert second["metrics"] == first["metrics"]
    assert second["counts"]["positive_true"] == 20 * 4  # "Lyon" has four characters


def test_predictions_that_do_not_fit_are_refused_with_the_way_out(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = read_annotations(here / "truth.jsonl")

    def says(annotations: Sequence[Annotation], *options: str) -> str:
        write_annotations(here / "said.jsonl", annotations)
        return refused(
            capsys, "evaluate", "critic", "truth.jsonl", "--predictions", "said.jsonl", "--out", "out", *options
        )

    assert (
        "said.jsonl has no prediction for 16 of 20 annotated responses; the first is truth.jsonl:5: 'I live in Lyon "
        "on Friday .'. Prompt and response must be equal, character by character. Add predictions for these responses, "
        "or evaluate only annotations with a prediction"
    ) in says(truth[:4])
    assert "said.jsonl holds 1 predictions for responses without annotation; the first is said.jsonl:21" in says(
        [*truth, truth[0]._replace(prompt="Other?")]
    )
    assert not (here / "out").exists()
    args = ["--predictions", "said.jsonl", "--out", "out", "--limit", "3"]
    assert main(["evaluate", "critic", "truth.jsonl", *args]) == 0  # the rest of a file is no mistake then


def test_quotes_of_predictions_are_looked_for_as_they_are_told_to(here: Path) -> None:
    said = {"prompt": "Where 0?", "response": TEXT, "critique": '{"feedback": "", "good_spans": ["in  Lyon"]}'}
    (here / "said.jsonl").write_text(json.dumps(said) + "\n")
    truth = read_truth(here / "truth.jsonl", limit=1)
    matches: tuple[Match, ...] = ("exact", "normalized")
    (exact,), (normalized,) = (read_predictions(here / "said.jsonl", truth, match=match) for match in matches)
    assert (exact.predicted.spans, exact.predicted.unmatched) == ((), ("in  Lyon",))
    assert normalized.predicted.spans == (Span(7, 14, "positive"),)
    assert normalized.true.spans == (CITY, DAY)


def test_of_a_response_annotated_twice_each_annotation_meets_a_prediction(here: Path) -> None:
    both = [Annotation("p", TEXT, Critique("a", (CITY,))), Annotation("p", TEXT, Critique("b", (DAY,)))]
    write_annotations(here / "truth.jsonl", both)
    args = ["evaluate", "critic", "truth.jsonl", "--no-words", "--out"]
    assert main([*args, "out", "--predictions", "truth.jsonl"]) == 0
    assert result(here)["metrics"]["f1/negative"]["value"] == 1.0
    write_annotations(here / "one.jsonl", both[:1])
    assert main([*args, "out1", "--predictions", "one.jsonl"]) == 0
    found = json.loads((here / "out1" / "evaluation.json").read_text())["metrics"]
    assert (found["precision/positive"]["value"], found["recall/negative"]["value"]) == (1 / 2, 0.0)


@pytest.mark.usefixtures("no_hub")
def test_bad_input_is_refused_before_the_critic_is_asked(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    never = command(here, critic="never")
    assert "cannot load a tokenizer from 'nowhere'" in refused(capsys, *never, "--tokenizer", "nowhere")
    assert "cannot load a model for perplexity from nowhere" in refused(capsys, *never, "--perplexity", "nowhere")
    assert "[critic] votes = 0" in refused(capsys, *never, "--set", "critic.votes=0")
    model = ["evaluate", "critic", "truth.jsonl", "--model", "nowhere", "--out", "out"]
    assert "--model nowhere: no such directory" in refused(capsys, *model)
    (here / "truth.jsonl").write_text("\n")
    assert "truth.jsonl has no records" in refused(capsys, *never)
    write_annotations(here / "truth.jsonl", [Annotation("p", TEXT, Critique("", status="unparsable"))])
    assert 'truth.jsonl:1: the annotation has status "unparsable" and cannot be compared with a prediction' in refused(
        capsys, *never
    )
    assert not (here / "out" / "answers.jsonl").exists()


def test_a_missing_package_is_named_with_the_way_out(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sacrebleu", None)
    assert 'pip install -e ".[eval]" in the repository of text2grad, or add --no-words' in refused(
        capsys, *command(here)
    )
    assert main(command(here, "--no-words")) == 0
    assert not {"bleu", "rouge1"} & set(result(here)["metrics"])


def test_a_reward_model_is_loaded_with_its_own_tokenizer_and_constrained_or_not(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = word_tokenizer([TEXT, *(f"Where {n} ?" for n in range(20)), "right wrong"], SYMBOLS)
    GenerativeRewardModel(tiny_llama(words, seed=0, width=16), words, CritiqueFormat(max_new_tokens=24)).save(
        here / "model"
    )
    args = ["evaluate", "critic", "truth.jsonl", "--model", "model"]
    assert main([*args, "--out", "out"]) == 0
    found = result(here)
    assert found["unit"] == "tokens of model"
    assert json.loads((here / "out" / "critic.json").read_bytes())["format"]["constrain"] is True
    assert found["metrics"]["failure_rate"]["value"] == 0.0  # an untrained model writes whole JSON all the same
    assert found["metrics"].get("unmatched_rate", {"value": 0.0})["value"] == 0.0
    assert main([*args, "--out", "free", "--set", "critic.constrain=false"]) == 0
    free = json.loads((here / "free" / "evaluation.json").read_text())
    assert free["metrics"]["failure_rate"]["value"] > 0.5  # and left to itself it hardly ever does
    assert '"constrain": true' in refused(capsys, *args, "--out", "out", "--set", "critic.constrain=false")
    voting = ["--set", "critic.votes=3"]
    assert main([*args, "--out", "voted", *voting]) == 0
    whose = json.loads((here / "voted" / "critic.json").read_bytes())["format"]
    assert whose["votes"] == 3
    assert '"votes": 3' in refused(capsys, *args, "--out", "voted")
    (here / "model" / "reward_model.json").write_text('{"max_new_tokens": 25}')
    assert '"files": ' in refused(capsys, *args, "--out", "out")  # another model since


def test_the_reward_model_of_a_recipe_decodes_as_the_recipe_says(here: Path) -> None:
    words = word_tokenizer([TEXT, *(f"Where {n} ?" for n in range(20)), "right wrong"], SYMBOLS)
    made = GenerativeRewardModel(tiny_llama(words, seed=0, width=16), words, CritiqueFormat(max_new_tokens=24))
    made.save(here / "critic" / "model")
    (here / "critic" / "held_out.jsonl").write_bytes((here / "truth.jsonl").read_bytes())
    (here / "my.toml").write_text('[reward_model]\nout = "critic"\n[critic]\nvotes = 2\n')

    def decoded(out: str, *options: str) -> dict[str, Any]:
        assert main(["evaluate", "critic", "my.toml", "--no-words", "--out", out, *options]) == 0
        whose: dict[str, Any] = json.loads((here / out / "critic.json").read_bytes())["format"]
        return whose

    whose = decoded("two")
    assert (whose["votes"], whose["constrain"]) == (2, True)
    assert decoded("three", "--set", "critic.votes=3")["votes"] == 3
    assert decoded("free", "--set", "critic.constrain=false")["constrain"] is False
    assert decoded("whole", "--set", "critic.quote_limits=['whole_words']")["limits"]["whole_words"] is True
    again = [
        "evaluate",
        "critic",
        "my.toml",
        "--no-words",
        "--out",
        "two",
        "--set",
        "critic.quote_limits=['whole_words']",
    ]
    assert main(again) == 2  # the directory holds critiques without this limit


@pytest.mark.skipif(not QA.exists(), reason="../shared/data is not here")
def test_people_compared_with_themselves_agree_wholly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["feedback", "import", "qa_feedback", str(QA), "--limit", "30", "--out", "qa.jsonl"]) == 0
    assert main(["evaluate", "critic", "qa.jsonl", "--predictions", "qa.jsonl", "--out", "out"]) == 0
    found = result(tmp_path)["metrics"]
    perfect = (
        "precision/negative",
        "recall/negative",
        "exact/negative",
        "oui/negative",
        "quote_exact/negative",
        "rouge1",
    )
    assert {name: found[name]["value"] for name in perfect} == pytest.approx(dict.fromkeys(perfect, 1.0))
