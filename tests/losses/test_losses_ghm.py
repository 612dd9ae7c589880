"""GHM-C against the formula of its paper, and its running averages."""

import torch
from torch import Tensor
from torch.nn import functional as F

from rankwise.losses import GHMLoss


def scene(seed: int, rows: int = 200, classes: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, classes, dtype=torch.float64, generator=generator) - 1
    return logits.requires_grad_(), torch.randint(-1, classes + 1, (rows,), generator=generator)


def reference(logits: Tensor, labels: Tensor, bins: int, average: dict[int, float], momentum: float) -> Tensor:
    """Sample by sample, with the running averages kept in a dictionary."""
    classes = logits.shape[1]
    members: dict[int, list[Tensor]] = {}
    for row, label in enumerate(labels.tolist()):
        for c in range(classes if label >= 0 else 0):
            target = 1.0 if c == label else 0.0
            x = logits[row, c]
            g = abs(float(x.detach().sigmoid()) - target)
            entropy = F.binary_cross_entropy_with_logits(x, torch.tensor(target, dtype=torch.float64))
            members.setdefault(min(int(g * bins), bins - 1), []).append(entropy)
    loss = logits.new_zeros(())
    for region, entropies in members.items():
        now = len(entropies)
        average[region] = momentum * average[region] + (1 - momentum) * now if region in average else now
        loss = loss + torch.stack(entropies).sum() / average[region] / len(members)
    return loss


def test_ghm_follows_the_formula_over_several_batches():
    loss, average = GHMLoss(bins=10, momentum=0.75), {}
    for seed in range(3):
        logits, labels = scene(seed)
        got, expected = loss(logits, labels), reference(logits, labels, 10, average, 0.75)
        torch.testing.assert_close(got, expected, rtol=1e-11, atol=0)
        actual, wanted = torch.autograd.grad(got, logits)[0], torch.autograd.grad(expected, logits)[0]
        torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=1e-14)


def test_ghm_without_momentum_counts_each_batch_separately():
    loss = GHMLoss(bins=10, momentum=0)
    loss(*scene(0))
    logits, labels = scene(1)
    torch.testing.assert_close(loss(logits, labels), GHMLoss(bins=10, momentum=0)(logits, labels))


def test_running_averages_are_saved_and_only_change_in_training():
    loss = GHMLoss()
    loss(*scene(0))
    other = GHMLoss()
    other.load_state_dict(loss.state_dict())
    torch.testing.assert_close(other(*scene(1)), loss(*scene(1)))
    before = loss.counts.clone()
    loss.eval()
    loss(*scene(2))
    assert torch.equal(loss.counts, before)


def test_a_sample_among_many_similar_ones_has_less_weight():
    logits = torch.tensor([[-2.0]] * 99 + [[2.0]], requires_grad=True)
    GHMLoss()(logits, torch.ones(100, dtype=torch.int64)).backward()
    share = logits.grad.flatten() / logits.detach().sigmoid().flatten()
    torch.testing.assert_close(share[99] / share[0], torch.tensor(99.0))
