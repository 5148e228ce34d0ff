"""Models going to the hub."""

import re
from pathlib import Path

import pytest

from text2grad.errors import DataError
from text2grad.reward_models.training.hub import push_folder


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("ENDPOINT", "http://127.0.0.1:9", r"\[Errno \d+\] Connection refused"),
        ("HF_HUB_OFFLINE", True, "Cannot reach .*: offline mode is enabled.* environment variable"),
    ],
)
def test_a_hub_that_cannot_be_reached_is_an_error_that_names_no_token(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    name: str,
    value: str | bool,
    why: str,
) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, name, value)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with pytest.raises(DataError) as caught:
        push_folder(tmp_path, "you/feedback")
    said = str(caught.value)
    assert re.fullmatch(
        f"cannot push {re.escape(str(tmp_path))} to you/feedback: {why}\\. The folder is complete; try again", said
    )
    assert "hf_secret" not in said + "".join(capfd.readouterr())
