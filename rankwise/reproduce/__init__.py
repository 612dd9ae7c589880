"""Tables of results, trained row by row."""

from rankwise.reproduce.run import reproduce_table
from rankwise.reproduce.tables import TABLES, Row, Table

__all__ = ["TABLES", "Row", "Table", "reproduce_table"]
