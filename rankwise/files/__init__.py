"""Safe file handling: atomic writing, reading with limits, and escaping of untrusted names."""
