"""What an SSH configuration says of the way to a device."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess

import pytest

from tests.support.parts import require
from toolchain.errors import InputError
from toolchain.shell import Address, SshOptions, config, parse_address


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """The folder that stands for ~/.ssh."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".ssh"
    folder.mkdir()
    return folder


def _route(home, text, host, **options):
    (home / "config").write_text(text)
    return config.Config(SshOptions(**options)).route(parse_address(host))


def test_config_alias(home):
    (hop,) = _route(
        home,
        "Host board\n HostName 10.1.2.3\n User pi\n Port 2200\n IdentityFile ~/.ssh/lab\n IdentitiesOnly yes\n"
        " UserKnownHostsFile ~/.ssh/lab_hosts\n GlobalKnownHostsFile none\n ConnectTimeout 3\n",
        "board",
    )
    assert (hop.name, hop.timeout, hop.identities_only) == ("pi@10.1.2.3:2200", 3, True)
    assert hop.identities == (home / "lab",)
    assert hop.known_hosts == (home / "lab_hosts",)
    assert hop.key_name == "[10.1.2.3]:2200"


def test_address_and_options_win_over_config(home):
    text = "Host board\n HostName h\n User pi\n Port 2200\n ConnectTimeout 3\n HostKeyAlias Lab-Board\n"
    known_hosts = (home / "mine",)
    (hop,) = _route(home, text, "root@board:22", connect_timeout=7, known_hosts=known_hosts)
    assert (hop.name, hop.timeout, hop.known_hosts) == ("root@h:22", 7, known_hosts)
    assert hop.key_name == "lab-board"


def test_config_jump_chain(home):
    text = (
        "Host board\n ProxyJump a@one:1,two\nHost two\n Port 2\n User b\n ProxyJump never\n"
        "Host one\n HostName 1.1.1.1\n"
    )
    hops = _route(home, text, "c@board")
    assert [hop.name for hop in hops] == ["a@1.1.1.1:1", "b@two:2", "c@board:22"]
    assert (hops[2].jumps, hops[2].via) == (("a@one:1", "two"), "b@two:2")


def test_config_jump_circle(home):
    with pytest.raises(InputError, match="refers back to itself"):
        _route(home, "Host a\n ProxyJump b\nHost b\n ProxyJump a\n", "a")


def test_config_include(home):
    (home / "config.d").mkdir()
    (home / "config.d" / "lab").write_text("Host board\n HostName 10.9.9.9\n User pi\n")
    (hop,) = _route(home, "Include config.d/*\n", "board")
    assert hop.name == "pi@10.9.9.9:22"


@pytest.mark.parametrize(
    "text", ["Nonsense\n", "Host a\n Port many\n", "Host a\n ProxyCommand nc %z\n", "Match tagged lab\n User x\n"]
)
def test_wrong_config_is_an_input_error(home, text):
    with pytest.raises(InputError):
        _route(home, text, "a")


def test_missing_config_is_an_error_only_if_asked_for(home):
    assert config.Config(SshOptions()).route(Address("h", "u"))[0].name == "u@h:22"
    with pytest.raises(InputError, match="nowhere"):
        config.Config(SshOptions(config_file=home / "nowhere"))


def test_a_process_whose_user_has_no_name(home, monkeypatch):
    """As in a container with a uid of its own."""
    monkeypatch.setattr("getpass.getuser", lambda: {}["uid not found"])
    assert _route(home, "", "me@board")[0].name == "me@board:22"
    with pytest.raises(InputError, match="has no name") as caught:
        _route(home, "", "board")
    assert caught.value.hint == "write USER@board"


# --- what OpenSSH makes of it ---

