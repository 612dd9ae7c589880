"""The command ``rankwise`` and its subcommands."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Literal

import rankwise
from rankwise.cli_data import data_check, data_shapes, data_show
from rankwise.config.command_line import new_parser as _parser
from rankwise.config.command_line import parse as _parse
from rankwise.config.flags import as_typed
from rankwise.config.suggest import nearest
from rankwise.errors import RendezvousError, UserError
from rankwise.files.names import escaped, message_of, wrapped
from rankwise.files.streams import lasting_output
from rankwise.interrupts import CODE, handle_sigterm, say_stopped

USAGE = """rankwise: train object detectors by ranking

  rankwise train [RECIPE] [--data DIR]   train, evaluate and write a report
  rankwise train --resume RUN            resume a stopped run
  rankwise eval RUN [--data DIR]         evaluate a run with COCO metrics
  rankwise predict RUN IMAGES…           detect objects in files, folders, videos
  rankwise predict MODEL.onnx IMAGES…    the same with an exported run
  rankwise calibrate DETECTIONS.json --truth ANNOTATIONS.json
                                         calibrate the scores of any detector
  rankwise export RUN [--nms inside]     export to ONNX and verify the file
  rankwise report RUN…                   write an HTML report, or compare runs
  rankwise data check DIR                summarize a dataset, list its faults
  rankwise data show DIR                 draw augmented training images
  rankwise data shapes DIR               write the built-in dataset as COCO
  rankwise reproduce TABLE               train and print a table of the paper

`rankwise COMMAND --help` describes each command.
A run is a folder with recipe.yaml, metrics.jsonl, last.ckpt,
best.safetensors, eval.json, detections.json, detections.jpg
and report.html."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command. For a user error, it prints a message and exits with code 2; for Ctrl-C, with code 130."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # A .numba_config.yaml in the current folder could name another cache, from which numba would unpickle code.
    os.environ.setdefault("NUMBA_CACHE_DIR", "")
    try:
        with lasting_output(needed=words[:1] != ["train"]):
            _run(words)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C does not wait for libraries to shut down
        say_stopped()
        sys.exit(CODE)


def _run(words: list[str]) -> None:
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE)
        return
    if words[0] in ("--version", "-V"):
        print(f"rankwise {rankwise.__version__}")
        return
    verb = " ".join(words[:2]) if words[0] == "data" else words[0]
    if verb in ("data", "data -h", "data --help"):
        print("\n".join(line for line in USAGE.splitlines() if line.startswith("  rankwise data ")))
        return
    try:
        if verb not in VERBS:
            raise UserError(f"there is no command {verb!r}; {nearest(verb, VERBS)}")
        VERBS[verb](words[2 if words[0] == "data" else 1 :])
    except (UserError, OSError) as error:
        # Before the processes have connected, an error concerns all processes of a machine and is printed once.
        first = not int(os.environ.get("LOCAL_RANK", "0")) or isinstance(error, RendezvousError)
        if first or import_module("rankwise.distributed").is_initialized():
            print(f"rankwise {verb}: {as_typed(message_of(error), words)}", file=sys.stderr)
        sys.exit(2)


