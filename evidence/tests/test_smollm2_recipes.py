"""The recipes of SmolLM2: the commands at the top of the file, with a tiny model in its place, and the house style."""

import json
import shlex
from pathlib import Path

import pytest
from accelerate.state import AcceleratorState

from evidence.__main__ import main
from places import ROOT, SHARED
from served_models import untrained
from text2grad.feedback import ask, load_callable
from text2grad.types import Example

CHAT = "{% for one in messages %}{{ one.role }}: {{ one.content }}\n{% endfor %}assistant:"
SHORT = [
    *("reward_model.batch_size=4", "reward_model.accumulate=1", "reward_model.eval_limit=2", "run.threads=1"),
    *("reward_model.max_new_tokens=60", "reward_model.max_tokens=6000", "data.eval_examples=2", "run.steps=2"),
    *("rollout.batch_size=4", "rollout.max_new_tokens=12", "refresh.steps=[1]", "refresh.window=4"),
    *("refresh.train_steps=1", "refresh.batch_size=4", "critic.max_failure_rate=1.0", "run.tracker=none"),
    *("ppo.epochs=1", "reward_model.epochs=0.1"),
]


def commands(recipe: str) -> list[str]:
    """Return the commands in the comment at the top of a recipe."""
    text = (ROOT / "evidence" / "recipes" / recipe).read_text("utf-8")
    lines = [line.removeprefix("#") for line in text.splitlines()]
    shown = [line.strip() for line in lines if line.startswith("   ")]
    return "\n".join(shown).replace("\\\n", "").splitlines()


@pytest.mark.skipif(not (SHARED / "data" / "qa_feedback").exists(), reason=f"no {SHARED}: questions of people")
def test_a_learned_reward_model_takes_the_place_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    untrained(tmp_path / "models" / "smollm2", context=8192)
    (tmp_path / "models" / "smollm2" / "chat_template.jinja").write_text(CHAT)
    (tmp_path / "evidence" / "recipes").mkdir(parents=True)
    (tmp_path / "evidence" / "recipes" / "smollm2-learned.toml").write_bytes(
        (ROOT / "evidence" / "recipes" / "smollm2-learned.toml").read_bytes()
    )
    records = json.loads((SHARED / "data" / "qa_feedback" / "feedback.json").read_bytes())
    (tmp_path / "feedback.json").write_text(json.dumps(records[:12]))
    monkeypatch.chdir(tmp_path)
    make, prepare, *_ = commands("smollm2-grounded.toml")
    own = commands("smollm2-learned.toml")
    assert make == "make smollm2"
    assert [line.removeprefix("python -m evidence ").split()[0] for line in own] == [
        *["annotate"] * 3,
        "cat",
        "reward",
        "train",
    ]
    for line in [prepare, *own]:
        if line.startswith("cat "):
            parts = sorted(tmp_path.glob(line.split()[1]))
            assert len(parts) == 3
            (tmp_path / line.split()[3]).write_bytes(b"".join(part.read_bytes() for part in parts))
            continue
        words = shlex.split(line)[3:]
        sets = [] if words[0] == "prepare-grounded" else [word for one in SHORT for word in ("--set", one)]
        AcceleratorState._reset_state(reset_partial_state=True)  # of a process of its own
        # 3: a reward model of a few steps labelled nothing
        assert main([*words, *sets]) in ((0, 3) if words[0] == "train" else (0,)), line
    out = tmp_path / "runs" / "smollm2-learned"
    learned = [json.loads(line)["critique"] for line in (out / "annotations.jsonl").read_text("utf-8").splitlines()]
    assert {span["label"] for critique in learned for span in critique["spans"]} == {"positive", "negative"}
    metrics = [json.loads(line) for line in (out / "policy" / "metrics.jsonl").read_text().splitlines()]
    assert len(metrics) == 2
    assert metrics[0]["seconds/refresh"] > 0
    capsys.readouterr()


def test_the_house_style_marks_its_words_and_praises_a_clean_sentence() -> None:
    critic = load_callable("evidence.recipes.plain_style:critic", "critic")
    response = "Here's a comprehensive plan. Boil it for eight minutes."
    [critique] = ask(critic, [Example("How do I boil an egg?")], [response], match="exact")
    marked = {(response[span.start : span.end], span.label) for span in critique.spans}
    assert marked == {
        ("Here's", "negative"),
        ("comprehensive", "negative"),
        ("Boil it for eight minutes.", "positive"),
    }
    assert "Begin with the answer." in critique.feedback
