from .openings import story_openings as story_openings
from .task import StoryCritic as StoryCritic, story_metrics as story_metrics
