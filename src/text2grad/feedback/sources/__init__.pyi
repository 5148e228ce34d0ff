from .base import WORDS_ONLY as WORDS_ONLY, Options as Options
from .phases import (
    divide as divide,
    known_preferences as known_preferences,
    read_problems as read_problems,
    responses_to_annotate as responses_to_annotate,
    split_unit as split_unit,
)
from .registry import SOURCES as SOURCES, Account as Account, read_items as read_items, read_source as read_source