def train(words: list[str]) -> None:
    """Trains with a recipe."""
    first = not int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))
    if first and not any("help" in word or word == "-h" or word.startswith("--print") for word in words):
        print(f"starting  rankwise {rankwise.__version__}; loading PyTorch takes a few seconds", flush=True)
    from rankwise.config import recipe as recipes
    from rankwise.config.flags import SHORT_FLAGS, normalize, value_of
    from rankwise.config.help import help_on, help_topics

    parser = _parser("train", "Train a detector.")
    recipes.add_recipe_arguments(parser)
    parser.add_argument("--run", type=str, help="Folder of the run (default: runs/RECIPE-1, -2, …).")
    parser.add_argument("--resume", type=str, help="Folder or checkpoint of a run to resume with its own recipe.")
    parser.add_argument("--overwrite", action="store_true", help="Delete an earlier run in the same folder first.")
    flags, others = normalize(parser, words, SHORT_FLAGS)
    if topics := help_topics(flags, others):
        print("\n\n".join(help_on(parser, topic, recipes.describe_recipes(), SHORT_FLAGS) for topic in topics))
        sys.exit(0)

    from rankwise.config import choice
    from rankwise.distributed import StoppedElsewhere
    from rankwise.report import report_on
    from rankwise.training.folders import is_restart, launcher_rank, refuse_for_resume, run_folder
    from rankwise.training.loop import train as run_training
    from rankwise.training.signals import Interrupted

    if any("=" in word for word in others):
        raise UserError(f"{' '.join(others)}: write settings as flags, such as --data DIR --epochs 12")
    if len(others) > 1:
        raise UserError(f"expected one recipe, got {' and '.join(others)}: put each value directly after its flag")
    name = others[0] if others else None
    lines: list[str] = []
    resumed, checkpoint = value_of(flags, "--resume"), "last.ckpt"
    if resumed and resumed.endswith(".ckpt"):
        resumed, checkpoint = str(Path(resumed).parent), Path(resumed).name
    if resumed:
        refuse_for_resume(resumed, name, flags)
        flags = [f"--config={Path(resumed) / 'recipe.yaml'}", *flags]
    else:
        name, flags, lines = choice.prepare(flags, name)
    if any(word.startswith("--print_config") for word in flags):
        print("".join(f"# {escaped(line)}\n" for line in lines), end="")  # the parser prints the recipe and exits
    config = recipes.parse_flags(parser, flags)
    if resumed and config["run"]:
        raise UserError(f"--resume {resumed} continues in that folder: leave out --run {config['run']}")
    choice.set_batch_size(config)
    recipe = recipes.recipe_from(parser, config)
    restarted = not resumed and is_restart(config["run"])
    if resumed or restarted:
        folder: Path | None = Path(resumed or config["run"])
    else:
        folder = run_folder(config["run"], Path(str(name)).stem, config["overwrite"])
    for line in lines if not launcher_rank() else ():
        print(wrapped(line), flush=True)
    try:
        measured = run_training(recipe, folder, bool(resumed or restarted), checkpoint)
        report_on(measured, f"rankwise report {folder}")
    except Interrupted as stop:
        if not launcher_rank():
            print(f"stopped and saved; resume with: rankwise train --resume {folder}", file=sys.stderr)
        sys.exit(128 + stop.number)
    except StoppedElsewhere:
        sys.exit(2)
    finally:
        if folder is not None and not config["run"] and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()  # created by this command and still empty


def evaluate(words: list[str]) -> None:
    """Evaluates a run."""
    parser = _parser(
        "eval",
        "Evaluate a trained run with COCO metrics. Writes eval.json, detections.json, detections.jpg and report.html.",
    )
    parser.add_argument("run", type=str, help="Folder of the run.")
    parser.add_argument("--data", type=str, help="Another dataset (default: the dataset of the run).")
    parser.add_argument("--split", type=str, help="Another split (default: the validation split of the run).")
    parser.add_argument(
        "--out",
        type=str,
        help="Output folder (default: the run folder, or a subfolder of it for other images or TTA).",
    )
    parser.add_argument("--batch_size", type=int, help="Images per batch (default: as in the recipe).")
    parser.add_argument("--workers", type=int, help="Loader processes (default: as in the recipe).")
    parser.add_argument("--device", type=str, default="auto", help="auto, cpu, cuda, cuda:1, mps")
    parser.add_argument(
        "--scales", type=list[int], help='Test-time augmentation: short sides of the input, such as "[600, 800, 1000]".'
    )
    parser.add_argument("--max_side", type=int, help="Maximum long side with --scales (default: that of the detector).")
    parser.add_argument("--flip", type=bool, default=False, help="Test-time augmentation: add flipped views.")
    parser.add_argument(
        "--calibrated",
        type=bool | None,
        help="false: evaluate raw scores and keep the stored calibration. true: also write "
        "detections_calibrated.json (detections.json always has raw scores).",
    )
    parser.add_argument(
        "--paa_figures",
        type=bool,
        default=False,
        help="Draw the score distributions and clusters of PAA (figures 2c and 3c of the paper).",
    )
    config = _parse(parser, words)
    if config.batch_size is not None and config.batch_size < 1:
        raise UserError(f"--batch_size is {config.batch_size}: it must be at least 1")
    if config.max_side and not config.scales:
        raise UserError("--max_side only applies to --scales: add --scales")

    from rankwise.evaluation.inference import draw_paa_figures, evaluate_run
    from rankwise.models.settings import TestSettings
    from rankwise.report import report_on

    test = None
    if config.scales is not None or config.flip:
        test = TestSettings(tuple(config.scales or ()), config.max_side, config.flip)
    measured = evaluate_run(
        Path(config.run),
        data=config.data,
        split=config.split,
        out=Path(config.out) if config.out else None,
        batch_size=config.batch_size,
        workers=config.workers,
        device=config.device,
        test=test,
        calibrate=config.calibrated,
    )
    report_on(measured, "the same command")
    if config.paa_figures:
        for figure in draw_paa_figures(measured.run, measured.folder, config.data, config.device, config.split):
            print(figure)


