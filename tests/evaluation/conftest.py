"""A tiny language model with and without a chat template, in directories."""

from pathlib import Path

import pytest

from text2grad.tasks.tiny import tiny_llama
from tokenizers_made_here import made

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[it]{% endif %}"
)


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a model of random weights that continues texts."""
    return _saved(tmp_path_factory.mktemp("policy"), seed=0)


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a model of other random weights."""
    return _saved(tmp_path_factory.mktemp("other"), seed=1)


@pytest.fixture(scope="session")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a model of random weights with a chat template."""
    path = _saved(tmp_path_factory.mktemp("chat"), seed=0)
    (path / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    return path


def _saved(path: Path, *, seed: int) -> Path:
    tokenizer = made("llama3")
    tiny_llama(tokenizer, seed=seed, width=32, layers=1, context=512).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path
