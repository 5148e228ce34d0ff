"""SmolLM2 on ten questions of HumanEval and of MBPP: the whole command on a real model (minutes)."""

import json
from pathlib import Path

import pytest

from places import SHARED, SMOLLM2
from text2grad.cli.__main__ import main

pytestmark = [pytest.mark.slow, pytest.mark.smollm2, pytest.mark.timeout(3600)]
FILES = {"humaneval": "humaneval/HumanEval.jsonl.gz", "mbpp": "mbpp/sanitized-mbpp.json"}


def test_smollm2_writes_programs(tmp_path: Path) -> None:
    if not SMOLLM2.exists() or not (SHARED / "data/mbpp").exists():
        pytest.skip("needs models/smollm2 (make smollm2) and ../shared/data")
    suites = [f"--suite={name}={SHARED / 'data' / file}" for name, file in FILES.items()]
    limits = ["--limit", "10", "--max-new-tokens", "200", "--out", str(tmp_path)]
    assert main(["evaluate", "policy", str(SMOLLM2), *suites, *limits]) == 0
    found = json.loads((tmp_path / "evaluation.json").read_bytes())["suites"]
    for name in FILES:
        figures = found[name]["models"]["smollm2"]
        assert found[name]["questions"] == 10
        assert figures["parses"]["value"] >= 0.5  # it writes Python, in fenced blocks
        assert 0 <= figures["pass@1"]["value"] <= 0.6
    lines = (tmp_path / "answers/humaneval.smollm2.jsonl").read_text("utf-8").splitlines()
    assert sum("```python" in json.loads(line)["text"] for line in lines) >= 8
