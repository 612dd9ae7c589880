"""All code in README and docs runs, or at least refers only to things that exist."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from doc_blocks import PAGES, ROOT, Block, fenced, indented_commands, inline, of_all_pages
from doc_commands import WrongCommand, check, check_names, check_yaml, commands
from PIL import Image

from rankwise.config.recipe import built_in_recipes
from rankwise.data.outlines import CLASSES as SHAPES
from rankwise.export import OnnxDetector
from rankwise.models import Detector

CLASSES = list(SHAPES)
LANGUAGES = {"python", "bash", "yaml", "text"}
#: What a page says about its blocks in words.
GIVEN = {
    "docs/losses.md": lambda: {
        "logits": torch.randn(100, 8, requires_grad=True),
        "labels": torch.randint(0, 9, (100,)),
        "quality": torch.rand(100),
    }
}


def run(block: Block, given: dict[str, object] | None = None) -> dict[str, object]:
    """Runs a block of Python; a traceback names its line in the page."""
    names: dict[str, object] = {"__name__": "docs", **(given or {})}
    exec(compile("\n" * (block.line - 1) + block.text, str(ROOT / block.file), "exec"), names)
    return names


@pytest.mark.parametrize("block", of_all_pages("python"), ids=str)
def test_python_in_the_docs_runs(block: Block, workshop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "transformers" in block.text:
        pytest.importorskip("transformers")
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(workshop)
    torch.manual_seed(0)
    run(block, GIVEN[block.file]() if block.file in GIVEN else None)


# The tutorial's are run, which is more: see `workshop`.
@pytest.mark.parametrize(
    "block", [block for block in of_all_pages("bash") if block.file != "docs/tutorial.md"], ids=str
)
def test_commands_in_the_docs_parse(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if "my_package" in block.text:
        classes = [python.text for python in of_all_pages("python") if python.file == block.file]
        (tmp_path / "my_package.py").write_text(next(text for text in classes if "\nclass " in text))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "my_package", raising=False)  # that of another page
    for command in commands(block.text):
        check(command)


@pytest.mark.parametrize("block", of_all_pages("yaml"), ids=str)
def test_recipes_in_the_docs_are_recipes(block: Block, tmp_path: Path) -> None:
    check_yaml(block.text, tmp_path / "recipe.yaml")


def test_every_built_in_recipe_is_described() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text()
    assert [name for name in built_in_recipes() if f"`{name}`" not in page] == []


def test_the_tutorial_writes_the_files_it_mentions_with_what_it_says_of_them(workshop: Path) -> None:
    run = workshop / "runs" / "first"
    detector = Detector.load(run / "best.safetensors")
    assert OnnxDetector(run / "model.onnx").classes == detector.classes == CLASSES
    measured = json.loads((run / "eval.json").read_text())
    images = sorted((workshop / "my_data" / "val").iterdir())
    assert (measured["images"], list(measured["per_class"])) == (len(images), CLASSES)
    assert 0 <= measured["ap"] <= measured["ap50"] <= 100
    for page, names in ((run / "report.html", ["first"]), (workshop / "compare.html", ["focal", "first"])):
        data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
        assert data is not None
        assert [one["name"] for one in json.loads(data[1])["runs"]] == names
    for folder in (workshop / "found", workshop / "found_onnx"):
        entries = json.loads((folder / "predictions.json").read_text())
        assert [Path(entry["image"]).name for entry in entries] == [path.name for path in images]
        assert {thing["class"] for entry in entries for thing in entry["objects"]} <= set(CLASSES)
        for entry, path in zip(entries, images, strict=True):
            drawn, given = Image.open(folder / entry["picture"]), Image.open(path)
            assert drawn.width / given.width == drawn.height / given.height >= 1  # small images are enlarged


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_within_sentences_name_what_exists(page: Path) -> None:
    wrong = []
    for code in inline(page.read_text(), str(page.relative_to(ROOT))):
        if code.text.startswith(("rankwise ", "--", "make ", "python ", "pip install ")):
            try:
                check_names(code.text)
            except WrongCommand as error:
                wrong.append(f"{code}: `{code.text}`: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_all_code_blocks_are_covered(page: Path) -> None:
    text = page.read_text()
    assert {block.language for block in fenced(text, page.name)} <= LANGUAGES
    assert not indented_commands(text)
    assert text.count("```") == 2 * len(fenced(text, page.name))


@pytest.mark.parametrize(
    "command",
    [
        "rankwise train --no_such_flag 1",
        "rankwise train --loss NoLoss",
        "rankwise train --loss FocalLoss --loss.lam 8",
        "rankwise train no_recipe",
        "rankwise train --epochs many",
        "rankwise evaluate runs/first",
        "rankwise eval runs/first --no_such_flag",
        "rankwise export runs/first --nms beside",
        "rankwise reproduce no_table",
        "torchrun --no-such-flag 2 -m rankwise train --data DIR",
        "torchrun --nproc-per-node 2 -m rankwise train --no_such_flag",
        "python examples/none.py",
        "python examples/torchvision_retinanet.py --epochs 3",
        "make nothing",
        "pip install 'rankwise[none]'",
        "pip install numpi",
        "pip install --no-such-flag .",
        "rm -rf runs",
    ],
)
def test_a_wrong_command_fails(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WrongCommand):
        check(command)


@pytest.mark.parametrize("code", ["rankwise trane x", "--no_such_flag", "--loss.no_such …", "--nothing.…"])
def test_a_wrong_name_within_a_sentence_fails(code: str) -> None:
    with pytest.raises(WrongCommand):
        check_names(code)


def test_a_wrong_call_or_recipe_fails(tmp_path: Path) -> None:
    with pytest.raises(ImportError):
        run(Block("README.md", 1, "python", "from rankwise.losses import NoLoss"))
    with pytest.raises(TypeError):
        run(Block("README.md", 1, "python", "from rankwise.losses import APELoss\nAPELoss(no_such=1)"))
    with pytest.raises(Exception, match="there is no section 'extra'"):
        check_yaml("extra: 1", tmp_path / "recipe.yaml")


def test_blocks_and_code_in_sentences_are_found_with_their_lines() -> None:
    text = "# A\n\n```python\nx = 1\n```\n\nSay `rankwise\ntrain` and\n\n    rankwise eval x\n"
    assert fenced(text, "a.md") == [Block("a.md", 4, "python", "x = 1\n")]
    assert list(inline(text, "a.md")) == [Block("a.md", 7, "", "rankwise train")]
    assert indented_commands(text) == ["rankwise eval x"]
