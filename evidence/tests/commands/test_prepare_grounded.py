"""`python -m evidence prepare-grounded`, and a run of the task on the files that it writes."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from evidence.__main__ import main
from evidence.commands.prepare_grounded import answer_start
from evidence.tasks.grounded.critic import GroundedCritic
from text2grad.align import encode
from text2grad.config.recipe import load_recipe
from text2grad.errors import ConfigError
from text2grad.feedback.records import read_annotations
from text2grad.models import load_tokenizer
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Example
from tokenizers_made_here import FAMILIES, made

NAMES = ("Ana", "Bo", "Cy", "Dan", "Eve", "Flo", "Gus", "Hal")
TOWNS = ("Lyon", "Oslo", "Rome", "Bonn")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of passages, and a tiny model that knows its words."""
    path = tmp_path_factory.mktemp("grounded")
    records = [
        {
            "context": f"In 19{n}{m} {name} came to {town}. Nobody else did.",
            "question": f"Where is {name}?",
            "answer": town,
        }
        for n, name in enumerate(NAMES)
        for m, town in enumerate(TOWNS)
    ]
    records.append({"context": "", "question": "Why?", "answer": ""})
    (path / "table.jsonl").write_text("\n".join(map(json.dumps, records)), "utf-8")
    texts = [" ".join(map(str, record.values())) for record in records]
    prompt = "Answer the question in one or two sentences. Use only what the passage says.\n\nPassage: Question:"
    tokenizer = word_tokenizer([*texts, *(f" {text}" for text in texts), prompt])
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tokenizer.save_pretrained(path / "model")
    tiny_llama(tokenizer, seed=0, width=32, layers=1).save_pretrained(path / "model")
    return path


def prepare(place: Path, out: Path, *more: str) -> int:
    table, model = str(place / "table.jsonl"), str(place / "model")
    columns = ["--column", "passage=context", "--out", str(out)]
    return main(["prepare-grounded", table, "--tokenizer", model, *columns, *more])


def test_files_hold_cut_passages_and_the_counts_are_printed(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(place, tmp_path / "data", "--passage-tokens", "8") == 0
    lines = [json.loads(line) for line in (tmp_path / "data" / "train.jsonl").read_text("utf-8").splitlines()]
    held_out = [json.loads(line) for line in (tmp_path / "data" / "held_out.jsonl").read_text("utf-8").splitlines()]
    assert (len(lines), len(held_out)) == (24, 8)
    assert all(line["meta"]["passage"].endswith(f"came to {line['reference']}.") for line in lines)
    said = " ".join(capsys.readouterr().out.split())
    counts = "prompts to train on 24 prompts held out 8 right answers 48 altered answers 72 passages cut 32"
    assert f"{counts} left out 1 records without a passage" in said
    right = [json.loads(line)["meta"] for line in (tmp_path / "data" / "right_answers.jsonl").read_text().splitlines()]
    assert [one["passage"] for one in right[::2]] == [line["meta"]["passage"] for line in lines]
    # the passage has one sentence: the closest and the first are the same
    assert {(one["id"].split()[-1], one["response"] == one["passage"]) for one in right} == {
        ("gold", False),
        ("closest", True),
    }
    before = (tmp_path / "data" / "train.jsonl").read_bytes()
    assert prepare(place, tmp_path / "data") == 2  # would be overwritten
    assert (tmp_path / "data" / "train.jsonl").read_bytes() == before
    assert prepare(place, tmp_path / "data", "--passage-tokens", "8", "--force") == 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--held-out", "1"), "--held-out must lie between 0 and 1, got 1"),
        (("--passage-tokens", "2"), "0 prompts to train on and 0 held out are left (1 records without a passage, 32 "),
        (("--column", "context"), "--column is given as OURS=THEIRS, got 'context'"),
        (("--format", "qa_feedback"), "column has no value 'passage'"),
    ],
)
def test_options_that_cannot_be_used_are_refused_and_nothing_is_written(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], words: str
) -> None:
    assert prepare(place, tmp_path / "data", *more) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("key", ["passage", "question", "answer"])
