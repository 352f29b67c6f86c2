"""View of a running cluster in a browser: `testbed top --web`.

It has the terminal's model and panels; actions are commands of `testbed`, started as a user would. The only room of
Starlette and uvicorn, the extra `[web]`.
"""
