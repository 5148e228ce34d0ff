"""The recipes of the paper, run from data to trained policy: tiny models and slices of the real data."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from accelerate.state import AcceleratorState

from fault_server import Running, running
from places import ROOT, SHARED
from served_models import untrained
from text2grad.cli.__main__ import main
from text2grad.config import load_recipe

SLICES = {
    "slf5k": "slf5k_slice/posts_ideal.jsonl",
    "kodcode": "kodcode/kodcode_algorithm.jsonl",
    "ultrafeedback": "ultrafeedback_binarized/train.jsonl",
}
RECIPES = {
    "paper/slf5k": ("slf5k", "slf5k"),
    "paper/kodcode": ("kodcode", "kodcode"),
    "paper/ultrafeedback": ("ultrafeedback", "ultrafeedback"),
    "paper/mistral": ("ultrafeedback", "ultrafeedback"),
    "qwen-0.5b": ("ultrafeedback", "qwen"),
}
"""Recipe → the data set of its prompts, and the directory of its data."""
FAMILIES = {"paper/mistral": "mistral", "qwen-0.5b": "qwen2"}
"""Recipe → the architecture of its policy; of the others Llama."""
ULTRAFEEDBACK = (1e-6, "cosine", 8, 0.05, 3.0, 512, 768, 1e-5, 0.1)
PUBLISHED = {
    "paper/slf5k": (1e-6, "linear", 12, 0.2, 6.0, 100, 500, 1e-5, 0.3),
    "paper/kodcode": (5e-7, "cosine", 8, 0.07, 1.0, 256, 768, 2e-5, 0.6),
    "paper/ultrafeedback": ULTRAFEEDBACK,
    "paper/mistral": ULTRAFEEDBACK,
}
"""Learning rate and schedule, batch, first KL coefficient and its target, longest response and critique, learning rate
of the reward model, temperature of the annotator: arXiv 2505.22338, Appendices B and D, and its published code."""

OF_COMMANDS = {("paper/kodcode", "reward"): ['model.lora_targets=["q_proj","k_proj","v_proj","o_proj"]']}
"""Recipe and command → the settings that the command at the top of the recipe has."""
SHORT = [
    *("sft.batch_size=4", "sft.accumulate=1", "sft.model=base", "sft.eval_limit=2", "sft.max_tokens=4000"),
    *("reward_model.batch_size=4", "reward_model.accumulate=1", "reward_model.model=base", "reward_model.eval_limit=2"),
    *("reward_model.epochs=0.5", "reward_model.max_new_tokens=60", "reward_model.max_tokens=8000"),
    *("reward_model.held_out=0.2", "annotate.api_key_env=", "annotate.max_tokens=200"),
    *("data.eval_examples=2", "rollout.batch_size=4", "rollout.max_new_tokens=12", "run.steps=2", "run.threads=1"),
    *("run.tracker=none", "critic.max_failure_rate=1.0"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as found:
        yield found


@pytest.mark.parametrize("name", RECIPES)
def test_every_setting_has_a_comment_and_the_commands_stand_at_the_top(name: str) -> None:
    path = ROOT / "recipes" / f"{name}.toml"
    recipe, lines = load_recipe(path), path.read_text("utf-8").splitlines()
    task, data = RECIPES[name]
    commands = [line.removeprefix("#   ") for line in lines if line.startswith("#   text2grad")]
    assert [words.split()[1] for words in commands if "prepare" not in words] == [
        *("sft", "annotate", "reward", "evaluate", "train", "evaluate", "generate"),
    ]
    own = {
        (name, words.split()[1]): settings for words in commands if (settings := re.findall(r"--set '(.+?)'", words))
    }
    assert own == {key: settings for key, settings in OF_COMMANDS.items() if key[0] == name}
    assert f"text2grad feedback prepare {task} " in commands[0]
    assert commands[0].endswith(f"--out data/{data}")
    assert str(recipe.data.train).startswith(f"data/{data}")
    assert (recipe.model.lora_r, recipe.model.prompt_format) == (16, "auto")
    settings = [line for line in lines if " = " in line and not line.startswith(("#", "["))]
    assert [line for line in settings if "  # " not in line] == []
    if name.startswith("paper/"):
        assert (
            *(recipe.optim.lr, recipe.optim.schedule, recipe.rollout.batch_size, recipe.ppo.beta, recipe.ppo.target_kl),
            *(recipe.rollout.max_new_tokens, recipe.reward_model.max_new_tokens, recipe.reward_model.lr),
            recipe.annotate.temperature,
        ) == PUBLISHED[name]
        assert (recipe.model.lora_alpha, recipe.reward_model.epochs) == (32, 3.0)
        assert (recipe.ppo.clip_range, recipe.ppo.value_clip_range, recipe.ppo.vf_coef) == (0.2, 0.2, 0.1)
        assert recipe.optim.value_lr == recipe.optim.lr
        assert (recipe.ppo.gamma, recipe.ppo.lam, recipe.ppo.kl, recipe.ppo.epochs) == (1.0, 0.95, "full", 4)
        assert (recipe.reward.mode, recipe.reward.overlap, recipe.rollout.temperature) == ("contract", "last_wins", 0.6)
        assert recipe.reward_model.lora_dropout == recipe.sft.lora_dropout == 0.05


def test_the_commands_of_the_recipes_measure_the_columns_of_the_papers_tables() -> None:
    tables = json.loads((ROOT / "evidence" / "results" / "paper_numbers.json").read_bytes())["tables"].values()
    measured = {
        table["recipe"]: options(table["command"]) for table in tables if "evaluate policy RUN" in table["command"]
    }
    assert set(measured) == {f"recipes/paper/{name}.toml" for name in ("slf5k", "kodcode", "ultrafeedback")}
    for path, asked in measured.items():
        text = (ROOT / path).read_text("utf-8").replace("\\\n#", "")
        [command] = [line for line in text.splitlines() if line.startswith("#   text2grad evaluate policy ")]
        assert options(command) == asked


def options(command: str) -> set[str]:
    """Return the options of a command that decide about its figures, and the names of its data."""
    return set(re.findall(r"--suite [\w+]+|--bertscore \S+|--judge", command))


@pytest.mark.skipif(not SHARED.exists(), reason=f"no {SHARED}: slices of the paper's data")
@pytest.mark.parametrize("name", ["paper/slf5k", *(pytest.param(n, marks=pytest.mark.slow) for n in list(RECIPES)[1:])])
def test_a_recipe_runs_through_every_phase(
    name: str, tmp_path: Path, server: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task, data = RECIPES[name]
    recipe = str(ROOT / "recipes" / f"{name}.toml")
    untrained(tmp_path / "base", context=8192, family=FAMILIES.get(name, "llama"))
    monkeypatch.chdir(tmp_path)
    source = SHARED / "data" / SLICES[task]
    for directory in {data, Path(str(load_recipe(Path(recipe)).data.train)).parent.name}:
        held_out = ["--held-out", "0.1", "--prompts", "20"]
        assert main(["feedback", "prepare", task, str(source), "--out", f"data/{directory}", *held_out]) == 0

    def run(*words: str) -> int:
        AcceleratorState._reset_state(reset_partial_state=True)  # of a process of its own
        return main([*words])

    sets = [word for one in [*SHORT, f"annotate.base_url={server.url}"] for word in ("--set", one)]
    assert run("sft", recipe, *sets) == 0
    there = tmp_path / "data" / data / "annotate.jsonl"
    own = ["--set", f"data.train={there}"] if there.exists() else []
    assert run("annotate", recipe, *sets, *own, "--limit", "8", "--max-cost", "1") == 0
    own = [word for one in OF_COMMANDS.get((name, "reward"), ()) for word in ("--set", one)]
    assert run("reward", recipe, *sets, *own) == 0
    assert run("evaluate", "critic", recipe, *sets) == 0
    assert run("train", recipe, *sets) in (0, 3)  # 3: a reward model of one step labelled nothing
    out = load_recipe(Path(recipe)).run.out
    assert run("generate", out, "--prompt", "Why?") == 0
    if task == "slf5k":  # the other suites have data of their own
        suite = f"summarization={load_recipe(Path(recipe)).data.held_out}"
        short = ["--limit", "2", "--max-new-tokens", "8"]
        assert run("evaluate", "policy", out, "--suite", suite, *short, "--out", "evaluation") == 0
        assert "rouge1" in (tmp_path / "evaluation" / "evaluation.json").read_text()
    metrics = [json.loads(line) for line in (tmp_path / out / "metrics.jsonl").read_text().splitlines()]
    assert len(metrics) == 2
    assert list((tmp_path / out / "checkpoints").glob("*/policy/adapter_model.safetensors"))
    capsys.readouterr()
    shutil.rmtree(tmp_path)
