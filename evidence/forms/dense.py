"""The ablation of Appendix I.1: a label for each word of the response, without the words.

dense  {"textual_feedback": "...", "word_labels": "0 0 + + 0 -"}
"""

from text2grad.reward_models.writing import Form

DENSE = Form(
    "word_labels",
    "one label for each word and each mark of the response, in order and with spaces between: + for a good one, - for "
    "a poor one, 0 for any other",
    signs={"+": 1, "-": -1, "0": 0},
)
