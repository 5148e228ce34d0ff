"""A run made again without some feedback equals, bit for bit, the run that never had it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from critics_by_name import Raters
from rated_runs import last_weights, rated_run
from task_texts import untrained_policy
from text2grad.cli.__main__ import main
from text2grad.config import recipe_of_run
from text2grad.rl.trainer import Text2GradTrainer
from text2grad.runs.replay import KnownCritiques, LeftOut, begin_again, weights_apart
from text2grad.types import Critique, Example, Rollout, Span

SETTINGS = (
    "data.eval_examples=6",
    "run.steps=4",
    "optim.lr=0.03",
    "optim.value_warmup_steps=0",
    "run.save_every=2",
    "run.keep_checkpoints=4",
)

pytestmark = pytest.mark.usefixtures("drawn_pictures")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("start")
    untrained_policy(path)
    return path


def run(start: Path, out: Path, critic: str = "Raters", **how: Any) -> Path:
    return rated_run(start, out, critic, *SETTINGS, **how)


@pytest.fixture(scope="module")
def parent(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(start, tmp_path_factory.mktemp("runs") / "parent")


def test_without_a_rater_it_is_the_run_that_never_heard_this_rater(start: Path, parent: Path, tmp_path: Path) -> None:
    never, out = run(start, tmp_path / "never", "BobAlone"), tmp_path / "again"
    assert main(["without", str(parent), "--rater", "ann", "--out", str(out)]) == 0
    assert last_weights(out) == last_weights(never) != last_weights(parent)
    assert weights_apart(out, never) == 0 < weights_apart(out, parent)
    lineage = json.loads((out / "lineage.json").read_bytes())
    assert (lineage["parent"], lineage["first"], lineage["without"]["raters"]) == (str(parent), 0, ["ann"])
    lines = (out / "rollouts" / "00000.jsonl").read_text().splitlines()
    marks = sum(len(json.loads(line)["critique"]["spans"]) for line in lines)
    assert (lineage["raters"], lineage["categories"]) == ({"bob": marks}, {"fact": marks})
    assert lineage["marks"] == {"positive": marks}
    assert lineage["feedback"].keys() == {"model.path", "prompts", "held-out prompts"}
    compared = json.loads((out / "comparison" / "compare.json").read_bytes())
    assert list(compared["methods"]) == ["parent", "again"], "equal settings, and still two methods"


class WithoutOne(Text2GradTrainer):
    """Never has the critique of row 3 of step 2."""

    def criticize(self, rollouts: Sequence[Rollout], early: Any = None) -> list[Critique]:
        critiques = super().criticize(rollouts, early)
        return [Critique("") if (self.step, row) == (2, 3) else c for row, c in enumerate(critiques)]


def test_without_a_critique_it_goes_on_from_the_checkpoint_before_and_asks_for_new_words_alone(
    start: Path, parent: Path, tmp_path: Path
) -> None:
    never, out = run(start, tmp_path / "never", trainer_class=WithoutOne), tmp_path / "again"
    Raters.asked = 0
    assert main(["without", str(parent), "--critique", "2:3", "--out", str(out)]) == 0
    assert last_weights(out) == last_weights(never) != last_weights(parent)
    assert [path.name for path in sorted((out / "checkpoints").iterdir())] == ["step-000002", "step-000004"]
    ours, theirs = (
        [json.loads(line) for line in (path / "rollouts" / "00000.jsonl").read_text().splitlines()]
        for path in (out, parent)
    )
    assert ours[:16] == theirs[:16], "the steps before the checkpoint are the parent's"
    known = {(record["prompt"], record["response"]) for record in theirs}
    new = [record for record in ours if (record["prompt"], record["response"]) not in known]
    assert {record["step"] for record in new} == {3}, "step 2 has the parent's responses"
    assert Raters.asked == len(new) + 6, "and the answers to the 6 held-out prompts after the last step"
    assert ours[19]["critique"]["spans"] == []


def test_the_critic_is_not_asked_about_the_same_responses(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KnownCritiques, "_key", lambda _, *key: key)  # as where the critic learned on the way
    out = tmp_path / "again"
    Raters.asked = 0
    assert main(["without", str(parent), "--category", "style", "--same-responses", "--out", str(out)]) == 0
    responses = [
        [json.loads(line)["response"] for line in (path / "rollouts" / "00000.jsonl").read_text().splitlines()]
        for path in (out, parent)
    ]
    assert responses[0] == responses[1]
    assert Raters.asked == 12, "the answers to the 6 held-out prompts before and after"
    assert last_weights(out) != last_weights(parent)


def test_what_is_finished_is_not_made_again_and_another_choice_needs_another_directory(
    parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["without", str(parent), "--rater", "bob", "--out", str(tmp_path / "again")]
    assert main(command) == 0
    before = (tmp_path / "again" / "metrics.jsonl").read_bytes()
    assert main(command) == 0
    assert (tmp_path / "again" / "metrics.jsonl").read_bytes() == before
    assert main([*command, "--rater", "ann"]) == 2
    assert "holds another run; choose another directory with --out DIR" in capsys.readouterr().err


def test_who_is_unknown_is_told_with_the_names_that_are(
    parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert main(["without", str(parent), "--rater", "eve", "--out", str(tmp_path / "again")]) == 2
    assert main(["without", str(parent)]) == 2
    errors = capsys.readouterr().err
    assert "learned from nothing of raters eve; its raters: ann, bob; its categories: fact, style/tone" in errors
    assert "its last critique: 3:7" in errors
    assert "name it with --rater, --category or --critique" in errors
    assert not (tmp_path / "again").exists()


def test_what_is_left_of_a_critique() -> None:
    ann, bob = Span(0, 1, "negative", rater="ann", category="style/tone"), Span(2, 3, "positive", rater="bob")
    both = Critique("Hm.", (ann, bob), outcome=0.5)
    assert LeftOut(raters=("eve",)).rest(both, "0:0") is both
    assert LeftOut(raters=("ann",)).rest(both, "0:0") == Critique("Hm.", (bob,), outcome=0.5)
    assert LeftOut(categories=("style",)).rest(both, "0:0").spans == (bob,)
    assert LeftOut(categories=("style/to",)).rest(both, "0:0") is both, "a part of a name is another name"
    assert LeftOut(raters=("ann", "bob")).rest(both, "0:0") == Critique("")
    assert LeftOut(critiques=("0:1",)).rest(both, "0:1") == Critique("")
    assert LeftOut(critiques=("0:1",)).rest(both, "1:0") is both
    assert LeftOut().rest(Critique("", status="withdrawn"), "0:0") == Critique(""), "nobody said anything"


def test_where_the_critic_learned_only_the_same_step_is_repeated() -> None:
    steps = {0: [{"prompt": "p", "response": "r", "critique": {"feedback": "old", "spans": [], "unmatched": []}}]}
    for learns, expected in ((False, "old"), (True, "new")):
        critic = KnownCritiques(lambda examples, responses: [Critique("new")] * len(responses), steps, learns=learns)
        critic.step = 1
        assert critic([Example("p")], ["r"])[0].feedback == expected


def test_prompts_may_have_lost_marks_but_not_words(parent: Path, tmp_path: Path) -> None:
    recipe = recipe_of_run(parent)
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"train": str(tmp_path / "team.jsonl")})})

    def inputs(out: str) -> set[str]:
        begin_again(parent, tmp_path / out, recipe, {}, from_step=0)
        return {*json.loads((tmp_path / out / "run.json").read_bytes())["inputs"]}

    assert inputs("first") == {"model.path", "prompts", "held-out prompts"}
    (tmp_path / "withdrawn.jsonl").touch()
    assert inputs("second") == {"model.path"}
