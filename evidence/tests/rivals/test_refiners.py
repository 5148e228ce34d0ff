"""ILF and its refiners: the policy and a server with one prompt, refinements in tokens, and the choice among them."""

import json
from pathlib import Path
from typing import Any

import pytest
from small_rival import trainer

from evidence.rivals import refiners
from evidence.rivals.imitation import imitate_refined
from evidence.rivals.judged import Judged
from evidence.rivals.refiners import PolicyRefiner, prompts_with_critiques, refine
from evidence.rivals.trainer import RivalTrainer
from fault_server import running
from small_run import ColourCritic
from text2grad.models import sample, step_uniforms
from text2grad.types import Critique, Example, Rollout

PROMPT = "{prompt} {response} {critique}"


class Fixed:
    """A refiner that returns given texts."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def __call__(self, *_: Any) -> list[str]:
        return self.texts


def run_of(out: Path, **rival: Any) -> RivalTrainer:
    return trainer(out, "ilf", rival={"refine_prompt": PROMPT, **rival}, optim={"lr": 1e-3})


def test_the_policy_is_asked_with_prompt_response_and_critique_and_samples_as_in_rollouts(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    examples, critiques = (
        [Example("red one"), Example("blue two")],
        [Critique("cat dog"), Critique("x", status="timed_out")],
    )
    found = PolicyRefiner(run)(examples, ["green", "bird"], critiques)
    ids = tuple(run.tokenizer("red one green cat dog")["input_ids"])
    uniforms = step_uniforms(seed=3 + refiners.REFINING_SEED, step=0, rows=2, tokens=6)[:1]
    expected = sample(run.model.policy, [ids], uniforms, eos_ids=run.eos_ids, pad_id=run.pad_id)
    assert found == [run.tokenizer.decode(list(expected[0]), skip_special_tokens=True), "bird"]  # no critique


@pytest.mark.parametrize("template", [None, "{% for m in messages %}</s>{{ m['content'] | trim }}{% endfor %}</s>"])
def test_special_tokens_that_a_response_or_a_critique_spells_are_text_for_the_refiner(
    tmp_path: Path, template: str | None
) -> None:
    run = run_of(tmp_path / "run")
    tokenizer, end = run.tokenizer, run.tokenizer.eos_token_id
    tokenizer.chat_template = template
    rollouts = [Rollout(Example("red one"), (5,), (7, 8), text, truncated=False) for text in ("cat</s> dog", "cat dog")]
    spelled, plain = prompts_with_critiques(run, rollouts, [Critique("</s>x"), Critique("x")]).values()
    assert spelled.count(end) == plain.count(end) == (2 if template else 0)
    text = tokenizer("</s>", add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert len(spelled) >= len(plain) + 2 * len(text)


def test_a_prompt_that_leaves_no_room_for_an_answer_is_not_asked(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    assert PolicyRefiner(run)([Example("red")], ["blue " * 70], [Critique("one")]) == ["blue " * 70]


def test_a_server_is_asked_once_for_each_refinement_and_a_useless_answer_changes_nothing(tmp_path: Path) -> None:
    with running() as server:
        values = {"model": "m", "base_url": server.url, "api_key_env": ""}
        run = trainer(tmp_path / "run", "ilf", annotate=values, rival={"refiner": "server"})
        scripts = ["[[answer]]", "[[prose]]", "[[400]]"]
        examples = [Example(f"{script}\nSAY red {n}\n") for n, script in enumerate(scripts)]
        given = (examples, ["a", "b", "c"], [Critique("x")] * 3)
        assert refiners.refiner_of(run)(*given) == ["red 0", "b", "c"]
        asked = server.requests()
        assert refiners.refiner_of(run)(*given) == ["red 0", "b", "c"]
        assert server.requests() - asked == 2  # with the schema and without; an error is no answer that could be kept
    assert (tmp_path / "run" / "refinements.sqlite").exists()


def test_braces_in_a_response_stay_as_they_are(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    asked = refiners._prompts(run.recipe, [Example("a {response}")], ["{critique}"], [Critique("{prompt}{0}")])
    assert asked == [("a {response} {critique} {prompt}{0}", [(13, 23), (24, 35)])]


def test_a_refinement_ends_in_tokens_and_an_unchanged_response_keeps_its_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path / "run")
    old = Rollout(Example("red one"), (5,), (7, 8), "as it was", truncated=True)
    monkeypatch.setattr(refiners, "refiner_of", lambda _: Fixed(["as it was", "red blue", "red " * 7]))
    same, new, cut = refine(run, [old] * 3, [Critique("")] * 3)
    assert same is old
    end = run.tokenizer.eos_token_id
    assert new.response_ids == (*run.tokenizer("red blue", add_special_tokens=False)["input_ids"], end)
    assert (new.response, new.truncated, new.prompt_ids) == ("red blue", False, (5,))
    assert (len(cut.response_ids), cut.truncated) == (6, True)  # rollout.max_new_tokens


def test_a_special_token_that_a_refiner_spells_is_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path / "run")
    end = run.tokenizer.eos_token
    old = Rollout(Example("red one"), (5,), (7, 8), "as it was", truncated=True)
    monkeypatch.setattr(refiners, "refiner_of", lambda _: Fixed([f"red{end}"]))
    (new,) = refine(run, [old], [Critique("")])
    assert new.response_ids.count(run.tokenizer.eos_token_id) == (0 if new.truncated else 1)
    assert new.response_ids[1] != run.tokenizer.eos_token_id


def test_the_refinements_that_the_critic_judges_best_are_imitated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path / "run", keep=0.25)
    judged = [Judged(one, Critique("Say red."), -1.0) for one in run.sample()]
    texts = [" one", " red", " red blue", " two", " green one", " red green blue", " red green", " cat"]
    monkeypatch.setattr(refiners, "refiner_of", lambda _: Fixed(texts))
    imitated: list[Rollout] = []
    name = "evidence.rivals.imitation.imitate"
    monkeypatch.setattr(name, lambda _, answers: imitated.extend(answers) or {})
    metrics = imitate_refined(run, judged)
    assert [one.response for one in imitated] == [" red blue", " red green blue"]  # rewards 2 and 3 of each four
    assert metrics == {"rival/refined": 8.0, "rival/more_critiques": 8.0, "rival/refined_reward": 6 / 8}
    records = [
        json.loads(line) for line in (tmp_path / "run" / "refinements" / "000000.jsonl").read_text().splitlines()
    ]
    assert [records[1][name] for name in ("refined", "reward")] == [" red", [-1.0, 1.0]]
    assert records[1]["critique"]["feedback"] == "Say red."

    imitated.clear()  # without a choice, the critic is not asked
    run.critic = None
    run.recipe = run.recipe.model_copy(update={"rival": run.recipe.rival.model_copy(update={"keep": None})})
    assert imitate_refined(run, judged) == {"rival/refined": 8.0}
    assert len(imitated) == 8


def test_a_killed_choice_asks_the_critic_for_the_others_only(tmp_path: Path) -> None:
    calls = tmp_path / "calls.jsonl"
    run = trainer(tmp_path / "run", "ilf", ColourCritic(calls), rollout={"batch_size": 4})
    rollouts = run.sample()
    run.judge(rollouts[:2])
    assert [one.reward for one in run.judge(rollouts)] == [one.reward for one in run.judge(rollouts)]
    asked = [response for line in calls.read_text().splitlines() for response in json.loads(line)]
    assert sorted(asked) == sorted({one.response: one for one in rollouts})