def test_a_text_that_no_tokenizer_can_encode_is_refused_by_its_line(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    lines = [{"passage": f"It is {n}.", "question": f"Is it {n}?", "answer": "Yes."} for n in range(8)]
    lines[4][key] += "\ud83d"
    (tmp_path / "table.jsonl").write_text("\n".join(map(json.dumps, lines)))
    command = ["prepare-grounded", str(tmp_path / "table.jsonl"), "--tokenizer", str(place / "model")]
    assert main([*command, "--out", str(tmp_path / "out")]) == 2
    assert f"table.jsonl:5: \"{key}\" holds '\\ud83d', half of a surrogate pair" in capsys.readouterr().err


RECIPE = """
[data]
task = "grounded"
train = "{data}/train.jsonl"
held_out = "{data}/held_out.jsonl"
eval_examples = 6
[model]
path = "{model}"
value = "none"
lora_r = 2
[rollout]
batch_size = 8
group_size = 4
max_new_tokens = 10
[ppo]
baseline = "group"
[optim]
lr = 1e-2
[run]
steps = 2
threads = 1
tracker = "none"
out = "{out}"
"""


def test_the_task_trains_with_its_critic_and_is_measured_by_its_metric(place: Path, tmp_path: Path) -> None:
    prepare(place, tmp_path / "data")
    recipe = tmp_path / "my.toml"
    recipe.write_text(RECIPE.format(data=tmp_path / "data", model=place / "model", out=tmp_path / "run"), "utf-8")
    assert main(["train", str(recipe)]) == 0
    first, last = (json.loads((tmp_path / "run" / "evaluations" / f"{n:06d}.json").read_bytes()) for n in (0, 2))
    assert first["metric"] == "unsupported_share"
    assert len(first["responses"]) == 6
    metrics = first["metrics"]
    assert {"unsupported_share", "recall", "mean_words", "distinct_2", "reference_perplexity"} <= metrics.keys()
    shares = [row["metrics"]["unsupported_share"] for row in first["responses"]]
    assert max(shares) > 0.0
    tokens = sum(row["tokens"] for row in first["responses"])
    assert metrics["reference_perplexity"] == pytest.approx(
        math.exp(-sum(row["logp_ref"] for row in first["responses"]) / tokens)
    )
    # kl = log π − log π_ref, summed: before training the two are equal, afterwards they are not
    assert all(row["kl"] == pytest.approx(0.0, abs=1e-4) for row in first["responses"])
    assert any(abs(row["kl"]) > 1e-3 for row in last["responses"])
    asked = {row["prompt"] for row in first["responses"]}
    held_out = [json.loads(line) for line in (tmp_path / "data" / "held_out.jsonl").read_text("utf-8").splitlines()]
    assert asked <= {line["prompt"][0]["content"] for line in held_out}


def test_its_program_annotates_samples_for_a_reward_model(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(place, tmp_path / "data")
    recipe = tmp_path / "my.toml"
    recipe.write_text(RECIPE.format(data=tmp_path / "data", model=place / "model", out=tmp_path / "run"), "utf-8")
    out = tmp_path / "annotations"
    command = ["annotate", str(recipe), "--out", str(out), "--own-critic", "--limit", "5"]
    assert main([*command, "--samples", "2"]) == 0
    annotations = read_annotations(out / "annotations.jsonl")
    assert len(annotations) == 10
    assert [one.prompt for one in annotations[:5]] == [one.prompt for one in annotations[5:]]
    assert len({one.response for one in annotations}) > 5  # two responses to each prompt
    passages = {line["prompt"][0]["content"]: line["meta"] for line in read_lines(tmp_path / "data" / "train.jsonl")}
    for one in annotations:
        example = Example(one.prompt, meta=passages[one.prompt])
        assert GroundedCritic()([example], [one.response])[0].spans == one.critique.spans
    assert sum(len(one.critique.spans) for one in annotations) > 0
    before = (out / "responses.jsonl").read_bytes()
    assert main([*command, "--samples", "3"]) == 0  # goes on from the responses of before
    assert (out / "responses.jsonl").read_bytes().startswith(before)
    assert len(read_annotations(out / "annotations.jsonl")) == 15
    for more, words in (
        (
            ("--max-cost", "1", "--set", "annotate.prices=[1.0, 0.0]"),
            "belongs to a server; leave it out with --own-critic",
        ),
        (("--set", "data.task=''"), "the recipe names no critic in Python"),
    ):
        capsys.readouterr()
        assert main([*command, *more]) == 2
        assert words in " ".join(capsys.readouterr().err.split())
    assert main(["annotate", str(recipe), "--samples", "2"]) == 2
    assert "--samples belongs to --own-critic" in capsys.readouterr().err


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_the_task_needs_a_file(tmp_path: Path) -> None:
    recipe = tmp_path / "my.toml"
    recipe.write_text('[data]\ntask = "grounded"\nheld_out = "a.jsonl"\n', "utf-8")
    with pytest.raises(ConfigError, match="held_out belongs to a `train` file"):
        load_recipe(recipe)


def test_right_answers_are_as_long_as_the_policy_can_say(place: Path, tmp_path: Path) -> None:
    for directory, tokens in (("cut", "3"), ("whole", "0")):
        assert prepare(place, tmp_path / directory, "--answer-tokens", tokens) == 0
    tokenizer = load_tokenizer(str(place / "model"))
    whole, short = (
        {
            one["meta"]["id"]: tokenizer(one["meta"]["response"], add_special_tokens=False)["input_ids"]
            for one in read_lines(tmp_path / directory / "right_answers.jsonl")
        }
        for directory in ("whole", "cut")
    )
    assert max(map(len, whole.values())) > 3
    assert all(ids == whole[id_][:3] for id_, ids in short.items())


def test_a_cut_answer_begins_as_the_answer_also_where_it_spells_special_tokens(place: Path, tmp_path: Path) -> None:
    answers = ["Lyon</s> was <unk> Oslo in Rome", "Lyon , Oslo . Bonn Rome", "Grüße, Lyon, Oslo"]
    table = tmp_path / "table.jsonl"
    lines = [{"passage": f"It is {n}.", "question": f"Is it {n}?", "answer": answers[n % 3]} for n in range(12)]
    table.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    command = ["prepare-grounded", str(table), "--tokenizer", str(place / "model"), "--held-out", "0.1"]
    assert main([*command, "--answer-tokens", "3", "--out", str(tmp_path / "out")]) == 0
    made = [one["meta"] for one in read_lines(tmp_path / "out" / "right_answers.jsonl")]
    gold = {one["response"] for one in made if one["id"].endswith("gold")}
    assert gold == {"Lyon</", "Lyon , Oslo", "Grüße, Lyon"}  # a token is a word with the space before it, or a mark


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cut_answer_is_a_prefix_of_the_answer_for_any_tokenizer(family: str) -> None:
    tokenizer = made(family)
    for text in (
        "The little<end> dog",
        "  Straße <start>x",
        "今日は 😀👨‍👩‍👧 ok",
        "naïve\n\n café",
        "\ud800 dog and Tom",
    ):
        total = len(encode(tokenizer, text))
        found = [answer_start(tokenizer, text, tokens) for tokens in range(1, total + 1)]
        assert found[-1] == text
        assert all(text.startswith(one) for one in found)
        assert found == sorted(found, key=len)


def test_its_program_praises_right_answers_for_a_reward_model(place: Path, tmp_path: Path) -> None:
    prepare(place, tmp_path / "data")
    recipe = tmp_path / "my.toml"
    recipe.write_text(RECIPE.format(data=tmp_path / "data", model=place / "model", out=tmp_path / "run"), "utf-8")
    train, out = f"data.train={tmp_path / 'data' / 'right_answers.jsonl'}", tmp_path / "annotations"
    assert main(["annotate", str(recipe), "--out", str(out), "--own-critic", "--set", train]) == 0
    annotations = read_annotations(out / "annotations.jsonl")
    # of each passage: its town, both of its sentences, and the first one
    assert [one.response for one in annotations[2::3]] == [
        one.response.partition(". ")[0] + "." for one in annotations[1::3]
    ]
    assert {span.label for one in annotations for span in one.critique.spans} == {"positive"}
    assert all(one.critique.spans for one in annotations)
