"""Makes the files that lie beside it, with the version that the test of old files must be able to read.

Run it with text2grad as of commit 171cec9 (0.1.0, before the package was rearranged) and with no later one: what it
makes shall be what that version wrote, and what that version computes from it.

    PYTHONPATH=$PWD/src:$PWD/tests OMP_NUM_THREADS=1 python tests/data/v0_1_0/make.py

It works in a new directory, for which the two of PYTHONPATH must be absolute, and copies the result here. All paths in
the files are relative, so that a copy of this directory is complete wherever it lies, as long as it is the working
directory.

    policy/ reward_models/          models of width 16, the second trained for a moment, of every kind
    learned.jsonl                   what they learned from
    run/ run_lora/ reward_run/      runs that were stopped in the middle; run.toml, run_lora.toml, reward.toml
    finished/                       what these came to when this version went on with copies of them
    annotations.jsonl cached_answers.jsonl dataset/    critiques of every status, in every form of file
    annotate/ win_rate/ server.sqlite                  answers that a server gave, and what was made of them
    evaluation/ evaluation_model/ aligned/ study/      what the other commands wrote
    quickstart/                     a finished one, its weights left out
    expected.json                   what else this version said
"""

import asyncio
import contextlib
import csv
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
import transformers
from old_judges import ASKED, annotator
from text2grad.adapters import with_lora
from text2grad.annotating.reward_server import ServerRewardModel
from text2grad.annotating.store import Answer, Question, Store
from text2grad.annotations import Annotation, annotate, read_annotations, write_annotations
from text2grad.critique_writing import SYMBOLS, critique_prompt, critique_target
from text2grad.examples import read_examples
from text2grad.launch import prepare_policy
from text2grad.learned import load_learned, shares_base
from text2grad.pretrained import load_policy, load_tokenizer
from text2grad.process_reward_model import ProcessRewardModel, train_process_reward_model
from text2grad.remembered import RememberingCritic
from text2grad.reward_head import ScalarRewardModel, train_reward_head
from text2grad.reward_run import RewardRun
from text2grad.reward_training import train_reward_model
from text2grad.runlog import write_records
from text2grad.sft import FineTuning, fine_tune

from fault_server import Running, running
from text2grad import Critique, Example, GenerativeRewardModel, LLMCritic, Span, Text2GradTrainer, load_recipe
from text2grad.cli import main
from text2grad.critics import load_critic
from text2grad.tasks.tiny import tiny_llama, word_tokenizer

HERE = Path(__file__).resolve().parent
COPIED = ("old_judges.py", "run.toml", "run_lora.toml", "reward.toml", "annotate.toml")
COMMIT = "171cec9"

WORDS = ["red", "blue", "green", "one", "two", "three", "cat", "dog", "bird", "runs", "sleeps", "eats"]
PROMPTS = [f"{a} {b}" for a in WORDS for b in WORDS]
ASKED_ABOUT = [["red cat", " red one cat"], ["two dog", " two dog blue"], ["green runs", " green bird red three"]]
ASKED_STEPS = [["red cat", " red cat\n one two\n"], ["two dog", " dog\n green"], ["eats", " three\n\n bird one\n red"]]
VARIANTS = {
    "qa": [],
    "qa_without_reasoning": ["annotate.reasoning=false"],
    "summarization": ["annotate.template=summarization"],
    "code": ["annotate.template=code"],
}
QUICKSTART = {
    **{"sft.steps": 2, "sft.after_reward_model": 2, "sft.layers": 1, "reward_model.steps": 2},
    **{"reward_model.responses": 8, "run.steps": 2, "refresh.steps": "[1]", "refresh.train_steps": 1},
    **{"data.eval_examples": 3, "data.eval_every": 1, "data.examples": 64, "rollout.batch_size": 4},
    **{"rollout.max_new_tokens": 12, "refresh.audit": 2, "reward_model.max_new_tokens": 120},
    "critic.max_failure_rate": 1.0,
}
KEPT_OF_QUICKSTART = ("run.json", "metrics.jsonl", "results.json", "evaluations", "rollouts")

