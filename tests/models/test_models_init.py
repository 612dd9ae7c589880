"""Initialization from a trained detector of rankwise or torchvision."""

import pytest
import torch
from small_detectors import small as slim
from torchvision.models.detection import fcos_resnet50_fpn, retinanet_resnet50_fpn_v2

from rankwise.errors import ModelError
from rankwise.models import AnchorSettings, Detector, atss
from rankwise.models.init import read_detector, start_from
from rankwise.models.torchvision_weights import SETTINGS, convert

MAKERS = {"retinanet_resnet50_fpn_v2": retinanet_resnet50_fpn_v2, "fcos_resnet50_fpn": fcos_resnet50_fpn}


def small(classes, scales=(1.0,)):
    return Detector(slim(atss(), anchors=AnchorSettings(scales=scales)), classes)


def random_torchvision(name, classes):
    """torchvision's detector with random numbers everywhere, also where it starts from zeros and ones."""
    torch.manual_seed(0)
    model = MAKERS[name](weights=None, weights_backbone=None, num_classes=classes, min_size=128, max_size=128).eval()
    with torch.no_grad():
        for key, tensor in model.state_dict().items():
            if key.endswith(("bias", "running_mean")):
                tensor.normal_(std=0.05)
            elif key.endswith("running_var") or tensor.ndim == 1:
                tensor.uniform_(0.8, 1.2)
            elif "cls_logits" in key or "bbox_reg" in key:
                tensor.normal_(std=0.05)  # scores and boxes that differ
    return model


@pytest.mark.parametrize("name", SETTINGS)
def test_a_converted_detector_gives_the_logits_and_boxes_of_torchvision(name, monkeypatch):
    model = random_torchvision(name, 5)
    image = torch.rand(3, 128, 128)
    seen = {}
    forward = model.head.forward
    monkeypatch.setattr(model.head, "forward", lambda x, *args: seen.setdefault("head", forward(x, *args)))
    anchors = model.anchor_generator.forward
    monkeypatch.setattr(model.anchor_generator, "forward", lambda *a: seen.setdefault("anchors", anchors(*a)))
    content = convert(name, model.state_dict(), ["background", "N/A", "cat", "N/A", "dog"])
    assert content.classes == ["background", "N/A 1", "cat", "N/A 3", "dog"]
    detector = Detector(content.settings, content.classes).eval()
    assert start_from(detector, content, name) == "class layer: 5 of 5 classes matched by name, 0 new"
    with torch.no_grad():
        model([image])
        ours = detector(image[None])
        if name.startswith("fcos"):
            boxes = model.box_coder.decode(seen["head"]["bbox_regression"][0], seen["anchors"][0])
        else:
            boxes = model.box_coder.decode_single(seen["head"]["bbox_regression"][0], seen["anchors"][0])
    assert float(ours.logits.std()) > 0.05  # there is something to compare
    torch.testing.assert_close(ours.logits, seen["head"]["cls_logits"], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.boxes[0], boxes, rtol=1e-4, atol=1e-2)
    if name.startswith("retinanet"):
        torch.testing.assert_close(ours.anchors, seen["anchors"][0])


def test_the_class_layer_is_matched_by_class_name(tmp_path):
    torch.manual_seed(0)
    old = small(["cat", "dog", "cow"], scales=(1.0, 2.0))
    old.save(tmp_path / "old.safetensors")
    content = read_detector(str(tmp_path / "old.safetensors"))
    new = small(["Dog", "bird", "cat"], scales=(1.0, 2.0))
    made = new.head.class_output.weight.detach().clone()
    said = start_from(new, content, "old")
    assert said == "class layer: 2 of 3 classes matched by name, 1 new"
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        before, after = old.eval()(images), new.eval()(images)
    torch.testing.assert_close(after.boxes, before.boxes)
    torch.testing.assert_close(after.logits[..., [0, 2]], before.logits[..., [1, 0]])
    assert torch.equal(new.head.class_output.weight[1::3], made[1::3])


def test_a_detector_of_another_architecture_is_refused(tmp_path):
    small(["cat"]).save(tmp_path / "old.safetensors")
    content = read_detector(str(tmp_path / "old.safetensors"))
    with pytest.raises(ModelError, match=r"old does not match the detector: \d+ of another shape, such as head\."):
        start_from(small(["cat"], scales=(1.0, 2.0)), content, "old")
    with pytest.raises(ModelError, match="choose retinanet_resnet50_fpn_v2 or fcos_resnet50_fpn"):
        read_detector("torchvision:yolo")


def test_torchvision_weights_can_be_given_as_a_file_without_network(tmp_path, monkeypatch):
    monkeypatch.setattr("rankwise.models.torchvision_weights.is_reachable", lambda url: False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(ModelError, match=r"does not answer.*--init torchvision:fcos_resnet50_fpn=FILE"):
        read_detector("torchvision:fcos_resnet50_fpn")
    monkeypatch.setattr("rankwise.models.torchvision_weights.is_reachable", None)  # a file needs no network
    with torch.device("meta"):
        layout = fcos_resnet50_fpn(weights=None, weights_backbone=None, num_classes=91).state_dict()
    last = {name: torch.randn(tensor.shape) for name, tensor in layout.items() if "cls_logits" in name}
    rest = {name: torch.zeros(()).expand(tensor.shape) for name, tensor in layout.items() if name not in last}
    torch.save(last | rest, tmp_path / "fcos.pth")
    content = read_detector(f"torchvision:fcos_resnet50_fpn={tmp_path / 'fcos.pth'}")
    assert (len(content.classes), content.classes[1]) == (91, "person")
    given = last["head.classification_head.cls_logits.weight"]
    assert torch.equal(content.tensors["head.class_output.weight"], given)
