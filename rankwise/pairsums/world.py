"""The sums over the samples of all processes, as if one had them all.

All processes know all positives; each sums over its own negatives, and what is sent is three numbers a positive. DDP
takes the mean of the processes' gradients where one process would have their sum, so gradients come out as many times
larger as there are processes.
"""

from __future__ import annotations

import torch
from torch import Tensor, distributed

from rankwise.distributed import world_size
from rankwise.pairsums.base import PairSums
from rankwise.pairsums.samples import Negatives, NotFiniteError, Sums


def gather_rows(rows: Tensor) -> list[Tensor]:
    """The rows of all processes, [n_r, k] each, in the order of the processes; they may have none."""
    number = torch.tensor([len(rows)], device=rows.device)
    numbers = [torch.empty_like(number) for _ in range(world_size())]
    distributed.all_gather(numbers, number)
    lengths = torch.cat(numbers).tolist()
    padded = rows.new_zeros(max(lengths), rows.shape[1])
    padded[: len(rows)] = rows
    everyone = [torch.empty_like(padded) for _ in lengths]
    if max(lengths):
        distributed.all_gather(everyone, padded)
    return [part[:length] for part, length in zip(everyone, lengths, strict=True)]


def highest(negatives: Negatives, number: int) -> Negatives:
    """The ``number`` highest negatives, of all processes if they are shared; all if there are no more than that.

    Of equal ones at the end of the row those of the first processes are taken.
    """
    negatives.check_finite()
    mine = negatives.picked()
    values, which = mine.values.topk(min(number, mine.values.numel()), sorted=False)
    if not negatives.world:
        return mine.at(which) if which.numel() < mine.values.numel() else negatives
    shares = [share[:, 0] for share in gather_rows(values[:, None])]
    everyone = torch.cat(shares)
    if everyone.numel() <= number:
        return mine.at(which)
    least = everyone.topk(number).values[-1]
    left = number - int((everyone > least).sum())  # places for equal ones, given out process by process
    before = sum(int((share == least).sum()) for share in shares[: distributed.get_rank()])
    equal = (values == least).nonzero().squeeze(1)[: max(0, left - before)]
    return mine.at(torch.cat([which[values > least], which[equal]]))


class WorldPairSums(PairSums):
    """Sums over the negatives of all processes, by the sums over one process's own.

    Args:
        local: Sums of all processes' positives with this process's negatives.
    """

    def __init__(self, local: PairSums) -> None:
        self.local = local
        self.copies = world_size()
        self.fills = local.fills

    def over_negatives(self) -> Sums:
        mistake: NotFiniteError | None = None
        try:
            sums = torch.stack(self.local.over_negatives())
        except NotFiniteError as error:  # the others must hear of it: they wait
            mistake = error
            sums = torch.full_like(torch.stack(self.local.over_positives()), torch.nan)
        distributed.all_reduce(sums)
        if mistake:
            raise mistake
        if bool(sums.isnan().any()):
            raise NotFiniteError("logits: another process has NaN or infinite values; its own message says where")
        return Sums(*sums)

    def over_positives(self, quality: Tensor | None = None, values: Tensor | None = None) -> Sums:
        return self.local.over_positives(quality, values)

    def read_back(self, weights: Tensor, out: Tensor) -> None:
        self.local.read_back(weights, out)

    def read_back_positives(self, weights: Tensor, quality: Tensor | None = None) -> Tensor:
        return self.local.read_back_positives(weights, quality)