# Critiques of every status, with everything that a file of them must carry.
SAID = [
    Annotation("red cat", " red one cat", Critique("Colours.", (Span(1, 4, "positive"), Span(5, 8, "negative")))),
    Annotation(
        "two dog",
        " two dog",
        Critique('"two" is poor, \\ and "dog" {"is": "good"}.', (Span(1, 4, "negative"), Span(5, 8, "positive")), 0.5),
    ),
    Annotation("blue", " blue bird", Critique("Quoted by heart.", (), -1.25, "repaired", ("blue birds", 'a "bird"'))),
    Annotation("cat", " cat", Critique("unreadable: once upon a time", (), None, "unparsable")),
    Annotation("dog", " dog", Critique("", (), None, "timed_out")),
    Annotation(
        "naïve — 日本語",
        " e\u0301té 😀 日本 red\nÄ",
        Critique(
            "“Été” ist schön: 😀\u2028\t\x7f", (Span(1, 5, "positive"), Span(6, 7, "negative"), Span(8, 10, "positive"))
        ),
    ),
    Annotation("", "", Critique("Nothing was said.", (), -2.0)),
    Annotation(
        "eats",
        " red red red",
        Critique(
            "One place of three, and one of no length.",
            (Span(4, 8, "negative"), Span(5, 8, "positive"), Span(9, 9, "negative")),
            1e-3,
        ),
    ),
    Annotation("runs", " unheard of", Critique("No token says it.", (Span(1, 8, "negative"),), 3.0)),
]


def make() -> None:
    """Make everything in the working directory."""
    for name in COPIED:
        shutil.copy(HERE / name, name)
    expected: dict[str, Any] = {"commit": COMMIT, "machine": machine()}
    write_records(Path("examples.jsonl"), [{"prompt": prompt} for prompt in PROMPTS])
    make_models()
    expected["reward_models"] = greedy()
    stop("run.toml")
    stop("run_lora.toml")
    stop_reward_run()
    for path in [*Path("reward_models").rglob("*"), *Path("policy").rglob("*")]:
        os.utime(path, (0, 0))  # the times are in the identity of an evaluated model
    write_annotations(Path("annotations.jsonl"), SAID)
    expected["annotations"] = {name: parsed(Path(name)) for name in ("annotations.jsonl", "learned.jsonl")}
    expected["remembered"] = remember()
    expected |= served()
    commands()
    run("import", "table", "dataset/data/train.parquet", "--out", "imported.jsonl", "--skip-bad")
    expected["imported"] = [json.loads(line) for line in Path("imported.jsonl").read_bytes().splitlines()]
    Path("imported.jsonl").unlink()
    quickstart()
    expected["annotations"]["quickstart"] = parsed(Path("quickstart/summarization/seed-0/annotations.jsonl"))
    expected["recipes"] = {
        name: json.loads(Path(name, "run.json").read_bytes())["recipe"] for name in ("run", "run_lora", "reward_run")
    }
    expected |= finish()
    Path("expected.json").write_text(json.dumps(expected, indent=1) + "\n", "utf-8")


def machine() -> dict[str, Any]:
    """Return what the last bits of a sum depend on."""
    first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "processor": [
            line for line in first.splitlines() if line.startswith(("vendor", "cpu family", "model", "step"))
        ],
    }


def plain(critique: Critique) -> dict[str, Any]:
    """Return a critique as JSON data."""
    return {
        "feedback": critique.feedback,
        "spans": [[span.start, span.end, span.label] for span in critique.spans],
        "outcome": critique.outcome,
        "status": critique.status,
        "unmatched": list(critique.unmatched),
    }


def parsed(path: Path) -> list[list[Any]]:
    """Return the annotations of a file as JSON data."""
    return [[one.prompt, one.response, plain(one.critique)] for one in read_annotations(path)]


