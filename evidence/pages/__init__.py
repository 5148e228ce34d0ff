"""Pages of results from committed JSON: statistics over seeds and held-out items, tables, pictures."""
