"""The tasks of the paper from the installed wheel, without the repository: data to judged policy, tiny.

prepare → sft → annotate → reward with a merged adapter → evaluate critic → train → evaluate policy with a judge
"""

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rouge_score.rouge_scorer import RougeScorer
from safetensors.torch import load_file

from fault_server import Running
from installed_wheel import built_wheel, install
from places import ROOT, SHARED
from served_models import untrained
from text2grad.config import load_recipe
from warm_commands import Warm, serving

DATA = SHARED / "data"
SOURCES = {
    "slf5k": DATA / "slf5k_slice" / "posts_ideal.jsonl",
    "kodcode": DATA / "kodcode" / "kodcode_algorithm.jsonl",
    "ultrafeedback": DATA / "ultrafeedback_binarized" / "train.jsonl",
}
SHORT = [
    *("sft.batch_size=4", "sft.accumulate=1", "sft.model=base", "sft.eval_limit=2", "sft.max_tokens=4000"),
    *("reward_model.batch_size=4", "reward_model.accumulate=1", "reward_model.model=base", "reward_model.eval_limit=2"),
    *(
        "reward_model.epochs=1",
        "reward_model.lr=0.01",
        "reward_model.max_new_tokens=60",
        "reward_model.max_tokens=8000",
    ),
    *("reward_model.held_out=0.2", "annotate.api_key_env=", "annotate.max_tokens=200"),
    *("data.eval_examples=2", "rollout.batch_size=4", "rollout.max_new_tokens=12", "run.steps=2", "run.threads=1"),
    *("run.tracker=none", "critic.max_failure_rate=1.0"),
]

