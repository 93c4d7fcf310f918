import fcntl
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from mae_lm_fairseq.training.runner import Run, read_result, run_all
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import read_json
from tests.support.processes import fork, kill_with_children, wait_for
from tests.support.refusals import refused


@pytest.fixture(autouse=True)
def polls_often(monkeypatch):
    monkeypatch.setattr("mae_lm_fairseq.training.runner.POLL_SECONDS", 0.05)


def read_left(run):
    return {"text": (run.result.parent / "left").read_text()}


@pytest.fixture
def run(tmp_path):
    """Return a function that makes a run of a Python program, which gets the directory of its result as argument."""

    def make(name, program, **options):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        command = [sys.executable, "-c", textwrap.dedent(program), str(folder)]
        options = {"read_result": read_left} | options
        return Run(name, command, folder / "result.json", **options)

    return make


LEAVE = "import pathlib, sys; pathlib.Path(sys.argv[1], 'left').write_text({!r}); print('said', {!r})"


def leave(text):
    return LEAVE.format(text, text)


def is_alive(pid):
    """Return whether a process exists and is not a zombie."""
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


def test_results_come_in_the_order_of_the_table_and_each_run_has_its_log(run):
    runs = [run("slow", "import time; time.sleep(1);" + leave("one")), run("fast", leave("two"))]
    assert run_all(runs, jobs=2) == [{"text": "one"}, {"text": "two"}]
    assert [made.log.read_text() for made in runs] == ["said one\n", "said two\n"]
    written = read_json(runs[0].result)
    assert written["name"] == "slow"
    assert written["command"] == list(runs[0].command)
    assert 1 <= written["seconds"] < 600
    names = {path.name for path in runs[0].result.parent.iterdir()}
    assert names == {"left", "result.json", "result.log"}


def test_finished_runs_are_reused_and_reported(run, capsys):
    done, fresh = run("done", leave("first")), run("fresh", leave("fresh"))
    run_all([done])
    done.log.unlink()
    capsys.readouterr()
    assert run_all([done, fresh]) == [{"text": "first"}, {"text": "fresh"}]
    assert not done.log.exists()
    assert "1 of 2 runs were done before, and are reused" in capsys.readouterr().out


def fail_once(run):
    results = run.result.with_name("found")
    with open(results, "a") as file:
        print(read_result(run)["text"], file=file)
    if results.read_text().count("\n") == 1:
        raise KeyboardInterrupt


def test_files_for_resuming_are_removed_once_the_result_is_written(run):
    it = run("it", leave("text"), clean_up=fail_once)
    with refused("ends: interrupted"):
        run_all([it])
    run_all([it])
    assert it.result.with_name("found").read_text() == "text\ntext\n"


def process_of(run, **arguments):
    return {
        "pid": os.getpid(),
        "threads": os.environ["OMP_NUM_THREADS"],
        "device": os.environ.get("DEVICE"),
    } | arguments


def test_a_run_without_a_command_calls_a_function_in_another_process(run, tmp_path):
    made = Run("call", (), tmp_path / "result.json", partial(process_of, given=[1]))
    [result] = run_all([made], threads=3, environments=[{"DEVICE": "7"}])
    assert result.pop("pid") != os.getpid()
    assert result == {"threads": "3", "device": "7", "given": [1]}


def test_a_run_that_needs_a_file_waits_for_it_and_comes_before_those_with_a_command(tmp_path, run):
    order = []
    first, last = run("first", leave("one")), run("last", leave("two"))
    needs = Run("needs", (), tmp_path / "result.json", process_of, needs=tmp_path / "first/left")
    run_all([needs, first, last], finished=lambda run: order.append(run.name))
    assert order == ["first", "needs", "last"]


def test_a_file_that_no_run_makes_is_named(tmp_path, run):
    needs = run("needs", leave("one"), needs=tmp_path / "missing.pt")
    with refused(r"^needs needs .*missing\.pt"):
        run_all([needs])
    assert not needs.log.exists()