def predict(words: list[str]) -> None:
    """Detects objects in images."""
    parser = _parser("predict", "Detect objects in images and videos. Writes annotated images and predictions.json.")
    parser.add_argument("run", type=str, help="Run folder, or a .safetensors or .onnx file.")
    parser.add_argument(
        "images", type=str, nargs="+", help="Image and video files, folders, globs; webcam, webcam1, … for cameras."
    )
    parser.add_argument("--out", type=str, default="predictions", help="Output folder.")
    parser.add_argument("--no_pictures", type=bool, default=False, help="Do not draw images, which is much faster.")
    parser.add_argument(
        "--format",
        type=Literal["json", "coco", "yolo"],
        default="json",
        help="In addition to predictions.json, coco writes annotations.json, yolo writes labels/ and classes.txt.",
    )
    parser.add_argument("--crop", type=bool, default=False, help="Save each object as an image in crops/CLASS/.")
    parser.add_argument(
        "--threshold", type=float, help="Minimum score (default: the threshold with the best F1, per class)."
    )
    parser.add_argument("--precision", type=float, help="Instead of a threshold: the desired precision, such as 0.9.")
    parser.add_argument("--calibrated", type=bool, default=True, help="false: use raw scores.")
    parser.add_argument(
        "--agnostic_nms",
        type=Literal["pictures", "always", "never"],
        default="pictures",
        help="Whether the best box suppresses overlapping boxes of other classes: in drawn images only, always (also "
        "in predictions.json), or never.",
    )
    parser.add_argument(
        "--batch_size", type=int, default=1, help="Images per batch, padded to the same size (ONNX: always 1)."
    )
    parser.add_argument("--device", type=str, default="auto", help="auto, cpu, cuda, cuda:1, mps")
    config = _parse(parser, words)
    handle_sigterm()
    from rankwise.evaluation.predictions import Output

    if Path(config.run).suffix.lower() == ".onnx":
        from rankwise.export.predict import predict_images  # where there is no torch
    else:
        from rankwise.evaluation.predict import predict_images
    predict_images(
        Path(config.run),
        config.images,
        Output(Path(config.out), config.agnostic_nms, not config.no_pictures, config.format, config.crop),
        config.threshold,
        config.batch_size,
        config.device,
        config.precision,
        config.calibrated,
    )


def calibrate(words: list[str]) -> None:
    """Calibrates the scores of any detector."""
    parser = _parser(
        "calibrate",
        "Fit a calibration to the detections of any detector: it maps scores to the probability of being correct and "
        "keeps their order. Writes calibration.json, calibrated detections, thresholds and a reliability diagram.",
    )
    parser.add_argument(
        "detections", type=str, help="COCO results file: image_id, category_id, bbox, score from 0 to 1."
    )
    parser.add_argument("--truth", type=str, required=True, help="COCO annotation file of the same images.")
    parser.add_argument("--out", type=str, default="calibration", help="Output folder.")
    config = _parse(parser, words)

    from rankwise.evaluation.calibrate import calibrate_results

    calibrate_results(Path(config.detections), Path(config.truth), Path(config.out))


def export(words: list[str]) -> None:
    """Exports a run to ONNX."""
    from rankwise.export.manifest import OPSET

    parser = _parser("export", "Export a trained run to ONNX. The file is verified against the run.")
    parser.add_argument("run", type=str, help="Run folder, or a .safetensors file.")
    parser.add_argument("--out", type=str, help="Output file (default: model.onnx in the run folder).")
    parser.add_argument(
        "--nms",
        type=Literal["inside", "outside"],
        default="outside",
        help="inside: the file outputs final detections. outside: it outputs scores and boxes of all anchors.",
    )
    parser.add_argument("--opset", type=int, default=OPSET, help="Version of the ONNX operator set.")
    config = _parse(parser, words)

    from rankwise.export.onnx import export_run

    export_run(Path(config.run), Path(config.out) if config.out else None, config.nms, config.opset)


def report(words: list[str]) -> None:
    """Writes a report of one or several runs."""
    parser = _parser("report", "Write a self-contained HTML report of a run, or a comparison of several runs.")
    parser.add_argument("runs", type=str, nargs="+", help="Run folders; the first one is the baseline.")
    parser.add_argument(
        "--out",
        type=str,
        help="Output file (default: report.html in the run folder, or in the current folder for several runs).",
    )
    parser.add_argument(
        "--images", type=int, default=100, help="Maximum number of images; those with the most errors are shown."
    )
    parser.add_argument("--data", type=str, help="The dataset, if it has moved, or another dataset.")
    parser.add_argument("--split", type=str, help="Another split (default: the validation split of the run).")
    parser.add_argument("--device", type=str, default="auto", help="Device for evaluating a run without results.")
    config = _parse(parser, words)

    from rankwise.report import write_report

    print(write_report(config.runs, config.out, config.images, config.data, config.device, config.split))


