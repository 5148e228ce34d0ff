"""Parts that the tasks about facts share: reading claims of an answer, and wording critiques."""
