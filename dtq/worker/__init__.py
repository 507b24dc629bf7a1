"""The worker process: one file a background actor, put together by `supervisor`."""
