"""The URL forms of DTQ_REDIS_URL."""

from __future__ import annotations

import pytest

from dtq.errors import ConfigurationError
from dtq.redisio import Server
from dtq.redisio.urls import Target, address, hide_passwords, parse


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h", {"kind": "standalone", "hosts": (("h", 6379),), "db": 0}),
        ("redis://h:7000/3", {"hosts": (("h", 7000),), "db": 3}),
        ("REDIS://h?db=4", {"hosts": (("h", 6379),), "db": 4}),
        ("redis://", {"hosts": (("localhost", 6379),)}),
        ("redis://[::1]:7000", {"hosts": (("::1", 7000),)}),
        ("redis://u:s3cr%2Ft@h", {"username": "u", "password": "s3cr/t"}),
        ("redis://:p@h", {"username": None, "password": "p"}),
        ("redis://h?username=u&password=p%40q", {"username": "u", "password": "p@q"}),
        ("redis://h?client_name=web", {"client_name": "web", "tls": None}),
        ("unix:///run/r.sock", {"path": "/run/r.sock", "hosts": ()}),
        ("unix:///run/a%20b?db=2", {"path": "/run/a b", "db": 2}),
        ("unix://u:p@/run/r.sock", {"path": "/run/r.sock", "username": "u", "password": "p"}),
        ("unix://relative/r.sock", {"path": "relative/r.sock"}),
        ("memory://", {"kind": "memory", "path": ""}),
        ("memory://name", {"kind": "memory", "path": "name"}),
        ("rediss://h", {"kind": "standalone", "tls": {}}),
        ("rediss://h?ssl_cert_reqs=none", {"tls": {"ssl_cert_reqs": "none"}}),
        ("rediss://h?ssl_check_hostname=false", {"tls": {"ssl_check_hostname": False}}),
        ("rediss://h?ssl_check_hostname=1", {"tls": {"ssl_check_hostname": True}}),
        (
            "redis+sentinel://u:p@a,b:1/main/2?sentinel_username=su&sentinel_password=sp",
            {
                "kind": "sentinel",
                "hosts": (("a", 26379), ("b", 1)),
                "service": "main",
                "db": 2,
                "username": "u",
                "password": "p",
                "sentinel_username": "su",
                "sentinel_password": "sp",
            },
        ),
        ("redis+cluster://a:1,b", {"kind": "cluster", "hosts": (("a", 1), ("b", 6379))}),
        ("rediss+cluster://a/0", {"kind": "cluster", "tls": {}, "db": 0}),
    ],
)
def test_a_url_says_where_redis_is(url, expected):
    target = parse(url)
    assert {name: getattr(target, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("", "no scheme"),
        ("localhost:6379", "no scheme"),
        ("http://u:secret@h", "no scheme"),
        ("redis://u:secret@h/x", "database"),
        ("redis://u:secret@h/1/2", "too many parts"),
        ("redis://u:secret@h:0", "port"),
        ("redis://u:secret@h:70000", "port"),
        ("redis://u:secret@h:port", "port"),
        ("redis://u:secret@[::1", "redis"),
        ("redis://u:secret@a,b", "several hosts"),
        (f"redis://u:secret@{'x' * 70}", "label"),
        ("redis://u:12#secret@h", "percent-encoded"),
        ("redis://u:12/secret@h", "percent-encoded"),
        ("redis://u:12?secret@h", "percent-encoded"),
        ("unix://", "no socket"),
        ("redis+sentinel://u:secret@h", "no service"),
        ("redis+cluster://u:secret@h/1", "database 0"),
        ("redis://h?password=secret&decode_responses=1", "decode_responses"),
        ("rediss://u:secret@h?ssl_cert_reqs=maybe", "ssl_cert_reqs"),
        ("rediss://u:secret@h?ssl_ca_certs=/does/not/exist", "does not exist"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_showing_its_password(url, complaint):
    """SEC-01: the message shows the URL, what is wrong and what is allowed, never the password."""
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        Server.connect(url)
    assert "secret" not in str(caught.value)
    assert "redis+sentinel://" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:s3cr%2Ft@h:6379/0", "redis://user:***@h:6379/0"),
        ("redis://:pw@h", "redis://:***@h"),
        ("redis://user:a@b@h", "redis://user:***@h"),
        ("redis://user:a/b?c#d@h", "redis://user:***@h"),
        ("redis://h/0?password=a&db=1&sentinel_password=b#x", "redis://h/0?password=***&db=1&sentinel_password=***#x"),
        ("rediss://h?ssl_password=a", "rediss://h?ssl_password=***"),
        ("redis+sentinel://u:p@a:1,b:2/s", "redis+sentinel://u:***@a:1,b:2/s"),
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("unix:///run/r.sock", "unix:///run/r.sock"),
    ],
)
def test_a_shown_url_has_no_password(url, shown):
    assert hide_passwords(url) == shown


def test_a_target_does_not_print_its_passwords():
    target = parse("redis+sentinel://u:secret1@h/main?sentinel_password=secret2")
    assert isinstance(target, Target)
    assert "secret" not in repr(target)
    assert target.safe_url == "redis+sentinel://u:***@h/main?sentinel_password=***"


def test_an_address_with_colons_is_put_in_brackets():
    assert address(("::1", 1)) == "[::1]:1"
    assert address(("h", 1)) == "h:1"