def make_models() -> None:
    """Make the policy, what is learned from, and one reward model of each kind."""
    rng = Random(0)
    examples = [Example(rng.choice(PROMPTS)) for _ in range(48)]
    responses = ["".join(f" {rng.choice(WORDS)}" for _ in range(rng.randint(1, 4))) for _ in examples]
    annotations = annotate(annotator, examples, responses)
    write_annotations(Path("learned.jsonl"), annotations)
    written = [
        critique_target(one.critique, one.response, form=form)
        for one in annotations
        for form in ("spans", "dense", "scores")
    ]
    said = [critique_prompt(Example(one.prompt), one.response) for one in [*annotations, *SAID[:-1]]]
    tokenizer = word_tokenizer([*said, *written, *WORDS, *(f" {word}" for word in WORDS), " "], SYMBOLS)

    def fresh(seed: int) -> Any:
        return tiny_llama(tokenizer, seed=seed, width=16, layers=1, context=160)

    how = FineTuning(steps=150, batch_size=16, learning_rate=1e-2)
    long = FineTuning(steps=800, batch_size=16, learning_rate=1e-2)
    policy = fine_tune(fresh(1), tokenizer, examples, responses, FineTuning(40, batch_size=16, learning_rate=1e-2))
    policy.save_pretrained("policy")
    tokenizer.save_pretrained("policy")
    home = Path("reward_models")
    learned, _ = train_reward_model(fresh(5), tokenizer, annotations, how, max_new_tokens=32)
    learned.save(home / "generative")
    torch.manual_seed(0)
    writer = with_lora(load_policy("policy"), r=4, alpha=16, targets=["q_proj", "v_proj", "down_proj"])
    learned, _ = train_reward_model(writer, tokenizer, annotations, long, max_new_tokens=32)
    learned.save(home / "generative_lora")
    for form in ("dense", "scores"):
        learned, _ = train_reward_model(fresh(6), tokenizer, annotations, long, max_new_tokens=60, form=form)
        learned.save(home / form)
    rewards = [sum(1.0 if s.label == "positive" else -1.0 for s in one.critique.spans) for one in annotations]
    train_reward_head("policy", tokenizer, annotations, rewards, how)[0].save(home / "scalar")
    lined = [one.response.replace(" ", "\n ", 3).replace("\n", "", 1) for one in annotations]
    stepped = annotate(annotator, examples, lined)
    train_process_reward_model("policy", tokenizer, stepped, how, rule="lines")[0].save(home / "process")


def greedy() -> dict[str, Any]:
    """Return what each reward model says of three responses."""
    home = Path("reward_models")
    models: dict[str, Any] = {
        name: GenerativeRewardModel.load(home / name) for name in ("generative", "generative_lora", "dense", "scores")
    }
    models |= {"scalar": ScalarRewardModel.load(home / "scalar"), "process": ProcessRewardModel.load(home / "process")}
    found: dict[str, Any] = {}
    known = [[one.prompt, one.response] for one in read_annotations("learned.jsonl")[:3]]
    for name, model in models.items():
        pairs = ASKED_STEPS if name == "process" else [*ASKED_ABOUT, *known]
        examples, responses = [Example(prompt) for prompt, _ in pairs], [response for _, response in pairs]
        found[name] = {"asked": pairs, "critiques": [plain(one) for one in model(examples, responses)]}
        if isinstance(model, GenerativeRewardModel):
            found[name]["written"] = model.write(examples, responses)
    voting = GenerativeRewardModel.load(home / "generative", votes=5, agreement=0.4, seed=7)
    examples, responses = [Example(prompt) for prompt, _ in ASKED_ABOUT], [response for _, response in ASKED_ABOUT]
    found["generative"]["votes"] = [plain(one) for one in voting(examples, responses)]
    return found


class Stopped(BaseException):
    """As sudden as SIGKILL: nothing catches it."""


