"""Signing in with a key: what the cookie is, when it ends, and which writes of a browser are believed."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from flask import Response, jsonify, request

from dtq import apikeys
from dtq.apikeys import create_key, remove_key
from dtq.errors import ConfigurationError
from dtq.settings import load_settings
from dtq.web import sessions
from dtq.web.auth import Need, actor
from tests.support.web import Api, running_api

OWN = {"Sec-Fetch-Site": "same-origin"}


def add_pages(api: Api) -> None:
    """Pages as a dashboard has them."""

    @api.app.post("/sign-in")
    def sign_in() -> Response:
        response = Response(status=303)
        sessions.sign_in(response, request.form["key"])
        return response

    @api.app.post("/sign-out")
    def sign_out() -> Response:
        response = Response(status=303)
        sessions.sign_out(response)
        return response

    @api.app.route("/page/<need>", methods=["GET", "POST"])
    def page(need: Need) -> Response:
        sessions.allow_page(need)
        seen = sessions.viewer()
        return jsonify(
            who=actor().name,
            role=seen and seen.role,
            token=sessions.csrf_token(),
            may={one: sessions.may(one) for one in ("read", "write", "destructive")},
        )


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(apikeys, "LOOK_AGAIN_S", 0.0)
    return tmp_path / "keys"


@pytest.fixture
def api(path: Path) -> Iterator[Api]:
    create_key(path, "first", "admin")
    with running_api("memory://sessions", api_keys_file=str(path)) as api:
        add_pages(api)
        yield api


def sign_in(api: Api, key: str, **headers: str) -> Any:
    return api.http.post("/sign-in", data={"key": key}, headers={**OWN, **headers})


def problem(response: Any) -> tuple[int, str]:
    return response.status_code, response.json["code"]


def test_whoever_signs_in_is_known_by_name_and_role_until_they_sign_out(api: Api, path: Path) -> None:
    key = create_key(path, "ann", "admin")
    assert problem(api.http.post("/page/destructive", headers=OWN)) == (401, "SIGN_IN_NEEDED")
    assert api.http.get("/page/read").json["may"] == {"read": True, "write": True, "destructive": False}
    assert sign_in(api, f" {key}\n").status_code == 303
    shown = api.http.post("/page/destructive", headers=OWN).json
    assert (shown["who"], shown["role"]) == ("key:ann", "admin")
    assert shown["may"] == {"read": True, "write": True, "destructive": True}
    assert api.http.post("/sign-out", headers=OWN).status_code == 303
    assert api.http.post("/page/destructive", headers=OWN).status_code == 401


def test_dash_07_a_key_that_may_only_read_sees_no_buttons_and_is_refused(api: Api, path: Path) -> None:
    sign_in(api, create_key(path, "eve", "read"))
    assert api.http.get("/page/read").json["may"]["destructive"] is False
    refused = api.http.post("/page/destructive", headers=OWN)
    assert problem(refused) == (403, "ROLE_TOO_SMALL")


def test_the_cookie_is_kept_from_scripts_and_other_sites_and_holds_no_key(api: Api, path: Path) -> None:
    key = create_key(path, "ann", "admin")
    cookie = sign_in(api, key).headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Lax", "Path=/", "Max-Age=43200"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    assert key not in cookie
    with running_api("memory://sessions", api_keys_file=str(path), trusted_proxies=1) as behind_tls:
        add_pages(behind_tls)
        cookie = sign_in(behind_tls, key, X_Forwarded_Proto="https").headers["Set-Cookie"]
        assert "Secure" in cookie


def test_a_wrong_key_signs_nobody_in_and_is_counted(api: Api) -> None:
    for _ in range(10):
        assert problem(sign_in(api, "wrong")) == (403, "API_KEY_WRONG")
    assert problem(sign_in(api, "wrong")) == (429, "TOO_MANY_FAILURES")
    assert "Set-Cookie" not in sign_in(api, "wrong").headers


def test_a_key_that_was_removed_or_made_anew_signs_its_browsers_out(api: Api, path: Path) -> None:
    sign_in(api, create_key(path, "ann", "admin"))
    assert api.http.post("/page/destructive", headers=OWN).status_code == 200
    remove_key(path, "ann")
    assert api.http.post("/page/destructive", headers=OWN).status_code == 401
    create_key(path, "ann", "admin")
    assert api.http.post("/page/destructive", headers=OWN).status_code == 401


def test_a_role_that_changed_counts_at_once(api: Api, path: Path) -> None:
    sign_in(api, create_key(path, "ann", "admin"))
    path.write_text(path.read_text().replace("ann admin", "ann read "))
    assert problem(api.http.post("/page/destructive", headers=OWN)) == (403, "ROLE_TOO_SMALL")


def test_a_cookie_that_was_changed_is_old_or_comes_from_elsewhere_is_none(
    api: Api, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_in(api, create_key(path, "ann", "admin"))
    good = api.http.get_cookie("dtq_session").value
    for bad in ("", "x", good[:-1], good.swapcase(), "x" * 3000, f"{good}.x", "WyJhbm4iXQ.x.y"):
        api.http.set_cookie("dtq_session", bad)
        assert api.http.post("/page/destructive", headers=OWN).status_code == 401, bad
    api.http.set_cookie("dtq_session", good)
    assert api.http.post("/page/destructive", headers=OWN).status_code == 200
    with running_api("memory://sessions", api_keys_file=str(path), secret_key="another secret!!") as other:
        add_pages(other)
        other.http.set_cookie("dtq_session", good)
        assert other.http.post("/page/destructive", headers=OWN).status_code == 401
    monkeypatch.setattr(sessions, "SESSION_S", -1)
    assert api.http.post("/page/destructive", headers=OWN).status_code == 401


def test_dash_07_writes_of_other_sites_are_refused_and_old_browsers_need_the_token(api: Api, path: Path) -> None:
    token_before = api.http.get("/page/read").json["token"]
    sign_in(api, create_key(path, "ann", "admin"))
    token = api.http.get("/page/read").json["token"]
    assert token != token_before
    write = "/page/destructive"
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.test"}, {}, {"X-CSRF-Token": "x"}):
        assert problem(api.http.post(write, headers=headers)) == (403, "CROSS_SITE"), headers
    assert problem(api.http.post(write, data={"csrf_token": token_before})) == (403, "CROSS_SITE")
    forged = api.http.post(write, data={"csrf_token": token}, headers={"Sec-Fetch-Site": "cross-site"})
    assert problem(forged) == (403, "CROSS_SITE")
    assert api.http.post(write, headers={"X-CSRF-Token": token}).status_code == 200
    assert api.http.post(write, data={"csrf_token": token}).status_code == 200
    assert api.http.post(write, headers={"Origin": "http://localhost"}).status_code == 200
    assert problem(api.http.post("/sign-in", data={"key": "x"})) == (403, "CROSS_SITE")
    assert problem(api.http.post("/sign-out")) == (403, "CROSS_SITE")


def test_without_keys_everybody_may_everything_but_other_sites() -> None:
    with running_api("memory://sessions") as api:
        add_pages(api)
        shown = api.http.get("/page/read").json
        assert (shown["who"], shown["role"]) == ("api:127.0.0.1", None)
        assert all(shown["may"].values())
        assert api.http.post("/page/destructive", headers=OWN).status_code == 200
        assert api.http.post("/page/destructive", data={"csrf_token": shown["token"]}).status_code == 200
        assert problem(api.http.post("/page/destructive")) == (403, "CROSS_SITE")


def test_with_reading_protected_even_looking_needs_a_session(path: Path) -> None:
    key = create_key(path, "ann", "read")
    with running_api("memory://sessions", api_keys_file=str(path), protect="all") as api:
        add_pages(api)
        assert problem(api.http.get("/page/read")) == (401, "SIGN_IN_NEEDED")
        sign_in(api, key)
        assert api.http.get("/page/read").status_code == 200


def test_the_secret_of_a_directory_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    settings = load_settings(env_file=None, directory=tmp_path, redis_url="memory://")
    with ThreadPoolExecutor(8) as pool:
        secrets = set(pool.map(lambda _: sessions.secret_of(settings), range(16)))
    assert len(secrets) == 1
    [kept] = (tmp_path / ".dtq").iterdir()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    kept.write_bytes(b"short")
    with pytest.raises(ConfigurationError, match="damaged"):
        sessions.secret_of(settings)
    other = tmp_path / "other"
    other.mkdir()
    (other / ".dtq").touch()
    with pytest.raises(ConfigurationError, match="DTQ_SECRET_KEY"):
        sessions.secret_of(load_settings(env_file=None, directory=other, redis_url="memory://"))
    assert sessions.secret_of(load_settings(env_file=None, secret_key="k" * 16)) == b"k" * 16
