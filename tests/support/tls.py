"""A certificate authority of a test's own, and what a server needs to speak TLS with its certificates."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificates(directory: Path) -> Path:
    """Put ca.pem, and a certificate of localhost (server.pem, server.key), into a directory, and return that."""
    if shutil.which("openssl") is None:
        pytest.skip("this machine has no openssl to make certificates with")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
    _openssl(directory, "req", "-x509", *key, "-subj", "/CN=Test CA", "-keyout", "ca.key", "-out", "ca.pem", *usage)
    _openssl(directory, "req", *key[:-2], "-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.csr")
    (directory / "extensions").write_text(
        "subjectAltName=DNS:localhost\nauthorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n"
    )
    signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "extensions")
    _openssl(directory, "x509", "-req", "-in", "server.csr", "-out", "server.pem", *signing)
    return directory


def tls_options(certificates: Path, port: int) -> list[str]:
    """Return what a server's command line says to speak TLS on a port, and to want client certificates."""
    options = ["--tls-port", str(port)]
    for name, file in {"cert": "server.pem", "key": "server.key", "ca-cert": "ca.pem"}.items():
        options += [f"--tls-{name}-file", str(certificates / file)]
    return options


def tls_url(certificates: Path, port: int) -> str:
    """Return the URL of such a server, both sides verified."""
    files = {"ssl_ca_certs": "ca.pem", "ssl_certfile": "server.pem", "ssl_keyfile": "server.key"}
    query = "&".join(f"{name}={certificates / file}" for name, file in files.items())
    return f"rediss://localhost:{port}?{query}"


def _openssl(directory: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True, timeout=30)
