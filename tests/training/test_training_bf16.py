"""bfloat16 on CPUs that report instructions they do not support, with fake probes that crash."""

import os
from functools import partial
from pathlib import Path

import pytest

from rankwise.bf16 import VARIABLE, WITHOUT_AMX, Bf16Error, enable_bf16
from rankwise.cli import main

DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
DIES_WITH_AMX = f"import os\nif os.environ.get({VARIABLE!r}) != {WITHOUT_AMX!r}: os.abort()"


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")  # so that it is as before when the test ends
    monkeypatch.delenv(VARIABLE)


def test_a_cpu_with_working_bf16_is_not_changed() -> None:
    assert enable_bf16("pass") is None
    assert VARIABLE not in os.environ


def test_broken_amx_is_turned_off_with_a_message() -> None:
    assert f"{VARIABLE}={WITHOUT_AMX}" in str(enable_bf16(DIES_WITH_AMX))
    assert os.environ[VARIABLE] == WITHOUT_AMX
    assert enable_bf16(DIES_WITH_AMX) is None  # in the processes that it starts


@pytest.mark.parametrize("setting", [None, "ALL"])
def test_bf16_that_always_crashes_names_the_variable_and_keeps_the_setting_of_the_user(
    monkeypatch: pytest.MonkeyPatch, setting: str | None
) -> None:
    if setting:
        monkeypatch.setenv(VARIABLE, setting)
    with pytest.raises(Bf16Error, match=rf"signal 4.*--precision 32, or .*{VARIABLE}"):
        enable_bf16(DIES if setting is None else DIES_WITH_AMX.replace("os.abort()", DIES))
    assert os.environ.get(VARIABLE) == setting


def test_training_stops_with_a_message_before_bf16_crashes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rankwise.training.processes.enable_bf16", partial(enable_bf16, DIES))
    with pytest.raises(SystemExit) as stop:
        main(["train", "--precision=bf16", "--train.accelerator=cpu", f"--run={tmp_path / 'run'}"])
    assert stop.value.code == 2
    assert VARIABLE in capsys.readouterr().err
