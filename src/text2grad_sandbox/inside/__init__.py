"""Code that runs inside the sandbox; it imports the standard library only."""
