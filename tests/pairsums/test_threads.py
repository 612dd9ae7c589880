"""Work cut into parts for threads."""

import torch

from rankwise.threads import in_parts


def test_parts_cover_the_whole_range_in_order(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert in_parts(lambda begin, end: (begin, end), 10, 1) == [(0, 3), (3, 6), (6, 10)]
    assert in_parts(lambda begin, end: (begin, end), 10, 6) == [(0, 10)]
