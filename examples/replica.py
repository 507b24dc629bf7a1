"""Two API replicas that hand work to each other's clients.

A balancer sends a client to any replica. What it puts may land in replica A while the consumer is connected to replica
B; either may die at any moment. The replicas share nothing but a message queue:

    python examples/replica.py 9001 &
    python examples/replica.py 9002 &
    curl -d 'build' -H 'Idempotency-Key: run-1' http://127.0.0.1:9001/jobs/urgent    put into one replica
    curl 'http://127.0.0.1:9002/next?wait=5'                                         taken from the other
    curl -X POST http://127.0.0.1:9002/done/run-1                                    acknowledged

DTQ_REDIS_URL says where their Redis is; unset, it is the private one of the current directory.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import dtq
from dtq.errors import DtqError, TopicFull
from dtq.mq import Message, MessageQueue, Subscription

TOPICS = ["urgent", "usual"]
"""The most urgent first."""
MOST_WAITING = 1_000
"""A topic that holds so many refuses more: the client hears 429 and tries again later."""
HOLD_S = 20.0
"""How long a client may keep a message before it goes to somebody else."""


class Replica:
    """What one replica does with the queue."""

    def __init__(self, queue: MessageQueue, subscription: Subscription) -> None:
        self.queue = queue
        self.subscription = subscription
        self._lock = threading.Lock()
        self._with_clients: dict[str, tuple[Message, float]] = {}

    def put(self, topic: str, data: bytes, key: str | None) -> bool:
        """Store work for whichever replica's client comes first. False: it was put before."""
        return self.queue.put(topic, data, key=key, max_size=MOST_WAITING, block=False)

    def take(self, wait_s: float) -> Message:
        """Return the next message for a client that waits for one. Raises TimeoutError."""
        self._take_back(before=time.monotonic())
        message = self.subscription.receive(wait_s)
        with self._lock:
            self._with_clients[message.key] = (message, time.monotonic() + HOLD_S)
        return message

    def done(self, key: str) -> bool:
        """Acknowledge. False: nobody here has it, or it has gone to somebody else in the meantime."""
        with self._lock:
            held = self._with_clients.pop(key, None)
        return held is not None and held[0].acknowledge()

    def undelivered(self, message: Message) -> None:
        """The client went away before it had the message: others may have it at once."""
        with self._lock:
            self._with_clients.pop(message.key, None)
        message.release()

    def _take_back(self, before: float) -> None:
        """Release what clients have kept for too long."""
        with self._lock:
            late = [message for message, until in self._with_clients.values() if until < before]
        for message in late:
            self.undelivered(message)


class Handler(BaseHTTPRequestHandler):
    """Three calls: put, take, done."""

    replica: Replica

    def do_POST(self) -> None:
        """POST /jobs/<topic> puts the body, POST /done/<key> acknowledges."""
        kind, _, name = self.path.strip("/").partition("/")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            if kind == "jobs" and name in TOPICS:
                stored = self.replica.put(name, body, self.headers.get("Idempotency-Key"))
                self._answer(201 if stored else 200, {"stored": stored})
            elif kind == "done":
                done = self.replica.done(name)
                self._answer(200 if done else 410, {"done": done})
            else:
                self._answer(404, {"error": "POST /jobs/<topic> or /done/<key>"})
        except TopicFull as error:
            self._answer(429, {"error": error.message})
        except (DtqError, ValueError) as error:
            self._answer(503 if isinstance(error, DtqError) else 400, {"error": str(error)})

    def do_GET(self) -> None:
        """GET /next?wait=<seconds> takes a message, 204 when there is none."""
        asked = parse_qs(urlsplit(self.path).query)
        try:
            message = self.replica.take(float(asked.get("wait", ["0"])[0]))
        except TimeoutError:
            self.send_response(204)
            self.end_headers()
            return
        except DtqError:  # this replica is about to end
            self._answer(503, {"error": "ask another replica"})
            return
        try:
            self._answer(
                200,
                {
                    "key": message.key,
                    "topic": message.topic,
                    "data": message.data.decode(errors="replace"),
                    "deliveries": message.deliveries,
                },
            )
        except OSError:
            self.replica.undelivered(message)

    def _answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def main() -> None:
    """Serve on the port that is given until SIGTERM or Ctrl-C, then hand back what is not done."""
    port, timeout_s = int(sys.argv[1]), float(os.environ.get("VISIBILITY_TIMEOUT_S", "30"))
    with dtq.Client() as client:
        queue = client.queue("jobs", visibility_timeout_s=timeout_s, tombstone_ttl_s=3600)
        with queue.subscribe(TOPICS) as subscription:
            Handler.replica = Replica(queue, subscription)
            server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
            server.daemon_threads = True

            def stop(number: int, frame: object) -> None:
                subscription.close()
                threading.Thread(target=server.shutdown).start()

            signal.signal(signal.SIGTERM, stop)
            signal.signal(signal.SIGINT, stop)
            print(f"replica on port {port}", flush=True)  # noqa: T201
            server.serve_forever(poll_interval=0.1)
            server.server_close()


if __name__ == "__main__":
    main()