NAMED = "Host board\n HostName 10.0.0.1\n"
AGREED = {
    "exec": "Match exec true\n User yes\nMatch exec false\n Port 23\nMatch !exec false\n Port 24\n",
    "shell": """Match exec "test a = b || test $(echo x) = x"\n User yes\n""",
    "status": 'Match exec "exit 3"\n User no\n',
    "input": 'Match exec "! read -r line"\n User yes\n',
    "order": 'Match host nowhere exec "touch RAN"\n User no\nMatch user pi exec "test ! -e RAN"\n Port 23\n',
    "alias": f"""{NAMED}Match exec "test '%n %h %p %r' = 'board 10.0.0.1 22 pi'"\n Port 23\n""",
    "before": f"""Match exec "test %h = board"\n Port 23\n{NAMED}Match exec "test %h = board"\n Port 24\n""",
    "once": f"Match host 10.0.0.1\n Port 23\n{NAMED}",
    "final": f"{NAMED}Match final host 10.0.0.1\n Port 23\n",
    "own": """Match exec "test '%u %L %l %% %i %k' = 'ME SHORT HERE %% ID board'"\n Port 23\n""",
    "hash": """Match exec "test %C = $(printf HEREboard22pi | sha1sum | cut -d' ' -f1)"\n Port 23\n""",
    "case": "match Host board Exec true\n port=23\n",
    "token": 'HostName %h.%%.lab\nMatch exec "test %h = board.%%.lab"\n Port 23\n',
    "jump": "Host board\n ProxyJump a,b\n ProxyCommand nc %h\n",
    "command": "ProxyCommand nc %h\nProxyJump a,b\n",
    "none": "ProxyJump none\nProxyCommand nc %h\n",
    "no command": "ProxyCommand none\nProxyJump a\n",
    "quotes": 'ProxyCommand "/a b/nc" "%h"\n',
    "comments": "Host board # mine\n User x # y\n Port 23 #\n HostName 10.0.0.1 # z\n",
    "no comment": "Host board\n User x#y\n ProxyCommand nc %h # 22\n",
    "canonical": (
        "CanonicalizeHostname yes\nCanonicalDomains invalid localdomain\n"
        "Host board\n HostName 10.0.0.1\nHost 10.0.0.1\n Port 23\nMatch canonical\n User full\n"
    ),
    "no domains": "CanonicalizeHostname yes\nHost board\n HostName a.b.c\nHost a.b.c\n Port 23\n",
    "by proxy": "CanonicalizeHostname yes\nHost board\n ProxyJump a\nMatch canonical host board\n Port 23\n",
    "folder": "Include FOLDER\nInclude FOLDER/../.ss*\nPort 23\n",
    "included": f"Include FOLDER/part\nUser everybody\n{NAMED}Include FOLDER/part\n Port 23\n",
}


