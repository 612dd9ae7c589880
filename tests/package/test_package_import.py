"""What imports load: the losses need only torch, and the command says something before it loads torch."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator

import pytest
from warm_process import WarmProcess, warm_process

import rankwise

ONLY_TORCH = """
import sys
import torch
before = set(sys.modules)
import rankwise.losses
news = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(news - set(sys.stdlib_module_names) - {"rankwise", "torch"}))
"""

WITHOUT_OTHERS = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {others!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuse())
import torch
import rankwise.losses as losses
for name in losses.__all__:
    if name.endswith("Loss") and name != "Loss":
        getattr(losses, name)()
print("built")
"""

LOADED = """
import sys
import rankwise.losses, rankwise.assign, rankwise.integrations.torchvision, rankwise.integrations.transformers
print(*sorted({name.split(".")[1] for name in sys.modules if name.startswith("rankwise.")}))
"""

WITHOUT_TORCH = """
import sys

sys.modules["torch"] = None  # importing it raises an ImportError
from rankwise.cli import main
main(sys.argv[1:])
"""

OTHERS = [
    *(
        "torchvision",
        "timm",
        "numba",
        "lightning_fabric",
        "lightning",
        "hotcoco",
        "jsonargparse",
        "PIL",
        "yaml",
        "rich",
    ),
    *("matplotlib", "scipy", "safetensors", "onnx", "onnxruntime", "transformers"),
]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmProcess]:
    """New processes that have imported torch."""
    with warm_process("import torch", tmp_path_factory.mktemp("python")) as process:
        yield process


def test_importing_the_losses_imports_nothing_but_torch(python: WarmProcess) -> None:
    assert python.run(ONLY_TORCH) == "\n"


def test_an_extra_import_would_be_detected(python: WarmProcess) -> None:
    assert "yaml" in python.run(ONLY_TORCH.replace("import rankwise.losses", "import rankwise.losses, yaml")).split()


def test_every_loss_can_be_built_where_only_torch_is_installed(python: WarmProcess) -> None:
    assert python.run(WITHOUT_OTHERS.format(others=OTHERS)) == "built\n"


def test_losses_assigners_and_integrations_load_neither_training_nor_data(python: WarmProcess) -> None:
    assert set(python.run(LOADED).split()) <= {
        *("losses", "assign", "integrations", "criterion", "pairsums", "boxes", "distributed", "types", "errors"),
        *("threads", "eager", "jit"),
    }


@pytest.mark.parametrize("words", ["--version", "--help", "eval --help", "export --help", "data check --help"])
def test_the_version_and_most_help_do_not_load_torch(words: str) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "rankwise" in done.stdout.splitlines()[0]


def test_a_training_prints_its_first_line_before_it_loads_torch() -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, "train", "--data", "mine"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == f"starting  rankwise {rankwise.__version__}; loading PyTorch takes a few seconds\n"
    assert "import of torch halted" in done.stderr
    printed = subprocess.run([*command, "--print-config"], capture_output=True, text=True, check=False)
    assert printed.stdout == ""  # a recipe on standard output stays YAML


def test_old_module_names_work_and_warn_with_both_names() -> None:
    moved = {
        "rankwise.structures": ("rankwise.types", "Predictions"),
        "rankwise.training.recipe": ("rankwise.config.recipe", "parse_recipe"),
        "rankwise.training.criterion": ("rankwise.criterion", "Criterion"),
        "rankwise.training.settings": ("rankwise.config.settings", "TrainSettings"),
    }
    for old, (new, name) in moved.items():
        sys.modules.pop(old, None)
        with pytest.warns(FutureWarning, match=f"^{old} is now {new}$"):
            module = importlib.import_module(old)
        assert getattr(module, name) is getattr(importlib.import_module(new), name)
