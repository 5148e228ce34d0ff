"""Blocks of the SmolLM2 page: absent files, and figures by hand."""

import json
from pathlib import Path

from evidence.pages.blocks import SHOWN_PHRASES, filled
from evidence.pages.grounded import FIGURES


def block(name: str, directory: Path) -> str:
    return filled(f"<!-- results: {name} -->\n<!-- end -->", directory)


def figure(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "low": low, "high": high}


def suite(better: str, difference: dict[str, float]) -> dict[str, object]:
    values = figure(0.1, 0.05, 0.15)
    return {
        "questions": 164,
        "measures": {"hidden": {"better": "", "shown": False}, "main": {"better": better, "shown": True}},
        "models": {"before": {"main": values}, "after": {"main": values}},
        "differences": {"after": {"main": difference}},
    }


def test_blocks_without_files_say_so(tmp_path: Path) -> None:
    assert "Not measured yet." in block("general-ability", tmp_path)
    assert "Not measured yet." in block("people-reward", tmp_path)
    assert "Not measured yet." in block("learned-reward", tmp_path)
    assert "Not measured yet." in block("prose", tmp_path)
    assert "Not planned yet." in block("paper-plans", tmp_path)


def test_the_plans_by_hand(tmp_path: Path) -> None:
    plan = {
        "recipe": "paper/slf5k",
        "where": "8",
        "phase": "train",
        "settings": ["rollout.batch_size=16"],
        "steps": 100,
        "fits": False,
    }
    plan |= {"memory": 80e9, "processes": 8, "peak": 90.04e9, "peak_phase": "update"}
    plan |= {"seconds": {"rollout": 27.0, "update": 9.0}}  # 36 s: 75 and 25 %, an hour for 100 steps
    # 36 s for 32 rows: 18.75 min for 1,000
    tuned = plan | {"phase": "sft", "settings": [], "batch_size": 32, "rows": 4, "row_tokens": 1024, "fits": True}
    small = {"where": "16GB", "memory": 16e9, "processes": 1}  # planned with the rates of another GPU
    (tmp_path / "paper_plans.json").write_text(json.dumps([tuned | small, plan, plan | small, tuned]))
    row = "| paper/slf5k | 8 × 80 GB | `rollout.batch_size=16` | 90.0 GB (update, does not fit) "
    time = "| 36 s (rollout 75 %, update 25 %) "
    assert row + time + "| 100 | 1.0 |" in block("paper-plans", tmp_path)
    row = "| paper/slf5k, `sft` | 8 × 80 GB |  | 90.0 GB (update) "
    assert row + time + "| 4 × 1,024 | 18.8 |" in block("paper-plans", tmp_path)
    row = "| paper/slf5k | 1 × 16 GB | `rollout.batch_size=16` | 90.0 GB (update, does not fit) |  | 100 |  |"
    assert row in block("paper-plans", tmp_path)
    row = "| paper/slf5k, `sft` | 1 × 16 GB |  | 90.0 GB (update) |  | 4 × 1,024 |  |"
    assert row in block("paper-plans", tmp_path)


def test_the_style_before_and_after_by_hand(tmp_path: Path) -> None:
    names = "answers with a mark", "marks per 100 words", "words per answer"
    metrics = {"distinct_2": 0.9, "reference_perplexity": 12.0, "truncated_share": 0.5, "kl_per_token": 0.0}
    seeds = [
        {"seed": 4, "minutes": 9.6, "before": dict.fromkeys(names, 0.5), "after": dict.fromkeys(names, 0.25)},
        {"seed": 5, "minutes": 9.4, "before": dict.fromkeys(names, 0.5), "after": dict.fromkeys(names, 0.15)},
    ]
    found = {
        "steps": 12,
        "responses": 192,
        "answers": 128,
        "prompts": 64,
        "figures": {
            "before": {name: figure(0.5, 0.4, 0.6) for name in names},
            "after": {name: figure(0.25, 0.2, 0.3) for name in names},
        },
        "fewer": {name: figure(0.25, 0.15, 0.35) for name in names},
        "metrics": {"before": metrics, "after": metrics | {"kl_per_token": 0.125}},
        "phrases": [["here's", 9, 1], *([f"word {number}", 0, 0] for number in range(SHOWN_PHRASES))],
        "seeds": seeds,
    }
    (tmp_path / "prose.json").write_text(json.dumps(found))
    text = block("prose", tmp_path)
    over_prompts = "0.500 (0.400 to 0.600) | 0.250 (0.200 to 0.300) | 0.250 (0.150 to 0.350)"
    # falls of 0.25 and 0.35: mean 0.30 ± 12.706 · 0.0707 / √2
    assert f"| {names[0]} | {over_prompts} | 0.300 (−0.335 to 0.935) |" in text
    assert "| KL, nats per token | 0.000 | 0.125 |" in text
    assert "| `here's` | 9 | 1 |" in text
    assert "`word 13`" in text
    assert "`word 14`" not in text  # fifteen phrases
    lines = " ".join(text.split())
    assert "128 answers to 64 held-out prompts, 12 steps of 16 responses" in lines
    assert "seed 4: 0.50 → 0.25 in 10 minutes; seed 5: 0.50 → 0.15 in 9 minutes." in lines


