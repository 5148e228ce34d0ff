"""Forms of critiques that ablations need: `register` adds them to `reward_model.form`."""

from evidence.forms.dense import DENSE
from text2grad.reward_models.writing import register_form


def register() -> None:
    """Let recipes name the form "dense"."""
    register_form("dense", DENSE)
