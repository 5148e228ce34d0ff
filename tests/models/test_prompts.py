"""The chat template of a recipe: a text, a file, and its variables, which the saved tokenizer keeps."""

from pathlib import Path
from typing import Any

import pytest

import said
from text2grad.config.recipe import describe, make_recipe
from text2grad.errors import ConfigError, DataError
from text2grad.models.chat_template import prompt_text
from text2grad.models.prompts import with_chat_template
from text2grad.rl import tool_calls
from text2grad.tasks.tiny import word_tokenizer
from text2grad.types import Example

EMPTY = "<think>\n\n</think>\n\n"
TEXT = "{% for m in messages %}[{{ m.content }}]{% endfor %}{{ end }}"


def changed(made: Any, **rollout: Any) -> Any:
    return with_chat_template(made, make_recipe({"rollout": rollout}))


def test_variables_of_the_template_hold_unless_a_row_sets_them(tmp_path: Path) -> None:
    plain = said.tokenizer("qwen3")
    made = changed(plain, chat_template_kwargs={"enable_thinking": False})
    assert prompt_text(made, Example("Go.")) == prompt_text(plain, Example("Go.")) + EMPTY
    row = Example("Go.", meta={"chat_template_kwargs": {"enable_thinking": True}})
    assert prompt_text(made, row) == prompt_text(plain, Example("Go."))
    assert changed(made, chat_template_kwargs={"enable_thinking": False}).chat_template == made.chat_template
    made.save_pretrained(tmp_path)
    again = type(made).from_pretrained(tmp_path)
    assert prompt_text(again, Example("Go.")).endswith(EMPTY)
    assert tool_calls._of_trl(made.chat_template) == tool_calls._of_trl(plain.chat_template) != None  # noqa: E711


def test_a_template_is_a_text_or_a_file(tmp_path: Path) -> None:
    made = said.tokenizer("qwen3")
    (tmp_path / "own.jinja").write_text(TEXT)
    values = {"end": 'é"\n', "no": None, "many": [1, {"a": True}]}
    for template in (TEXT, str(tmp_path / "own.jinja")):
        own = changed(made, chat_template=template, chat_template_kwargs=values)
        assert prompt_text(own, Example("Go.")) == '[Go.]é"\n'
    assert "im_start" in made.chat_template  # the caller's stays as it was
    assert changed(made) is made
    several = said.tokenizer("qwen3")
    several.chat_template = {"default": TEXT, "tool_use": TEXT}
    own = changed(several, chat_template_kwargs={"end": "!"})
    assert {name: text.endswith(TEXT) for name, text in own.chat_template.items()} == {
        "default": True,
        "tool_use": True,
    }
    assert prompt_text(own, Example("Go.")) == "[Go.]!"


def test_what_is_no_template_and_no_variable_is_refused() -> None:
    made = said.tokenizer("qwen3")
    with pytest.raises(DataError, match=r"nowhere\.jinja"):
        changed(made, chat_template="nowhere.jinja")
    for name in ("messages", "enable thinking"):
        with pytest.raises(ConfigError, match=f"rollout.chat_template_kwargs: '{name}' is no variable of a template"):
            changed(made, chat_template_kwargs={name: 1})
    with pytest.raises(ConfigError, match="is no variable"):
        changed(word_tokenizer(["Go"]), chat_template_kwargs={"enable_thinking": False})


def test_the_settings_are_read_from_toml_and_described() -> None:
    assert "chat_template_kwargs = {}" in describe("rollout")
    assert "[table]" in describe("rollout")
    recipe = make_recipe({"rollout": {"chat_template_kwargs": {"enable_thinking": False}}})
    assert recipe.rollout.chat_template_kwargs == {"enable_thinking": False}


def test_a_trainer_prompts_by_the_template_of_its_recipe(tmp_path: Path) -> None:
    run = said.trainer(tmp_path, said.tokenizer("qwen3"), ["Go."], chat_template_kwargs={"enable_thinking": False})
    assert run.tokenizer.decode(list(run.prompt_ids[0])).endswith(EMPTY)