def test_the_share_of_the_programs_gain_is_that_of_the_mean_over_seeds(tmp_path: Path) -> None:
    def metrics(unsupported: float) -> dict[str, float]:
        return {**dict.fromkeys(FIGURES, 0.25), "unsupported_share": unsupported}

    audits = [{"recall/positive": 0.8, "recall/negative": 0.5}, {"recall/positive": 0.6}]
    pairs = [
        {"start": metrics(start), "program": metrics(program), "learned": metrics(learned)}
        | {"form": "`spans`", "seed": seed, "audits": audits, "annotations": 596 + seed, "refreshes": [5, 10]}
        for seed, (start, program, learned) in enumerate([(0.5, 0.1, 0.2), (0.6, 0.2, 0.1)])
    ]
    (tmp_path / "learned_reward.json").write_text(json.dumps(pairs))
    text = " ".join(block("learned-reward", tmp_path).split())
    assert "gives 100 % of the program's gain" in text  # (0.3 + 0.5) / (0.4 + 0.4)
    assert "names and numbers (75 % on seed 0, 125 % on seed 1)." in text  # 0.3 / 0.4; 0.5 / 0.4
    assert "learned from 596 to 597 annotated answers" in text
    assert "| 2 seeds | unsupported names and numbers |" in text
    assert "| start | 0.550 |" in text
    assert "found 70 % of the positive tokens and 50 % of the negative tokens" in text  # (0.8 + 0.6) / 2; 0.5
    pairs[1] |= {"learned": metrics(0.3)}
    (tmp_path / "learned_reward.json").write_text(json.dumps(pairs))
    assert "gives 75 %" in block("learned-reward", tmp_path)  # (0.3 + 0.3) / 0.8
    pairs[1] |= {"form": "`dense`, without words"}
    (tmp_path / "learned_reward.json").write_text(json.dumps(pairs))
    text = block("learned-reward", tmp_path)
    assert text.index("Form `dense`, without words:") < text.index("gives 75 %") < text.index("Form `spans`:")
    assert text.count("| 1 seed |") == 2  # 0.3 / 0.4 on each
    (tmp_path / "learned_reward.json").write_text(json.dumps(pairs[:1]))
    text = " ".join(block("learned-reward", tmp_path).split())
    assert "in unsupported names and numbers. It learned from 596 annotated answers," in text


def test_a_loss_is_an_interval_on_the_worse_side(tmp_path: Path) -> None:
    suites = {
        "kept": suite("higher", figure(-0.01, -0.03, 0.01)),
        "lost": suite("higher", figure(-0.02, -0.03, -0.01)),
        "perplexity kept": suite("lower", figure(-1.0, -2.0, -0.5)),
        "perplexity lost": suite("lower", figure(1.0, 0.5, 2.0)),
    }
    (tmp_path / "general_ability.json").write_text(json.dumps({"suites": suites}))
    rows = [line for line in block("general-ability", tmp_path).splitlines() if line.startswith("|")][2:]
    values = "0.100 (0.050 to 0.150)"
    assert rows[0] == f"| kept | main | 164 | {values} | {values} | −0.010 (−0.030 to 0.010) | no loss shown |"
    assert [row.split(" | ")[-1].strip(" |") for row in rows] == ["no loss shown", "a loss", "no loss shown", "a loss"]


