"""Running Python in other processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

# The command line, by this interpreter.
COMMAND = [sys.executable, "-W", "ignore", "-c", "from spin_d3rlpy.cli import main; main()"]


def import_path() -> str:
    """As pytest's `pythonpath` setting: works with and without an editable installation."""
    paths = [str(ROOT), str(ROOT / "envs"), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(filter(None, paths))


def run_python_with_errors(code: str, *arguments: str) -> tuple[str, str]:
    """Runs `code` with `sys.argv[1:] == arguments`; returns its output and error output.

    The process has imported nothing yet.
    """
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": import_path()},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip(), result.stderr.strip()


def run_python(code: str, *arguments: str) -> str:
    """Runs `code` with `sys.argv[1:] == arguments`; returns its output."""
    return run_python_with_errors(code, *arguments)[0]


@contextlib.contextmanager
def import_path_for_children() -> Iterator[None]:
    """Lets processes that are started in the block import what this one can."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = import_path()
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def run_processes(
    target: Callable[..., None], arguments: list[tuple[Any, ...]], expected: int = 0
) -> None:
    """Calls `target` in one process for each tuple of arguments, all at once.

    The processes are forked from one that has imported the package, which takes seconds, and done
    nothing else.

    Args:
        target: a function of a module that can be imported (a test's own cannot).
        arguments: of each process.
        expected: exit code of all of them; minus a signal's number where that killed them.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([target.__module__])
    with import_path_for_children():
        forkserver.ensure_running()
    processes: list[tuple[BaseProcess, Any]] = []
    for values in arguments:
        reader, writer = context.Pipe(duplex=False)
        processes.append((context.Process(target=_call, args=(writer, target, values)), reader))
        processes[-1][0].start()
        writer.close()
    for process, reader in processes:
        process.join(timeout=120)
        error = ""
        with contextlib.suppress(EOFError):
            error = reader.recv() if reader.poll() else ""
        assert process.exitcode == expected, error


def _call(errors: Any, target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    try:
        target(*arguments)
    except BaseException:
        errors.send(traceback.format_exc()[-3000:])
        raise
