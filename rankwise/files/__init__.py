"""Files and names of untrusted origin: written whole or not at all, read with limits, printed with escapes."""
