"""dtq for programs elsewhere, which reach its API and not its Redis: needs the extra `dtq[http]`.

    from dtq.http_client import HttpClient

    with HttpClient("https://queue.example.com", api_key=key) as client:
        task = client.submit("send_mail", {"to": "ann@example.com"})
        print(client.wait(task.task_id, 30).result)

It raises what `dtq.Client` raises, and KeyMissing, KeyWrong, RoleTooSmall, ServerUnreachable beside.
"""

from dtq.http_client.answers import RemoteEvent, TaskPage
from dtq.http_client.client import HttpClient

__all__ = ["HttpClient", "RemoteEvent", "TaskPage"]
