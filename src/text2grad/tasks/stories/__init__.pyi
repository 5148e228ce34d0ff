from .openings import story_openings as story_openings
from .refining import refine_story as refine_story
from .task import StoryCritic as StoryCritic, story_metrics as story_metrics
from .words import is_english as is_english