CRITIC = """
from text2grad import Critique, Span

def critic(examples, responses):
    return [Critique("Fine.", (Span(0, len(text), "positive"),) if text else (), 1.0) for text in responses]
"""

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not SHARED.exists(), reason=f"no {SHARED}: slices of the paper's data"),
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """Commands of the wheel in an environment that holds it and its extras alone."""
    pytest.importorskip("hatchling.build", reason="hatchling is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    python = install(built_wheel(folder), folder / "env", "train", "annotate", "eval", "code", "studio")
    with serving(folder / "socket", python=str(python)) as warm:
        yield warm


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def prompts_of(path: Path) -> set[str]:
    return {json.dumps(line["prompt"]) for line in lines_of(path)}


def judge_of(path: Path, server: Running) -> Path:
    path.write_text(f'[annotate]\nmodel = "judge"\nbase_url = "{server.url}"\napi_key_env = ""\n')
    return path


@pytest.mark.timeout(600)
@pytest.mark.parametrize("task", SOURCES)
def test_a_task_of_the_paper_runs_from_the_installed_wheel(
    task: str, installed: Warm, server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = ROOT / "recipes" / "paper" / f"{task}.toml"
    untrained(tmp_path / "base", context=8192)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    sets = [word for one in [*SHORT, f"annotate.base_url={server.url}"] for word in ("--set", one)]

    def text2grad(command: str, *words: object) -> None:
        installed.finish("-m", "text2grad.cli", command, *words)

    probe = tmp_path / "where.py"
    probe.write_text(
        "import importlib.util, text2grad\n"
        "assert 'site-packages' in text2grad.__file__\n"
        "assert importlib.util.find_spec('evidence') is None\n"
    )
    installed.finish("python", probe)

    for_rl = tmp_path / str(load_recipe(recipe).data.train)
    for folder in {tmp_path / "data" / task, for_rl.parent}:
        text2grad("feedback", "prepare", task, SOURCES[task], "--out", folder, "--held-out", "0.1", "--prompts", "20")
    learned, held_out = (prompts_of(path) for path in (for_rl, for_rl.with_name("held_out.jsonl")))
    assert len(learned) + len(held_out) <= 20
    assert learned.isdisjoint(held_out)

    text2grad("sft", recipe, *sets)
    own = tmp_path / "data" / task / "annotate.jsonl"
    more = ["--set", f"data.train={own}"] if own.exists() else []
    text2grad("annotate", recipe, *sets, *more, "--limit", "8", "--max-cost", "1")
    runs = tmp_path / "runs" / "paper" / task
    (annotations,) = runs.rglob("annotations.jsonl")
    assert len(lines_of(annotations)) == 8
    assert {one["critique"]["status"] for one in lines_of(annotations)} <= {"ok", "repaired"}

    text2grad("reward", recipe, *sets)
    (merged,) = (path for path in runs.rglob("merged") if "sft" not in path.parts)
    before, after = (load_file(path / "model.safetensors") for path in (tmp_path / "base", merged))
    moved = {
        name.split(".")[-2] for name, weight in after.items() if not torch.equal(weight, before[name].to(weight.dtype))
    }
    assert moved == set(load_recipe(recipe).model.lora_targets)  # the adapter's matrices and no others
    text2grad("evaluate", "critic", recipe, *sets)
    (measured,) = runs.rglob("evaluation.json")
    assert json.loads(measured.read_bytes())["critic"] == str(merged.with_name("model").relative_to(tmp_path))

    train = installed.start("-m", "text2grad.cli", "train", recipe, *sets)
    assert train.wait(240) in (0, 3)  # 3: a reward model of two steps labelled nothing
    (metrics,) = runs.rglob("policy/metrics.jsonl")
    assert [line["step"] for line in lines_of(metrics)] == [0, 1]
    assert lines_of(metrics)[0]["kl/per_token"] == pytest.approx(0.0, abs=1e-6)  # the policy begins as its reference

    (tmp_path / "words.py").write_text(CRITIC)
    own = ["--critic", "words:critic", "--set", "critic.model=", "--out", "runs/own"]
    text2grad("train", recipe, *sets, *own)
    steps = lines_of(tmp_path / "runs" / "own" / "metrics.jsonl")
    assert all(step["delta/labelled_share"] == 1.0 and step["reward/nonzero_share"] == 1.0 for step in steps)
    adapters = [
        load_file(path) for path in sorted((tmp_path / "runs" / "own").rglob("policy/adapter_model.safetensors"))
    ]
    assert any(weight.abs().sum() > 0 for name, weight in adapters[-1].items() if "lora_B" in name)  # it learned

    policy, options = metrics.parent, ["--limit", "2", "--max-new-tokens", "8", "--out", "evaluation"]
    if task == "slf5k":
        references = for_rl.with_name("held_out.jsonl")
        text2grad("evaluate", "policy", policy, "--suite", f"summarization={references}", *options)
    elif task == "kodcode":
        problems = tmp_path / "HumanEval.jsonl"
        problems.write_bytes(gzip.decompress((DATA / "humaneval" / "HumanEval.jsonl.gz").read_bytes()))
        text2grad("evaluate", "policy", policy, "--suite", f"humaneval={problems}", "--accept-weaker", *options)
    else:
        questions = tmp_path / "mt_bench"
        shutil.copytree(DATA / "mt_bench", questions, copy_function=shutil.copyfile)
        judge = judge_of(tmp_path / "judge.toml", server)
        chat = ["--judge", judge, "--set", "data.too_long=skip"]
        text2grad("evaluate", "policy", policy, "--suite", f"mt_bench={questions}", *chat, *options)
    suites = json.loads((tmp_path / "evaluation" / "evaluation.json").read_bytes())["suites"]
    [(suite, result)] = suites.items()
    figures = {name: figure["value"] for name, figure in result["models"][task].items()}
    if task == "ultrafeedback":
        assert (figures["score"], figures["unrated"]) == (5.0, 0.0)  # the rating that the server gives
        return
    texts = [line["text"] for line in lines_of(tmp_path / "evaluation" / "answers" / f"{suite}.{task}.jsonl")]
    asked = lines_of(references if task == "slf5k" else problems)[:2]
    right = [line["reference" if task == "slf5k" else "canonical_solution"] for line in asked]
    if task == "slf5k":
        scorer = RougeScorer(["rouge1"], use_stemmer=True)
        rouge = [scorer.score(*pair)["rouge1"].fmeasure for pair in zip(right, texts, strict=True)]
        assert figures["rouge1"] == pytest.approx(sum(rouge) / 2)
    else:
        assert (figures["pass@1"], figures["cut"]) == (0.0, 1.0)  # eight tokens of a random model
    assert all(len(answer) < len(better) for answer, better in zip(texts, right, strict=True))
    for name, responses in (("policy", texts), ("references", right)):
        records = [{"prompt": line["prompt"], "response": text} for line, text in zip(asked, responses, strict=True)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    judge = judge_of(tmp_path / "judge.toml", server)
    pair = (tmp_path / "policy.jsonl", tmp_path / "references.jsonl")
    text2grad("evaluate", "pairs", *pair, "--judge", judge, "--out", "judged")
    judged = json.loads((tmp_path / "judged" / "win_rate.json").read_bytes())
    assert (judged["wins"], judged["ties"], judged["losses"]) == (0, 0, 2)  # the server prefers the longer text
