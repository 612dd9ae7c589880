"""The subcommands of ``rankwise data``."""

from __future__ import annotations

import sys
from pathlib import Path

from rankwise.config.command_line import new_parser as _parser
from rankwise.config.command_line import parse as _parse
from rankwise.errors import SettingsError, UserError


def data_check(words: list[str]) -> None:
    """Prints a summary of a dataset and its faults."""
    parser = _parser("data check", "Summarize a dataset and list every fault. The exit code is 1 if there are faults.")
    parser.add_argument("folder", type=str, help="Folder of the dataset (COCO, Pascal VOC, YOLO), or its data.yaml.")
    config = _parse(parser, words)

    from rankwise.data import check, print_report

    report = check(Path(config.folder))
    print_report(report)
    if report.faults:
        sys.exit(1)


def data_shapes(words: list[str]) -> None:
    """Writes the built-in dataset as files."""
    from rankwise.config.settings import ShapesSettings
    from rankwise.data import ShapesDataset, write_coco

    parser = _parser("data shapes", "Write the built-in dataset as a COCO folder.")
    parser.add_argument("folder", type=str, help="Output folder; must be new or empty.")
    parser.add_argument("--shapes", type=ShapesSettings, default=ShapesSettings())
    parser.add_argument("--images", type=int, help="Number of training images, short for --shapes.train_images.")
    config = _parse(parser, words)
    if config.images is not None:
        config.shapes.train_images = config.images
    try:
        folder, shapes = Path(config.folder), parser.instantiate(config).shapes
    except SettingsError as error:  # names the flags of rankwise train
        message = str(error).replace("--data.shapes.", "--shapes.")
        raise SettingsError(
            message if config.images is None else message.replace("--shapes.train_images", "--images")
        ) from error
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder}: exists and is not empty; choose a new folder")
    for split, images in (("train", shapes.train_images), ("val", shapes.val_images)):
        write_coco(ShapesDataset(split, size=shapes.size, images=images, seed=shapes.seed), folder, split)
    print(f"wrote {shapes.train_images} training and {shapes.val_images} validation images to {folder}")
    print(f"train on them with: rankwise train shapes --data {folder}")


def data_show(words: list[str]) -> None:
    """Draws training images as the detector sees them."""
    from rankwise.config import choice
    from rankwise.config import recipe as recipes
    from rankwise.config.flags import SHORT_FLAGS, normalize
    from rankwise.evaluation.training_images import draw_training_images

    parser = _parser(
        "data show",
        "Draw the first training images as the detector sees them, augmented and with their boxes, in one picture.\n"
        "It also takes the flags of rankwise train, such as --data.augment.mosaic 1.",
    )
    parser.usage = "rankwise data show DIR [RECIPE] [--FLAG VALUE …]"
    parser.add_argument("--images", type=int, default=12, help="Number of images.")
    parser.add_argument("--out", type=str, default="training_images.jpg", help="Output file.")
    if {"-h", "--help"} & set(words):
        parser.print_help()
        sys.exit(0)
    recipes.add_recipe_arguments(parser)
    flags, others = normalize(parser, words, SHORT_FLAGS)
    if not 1 <= len(others) <= 2:
        raise UserError("expected the folder of a dataset and at most one recipe: rankwise data show DIR [RECIPE]")
    folder, name = [*others, None, None][:2]
    _, flags, _ = choice.prepare([f"--data.path={folder}", *flags], name)
    config = recipes.parse_flags(parser, flags)
    if config.images < 1:
        raise UserError(f"--images is {config.images}: it must be at least 1")
    summary = draw_training_images(recipes.recipe_from(parser, config), Path(config.out), config.images)
    print(f"{config.out}: {summary}")
