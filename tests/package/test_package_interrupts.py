"""Ctrl-C at moments that libraries do not handle well."""

import os
import subprocess
import sys
from textwrap import indent

CTRL_C = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(30)\n"
CAUGHT = f"try:\n{indent(CTRL_C, '    ')}except BaseException:\n    print('caught')\n"
START = "from rankwise.interrupts import exit_at_once, handle_ctrl_c\nhandle_ctrl_c()\n"


def outcome(*words, path=""):
    environment = os.environ | {"PYTHONPATH": str(path)}
    command = [sys.executable, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_ctrl_c_while_the_command_imports_its_libraries_gives_one_line(tmp_path):
    (tmp_path / "jsonargparse.py").write_text(CAUGHT)
    assert outcome("-m", "rankwise", "--version", path=tmp_path) == (130, "", "stopped\n")


def test_ctrl_c_is_an_exception_except_in_code_that_does_not_survive_it():
    inside = "print('begin')\nwith exit_at_once():\n" + indent(CAUGHT, "    ")
    assert outcome("-c", START + inside) == (130, "begin\n", "stopped\n")
    assert outcome("-c", START + "with exit_at_once():\n    pass\n" + CAUGHT) == (0, "caught\n", "")


def test_sigterm_is_an_exception_if_files_must_be_deleted():
    start = START + "from rankwise.interrupts import handle_sigterm\nhandle_sigterm()\n"
    sigterm = CAUGHT.replace("SIGINT", "SIGTERM").replace("print('caught')", "print('caught')\n    raise")
    assert outcome("-c", start + sigterm) == (143, "caught\n", "")


def test_an_interrupted_command_exits_with_130():
    code = f"from rankwise import cli\ndef run(words):\n{indent(CTRL_C, '    ')}\ncli._run = run\ncli.main()"
    assert outcome("-c", code) == (130, "", "stopped\n")
