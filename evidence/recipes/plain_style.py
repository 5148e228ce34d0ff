"""A house style of our own for evidence/recipes/smollm2-prose.toml: proselint's rules, no openers, no fillers.

Copy this file, write your own list, and name it under [critic] use.
"""

from evidence.critics.prose import ProseCritic

OPENERS = ("here's", "here is", "here are", "sure", "certainly", "of course", "as an AI", "in today's", "overall")
FILLERS = (
    *("actually", "simply", "various", "several", "numerous", "diverse", "a variety of", "a range of", "such as"),
    *("can be", "possible", "based on", "however", "additionally", "furthermore", "in conclusion"),
)
LOUD = (
    *("comprehensive", "innovative", "unique", "essential", "important", "crucial", "significant", "significantly"),
    *("ensure", "ensuring", "enhance", "provide", "provides", "providing"),
)

critic = ProseCritic(
    avoid=dict.fromkeys(OPENERS, "Begin with the answer.")
    | dict.fromkeys(FILLERS, "Leave it out, or say which.")
    | dict.fromkeys(LOUD, "Say what it does.")
)
