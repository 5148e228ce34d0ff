from .task import StoryCritic as StoryCritic, story_metrics as story_metrics, story_openings as story_openings