@pytest.mark.parametrize("case", AGREED)
@pytest.mark.parametrize("user", ["pi", None])
def test_it_is_what_openssh_reads(home, case, user):
    require("OpenSSH's client", "openssh-client", shutil.which("ssh") is not None)
    host, marker = socket.gethostname(), home / "ran"
    text = AGREED[case].replace("RAN", str(marker)).replace("FOLDER", str(home)).replace("ID", str(os.getuid()))
    text = text.replace("ME", getpass.getuser()).replace("HERE", host).replace("SHORT", host.partition(".")[0])
    (home / "part").write_text("Host other\n User other\n")
    (home / "config").write_text(text)
    command = ["ssh", "-G", "-F", home / "config", *(["-l", user] if user else []), "board"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    openssh = dict(line.split(" ", 1) for line in output.splitlines())
    *_, hop = config.Config(SshOptions()).route(Address("board", user))
    assert (hop.user, hop.host, hop.port) == (openssh["user"], openssh["hostname"], int(openssh["port"]))
    assert ",".join(hop.jumps) == openssh.get("proxyjump", "")
    assert hop.proxy_command == openssh.get("proxycommand", "").replace("%h", hop.host)
    assert not marker.exists(), "what follows a criterion that is not met is not run"


def test_tokens_of_paths_and_of_a_proxy_command(home):
    text = (
        "HostName %h.lab\nHostKeyAlias key\nIdentityFile %d/%r%%~\nUserKnownHostsFile ~/%n_%k\n"
        "GlobalKnownHostsFile none\nProxyCommand a %n %h %p %r %% ~\n"
    )
    (hop,) = _route(home, text, "pi@board:23")
    assert hop.identities == (home.parent / "pi%~",)
    assert hop.known_hosts == (home.parent / "board_key",)
    assert hop.proxy_command == "a board board.lab 23 pi % ~"


@pytest.mark.parametrize(
    ("text", "seconds"), [("7", 7), ("1m", 60), ("1m30s", 90), ("1H", 3600), ("none", 10), ("0", 10)]
)
def test_times(home, text, seconds):
    assert _route(home, f"ConnectTimeout {text}\n", "board")[0].timeout == seconds


@pytest.mark.parametrize("text", ["1x", "m", "1.5", "-1"])
def test_what_is_not_a_time(home, text):
    with pytest.raises(InputError, match="not a valid time"):
        _route(home, f"ConnectTimeout {text}\n", "board")


def test_variables_of_the_environment(home, monkeypatch):
    monkeypatch.setenv("LAB", "/lab")
    text = "IdentityFile ${LAB}/key\nUserKnownHostsFile ${LAB}/known\nIdentityAgent ${LAB}/agent\n"
    (hop,) = _route(home, f"{text}CertificateFile ${{LAB}}/%n-cert.pub\nGlobalKnownHostsFile none\n", "board")
    assert [str(path) for path in (*hop.identities, *hop.known_hosts, *hop.certificates)] == [
        "/lab/key",
        "/lab/known",
        "/lab/board-cert.pub",
    ]
    assert hop.agent == "/lab/agent"
    with pytest.raises(InputError, match="this variable is not set"):
        _route(home, "IdentityFile ${NO_SUCH_VARIABLE}/key\n", "board")


@pytest.mark.parametrize(
    ("text", "agent"), [("none", "none"), ("SSH_AUTH_SOCK", ""), ("$OURS", "/run/ours"), ("$NOT_SET", "none")]
)
def test_the_agent_that_is_asked(home, monkeypatch, text, agent):
    monkeypatch.setenv("OURS", "/run/ours")
    assert _route(home, f"IdentityAgent {text}\n", "board")[0].agent == agent


def test_a_command_for_host_keys_is_refused_by_its_name(home):
    with pytest.raises(InputError, match="KnownHostsCommand in the SSH configuration is not supported") as caught:
        _route(home, "KnownHostsCommand /bin/keys %H\n", "board")
    assert "--known-hosts" in caught.value.hint
    assert _route(home, "KnownHostsCommand /bin/keys %H\n", "board", known_hosts=(home / "known",))
    assert _route(home, "KnownHostsCommand none\n", "board")


def test_a_short_name_gets_the_first_domain_that_knows_it(home, monkeypatch):
    """Without a question to a name server: it would be somebody else's machine."""

    def known(name, _port):
        if name != "board.lab":
            raise socket.gaierror
        return []

    monkeypatch.setattr(socket, "getaddrinfo", known)
    text = "CanonicalizeHostname yes\nCanonicalDomains invalid lab\nCanonicalizeFallbackLocal no\n"
    assert _route(home, text, "board")[0].host == "board.lab"
    with pytest.raises(InputError, match="none of the CanonicalDomains"):
        _route(home, text, "other")


def test_bytes_of_another_encoding(home):
    (home / "config").write_bytes(b"# M\xfcller\nHost board\n User pi # \xe9\n IdentityFile /k/\xfc\n")
    (hop,) = config.Config(SshOptions()).route(Address("board"))
    assert hop.user == "pi"
    assert os.fsencode(hop.identities[0]) == b"/k/\xfc"


def test_nothing_of_an_address_is_read_by_the_shell_of_a_command(home):
    (home / "config").write_text(f"ProxyCommand true %h\nMatch exec 'touch {home}/%n'\n User x\n")
    for host in ("fe80::1%$(touch${IFS}RAN)", "me@::1%;touch RAN", "`touch RAN`", "me;touch RAN@board"):
        with pytest.raises(InputError, match="not a valid device address"):
            config.Config(SshOptions()).route(parse_address(host.replace("RAN", f"{home}/ran")))
    assert sorted(path.name for path in home.iterdir()) == ["config"]
