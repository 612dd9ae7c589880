"""Reproduces the tables of the paper, and compares its numbers and claims with ours."""

from rankwise.reproduce.plans import Plan, ReproduceError
from rankwise.reproduce.rows import Row
from rankwise.reproduce.run import reproduce_table
from rankwise.reproduce.summary import write_summary
from rankwise.reproduce.tables import TABLES, Table

__all__ = ["TABLES", "Plan", "ReproduceError", "Row", "Table", "reproduce_table", "write_summary"]