def test_jobs_limits_how_many_run_at_once(run, tmp_path):
    program = """
        import os, sys, time
        here = sys.argv[1]
        open(here + "/left", "w").write(str(time.time()))
        time.sleep(0.3)
        open(here + "/end", "w").write(str(time.time()))
        """
    runs = [run(f"run{number}", program) for number in range(3)]
    run_all(runs, jobs=1)
    starts = [float((made.result.parent / "left").read_text()) for made in runs]
    ends = [float((made.result.parent / "end").read_text()) for made in runs]
    assert ends[0] < starts[1]
    assert ends[1] < starts[2]


def test_a_failing_run_ends_the_others_and_its_log_is_quoted(run):
    waits = run(
        "waits", "import os, sys, time; open(sys.argv[1] + '/pid', 'w').write(str(os.getpid())); time.sleep(60)"
    )
    pid = waits.result.parent / "pid"
    fails = run(
        "fails",
        f"""
        import os, sys, time
        while not os.path.exists({str(pid)!r}): time.sleep(0.05)
        print("some output")
        sys.exit("error: the reason\\n")
        """,
    )
    with pytest.raises(UserError) as error:
        run_all([waits, fails], jobs=2)
    assert str(error.value) == f"fails failed (exit code 1), {fails.log} ends: the reason"
    wait_for(lambda: not is_alive(pid.read_text()))
    assert not waits.result.exists()
    assert not fails.result.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_ends_runs_and_their_children_and_the_next_start_reruns_them(run, capfd, number):
    interrupted = run(
        "interrupted",
        """
        import pathlib, subprocess, sys, time
        here = pathlib.Path(sys.argv[1])
        if (here / "child").exists():
            (here / "left").write_text("went on")
            sys.exit()
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        (here / "pid").write_text(str(child.pid))
        (here / "pid").rename(here / "child")
        time.sleep(60)
        """,
    )
    child = interrupted.result.parent / "child"
    program = fork(run_all, [interrupted])
    wait_for(child.exists)
    os.kill(program.pid, number)
    program.join(120)
    assert program.exitcode == 128 + number
    assert f"error: interrupted by {number.name}; the same command resumes from here" in capfd.readouterr().err
    assert not is_alive(child.read_text())
    assert not interrupted.result.exists()
    assert run_all([interrupted]) == [{"text": "went on"}]


SAVES = """
    import pathlib, signal, sys, time
    here = pathlib.Path(sys.argv[1])
    asked = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *signalled: asked.append(signalled))
    (here / "begun").touch()
    while not asked: time.sleep(0.01)
    (here / "saves").touch()
    while not (here / "may end").exists(): time.sleep(0.01)
    (here / "left").touch()
    sys.exit(143)
    """


@pytest.fixture
def start(run, monkeypatch):
    """Return a function that starts a program with a run that saves, and returns its directory and the program."""
    monkeypatch.setattr("mae_lm_fairseq.training.runner.REPEATED_WITHIN", 0.0)
    saves = run("saves", SAVES)
    programs = []

    def begin():
        programs.append(fork(run_all, [saves]))
        wait_for((saves.result.parent / "begun").exists)
        return saves.result.parent, programs[0]

    yield begin
    for program in programs:
        kill_with_children(program)


@pytest.mark.parametrize("everywhere", [False, True], ids=["runner", "all processes"])
def test_a_run_has_time_to_save_after_a_signal(start, capfd, everywhere):
    """More than the ten seconds of before: as long as it needs. Slurm sends a signal to all processes."""
    directory, program = start()
    processes = psutil.Process(program.pid).children(recursive=True) if everywhere else []
    for process in (psutil.Process(program.pid), *processes):
        process.send_signal(signal.SIGUSR1)
    wait_for((directory / "saves").exists)
    assert program.is_alive()
    (directory / "may end").touch()
    program.join(120)
    assert program.exitcode == 128 + signal.SIGUSR1
    assert (directory / "left").exists()
    errors = capfd.readouterr().err
    assert "saves: waiting for the end" in errors
    assert "error: interrupted by SIGUSR1; the same command resumes from here" in errors