def test_a_reward_model_beside_its_baselines(tmp_path: Path) -> None:
    found = {"f1": figure(0.4, 0.3, 0.5), "auroc": figure(0.7, 0.6, 0.8)}
    ahead = {"f1": figure(0.1, 0.05, 0.15), "auroc": figure(0.2, 0.1, 0.3)}
    result = {
        "texts": 58,
        "responses": 580,
        "folds": [0, 1],
        "figures": {"model": found, "prior": found},
        "model ahead of": {"prior": ahead},
    }
    (tmp_path / "people_reward.json").write_text(json.dumps({"faithbench, with words": result}))
    text = block("people-reward", tmp_path)
    assert "faithbench, with words: 580 responses to 58 texts, folds 2" in text
    assert "| model | 0.400 (0.300 to 0.500) | 0.700 (0.600 to 0.800) |  |  |" in text
    assert "0.100 (0.050 to 0.150) | 0.200 (0.100 to 0.300) |" in text
    behind = {"f1": figure(-0.1, -0.15, -0.05), "auroc": figure(-0.2, -0.3, -0.1)}
    result |= {"figures": {"model": found, "model, free": found}, "model ahead of": {"model, free": ahead}}
    result |= {"model, free ahead of": {"model": behind}}
    (tmp_path / "people_reward.json").write_text(json.dumps({"faithbench, with words": result}))
    text = block("people-reward", tmp_path)
    assert (
        "| model ahead by, F1 | model ahead by, AUROC | model, free ahead by, F1 | model, free ahead by, AUROC |"
        in text
    )
    rows = [row.split(" | ")[3:] for row in text.splitlines() if row.startswith("| model")]
    lead, lag = (
        ["0.100 (0.050 to 0.150)", "0.200 (0.100 to 0.300)"],
        ["−0.100 (−0.150 to −0.050)", "−0.200 (−0.300 to −0.100)"],
    )
    assert [[cell.strip(" |") for cell in row] for row in rows] == [["", "", *lag], [*lead, "", ""]]
    result |= {"words": {"Irrelevant": 12, "Redundant": 0}}
    result |= {
        "f1 by type": {name: {"Irrelevant": figure(f1, 0.3, 0.6)} for name, f1 in (("model", 0.4), ("prior", 0.5))}
    }
    (tmp_path / "people_reward.json").write_text(json.dumps({"qa_feedback, without words": result}))
    text = block("people-reward", tmp_path)
    assert "| F1 by type of error | marked words | model | prior |" in text
    assert "| Irrelevant | 12 | 0.400 | 0.500 |" in text
    assert "| Redundant | 0 |  |  |" in text
    assert "words of a critique" not in text
    shares = (("model", 0.7), ("people", 0.8))
    result |= {"feedback": {name: {"quoted": figure(share, 0.1, 0.9)} for name, share in shares}}
    (tmp_path / "people_reward.json").write_text(json.dumps({"qa_feedback, with words": result}))
    told = block("people-reward", tmp_path)
    assert "| words of a critique and its marks | quoted |" in told
    assert "| people | 0.800 (0.100 to 0.900) |" in told


def test_a_probe_beside_its_baselines(tmp_path: Path) -> None:
    found = {"f1": figure(0.4, 0.3, 0.5), "auroc": figure(0.7, 0.6, 0.8)}
    result = {
        "texts": 5,
        "responses": 9,
        "folds": [0],
        "figures": {"prior": found, "probe": found},
        "probe ahead of": {"prior": {"f1": figure(0.1, 0.05, 0.15), "auroc": figure(0.2, 0.1, 0.3)}},
    }
    (tmp_path / "people_reward.json").write_text(json.dumps({"qa_feedback, probe of sentences": result}))
    text = block("people-reward", tmp_path)
    assert "|  | F1 of marked words | AUROC | probe ahead by, F1 | probe ahead by, AUROC |" in text
    assert "0.100 (0.050 to 0.150) | 0.200 (0.100 to 0.300) |" in text
