"""`outlast tools` and `outlast models`: what agent.toml declares, and what a provider has."""

import http.server
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from outlast.server import BadConfig, Config
from outlast.testing.serving import ServerProcess

TOML = "# mine\n[agent]\nname = 'desk'  # the name\n\n[store]\nretention = '30d'\n"
KEY = "sk-only-in-the-file"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the agent.toml of the current folder, with nothing of the environment that would override it."""
    monkeypatch.chdir(tmp_path)
    for name in ("OUTLAST_CONFIG", "OUTLAST_STORE", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        # Set first, so that what a `.env` sets is taken back too.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    path = tmp_path / "agent.toml"
    path.write_text(TOML)
    return path


def test_a_server_is_declared_for_users_and_what_a_person_wrote_stays(
    project: Path, outlast: Callable[..., Any]
) -> None:
    outlast("tools", "add", "mcp", "shop", "https://shop.example/mcp")
    text = project.read_text()
    assert text.startswith(TOML)
    assert "[[tools]]" in text and 'auth = "user"' in text
    (shop,) = Config.read(project, {}).file.tools
    assert (shop.name, shop.type, shop.url, shop.auth) == ("shop", "mcp", "https://shop.example/mcp", "user")
    outlast("tools", "remove", "shop")
    assert project.read_text().rstrip() == TOML.rstrip()


def test_a_command_is_one_text_or_the_words_behind_two_dashes(project: Path, outlast: Callable[..., Any]) -> None:
    outlast("tools", "add", "mcp", "files", "npx -y 'a server' /tmp", "--auth", "app", "--credential", "FILES_TOKEN")
    outlast("tools", "add", "mcp", "more", "--", "python", "-m", "server", "--port", "3")
    files, more = Config.read(project, {}).file.tools
    assert files.command == ("npx", "-y", "a server", "/tmp")
    assert (files.auth, files.credential) == ("app", "FILES_TOKEN")
    assert more.command == ("python", "-m", "server", "--port", "3")
    rows = outlast("tools", "list", "--json").objects
    assert [(row["name"], row["place"]) for row in rows] == [
        ("files", "npx -y 'a server' /tmp"), ("more", "python -m server --port 3"),
    ]  # fmt: skip
    assert "files\tmcp\tnpx" in outlast("tools", "list").out


def test_a_server_is_added_to_an_array_that_a_person_wrote(project: Path, outlast: Callable[..., Any]) -> None:
    project.write_text("tools = [{name = 'a', url = 'http://a/mcp'}]  # few\n" + TOML)
    outlast("tools", "add", "mcp", "b", "http://b/mcp")
    assert [one.name for one in Config.read(project, {}).file.tools] == ["a", "b"]
    assert "# few" in project.read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["a b", "http://a/mcp"], "it has 1 to 32 letters"),
        (["a", "ftp://a/mcp"], "url is not like https://host/path"),
        (["a", "https://me:secret@a/mcp"], "put it into an environment variable"),
        (["a", "https://a/mcp", "--auth", "me"], "Input should be 'user' or 'app'"),
        (["a", "https://a/mcp", "--credential", "sk-secret"], "the name of an environment variable"),
        (["a", "npx 'a"], "No closing quotation"),
        (["old", "https://a/mcp"], "there are two [[tools]] named 'old'"),
    ],
)
def test_what_cannot_be_declared_is_refused_and_nothing_is_written(
    project: Path, outlast: Callable[..., Any], arguments: list[str], says: str
) -> None:
    outlast("tools", "add", "mcp", "old", "http://old/mcp")
    before = project.read_text()
    done = outlast("tools", "add", "mcp", *arguments, code=2)
    assert says in done.err
    assert "secret" not in done.err.replace("never the secret", "").replace("has the secret", "")
    assert project.read_text() == before


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[tools]]\nname = 'a'\nurll = 'http://a'", "there is no urll in [[tools]]; did you mean url?"),
        ("[[tools]]\nname = 'a'\ntoken = 'x'", "there is no token in [[tools]]"),
        ("[[tools]]\nname = 'a'", "[[tools]] 'a': it has a url, or a command"),
        ("[[tools]]\nurl = 'http://a/'", "[[tools]] 0: name: Field required"),
        ("[tools]\nname = 'a'", "each server of tools is a table of its own, [[tools]]"),
        ("[tool]\nname = 'a'", "did you mean [tools]?"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused_with_the_way_out(project: Path, text: str, says: str) -> None:
    project.write_text(text)
    with pytest.raises(BadConfig) as raised:
        Config.read(project, {})
    assert says in str(raised.value)


def test_without_a_file_and_without_such_a_server_it_says_so(project: Path, outlast: Callable[..., Any]) -> None:
    assert "declares no server 'shop'; it has none" in outlast("tools", "remove", "shop", code=2).err
    project.unlink()
    assert "there is no agent.toml here" in outlast("tools", "list", code=2).err


class Provider(http.server.BaseHTTPRequestHandler):
    """Lists two models to whoever has the key."""

    def do_GET(self) -> None:
        allowed = self.headers.get("authorization") == f"Bearer {KEY}"
        found = [{"id": "big", "object": "model", "created": 1_700_000_000, "owned_by": "us"}, {"id": "Small"}]
        self.send_response(200 if allowed else 401)
        self.end_headers()
        self.wfile.write(json.dumps({"data": found} if allowed else {"error": {}}).encode())

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def provider() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Provider) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("has_toml", [True, False])
def test_models_are_listed_with_a_key_that_only_the_env_file_has(
    project: Path, outlast: Callable[..., Any], provider: str, has_toml: bool
) -> None:
    if not has_toml:
        project.unlink()
    project.with_name(".env").write_text(f"OPENAI_BASE_URL={provider}/\nOPENAI_API_KEY='{KEY}'\n")
    assert outlast("models", "list").out.splitlines() == ["id\towner\tcreated", "Small\t\t", "big\tus\t2023-11-14"]
    assert [one["id"] for one in outlast("models", "list", "--json").objects] == ["Small", "big"]


@pytest.mark.parametrize(
    ("key", "path", "says"),
    [
        ("sk-other", "", "refuses the key in OPENAI_API_KEY"),
        ("", "", "refuses a request without a key; set OPENAI_API_KEY"),
        ("sk-\u20ac", "", "cannot be reached"),
    ],
)
def test_models_that_cannot_be_listed_are_told_without_the_key(
    project: Path, outlast: Callable[..., Any], provider: str, key: str, path: str, says: str
) -> None:
    project.with_name(".env").write_text(f"OPENAI_BASE_URL={provider}\nOPENAI_API_KEY={key}\n", "utf-8")
    done = outlast("models", "list", code=1)
    assert says in done.err and "sk-" not in done.err


def test_a_provider_that_is_not_there_is_named(
    project: Path, outlast: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    assert "http://127.0.0.1:1/v1/models cannot be reached" in outlast("models", "list", code=1).err


APP = """import os
from outlast import Agent
from outlast.testing.scripted import ScriptedModel
agent = Agent(ScriptedModel(os.environ["ONLY_IN_ENV"]))
"""


@pytest.mark.parametrize("target", [None, "main:agent"])
def test_serve_sees_the_env_file_and_agent_toml_with_and_without_a_target(project: Path, target: str | None) -> None:
    project.write_text("[agent]\nname = 'desk'\n" + ("target = 'main:agent'\n" if target is None else ""))
    project.with_name("main.py").write_text(APP)
    project.with_name(".env").write_text("ONLY_IN_ENV=hello\n")
    command = [sys.executable, "-m", "outlast", "serve", *([target] if target else []), "--port", "{port}"]
    with ServerProcess(command, log=project.with_name("log"), cwd=project.parent) as server:
        (found,) = httpx.get(f"{server.url}/api/agent").json()["agents"]
    assert found["name"] == "desk"


def test_a_target_that_agent_toml_does_not_name_has_its_env_file_only(
    project: Path, outlast: Callable[..., Any]
) -> None:
    project.write_text("[agent]\nname = 'desk'\ntarget = 'other:agent'\n")
    project.with_name("main.py").write_text(APP)
    project.with_name(".env").write_text("ONLY_IN_ENV=hello\n")
    found = outlast("doctor", "--target", "main.py:agent", "--port", "1", "--json").objects
    assert {"check": "agent", "state": "ok", "message": "agent recovers and resumes", "fix": None} in found
