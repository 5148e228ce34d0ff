"""Decode critiques that are valid JSON and whose quotes occur in the response."""
