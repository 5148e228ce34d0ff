"""The modules that run inside a sandbox's process. They import only the standard library and each other."""
