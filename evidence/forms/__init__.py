"""Forms of critiques that ablations need: `register` adds them to `reward_model.form`."""

from evidence.forms.dense import DENSE
from text2grad.reward_models.writing import FORMS


def register() -> None:
    """Let recipes name the form "dense"."""
    FORMS["dense"] = DENSE
