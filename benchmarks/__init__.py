"""Benchmarks: `make bench`. They print; they never fail a build.

__main__       the command line            peers     the cases that every system runs
table          Markdown                    crash     how soon a killed worker's tasks run again
stand          servers and processes       web       submitting over HTTP
environments   one venv a system           own       dtq's own: priorities, queues, processes ...
systems/       dtq and the others;         growth    single operations, up to a million tasks
               imported where they run     messages  the message queue
produce        submits for a system        load      a client for HTTP
record         who started when
"""