def stop(name: str) -> None:
    """Begin a run and stop it after step 3, one step after its checkpoint."""
    recipe = load_recipe(name)
    torch.set_num_threads(1)
    torch.manual_seed(recipe.run.seed)
    tokenizer, shared = load_tokenizer(recipe.model.path), shares_base(recipe)
    policy = prepare_policy(recipe.model.path, recipe)
    critic = load_learned(recipe, policy=policy if shared else None)
    judges = load_critic(recipe.refresh.annotator)
    examples = read_examples(str(recipe.data.train))
    trainer = Text2GradTrainer(policy, critic, tokenizer, examples, recipe, annotator=judges)

    def after_step(one: Text2GradTrainer) -> None:
        if one.step == 3:
            raise Stopped

    with contextlib.suppress(Stopped):
        trainer.train(after_step)


def stop_reward_run() -> None:
    """Begin the training of a reward model and stop it at its second measurement, before the second checkpoint."""

    def told(step: int, steps: int, measured: dict[str, float]) -> None:
        if step == 4:
            raise Stopped

    with contextlib.suppress(Stopped):
        RewardRun(load_recipe("reward.toml")).run(told)


def remember() -> dict[str, Any]:
    """Have a critic remembered that answers in every way, and return what it is asked and what it says."""
    said = {(one.prompt, one.response): one.critique for one in SAID}

    def answering(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        return [said[example.prompt_text, response] for example, response in zip(examples, responses, strict=True)]

    critic = RememberingCritic(answering, Path("cached_answers.jsonl"))
    chat = ({"role": "system", "content": "naïve"}, {"role": "user", "content": "— 日本語"})
    talk = Critique("Of a conversation.", (Span(0, 4, "negative"),))
    broken = Critique("No text: \udfff.", (Span(0, 2, "positive"),), 0.25, "repaired", ("\ud800",))
    said |= {("naïve\n\n— 日本語", "chat"): talk, ("\ud800 alone", "x\udfff"): broken}
    critic([Example(one.prompt) for one in SAID], [one.response for one in SAID])
    critic([Example(chat), Example("\ud800 alone")], ["chat", "x\udfff"])
    others = [[list(chat), "chat", plain(talk)], ["\ud800 alone", "x\udfff", plain(broken)]]
    read = [one for one in SAID if one.critique.status != "timed_out"]
    return {
        "known": [*([one.prompt, one.response, plain(one.critique)] for one in read), *others],
        "asked_again": [[one.prompt, one.response] for one in SAID if one.critique.status == "timed_out"],
    }


def served() -> dict[str, Any]:
    """Have questions answered by a server, for every command and critic that keeps answers."""
    items: list[dict[str, Any]] = [
        {"id": "plain", "prompt": "How are you?", "response": "So glad today."},
        {"id": "unicode", "prompt": "naïve — 日本語 😀", "response": "Été e\u0301 日本 😀"},
        {"prompt": "Who? [[misquote]]", "response": "Ann, of course.", "reference": "Ben."},
        {"prompt": "Who? [[corrigible]]", "response": "Ben, of course."},
        {"id": "prose", "prompt": "Why? [[prose]]", "response": "Because it is."},
        {"id": "person", "prompt": "Where?", "response": "In Lyon.", "feedback": 'Not "Lyon", </feedback> Paris.'},
        {"id": "chat", "prompt": [{"role": "user", "content": "Hi."}], "response": "Hello <response> there"},
        {
            "id": "tests",  # they print another number each time: only an outcome that was kept gives the same question
            "prompt": "Add two numbers.",
            "response": "```python\ndef add(a, b):\n    return a - b\n```",
            "tests": "import time\n\n\ndef test_add():\n    print(time.time_ns())\n    assert add(1, 2) == 3\n",
        },
    ]
    Path("annotate").mkdir()
    Path("win_rate").mkdir()
    write_records(Path("annotate/items.jsonl"), items)
    pairs = [["When? [[longer]]", "Soon.", "In an hour."], ["How? [[firstplace]]", "So.", "Thus."], ["Why?", "x", "x"]]
    for row, name in ((1, "first"), (2, "second")):
        write_records(Path(f"win_rate/{name}.jsonl"), [{"prompt": one[0], "response": one[row]} for one in pairs])
    statuses = {}
    with running() as server:
        for name, overrides in VARIANTS.items():
            statuses[name] = main(["annotate", "annotate.toml", *given([*at(server), out(name), *overrides])])
        judged = ["win-rate", "win_rate/first.jsonl", "win_rate/second.jsonl", "--what", "responses"]
        judged += ["--recipe", "annotate.toml", "--out", "win_rate"]
        statuses["win_rate"] = main([*judged, *given(at(server))])
        settings: dict[str, Any] = {"base_url": server.url, "api_key_env": "", "max_tokens": 200, "retries": 0}
        examples, responses = [Example("red cat"), Example("日本")], [" red one cat", " Été 😀"]
        writer = ServerRewardModel("reward-model-1", store="server.sqlite", **settings)
        written = [plain(one) for one in writer(examples, responses)]
        chat = ServerRewardModel("reward-model-1", store="server.sqlite", prompt_format="chat", words=False, **settings)
        written += [plain(one) for one in chat(examples, responses)]
        settings |= {"template": "qa", "temperature": 0.25, "reask": 1}
        critic = LLMCritic("judge-2", store="server.sqlite", **settings)
        said = [plain(one) for one in critic(examples, responses)]
    return {
        "statuses": statuses,
        "quickstart": given([f"{name}={value}" for name, value in QUICKSTART.items()]),
        "variants": VARIANTS,
        "server": {"asked": [["red cat", " red one cat"], ["日本", " Été 😀"]], "written": written, "said": said},
        "questions": questions(),
    }


def at(server: Running) -> list[str]:
    """Return the override that names a server."""
    return [f"annotate.base_url={server.url}"]


def out(name: str) -> str:
    """Return the override that names the directory of a variant."""
    return f"annotate.out=annotate/{name}"


def given(overrides: Sequence[str]) -> list[str]:
    """Return overrides as the command line takes them."""
    return [part for override in overrides for part in ("--set", override)]


def questions() -> list[dict[str, Any]]:
    """Keep answers to questions that are made by hand, and return the questions, their hashes and the answers."""
    chat = ({"role": "user", "content": "Good? ü 😀"}, {"role": "assistant", "content": "Yes."})
    made = [
        (Question("m", chat, {"temperature": 0.3, "max_tokens": 5}), Answer("Yes: ü \0 😀", "stop", 7, None)),
        (Question("m", chat, {"temperature": 0.3, "max_tokens": 5}, 1), Answer("", "refused", None, None)),
        (Question("m", "Go on:", {"temperature": None, "schema": {"b": [1], "a": "é"}}), Answer("so", "length", 1, 2)),
    ]

    async def put(store: Store) -> None:
        for question, answer in made:
            await store.put(question, answer)

    with Store(Path("server.sqlite")) as store:
        asyncio.run(put(store))
    return [
        {
            "model": question.model,
            "messages": question.messages if isinstance(question.messages, str) else list(question.messages),
            "parameters": question.parameters,
            "sample": question.sample,
            "key": question.key,
            "answer": [answer.text, answer.finish, answer.prompt_tokens, answer.completion_tokens],
        }
        for question, answer in made
    ]


def commands() -> None:
    """Run the commands that read annotations and models."""
    run("align", "annotations.jsonl", "--tokenizer", "policy", "--out", "aligned/annotations", status=3)
    run("align", "run/rollouts/00000.jsonl", "--tokenizer", "policy", "--out", "aligned/rollouts")
    run("export", "annotations.jsonl", "--out", "dataset", "--name", "me/old")
    run("evaluate-reward", "learned.jsonl", "--critic", "old_judges:annotator", "--out", "evaluation", "--draws", "50")
    model = ("--model", "reward_models/generative", "--limit", "12", "--draws", "50")
    run("evaluate-reward", "learned.jsonl", *model, "--out", "evaluation_model")
    run("study", "export", "evaluation/predictions.jsonl", "--items", "5", "--out", "study")
    rng, sheet = Random(1), list(csv.reader(Path("study/sheet.csv").read_text("utf-8-sig").splitlines(keepends=True)))
    for rater in ("ann", "ben"):
        with Path(f"study/{rater}.csv").open("w", encoding="utf-8-sig", newline="") as file:
            filled = [[*row[:-3], rng.choice(["yes", "no"]), "yes", ""] for row in sheet[1:]]
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows([sheet[0], *filled])
    run("study", "import", "study/ann.csv", "study/ben.csv", "--out", "study/agreement.json")
    for path in [*Path().rglob("*.png"), *Path().rglob("*.html"), Path("study/sheet.csv")]:
        path.unlink()


def run(*arguments: str, status: int = 0) -> str:
    """Run a command of the command line and return what it says."""
    with said() as text:
        assert main(list(arguments)) == status, arguments
    return text()


@contextlib.contextmanager
def said() -> Iterator[Callable[[], str]]:
    """Catch what is printed."""
    with contextlib.redirect_stdout(io.StringIO()) as file:
        yield file.getvalue


def quickstart() -> None:
    """Run a quickstart of a few steps and keep what its results are made of, without weights."""
    made, kept = Path("whole_quickstart"), Path("quickstart")
    overrides = given([f"{name}={value}" for name, value in QUICKSTART.items()])
    assert main(["quickstart", "--out", str(made), "--methods", "scalar_ppo", *overrides]) == 0
    seed, home = made / "summarization" / "seed-0", kept / "summarization" / "seed-0"
    for name in ("sft", "reward_model", "start"):
        (home / name).mkdir(parents=True)
        shutil.copy(seed / name / "config.json", home / name)
    for name in ("annotations.jsonl", "sft_evaluation.json", "phases.json"):
        shutil.copy(seed / name, home)
    for method in ("text2grad", "scalar_ppo"):
        for name in KEPT_OF_QUICKSTART:
            copy = shutil.copytree if (seed / method / name).is_dir() else shutil.copy
            (home / method).mkdir(exist_ok=True)
            copy(seed / method / name, home / method / name)
    shutil.copy(made / "results.json", kept)
    shutil.rmtree(made)


def finish() -> dict[str, Any]:
    """Go on with copies of the runs, keep what they come to, and return what is said on the way."""
    home, asked, talks = Path.cwd(), {}, {}
    for name in ("run", "run_lora"):
        talks[name] = run("generate", name, "--prompt", "red cat", "--prompt", "two dog", "--seed", "1")
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(home, copy, dirs_exist_ok=True)
        os.chdir(copy)
        for name in ("run", "run_lora"):
            ASKED.clear()
            run("train", f"{name}.toml", "--resume")
            asked[name] = list(ASKED)
            keep = home / "finished" / name
            keep.mkdir(parents=True)
            shutil.copy(Path(name, "metrics.jsonl"), keep)
            shutil.copy(Path(name, "rollouts", "00000.jsonl"), keep / "rollouts.jsonl")
            shutil.copy(Path(name, "checkpoints", "step-000004", "trainable.safetensors"), keep / "policy.safetensors")
            weights = "adapter_model" if name == "run_lora" else "model"
            shutil.copy(Path(name, "critic", "step-000004", f"{weights}.safetensors"), keep / "critic.safetensors")
        run("reward", "reward.toml", "--resume")
        keep = home / "finished" / "reward_run"
        keep.mkdir(parents=True)
        for file in ("metrics.jsonl", "results.json", "model/model.safetensors"):
            shutil.copy(Path("reward_run", file), keep)
        critic = GenerativeRewardModel.load("reward_run/model")
        examples = [Example(prompt) for prompt, _ in ASKED_ABOUT]
        written = critic.write(examples, [response for _, response in ASKED_ABOUT])
        os.chdir(home)
    hashes = {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(Path("finished").rglob("*.safetensors"))
    }
    return {"asked_on_resume": asked, "talks": talks, "sha256": hashes, "reward_run_writes": written}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as work:
        os.environ["COLUMNS"] = "80"
        os.chdir(work)
        make()
        for old in HERE.iterdir():
            if old.is_dir():
                shutil.rmtree(old)
        shutil.copytree(work, HERE, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".lock", "__pycache__"))
