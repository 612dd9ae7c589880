"""The tool that counts what a GPU would be asked to do."""

import torch
from gpu_counting import CountGPUWork, on_gpu, on_host

from rankwise.losses import RankDetLoss


def test_each_copy_and_each_result_that_the_host_reads_is_a_sync():
    x = torch.arange(6.0).view(2, 3)
    with CountGPUWork() as work:
        a = on_gpu(x)
        assert a.device.type == "cuda"
        assert a.to("cpu").device.type == "cpu"
        assert torch.tensor([1, 2], device=a.device).is_cuda
        assert torch.zeros(3).to("cuda").is_cuda
        assert torch.zeros(3).to("cuda", non_blocking=True).is_cuda
        assert len(a[a > 2]) == 3
        assert float(a.sum()) == 15
        assert a.nonzero().tolist() == x.nonzero().tolist()
        a.to(a.device, torch.float16).view(-1)
    causes = {cause: number for (_, cause), number in work.syncs.items()}
    assert causes == {
        "copy to host": 1,
        "copy to device": 2,
        "index by a mask": 1,
        "_local_scalar_dense": 1,
        "nonzero": 1,
        "tolist": 1,
    }
    assert work.kernels == {"copy to device": 3, "gt": 1, "index": 1, "sum": 1, "nonzero": 1, "_to_copy": 1}


def test_backward_is_counted_and_lines_are_named():
    x, labels = torch.randn(20, 3), torch.full((20,), 3)
    labels[:4], quality = 1, torch.rand(20)
    with CountGPUWork() as work:
        logits = on_gpu(x).requires_grad_()
        loss = RankDetLoss()(logits, on_gpu(labels), on_gpu(quality))
        forward = work.launches
        loss.backward()
    assert work.launches > forward > 0
    assert work.syncs
    assert all(line.startswith("rankwise/") for line, _ in work.syncs)
    expected = x.clone().requires_grad_()
    RankDetLoss()(expected, labels, quality).backward()
    torch.testing.assert_close(on_host(logits.grad), expected.grad)
