"""Requests to a registry with scripted answers: who sees a login, what is tried again, and what is refused."""

from __future__ import annotations

import base64
import contextlib

import pytest
import requests

from tests.support.registries import Answer, told
from toolchain.errors import InputError, RegistryError, ToolchainError, VerificationError
from toolchain.registry import Access, Login, client, parse
from toolchain.registry.client import Client, document

OK = frozenset({200})
ANN = Login("ann", "secret")
BASIC = f"Basic {base64.b64encode(b'ann:secret').decode()}"


@pytest.fixture(autouse=True)
def _no_login(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))


def get(server, access=None, path="/v2/x", **options):
    address = parse(f"oci://{server.host}/x:1")
    with (
        Client(address, access or Access()) as registry_client,
        registry_client.ask("GET", path, expected=OK, **options) as response,
    ):
        return document(response)


def behind_password(request):
    if request.headers.get("Authorization") == BASIC:
        return Answer(200, b"in")
    return Answer(401, headers={"WWW-Authenticate": 'Basic realm="x"'})


def test_a_password_is_sent_where_it_is_asked_for_and_not_before():
    with told(behind_password) as server:
        assert get(server, Access(login=ANN)) == b"in"
    assert [request.headers.get("Authorization") for request in server.asked] == [None, BASIC]


def test_without_a_login_the_next_command_is_named():
    with told(behind_password) as server, pytest.raises(RegistryError, match="requires a login") as caught:
        get(server)
    assert f"docker login {server.host}" in caught.value.hint


def test_a_wrong_password_is_told():
    with told(behind_password) as server, pytest.raises(RegistryError, match="refuses this user"):
        get(server, Access(login=Login("ann", "wrong")))


def behind_token(realm):
    def answer(request):
        if request.path.startswith("/token"):
            is_allowed = request.headers.get("Authorization") in {None, BASIC}
            return Answer(200, b'{"token": "a-token"}') if is_allowed else Answer(401)
        if request.headers.get("Authorization") == "Bearer a-token":
            return Answer(200, b"in")
        challenge = f'Bearer realm="{realm(request)}",service="s",scope="repository:x:pull,push"'
        return Answer(401, headers={"WWW-Authenticate": challenge})

    return answer


@pytest.mark.parametrize("login", [None, ANN])
def test_a_token_is_fetched_with_a_login_or_as_anybody(login):
    with told(behind_token(lambda request: f"http://{request.headers['Host']}/token")) as server:
        assert get(server, Access(login=login)) == b"in"
    fetched = server.asked[1]
    assert fetched.path == "/token?service=s&scope=repository%3Ax%3Apull%2Cpush"
    assert fetched.headers.get("Authorization") == (BASIC if login else None)


def test_a_token_that_is_refused_is_told():
    realm = behind_token(lambda request: f"http://{request.headers['Host']}/token")
    with told(realm) as server, pytest.raises(RegistryError, match="refuses this user"):
        get(server, Access(login=Login("bob", "wrong")))


@pytest.mark.parametrize("login", [None, ANN])
@pytest.mark.parametrize(
    "token_answer", [Answer(503, b"asleep"), Answer(200, b"{}"), Answer(404), Answer(200, b"[" * 100_000)]
)
def test_a_server_of_tokens_that_is_ill_is_not_taken_for_a_wrong_password(login, token_answer):
    ask = behind_token(lambda request: f"http://{request.headers['Host']}/token")
    message = f"token server of .* answered {token_answer.status} without a token"
    with (
        told(lambda request: token_answer if request.path.startswith("/token") else ask(request)) as server,
        pytest.raises(RegistryError, match=message),
    ):
        get(server, Access(login=login))


@pytest.mark.parametrize("location", ["https://[x/", "https://127.0.0.1:99999999/", "file:///etc/passwd"])
def test_a_redirect_to_no_address_is_told(location):
    with (
        told(lambda _: Answer(302, headers={"Location": location})) as server,
        pytest.raises(VerificationError, match="redirects to an address that is not encrypted or not valid"),
    ):
        get(server)


def test_a_login_is_not_carried_to_where_nothing_is_encrypted():
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(told(lambda _: Answer()))
        server = stack.enter_context(told(behind_token(lambda _: f"http://{other.host}/token")))
        with pytest.raises(VerificationError, match="not encrypted"):
            get(server, Access(login=ANN))
    assert not other.asked


def test_an_unknown_kind_of_login_is_told():
    headers = {"WWW-Authenticate": "Negotiate"}
    with told(lambda _: Answer(401, headers=headers)) as server, pytest.raises(RegistryError, match="unknown kind"):
        get(server, Access(login=ANN))


def test_a_redirect_to_another_host_carries_no_login(monkeypatch):
    """The other one is on this host, too; what is left out is what forbids it, which is tested above."""
    monkeypatch.setattr(client, "_session", anywhere(client._session))
    with told(lambda _: Answer(200, b"blob")) as storage:

        def answer(request):
            response = behind_password(request)
            return (
                Answer(307, headers={"Location": f"http://{storage.host}/blob"}) if response.status == 200 else response
            )

        with told(answer) as server:
            assert get(server, Access(login=ANN)) == b"blob"
    assert [request.headers.get("Authorization") for request in storage.asked] == [None]