def reproduce(words: list[str]) -> None:
    """Trains the rows of a table and prints it."""
    import shlex

    from rankwise.config.flags import normalize
    from rankwise.config.recipe import recipe_path
    from rankwise.reproduce import TABLES, Plan, reproduce_table, write_summary

    names = "\n".join(f"  {name:<18} {table.title}" for name, table in TABLES.items())
    parser = _parser(
        "reproduce",
        "Train the missing rows of a table and print it with the values and claims of the paper.\n\n"
        f"Tables:\n{names}\n  {'all':<18} all tables\n  {'summary':<18} write all finished tables as pages",
    )
    parser.add_argument("table", type=str, help="Name of the table, all, or summary.")
    parser.add_argument(
        "--data",
        type=str,
        default="shapes",
        help="shapes, the built-in dataset (minutes per row), or a folder: COCO 2017 with the paper's recipes, or "
        "another dataset with --recipe.",
    )
    parser.add_argument("--recipe", type=str, help="The base recipe of all rows, for datasets other than COCO.")
    parser.add_argument(
        "--rows", type=list[str], default=[], help='Only these rows, such as ["APE, PAA*", "RankSort, PAA"].'
    )
    parser.add_argument("--seeds", type=int, default=1, help="Number of runs per row, with seeds 0, 1, ….")
    parser.add_argument("--budget", type=float, default=1.0, help="Factor on the epochs of every run.")
    parser.add_argument("--out", type=str, default="runs/reproduce/NAME", help="Folder for runs and tables.")
    parser.add_argument("--set", type=list[str], default=[], help='Extra flags for every row, such as ["--epochs=4"].')
    parser.add_argument("--train", type=bool, default=True, help="false: print the finished rows without training.")
    parser.add_argument(
        "--page",
        type=str,
        default="results.md",
        help="Output file of summary; --out can then list several folders, separated by commas.",
    )
    config = _parse(parser, words)
    known = [*TABLES, "all", "summary"]
    if config.table not in known:
        raise UserError(f"there is no table {config.table!r}; {nearest(config.table, known)}")
    if not 1 <= config.seeds <= 1000 or not 0 < config.budget < float("inf"):
        raise UserError("--seeds must be from 1 to 1000 and --budget above 0")
    if config.rows and config.table not in TABLES:
        raise UserError(f"--rows chooses rows of one table, not of {config.table}")
    rows = [row.name for row in TABLES[config.table].rows] if config.rows else []
    for row in config.rows:
        if row not in rows:
            raise UserError(f"--rows: the table {config.table} has no row {row!r}; its rows are: {'; '.join(rows)}")
    out = config.out.replace("NAME", "shapes" if config.data == "shapes" else Path(config.data).resolve().name)
    if config.table == "summary":
        given = config.out != parser.get_default("out") or Path(out).is_dir()
        print(write_summary([Path(part) for part in out.split(",") if given], Path(config.page)))
        return
    recipe = config.recipe or ("shapes" if config.data == "shapes" else None)
    if recipe is not None:
        recipe_path(recipe)
    if config.data != "shapes" and not Path(config.data).is_dir():
        raise UserError(f"--data {config.data}: no such folder")
    if recipe is None and not (Path(config.data) / "annotations" / "instances_train2017.json").is_file():
        raise UserError(
            f"{config.data} is not COCO 2017 (annotations/instances_train2017.json is missing): pass the base recipe "
            f"of the rows, such as --recipe own_data"
        )
    plan = Plan(Path(out), config.data, recipe, config.budget, tuple(config.set))
    flags = [flag.partition("=") for flag in normalize(parser, words)[0]]
    given = [word for name, _, value in flags if name != "--train" for word in (name, value)]
    for name in TABLES if config.table == "all" else [config.table]:
        typed = shlex.join(["rankwise", "reproduce", name, *given])
        reproduce_table(name, plan, config.seeds, typed, config.train, config.rows)


VERBS: dict[str, Callable[[list[str]], None]] = {
    "train": train,
    "eval": evaluate,
    "predict": predict,
    "calibrate": calibrate,
    "export": export,
    "report": report,
    "data check": data_check,
    "data show": data_show,
    "data shapes": data_shapes,
    "reproduce": reproduce,
}
