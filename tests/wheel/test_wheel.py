"""What `pip install` gives: the quickstart, the sandbox alone, and the studio, without the repository."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import HTTPCookieProcessor, build_opener

import pytest

from installed_wheel import built_wheel, install, install_sandbox, run

TWO_STEPS = [
    *("sft.steps=40", "quickstart.after_reward_model=20", "reward_model.steps=40", "quickstart.responses=400"),
    *("run.steps=2", "refresh.steps=[]", "rollout.batch_size=16", "data.eval_examples=8", "data.eval_every=0"),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling.build", reason="hatchling is not installed")
    return built_wheel(tmp_path_factory.mktemp("dist"))


@pytest.mark.thorough
def test_the_quickstart_runs_from_the_wheel_with_train(wheel: Path, tmp_path: Path) -> None:
    python = install(wheel, tmp_path / "env", "train")
    where = run(python, "-c", "import text2grad; print(text2grad.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(tmp_path / "env")
    run(python, "-c", "import evidence", cwd=tmp_path, code=1)
    run(python, "-c", "import openai", cwd=tmp_path, code=1)  # of another extra
    sets = [word for setting in TWO_STEPS for word in ("--set", setting)]
    said = run(python, "-m", "text2grad.cli", "quickstart", "--out", "q", *sets, cwd=tmp_path)
    assert "Text2Grad" in said
    out = tmp_path / "q" / "summarization"
    result = json.loads((out / "results.json").read_bytes())["tasks"]["summarization"]
    assert [step for step, _ in result["methods"]["text2grad"]["curve"][0]] == [0, 2]
    (metrics,) = out.rglob("text2grad/metrics.jsonl")
    assert all(json.loads(line)["delta/labelled_share"] > 0 for line in metrics.read_text().splitlines())
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_sandbox_works_alone(wheel: Path, tmp_path: Path) -> None:
    python = install_sandbox(wheel, tmp_path / "env")
    for absent in ("text2grad", "torch", "evidence"):
        run(python, "-c", f"import {absent}", cwd=tmp_path, code=1)
    code = (
        "import sys; from text2grad_sandbox import run_tests\n"
        "result = run_tests('def add(a, b): return a - b', 'assert add(1, 2) == 3', accept_weaker=True)\n"
        "print(result.passed, sorted(name for name in sys.modules if name.split('.')[0] in ('text2grad', 'torch')))"
    )
    assert run(python, "-c", code, cwd=tmp_path).strip() == "False []"


def test_the_studio_is_found_where_it_is_installed(wheel: Path, tmp_path: Path) -> None:
    python = install(wheel, tmp_path / "env", "studio")
    (tmp_path / "answers.jsonl").write_text('{"prompt": "Where?", "response": "In Lyon."}\n')
    command = [str(python.with_name("text2grad")), "studio", "answers.jsonl", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env={"HOME": str(tmp_path)}) as one:
        try:
            assert one.stdout is not None
            url = next(found[0] for line in one.stdout if (found := re.search(r"http://127\.0\.0\.1:\d+/\S*", line)))
            with build_opener(HTTPCookieProcessor()).open(url) as page:  # a cookie takes the place of the token
                assert "<title>" in page.read().decode()
        finally:
            one.send_signal(signal.SIGINT)
    assert one.returncode == 0


@pytest.mark.slow
def test_pip_installs_it_in_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", str(wheel), cwd=tmp_path)
    code = "import text2grad as t2g; print(t2g.locate_spans('In Lyon.', ['Lyon'], []).spans[0].start)"
    assert run(python, "-c", code, cwd=tmp_path).strip() == "3"
