"""`python -m benchmarks.load URL`: one thread that keeps connections busy with POSTs; prints what came back as JSON.

It knows no more of HTTP than it needs, so that it leaves the processors to the server.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import time
from urllib.parse import urlsplit

from benchmarks.stand import percentile


class Connection:
    """One request after the other."""

    def __init__(self, host: str, port: int, request: bytes) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = request
        self._received = b""
        self.sent_at = 0.0

    def send(self) -> None:
        self.sent_at = time.perf_counter()
        self.socket.sendall(self._request)

    def status(self) -> int | None:
        """Read what is there. Returns the status once the response is complete, 0 when the server has hung up."""
        piece = self.socket.recv(1 << 20)
        self._received += piece
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not piece:
            return 0
        if not found or len(body) < int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]):
            return None
        self._received = b""
        return int(head[9:12])


def main() -> None:
    """Send for some seconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--body", type=argparse.FileType("rb"), required=True)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5.0)
    asked = parser.parse_args()
    address, body = urlsplit(asked.url), asked.body.read()
    head = f"POST {address.path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    selector, delays_ms, wrong = selectors.DefaultSelector(), list[float](), 0
    for _ in range(asked.connections):
        connection = Connection(str(address.hostname), int(address.port or 80), request)
        selector.register(connection.socket, selectors.EVENT_READ, connection)
        connection.send()
    began = time.perf_counter()
    while time.perf_counter() - began < asked.seconds and selector.get_map():
        for key, _ in selector.select(1.0):
            connection = key.data
            status = connection.status()
            if status is None:
                continue
            delays_ms.append((time.perf_counter() - connection.sent_at) * 1000)
            wrong += not 200 <= status < 300
            if status:
                connection.send()
            else:
                selector.unregister(connection.socket)
    seconds = time.perf_counter() - began
    told = {"number": len(delays_ms), "seconds": seconds, "wrong": wrong}
    delays = {"p50": percentile(delays_ms, 0.5), "p99": percentile(delays_ms, 0.99)} if delays_ms else {}
    print(json.dumps(told | delays))


if __name__ == "__main__":
    main()