def anywhere(real):
    from requests import adapters

    def session(plain, authorities, deadline):
        opened = real(plain, authorities, deadline)
        opened.mount("http://", adapters.HTTPAdapter())
        return opened

    return session


def test_another_host_that_asks_for_a_login_gets_none(monkeypatch):
    monkeypatch.setattr(client, "_session", anywhere(client._session))
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(told(behind_password))
        redirect = Answer(307, headers={"Location": f"http://{other.host}/blob"})
        server = stack.enter_context(told(lambda _: redirect))
        with pytest.raises(RegistryError, match="requires a login"):
            get(server, Access(login=ANN))
        registry_client = stack.enter_context(Client(parse(f"oci://{server.host}/x:1"), Access(login=ANN)))
        registry_client._authorization = BASIC
        with pytest.raises(RegistryError, match="refuses"):
            registry_client.ask("PUT", f"http://{other.host}/upload", expected=OK, body=b"data")
    assert [request.headers.get("Authorization") for request in other.asked] == [None, None]


def test_a_redirect_in_a_circle_ends():
    redirect = Answer(307, headers={"Location": "/v2/x"})
    with told(lambda _: redirect) as server, pytest.raises(RegistryError, match="cannot be reached"):
        get(server)
    assert len(server.asked) < 10


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_what_passes_is_tried_again(status):
    answers = iter([Answer(status), Answer(status), Answer(200, b"at last")])
    with told(lambda _: next(answers)) as server:
        assert get(server) == b"at last"


def test_what_does_not_pass_is_told_with_the_words_of_the_registry():
    body = b'{"errors": [{"code": "UNAVAILABLE", "message": "the disk\\u001b[31m is full"}]}'
    with told(lambda _: Answer(503, body)) as server, pytest.raises(RegistryError, match="answered 503") as caught:
        get(server)
    assert len(server.asked) == 5
    assert caught.value.details == "UNAVAILABLE: the disk[31m is full"
    assert "again" in caught.value.hint


def test_a_registry_names_no_time_to_wait_that_is_too_long():
    response = requests.Response()
    response.headers["Retry-After"] = "86400"
    assert client._pause_s(response, 0) <= 30


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [
        (403, RegistryError, "refuses this user"),
        (404, InputError, "there is no thing"),
        (400, RegistryError, "answered 400"),
        (418, RegistryError, "answered 418"),
    ],
)
def test_every_refusal_has_its_class(status, kind, message):
    with told(lambda _: Answer(status, b"<html>no</html>")) as server, pytest.raises(kind, match=message) as caught:
        get(server, what="thing")
    assert caught.value.hint


def test_an_endless_answer_is_not_read_to_its_end():
    endless = Answer(200, bytes(client.LARGEST_DOCUMENT + 1))
    with told(lambda _: endless) as server, pytest.raises(VerificationError, match="more data than a manifest"):
        get(server)


@pytest.mark.parametrize("location", ["http://[::zz/x", "http://127.0.0.1:99999/x", "gopher://x/", "http://\udcff/"])
def test_a_redirect_to_nowhere_is_an_error_of_ours(location):
    headers = {"Location": location.encode("utf-8", "surrogateescape").decode("latin-1")}
    with told(lambda _: Answer(307, headers=headers)) as server, pytest.raises(ToolchainError) as caught:
        get(server)
    assert caught.value.exit_code in {4, 5}


def test_nobody_there_is_told():
    registry_client = Client(parse("oci://127.0.0.1:1/x:1"), Access())
    with registry_client, pytest.raises(RegistryError, match=r"127\.0\.0\.1:1 cannot be reached") as caught:
        registry_client.ask("GET", "/v2/", expected=OK)
    assert caught.value.details == "Connection refused"


@pytest.mark.parametrize(
    ("registry", "access", "origin"),
    [
        ("127.0.0.1:5000", Access(), "http://127.0.0.1:5000"),
        ("ghcr.io", Access(), "https://ghcr.io"),
        ("10.0.0.1:5000", Access(), "https://10.0.0.1:5000"),
        ("10.0.0.1:5000", Access(plain=True), "http://10.0.0.1:5000"),
        ("docker.io", Access(), "https://registry-1.docker.io"),
    ],
)
def test_only_this_machine_is_spoken_to_in_the_clear(registry, access, origin):
    with Client(parse(f"oci://{registry}/x:1"), access) as registry_client:
        assert registry_client.origin == origin
        schemes = {prefix for prefix in registry_client._session.adapters if prefix.startswith("http:")}
        assert schemes == ({f"{origin}/"} if origin.startswith("http:") else set())


def test_what_lies_in_the_home_folder_says_nothing(tmp_path, monkeypatch):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login eve password other\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    with told(lambda _: Answer(200, b"x", {"Set-Cookie": "a=b"})) as server, contextlib.ExitStack() as stack:
        registry_client = stack.enter_context(Client(parse(f"oci://{server.host}/x:1"), Access()))
        for _ in range(2):
            registry_client.ask("GET", "/v2/", expected=OK).close()
    assert not any({"Authorization", "Cookie"} & request.headers.keys() for request in server.asked)
