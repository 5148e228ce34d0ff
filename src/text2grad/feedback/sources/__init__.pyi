from .base import Options as Options
from .registry import SOURCES as SOURCES, Account as Account, read_items as read_items, read_source as read_source
