"""`python -m dtq.web.probe`: whether the web server of this container is ready, for its health check."""

from __future__ import annotations

import http.client
import os
import sys

LIMIT_S = 5.0


def main() -> int:
    """Ask `/ready` on DTQ_API_PORT and say what it said. Returns 0 when it is ready, else 1."""
    connection = http.client.HTTPConnection("127.0.0.1", int(os.environ.get("DTQ_API_PORT") or 8000), timeout=LIMIT_S)
    try:
        connection.request("GET", "/ready")
        answer = connection.getresponse()
        sys.stdout.write(answer.read(4096).decode(errors="replace").strip() + "\n")
    except (OSError, http.client.HTTPException) as error:
        sys.stderr.write(f"the web server does not answer: {error}\n")
        return 1
    finally:
        connection.close()
    return 0 if answer.status == http.HTTPStatus.OK else 1


if __name__ == "__main__":
    sys.exit(main())
