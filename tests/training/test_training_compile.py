"""A compiled detector and criterion train like uncompiled ones, without graph breaks."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rankwise.assign import ATSS, IoUThreshold
from rankwise.criterion import Criterion
from rankwise.errors import SettingsError
from rankwise.losses import APELoss, FocalLoss
from rankwise.models import Detector
from rankwise.models.settings import BackboneSettings, DetectorSettings, HeadSettings, InputSettings, NeckSettings
from rankwise.training.step import PlainForward, compile_errors, compile_step
from rankwise.types import Predictions, Target


def scene() -> tuple[PlainForward, torch.Tensor, list[Target]]:
    """A small detector, two images, and their targets with a crowd region."""
    torch.manual_seed(0)
    torch.compiler.reset()
    settings = DetectorSettings(
        input=InputSettings(64, 64),
        backbone=BackboneSettings("resnet10t", args={"channels": [8, 8, 8, 8], "stem_width": 8}),
        neck=NeckSettings(8, extra_levels=0),
        head=HeadSettings(8, depth=1),
    )
    model = PlainForward(Detector(settings, ["a", "b"])).eval()
    boxes = torch.tensor([[5.0, 8.0, 40.0, 50.0], [30.0, 2.0, 60.0, 30.0]])
    targets: list[Target] = [
        {"boxes": boxes, "labels": torch.tensor([1, 0]), "iscrowd": torch.tensor([False, True])},
        {"boxes": boxes, "labels": torch.tensor([0, 1])},
    ]
    return model, torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8), targets


@pytest.mark.parametrize("loss", [APELoss, FocalLoss])
def test_a_compiled_step_gives_the_gradients_of_a_plain_one(loss) -> None:
    model, images, targets = scene()

    def gradients(forward, criterion) -> dict[str, torch.Tensor]:
        model.zero_grad()
        criterion(Predictions(**forward(images)), targets).total.backward()
        return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}

    plain = gradients(model, Criterion(loss(), ATSS()))
    criterion = Criterion(loss(), ATSS())
    criterion.compile_losses(backend="aot_eager")
    torch.testing.assert_close(gradients(torch.compile(model, backend="eager", fullgraph=True), criterion), plain)
    assert any(value.any() for value in plain.values())


def test_the_whole_criterion_with_its_assigner_is_one_graph() -> None:
    model, images, targets = scene()
    predictions = Predictions(**model(images)).detach()
    criterion = Criterion(FocalLoss(), IoUThreshold())
    whole = torch.compile(copy.deepcopy(criterion), backend="eager", fullgraph=True)
    found, expected = whole(predictions, targets), criterion(predictions, targets)
    torch.testing.assert_close((found.terms, found.log), (expected.terms, expected.log))
    assert expected.log["positives"] > 0


def test_compiled_losses_handle_any_number_of_objects_with_two_graphs() -> None:
    model, images, _ = scene()
    predictions = Predictions(**model(images)).detach()
    plain, criterion = Criterion(FocalLoss(), ATSS()), Criterion(FocalLoss(), ATSS())
    graphs = []
    criterion.compile_losses(backend=lambda graph, _: graphs.append(graph) or graph.forward)
    for counts in ([2, 2], [3, 1], [0, 0], [1, 0], [5, 2]):
        batch = [
            {"boxes": torch.rand(n, 2).repeat(1, 2) * 30 + torch.tensor([0.0, 0, 9, 20]), "labels": torch.arange(n) % 2}
            for n in counts
        ]
        predictions = replace(predictions, logits=predictions.logits + 0.1)
        found, expected = criterion(predictions, batch), plain(predictions, batch)
        torch.testing.assert_close((found.terms, found.log), (expected.terms, expected.log))
    assert len(graphs) == 2


def test_on_a_gpu_the_criterion_is_compiled_too(monkeypatch) -> None:
    model, _, _ = scene()
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    criterion = Criterion(FocalLoss(), ATSS())
    assert compile_step(model, criterion, torch.device("cpu")) is model
    assert "losses_of" not in vars(criterion)
    compile_step(model, criterion, torch.device("cuda"))
    assert "losses_of" in vars(criterion)


def test_a_failing_compiler_gives_a_message_with_the_way_on() -> None:
    def broken(graph, inputs):
        raise OSError("no C++ compiler")

    torch.compiler.reset()
    with (
        pytest.raises(SettingsError, match=r"no C\+\+ compiler.*\n.*--resume RUN --train.compile false"),
        compile_errors(Path("RUN")),
    ):
        torch.compile(torch.nn.Tanh(), backend=broken)(torch.ones(3))
    with pytest.raises(OSError, match="something else"), compile_errors(Path("RUN")):
        raise OSError("something else")
