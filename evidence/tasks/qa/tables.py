"""Prompts: a table of courses, and a question about the open course.

Held-out prompts have column orders and question templates of their own, made of the words of the training templates.
"""

from random import Random

from evidence.tasks.qa import world
from text2grad.tasks.base import Pair, Split, pairs

COLUMNS = {
    "train": (
        ("what", "where", "when", "price"),
        ("where", "when", "what", "price"),
        ("price", "what", "when", "where"),
        ("when", "where", "price", "what"),
    ),
    "held_out": (
        ("what", "price", "where", "when"),
        ("when", "what", "where", "price"),
    ),
}
QUESTIONS = {
    "train": (
        "Which course is open? Tell me {asks}.",
        "Tell me which course is open, {asks}.",
        "Please tell me of the open course: {asks}.",
        "One course is open: {asks}?",
        "If a course is open, {asks}?",
    ),
    "held_out": (
        "Please tell me which course is open: {asks}.",
        "If a course is open, tell me {asks}.",
    ),
}
ASKS = {
    "who": "who",
    "what": "what",
    "where": "where",
    "when": "when",
    "price": "for how much",
}
CUE = "\nAnswer:"


def draw_problem(split: Split, rows: int, rng: Random, *, details: int = 0) -> world.Problem:
    """Draw a table and a question of the split, which asks for so many details; 0 for one to four."""
    target = rng.randrange(rows)
    statuses = [world.OPEN if i == target else rng.choice(world.SHUT) for i in range(rows)]
    names = [" ".join(name) for name in _draw_pairs(world.NAMES, split, rows, target, rng)]
    courses = _draw_pairs(world.COURSES, split, rows, target, rng)
    days, prices = (rng.sample(world.VALUES[slot], rows) for slot in ("when", "price"))
    cells = zip(statuses, names, *zip(*courses, strict=True), days, prices, strict=True)
    table = tuple(dict(zip(("status", *world.SLOTS), row, strict=True)) for row in cells)
    known = world.compositions(split, details)
    [asked] = rng.choices(known, [len(details) for details in known])
    return world.Problem(table, target, asked)


def _draw_pairs(pair: Pair, split: Split, rows: int, target: int, rng: Random) -> list[tuple[str, str]]:
    """Draw one pair for each row; no two rows share a left or a right half.

    The pair of the target row is of the split. In a held-out table the other rows are of either split.
    """
    chosen = [rng.choice(pairs(pair, split))]
    pool = pairs(pair, "train") + (pairs(pair, "held_out") if split == "held_out" else ())
    while len(chosen) < rows:
        left, right = rng.choice(pool)
        if all(left != other[0] and right != other[1] for other in chosen):
            chosen.append((left, right))
    chosen.insert(target, chosen.pop(0))
    return chosen


def write_prompt(problem: world.Problem, split: Split, rng: Random) -> str:
    """Write the table in one of the split's column orders, and the question from one of its templates."""
    columns = rng.choice(COLUMNS[split])
    table = [f"- {row['status']}: {' '.join(row[slot] for slot in ('who', *columns))}" for row in problem.rows]
    *asks, last = (ASKS[slot] for slot in ("who", *problem.asked))
    question = rng.choice(QUESTIONS[split]).format(asks=f"{', '.join(asks)} and {last}")
    return "\n".join([*table, f"Question: {question}"]) + CUE


def words() -> list[str]:
    """Return texts that hold every word of prompts and answers."""
    templates = [text.replace("{asks}", "") for texts in QUESTIONS.values() for text in texts]
    phrases = [world.phrase(slot, value) for slot, values in world.VALUES.items() for value in values]
    names = [*world.NAMES.left, *world.NAMES.right]
    answers = [world.VERB, *world.FILLERS.values(), *world.CHATTER, world.EXTRA_LINE]
    return [*templates, *ASKS.values(), world.OPEN, *world.SHUT, *phrases, *names, *answers, "- : , and Question", CUE]
