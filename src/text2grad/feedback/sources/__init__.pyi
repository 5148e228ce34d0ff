from .base import Options as Options, WORDS_ONLY as WORDS_ONLY
from .phases import (
    divide as divide,
    known_preferences as known_preferences,
    read_problems as read_problems,
    responses_to_annotate as responses_to_annotate,
    split_unit as split_unit,
)
from .registry import Account as Account, SOURCES as SOURCES, read_items as read_items, read_source as read_source
