from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from toolchain import process
from toolchain.errors import BuildError, DeviceError

# The shell starts a child of its own, says who it is, and either waits for it or leaves it behind.
FAMILY = "sleep 60 & echo $! > child; {}"


def python(code: str, **options) -> process.Result:
    return process.run([sys.executable, "-c", code], **options)


def running(pid: int) -> bool:
    """Whether a process is there and not merely waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def ends(pid: int) -> bool:
    limit = time.monotonic() + 5
    while running(pid) and time.monotonic() < limit:
        time.sleep(0.01)
    return not running(pid)


def pid_in(path: Path) -> int:
    limit = time.monotonic() + 5
    while time.monotonic() < limit:
        if path.is_file() and (text := path.read_text()).endswith("\n"):
            return int(text)
        time.sleep(0.01)
    pytest.fail(f"{path} was not written")


def test_no_child_has_the_password(monkeypatch, tmp_path):
    monkeypatch.setenv("TOOLCHAIN_SSH_PASSWORD", "secret")
    show = ["sh", "-c", "echo ${TOOLCHAIN_SSH_PASSWORD-none}"]
    log = tmp_path / "log"
    assert process.run(show).stdout == "none\n"
    assert process.run(show, env={"OTHER": "x"}).stdout == "none\n"
    with process.serve(show, log=log) as served:
        assert served.communicate()[0] == b"none\n"
    process.spawn_background(show, log, attached=False).wait()
    assert log.read_text() == "none\n"
    with process.attach(show) as stream:
        assert stream.recv(100) == b"none\n"


def test_both_outputs_and_the_exit_code():
    result = python("import sys; print('out'); print('err', file=sys.stderr)")
    assert result == process.Result(0, "out\n", "err\n")


def test_large_outputs_on_both_streams_do_not_block():
    result = python("import sys; sys.stdout.write('o' * 300000); sys.stderr.write('e' * 300000)", timeout=30)
    assert (len(result.stdout), len(result.stderr)) == (300_000, 300_000)


def test_failure_names_the_command_and_ends_with_its_words():
    with pytest.raises(BuildError, match="failed with exit code 3") as caught:
        process.run(["sh", "-c", "echo lost; echo the cause >&2; exit 3"])
    assert caught.value.details.startswith("sh -c ")
    assert caught.value.details.endswith("\nthe cause")


def test_failure_without_stderr_shows_stdout():
    with pytest.raises(BuildError) as caught:
        process.run(["sh", "-c", "echo said here; exit 1"])
    assert caught.value.details.endswith("\nsaid here")


def test_failure_shows_only_the_end_of_a_long_output():
    with pytest.raises(BuildError) as caught:
        process.run(["sh", "-c", "seq 1000 >&2; exit 1"])
    assert "\n970" not in caught.value.details
    assert caught.value.details.endswith("\n999\n1000")


@pytest.mark.parametrize(("code", "expected"), [("exit 7", 7), ("kill -9 $$", -signal.SIGKILL), ("true", 0)])
def test_exit_code_without_check(code, expected):
    assert process.run(["sh", "-c", code], check=False).returncode == expected


def test_error_class_is_the_callers():
    with pytest.raises(DeviceError):
        process.run(["false"], error=DeviceError)


def test_missing_program_says_what_to_do():
    with pytest.raises(DeviceError, match="no-such-program is not installed") as caught:
        process.run(["no-such-program", "--flag"], error=DeviceError)
    assert caught.value.details == "no-such-program --flag"
    assert caught.value.hint == "install no-such-program, or add its folder to PATH"


@pytest.mark.parametrize(
    ("program", "command"),
    [
        ("aarch64-linux-gnu-g++", "apt-get install g++-aarch64-linux-gnu"),
        ("arm-linux-gnueabihf-g++", "apt-get install g++-arm-linux-gnueabihf"),
        ("x86_64-linux-gnu-g++", "apt-get install g++-x86-64-linux-gnu"),
        ("c++", "apt-get install g++"),
        ("docker", "apt-get install docker.io"),
        ("adb", "apt-get install adb"),
        ("qemu-system-aarch64", "apt-get install qemu-system-arm"),
        ("no-such-program", ""),
    ],
)
def test_the_package_of_a_program(program, command, monkeypatch):
    assert process.installing(program) == command
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BuildError, match="is not installed here") as caught:
        process.run([program])
    assert command in caught.value.hint


def test_missing_folder_is_not_taken_for_a_missing_program(tmp_path):
    with pytest.raises(BuildError, match=r"true could not be started: .*no-folder"):
        process.run(["true"], cwd=tmp_path / "no-folder")


def test_missing_interpreter_is_not_taken_for_a_missing_program(tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    with pytest.raises(BuildError, match="could not be started"):
        process.run([script])


def test_file_that_is_no_program(tmp_path):
    (tmp_path / "data").write_text("data")
    with pytest.raises(BuildError, match="could not be started"):
        process.run([tmp_path / "data"])


def test_no_shell_reads_the_arguments():
    arguments = ["a b", "$HOME", "*", "; false", "'\""]
    result = process.run([sys.executable, "-c", "import sys; print(sys.argv[1:])", *arguments])
    assert result.stdout == f"{arguments}\n"


def test_cwd(tmp_path):
    assert process.run(["pwd"], cwd=tmp_path).stdout == f"{tmp_path}\n"


def test_env_adds_to_this_environment(monkeypatch):
    monkeypatch.setenv("INHERITED", "old")
    monkeypatch.setenv("REPLACED", "old")
    result = process.run(["sh", "-c", "echo $INHERITED $REPLACED $ADDED"], env={"REPLACED": "new", "ADDED": "new"})
    assert result.stdout == "old new new\n"


def test_input_text():
    assert process.run(["cat"], input_text="héllo").stdout == "héllo"


def test_standard_input_is_empty_otherwise():
    assert not process.run(["cat"], timeout=10).stdout


def test_invalid_utf8_becomes_replacement_characters():
    result = python(r"import os; os.write(1, b'a\xffb'); os.write(2, b'\xc3')")
    assert (result.stdout, result.stderr) == ("a\N{REPLACEMENT CHARACTER}b", "\N{REPLACEMENT CHARACTER}")


def test_invalid_utf8_in_a_failure_is_shown_too():
    with pytest.raises(BuildError) as caught:
        python(r"import os, sys; os.write(2, b'\xff'); sys.exit(1)")
    assert caught.value.details.endswith("\N{REPLACEMENT CHARACTER}")


def test_timeout_says_so():
    with pytest.raises(DeviceError, match=r"sleep did not finish within 0\.1 s") as caught:
        process.run(["sleep", "60"], timeout=0.1, error=DeviceError)
    assert caught.value.details == "sleep 60"


# With "wait" the shell itself is still there; with "exit" only its child is, holding the output open.
@pytest.mark.parametrize("then", ["wait", "exit 0"])
def test_timeout_ends_grandchildren(tmp_path, then):
    with pytest.raises(BuildError, match="did not finish"):
        process.run(["sh", "-c", FAMILY.format(then)], cwd=tmp_path, timeout=0.5)
    assert ends(pid_in(tmp_path / "child"))


@pytest.mark.parametrize("then", ["wait", "exit 0"])
def test_interrupt_leaves_nothing_behind(tmp_path, monkeypatch, then):
    started = []

    def interrupted(self, *_args, **_options):
        started.append(self.pid)
        pid_in(tmp_path / "child")
        if then == "exit 0":
            self.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.run(["sh", "-c", FAMILY.format(then)], cwd=tmp_path)
    assert ends(started[0])
    assert ends(pid_in(tmp_path / "child"))


def test_an_interrupt_while_a_command_starts_ends_it(tmp_path, monkeypatch):
    spawn, started = process.spawn, []

    def interrupted(*args, **options):
        started.append(spawn(*args, **options))
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)  # signals are handled before this returns
        return started[0]

    monkeypatch.setattr(process, "spawn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.run(["sh", "-c", FAMILY.format("wait")], cwd=tmp_path)
    assert ends(started[0].pid)


def test_a_real_interrupt_ends_the_command(tmp_path):
    # What a shell starts in the background ignores SIGINT, and so would the tests' children there.
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    code += "from toolchain import process; process.run(['sh', '-c', sys.argv[1]])"
    argv = [sys.executable, "-c", code, FAMILY.format("wait")]
    with subprocess.Popen(argv, cwd=tmp_path, stderr=subprocess.PIPE) as parent:
        child = pid_in(tmp_path / "child")
        os.kill(parent.pid, signal.SIGINT)
        assert b"KeyboardInterrupt" in parent.communicate(timeout=30)[1]
    assert ends(child)


def test_spawned_process_leads_its_own_group():
    spawned = process.spawn(["sleep", "60"])
    try:
        assert os.getpgid(spawned.pid) == spawned.pid != os.getpgid(0)
    finally:
        process.kill_group(spawned)
    assert spawned.returncode == -signal.SIGKILL


def test_kill_group_of_a_process_that_has_ended():
    spawned = process.spawn(["true"])
    spawned.communicate(timeout=30)
    process.kill_group(spawned)
    assert spawned.returncode == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", ""), ("a\nb\nc\n", "b\nc"), ("\n\na\n\n", "a"), ("one", "one")],
)
def test_tail(text, expected):
    assert process.tail(text, 2) == expected


def test_the_ancestors_of_a_process():
    """The name of a program may hold blanks and parentheses."""
    code = """import os, sys
open('/proc/self/comm', 'w').write('a) (b 1')
print(os.getpid(), flush=True)
sys.stdin.read()"""
    with subprocess.Popen(
        ["sh", "-c", f"{shlex.join([sys.executable, '-c', code])}; :"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as shell:
        child = int(shell.stdout.readline())
        assert process.ancestors(child)[:2] == (shell.pid, os.getpid())
        shell.stdin.close()
        shell.wait()
    assert process.ancestors(child) == ()
    assert process.ancestors(1) == ()
