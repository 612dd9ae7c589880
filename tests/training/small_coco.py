"""A small COCO folder of rectangles on noise."""

import json

import numpy as np
from PIL import Image, ImageDraw


def write_coco(folder, train=12, val=5, sizes=((64, 64),), empty=(), seed=0):
    """Writes two splits; images take turns among the sizes (width, height).

    Args:
        folder: Where to.
        train: Training images.
        val: Validation images.
        sizes: Width and height of the images, in turns.
        empty: Indices of training images without objects.
        seed: Another seed, other images.
    """
    dice = np.random.default_rng(seed)
    (folder / "annotations").mkdir(parents=True)
    for split, count in (("train", train), ("val", val)):
        (folder / split).mkdir()
        images, annotations = [], []
        for index in range(count):
            width, height = sizes[index % len(sizes)]
            picture = Image.fromarray(dice.integers(0, 120, (height, width, 3), dtype=np.uint8))
            draw = ImageDraw.Draw(picture)
            name = f"{split}{index:02}.jpg"
            images.append({"id": index + 1, "file_name": name, "width": width, "height": height})
            for label in () if split == "train" and index in empty else range(1 + index % 2):
                w, h = (int(side * dice.uniform(0.3, 0.6)) for side in (width, height))
                x, y = int(dice.integers(0, width - w)), int(dice.integers(0, height - h))
                draw.rectangle((x, y, x + w - 1, y + h - 1), fill=((255, 40, 40), (40, 40, 255))[label])
                box = {"bbox": [x, y, w, h], "area": w * h, "iscrowd": 0, "category_id": label + 1}
                annotations.append({"id": len(annotations) + 1, "image_id": index + 1, **box})
            picture.save(folder / split / name, quality=95)
        categories = [{"id": 1, "name": "red"}, {"id": 2, "name": "blue"}]
        content = {"images": images, "annotations": annotations, "categories": categories}
        (folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    return folder
