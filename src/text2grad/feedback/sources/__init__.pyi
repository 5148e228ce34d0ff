from .base import WORDS_ONLY as WORDS_ONLY, Item as Item, Options as Options
from .published import divide as divide, phase_lines as phase_lines, read_problems as read_problems
from .registry import SOURCES as SOURCES, read_items as read_items, read_source as read_source
