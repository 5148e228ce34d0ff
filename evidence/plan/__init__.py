"""Plans beyond the look before a run: fine-tunings, the paper's recipes, and many GPUs by formulas."""
