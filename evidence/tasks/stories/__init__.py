"""The story task: continue a story; the critic marks words that do not exist and repeated phrases."""