def test_a_run_passes_a_signal_that_it_alone_receives_on_to_its_command(start, capfd):
    directory, program = start()
    processes = psutil.Process(program.pid).children(recursive=True)
    next(process for process in processes if "spawn_main" in " ".join(process.cmdline())).terminate()
    wait_for((directory / "saves").exists)
    (directory / "may end").touch()
    program.join(120)
    assert (directory / "left").exists()
    assert "saves failed (exit code 143)" in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_ends_a_run_that_saves(start, number):
    directory, program = start()
    os.kill(program.pid, number)
    wait_for((directory / "saves").exists)
    os.kill(program.pid, number)
    program.join(120)
    assert program.exitcode == 128 + number
    assert not (directory / "left").exists()


def test_others_go_on_after_a_run_that_fails_in_training(run, capsys):
    """A run that diverges says nothing about others; one that needs it is not started."""
    program = """
        print('x | INFO | train_inner | {"num_updates": "30", "lr": "1"}', flush=True)
        raise SystemExit("error: the loss is nan")
        """
    fails, other = run("fails", program, updates=40), run("other", leave("other"))
    needs = run("needs", leave("needs"), needs=fails.result)
    with refused("^fails .*the loss is nan$"):
        run_all([fails, needs, other])
    assert read_result(other) == {"text": "other"}
    assert not needs.log.exists()
    assert "the loss is nan; other runs go on" in capsys.readouterr().out
    later = run("later", leave("later"))
    with refused(r"the loss is nan$"):  # which now fails before a new update
        run_all([fails, later])
    assert not later.log.exists()


def test_others_go_on_after_a_run_that_reads_what_another_one_made(run, tmp_path):
    (tmp_path / "made").touch()
    fails = run("fails", "raise SystemExit('error: the measure')", needs=tmp_path / "made")
    other = run("other", leave("other"))
    with refused(r"the measure$"):
        run_all([fails, other])
    assert read_result(other) == {"text": "other"}


def test_progress_inside_a_run_is_shown(run, capsys, monkeypatch):
    monkeypatch.setattr("mae_lm_fairseq.utils.output.SECONDS_BETWEEN_LINES", 0.1)
    program = """
        import sys, time
        print('x | INFO | train_inner | {"num_updates": "30", "lr": "1"}', flush=True)
        open(sys.argv[1] + "/left", "w").write("")
        time.sleep(1)
        """
    training = run("training", program, updates=40)
    run_all([training])
    assert re.search(r"68%\|.*left, 0 of 1 runs done; training: update 30 of 40, training", capsys.readouterr().out)
    assert replace(training, updates=20).fraction_done() == 1.0


def test_orphans_of_a_killed_runner_are_waited_for(run, capfd):
    """Otherwise two processes would write to the same checkpoints."""
    again = run("again", "import sys, pathlib; print(pathlib.Path(sys.argv[1], 'done').exists());" + leave("here"))
    with open(again.log, "ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        finish = f"import pathlib, time; time.sleep(3); pathlib.Path({str(again.log.with_name('done'))!r}).touch()"
        orphan = subprocess.Popen([sys.executable, "-c", finish], stdout=log, stderr=log)
    run_all([again])
    assert orphan.wait() == 0
    assert again.log.read_text() == "True\nsaid here\n"
    assert "again: still running" in capfd.readouterr().out


def evaluate_when_waited_for(run, folder):
    (folder / "evaluates").touch()
    wait_for((folder / "waits").exists)
    time.sleep(3)
    return {"text": "first"}


def test_a_run_that_another_runner_finishes_is_not_started_again(run, tmp_path, capfd):
    """The other runner evaluates the run after its process has ended, still with the lock."""

    first = run("same", "print('trained')", read_result=partial(evaluate_when_waited_for, folder=tmp_path))
    other = fork(run_all, [first])
    wait_for((tmp_path / "evaluates").exists)
    (tmp_path / "waits").touch()
    assert run_all([first]) == [{"text": "first"}]
    other.join()
    assert first.log.read_text() == "trained\n"
    assert "same: still running, started by another runner; waiting for its end" in capfd.readouterr().out
