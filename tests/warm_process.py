"""New processes that need not import everything again: forked from one that has imported nothing but a few modules."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Reads jobs from standard input, and answers with the number and exit code of each.
SERVER = """
import json, os, sys, traceback

def work(job):
    for number, path in ((1, job["stdout"]), (2, job["stderr"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["-c", *job["words"]]
    sys.path.insert(0, "")
    try:
        exec(job["code"], {"__name__": "__main__"})
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # some modules print when they are imported
exec(sys.argv.pop(1))
print("ready", file=answers, flush=True)
for line in sys.stdin:
    job = json.loads(line)
    pid = os.fork()
    if not pid:
        code = work(job)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(job["number"], os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=answers, flush=True)
"""


class WarmProcess:
    """Runs code as ``python -c CODE WORDS`` would, in a process that has imported some modules already.

    Args:
        imports: The import statements.
        folder: Where it works, and writes what the code prints.
        environment: Added to that of the tests.
    """

    def __init__(self, imports: str, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.jobs = folder, 0
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, imports],
            cwd=folder,
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._answer() == "ready"

    def run(self, code: str, *words: str) -> str:
        """What the code prints; it must not fail."""
        self.jobs += 1
        files = {name: str(self.folder / f"{name}{self.jobs}.txt") for name in ("stdout", "stderr")}
        assert self.process.stdin is not None
        job = {"number": self.jobs, "code": code, "words": words, **files}
        print(json.dumps(job), file=self.process.stdin, flush=True)
        while not (answer := self._answer()).startswith(f"{self.jobs} "):
            assert answer, "the process that starts the others has ended"  # else one that a time limit has left behind
        code = answer.partition(" ")[2]
        out, err = (Path(path).read_text() for path in files.values())
        assert code == "0", f"exit code {code}\n{out[-2000:]}{err[-3000:]}"
        return out

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def warm_process(imports: str, folder: Path, **environment: str) -> Iterator[WarmProcess]:
    """A process that ends with the tests that use it."""
    warm = WarmProcess(imports, folder, environment)
    try:
        yield warm
    finally:
        os.killpg(warm.process.pid, signal.SIGKILL)  # with a job that hangs
        warm.process.communicate()
