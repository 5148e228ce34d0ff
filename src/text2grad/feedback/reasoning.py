"""The reasoning before an answer, by the marks that reasoning models put around it.

A draft in the reasoning must not be read as the answer: a critique, a judge's verdict, a program.
"""

REASONING = (
    r"<(?P<tag>think|thinking|thoughts?|reasoning|seed:think)>.*?(?:</(?P=tag)>|\Z)"
    r"|\[THINK\].*?(?:\[/THINK\]|\Z)"
    r"|<\|channel\|>(?:analysis|commentary).*?(?:<\|channel\|>final\b[^<]*(?:<\|constrain\|>\w+)?<\|message\|>|\Z)"
)
"""Pattern (with `re.DOTALL`) of reasoning that is opened: up to its end, or of the text if it was cut off.

The tags of most models, those of Mistral, and the channels of harmony up to the final one.
"""
