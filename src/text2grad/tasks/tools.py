"""The embedded task of tools: a question about prices is answered by calls of a lookup and a calculator.

A remark names an item and a shop, and the question behind it other ones. The policy looks up each price (`price`), has
a product or a sum computed (`calc`), and says the number: two to four turns. Items and shops meet otherwise in held-out
questions, so that no price is known by heart. Demonstrations imitate a hasty clerk, who looks up what the remark names,
slips in numbers, and answers too early. There is no reward model: the program critic judges the policy itself. Items
and shops are judged by the question, numbers by what the tools said before: what follows from a wrong call is right.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from random import Random
from typing import Any

from text2grad.errors import DataError
from text2grad.tasks.base import Pair, Task, pairs
from text2grad.tasks.facts import VERDICTS
from text2grad.tasks.program_critic import STYLES, Finding, ProgramCritic, bare, judged, seeded_random, sentences
from text2grad.types import Conversation, Critique, Example, Turn

ITEMS: tuple[str, ...] = ("rice", "salt", "corn", "wool", "sand", "flour", "sugar", "coal")
ITEMS += ("beans", "seed", "tea", "nuts", "clay", "oats", "soap", "wax")
SHOPS = ("Lopez", "Chen", "Novak", "Brown", "Diaz", "Kaya", "Silva", "Weber")
PEOPLE = ("Maria", "Tom", "Lena", "Omar")
LEAST, MOST = 2, 12  # coins
REMARKS = ("{who} bought {other} at {elsewhere}.", "{who} saw {other} at {elsewhere}.")
QUESTIONS = {
    "price": "What does a bag of {item} cost at {shop}?",
    "product": "What do {count} bags of {item} cost at {shop}?",
    "sum": "What do a bag of {item} and a bag of {second} cost at {shop}?",
}
MARK = "[TOOL_CALLS]"
PRICE, CALC, ANSWER = f"{MARK}price", f"{MARK}calc", "{} coins."
FORMS = {PRICE: '{}{{"item": "{}", "shop": "{}"}}', CALC: '{}{{"expression": "{} {} {}"}}'}
"""First value of a turn that calls → its text, a call as Mistral's models write it; any other turn is an answer."""
FORM = re.compile(
    rf'({re.escape(PRICE)}){{"item": "(\w+)", "shop": "(\w+)"}}|'
    rf'({re.escape(CALC)}){{"expression": "(\w+) ([+*]) (\w+)"}}|(\d+) coins\.'
)
TEMPLATE = (  # names the tools first
    "price calc{% for message in messages %}<{{ message.role }}>{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}[TOOL_CALLS]{{ call.function.name }}{{ call.function.arguments|tojson }}"
    "{% endfor %}</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
FAULTS = {"step": 0.15, "item": 0.45, "shop": 0.45, "number": 0.25, "sign": 0.25, "answer": 0.2}
"""Rates of faults in demonstrations: an answer in place of a step, and another value of each kind."""
TRUTHS = ("In turn {} the {} is {}", "In turn {} the {} must be {}")
NO_ANSWER = "There is no answer."


def price(item: str, shop: str) -> int:
    """Look up what a bag costs, in coins.

    Args:
        item: What is in the bag.
        shop: Who sells it.

    Raises:
        LookupError: if there is no such item, or no such shop.
    """
    if item not in ITEMS or shop not in SHOPS:
        raise LookupError(f"{shop} sells no {item}")
    return seeded_random("price", item, shop).randint(LEAST, MOST)


def calc(expression: str) -> int:
    """Multiply or add two numbers.

    Args:
        expression: Two whole numbers with a sign between them, such as "3 * 4" or "3 + 4".

    Raises:
        ValueError: if it is anything else.
    """
    if (parts := re.fullmatch(r"(\d+) ([+*]) (\d+)", expression)) is None:
        raise ValueError(f'{expression!r} is not two whole numbers with + or * between them, such as "3 * 4"')
    first, second = int(parts[1]), int(parts[3])
    return first * second if parts[2] == "*" else first + second


def next_step(example: Example, results: Sequence[str]) -> list[tuple[str, str]]:
    """Return what the next turn should say after the results of the calls so far: nouns and values.

    Raises:
        DataError: if the example is not of this task.

    Example:
        >>> asked = {"items": ["tea"], "shop": "Chen", "count": "3"}
        >>> next_step(Example("?", meta={"asked": asked}), ["7"])
        [('step', '[TOOL_CALLS]calc'), ('number', '3'), ('sign', '*'), ('number', '7')]
    """
    asked: Any = example.meta.get("asked")
    if not isinstance(asked, Mapping):
        raise DataError(f"not an example of the task tools: meta['asked'] is {asked!r}; take the task's own prompts")
    items, count = asked["items"], asked["count"]
    numbers = [count, *results] if count else results
    if len(results) < len(items):
        return [("step", PRICE), ("item", items[len(results)]), ("shop", asked["shop"])]
    if len(numbers) == 2:
        return [("step", CALC), ("number", numbers[0]), ("sign", "*" if count else "+"), ("number", numbers[1])]
    return [("answer", results[-1])]


def read_turn(turn: Turn, number: int, begin: int, wanted: list[tuple[str, str]]) -> Iterator[Finding]:
    """Yield the judged pieces of a turn; each is about (the turn's number, the noun, the wanted value).

    A call in place of an answer, or the reverse, is judged by its first piece, and a text in no known form as a whole.
    """
    form = FORM.fullmatch(turn.text)
    places = [form.span(group) for group in range(1, FORM.groups + 1) if form[group]] if form else [(0, len(turn.text))]
    values = [turn.text[start:end] for start, end in places]
    if len(values) == len(wanted) == 4 and (values[1], values[3]) == (wanted[3][1], wanted[1][1]):
        wanted = [wanted[place] for place in (0, 3, 2, 1)]  # the order of the two numbers does not matter
    alike = form is not None and len(values) == len(wanted)
    for value, (start, end), own in islice(zip(values, places, wanted, strict=False), None if alike else 1):
        kind = "garbled" if form is None else "right" if alike and value == own[1] else "wrong"
        yield Finding(kind, begin + start, begin + end, (number, own[0], own[1].removeprefix(MARK)))


@dataclass(frozen=True, slots=True)
class ToolsCritic(ProgramCritic):
    """Judges the calls and the answer of a conversation in words, turn by turn."""

    def judge(self, example: Example, response: str, rng: Random) -> Critique:
        """Judge what the policy wrote; characters count in the joined turns."""
        turns = response.turns if isinstance(response, Conversation) else (Turn("assistant", response, sampled=True),)
        style, findings, results, begin, own = rng.randrange(STYLES), list[Finding](), list[str](), 0, list[Finding]()
        for number, turn in enumerate(turns):
            if turn.sampled:
                own = [*read_turn(turn, number, begin, next_step(example, results))]
                findings, begin = findings + own, begin + len(turn.text)
            elif own and own[0].kind == "right":  # a result of the wanted step
                results.append(turn.text)
        words = sentences(
            findings,
            lambda own: TRUTHS[style].format(*own.about) if self.truths else None,
            lambda own: VERDICTS[own.kind][style].format(quote=f'"{response[own.start : own.end]}"', noun=own.about[1]),
        )
        ended = bool(own) and MARK not in response[own[0].start :]
        return judged(" ".join([*words, *([] if ended else [NO_ANSWER])]), findings)


@dataclass(frozen=True, slots=True)
class ToolsTask(Task):
    """Questions about prices, and conversations that answer them; the splits share no pair of item and shop."""

    name = "tools"
    metric = "success_rate"
    judgements = tuple(wording for kind in ("right", "wrong", "garbled") for wording in VERDICTS[kind])
    tools = (price, calc)
    chat_template = TEMPLATE
    symbols = ("<user>", "<assistant>", "<tool>", MARK, '{"item": "', '", "shop": "', '{"expression": "', '"}')

    def critic(self) -> ToolsCritic:
        """Return the program critic."""
        return ToolsCritic(truths=self.settings.truths)

    def draw(self, rng: Random) -> Example:
        """Draw one question: for a price, for that of several bags, or of two items together."""
        sold, kind = pairs(Pair(ITEMS, SHOPS), self.split), rng.choice(tuple(QUESTIONS))
        item, shop = rng.choice(sold)
        second = rng.choice([name for name, where in sold if where == shop and name != item])
        other = rng.choice([name for name in ITEMS if name not in (item, second)])
        elsewhere = rng.choice([name for name in SHOPS if name != shop])
        count = rng.choice("234") if kind == "product" else ""
        names = {"item": item, "second": second, "shop": shop, "count": count, "other": other, "elsewhere": elsewhere}
        text = f"{rng.choice(REMARKS)} {QUESTIONS[kind]}".format(**names, who=rng.choice(PEOPLE))
        example = Example(text, meta={"asked": {**names, "items": [item, second][: 1 + (kind == "sum")]}})
        return replace(example, reference=self._talk(example, rng, {}).turns[-1].text)

    def demonstration(self, example: Example, rng: Random) -> Conversation:
        """Return a conversation with the faults of a hasty clerk."""
        return self._talk(example, rng, FAULTS)

    def corruption(self, example: Example, rng: Random) -> Conversation:
        """Return a conversation in which every second value is wrong."""
        return self._talk(example, rng, dict.fromkeys(FAULTS, 0.5))

    def _talk(self, example: Example, rng: Random, rates: Mapping[str, float]) -> Conversation:
        """Return a conversation with faults of each kind at these rates."""
        turns, results, asked = [Turn("user", example.prompt_text)], list[str](), example.meta["asked"]
        wrong = {"item": asked["other"], "shop": asked["elsewhere"], "sign": "+" if asked["count"] else "*"}
        while True:
            wanted = next_step(example, results)
            if results and self.errs(rates.get("step", 0.0), rng):
                wanted = [("answer", results[-1])]
            errs = [noun != "step" and self.errs(rates.get(noun, 0.0), rng) for noun, _ in wanted]
            slips = [wrong.get(noun) or str(rng.randint(LEAST, MOST)) for noun, _ in wanted]
            first, *rest = (s if e else value for (_, value), s, e in zip(wanted, slips, errs, strict=True))
            turns.append(Turn("assistant", FORMS.get(first, ANSWER).format(first, *rest), sampled=True))
            if first not in FORMS:
                return Conversation(turns)
            results.append(str(price(*rest) if first == PRICE else calc(" ".join(rest))))
            turns.append(Turn("tool", results[-1]))

    def score(self, example: Example, response: str) -> dict[str, float]:
        """Return 1.0 if the last turn is an answer with the right number and no other, and the number of calls."""
        turns = [turn.text for turn in response.turns if turn.sampled] if isinstance(response, Conversation) else []
        said = turns[-1] if turns else response
        right = MARK not in said and re.findall(r"\d+", said) == re.findall(r"\d+", str(example.reference))
        return {self.metric: float(right), "calls_per_question": float(sum(MARK in text for text in turns))}

    def all_words(self) -> list[str]:
        """Return texts that together hold every word of questions, conversations and critiques."""
        numbers = map(str, range(MOST**2 + 1))  # up to that of a sum with the wrong sign
        said = [*ITEMS, *SHOPS, *PEOPLE, *FAULTS, *numbers, "price calc + * coins.", NO_ANSWER, 'and: "']
        return [*map(bare, (*REMARKS, *QUESTIONS.values(), *self.judgements)), *TRUTHS, *said]
