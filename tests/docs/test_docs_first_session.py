"""The first session in the tutorial is what the commands print: 60 images, a CPU, no network.

RANKWISE_WRITE_SESSION=1 python -m pytest --timeout=800 tests/docs/test_docs_first_session.py writes it again, in as
many minutes as it says.
"""

import os
import re
import shlex
from pathlib import Path

import huggingface_hub
import pytest

from rankwise.cli import main
from rankwise.models import pretrained

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"(?<=<!-- first session -->\n\n```text\n).*?(?=```)", re.DOTALL)
COMMANDS = (
    "rankwise data shapes my_images --images 60 --shapes.val_images 30",
    "rankwise train --data my_images --minutes 2 --run runs/mine",
    "rankwise predict runs/mine my_images/val/000001.png",
)


#: How the lines begin that every session has.
SAID = (
    *(
        "$",
        "wrote",
        "starting",
        "recipe",
        "weights",
        "size",
        "override",
        "device",
        "images",
        "classes",
        "detector",
        "run",
    ),
    *("epoch", "a step took", "results", "pictures", "report"),
)


def kinds(text):
    """The lines of a session without their numbers, each kind once; tables have a test of their own."""
    whole = re.sub(r"\n {10}(?=\S)", " ", text)  # lines are broken at 80 columns
    plain = re.sub(r"-?\d[\d,.:]*|–|\?", "N", whole).replace("N threads", "N thread")
    lines = {" ".join(line.split()) for line in plain.splitlines()}
    return {line for line in lines if line.startswith(SAID) and "best so far" not in line}


def shortened(text):
    """A session with one progress line between evaluations."""
    progress = r"epoch \d+(?:/\d+)?  .*\n"
    return re.sub(rf"({progress})(?:{progress})+", r"\1…\n", text)


@pytest.fixture
def session(tmp_path, monkeypatch, capsys):
    """What the commands print; a test trains for seconds, which changes numbers alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pretrained, "is_reachable", lambda address: False)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: None)
    text = []
    for command in COMMANDS:
        words = shlex.split(command)[1:]
        if "--minutes" in words and not os.environ.get("RANKWISE_WRITE_SESSION"):
            words[words.index("--minutes") + 1] = "0.05"
        main(words)
        text.append(f"$ {command}\n{capsys.readouterr().out}")
    return "\n".join(re.sub(r"[ \t]+$", "", part, flags=re.MULTILINE) for part in text)


def test_the_tutorial_shows_what_a_first_session_prints(session):
    page = PAGE.read_text()
    start = session.partition("starting ")[2].partition("epoch 1 ")[0].splitlines()
    assert max(map(len, start)) <= 80
    labels = [line.split()[0] for line in start[1:] if not line.startswith(" ")]
    assert len(set(labels)) == len(labels), labels
    if os.environ.get("RANKWISE_WRITE_SESSION"):
        PAGE.write_text(BLOCK.sub(lambda _: shortened(session), page, count=1))
        return
    found = BLOCK.search(page)
    assert found is not None
    shown = found[0]
    # Whether a line has unmatched objects, and room for them and other values at its end, depends on its numbers.
    extras = re.compile(r"( positives N| unmatched N| N img/s)+$")
    new, old = ({extras.sub("", line) for line in kinds(text)} for text in (session, shown))
    assert not new - old, "\n".join(sorted(new - old))
    for start in (
        "recipe",
        "weights random",
        "images",
        "classes N",
        "detector",
        "run runs/mine/",
        "epoch N/N",
    ):
        assert any(line.startswith(start) for line in kinds(shown)), start
    assert all(len(line) <= 80 for line in shown.splitlines() if line.startswith("epoch "))
