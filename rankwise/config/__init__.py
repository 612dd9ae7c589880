"""Recipes: their settings, their parser, and what an untrusted recipe may name."""
