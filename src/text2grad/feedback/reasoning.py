"""The reasoning before an answer, by the marks that reasoning models put around it.

A draft in the reasoning must not be read as the answer: a critique, a judge's verdict, a program.
"""

import re

_REASONING = (
    r"<(?P<tag>think|thinking|thoughts?|reasoning|seed:think)>.*?(?:</(?P=tag)>|\Z)"
    r"|\[THINK\].*?(?:\[/THINK\]|\Z)"
    r"|<\|channel\|>(?:analysis|commentary).*?(?:<\|channel\|>final\b[^<]*(?:<\|constrain\|>\w+)?<\|message\|>|\Z)"
)
THOUGHT = re.compile(rf"""\A(?:\s*(?P<opened>{_REASONING})|.*?(?<!["'`])</think>(?!["']|`(?!``)))""", re.DOTALL)
"""Pattern of the reasoning before an answer, up to its end, or that of the text if it was cut off.

It knows the tags of most models, those of Mistral, and the channels of harmony up to the final one. Some chat templates
put <think> into the prompt; then the text begins inside the reasoning, without the group `opened`.
"""


def without_reasoning(text: str) -> str:
    """Return the answer of a model without the reasoning before it; "" if the reasoning was cut off.

    A closing tag in quotation marks is text.

    Example:
        >>> without_reasoning("<think>5?</think> 8"), without_reasoning("5?</think> 8"), without_reasoning("<think>5?")
        (' 8', ' 8', '')
    """
    return THOUGHT.sub("", text)
